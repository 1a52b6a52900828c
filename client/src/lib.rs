//! Client of Sidestep, a key-value store in remote memory that is read and changed by one-sided RDMA.
//!
//! Always true: the memory node's CPU takes no part in a get, put or delete. The client finds keys with READs and
//! changes them with a WRITE and an atomic compare-and-swap; see [`operation`] for the protocol.
//!
//! Start with [`Client::connect`]. A [`Client`] serves many threads, with one [`Session`] each underneath; take a
//! [`Session`] yourself for a thread of your own. Errors say whether the operation happened: [`Error::effect`].
//!
//! Imports run one way: `client` → `session` → `link` → `driver` → [`operation`] (pure) and the fabrics of
//! `sidestep_common`. [`fsck`] looks at regions, above `session`.

pub mod allocator;
mod backoff;
mod bootstrap;
mod client;
mod clock;
mod control;
pub mod directory;
mod driver;
mod endpoint;
mod error;
pub mod fsck;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
mod link;
pub mod operation;
mod pacemaker;
mod region_view;
mod seat;
mod session;
mod settings;
mod statistics;
#[cfg(test)]
mod testing;
mod trace;
mod upkeep;

pub use client::{Client, ClientBuilder};
pub use endpoint::{DEFAULT_PORT, Endpoint, EndpointError, Place};
pub use error::Error;
pub use session::Session;
pub use sidestep_common as common;
pub use sidestep_common::fabric::{DeviceChoice, Effect, FabricKind};
pub use sidestep_common::wire::ServerStatistics;
pub use statistics::{KindStatistics, Statistics};
pub use trace::{Trace, TracedVerb};
