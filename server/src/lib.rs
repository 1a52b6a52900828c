//! kvserver: the memory node of Sidestep.
//!
//! It makes a region, lets clients in, hands out block memory in bulk, and stays out of the way: no get and no put
//! runs here (except over the `tcp` fabric, where threads of this process play the network card).
//!
//! ```text
//! run ─▶ server ─▶ control ──▶ node ─▶ sessions, pool, region
//!  │        │        admin ────▶ │
//!  ▼        ▼        housekeeping┤└──▶ targets (the memory node's side of each fabric)
//!                    janitor ────┘
//! config  transport, endpoint
//! ```
//!
//! [`Server::start`] starts one within any process, for tests and embedding.

pub mod admin;
pub mod config;
pub mod control;
pub mod endpoint;
pub mod epochs;
pub mod housekeeping;
pub mod janitor;
pub mod keep;
pub mod node;
pub mod pool;
pub mod region;
mod run;
pub mod server;
pub mod sessions;
pub mod targets;
pub mod transport;
pub mod usage;

pub use config::Config;
pub use run::run;
pub use server::{Running, Server, StartError};
