//! The load generator of Sidestep: YCSB workloads, trace replay, and runs that last.
//!
//! The data flows one way: a [`workload`] (or a trace, [`replay`]) decides on an operation with the help of a
//! [`generator`]; the [`runner`] gives it to a [`store`] and takes the time; [`measure`] keeps it; [`report`]
//! shows it. [`endurance`] is for what only shows after long: memory that is used again and again, an index that grows. [`cli`] puts them together, and [`connect`] is where the client library comes in.

pub mod cli;
pub mod connect;
pub mod endurance;
pub mod generator;
pub mod measure;
pub mod random;
pub mod replay;
pub mod report;
pub mod runner;
pub mod store;
#[cfg(test)]
mod testing;
pub mod workload;
