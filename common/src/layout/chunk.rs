//! Chunks and extents: how the block pool is cut into blocks.
//!
//! Always true: from a block's address and class alone anybody can compute where its byte of the free map
//! lies. That is what lets whoever unlinks a block free it with one 1-byte WRITE.
//!
//! ```text
//! chunk, 1 MiB, 1 MiB aligned, classes up to 128 KiB
//! ┌ free map: one byte a block, padded to 64 ┬ block 0 ┬ block 1 ┬ ... ┐
//! └──────────────────────────────────────────┴─────────┴─────────┴─────┘
//! extent, 16 KiB aligned, one block of a larger class
//! ┌ free map: 1 byte, padded to 64 ┬ block                             ┐
//! └────────────────────────────────┴───────────────────────────────────┘
//! ```
//!
//! A byte of the free map holds the version of the block's last use that was unlinked; the block is free when
//! that is its current version.

use super::{BLOCK_UNIT_BYTES, BlockRef, Offset, SizeClass, Version};

/// Bytes and alignment of a chunk.
pub const CHUNK_BYTES: u64 = 1 << 20;
/// Classes up to this many bytes live in chunks, larger ones in extents of their own.
pub const CHUNK_CLASS_BYTES_MAX: u64 = 128 << 10;
/// The pool is handed out in multiples of this.
pub const PAGE_UNIT_BYTES: u64 = 16 << 10;

/// How a grant of one class is cut up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ChunkShape {
    /// Bytes that the grant takes from the pool, a multiple of [`PAGE_UNIT_BYTES`].
    pub bytes: u64,
    /// Its alignment.
    pub align_bytes: u64,
    /// Blocks in it.
    pub block_count: u32,
    /// Where its first block starts, from the grant's start; the free map is before it.
    pub blocks_offset: u64,
}

/// The shape of a chunk (or extent) of `class`.
pub const fn chunk_shape(class: SizeClass) -> ChunkShape {
    let block_bytes = class.bytes();
    if block_bytes > CHUNK_CLASS_BYTES_MAX {
        return ChunkShape {
            bytes: (BLOCK_UNIT_BYTES + block_bytes).next_multiple_of(PAGE_UNIT_BYTES),
            align_bytes: PAGE_UNIT_BYTES,
            block_count: 1,
            blocks_offset: BLOCK_UNIT_BYTES,
        };
    }
    // A byte of the map each. For no class does the map's padding cost a block: the tests look at all.
    let block_count = CHUNK_BYTES / (block_bytes + 1);
    ChunkShape {
        bytes: CHUNK_BYTES,
        align_bytes: CHUNK_BYTES,
        block_count: block_count as u32,
        blocks_offset: block_count.next_multiple_of(BLOCK_UNIT_BYTES),
    }
}

/// A block's place in its chunk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BlockPlace {
    /// Where the chunk or extent starts.
    pub chunk: Offset,
    /// Which of its blocks.
    pub index: u32,
}

impl BlockPlace {
    /// The place of the block at `offset`; `None` if no block of that class can start there.
    pub const fn of(offset: Offset, class: SizeClass) -> Option<Self> {
        let shape = chunk_shape(class);
        if class.bytes() > CHUNK_CLASS_BYTES_MAX {
            return match offset.0.checked_sub(BLOCK_UNIT_BYTES) {
                Some(chunk) if chunk % PAGE_UNIT_BYTES == 0 => Some(Self { chunk: Offset(chunk), index: 0 }),
                _ => None,
            };
        }
        let chunk = offset.0 - offset.0 % CHUNK_BYTES;
        let Some(within) = (offset.0 - chunk).checked_sub(shape.blocks_offset) else { return None };
        let index = within / class.bytes();
        if within % class.bytes() != 0 || index >= shape.block_count as u64 {
            return None;
        }
        Some(Self { chunk: Offset(chunk), index: index as u32 })
    }

    /// The block itself, in its use `version`.
    pub const fn block(self, class: SizeClass, version: Version) -> BlockRef {
        let offset = self.chunk.0 + chunk_shape(class).blocks_offset + self.index as u64 * class.bytes();
        BlockRef { offset: Offset(offset), class, version }
    }
}

/// Where the free map's byte of `block` lies; `None` if no such block can exist (a corrupt slot word).
pub const fn free_map_offset(block: BlockRef) -> Option<Offset> {
    match BlockPlace::of(block.offset, block.class) {
        Some(place) => Some(Offset(place.chunk.0 + place.index as u64)),
        None => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn classes() -> impl Iterator<Item = SizeClass> {
        (0..SizeClass::COUNT as u8).map(|index| SizeClass::from_index(index).unwrap())
    }

    /// No block overlaps another or the map, and nothing leaves the grant.
    #[test]
    fn shapes_fit() {
        for class in classes() {
            let shape = chunk_shape(class);
            assert!(shape.block_count >= 1, "{class:?}");
            assert!(shape.blocks_offset >= u64::from(shape.block_count));
            assert_eq!(shape.blocks_offset % BLOCK_UNIT_BYTES, 0);
            assert!(shape.blocks_offset + u64::from(shape.block_count) * class.bytes() <= shape.bytes);
            assert_eq!(shape.bytes % PAGE_UNIT_BYTES, 0);
        }
        assert_eq!(chunk_shape(SizeClass::from_index(0).unwrap()).block_count, 16_131);
    }

    /// A chunk has no room for one block more, and an extent none for one page more.
    #[test]
    fn shapes_waste_nothing() {
        for class in classes() {
            let shape = chunk_shape(class);
            if class.bytes() > CHUNK_CLASS_BYTES_MAX {
                assert_eq!((shape.block_count, shape.align_bytes), (1, PAGE_UNIT_BYTES), "{class:?}");
                assert!(shape.bytes - shape.blocks_offset - class.bytes() < PAGE_UNIT_BYTES, "{class:?}");
            } else {
                assert_eq!((shape.bytes, shape.align_bytes), (CHUNK_BYTES, CHUNK_BYTES), "{class:?}");
                let more = u64::from(shape.block_count) + 1;
                let needed = more.next_multiple_of(BLOCK_UNIT_BYTES) + more * class.bytes();
                assert!(needed > CHUNK_BYTES, "{class:?}");
            }
        }
        let largest = SizeClass::holding(CHUNK_CLASS_BYTES_MAX).unwrap();
        assert_eq!(chunk_shape(largest).block_count, 7, "the last class that lives in chunks");
    }

    /// Extents begin at any page, chunks at multiples of their size alone.
    #[test]
    fn a_place_and_its_address_are_the_same_thing() {
        for class in classes() {
            let shape = chunk_shape(class);
            let chunk = Offset(32 * CHUNK_BYTES + 5 * (shape.align_bytes % CHUNK_BYTES));
            for index in [0, shape.block_count / 2, shape.block_count - 1] {
                let place = BlockPlace { chunk, index };
                let block = place.block(class, Version(4));
                assert_eq!(BlockPlace::of(block.offset, class), Some(place), "{class:?} {index}");
                assert_eq!(free_map_offset(block), Some(chunk.plus(u64::from(index))));
                assert_eq!(
                    free_map_offset(BlockRef { offset: block.offset.plus(64), ..block }).is_some(),
                    class.bytes() == 64 && index + 1 < shape.block_count
                );
            }
        }
    }
}
