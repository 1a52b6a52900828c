//! Mooncake's traces: which blocks of a key-value cache the requests of a language model need.
//!
//! Always true: each line names `ceil(input_length / 512)` blocks; a block is read, and written with a fixed size
//! if it is not there.

use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::lines::Lines;
use super::trace::{Action, Request, TraceError};

/// Tokens that a block stands for.
const BLOCK_TOKENS: u64 = 512;

#[derive(Debug, Deserialize)]
struct Row {
    #[serde(rename = "timestamp")]
    _timestamp_ms: f64,
    input_length: u64,
    #[serde(rename = "output_length")]
    _output_tokens: u64,
    hash_ids: Vec<u64>,
}

/// Reads a trace.
#[derive(Debug)]
pub(crate) struct Reader {
    path: PathBuf,
    lines: Lines,
    block_bytes: u32,
    blocks: std::vec::IntoIter<u64>,
}

impl Reader {
    pub(crate) fn open(path: &Path, block_bytes: u32) -> Result<Self, TraceError> {
        let lines = Lines::open(path).map_err(|error| TraceError::from_line(path, error))?;
        Ok(Self { path: path.to_owned(), lines, block_bytes, blocks: Vec::new().into_iter() })
    }
}

impl Iterator for Reader {
    type Item = Result<Request, TraceError>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(block) = self.blocks.next() {
                return Some(Ok(Request {
                    key: format!("block:{block}").into_bytes(),
                    action: Action::Get { fill_bytes: Some(self.block_bytes) },
                    repeat: 1,
                    has_ttl: false,
                }));
            }
            let (line, text) = match self.lines.advance() {
                Ok(line) => line?,
                Err(error) => return Some(Err(TraceError::from_line(&self.path, error))),
            };
            match parse(text) {
                Ok(blocks) => self.blocks = blocks.into_iter(),
                Err(reason) => return Some(Err(TraceError::at(&self.path, line, reason))),
            }
        }
    }
}

fn parse(text: &[u8]) -> Result<Vec<u64>, String> {
    let row: Row = serde_json::from_slice(text).map_err(|error| error.to_string())?;
    let wanted = row.input_length.div_ceil(BLOCK_TOKENS);
    if row.hash_ids.len() as u64 != wanted {
        let found = row.hash_ids.len();
        return Err(format!("{found} hash_ids where input_length {} needs {wanted}", row.input_length));
    }
    Ok(row.hash_ids)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_must_name_as_many_blocks_as_they_need() {
        let row = |length: u64, ids: &str| {
            parse(
                format!(
                    r#"{{"timestamp": 5, "input_length": {length}, "output_length": 1, "hash_ids": {ids}}}"#
                )
                .as_bytes(),
            )
        };
        assert_eq!(row(513, "[7, 18446744073709551615]"), Ok(vec![7, u64::MAX]));
        assert_eq!(row(0, "[]"), Ok(vec![]));
        assert_eq!(row(1025, "[7, 9]").unwrap_err(), "2 hash_ids where input_length 1025 needs 3");
        for bad in ["[-1]", "[1.5]", "[\"a\"]", "7", "[18446744073709551616]", "[1"] {
            assert!(row(1, bad).is_err(), "{bad}");
        }
        assert!(parse(b"\xff").is_err() && parse(b"{}").is_err());
    }
}
