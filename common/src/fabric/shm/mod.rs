//! The `shm` fabric: clients on the memory node's own host map the region and are their own network card.
//!
//! Always true:
//! - a mapped region is sealed, so no verb can end in a signal ([`crate::memory::Mapping`]);
//! - a session without the right to write has a mapping without it: the kernel keeps it out;
//! - bounds, alignment and the ending at the first failure are kept by the client's own [`ShmFabric`], before it touches
//!   a byte. This is politeness, which is what all sharing of memory comes down to.
//!
//! # Joining
//! Over the memory node's Unix socket, which hands out the memory file:
//!
//! ```text
//! client ▶  │ preamble "SDSTEPD" + version (8) │ ticket (16)           │
//! server ▶  │ preamble "SDSTEPD" + version (8) │ status (1) │ length of reason (2) │ reason │   + the file
//! client ▶  │ 'U' │                                        once it has unmapped the region, as its last word
//! ```
//!
//! Status 0 is joined (the file comes with it, read-only or not as the session's rights say), 1 is refused. The
//! connection then stays open, silent, for the session's life.
//!
//! # What can't be revoked
//! No kernel takes a mapping away from a living process. Fencing a session voids its tickets and half closes its connection.
//! An honest client looks for that whenever 5 ms have passed since it last looked, before it executes a verb, so it stops
//! within about 10 ms (a coarse clock's ticks come on top). It may have been interrupted between the look and the verb,
//! and a dishonest client need not look at all. Therefore [`ShmTarget`] calls a session fenced only if its process is dead, or
//! has said that it unmapped the region, which it says last of all when the [`ShmFabric`] is dropped.
//!
//! Verbs are executed within `post`, on the caller's thread: nothing is ever under way when `post` has returned. The
//! memory node's processes take no part.

mod client;
mod execute;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
mod handshake;
#[cfg(all(test, loom))]
mod model_card;
mod peer;
mod target;

pub use client::ShmFabric;
pub use target::{AttachError, ShmTarget};

pub(super) use client::connect;
#[cfg(all(test, loom))]
pub(super) use model_card::model_card;

#[cfg(test)]
mod tests;
