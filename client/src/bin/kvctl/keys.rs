//! get, put and del.
//!
//! Always true: the bytes that come out are the bytes that went in; what cannot be stored is refused before the server
//! is asked; a file is touched only once its content is in hand.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use serde_json::json;
use sidestep_client::common::layout::{KEY_BYTES_MAX, VALUE_BYTES_MAX};
use sidestep_client::{Effect, Error};

use crate::arguments::{Common, GetArguments, KeyArguments, OutputFormat, PutArguments};
use crate::bytes::{JsonBytes, printable};
use crate::connection::{Purpose, connect};
use crate::failure::{Exit, Failure};
use crate::output;

/// `kvctl get`.
pub(crate) fn get(common: &Common, arguments: &GetArguments) -> Result<Exit, Failure> {
    let key = key(&arguments.key)?;
    let Some(value) = connect(common, Purpose::Read)?.get(&key)? else {
        return absent(common, &key, "found");
    };
    if let Some(path) = &arguments.output_file {
        std::fs::write(path, &value).map_err(|source| Failure::Io {
            doing: format!("writing {}", path.display()),
            source,
            effect: Effect::No,
        })?;
    }
    match common.output {
        OutputFormat::Text if arguments.output_file.is_some() => {}
        OutputFormat::Text => output::write_value(&value, Effect::No)?,
        OutputFormat::Json => {
            let (key, shown) = (JsonBytes::new(&key), JsonBytes::new(&value));
            let mut answer = json!({
                "key": key.text,
                "key_encoding": key.encoding,
                "found": true,
                "value_bytes": value.len(),
            });
            match &arguments.output_file {
                Some(path) => answer["output_file"] = path.display().to_string().into(),
                None => {
                    answer["value"] = shown.text.into();
                    answer["value_encoding"] = shown.encoding.into();
                }
            }
            output::write_json(&answer, Effect::No)?;
        }
    }
    Ok(Exit::Ok)
}

/// `kvctl put`.
pub(crate) fn put(common: &Common, arguments: &PutArguments) -> Result<Exit, Failure> {
    let key = key(&arguments.key)?;
    let value = value(arguments)?;
    connect(common, Purpose::Change)?.put(&key, &value)?;
    if common.output == OutputFormat::Json {
        let key = JsonBytes::new(&key);
        let answer = json!({
            "key": key.text,
            "key_encoding": key.encoding,
            "stored": true,
            "value_bytes": value.len(),
        });
        output::write_json(&answer, Effect::Yes)?;
    }
    Ok(Exit::Ok)
}

/// `kvctl del`.
pub(crate) fn delete(common: &Common, arguments: &KeyArguments) -> Result<Exit, Failure> {
    let key = key(arguments)?;
    if !connect(common, Purpose::Change)?.delete(&key)? {
        return absent(common, &key, "deleted");
    }
    if common.output == OutputFormat::Json {
        let key = JsonBytes::new(&key);
        let answer = json!({ "key": key.text, "key_encoding": key.encoding, "deleted": true });
        output::write_json(&answer, Effect::Yes)?;
    }
    Ok(Exit::Ok)
}

/// The answer that there is no such key: with `field` false on standard output, or a note beside it.
fn absent(common: &Common, key: &[u8], field: &str) -> Result<Exit, Failure> {
    match common.output {
        OutputFormat::Text => eprint(&format!("kvctl: not found: {}", printable(key))),
        OutputFormat::Json => {
            let key = JsonBytes::new(key);
            let answer = json!({ "key": key.text, "key_encoding": key.encoding, field: false });
            output::write_json(&answer, Effect::No)?;
        }
    }
    Ok(Exit::No)
}

/// A line on standard error. If that is closed, nobody wants to know.
pub(crate) fn eprint(line: &str) {
    use std::io::Write;
    let _ = writeln!(io::stderr(), "{line}");
}

/// The key, of a length that can be.
pub(crate) fn key(arguments: &KeyArguments) -> Result<Vec<u8>, Failure> {
    let key = arguments
        .key_format
        .parse(&arguments.key)
        .map_err(|error| Failure::Usage(format!("key: {error}")))?;
    if key.is_empty() || key.len() > KEY_BYTES_MAX {
        return Err(Error::KeyLength { bytes: key.len() }.into());
    }
    Ok(key)
}

/// The value, wherever it comes from.
pub(crate) fn value(arguments: &PutArguments) -> Result<Vec<u8>, Failure> {
    let value = match (&arguments.file, &arguments.value) {
        (Some(path), _) => read_file(path)?,
        (None, Some(argument)) if argument == "-" => read("standard input", io::stdin().lock())?,
        (None, Some(argument)) => arguments
            .value_format
            .parse(argument)
            .map_err(|error| Failure::Usage(format!("value: {error}")))?,
        (None, None) => {
            return Err(Failure::Usage("give VALUE, --file FILE, or - for standard input".into()));
        }
    };
    if value.len() > VALUE_BYTES_MAX {
        return Err(Error::ValueLength { bytes: value.len(), limit_bytes: VALUE_BYTES_MAX }.into());
    }
    Ok(value)
}

fn read_file(path: &Path) -> Result<Vec<u8>, Failure> {
    let name = path.display().to_string();
    let file = File::open(path).map_err(|source| Failure::Io {
        doing: format!("opening {name}"),
        source,
        effect: Effect::No,
    })?;
    // Devices and pipes have a length of zero, so the reading below counts too.
    let bytes = file.metadata().map_or(0, |metadata| metadata.len());
    if bytes > VALUE_BYTES_MAX as u64 {
        return Err(too_long(&name, &format!("{bytes} bytes")));
    }
    read(&name, file)
}

/// Reads to the end, but never much more than a value can be: the source may be endless.
fn read(name: &str, source: impl Read) -> Result<Vec<u8>, Failure> {
    let mut bytes = Vec::new();
    source.take(VALUE_BYTES_MAX as u64 + 1).read_to_end(&mut bytes).map_err(|source| Failure::Io {
        doing: format!("reading {name}"),
        source,
        effect: Effect::No,
    })?;
    if bytes.len() > VALUE_BYTES_MAX {
        return Err(too_long(name, &format!("more than {VALUE_BYTES_MAX} bytes")));
    }
    Ok(bytes)
}

fn too_long(name: &str, length: &str) -> Failure {
    Failure::Usage(format!("the value in {name} has {length}; the limit is {VALUE_BYTES_MAX}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bytes::ByteFormat;

    fn key_of(bytes: usize) -> Result<Vec<u8>, Failure> {
        key(&KeyArguments { key: "k".repeat(bytes).into(), key_format: ByteFormat::Raw })
    }

    /// The limit holds at both ends, and the message has the value and the limit.
    #[test]
    fn keys_have_1_to_1024_bytes() {
        assert_eq!(key_of(1).unwrap().len(), 1);
        assert_eq!(key_of(1024).unwrap().len(), 1024);
        for bytes in [0, 1025, 10_240] {
            let failure = key_of(bytes).unwrap_err();
            assert_eq!(failure.exit(), Exit::Usage);
            let message = failure.to_string();
            assert!(message.contains(&bytes.to_string()) && message.contains("1024"), "{message}");
        }
    }

    /// The length counts bytes, not the characters that spell them.
    #[test]
    fn a_spelled_key_is_measured_after_reading() {
        let hex = KeyArguments { key: "00".repeat(1024).into(), key_format: ByteFormat::Hex };
        assert_eq!(key(&hex).unwrap(), [0; 1024]);
    }

    #[test]
    fn an_endless_value_is_refused() {
        let failure = read("/dev/zero", io::repeat(0)).unwrap_err();
        assert!(failure.to_string().contains("1048576"), "{failure}");
        assert_eq!(read("x", io::repeat(0).take(1 << 20)).unwrap().len(), 1 << 20);
    }
}
