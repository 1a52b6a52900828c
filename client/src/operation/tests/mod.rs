//! The operations against a memory node that is only memory: what they cost, and every interleaving of small
//! sets of them, verb by verb.

mod auditor;
mod history;
mod interleaving;
mod lost;
#[cfg(feature = "planted")]
mod planted;
mod rebuild;
mod reuse;
mod stories;
pub(crate) mod world;
