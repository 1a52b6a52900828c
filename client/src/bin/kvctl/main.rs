//! kvctl: Sidestep on the command line.
//!
//! Always true: a command ends with one of the exit codes of [`failure::Exit`]; results go to standard output,
//! messages to standard error, both as JSON if asked. Signals are left alone, so an interrupt ends it at once.

mod arguments;
mod bytes;
mod connection;
mod doctor;
mod dump;
mod duration;
mod explain;
mod failure;
mod fsck;
mod keys;
mod manual;
mod output;
mod ping;
mod progress;
mod stats;

use std::ffi::OsString;
use std::process::ExitCode;

use clap::Parser;

use crate::arguments::{Arguments, Command, OutputFormat};
use crate::failure::{Exit, Failure};

fn main() -> ExitCode {
    let line: Vec<OsString> = std::env::args_os().collect();
    let arguments = match Arguments::try_parse_from(&line) {
        Ok(arguments) => arguments,
        Err(error) => return refuse(&error, &line),
    };
    let json = arguments.common.output == OutputFormat::Json;
    match run(&arguments) {
        Ok(exit) => exit.into(),
        Err(failure) => {
            if !matches!(failure, Failure::OutputClosed) {
                keys::eprint(&failure.message(json));
            }
            failure.exit().into()
        }
    }
}

fn run(arguments: &Arguments) -> Result<Exit, Failure> {
    let common = &arguments.common;
    match &arguments.command {
        Command::Get(get) => keys::get(common, get),
        Command::Put(put) => keys::put(common, put),
        Command::Del(delete) => keys::delete(common, delete),
        Command::Ping(ping) => ping::ping(common, ping),
        Command::Stats => stats::stats(common),
        Command::Explain(operation) => explain::explain(common, operation),
        Command::Doctor => doctor::doctor(common),
        Command::Fsck(fsck) => fsck::fsck(common, fsck),
        Command::Dump(dump) => dump::dump(common, dump),
        Command::Completions { shell } => manual::completions(*shell),
        Command::Man { command } => manual::manual(command.as_deref()),
    }
}

/// A command line that can't be parsed; also help and version, which are no errors.
fn refuse(error: &clap::Error, line: &[OsString]) -> ExitCode {
    if error.use_stderr() && wants_json(line) {
        let message = error.render().to_string();
        keys::eprint(&Failure::Usage(message.trim_end().to_owned()).message(true));
        return Exit::Usage.into();
    }
    // A closed output needs no complaint.
    let _ = error.print();
    if error.use_stderr() { Exit::Usage.into() } else { Exit::Ok.into() }
}

/// Whether a line that couldn't be parsed asks for JSON.
fn wants_json(line: &[OsString]) -> bool {
    let follows = line.windows(2).any(|pair| (pair[0] == "-o" || pair[0] == "--output") && pair[1] == "json");
    follows || line.iter().any(|word| word == "-ojson" || word == "-o=json" || word == "--output=json")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_is_asked_for_in_every_spelling() {
        let words = |line: &str| line.split(' ').map(OsString::from).collect::<Vec<_>>();
        for line in ["-o json", "get --output json", "-ojson", "-o=json", "--output=json"] {
            assert!(wants_json(&words(line)), "{line}");
        }
        assert!(!wants_json(&words("get json -o text")));
    }
}
