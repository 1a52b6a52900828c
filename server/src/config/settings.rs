//! The settings as they are given: by flag, by environment, or in the TOML file.
//!
//! Always true: one struct serves all three, so no setting exists in one and not in the others; a setting that was
//! not given is `None`, and defaults are nobody's business here.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Args, Parser};
use serde::Deserialize;

use super::size::ByteSize;
use super::values::{
    AdminListen, CommitsChoice, HugePageChoice, LogFormat, LogLevel, Secret, Transport, parse_listen,
};

/// Sidestep's memory node: serves a region of RAM to clients that work on it with one-sided verbs.
///
/// A flag wins over its environment variable, that over the configuration file, that over the default.
#[derive(Parser, Debug)]
#[command(name = "kvserver", version, max_term_width = 110)]
pub struct Arguments {
    /// TOML file with any of these settings, spelled as the flags are.
    #[arg(long, env = "SIDESTEP_CONFIG", value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Check the configuration, say what is wrong, and exit: 0 if it is good, 2 if not.
    #[arg(long)]
    pub check_config: bool,
    /// Print the configuration in effect, with where each value came from, and exit.
    #[arg(long)]
    pub print_config: bool,
    /// What a file can say too.
    #[command(flatten)]
    pub settings: Settings,
}

/// Everything that can be set.
#[derive(Args, Deserialize, Clone, Debug, Default)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Settings {
    /// Where clients reach the server; port 0 takes any free one [default: 0.0.0.0:7480]
    #[arg(short, long, env = "SIDESTEP_LISTEN", value_name = "ADDR:PORT", value_parser = parse_listen)]
    pub listen: Option<SocketAddr>,
    /// Bytes of the region, such as 512M, 1G or 1GiB [default: 1G]
    #[arg(short, long, env = "SIDESTEP_MEMORY", value_name = "SIZE")]
    pub memory: Option<ByteSize>,
    /// Segments that the index begins with, a power of two; it grows by itself. Each has room for about 900 keys
    /// [default: 16]
    #[arg(long, env = "SIDESTEP_INITIAL_SEGMENTS", value_name = "COUNT")]
    pub initial_segments: Option<u64>,
    /// Keep the region in this directory of a tmpfs or hugetlbfs, where the next server takes it over with its data. Losing
    /// the host loses it [default: the region ends with the server]
    #[arg(long, env = "SIDESTEP_KEEP", value_name = "DIR")]
    pub keep: Option<PathBuf>,
    /// Fabrics to serve [default: auto]
    #[arg(long, env = "SIDESTEP_TRANSPORT", value_enum)]
    pub transport: Option<Transport>,
    /// RDMA device, such as mlx5_0 [default: found from the listen address]
    #[arg(short, long, env = "SIDESTEP_DEVICE")]
    pub device: Option<String>,
    /// Port of the RDMA device, from 1
    #[arg(short, long, env = "SIDESTEP_IB_PORT", value_name = "PORT")]
    pub ib_port: Option<u8>,
    /// Entry of the port's GID table
    #[arg(short = 'x', long, env = "SIDESTEP_GID_INDEX", value_name = "INDEX")]
    pub gid_index: Option<u8>,
    /// Who executes each commit's compare-and-swap, for verbs [default: auto]
    #[arg(long, env = "SIDESTEP_COMMITS", value_enum)]
    pub commits: Option<CommitsChoice>,
    /// Pages of the region [default: auto]
    #[arg(long, env = "SIDESTEP_HUGEPAGES", value_enum)]
    pub hugepages: Option<HugePageChoice>,
    /// Threads that play the network card for tcp [default: one a processor, at most 4]
    #[arg(short, long, env = "SIDESTEP_THREADS", value_name = "COUNT")]
    pub threads: Option<u32>,
    /// Where /healthz, /readyz, /metrics and /version are served, or `off` [default: 127.0.0.1:7481]
    #[arg(long, env = "SIDESTEP_ADMIN_LISTEN", value_name = "ADDR:PORT")]
    pub admin_listen: Option<AdminListen>,
    /// Host that is published to clients [default: the listen address, or an address of this host]
    #[arg(long, env = "SIDESTEP_ADVERTISE", value_name = "HOST")]
    pub advertise: Option<String>,
    /// Unix socket for shm [default: sidestep-PORT.sock in $RUNTIME_DIRECTORY, $XDG_RUNTIME_DIR or /tmp]
    #[arg(long, env = "SIDESTEP_SOCKET", value_name = "PATH")]
    pub socket: Option<PathBuf>,
    /// Secret that clients must show. Better given by environment or file: flags can be seen by other users
    #[arg(long, env = "SIDESTEP_TOKEN", hide_env_values = true)]
    pub token: Option<Secret>,
    /// Without a heartbeat for this long a session is fenced [default: 10000]
    #[arg(long, env = "SIDESTEP_LEASE_MS", value_name = "MS")]
    pub lease_ms: Option<u64>,
    /// Grace period before freed memory is used again [default: 5000]
    #[arg(long, env = "SIDESTEP_GRACE_MS", value_name = "MS")]
    pub grace_ms: Option<u64>,
    /// Time that a connection has to say what it wants [default: 5000]
    #[arg(long, env = "SIDESTEP_HANDSHAKE_MS", value_name = "MS")]
    pub handshake_ms: Option<u64>,
    /// Time that sessions have to leave when the server is told to stop [default: 5000]
    #[arg(long, env = "SIDESTEP_DRAIN_MS", value_name = "MS")]
    pub drain_ms: Option<u64>,
    /// Sessions at once [default: 1024]
    #[arg(long, env = "SIDESTEP_MAX_SESSIONS", value_name = "COUNT")]
    pub max_sessions: Option<u32>,
    /// Block memory that one session may be granted [default: no limit]
    #[arg(long, env = "SIDESTEP_CHUNK_QUOTA", value_name = "SIZE")]
    pub chunk_quota: Option<ByteSize>,
    /// The longest value taken [default: 1M]
    #[arg(long, env = "SIDESTEP_MAX_VALUE", value_name = "SIZE")]
    pub max_value: Option<ByteSize>,
    /// Log lines for people or for programs [default: text]
    #[arg(long, env = "SIDESTEP_LOG_FORMAT", value_enum)]
    pub log_format: Option<LogFormat>,
    /// How much is logged [default: info]
    #[arg(long, env = "SIDESTEP_LOG_LEVEL", value_enum)]
    pub log_level: Option<LogLevel>,
}
