//! What a client process is told.
//!
//! Always true: [`Orders::arguments`] and [`Orders::parse`] are inverse.

use std::path::PathBuf;
use std::time::Duration;

use super::keys::Keys;
use super::log::LogFile;

/// What a client process is told.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Orders {
    /// The server, with the fabric.
    pub endpoint: String,
    /// Where logs go.
    pub directory: PathBuf,
    /// The process's number, from 1. No other process of the run has it.
    pub client: u16,
    /// Its sessions, each a thread of its own.
    pub sessions: u8,
    /// For all that is random.
    pub seed: u64,
    /// The keys.
    pub keys: Keys,
    /// When the run began, by the logs' clock.
    pub began_ns: u64,
    /// How long a fresh key stays fresh.
    pub fresh_us: u64,
    /// Of a thousand calls, how many get so little time that some of them don't see their end.
    pub hasty_per_mille: u64,
    /// The most time that a hasty call gets: what a call takes that nobody disturbs.
    pub haste_us: u64,
    /// Time for every other call.
    pub patience_ms: u64,
    /// Calls of each session; 0 for as many as come until it is told to stop.
    pub calls: u64,
    /// Whether any error is a failure.
    pub strict: bool,
}

/// A process can't be started with this.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("`{argument}` is no {name}")]
pub struct OrdersError {
    /// What is missing or wrong.
    pub name: &'static str,
    /// As given.
    pub argument: String,
}

/// What the arguments are, in their order.
pub const USAGE: &str = "ENDPOINT DIRECTORY CLIENT SESSIONS SEED KEYS BEGAN_NS FRESH_US HASTY_PER_MILLE HASTE_US PATIENCE_MS CALLS STRICT";

impl Orders {
    /// As arguments of a program.
    pub fn arguments(&self) -> Vec<String> {
        vec![
            self.endpoint.clone(),
            self.directory.display().to_string(),
            self.client.to_string(),
            self.sessions.to_string(),
            self.seed.to_string(),
            self.keys.text(),
            self.began_ns.to_string(),
            self.fresh_us.to_string(),
            self.hasty_per_mille.to_string(),
            self.haste_us.to_string(),
            self.patience_ms.to_string(),
            self.calls.to_string(),
            self.strict.to_string(),
        ]
    }

    /// Out of a program's arguments.
    ///
    /// # Errors
    /// [`OrdersError`] for the first one that is missing or wrong.
    pub fn parse(mut arguments: impl Iterator<Item = String>) -> Result<Self, OrdersError> {
        let mut names = USAGE.split(' ');
        let mut next = || (names.next().unwrap_or("argument"), arguments.next().unwrap_or_default());
        fn parsed<T: std::str::FromStr>((name, argument): (&'static str, String)) -> Result<T, OrdersError> {
            argument.parse().map_err(|_| OrdersError { name, argument })
        }
        let orders = Self {
            endpoint: next().1,
            directory: next().1.into(),
            client: parsed(next())?,
            sessions: parsed(next())?,
            seed: parsed(next())?,
            keys: {
                let (name, argument) = next();
                Keys::parse(&argument).ok_or(OrdersError { name, argument })?
            },
            began_ns: parsed(next())?,
            fresh_us: parsed(next())?,
            hasty_per_mille: parsed(next())?,
            haste_us: parsed(next())?,
            patience_ms: parsed(next())?,
            calls: parsed(next())?,
            strict: parsed(next())?,
        };
        match arguments.next() {
            None => Ok(orders),
            Some(argument) => Err(OrdersError { name: "argument", argument }),
        }
    }

    /// The log of one of its sessions.
    pub fn log(&self, session: u8) -> LogFile {
        LogFile::of(&self.directory, self.client, session)
    }

    /// Time for a call that is not hasty.
    pub const fn patience(&self) -> Duration {
        Duration::from_millis(self.patience_ms)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_come_back() {
        let orders = Orders {
            endpoint: "sidestep://127.0.0.1:7480?fabric=tcp".into(),
            directory: "/tmp/a b".into(),
            client: 7,
            sessions: 2,
            seed: u64::MAX,
            keys: Keys::parse("1,2,70").unwrap(),
            began_ns: 123_456,
            fresh_us: 5_000,
            hasty_per_mille: 50,
            haste_us: 200,
            patience_ms: 1_000,
            calls: 0,
            strict: true,
        };
        assert_eq!(Orders::parse(orders.arguments().into_iter()), Ok(orders.clone()));
        for missing in 2..USAGE.split(' ').count() {
            let part = orders.arguments().into_iter().take(missing);
            assert_eq!(Orders::parse(part).unwrap_err().argument, "", "{missing} arguments");
        }
        let more = orders.arguments().into_iter().chain(["more".into()]);
        assert_eq!(Orders::parse(more).unwrap_err().argument, "more");
    }
}
