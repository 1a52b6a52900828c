//! Verbs over TCP: frames of verbs one way, replies the other; threads of the memory node play the network card.
//!
//! Always true: the memory node checks key, rights and bounds of every verb; one thread executes a session's
//! verbs, in the order sent; after a refused verb, a malformed frame or a fence nothing of that connection executes
//! any more. A peer can make the other side hold a bounded amount of memory, and can't slow other sessions down.
//!
//! ```text
//! client                                                     memory node
//! TcpFabric ── post ─▶ frame ──▶ socket ──▶ worker ─▶ connection ─▶ execute ─▶ region
//!     ▲                                                                 │
//!     └── poll ── in_flight ◀── socket ◀────────────── replies ◀────────┘
//! ```
//!
//! [`frame`] has the bytes of requests and replies, `connect` those of the first exchange.

mod client;
mod connect;
mod connection;
mod encode;
mod execute;
pub mod frame;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
mod in_flight;
#[cfg(all(test, loom))]
mod model_card;
mod peer;
mod queue;
mod socket;
mod target;
mod worker;

pub use client::TcpFabric;
pub use connect::connect;
pub use target::{TcpCounters, TcpTarget};

#[cfg(all(test, loom))]
pub(super) use model_card::model_card;

#[cfg(test)]
mod tests;
