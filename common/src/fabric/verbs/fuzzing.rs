//! Doors for fuzz targets: the bytes that travel with a connection request, and the messages of two-sided commits. None
//! needs a card.

use super::private_data::{Accepted, Refusal, Request};
pub use super::two_sided::fuzzing::{CommitCard, CommitClient};

/// What a memory node makes of a request's private data: the bytes that say the same, or why it is refused.
///
/// # Errors
/// The refusal's bytes, as they would be sent.
pub fn request(bytes: &[u8]) -> Result<Vec<u8>, Vec<u8>> {
    match Request::decode(bytes) {
        Ok(request) => Ok(request.encode().to_vec()),
        Err(refusal) => Err(refusal.encode().to_vec()),
    }
}

/// What a client makes of an acceptance: the bytes that say the same.
pub fn accepted(bytes: &[u8]) -> Option<Vec<u8>> {
    Accepted::decode(bytes).map(|accepted| accepted.encode().to_vec())
}

/// What a client makes of a refusal: the bytes that say the same, and the text for people.
pub fn refusal(bytes: &[u8]) -> Option<(Vec<u8>, &'static str)> {
    Refusal::decode(bytes).map(|refusal| (refusal.encode().to_vec(), refusal.text()))
}
