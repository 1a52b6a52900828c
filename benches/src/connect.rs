//! The seam between the load generator and the client library.
//!
//! Always true: everything else in this crate knows only [`Connect`] and [`Store`](crate::store::Store).

use crate::store::{Connect, StoreError};

/// Gets ready to open stores at `endpoint`.
pub fn connect(endpoint: &str) -> Result<Box<dyn Connect>, StoreError> {
    Err(StoreError::Unreachable {
        endpoint: endpoint.to_owned(),
        reason: "the client library is not part of this build".to_owned(),
    })
}
