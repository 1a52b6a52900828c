//! Histories of real processes: clients are killed, stopped and cut off, servers restarted, and what every client was told
//! must still be explained by one order of operations for each key.
//!
//! Always true: what is recorded of a call is never more than is known of it. The interval of an operation contains
//! the one in which it happened, so whatever is found to contradict really does.
//!
//! # Why the intervals are sound
//!
//! A client takes the time, writes the record of the call, and only then makes the call; the call returns, it takes the
//! time, and only then writes the record of the return:
//!
//! ```text
//! time ─▶ record of the call ─▶ call ──────────▶ return ─▶ time ─▶ record of the return
//!   └──────────────── contains whatever the call does ──────┘
//! ```
//!
//! - All times are of CLOCK_MONOTONIC, of which a host has one, for all its processes; it does not go back when a thread
//!   goes to another processor. So if one call's second time is before another's first, the one had returned before the
//!   other was made. If they are the same, the two overlap.
//! - A record is written with `write`, which gives it to the kernel. SIGKILL takes the process and leaves the file. So a
//!   call that was made is in the log: there is no effect without a record.
//! - A process that is killed between its call and the second record leaves a call without a return. It may have happened,
//!   may yet, or never will: to the checker it is open. So is a call that ended with an error which says that nobody knows.
//!   A call that ended with an error which says that nothing happened is in no history.
//! - A record that was being written when the process was killed is not whole, which is seen ([`log`]). If it is of a call,
//!   that was not made yet; if of a return, the call is open.
//! - A restarted server has an empty region, so each of its lives has histories of its own ([`history`]).
//!
//! # What is where
//!
//! ```text
//! suite ─▶ run ─▶ fleet ─▶ processes `history-client`: worker ─▶ log: record, record, ...
//!           │ ▲       what they do: orders, keys, value, dice                  │
//!           │ └ plan: what is done to them, by how far they are                │
//!           └─▶ history ◀──────────────────────────────────────────────────────┘
//!                  └──▶ verdict ─▶ linearizability; complaint, summary
//! ```

mod capacity;
mod complaint;
pub mod dice;
mod evidence;
pub mod fleet;
pub mod history;
pub mod keys;
pub mod log;
pub mod orders;
pub mod plan;
pub mod record;
mod run;
mod suite;
mod summary;
#[cfg(test)]
mod tests;
mod trouble;
pub mod value;
pub mod verdict;
mod worker;

pub use complaint::Complaint;
pub use dice::Dice;
pub use evidence::Evidence;
pub use orders::{Orders, USAGE};
pub use plan::Case;
pub use run::{Failure, run};
pub use suite::prove;
pub use summary::Summary;
pub use trouble::Trouble;
pub use verdict::Checked;
pub use worker::{Alarm, Worker};
