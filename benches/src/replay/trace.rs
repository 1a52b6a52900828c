//! What all traces are turned into.

use std::path::{Path, PathBuf};

use super::lines::LineError;
use super::lookahead::read_twice;
use crate::workload::record::KEY_BYTES_MAX;

/// Formats that can be replayed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum TraceFormat {
    /// CacheLib's key-value traces: CSV with a header.
    Cachelib,
    /// Twitter's cache traces: seven columns without a header.
    Twitter,
    /// Mooncake's traces of language model serving: JSON lines.
    Mooncake,
}

/// What to do with a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// Read it; where there is none, write so many bytes (nothing: leave it absent).
    Get {
        /// Bytes to write on a miss.
        fill_bytes: Option<u32>,
    },
    /// Write so many bytes.
    Put {
        /// How many.
        bytes: u32,
    },
    /// Read it, and write so many bytes if it is absent (or if it is present).
    PutIf {
        /// Whether it must be present.
        present: bool,
        /// How many bytes.
        bytes: u32,
    },
    /// Remove it.
    Delete,
}

/// One row of a trace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    /// Which key.
    pub key: Vec<u8>,
    /// What to do.
    pub action: Action,
    /// How many times, one after the other.
    pub repeat: u32,
    /// Whether the row asks for an expiry, which this store does not apply yet.
    pub has_ttl: bool,
}

/// Limits that a replay keeps to.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Largest value.
    pub value_bytes_max: u32,
}

/// Why a trace cannot be replayed.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// Reading failed.
    #[error("{}: {source}", path.display())]
    Unreadable {
        /// Which file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// A line that is not of the format.
    #[error("{}:{line}: {reason}", path.display())]
    Malformed {
        /// Which file.
        path: PathBuf,
        /// Which line.
        line: u64,
        /// What is wrong, with the value.
        reason: String,
    },
}

impl TraceError {
    pub(crate) fn at(path: &Path, line: u64, reason: String) -> Self {
        Self::Malformed { path: path.to_owned(), line, reason }
    }

    pub(crate) fn from_line(path: &Path, error: LineError) -> Self {
        match error {
            LineError::Unreadable(source) => Self::Unreadable { path: path.to_owned(), source },
            LineError::TooLong { line, bytes } => {
                Self::at(path, line, format!("more than the {bytes} bytes that a line may have"))
            }
        }
    }
}

/// A trace being read. An error is the last thing it yields.
pub type Requests = Box<dyn Iterator<Item = Result<Request, TraceError>> + Send>;

/// Opens a trace. Formats whose misses are filled from later rows are read twice.
pub fn open(
    format: TraceFormat,
    path: &Path,
    block_bytes: u32,
    limits: Limits,
) -> Result<Requests, TraceError> {
    Ok(match format {
        TraceFormat::Cachelib => {
            Box::new(read_twice(path, |path| super::cachelib::Reader::open(path, limits))?)
        }
        TraceFormat::Twitter => {
            Box::new(read_twice(path, |path| super::twitter::Reader::open(path, limits))?)
        }
        TraceFormat::Mooncake => Box::new(super::mooncake::Reader::open(path, block_bytes)?),
    })
}

/// Parses a decimal number of a column.
pub(crate) fn column_number(name: &str, text: &[u8]) -> Result<u64, String> {
    let digits = std::str::from_utf8(text).ok().filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()));
    digits
        .and_then(|digits| digits.parse().ok())
        .ok_or_else(|| format!("{name} {:?} is not a whole number", text.escape_ascii().to_string()))
}

/// Parses the size of a value.
pub(crate) fn value_bytes(text: &[u8], limits: Limits) -> Result<u32, String> {
    let bytes = column_number("size", text)?;
    match u32::try_from(bytes) {
        Ok(bytes) if bytes <= limits.value_bytes_max => Ok(bytes),
        _ => Err(format!(
            "size {bytes} is more than the {} bytes that a value may have",
            limits.value_bytes_max
        )),
    }
}

/// Parses an expiry and says whether there is one.
pub(crate) fn has_ttl(text: &[u8]) -> Result<bool, String> {
    column_number("ttl", text).map(|seconds| seconds > 0)
}

/// Lengthens a token to the size of the key that it stands for, always in the same way: with the token itself,
/// after a zero byte, again and again. A token that is long enough stays.
pub(crate) fn pad_key(token: &[u8], key_bytes: u64) -> Result<Vec<u8>, String> {
    if token.is_empty() {
        return Err("the key is empty".to_owned());
    }
    let bytes = key_bytes.max(token.len() as u64);
    if bytes > KEY_BYTES_MAX {
        return Err(format!("a key of {bytes} bytes is longer than the {KEY_BYTES_MAX} that a key may have"));
    }
    let period = token.iter().chain(std::iter::once(&0));
    Ok(period.cycle().copied().take(bytes as usize).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn padding_is_repeatable_and_joins_no_keys() {
        assert_eq!(pad_key(b"ab", 9).unwrap(), b"ab\0ab\0ab\0");
        assert_eq!(pad_key(b"abcd", 2).unwrap(), b"abcd");
        assert_ne!(pad_key(b"ab", 9).unwrap(), pad_key(b"a", 9).unwrap());
        assert_ne!(pad_key(b"aa", 9).unwrap(), pad_key(b"a", 9).unwrap());
        for (token, bytes, words) in [(&b""[..], 5, "empty"), (b"a", 1025, "1025"), (b"a", u64::MAX, "1024")]
        {
            assert!(pad_key(token, bytes).unwrap_err().contains(words));
        }
    }

    #[test]
    fn numbers_are_checked() {
        let limits = Limits { value_bytes_max: 100 };
        assert_eq!(value_bytes(b"100", limits), Ok(100));
        for bad in ["101", "-1", "1e3", "", "4294967297", "99999999999999999999", "\u{661}"] {
            let error = value_bytes(bad.as_bytes(), limits).expect_err(bad);
            assert!(
                bad.is_empty()
                    || error.contains(&*bad.as_bytes().escape_ascii().to_string().replace('\\', "\\\\")),
                "{error}"
            );
        }
    }
}
