//! The free maps of chunks, as the server reads and writes them.
//!
//! Always true: a byte is written by itself, so a client's mark beside it is never undone.

use sidestep_common::layout::{BLOCK_UNIT_BYTES, Offset, SizeClass, Version, chunk_shape};
use sidestep_common::memory::{AccessError, WordMemory};

/// Where a block's header says its version.
pub(crate) const VERSION_AT: u64 = 18;

/// A version for a block that nobody uses: neither of the two that something may still remember.
pub(crate) const fn free_version(header: u8, map: u8) -> u8 {
    let next = header.wrapping_add(1);
    if next == map { next.wrapping_add(1) } else { next }
}

/// Blocks whose bytes are read at once, where a few often tell enough.
const PIECE_BLOCKS: u32 = 1024;

/// The free maps of a region's pool.
#[derive(Clone, Copy, Debug)]
pub(super) struct Maps(WordMemory);

impl Maps {
    /// Of the region in `words`.
    pub(super) const fn of(words: WordMemory) -> Self {
        Self(words)
    }

    /// Zeros the map of a chunk that is cut up anew.
    pub(super) fn clear(&self, chunk: Offset, class: SizeClass) {
        const ZEROS: [u8; 4096] = [0; 4096];
        let bytes = u64::from(chunk_shape(class).block_count).next_multiple_of(BLOCK_UNIT_BYTES);
        for at in (0..bytes).step_by(ZEROS.len()) {
            let count = (bytes - at).min(ZEROS.len() as u64) as usize;
            self.0.write(chunk.plus(at), &ZEROS[..count]).unwrap_or_else(outside);
        }
    }

    /// The map of a chunk.
    pub(super) fn read(&self, chunk: Offset, class: SizeClass) -> Vec<u8> {
        let mut map = vec![0; chunk_shape(class).block_count as usize];
        self.0.read(chunk, &mut map).unwrap_or_else(outside);
        map
    }

    /// Marks a block: the version of its last use that was unlinked.
    pub(super) fn mark(&self, chunk: Offset, block: u32, version: Version) {
        self.0.write(chunk.plus(u64::from(block)), &[version.0]).unwrap_or_else(outside);
    }

    /// The version in a block's header, whatever the block holds.
    pub(super) fn header_version(&self, chunk: Offset, class: SizeClass, block: u32) -> Version {
        let block = chunk.plus(chunk_shape(class).blocks_offset + u64::from(block) * class.bytes());
        // A sweep asks this of every block of a dead session's chunks: one load each.
        let word = self.0.load(block.plus(VERSION_AT / 8 * 8)).unwrap_or_else(outside);
        Version((word >> (VERSION_AT % 8 * 8)) as u8)
    }

    /// Whether at least `wanted` blocks are free: their bytes equal the versions of their last use. Blocks behind the end of
    /// `versions` have version 0.
    pub(super) fn has_free(&self, chunk: Offset, class: SizeClass, versions: &[u8], wanted: u32) -> bool {
        let mut found = 0;
        self.pieces(chunk, class, versions).any(|(_, piece, versions)| {
            found += piece.iter().zip(versions).filter(|(mark, version)| **mark == *version).count();
            found >= wanted as usize
        })
    }

    /// The first block that isn't free, with its byte and its version.
    pub(super) fn first_in_use(
        &self,
        chunk: Offset,
        class: SizeClass,
        versions: &[u8],
    ) -> Option<(u32, u8, u8)> {
        self.pieces(chunk, class, versions).find_map(|(first, piece, versions)| {
            let mut blocks = (first..).zip(piece.into_iter().zip(versions));
            let (block, (mark, version)) = blocks.find(|(_, (mark, version))| mark != version)?;
            Some((block, mark, version))
        })
    }

    /// The map in pieces, each with its first block and the versions of its blocks. Who has seen enough reads no further.
    fn pieces<'a>(
        &self,
        chunk: Offset,
        class: SizeClass,
        versions: &'a [u8],
    ) -> impl Iterator<Item = (u32, Vec<u8>, impl Iterator<Item = u8> + 'a)> {
        let (words, count) = (self.0, chunk_shape(class).block_count);
        (0..count).step_by(PIECE_BLOCKS as usize).map(move |first| {
            let mut piece = vec![0; PIECE_BLOCKS.min(count - first) as usize];
            words.read(chunk.plus(u64::from(first)), &mut piece).unwrap_or_else(outside);
            let known = versions.get(first as usize..).unwrap_or_default();
            (first, piece, known.iter().copied().chain(std::iter::repeat(0)))
        })
    }
}

fn outside<T>(error: AccessError) -> T {
    unreachable!("the pool's memory is the region's: {error}")
}

#[cfg(test)]
mod tests {
    use sidestep_common::layout::{BlockHeader, BlockMeta, BlockRef, WriteId};

    use super::*;

    #[test]
    fn headers_say_their_version_there() {
        let class = SizeClass::holding(100).unwrap();
        let place = BlockRef { offset: Offset(64), class, version: Version(0xa7) };
        let meta = BlockMeta { write_id: WriteId::new(0, 0), expiry_tick: 0, user_flags: 0 };
        let header = BlockHeader::new(place, meta, b"k", b"v");
        assert_eq!(header.as_bytes()[VERSION_AT as usize], 0xa7);
    }
}
