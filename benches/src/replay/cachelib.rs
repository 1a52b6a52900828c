//! CacheLib's key-value traces: CSV, whose columns go by the names in the header.
//!
//! Always true: columns are found by name, since their order differs between files; a key is its token
//! lengthened to `key_size`; a row stands for `op_count` operations.

use std::path::{Path, PathBuf};

use super::lines::Lines;
use super::trace::{Action, Limits, Request, TraceError, column_number, has_ttl, pad_key, value_bytes};

/// Columns that are needed, in the order of [`Reader::columns`].
const COLUMNS: [&str; 6] = ["key", "key_size", "op", "op_count", "size", "ttl"];

/// Reads a trace.
#[derive(Debug)]
pub(crate) struct Reader {
    path: PathBuf,
    lines: Lines,
    limits: Limits,
    columns: [usize; 6],
    column_count: usize,
}

impl Reader {
    pub(crate) fn open(path: &Path, limits: Limits) -> Result<Self, TraceError> {
        let failed = |error| TraceError::from_line(path, error);
        let mut lines = Lines::open(path).map_err(failed)?;
        let Some((line, header)) = lines.advance().map_err(failed)? else {
            return Err(TraceError::at(path, 1, "no header: the file is empty".to_owned()));
        };
        let names: Vec<&[u8]> = header.split(|byte| *byte == b',').map(<[u8]>::trim_ascii).collect();
        let mut columns = [0; 6];
        for (column, wanted) in columns.iter_mut().zip(COLUMNS) {
            *column = names.iter().position(|name| *name == wanted.as_bytes()).ok_or_else(|| {
                let reason = format!("no column {wanted} in header {:?}", header.escape_ascii().to_string());
                TraceError::at(path, line, reason)
            })?;
        }
        let column_count = names.len();
        Ok(Self { path: path.to_owned(), lines, limits, columns, column_count })
    }
}

impl Iterator for Reader {
    type Item = Result<Request, TraceError>;

    fn next(&mut self) -> Option<Self::Item> {
        let (line, row) = match self.lines.advance() {
            Ok(line) => line?,
            Err(error) => return Some(Err(TraceError::from_line(&self.path, error))),
        };
        let request = parse(row, &self.columns, self.column_count, self.limits);
        Some(request.map_err(|reason| TraceError::at(&self.path, line, reason)))
    }
}

fn parse(row: &[u8], columns: &[usize; 6], column_count: usize, limits: Limits) -> Result<Request, String> {
    let fields: Vec<&[u8]> = row.split(|byte| *byte == b',').collect();
    if fields.len() != column_count {
        return Err(format!("{} columns where the header has {column_count}", fields.len()));
    }
    let [key, key_bytes, operation, count, bytes, ttl] = columns.map(|column| fields[column]);
    let bytes = value_bytes(bytes, limits)?;
    let count = column_number("op_count", count)?;
    let action = match operation {
        b"GET" | b"GET_LEASE" => Action::Get { fill_bytes: Some(bytes).filter(|bytes| *bytes > 0) },
        b"SET" | b"SET_LEASE" => Action::Put { bytes },
        b"DELETE" => Action::Delete,
        other => {
            let other = other.escape_ascii();
            return Err(format!("op \"{other}\" is not one of GET, GET_LEASE, SET, SET_LEASE, DELETE"));
        }
    };
    Ok(Request {
        key: pad_key(key, column_number("key_size", key_bytes)?)?,
        action,
        repeat: u32::try_from(count).map_err(|_| format!("op_count {count} is more than {}", u32::MAX))?,
        has_ttl: has_ttl(ttl)?,
    })
}
