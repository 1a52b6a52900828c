//! The region's bytes.
//!
//! Always true: everything stored is little-endian and of fixed layout; no `usize`; parsing copies first and
//! yields checked types, and never panics whatever the bytes are. Changing a byte here changes
//! [`FORMAT_VERSION`], the diagrams, the golden tests and the changelog together.
//!
//! ```text
//! offset 0        4096             segment pool, 16 KiB aligned   block pool, 1 MiB aligned
//! ┌──────────────┬────────────────┬──────────────────────────────┬───────────────────────────┐
//! │ superblock   │ directory      │ segments of 64 buckets       │ chunks and extents        │
//! └──────────────┴────────────────┴──────────────────────────────┴───────────────────────────┘
//! ```
//!
//! [`Geometry`] says where the parts lie; [`Superblock`] publishes it.

mod block;
mod bucket;
mod chunk;
mod directory;
mod geometry;
mod size_class;
mod slot;
mod superblock;

pub use block::{
    BLOCK_HEADER_BYTES, Block, BlockError, BlockHeader, BlockMeta, KEY_BYTES_MAX, VALUE_BYTES_MAX, WriteId,
};
pub use bucket::{
    BUCKET_BYTES, BUCKET_HEADER_BYTES, BUCKETS_PER_SEGMENT, Bucket, BucketHeader, SEGMENT_BYTES,
    SLOTS_PER_BUCKET,
};
pub use chunk::{
    BlockPlace, CHUNK_BYTES, CHUNK_CLASS_BYTES_MAX, ChunkShape, PAGE_UNIT_BYTES, chunk_shape, free_map_offset,
};
pub use directory::DirectoryWord;
pub use geometry::{Geometry, GeometryError, REGION_BYTES_MAX, REGION_BYTES_MIN};
pub use size_class::{BLOCK_UNIT_BYTES, SizeClass};
pub use slot::{BlockRef, SlotState, SlotWord, Tag, Version};
pub use superblock::{
    AtomicityDomain, FORMAT_VERSION, SPARE_SUPERBLOCK_OFFSET, SUPERBLOCK_BYTES, Superblock, SuperblockError,
    TICK_OFFSET,
};

/// A place in the region, in bytes from its start.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Offset(pub u64);

impl Offset {
    /// The place `bytes` further on.
    ///
    /// # Panics
    /// If the sum leaves 64 bits: offsets of a checked geometry can't.
    #[inline]
    #[track_caller]
    pub const fn plus(self, bytes: u64) -> Self {
        match self.0.checked_add(bytes) {
            Some(sum) => Self(sum),
            None => panic!("offset arithmetic left 64 bits"),
        }
    }
}

impl std::fmt::Display for Offset {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

/// Reads the little-endian word at `at`; the caller's slice must hold it.
#[inline]
pub(crate) fn word_at(bytes: &[u8], at: usize) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(word)
}
