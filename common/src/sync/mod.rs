//! Atomics: the standard library's, or loom's.
//!
//! Always true: what threads of a process share without a lock, and what several processes share as words of a region,
//! is made of these. Under `--cfg loom` they are [loom](https://docs.rs/loom)'s, which runs a test under every order of
//! threads, and with every old value that a load may still see, that the orderings given allow in the memory model of
//! C++11. `tests/scripts/loom.sh` does so; ARCHITECTURE.md says what is modelled, what is not, and why.

#[cfg(loom)]
mod explore;
#[cfg(loom)]
mod modelled;

#[cfg(not(loom))]
pub use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering, fence},
};

#[cfg(loom)]
pub use explore::explore;
#[cfg(loom)]
pub use loom::sync::{Arc, atomic::Ordering};
#[cfg(loom)]
pub use modelled::{AtomicU64, fence};
