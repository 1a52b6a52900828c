//! Look-aside replay: a get that misses writes the value that the trace shows later.
//!
//! Always true: the size written on a miss is that of the get's own row if the row has one (the key was a hit
//! when the trace was recorded), else that of the next row of the same key that shows one. If no later row does,
//! the key stays absent.
//!
//! For this the trace is read twice; between the passes, 16 bytes are kept for each row that shows a size. The
//! first pass also finds malformed lines before anything is done.

use std::collections::{HashMap, VecDeque};
use std::path::{Path, PathBuf};

use super::trace::{Action, Request, TraceError};

/// Sizes that later rows show, by key: row number and size.
type Sizes = HashMap<Vec<u8>, VecDeque<(u64, u32)>>;

/// Reads a trace whose gets carry only their own row's size, and fills in the later ones.
pub(crate) fn read_twice<Reader>(
    path: &Path,
    open: impl Fn(&Path) -> Result<Reader, TraceError>,
) -> Result<LookAhead<Reader>, TraceError>
where
    Reader: Iterator<Item = Result<Request, TraceError>>,
{
    let mut sizes = Sizes::new();
    for (row, request) in (0..).zip(open(path)?) {
        let request = request?;
        if let Some(bytes) = shown_bytes(&request) {
            sizes.entry(request.key).or_default().push_back((row, bytes));
        }
    }
    Ok(LookAhead { reader: open(path)?, sizes, row: 0, path: path.to_owned() })
}

/// The second pass.
pub(crate) struct LookAhead<Reader> {
    reader: Reader,
    sizes: Sizes,
    row: u64,
    path: PathBuf,
}

impl<Reader: Iterator<Item = Result<Request, TraceError>>> Iterator for LookAhead<Reader> {
    type Item = Result<Request, TraceError>;

    fn next(&mut self) -> Option<Self::Item> {
        let mut request = match self.reader.next()? {
            Ok(request) => request,
            Err(error) => return Some(Err(error)),
        };
        let row = self.row;
        self.row += 1;
        if let Some(later) = self.sizes.get_mut(&request.key) {
            if shown_bytes(&request).is_some() {
                match later.pop_front() {
                    Some((shown, _)) if shown == row => {}
                    _ => {
                        return Some(Err(TraceError::at(
                            &self.path,
                            row,
                            "the file changed meanwhile".into(),
                        )));
                    }
                }
            } else if let Action::Get { fill_bytes } = &mut request.action {
                *fill_bytes = later.front().map(|(_, bytes)| *bytes);
            }
        }
        Some(Ok(request))
    }
}

fn shown_bytes(request: &Request) -> Option<u32> {
    match request.action {
        Action::Get { fill_bytes } => fill_bytes,
        Action::Put { bytes } | Action::PutIf { bytes, .. } => Some(bytes).filter(|bytes| *bytes > 0),
        Action::Delete => None,
    }
}
