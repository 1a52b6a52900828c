//! From what was given to a checked [`Config`]: one place that knows the order of precedence.

use std::path::Path;

use clap::ArgMatches;
use clap::parser::ValueSource;
use serde::Serialize;
use sidestep_common::fabric::DeviceChoice;

use super::{Arguments, Config, ConfigError, Settings};

/// Where a value came from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Source {
    /// A flag.
    Flag,
    /// An environment variable.
    Environment,
    /// The file.
    File,
    /// Nobody gave it.
    Default,
}

impl std::fmt::Display for Source {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Flag => "flag",
            Self::Environment => "environment",
            Self::File => "file",
            Self::Default => "default",
        })
    }
}

/// A checked configuration, and what is to be said of it.
#[derive(Debug)]
pub struct Resolved {
    /// The configuration.
    pub config: Config,
    lines: Vec<(String, Source)>,
}

impl Resolved {
    /// The configuration in effect as TOML, with the source of each value. Secrets are left out.
    pub fn print(&self) -> String {
        let mut text = format!("# kvserver {}: the configuration in effect\n", env!("CARGO_PKG_VERSION"));
        for (line, source) in &self.lines {
            text.push_str(&format!("{line:<44} # {source}\n"));
        }
        text
    }
}

/// Puts flags and environment (`arguments`, parsed to `matches`) over the file over the defaults, and checks.
///
/// # Errors
/// [`ConfigError`] names what is wrong.
pub fn resolve(arguments: Arguments, matches: &ArgMatches) -> Result<Resolved, ConfigError> {
    let file = match &arguments.config {
        Some(path) => read_file(path)?,
        None => Settings::default(),
    };
    let mut layers = Layers { matches, lines: Vec::new() };
    let (given, default) = (arguments.settings, Config::default());
    let config = Config {
        listen: layers.value("listen", given.listen, file.listen, default.listen),
        memory: layers.value("memory", given.memory, file.memory, default.memory),
        initial_segments: layers.value(
            "initial-segments",
            given.initial_segments,
            file.initial_segments,
            default.initial_segments,
        ),
        keep: layers.optional("keep", given.keep, file.keep),
        transport: layers.value("transport", given.transport, file.transport, default.transport),
        device: DeviceChoice {
            device: layers.optional("device", given.device, file.device),
            port: layers.optional("ib-port", given.ib_port, file.ib_port),
            gid_index: layers.optional("gid-index", given.gid_index, file.gid_index),
        },
        commits: layers.value("commits", given.commits, file.commits, default.commits),
        hugepages: layers.value("hugepages", given.hugepages, file.hugepages, default.hugepages),
        threads: layers.value("threads", given.threads, file.threads, default.threads),
        admin_listen: layers.value(
            "admin-listen",
            given.admin_listen,
            file.admin_listen,
            default.admin_listen,
        ),
        advertise: layers.optional("advertise", given.advertise, file.advertise),
        socket: layers.optional("socket", given.socket, file.socket),
        token: layers.secret("token", given.token, file.token),
        lease_ms: layers.value("lease-ms", given.lease_ms, file.lease_ms, default.lease_ms),
        grace_ms: layers.value("grace-ms", given.grace_ms, file.grace_ms, default.grace_ms),
        handshake_ms: layers.value(
            "handshake-ms",
            given.handshake_ms,
            file.handshake_ms,
            default.handshake_ms,
        ),
        drain_ms: layers.value("drain-ms", given.drain_ms, file.drain_ms, default.drain_ms),
        max_sessions: layers.value(
            "max-sessions",
            given.max_sessions,
            file.max_sessions,
            default.max_sessions,
        ),
        chunk_quota: layers.optional("chunk-quota", given.chunk_quota, file.chunk_quota),
        max_value: layers.value("max-value", given.max_value, file.max_value, default.max_value),
        log_format: layers.value("log-format", given.log_format, file.log_format, default.log_format),
        log_level: layers.value("log-level", given.log_level, file.log_level, default.log_level),
    };
    config.check()?;
    Ok(Resolved { config, lines: layers.lines })
}

fn read_file(path: &Path) -> Result<Settings, ConfigError> {
    let text = std::fs::read_to_string(path)
        .map_err(|source| ConfigError::Read { path: path.to_owned(), source })?;
    toml::from_str(&text)
        .map_err(|error| ConfigError::File { path: path.to_owned(), message: error.to_string() })
}

/// Chooses among the layers and remembers the choice.
struct Layers<'a> {
    matches: &'a ArgMatches,
    lines: Vec<(String, Source)>,
}

impl Layers<'_> {
    fn value<T: Serialize>(&mut self, setting: &str, given: Option<T>, file: Option<T>, default: T) -> T {
        let (value, source) = match (given, file) {
            (Some(value), _) => (value, self.given_source(setting)),
            (None, Some(value)) => (value, Source::File),
            (None, None) => (default, Source::Default),
        };
        self.say(setting, &value, source);
        value
    }

    fn optional<T: Serialize>(&mut self, setting: &str, given: Option<T>, file: Option<T>) -> Option<T> {
        let (value, source) = match (given, file) {
            (Some(value), _) => (value, self.given_source(setting)),
            (None, Some(value)) => (value, Source::File),
            (None, None) => {
                self.lines.push((format!("# {setting} is not set"), Source::Default));
                return None;
            }
        };
        self.say(setting, &value, source);
        Some(value)
    }

    fn secret<T>(&mut self, setting: &str, given: Option<T>, file: Option<T>) -> Option<T> {
        let (word, source) = match (&given, &file) {
            (Some(_), _) => ("set, and not shown", self.given_source(setting)),
            (None, Some(_)) => ("set, and not shown", Source::File),
            (None, None) => ("not set", Source::Default),
        };
        self.lines.push((format!("# {setting} is {word}"), source));
        given.or(file)
    }

    /// Whether a given value is a flag or an environment variable; clap names arguments as the fields.
    fn given_source(&self, setting: &str) -> Source {
        match self.matches.value_source(&setting.replace('-', "_")) {
            Some(ValueSource::EnvVariable) => Source::Environment,
            _ => Source::Flag,
        }
    }

    fn say<T: Serialize>(&mut self, setting: &str, value: &T, source: Source) {
        let value = match toml::Value::try_from(value) {
            Ok(value) => value,
            Err(error) => unreachable!("{setting} is no TOML value: {error}"),
        };
        self.lines.push((format!("{setting} = {value}"), source));
    }
}
