//! Where the parts of a region lie, computed from its size alone.
//!
//! Always true: parts don't overlap, lie within the region, and have their alignment. A [`Geometry`] exists
//! only in that state: it is computed here, or parsed from a superblock and then equal to what is computed.
//!
//! The index takes between a twelfth and a sixth of the region, an eighth of one whose size is a power of two:
//! 32 bytes of index a key at eight keys a bucket, where a bucket of 31 slots practically never overflows. So
//! values of about 200 bytes and more use the block pool up before the index.

use super::{CHUNK_BYTES, DirectoryWord, Offset, PAGE_UNIT_BYTES, SEGMENT_BYTES, SUPERBLOCK_BYTES};
use crate::hash::{DIRECTORY_BITS_MAX, KeyHash};

/// The smallest region: 4 MiB.
pub const REGION_BYTES_MIN: u64 = 4 << 20;
/// The largest region: 2 TiB, what 35 bits of 64-byte units in a slot word address.
pub const REGION_BYTES_MAX: u64 = 2 << 40;

/// The index takes at most this part of the region.
const INDEX_SHARE: u64 = 6;
/// One segment more for this many entries of the directory: rebuilds need memory for new segments while old ones wait
/// until nobody can use them any more.
const ENTRIES_PER_SPARE_SEGMENT: u64 = 8;

/// The size given can't be a region.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum GeometryError {
    /// Too small.
    #[error("a region of {bytes} bytes is below the minimum of {REGION_BYTES_MIN}")]
    TooSmall {
        /// As asked.
        bytes: u64,
    },
    /// Too large.
    #[error("a region of {bytes} bytes is above the maximum of {REGION_BYTES_MAX}")]
    TooLarge {
        /// As asked.
        bytes: u64,
    },
}

/// Where the parts of a region lie.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Geometry {
    /// Bytes of the region.
    pub region_bytes: u64,
    /// Where the directory starts.
    pub directory_offset: Offset,
    /// The directory has 2 to this power entries of 8 bytes.
    pub directory_bits: u32,
    /// Where the segment pool starts.
    pub segment_pool_offset: Offset,
    /// Segments in the pool: one for each entry of the directory, and spare ones for rebuilds.
    pub segment_count: u64,
    /// Where the block pool starts, a multiple of 1 MiB.
    pub block_pool_offset: Offset,
    /// Bytes of the block pool, a multiple of 16 KiB.
    pub block_pool_bytes: u64,
}

impl Geometry {
    /// The geometry of a region of `region_bytes`.
    ///
    /// # Errors
    /// If the size is outside [`REGION_BYTES_MIN`] to [`REGION_BYTES_MAX`].
    pub const fn for_region(region_bytes: u64) -> Result<Self, GeometryError> {
        if region_bytes < REGION_BYTES_MIN {
            return Err(GeometryError::TooSmall { bytes: region_bytes });
        }
        if region_bytes > REGION_BYTES_MAX {
            return Err(GeometryError::TooLarge { bytes: region_bytes });
        }
        let segments_max = region_bytes / INDEX_SHARE / SEGMENT_BYTES;
        let directory_bits =
            (segments_max * ENTRIES_PER_SPARE_SEGMENT / (ENTRIES_PER_SPARE_SEGMENT + 1)).ilog2();
        assert!(directory_bits <= DIRECTORY_BITS_MAX);
        let entries = 1_u64 << directory_bits;
        let segment_count = entries + entries / ENTRIES_PER_SPARE_SEGMENT;
        let segment_pool_offset = (SUPERBLOCK_BYTES + 8 * entries).next_multiple_of(SEGMENT_BYTES);
        let block_pool_offset =
            (segment_pool_offset + segment_count * SEGMENT_BYTES).next_multiple_of(CHUNK_BYTES);
        let block_pool_bytes = region_bytes - block_pool_offset;
        Ok(Self {
            region_bytes,
            directory_offset: Offset(SUPERBLOCK_BYTES),
            directory_bits,
            segment_pool_offset: Offset(segment_pool_offset),
            segment_count,
            block_pool_offset: Offset(block_pool_offset),
            block_pool_bytes: block_pool_bytes - block_pool_bytes % PAGE_UNIT_BYTES,
        })
    }

    /// Entries of the directory.
    pub const fn directory_entries(&self) -> u64 {
        1 << self.directory_bits
    }

    /// Where entry `index` of the directory lies.
    pub const fn directory_word_offset(&self, index: u64) -> Offset {
        self.directory_offset.plus(8 * index)
    }

    /// Where the segment that `word` names lies; `None` if the pool has no such segment.
    pub const fn segment_offset(&self, word: DirectoryWord) -> Option<Offset> {
        if word.segment as u64 >= self.segment_count {
            return None;
        }
        Some(self.segment_pool_offset.plus(word.segment as u64 * SEGMENT_BYTES))
    }

    /// Where the bucket for `hash` lies in the segment that `word` names.
    pub const fn bucket_offset(&self, word: DirectoryWord, hash: KeyHash) -> Option<Offset> {
        match self.segment_offset(word) {
            Some(segment) => Some(segment.plus(hash.bucket_index() * super::BUCKET_BYTES)),
            None => None,
        }
    }

    /// Whether `bytes` at `offset` lie in the block pool.
    pub const fn block_pool_holds(&self, offset: Offset, bytes: u64) -> bool {
        offset.0 >= self.block_pool_offset.0
            && bytes <= self.block_pool_bytes
            && offset.0 - self.block_pool_offset.0 <= self.block_pool_bytes - bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_disjoint_aligned_and_inside() {
        let sizes =
            [4 << 20, 5 << 20, (64 << 20) + 4096, 1 << 30, 3 << 30, (4 << 30) + (1 << 20), 1 << 40, 2 << 40];
        for region_bytes in sizes {
            let geometry = Geometry::for_region(region_bytes).unwrap();
            let directory_end = geometry.directory_offset.0 + 8 * geometry.directory_entries();
            let segments_end = geometry.segment_pool_offset.0 + geometry.segment_count * SEGMENT_BYTES;
            assert!(directory_end <= geometry.segment_pool_offset.0);
            assert!(segments_end <= geometry.block_pool_offset.0);
            assert!(geometry.block_pool_offset.0 + geometry.block_pool_bytes <= region_bytes);
            assert!(geometry.block_pool_bytes >= CHUNK_BYTES, "{geometry:?}");
            assert_eq!(geometry.block_pool_offset.0 % CHUNK_BYTES, 0);
            let index_bytes = geometry.segment_count * SEGMENT_BYTES;
            assert!(index_bytes * 6 <= region_bytes && index_bytes * 12 >= region_bytes, "{geometry:?}");
            let entries = geometry.directory_entries();
            assert_eq!(geometry.segment_count, entries + entries / 8, "one segment each, and spare ones");
        }
    }

    /// Where directory words, segments and buckets lie: golden, as [`Superblock`](crate::layout::Superblock) is.
    #[test]
    fn places_are_counted_from_where_the_parts_begin() {
        let geometry = Geometry::for_region(64 << 20).unwrap();
        assert_eq!([0, 1, 511].map(|index| geometry.directory_word_offset(index).0), [4096, 4104, 8184]);
        let word = |segment| DirectoryWord { segment, generation: 1, depth: 9 };
        let segments = [0, 1, 511].map(|segment| geometry.segment_offset(word(segment)).unwrap().0);
        assert_eq!(segments, [0x4000, 0x8000, 0x80_0000]);
        let bucket = |bits| geometry.bucket_offset(word(1), KeyHash::from_bits(bits)).unwrap().0;
        assert_eq!([0, 1 << 10, 63 << 10].map(bucket), [0x8000, 0x8100, 0xbf00]);
        assert_eq!(geometry.bucket_offset(word(576), KeyHash::from_bits(0)), None);
    }

    #[test]
    fn sizes_that_cannot_be_are_refused() {
        assert_eq!(Geometry::for_region(0), Err(GeometryError::TooSmall { bytes: 0 }));
        assert!(Geometry::for_region(REGION_BYTES_MAX + 1).is_err());
        assert!(Geometry::for_region(u64::MAX).is_err());
    }

    #[test]
    fn nothing_outside_the_pools_is_named() {
        let geometry = Geometry::for_region(64 << 20).unwrap();
        let beyond = DirectoryWord { segment: geometry.segment_count as u32, generation: 1, depth: 0 };
        assert_eq!(geometry.segment_offset(beyond), None);
        let end = geometry.block_pool_offset.plus(geometry.block_pool_bytes);
        assert!(geometry.block_pool_holds(Offset(end.0 - 64), 64));
        assert!(!geometry.block_pool_holds(Offset(end.0 - 63), 64));
        assert!(!geometry.block_pool_holds(Offset(u64::MAX), 64));
        assert!(!geometry.block_pool_holds(Offset(geometry.block_pool_offset.0 - 1), 64));
        assert!(geometry.block_pool_holds(geometry.block_pool_offset, geometry.block_pool_bytes));
        assert!(!geometry.block_pool_holds(geometry.block_pool_offset, geometry.block_pool_bytes + 1));
    }
}
