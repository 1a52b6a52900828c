//! The bytes of the data connection. Pure functions over slices; nothing here does I/O or allocates.
//!
//! Always true: a length is checked against its named limit before anybody acts on it; sums can't wrap; whatever
//! the bytes are, parsing ends with a checked value or a [`FrameError`]. Reserved bytes are zero, so that a later
//! version can use them. All numbers are little-endian. [`crate::wire::PROTOCOL_VERSION`] covers every byte here.
//!
//! A *request frame* carries the batches of one `post`, several frames if they don't fit one. Descriptors come
//! first and operands last, so that a client can gather WRITE bytes from where they lie.
//!
//! ```text
//!          0       1       2       3       4       5       6       7
//! header │ length of the whole frame     │ rkey                          │
//!        │ batch count   │ verb count    │ zero                          │
//! batch  │ request id                    │ verb count    │ flags │ zero  │  × batch count
//! verb   │ opcode│ zero                  │ length                        │  × verb count
//!        │ remote offset                                                 │
//! operands, in the order of the verbs:
//!   WRITE│ `length` bytes ...
//!   CAS  │ expected                                                      │
//!        │ desired                                                       │
//!   FAA  │ add                                                           │
//! ```
//!
//! A *reply* answers one batch; replies come in the order of the batches. A refused batch's reply is the
//! connection's last one.
//!
//! ```text
//!          0       1       2       3       4       5       6       7
//! header │ request id                    │ length of the body            │
//!        │ status│ zero  │ verbs done    │ zero                          │
//! body   │ of each verb done: READ its bytes, CAS and FAA the old word, WRITE nothing; nothing if silent
//! ```

mod error;
mod reply;
mod request;

pub use error::FrameError;
pub use reply::{Refused, ReplyHeader};
pub use request::{BatchDescriptor, FrameHeader, Opcode, RequestFrame, VerbDescriptor};

/// Bytes of a request frame's header.
pub const FRAME_HEADER_BYTES: usize = 16;
/// Bytes of a batch's descriptor.
pub const BATCH_BYTES: usize = 8;
/// Bytes of a verb's descriptor.
pub const VERB_BYTES: usize = 16;
/// Bytes of a reply's header.
pub const REPLY_HEADER_BYTES: usize = 16;

/// Bytes that one verb moves: the largest local buffer.
pub const VERB_BYTES_MAX: usize = 2 << 20;
/// Verbs of one frame, and its batches: more than any session has in flight, and their descriptors fit 96 KiB.
pub const FRAME_VERBS_MAX: usize = 4096;
/// The longest request frame: one WRITE of full length beside all the descriptors there can be, with room for a
/// second one.
pub const FRAME_BYTES_MAX: usize = 4 << 20;
/// The longest body of a reply.
pub const REPLY_BODY_BYTES_MAX: usize = 1 << 30;

const DESCRIPTOR_BYTES_MAX: usize = FRAME_HEADER_BYTES + FRAME_VERBS_MAX * (BATCH_BYTES + VERB_BYTES);
const _: () = assert!(FRAME_BYTES_MAX >= DESCRIPTOR_BYTES_MAX + VERB_BYTES_MAX);
const _: () = assert!(FRAME_VERBS_MAX <= u16::MAX as usize && REPLY_BODY_BYTES_MAX <= u32::MAX as usize);

fn half_at(bytes: &[u8], at: usize) -> u32 {
    let mut half = [0; 4];
    half.copy_from_slice(&bytes[at..at + 4]);
    u32::from_le_bytes(half)
}

fn quarter_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

#[cfg(test)]
mod tests;
