//! What is wrong with bytes that are no frame.

use super::{FRAME_BYTES_MAX, FRAME_HEADER_BYTES, REPLY_BODY_BYTES_MAX, VERB_BYTES_MAX};

/// Why bytes are no frame. The connection ends with it: behind such bytes nothing has a meaning.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum FrameError {
    /// The announced length is impossible.
    #[error("a frame of {bytes} bytes is outside {FRAME_HEADER_BYTES} to {FRAME_BYTES_MAX}")]
    Length {
        /// As announced.
        bytes: usize,
    },
    /// The counts and the length disagree.
    #[error("a frame of {bytes} bytes can't be one of {batches} batches and {verbs} verbs")]
    Counts {
        /// Its length.
        bytes: usize,
        /// As announced; at most [`super::FRAME_VERBS_MAX`].
        batches: usize,
        /// As announced; at most [`super::FRAME_VERBS_MAX`].
        verbs: usize,
    },
    /// Another opcode than the four.
    #[error("verb {index} has the unknown opcode {opcode:#04x}")]
    Opcode {
        /// The verb's place in the frame.
        index: usize,
        /// As received.
        opcode: u8,
    },
    /// A verb moves too much, or an atomic not eight bytes.
    #[error("verb {index} is of {bytes} bytes; the limit is {VERB_BYTES_MAX}, and 8 is right for an atomic")]
    VerbLength {
        /// The verb's place in the frame.
        index: usize,
        /// As announced.
        bytes: usize,
    },
    /// A batch would bring back too much.
    #[error("the reply to a batch would be of {bytes} bytes; the limit is {REPLY_BODY_BYTES_MAX}")]
    ReplyLength {
        /// What its READs and atomics add up to.
        bytes: usize,
    },
    /// A byte or flag without meaning is set.
    #[error("a reserved byte is not zero in the {place}")]
    Reserved {
        /// Where.
        place: &'static str,
    },
    /// A reply that doesn't answer the oldest batch.
    #[error("a reply to request {found} where one to {expected} is due")]
    Request {
        /// As received.
        found: u32,
        /// Of the oldest batch in flight.
        expected: u32,
    },
    /// A reply although nothing is in flight.
    #[error("a reply, but no request is in flight")]
    Unasked,
    /// A reply whose figures don't fit its batch.
    #[error(
        "a reply with status {status}, {done} verbs done and {bytes} bytes does not fit a batch of {verbs}"
    )]
    Reply {
        /// As received.
        status: u8,
        /// As received.
        done: usize,
        /// As received.
        bytes: usize,
        /// Verbs of the batch.
        verbs: usize,
    },
}
