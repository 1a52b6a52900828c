//! Whole systems: a memory node in this process or in its own, and clients of it.
//!
//! Always true: every test has a node of its own, on free ports, that ends with it. Which fabrics a run proves
//! something about is chosen from outside ([`fabrics`]): `shm` and `tcp` on any machine, `verbs` where there is
//! an RDMA device, as in the Soft-RoCE machine.

mod node;
mod process;
mod suite;

pub use node::{Node, NodeOptions};
pub use process::{Process, binary, is_stopped, until};
pub use suite::{Case, Story, fabrics, run_suite};
