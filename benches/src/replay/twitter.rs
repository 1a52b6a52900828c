//! Twitter's cache traces: `timestamp, key, key bytes, value bytes, client, operation, ttl` without a header.
//!
//! Always true: the key is whatever lies between the first comma and the last five columns, so it may hold commas
//! and any other byte.
//!
//! What the store has no operation for is replayed by its reads and writes: `add` reads and writes if absent;
//! `replace`, `cas`, `append`, `prepend`, `incr` and `decr` read and write if present, with the size of the row.

use std::path::{Path, PathBuf};

use super::lines::Lines;
use super::trace::{Action, Limits, Request, TraceError, column_number, has_ttl, pad_key, value_bytes};

/// Reads a trace.
#[derive(Debug)]
pub(crate) struct Reader {
    path: PathBuf,
    lines: Lines,
    limits: Limits,
}

impl Reader {
    pub(crate) fn open(path: &Path, limits: Limits) -> Result<Self, TraceError> {
        let lines = Lines::open(path).map_err(|error| TraceError::from_line(path, error))?;
        Ok(Self { path: path.to_owned(), lines, limits })
    }
}

impl Iterator for Reader {
    type Item = Result<Request, TraceError>;

    fn next(&mut self) -> Option<Self::Item> {
        let (line, row) = match self.lines.advance() {
            Ok(line) => line?,
            Err(error) => return Some(Err(TraceError::from_line(&self.path, error))),
        };
        Some(parse(row, self.limits).map_err(|reason| TraceError::at(&self.path, line, reason)))
    }
}

fn parse(row: &[u8], limits: Limits) -> Result<Request, String> {
    let mut fields = row.rsplitn(6, |byte| *byte == b',');
    let mut last = || fields.next();
    let (Some(ttl), Some(operation), Some(_client), Some(bytes), Some(key_bytes), Some(rest)) =
        (last(), last(), last(), last(), last(), last())
    else {
        return Err("fewer than seven columns".to_owned());
    };
    let comma = rest.iter().position(|byte| *byte == b',').ok_or("fewer than seven columns")?;
    let (timestamp, key) = (&rest[..comma], &rest[comma + 1..]);
    column_number("timestamp", timestamp)?;
    let bytes = value_bytes(bytes, limits)?;
    let action = match operation {
        b"get" | b"gets" => Action::Get { fill_bytes: Some(bytes).filter(|bytes| *bytes > 0) },
        b"set" => Action::Put { bytes },
        b"add" => Action::PutIf { present: false, bytes },
        b"replace" | b"cas" | b"append" | b"prepend" | b"incr" | b"decr" => {
            Action::PutIf { present: true, bytes }
        }
        b"delete" => Action::Delete,
        other => return Err(format!("operation \"{}\" is unknown", other.escape_ascii())),
    };
    let key = pad_key(key, column_number("key bytes", key_bytes)?)?;
    Ok(Request { key, action, repeat: 1, has_ttl: has_ttl(ttl)? })
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits { value_bytes_max: 1000 };

    #[test]
    fn keys_may_hold_delimiters() {
        let request = parse(b"0,q:a,b,,c:\xff,9,213,4,get,0", LIMITS).unwrap();
        assert_eq!(request.key, b"q:a,b,,c:\xff");
        assert_eq!(request.action, Action::Get { fill_bytes: Some(213) });
        assert!(!request.has_ttl);
        let request = parse(b"5,k,3,0,4,add,86400", LIMITS).unwrap();
        assert_eq!(request.key, b"k\0k");
        assert_eq!((request.action, request.has_ttl), (Action::PutIf { present: false, bytes: 0 }, true));
    }

    #[test]
    fn what_is_malformed_is_named() {
        for (row, words) in [
            (&b"0,k,1,2,3,get"[..], "seven columns"),
            (b"", "seven columns"),
            (b"0,k,1,2,3,fetch,0", "fetch"),
            (b"x,k,1,2,3,get,0", "timestamp \"x\""),
            (b"0,k,1,1001,3,get,0", "1001"),
            (b"0,k,1,-2,3,get,0", "-2"),
            (b"0,k,2000,2,3,get,0", "2000"),
            (b"0,,1,2,3,get,0", "empty"),
            (b"0,k,1,2,3,get,soon", "soon"),
        ] {
            let error = parse(row, LIMITS).expect_err(words);
            assert!(error.contains(words), "{error} lacks {words}");
        }
    }
}
