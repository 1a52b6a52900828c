//! Java properties files, the syntax of YCSB's workload files.
//!
//! Always true: what is parsed here means what `java.util.Properties` reads, down to comments, the three
//! separators, continued lines and escapes; and each value remembers where it came from, so that a complaint can
//! say so.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

/// The largest workload file that is read. YCSB's own are below 4 KiB.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// Where a property was given.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    /// In a file.
    File {
        /// Which.
        path: PathBuf,
        /// The line on which it begins.
        line: usize,
    },
    /// On the command line.
    CommandLine,
    /// Nowhere: a value that stands in.
    StandIn,
}

impl fmt::Display for Origin {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File { path, line } => write!(formatter, "{}:{line}", path.display()),
            Self::CommandLine => formatter.write_str("command line"),
            Self::StandIn => formatter.write_str("default"),
        }
    }
}

/// Names and values; a later value replaces an earlier one.
#[derive(Debug, Clone, Default)]
pub struct Properties(BTreeMap<String, (String, Origin)>);

/// Why a file is no properties file.
#[derive(Debug, thiserror::Error)]
pub enum PropertiesError {
    /// It cannot be read.
    #[error("{}: {source}", path.display())]
    Unreadable {
        /// Which file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// It is too large to be a workload file.
    #[error("{}: {bytes} bytes, more than the {FILE_BYTES_MAX} that a workload file may have", path.display())]
    TooLarge {
        /// Which file.
        path: PathBuf,
        /// How large it is.
        bytes: u64,
    },
    /// A `\u` without four hexadecimal digits.
    #[error("{}:{line}: \\u{digits} is not \\u with four hexadecimal digits", path.display())]
    BadEscape {
        /// Which file.
        path: PathBuf,
        /// The line on which the property begins.
        line: usize,
        /// What follows the `\u`.
        digits: String,
    },
    /// A `-p` without a name or an equals sign.
    #[error("-p {0:?} is not name=value")]
    NotNameValue(String),
}

impl Properties {
    /// Reads a file on top of what is there.
    pub fn read(&mut self, path: &Path) -> Result<(), PropertiesError> {
        let unreadable = |source| PropertiesError::Unreadable { path: path.to_owned(), source };
        let bytes = std::fs::metadata(path).map_err(unreadable)?.len();
        if bytes > FILE_BYTES_MAX {
            return Err(PropertiesError::TooLarge { path: path.to_owned(), bytes });
        }
        let content = std::fs::read(path).map_err(unreadable)?;
        self.parse(path, &content)
    }

    /// Reads the content of a file. As in Java, bytes are ISO 8859-1.
    pub fn parse(&mut self, path: &Path, content: &[u8]) -> Result<(), PropertiesError> {
        let text: String = content.iter().map(|byte| char::from(*byte)).collect();
        for (line, logical) in logical_lines(&text) {
            let bad_escape = |digits| PropertiesError::BadEscape { path: path.to_owned(), line, digits };
            let (name, value) = split(&logical);
            let name = unescape(name).map_err(bad_escape)?;
            let value = unescape(value).map_err(bad_escape)?;
            self.0.insert(name, (value, Origin::File { path: path.to_owned(), line }));
        }
        Ok(())
    }

    /// Takes a `name=value` of the command line on top of what is there.
    pub fn set_argument(&mut self, argument: &str) -> Result<(), PropertiesError> {
        match argument.split_once('=') {
            Some((name, value)) if !name.trim().is_empty() => {
                self.set(name.trim(), value);
                Ok(())
            }
            _ => Err(PropertiesError::NotNameValue(argument.to_owned())),
        }
    }

    /// Sets a property as the command line does.
    pub fn set(&mut self, name: &str, value: &str) {
        self.0.insert(name.to_owned(), (value.to_owned(), Origin::CommandLine));
    }

    /// Sets a property that nobody gave.
    pub fn set_stand_in(&mut self, name: &str, value: &str) {
        self.0.entry(name.to_owned()).or_insert_with(|| (value.to_owned(), Origin::StandIn));
    }

    /// The value without surrounding white space, and where it was given.
    pub fn get(&self, name: &str) -> Option<(&str, &Origin)> {
        self.0.get(name).map(|(value, origin)| (value.trim(), origin))
    }

    /// Whether the command line gave it.
    pub fn is_explicit(&self, name: &str) -> bool {
        matches!(self.0.get(name), Some((_, Origin::CommandLine)))
    }

    /// All names, with where they were given.
    pub fn names(&self) -> impl Iterator<Item = (&str, &Origin)> {
        self.0.iter().map(|(name, (_, origin))| (name.as_str(), origin))
    }
}

/// Joins continued lines; drops blank lines and comments. Yields the number of the first line of each.
fn logical_lines(text: &str) -> Vec<(usize, String)> {
    let text = text.replace("\r\n", "\n").replace('\r', "\n");
    let mut lines = Vec::new();
    let mut natural = text.split('\n').enumerate();
    while let Some((index, line)) = natural.next() {
        let line = line.trim_start_matches(is_blank);
        if line.is_empty() || line.starts_with(['#', '!']) {
            continue;
        }
        let mut logical = line.to_owned();
        while ends_in_odd_backslash(&logical) {
            logical.pop();
            match natural.next() {
                Some((_, next)) => logical.push_str(next.trim_start_matches(is_blank)),
                None => break,
            }
        }
        lines.push((index + 1, logical));
    }
    lines
}

fn is_blank(character: char) -> bool {
    matches!(character, ' ' | '\t' | '\x0C')
}

fn ends_in_odd_backslash(line: &str) -> bool {
    line.bytes().rev().take_while(|byte| *byte == b'\\').count() % 2 == 1
}

/// Splits at the first separator that is not escaped: `=`, `:` or white space (around one of the former or alone).
fn split(logical: &str) -> (&str, &str) {
    let mut escaped = false;
    let end = logical
        .char_indices()
        .find(|(_, character)| {
            let separates = !escaped && (is_blank(*character) || matches!(character, '=' | ':'));
            escaped = !escaped && *character == '\\';
            separates
        })
        .map_or(logical.len(), |(index, _)| index);
    let (name, rest) = logical.split_at(end);
    let rest = rest.trim_start_matches(is_blank);
    let value = rest.strip_prefix(['=', ':']).unwrap_or(rest);
    (name, value.trim_start_matches(is_blank))
}

/// Resolves escapes. On failure returns the text that should have been four hexadecimal digits.
fn unescape(text: &str) -> Result<String, String> {
    let mut plain = String::with_capacity(text.len());
    let mut characters = text.chars();
    while let Some(character) = characters.next() {
        if character != '\\' {
            plain.push(character);
            continue;
        }
        match characters.next() {
            Some('t') => plain.push('\t'),
            Some('n') => plain.push('\n'),
            Some('r') => plain.push('\r'),
            Some('f') => plain.push('\x0C'),
            Some('u') => {
                let digits: String = characters.by_ref().take(4).collect();
                let valid = digits.len() == 4 && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
                let code = if valid { u32::from_str_radix(&digits, 16).ok() } else { None };
                // Halves of surrogate pairs have no meaning alone; no workload file holds any.
                plain.push(code.and_then(char::from_u32).ok_or(digits)?);
            }
            Some(other) => plain.push(other),
            None => {}
        }
    }
    Ok(plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Properties {
        let mut properties = Properties::default();
        properties.parse(Path::new("file"), text.as_bytes()).unwrap();
        properties
    }

    #[test]
    fn reads_what_java_reads() {
        let text = "# comment\n  ! another \\\nplain=1\n  spaced : two words \nblank three\nempty\nkey\\ with\\=all\\: = x\r\n\
                    long = one, \\\n    two, \\\n    three\nescapes=\\t\\u0041\\\\\\q\neven=ends\\\\\nlast=a\\";
        let properties = parse(text);
        let value = |name: &str| properties.0[name].0.as_str();
        assert_eq!(value("plain"), "1");
        assert_eq!(value("spaced"), "two words ");
        assert_eq!(properties.get("spaced").unwrap().0, "two words");
        assert_eq!(value("blank"), "three");
        assert_eq!(value("empty"), "");
        assert_eq!(value("key with=all:"), "x");
        assert_eq!(value("long"), "one, two, three");
        assert_eq!(value("escapes"), "\tA\\q");
        assert_eq!(value("even"), "ends\\");
        assert_eq!(value("last"), "a");
        assert_eq!(properties.0.len(), 9);
        assert_eq!(properties.get("even").unwrap().1.to_string(), "file:12");
    }

    #[test]
    fn the_command_line_wins_and_the_last_counts() {
        let mut properties = parse("a=1\na=2\nb=3");
        properties.set_argument("b=4=5").unwrap();
        assert_eq!(properties.get("a").unwrap().0, "2");
        assert_eq!(properties.get("b").unwrap(), ("4=5", &Origin::CommandLine));
        assert!(properties.is_explicit("b") && !properties.is_explicit("a"));
        for bad in ["novalue", "=1", " =1"] {
            assert!(properties.set_argument(bad).unwrap_err().to_string().contains(bad));
        }
    }

    #[test]
    fn bad_escapes_and_bytes_are_errors_not_panics() {
        let mut properties = Properties::default();
        let error = properties.parse(Path::new("file"), b"a=1\nb=\\u00zz").unwrap_err();
        assert_eq!(error.to_string(), "file:2: \\u00zz is not \\u with four hexadecimal digits");
        properties.parse(Path::new("file"), &(0..=255).collect::<Vec<u8>>()).unwrap();
        assert!(properties.parse(Path::new("file"), b"a=\\u+041").is_err());
    }
}
