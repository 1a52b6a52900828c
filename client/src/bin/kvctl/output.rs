//! Standard output.
//!
//! Always true: what was written is either all out, or the command fails and says what happened before; a reader that
//! went away ends the command quietly.

use std::io::{self, IsTerminal, Write};

use serde::Serialize;
use sidestep_client::Effect;

use crate::failure::Failure;

/// Writes `bytes` to standard output and flushes. `effect` says whether the operation that they tell of has happened.
pub(crate) fn write(bytes: &[u8], effect: Effect) -> Result<(), Failure> {
    let mut output = io::stdout().lock();
    output.write_all(bytes).and_then(|()| output.flush()).map_err(|source| failure(source, effect))
}

/// As [`write()`], with a line end if a person is looking.
pub(crate) fn write_value(bytes: &[u8], effect: Effect) -> Result<(), Failure> {
    write(bytes, effect)?;
    if io::stdout().is_terminal() && !bytes.ends_with(b"\n") { write(b"\n", effect) } else { Ok(()) }
}

/// Writes `value` as one line of JSON.
pub(crate) fn write_json(value: &impl Serialize, effect: Effect) -> Result<(), Failure> {
    let mut line = serde_json::to_vec(value).map_err(|error| failure(error.into(), effect))?;
    line.push(b'\n');
    write(&line, effect)
}

fn failure(source: io::Error, effect: Effect) -> Failure {
    if source.kind() == io::ErrorKind::BrokenPipe {
        return Failure::OutputClosed;
    }
    Failure::Io { doing: "writing to standard output".into(), source, effect }
}
