//! Control messages: connecting, chunks, heartbeats, statistics. Never data.
//!
//! Always true: a frame's length is checked against [`FRAME_BYTES_MAX`] before anything is allocated; a message
//! decodes only if it consumes every byte of its frame; decoding never allocates more than the frame is long.
//!
//! ```text
//! connection:  preamble (8 bytes) each way, then frames
//! preamble:    │ 'S' 'D' 'S' 'T' 'E' 'P' │ kind: 'C' control, 'D' data │ protocol version │
//! frame:       │ length, 32 bits little-endian │ message (bincode 2, standard configuration) │
//! ```
//!
//! The preamble carries the version, so that a peer of another version is told so whatever it would send next.

mod codec;
mod message;

pub use codec::{
    FRAME_BYTES_MAX, Preamble, PreambleKind, WireError, decode, encode, read_frame, write_frame,
};
pub use message::{
    AuditedChunk, BucketReport, ChunkGrant, ChunkPurpose, DirectoryChanges, DirectoryRun, GrantHolder,
    GrantPage, GrantRecord, Hello, Pulse, Refusal, RefusalCode, Request, Response, ReturnedChunk,
    ServerStatistics, Welcome,
};

/// The version of everything on the control channel and of the data frames. Another version is refused.
pub const PROTOCOL_VERSION: u8 = 3;
