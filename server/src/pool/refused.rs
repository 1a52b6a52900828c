//! What the pool refuses. Each names the value and the limit, and nothing was changed.

use sidestep_common::layout::SizeClass;
use sidestep_common::wire::ReturnedChunk;

use super::CHUNKS_PER_GRANT_MAX;

/// A grant that can't be had. Nothing was changed.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum GrantError {
    /// No such class.
    #[error("size class {class} is not one of 0 to {max}", max = SizeClass::COUNT - 1)]
    Class {
        /// As asked.
        class: u8,
    },
    /// Nothing asked for.
    #[error("0 chunks were asked for, want 1 to {CHUNKS_PER_GRANT_MAX}")]
    Count,
    /// Deletes write key-only blocks.
    #[error("blocks of {block_bytes} bytes are not for deletes, whose blocks have at most {limit_bytes}")]
    NotForDeletes {
        /// Bytes of the class's blocks.
        block_bytes: u64,
        /// The most that a key needs.
        limit_bytes: u64,
    },
    /// No memory is left.
    #[error(
        "out of memory: {asked_bytes} bytes for blocks of {block_bytes} were asked for, {free_bytes} of \
         {pool_bytes} are free{also}",
        also = if *.reserve_bytes > 0 { format!(" (and {reserve_bytes} kept for deletes)") } else { String::new() }
    )]
    OutOfMemory {
        /// Bytes of one grant.
        asked_bytes: u64,
        /// Bytes of the class's blocks.
        block_bytes: u64,
        /// Bytes free, in runs that are too short.
        free_bytes: u64,
        /// Bytes of the pool.
        pool_bytes: u64,
        /// Bytes kept for deletes.
        reserve_bytes: u64,
    },
    /// The session has its share.
    #[error(
        "the session holds {held_bytes} bytes of blocks; {asked_bytes} more exceed its quota of {quota_bytes}"
    )]
    Quota {
        /// Bytes that it has.
        held_bytes: u64,
        /// Bytes of one grant.
        asked_bytes: u64,
        /// The limit.
        quota_bytes: u64,
    },
}

/// A chunk that can't be taken back. Nothing was changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ReturnError {
    /// More than a message holds.
    #[error("{count} chunks are returned at once, want at most {max}", max = ReturnedChunk::COUNT_MAX)]
    TooMany {
        /// As named.
        count: usize,
    },
    /// The chunk isn't the session's.
    #[error("no chunk at {offset:#x} is granted to the session")]
    NotGranted {
        /// As named.
        offset: u64,
    },
    /// It is named twice.
    #[error("the chunk at {offset:#x} is returned twice at once")]
    Twice {
        /// The chunk.
        offset: u64,
    },
    /// Versions of blocks that aren't there.
    #[error("{count} versions are said for the chunk at {offset:#x}, which has {block_count} blocks")]
    Versions {
        /// The chunk.
        offset: u64,
        /// As named.
        count: usize,
        /// Blocks in the chunk.
        block_count: u32,
    },
    /// It is said to be empty, and its free map says otherwise.
    #[error(
        "the chunk at {offset:#x} is said to be empty, but block {block} in its use {version} is not free: it is marked \
         with {mark}"
    )]
    NotEmpty {
        /// The chunk.
        offset: u64,
        /// The first such block.
        block: u32,
        /// Its byte of the free map.
        mark: u8,
        /// The version said of it.
        version: u8,
    },
}
