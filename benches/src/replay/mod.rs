//! Replays of recorded traffic.
//!
//! Always true:
//! - operations on one key are done in the order of the trace, by one thread, whatever the number of threads; so
//!   counts and hit ratios do not depend on it (as long as nothing is evicted or expires);
//! - a line that cannot be understood ends the replay with its place and the offending value: nothing is skipped.

pub mod cachelib;
pub mod dispatch;
pub mod lines;
pub mod lookahead;
pub mod mooncake;
pub mod trace;
pub mod twitter;
pub mod worker;
