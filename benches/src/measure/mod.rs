//! What is kept of a run: counts, latencies, keys.

pub mod latency;
pub mod log_file;
pub mod tally;
pub mod touched;
