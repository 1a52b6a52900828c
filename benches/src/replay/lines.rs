//! Lines of a file, one at a time, with their numbers.
//!
//! Always true: no more than one line is in memory, and no line is longer than a bound.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;

/// The longest line. A serving request of a million tokens has 2,000 block numbers, some 20 KiB.
const LINE_BYTES_MAX: u64 = 4 << 20;

/// Why the next line cannot be had.
#[derive(Debug)]
pub enum LineError {
    /// Reading failed.
    Unreadable(io::Error),
    /// It is too long.
    TooLong {
        /// Which line.
        line: u64,
        /// How long it may be.
        bytes: u64,
    },
}

/// Reads lines.
#[derive(Debug)]
pub struct Lines {
    reader: BufReader<File>,
    number: u64,
    buffer: Vec<u8>,
}

impl Lines {
    /// Opens a file.
    pub fn open(path: &Path) -> Result<Self, LineError> {
        let file = File::open(path).map_err(LineError::Unreadable)?;
        Ok(Self { reader: BufReader::with_capacity(1 << 16, file), number: 0, buffer: Vec::new() })
    }

    /// The next line with its number, without its end; blank lines are passed over.
    pub fn advance(&mut self) -> Result<Option<(u64, &[u8])>, LineError> {
        loop {
            self.buffer.clear();
            self.number += 1;
            let mut limited = self.reader.by_ref().take(LINE_BYTES_MAX + 1);
            let read_bytes = limited.read_until(b'\n', &mut self.buffer).map_err(LineError::Unreadable)?;
            if read_bytes == 0 {
                return Ok(None);
            }
            if read_bytes as u64 > LINE_BYTES_MAX {
                return Err(LineError::TooLong { line: self.number, bytes: LINE_BYTES_MAX });
            }
            while matches!(self.buffer.last(), Some(b'\n' | b'\r')) {
                self.buffer.pop();
            }
            if !self.buffer.is_empty() {
                return Ok(Some((self.number, &self.buffer)));
            }
        }
    }
}
