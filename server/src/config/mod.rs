//! Configuration: what the server was told, checked once.
//!
//! Always true: a [`Config`] that passed [`Config::check`] has no value outside its limits, and everything else
//! takes the values from it without looking again. A flag wins over its environment variable (`SIDESTEP_*`), that
//! over the TOML file, that over the default.

mod resolve;
mod settings;
mod size;
mod values;

use std::net::SocketAddr;
use std::path::PathBuf;

use sidestep_common::fabric::DeviceChoice;
use sidestep_common::layout::{Geometry, GeometryError, VALUE_BYTES_MAX};

pub use resolve::{Resolved, Source, resolve};
pub use settings::{Arguments, Settings};
pub use size::{ByteSize, SizeError};
pub use values::{AdminListen, CommitsChoice, HugePageChoice, LogFormat, LogLevel, Secret, Transport};

/// The port for clients.
pub const CONTROL_PORT: u16 = 7480;
/// The port for people and monitoring.
pub const ADMIN_PORT: u16 = 7481;

/// Regions are made of whole pages; sizes are rounded up to these.
const PAGE_BYTES: u64 = 4096;

/// Everything that the server wants to know; see `kvserver --help` for what each setting means.
#[derive(Clone, Debug)]
pub struct Config {
    /// Where clients reach the server.
    pub listen: SocketAddr,
    /// Bytes of the region.
    pub memory: ByteSize,
    /// Segments of the young index.
    pub initial_segments: u64,
    /// Directory that keeps the region when the server ends.
    pub keep: Option<PathBuf>,
    /// Fabrics to serve.
    pub transport: Transport,
    /// Which RDMA device, port and GID.
    pub device: DeviceChoice,
    /// Who executes commits, for `verbs`.
    pub commits: CommitsChoice,
    /// Pages of the region.
    pub hugepages: HugePageChoice,
    /// Threads of the `tcp` fabric.
    pub threads: u32,
    /// Where the admin endpoint listens.
    pub admin_listen: AdminListen,
    /// Host that is published.
    pub advertise: Option<String>,
    /// Unix socket for `shm`; none for the default place.
    pub socket: Option<PathBuf>,
    /// Secret that clients must show.
    pub token: Option<Secret>,
    /// Lease of a session, in milliseconds.
    pub lease_ms: u64,
    /// Grace period, in milliseconds.
    pub grace_ms: u64,
    /// Time for a handshake, in milliseconds.
    pub handshake_ms: u64,
    /// Time for sessions to leave at the end, in milliseconds.
    pub drain_ms: u64,
    /// Sessions at once.
    pub max_sessions: u32,
    /// Block memory a session; none for no limit.
    pub chunk_quota: Option<ByteSize>,
    /// The longest value.
    pub max_value: ByteSize,
    /// How log lines look.
    pub log_format: LogFormat,
    /// How much is logged.
    pub log_level: LogLevel,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from(([0, 0, 0, 0], CONTROL_PORT)),
            memory: ByteSize::mebibytes(1024),
            // A quarter of a mebibyte, in every region that can be.
            initial_segments: 16,
            keep: None,
            transport: Transport::Auto,
            device: DeviceChoice::default(),
            commits: CommitsChoice::Auto,
            hugepages: HugePageChoice::Auto,
            threads: std::thread::available_parallelism().map_or(1, |count| count.get().min(4) as u32),
            // Loopback: the figures are nobody's business unless the operator says so.
            admin_listen: AdminListen::At(SocketAddr::from(([127, 0, 0, 1], ADMIN_PORT))),
            advertise: None,
            socket: None,
            token: None,
            // A client that dies is noticed at once by its closed control connection; only a dead host or a
            // stopped process waits for the lease, and a short stop should not cost a session.
            lease_ms: 10_000,
            grace_ms: 5_000,
            handshake_ms: 5_000,
            // Clients send a heartbeat every third of a lease and learn by it that they should leave.
            drain_ms: 5_000,
            max_sessions: 1024,
            chunk_quota: None,
            max_value: ByteSize(VALUE_BYTES_MAX as u64),
            log_format: LogFormat::Text,
            log_level: LogLevel::Info,
        }
    }
}

/// A configuration that can't work.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file can't be read.
    #[error("configuration file {path}: {source}", path = .path.display())]
    Read {
        /// Which file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The file isn't what it should be.
    #[error("configuration file {path}: {message}", path = .path.display())]
    File {
        /// Which file.
        path: PathBuf,
        /// Where and what.
        message: String,
    },
    /// A number outside its limits.
    #[error("{setting} is {value}, must be from {min} to {max}")]
    Range {
        /// Which setting.
        setting: &'static str,
        /// As given.
        value: u64,
        /// The least.
        min: u64,
        /// The most.
        max: u64,
    },
    /// A region of that size can't be.
    #[error("memory: {0}")]
    Memory(#[from] GeometryError),
    /// A value that makes no sense, alone or together with others.
    #[error("{setting} is `{value}`: {reason}")]
    Value {
        /// Which setting.
        setting: &'static str,
        /// As given.
        value: String,
        /// What is wrong.
        reason: &'static str,
    },
}

impl Config {
    /// Checks every value against its limits.
    ///
    /// # Errors
    /// [`ConfigError`] names the first value that is wrong, and its limit.
    pub fn check(&self) -> Result<(), ConfigError> {
        let entries = Geometry::for_region(self.region_bytes())?.directory_entries();
        // An hour is more than anybody waits; the least lease still has room for three heartbeats.
        const HOUR_MS: u64 = 3_600_000;
        let chunk_bytes = sidestep_common::layout::CHUNK_BYTES;
        for (setting, value, min, max) in [
            ("threads", u64::from(self.threads), 1, 256),
            ("initial-segments", self.initial_segments, 1, entries),
            ("lease-ms", self.lease_ms, 100, HOUR_MS),
            ("grace-ms", self.grace_ms, 100, HOUR_MS),
            ("handshake-ms", self.handshake_ms, 10, HOUR_MS),
            ("drain-ms", self.drain_ms, 0, HOUR_MS),
            ("max-sessions", u64::from(self.max_sessions), 1, 1 << 20),
            ("max-value", self.max_value.0, 1, VALUE_BYTES_MAX as u64),
            ("ib-port", self.device.port.map_or(1, u64::from), 1, 255),
            ("chunk-quota", self.chunk_quota.map_or(chunk_bytes, |quota| quota.0), chunk_bytes, u64::MAX),
        ] {
            if value < min || value > max {
                return Err(ConfigError::Range { setting, value, min, max });
            }
        }
        if !self.initial_segments.is_power_of_two() {
            let reason = "want a power of two: each segment serves an equal share of the keys";
            let value = self.initial_segments.to_string();
            return Err(ConfigError::Value { setting: "initial-segments", value, reason });
        }
        self.check_advertise()?;
        self.check_names()
    }

    /// The region's size: whole pages.
    pub fn region_bytes(&self) -> u64 {
        self.memory.0.checked_next_multiple_of(PAGE_BYTES).unwrap_or(self.memory.0)
    }

    fn check_advertise(&self) -> Result<(), ConfigError> {
        let Some(host) = &self.advertise else { return Ok(()) };
        let wrong = |reason| Err(ConfigError::Value { setting: "advertise", value: host.clone(), reason });
        let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
        if let Ok(address) = bare.parse::<std::net::IpAddr>() {
            if address.is_unspecified() {
                return wrong("a wildcard is no address that clients can reach");
            }
            return Ok(());
        }
        if host.is_empty() || !host.chars().all(|c| c.is_ascii_alphanumeric() || c == '-' || c == '.') {
            return wrong("want a host name or an IP address, without a port");
        }
        Ok(())
    }

    fn check_names(&self) -> Result<(), ConfigError> {
        let only_verbs = "only means something with transport verbs or auto";
        if matches!(self.transport, Transport::Shm | Transport::Tcp) {
            let DeviceChoice { device, port, gid_index } = &self.device;
            let given = [
                ("device", device.clone()),
                ("ib-port", port.map(|port| port.to_string())),
                ("gid-index", gid_index.map(|index| index.to_string())),
                (
                    "commits",
                    Some(self.commits).filter(|it| *it != CommitsChoice::Auto).map(|it| it.to_string()),
                ),
            ];
            if let Some((setting, Some(value))) = given.into_iter().find(|(_, value)| value.is_some()) {
                return Err(ConfigError::Value { setting, value, reason: only_verbs });
            }
        }
        if let Some(directory) = &self.keep {
            let wrong = |reason| {
                let value = directory.display().to_string();
                Err(ConfigError::Value { setting: "keep", value, reason })
            };
            if self.transport == Transport::Shm {
                return wrong(
                    "a client's mapping outlives the server, so shm and a kept region exclude each other",
                );
            }
            if matches!(self.hugepages, HugePageChoice::TwoMebibytes | HugePageChoice::OneGibibyte) {
                return wrong("its file system decides on the pages; leave hugepages away");
            }
        }
        if self.token.as_ref().is_some_and(Secret::is_empty) {
            let reason = "an empty secret keeps nobody out; leave it away for none";
            return Err(ConfigError::Value { setting: "token", value: String::new(), reason });
        }
        if let Some(path) = &self.socket {
            // `sun_path` has 108 bytes and ends with a zero.
            const PATH_BYTES_MAX: usize = 107;
            let value = path.display().to_string();
            if value.len() > PATH_BYTES_MAX || value.is_empty() {
                let reason = "a Unix socket's path has 1 to 107 bytes";
                return Err(ConfigError::Value { setting: "socket", value, reason });
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(change: impl FnOnce(&mut Config)) -> String {
        let mut config = Config::default();
        change(&mut config);
        config.check().unwrap_err().to_string()
    }

    #[test]
    fn the_default_is_good() {
        Config::default().check().unwrap();
    }

    #[test]
    fn nonsense_is_refused_with_value_and_limit() {
        assert_eq!(refused(|config| config.threads = 0), "threads is 0, must be from 1 to 256");
        assert_eq!(refused(|config| config.lease_ms = 99), "lease-ms is 99, must be from 100 to 3600000");
        let message = refused(|config| config.memory = ByteSize(4096));
        assert!(message.contains("4096") && message.contains("4194304"), "{message}");
        let message = refused(|config| config.memory = ByteSize(u64::MAX));
        assert!(message.contains("18446744073709551615"), "{message}");
        let message = refused(|config| config.max_value = ByteSize::mebibytes(2));
        assert!(message.contains("2097152") && message.contains("1048576"), "{message}");
        let message = refused(|config| {
            config.keep = Some("/dev/shm/here".into());
            config.transport = Transport::Shm;
        });
        assert!(message.starts_with("keep is `/dev/shm/here`") && message.contains("shm"), "{message}");
        let message = refused(|config| config.initial_segments = 16_384);
        assert_eq!(message, "initial-segments is 16384, must be from 1 to 8192", "a region of 1 GiB");
        assert_eq!(
            refused(|config| config.initial_segments = 0),
            "initial-segments is 0, must be from 1 to 8192"
        );
        let message = refused(|config| config.initial_segments = 48);
        assert!(message.starts_with("initial-segments is `48`: want a power of two"), "{message}");
        let message = refused(|config| config.token = Some(Secret::new("")));
        assert!(message.contains("token"), "{message}");
        let message = refused(|config| {
            config.transport = Transport::Tcp;
            config.device.device = Some("rxe0".into());
        });
        assert!(message.contains("rxe0"), "{message}");
        let message = refused(|config| {
            config.transport = Transport::Shm;
            config.commits = CommitsChoice::TwoSided;
        });
        assert!(message.contains("commits is `two-sided`") && message.contains("verbs"), "{message}");
    }

    /// What is published must be reachable: never a wildcard, never with a second port.
    #[test]
    fn wildcards_are_not_advertised() {
        for host in ["0.0.0.0", "::", "[::]", "", "host:7480", "10.0.0.1:1", "a b", "x/y"] {
            let message = refused(|config| config.advertise = Some(host.into()));
            assert!(message.contains(host), "{message}");
        }
        for host in ["10.0.0.5", "::1", "[fd00::5]", "node-1.rack2.example"] {
            Config { advertise: Some(host.into()), ..Config::default() }.check().unwrap();
        }
    }

    #[test]
    fn a_region_has_whole_pages() {
        assert_eq!(Config { memory: ByteSize(5_000_000), ..Config::default() }.region_bytes(), 5_001_216);
    }
}
