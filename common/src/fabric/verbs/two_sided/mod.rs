//! Two-sided commits, for cards without remote atomics.
//!
//! Always true: READ and WRITE stay one-sided; CAS and FAA travel as messages on the same queue pair, and one thread of
//! the memory node executes them with the CPU's atomics. So the region's domain is `cpu`, and the memory node's CPU is
//! in the path of every write: the server says so wherever it names its fabrics.
//!
//! ```text
//! client                                   card    memory node's thread
//!   WRITE block ─────────────────────────▶ placed
//!   Send (CAS)  ─────────────────────────▶ ──────▶ checks, executes on the region's words
//!               ◀─────────────────────────────────  Send (old word)
//!   what was held back ──────────────────▶ …
//! ```
//!
//! # Order
//! A reliable queue pair delivers a Send behind the WRITEs before it, so a block is there before the thread sees the
//! CAS that publishes it. A Send may overtake an earlier READ, unless it carries a fence: it does where a READ is under
//! way. What is behind a CAS waits at the client for the answer ([`hold_back`]).
//!
//! # Credit
//! The memory node posts `depth` receives a connection and says so in the `Join`; a client has at most so many commits
//! unanswered, and a receive for each answer. A receive is posted again before its request is answered, at either
//! side, so nobody ever sends to somebody who isn't ready.

mod fabric;
#[cfg(feature = "fuzzing")]
pub(super) mod fuzzing;
mod hold_back;
mod inbox;
mod message;
mod outbox;
mod server;

pub(super) use fabric::TwoSidedFabric;
pub(super) use inbox::Inbox;
pub(super) use message::{MESSAGE_VERSION, Operation};
pub(super) use outbox::Outbox;
pub(super) use server::{CommitServer, Seat};

/// Commits of one connection that may be under way. Enough for every thread of a client that pipelines; each costs both
/// sides a receive and 64 bytes.
pub(super) const DEPTH: u8 = 16;
/// Messages lie in memory at this distance: a cache line, longer than either kind.
const SLOT_BYTES: usize = 64;

const _: () = assert!(message::REQUEST_BYTES <= SLOT_BYTES && message::REPLY_BYTES <= SLOT_BYTES);
