//! What can be said on the command line.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};
use sidestep_client::Endpoint;

use crate::connect::StoreOptions;
use crate::endurance::Sizes;
use crate::random::SEED_DEFAULT;
use crate::replay::trace::TraceFormat;
use crate::report::ReportFormat;
use crate::workload::number::{parse_count, parse_duration};

/// The most threads: far more than cores; each has a session of its own with the store.
pub const THREADS_MAX: u32 = 1024;

/// Load generator for Sidestep: YCSB workloads and trace replay.
#[derive(Debug, Parser)]
#[command(name = "kvbench", version, after_help = EXIT_CODES)]
pub struct Arguments {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

const EXIT_CODES: &str = "Exit codes: 0 all went well, 2 usage, 3 the store cannot be reached, 4 failed";

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Fill the store with a workload's records
    Load(LoadArguments),
    /// Run a workload against a loaded store
    Run(RunArguments),
    /// Replay recorded traffic
    Replay(ReplayArguments),
    /// Let keys come and go in a store that is nearly full
    Churn(ChurnArguments),
    /// Insert keys from few to many, and see what the index's growth costs
    Grow(GrowArguments),
}

const ENDPOINT_HELP: &str = "The store: sidestep://HOST[:PORT][?fabric=verbs|shm|tcp] or unix:PATH";

/// Where the store is, and what to do with the results.
#[derive(Debug, Args)]
pub struct StoreArguments {
    /// Where the store is.
    #[arg(short, long, help = ENDPOINT_HELP, env = "SIDESTEP_ENDPOINT", default_value = "sidestep://127.0.0.1:7480")]
    pub endpoint: Endpoint,
    /// The secret that the server asks for
    #[arg(long, env = "SIDESTEP_TOKEN", hide_env_values = true)]
    pub token: Option<String>,
    /// The time that each operation has
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = parse_duration)]
    pub timeout: Duration,
    /// The server's admin port (HOST:PORT), to ask for its CPU time
    #[arg(long, env = "SIDESTEP_ADMIN", value_name = "HOST:PORT")]
    pub admin: Option<String>,
    /// Write the latencies as an HdrHistogram log
    #[arg(long, value_name = "FILE")]
    pub hdr: Option<PathBuf>,
    /// Check every value that is read (the load must have been verifiable, too)
    #[arg(long)]
    pub verify: bool,
    /// Largest value in bytes that the store takes
    #[arg(long, value_name = "BYTES", default_value = "1048576", value_parser = clap::value_parser!(u32).range(1..))]
    pub max_value: u32,
    /// Show no progress
    #[arg(short, long)]
    pub quiet: bool,
}

impl StoreArguments {
    /// How to connect, if values of so many bytes will be written.
    pub fn options(&self, value_bytes: Option<u64>) -> StoreOptions {
        let (endpoint, token) = (self.endpoint.clone(), self.token.clone());
        StoreOptions { endpoint, token, timeout: self.timeout, value_bytes }
    }
}

/// Which workload.
#[derive(Debug, Args)]
pub struct WorkloadArguments {
    /// YCSB workload file; later files override earlier ones
    #[arg(short = 'P', long = "workload", value_name = "FILE")]
    pub files: Vec<PathBuf>,
    /// Override a property of the files
    #[arg(short = 'p', long = "property", value_name = "NAME=VALUE")]
    pub properties: Vec<String>,
    /// Records in the store (recordcount)
    #[arg(long, value_name = "N", value_parser = parse_count)]
    pub records: Option<u64>,
    /// Worker threads (threadcount) [default: 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=i64::from(THREADS_MAX)))]
    pub threads: Option<u32>,
    /// Offer so many operations a second (target); latency then counts from the intended start
    #[arg(long, value_name = "OPS", value_parser = parse_target)]
    pub target: Option<f64>,
    /// Seed of all random numbers: the same seed and thread count give the same keys
    #[arg(long, value_name = "N", default_value_t = SEED_DEFAULT)]
    pub seed: u64,
    /// How to write the report
    #[arg(long, value_enum, default_value = "text")]
    pub format: ReportFormat,
}

/// `kvbench load`.
#[derive(Debug, Args)]
pub struct LoadArguments {
    /// Where.
    #[command(flatten)]
    pub store: StoreArguments,
    /// What.
    #[command(flatten)]
    pub workload: WorkloadArguments,
}

/// `kvbench run`.
#[derive(Debug, Args)]
pub struct RunArguments {
    /// Where.
    #[command(flatten)]
    pub store: StoreArguments,
    /// What.
    #[command(flatten)]
    pub workload: WorkloadArguments,
    /// Operations over all threads (operationcount); 0 does nothing
    #[arg(long, value_name = "N", value_parser = parse_count)]
    pub ops: Option<u64>,
    /// Measure for so long (30s, 500ms, 2m); without --ops, the file's operationcount does not end the run
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    pub duration: Option<Duration>,
    /// Do operations for so long before measuring
    #[arg(long, value_name = "TIME", default_value = "0s", value_parser = parse_duration)]
    pub warmup: Duration,
}

/// `kvbench replay`.
#[derive(Debug, Args)]
pub struct ReplayArguments {
    /// Where.
    #[command(flatten)]
    pub store: StoreArguments,
    /// The trace
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// The trace's format
    #[arg(long, value_enum)]
    pub format: TraceFormat,
    /// Bytes of a block (mooncake)
    #[arg(long, value_name = "BYTES", default_value_t = 4096)]
    pub block_size: u32,
    /// Worker threads; operations on one key stay in order
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=i64::from(THREADS_MAX)))]
    pub threads: u32,
    /// How to write the report
    #[arg(long, value_enum, default_value = "text")]
    pub report: ReportFormat,
}

/// `kvbench churn`.
#[derive(Debug, Args)]
pub struct ChurnArguments {
    /// Where.
    #[command(flatten)]
    pub store: StoreArguments,
    /// Operations over all threads
    #[arg(long, value_name = "N", value_parser = parse_count)]
    pub ops: Option<u64>,
    /// Go on for so long at the most (30s, 2m, 8h)
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    pub duration: Option<Duration>,
    /// How full to make the store first, in percent of its bytes for keys and values
    #[arg(long, value_name = "PERCENT", default_value_t = 90.0)]
    pub fill: f64,
    /// Lengths of values in bytes, the shortest and the longest
    #[arg(long, value_name = "MIN-MAX", default_value = "16-512", value_parser = parse_sizes)]
    pub values: Sizes,
    /// Worker threads
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=i64::from(THREADS_MAX)))]
    pub threads: u32,
    /// Seed of all random numbers
    #[arg(long, value_name = "N", default_value_t = SEED_DEFAULT)]
    pub seed: u64,
}

/// `kvbench grow`.
#[derive(Debug, Args)]
pub struct GrowArguments {
    /// Where.
    #[command(flatten)]
    pub store: StoreArguments,
    /// Keys at the first look
    #[arg(long, value_name = "N", default_value = "1000", value_parser = parse_count)]
    pub from: u64,
    /// Keys at the last look; there is one at every tenfold in between
    #[arg(long, value_name = "N", default_value = "20000000", value_parser = parse_count)]
    pub to: u64,
    /// Lengths of values in bytes, the shortest and the longest
    #[arg(long, value_name = "MIN-MAX", default_value = "8-8", value_parser = parse_sizes)]
    pub values: Sizes,
    /// Worker threads
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=i64::from(THREADS_MAX)))]
    pub threads: u32,
}

fn parse_sizes(text: &str) -> Result<Sizes, String> {
    let ends = text
        .split_once('-')
        .and_then(|(least, most)| Some(least.trim().parse::<u32>().ok()?..=most.trim().parse::<u32>().ok()?));
    ends.and_then(Sizes::new).ok_or_else(|| format!("{text:?} is not a range of bytes such as 16-512"))
}

fn parse_target(text: &str) -> Result<f64, String> {
    let target = text.trim().parse::<f64>().ok().filter(|target| *target > 0.0 && *target <= 1e12);
    target.ok_or_else(|| format!("{text:?} is not a number of operations a second above 0"))
}
