//! Bytes on a command line and in JSON.
//!
//! Always true: every string of bytes can be written in each format but `raw` (which cannot hold a zero byte, as no
//! argument can), and reading what was written gives the same bytes. A text that is not in the format is refused
//! whole; nothing is guessed.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use clap::ValueEnum;
use data_encoding::{BASE64, HEXLOWER_PERMISSIVE};
use serde::Serialize;

/// How an argument spells bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, ValueEnum)]
pub(crate) enum ByteFormat {
    /// The argument's bytes as they are
    #[default]
    Raw,
    /// Two hexadecimal digits a byte
    Hex,
    /// Base64 with padding
    Base64,
    /// As they are, but for \n \r \t \0 \\ and \xNN
    Escape,
}

/// The argument is not in its format.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("`{argument}` is not in the format {format}: {reason}")]
pub(crate) struct ByteFormatError {
    argument: String,
    format: &'static str,
    reason: String,
}

impl ByteFormat {
    /// The bytes that `argument` spells.
    pub(crate) fn parse(self, argument: &OsStr) -> Result<Vec<u8>, ByteFormatError> {
        let text = argument.as_bytes();
        let (format, result) = match self {
            Self::Raw => return Ok(text.to_vec()),
            Self::Hex => ("hex", HEXLOWER_PERMISSIVE.decode(text).map_err(|error| error.to_string())),
            Self::Base64 => ("base64", BASE64.decode(text).map_err(|error| error.to_string())),
            Self::Escape => ("escape", unescape(text)),
        };
        result.map_err(|reason| ByteFormatError { argument: printable(text), format, reason })
    }
}

/// Replaces `\n`, `\r`, `\t`, `\0`, `\\` and `\xNN`.
fn unescape(text: &[u8]) -> Result<Vec<u8>, String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.iter().copied();
    while let Some(byte) = rest.next() {
        if byte != b'\\' {
            bytes.push(byte);
            continue;
        }
        bytes.push(match rest.next() {
            Some(b'n') => b'\n',
            Some(b'r') => b'\r',
            Some(b't') => b'\t',
            Some(b'0') => 0,
            Some(b'\\') => b'\\',
            Some(b'x') => {
                let digit = |byte: Option<u8>| byte.and_then(|byte| char::from(byte).to_digit(16));
                match (digit(rest.next()), digit(rest.next())) {
                    (Some(high), Some(low)) => (high * 16 + low) as u8,
                    _ => return Err("\\x wants two hexadecimal digits".into()),
                }
            }
            Some(other) => return Err(format!("unknown escape \\{}", printable(&[other]))),
            None => return Err("it ends with a single \\".into()),
        });
    }
    Ok(bytes)
}

/// `bytes` for people: what [`ByteFormat::Escape`] reads, with text left as it is.
pub(crate) fn printable(bytes: &[u8]) -> String {
    use std::fmt::Write;
    let mut text = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        for character in chunk.valid().chars() {
            match character {
                '\n' => text.push_str("\\n"),
                '\r' => text.push_str("\\r"),
                '\t' => text.push_str("\\t"),
                '\0' => text.push_str("\\0"),
                '\\' => text.push_str("\\\\"),
                // Characters that steer a terminal, or that nobody can see.
                character if character.is_control() => {
                    for byte in character.encode_utf8(&mut [0; 4]).bytes() {
                        let _ = write!(text, "\\x{byte:02x}");
                    }
                }
                character => text.push(character),
            }
        }
        for byte in chunk.invalid() {
            let _ = write!(text, "\\x{byte:02x}");
        }
    }
    text
}

/// Bytes in JSON: text if they are text, else base64; the second field says which.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub(crate) struct JsonBytes {
    /// The bytes.
    pub(crate) text: String,
    /// `utf8` or `base64`.
    pub(crate) encoding: &'static str,
}

impl JsonBytes {
    /// `bytes`, exactly.
    pub(crate) fn new(bytes: &[u8]) -> Self {
        match std::str::from_utf8(bytes) {
            Ok(text) => Self { text: text.to_owned(), encoding: "utf8" },
            Err(_) => Self { text: BASE64.encode(bytes), encoding: "base64" },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Keys that broke other stores: zero bytes, blanks, line ends, bytes that are no text, paths, and one letter
    /// spelled two ways.
    const AWKWARD: [&[u8]; 12] = [
        b"\0",
        b"\0\x01",
        b"a\0b",
        b"a\0c",
        b"a b",
        b"\t",
        b"\r\nset x",
        &[0xff, 0xfe],
        "\u{e9}".as_bytes(),
        "e\u{301}".as_bytes(),
        b"../x",
        b"\\x00",
    ];

    fn parse(format: ByteFormat, text: &str) -> Result<Vec<u8>, ByteFormatError> {
        format.parse(OsStr::new(text))
    }

    #[test]
    fn every_format_gives_awkward_bytes_back() {
        for bytes in AWKWARD {
            assert_eq!(parse(ByteFormat::Hex, &HEXLOWER_PERMISSIVE.encode(bytes)).unwrap(), bytes);
            assert_eq!(parse(ByteFormat::Base64, &BASE64.encode(bytes)).unwrap(), bytes);
            assert_eq!(parse(ByteFormat::Escape, &printable(bytes)).unwrap(), bytes, "{}", printable(bytes));
            assert_eq!(ByteFormat::Raw.parse(OsStr::from_bytes(bytes)).unwrap(), bytes);
            let json = JsonBytes::new(bytes);
            let back = match json.encoding {
                "utf8" => json.text.into_bytes(),
                _ => BASE64.decode(json.text.as_bytes()).unwrap(),
            };
            assert_eq!(back, bytes);
        }
    }

    #[test]
    fn all_bytes_survive_an_escape() {
        let all: Vec<u8> = (0..=255).collect();
        assert_eq!(parse(ByteFormat::Escape, &printable(&all)).unwrap(), all);
    }

    #[test]
    fn what_is_not_in_its_format_is_refused_and_named() {
        for (format, text) in [
            (ByteFormat::Hex, "abc"),
            (ByteFormat::Hex, "zz"),
            (ByteFormat::Base64, "a"),
            (ByteFormat::Base64, "YQ"),
            (ByteFormat::Escape, "\\"),
            (ByteFormat::Escape, "\\q"),
            (ByteFormat::Escape, "\\x1"),
            (ByteFormat::Escape, "\\x1g"),
            (ByteFormat::Escape, "\\x+1"),
        ] {
            let error = parse(format, text).unwrap_err().to_string();
            assert!(error.contains(&printable(text.as_bytes())), "{error}");
        }
    }

    #[test]
    fn terminals_are_not_steered() {
        assert_eq!(printable(b"a\x1b[2Jb"), "a\\x1b[2Jb");
        assert_eq!(printable("\u{9b}2J".as_bytes()), "\\xc2\\x9b2J");
    }
}
