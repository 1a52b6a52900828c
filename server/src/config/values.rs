//! The settings' own types: choices, the admin address, the secret.

use std::fmt;
use std::net::SocketAddr;
use std::str::FromStr;

use clap::ValueEnum;
use serde::de::{self, Deserialize, Deserializer};
use serde::{Serialize, Serializer};

/// Which fabrics to serve.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum, Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Transport {
    /// `verbs` where there is a usable device, else `shm` together with `tcp`.
    Auto,
    /// RDMA only; without a device the server does not start.
    Verbs,
    /// Shared memory of this host only.
    Shm,
    /// TCP only.
    Tcp,
}

impl fmt::Display for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Auto => "auto",
            Self::Verbs => "verbs",
            Self::Shm => "shm",
            Self::Tcp => "tcp",
        })
    }
}

/// Who executes the compare-and-swap of each commit, for `verbs`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum, Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CommitsChoice {
    /// The card where it has remote atomics, else this server's CPU; the log says which.
    Auto,
    /// The card; one without remote atomics is not used.
    Atomics,
    /// This server's CPU, which is then in the path of every write.
    TwoSided,
}

impl fmt::Display for CommitsChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Auto => "auto",
            Self::Atomics => "atomics",
            Self::TwoSided => "two-sided",
        })
    }
}

/// Which pages the region is made of.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum, Serialize, serde::Deserialize)]
pub enum HugePageChoice {
    /// Huge pages if enough are free, else ordinary ones; the log says which.
    #[serde(rename = "auto")]
    Auto,
    /// Pages of 2 MiB, or the server does not start.
    #[value(name = "2m")]
    #[serde(rename = "2m")]
    TwoMebibytes,
    /// Pages of 1 GiB, or the server does not start.
    #[value(name = "1g")]
    #[serde(rename = "1g")]
    OneGibibyte,
    /// Ordinary pages.
    #[serde(rename = "off")]
    Off,
}

/// How log lines look.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum, Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// For people.
    Text,
    /// One JSON object a line.
    Json,
}

/// The least important line that is still logged.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum, Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogLevel {
    /// Failures of the server.
    Error,
    /// Also what an operator should look at.
    Warn,
    /// Also starts, stops, sessions.
    Info,
    /// Also each refusal and control message.
    Debug,
    /// Everything.
    Trace,
}

impl From<LogLevel> for tracing::level_filters::LevelFilter {
    fn from(level: LogLevel) -> Self {
        match level {
            LogLevel::Error => Self::ERROR,
            LogLevel::Warn => Self::WARN,
            LogLevel::Info => Self::INFO,
            LogLevel::Debug => Self::DEBUG,
            LogLevel::Trace => Self::TRACE,
        }
    }
}

/// Where the admin endpoint listens.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AdminListen {
    /// Nowhere.
    Off,
    /// There.
    At(SocketAddr),
}

/// Parses `ADDR:PORT`, naming what was given if it is none.
pub(super) fn parse_listen(text: &str) -> Result<SocketAddr, String> {
    let hint = "want ADDR:PORT with an IP address, such as 0.0.0.0:7480, 10.0.0.5:7480 or [::1]:7480";
    text.parse().map_err(|_| format!("`{text}` is not an address to listen at: {hint}"))
}

impl FromStr for AdminListen {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "off" {
            return Ok(Self::Off);
        }
        parse_listen(text).map(Self::At).map_err(|error| format!("{error}; or `off`"))
    }
}

impl fmt::Display for AdminListen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Off => f.write_str("off"),
            Self::At(address) => address.fmt(f),
        }
    }
}

impl Serialize for AdminListen {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for AdminListen {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(de::Error::custom)
    }
}

/// A shared secret. It is compared in constant time, and never printed or logged.
#[derive(Clone, PartialEq, Eq, serde::Deserialize)]
#[serde(transparent)]
pub struct Secret(String);

impl Secret {
    /// A secret of that text.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// Whether it has no characters.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether `given` is the same. Takes as long for the first wrong byte as for the last; only the length of
    /// what was *given* shows in the time.
    pub fn matches(&self, given: &str) -> bool {
        let own = self.0.as_bytes();
        let mut different = usize::from(own.len() != given.len());
        for (at, byte) in given.bytes().enumerate() {
            different |= usize::from(byte ^ own.get(at % own.len().max(1)).copied().unwrap_or(0));
        }
        std::hint::black_box(different) == 0
    }
}

impl FromStr for Secret {
    type Err = std::convert::Infallible;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Ok(Self::new(text))
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_to_listen_at() {
        assert_eq!(parse_listen("[::1]:7480").unwrap(), "[::1]:7480".parse().unwrap());
        assert_eq!("off".parse(), Ok(AdminListen::Off));
        assert_eq!("127.0.0.1:0".parse(), Ok(AdminListen::At("127.0.0.1:0".parse().unwrap())));
        for text in ["", "7480", "localhost:7480", "::1", "1.2.3.4", "1.2.3.4:65536", "0.0.0.0:"] {
            assert!(parse_listen(text).unwrap_err().contains(text), "{text}");
        }
    }

    #[test]
    fn a_secret_matches_itself_only_and_never_shows() {
        let secret = Secret::new("open sesame");
        assert!(secret.matches("open sesame"));
        for wrong in ["", "open sesam", "open sesame ", "Open sesame", "open sesameopen sesame"] {
            assert!(!secret.matches(wrong), "{wrong:?}");
        }
        assert_eq!(format!("{secret:?}"), "Secret");
    }
}
