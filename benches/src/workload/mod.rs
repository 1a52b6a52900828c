//! What to do: YCSB's core workloads, read from its own property files.

pub mod dataset;
pub mod number;
pub mod operation;
pub mod plan;
pub mod properties;
pub mod record;
pub mod settings;
pub mod worker;
