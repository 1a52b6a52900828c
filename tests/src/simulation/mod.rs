//! The simulator: small worlds in which everything that can happen between two verbs is tried, and larger ones in which
//! much of it is.
//!
//! Always true: it runs the product's own operations over the simulated fabric; what it has of its own are schedulers,
//! oracles, and stand-ins for what the server does.
//!
//! ```text
//! story ──▶ world ──▶ choices ──▶ a scheduler takes one ──▶ ... ──▶ finish: history, accounts
//!             │ clients: operations of sidestep_client, over common::fabric::sim
//!             │ janitor: a rebuild, word by word
//!             └ book: who owns which block and slot; looks at every verb
//! ```

mod book;
pub mod campaign;
pub mod catalogue;
mod client;
mod coverage;
pub mod explore;
mod fault;
mod history;
pub mod hunt;
mod janitor;
mod random;
mod region;
mod shrink;
mod story;
pub mod table;
#[cfg(test)]
mod tests;
mod violation;
mod world;

pub use coverage::{Coverage, Stage};
pub use fault::Befall;
pub use region::{Key, Region};
pub use shrink::shrink;
pub use story::{Ask, Call, Rebuild, Reuse, Story, delete, get, put};
pub use violation::{Promise, Violation};
pub use world::{Choice, Counts, Footprint, World};
