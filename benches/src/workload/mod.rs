//! What to do: YCSB's core workloads, read from its own property files.

pub mod dataset;
pub mod known;
pub mod number;
pub mod operation;
pub mod plan;
pub mod properties;
mod reader;
pub mod record;
pub mod settings;
pub mod worker;
