//! Real verbs: libibverbs and librdmacm, over InfiniBand or RoCE.
//!
//! Always true: a client's verb is executed by the memory node's card, by no thread of ours, except where the card has
//! no remote atomics (`two_sided`); with the card's atomics the region is in the domain `nic`, since they are atomic
//! against each other only, else in `cpu`; libraries are found at run time, so that
//! a program with this code starts without them.
//!
//! | module | what it is |
//! | --- | --- |
//! | `connect`, `fabric` | the client's side |
//! | `target` | the memory node's side |
//! | [`device`], [`choice`], `negotiate` | which device, port and GID; what two cards can do together |
//! | `flight`, `staging` | bookkeeping of what is in flight, without a card |
//! | `work`, `queue_pair`, `completion_queue`, `region`, `context`, `cm` | the libraries' objects, each owned once |
//! | `two_sided` | CAS and FAA as messages, for cards without remote atomics |
//! | `private_data` | the bytes of a connection request |
//! | `symbols`, `memlock`, `error` | what must be there, and what is said if it isn't |
//! | `loopback` | a check of the card against itself |
//!
//! # Drop order
//! `Context` ← `ProtectionDomain` ← registrations, queue pairs: each holds the one before it. A completion queue,
//! and the memory that a card may write to, are dropped by their owner after the queue pair.
//!
//! # Not here
//! Cards that answer atomics with their bytes swapped are reported as having none by the Linux kernel; [`loopback_check`] finds those that slip through.

pub mod choice;
mod cm;
mod completion_queue;
mod connect;
mod context;
pub mod device;
mod error;
mod fabric;
mod flight;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
mod loopback;
pub mod memlock;
pub mod negotiate;
mod private_data;
mod queue_pair;
mod region;
mod staging;
mod symbols;
mod target;
mod two_sided;
mod work;

pub use connect::connect;
pub use error::VerbsError;
pub use fabric::VerbsFabric;
pub use loopback::{LoopbackReport, loopback_check};
pub use target::{CommitChoice, VerbsOptions, VerbsTarget};
