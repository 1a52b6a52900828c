//! What shows only after long: whether a store that is nearly full can live with keys that come and go, and what the
//! growth of its index costs.
//!
//! Always true: every value can be computed from its key and how often that was written, so whatever is read back is
//! checked in full; what is reported of the server comes from the server.

pub mod churn;
pub mod growth;
mod value;

use crate::store::StoreError;

pub use value::{Sizes, ValueMaker};

/// Why a run of this kind came to no result.
#[derive(Debug, thiserror::Error)]
pub enum EnduranceError {
    /// The store failed where it must not.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The store can't be filled as far as was asked.
    #[error("the store took {bytes} bytes in {keys} keys and is not {percent} % full: {reason}")]
    Fill {
        /// Keys inserted.
        keys: u64,
        /// Bytes of values inserted.
        bytes: u64,
        /// As asked.
        percent: f64,
        /// Why no more.
        reason: String,
    },
}

/// The bytes of key number `number`: its decimal digits behind a letter.
fn key_bytes(number: u64, into: &mut Vec<u8>) {
    use std::io::Write;
    into.clear();
    // Writing into a vector can't fail.
    let _ = write!(into, "k{number}");
}
