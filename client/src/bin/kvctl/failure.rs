//! How kvctl ends when it does not end well.
//!
//! Always true: the exit code says what kind of end it was, and the message says whether the operation happened all
//! the same. Codes never change their meaning: scripts depend on them.

use std::io;
use std::process::ExitCode;

use serde_json::json;
use sidestep_client::common::fabric::FailureKind;
use sidestep_client::fsck::SourceError;
use sidestep_client::{Effect, Error};

/// Exit codes, as `--help` and the manual page list them.
pub(crate) const EXIT_CODES: [(Exit, &str); 5] = [
    (Exit::Ok, "ok"),
    (Exit::No, "no: the key does not exist; for fsck, the region is not sound"),
    (Exit::Usage, "usage: the command line, the key or the value is not acceptable"),
    (Exit::Unreachable, "unreachable: the server cannot be reached, or stopped answering"),
    (Exit::Failed, "failed: anything else; for doctor, something is wrong"),
];

/// What else there is to say about endings.
pub(crate) const EXIT_NOTE: &str = "\
Messages about a failed operation end with \"did it happen: no\", \"yes\" or \"unknown\". After \"unknown\" the key may \
have its old or its new value; read it to find out. Output cut short by its reader, as by head, is no failure.";

/// The end of `--help`.
pub(crate) fn exit_help() -> String {
    let lines = EXIT_CODES.map(|(exit, meaning)| format!("  {}  {meaning}\n", exit as u8));
    format!("Exit codes:\n{}\n{EXIT_NOTE}", lines.concat())
}

/// Kinds of ending.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Exit {
    /// All is well.
    Ok = 0,
    /// The answer is no: there is no such key, or the region is not sound.
    No = 1,
    /// What was asked makes no sense.
    Usage = 2,
    /// No server.
    Unreachable = 3,
    /// It did not work.
    Failed = 4,
}

impl Exit {
    const fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::No => "no",
            Self::Usage => "usage",
            Self::Unreachable => "unreachable",
            Self::Failed => "failed",
        }
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit as u8)
    }
}

/// Why a command did not work.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    /// The command line asks for what cannot be.
    #[error("{0}")]
    Usage(String),
    /// The client says why.
    #[error(transparent)]
    Client(#[from] Error),
    /// A file or stream, and whether the operation had happened by then.
    #[error("{doing}: {source}")]
    Io {
        /// What was tried.
        doing: String,
        /// The cause.
        source: io::Error,
        /// Whether the operation happened before.
        effect: Effect,
    },
    /// A region or a dump can't be looked at.
    #[error("{name}: {source}")]
    Region {
        /// Which.
        name: String,
        /// Why not.
        source: SourceError,
    },
    /// Nobody reads the output any more. The operation is over, and there is nobody to complain to.
    #[error("the output was closed")]
    OutputClosed,
}

impl Failure {
    /// Of a look at the region or dump called `name`.
    pub(crate) fn of_source(name: &str, error: SourceError) -> Self {
        match error {
            SourceError::Client(error) => Self::Client(error),
            source => Self::Region { name: name.to_owned(), source },
        }
    }

    /// How to exit.
    pub(crate) fn exit(&self) -> Exit {
        match self {
            Self::Usage(_) => Exit::Usage,
            Self::Client(Error::Endpoint(_) | Error::KeyLength { .. } | Error::ValueLength { .. }) => {
                Exit::Usage
            }
            // The server answered, and will answer the same again.
            Self::Client(Error::Failed { failure, .. }) if matches!(failure.kind, FailureKind::Access(_)) => {
                Exit::Failed
            }
            Self::Client(error) if error.is_unreachable() => Exit::Unreachable,
            Self::Client(_) | Self::Io { .. } | Self::Region { .. } => Exit::Failed,
            Self::OutputClosed => Exit::Ok,
        }
    }

    /// Whether the operation happened; none if there was no operation to happen.
    fn effect(&self) -> Option<Effect> {
        match self {
            Self::Usage(_) | Self::Region { .. } | Self::OutputClosed => None,
            Self::Client(error) => Some(error.effect()),
            Self::Io { effect, .. } => Some(*effect),
        }
    }

    /// The message on standard error, as a line of text or as JSON.
    pub(crate) fn message(&self, json: bool) -> String {
        let mut message = self.to_string();
        let effect = self.effect();
        if json {
            let exit = self.exit();
            let error = json!({
                "kind": exit.name(),
                "exit_code": exit as u8,
                "message": message,
                "did_it_happen": effect,
            });
            return json!({ "error": error }).to_string();
        }
        const QUESTION: &str = "did it happen:";
        if let Some(effect) = effect.filter(|_| !message.contains(QUESTION)) {
            message.push_str(&format!(" ({QUESTION} {effect})"));
        }
        format!("kvctl: {message}")
    }
}

#[cfg(test)]
mod tests {
    use sidestep_client::FabricKind;
    use sidestep_client::common::fabric::Failure as VerbFailure;

    use super::*;

    fn failed(kind: FailureKind, effect: Effect) -> Failure {
        let failure = VerbFailure { verb_index: 1, kind, effect };
        Failure::Client(Error::Failed { endpoint: "e".into(), kind: FabricKind::Tcp, failure, effect })
    }

    /// The table of exit codes, one line a kind.
    #[test]
    fn each_failure_has_its_exit_code() {
        let timeout =
            Error::Timeout { endpoint: "e".into(), after_ms: 5, doing: "waiting", effect: Effect::Unknown };
        let unreachable = Error::Unreachable { endpoint: "e".into(), reason: "refused".into() };
        for (failure, exit) in [
            (Failure::Usage("x".into()), Exit::Usage),
            (Failure::Client(Error::KeyLength { bytes: 1025 }), Exit::Usage),
            (Failure::Client(Error::ValueLength { bytes: 9, limit_bytes: 8 }), Exit::Usage),
            (Failure::Client(timeout), Exit::Unreachable),
            (Failure::Client(unreachable), Exit::Unreachable),
            (failed(FailureKind::Disconnected("reset".into()), Effect::Unknown), Exit::Unreachable),
            (failed(FailureKind::Access("rights".into()), Effect::No), Exit::Failed),
            (Failure::Client(Error::ReadOnly), Exit::Failed),
            (Failure::Client(Error::OutOfMemory("full".into())), Exit::Failed),
            (Failure::OutputClosed, Exit::Ok),
        ] {
            assert_eq!(failure.exit(), exit, "{failure}");
        }
    }

    #[test]
    fn messages_say_once_whether_it_happened() {
        let failure = failed(FailureKind::Disconnected("reset".into()), Effect::Unknown);
        assert_eq!(failure.message(false).matches("did it happen: unknown").count(), 1);
        let failure = Failure::Io {
            doing: "writing the output".into(),
            source: io::Error::other("disk full"),
            effect: Effect::Yes,
        };
        assert_eq!(failure.message(false), "kvctl: writing the output: disk full (did it happen: yes)");
        let json: serde_json::Value = serde_json::from_str(&failure.message(true)).unwrap();
        assert_eq!(json["error"]["did_it_happen"], "yes");
        assert_eq!(json["error"]["exit_code"], 4);
        assert!(!Failure::Usage("what?".into()).message(false).contains("happen"));
    }
}
