//! A region's bytes as atomic words: what a network card would do to them, done by a CPU.
//!
//! Always true: memory that others may change at any moment is touched by whole-word atomic operations only,
//! copied before anybody parses it, and never lent as `&[u8]`. Every access is checked against the region's
//! length with arithmetic that cannot wrap, before the first byte is touched.
//!
//! The `shm` fabric, the threads that serve `tcp`, and the server's own set-up all go through [`WordMemory`].
//!
//! # Orderings
//! The contract of a fabric wants a session's verbs to execute in the order posted, except that a WRITE may
//! overtake an earlier READ. A READ ends with an acquire fence (pairs with the release of the CAS or WRITE
//! whose effect it saw), a WRITE starts with a release fence, CAS and FAA are acquire-release. What these leave open,
//! a load that passes an earlier store, is the part of `store_buffer.rs`. `fabric/models` shows under loom that all of it
//! is needed, and is enough.

mod available;
mod gather;
mod kept;
mod mapping;
mod populate;
mod store_buffer;
mod words;

pub use available::{Available, MemoryLimit};
pub use kept::{KeepError, KeptDirectory};
pub use mapping::{HugePages, Mapping, MappingError, MappingOptions};
pub(crate) use store_buffer::StoreBuffer;
pub use words::{AccessError, WordMemory};
