//! What lies outside index and pool: the superblock, the tick, and memory between the parts.
//!
//! Always true: nobody but the memory node at its start, and the tick afterwards, writes there, so nothing needs to be
//! looked at twice.

use std::ops::Range;

use sidestep_common::layout::{
    Offset, SEGMENT_BYTES, SPARE_SUPERBLOCK_OFFSET, SUPERBLOCK_BYTES, Superblock, TICK_OFFSET,
};

use super::{Checker, Part, Problem, RegionSource, SourceError};

/// Bytes read at once.
const PIECE_BYTES: u64 = 256 << 10;

/// The first word of `bytes` that is not zero: where from its start, and the word.
pub(super) fn first_nonzero(bytes: &[u8]) -> Option<(u64, u64)> {
    let at = bytes.chunks(8).position(|word| word.iter().any(|byte| *byte != 0))?;
    let mut word = [0; 8];
    let rest = &bytes[8 * at..];
    let length = rest.len().min(8);
    word[..length].copy_from_slice(&rest[..length]);
    Some((8 * at as u64, u64::from_le_bytes(word)))
}

impl<S: RegionSource> Checker<'_, '_, S> {
    /// The superblock, the tick, and all memory that belongs to no part.
    pub(super) fn check_superblock(&mut self) -> Result<(), SourceError> {
        let described = self.source.superblock().encode();
        self.check_copy(Offset(0), &described)?;
        self.check_copy(SPARE_SUPERBLOCK_OFFSET, &described)?;
        let tick_ms = self.read_word(TICK_OFFSET)?;
        if let Some(uptime_ms) = self.source.uptime_ms()?.filter(|uptime_ms| tick_ms > *uptime_ms) {
            self.find(TICK_OFFSET, Part::Superblock, Problem::TickAhead { tick_ms, uptime_ms });
        }
        let geometry = self.geometry;
        let directory_end = geometry.directory_offset.0 + 8 * geometry.directory_entries();
        let segments_end = geometry.segment_pool_offset.0 + geometry.segment_count * SEGMENT_BYTES;
        let pool_end = geometry.block_pool_offset.0 + geometry.block_pool_bytes;
        for (range, behind) in [
            (described.len() as u64..TICK_OFFSET.0, "the superblock"),
            (TICK_OFFSET.0 + 8..SPARE_SUPERBLOCK_OFFSET.0, "the tick"),
            (SPARE_SUPERBLOCK_OFFSET.0 + described.len() as u64..SUPERBLOCK_BYTES, "the spare superblock"),
            (directory_end..geometry.segment_pool_offset.0, "the directory"),
            (segments_end..geometry.block_pool_offset.0, "the segments"),
            (pool_end..geometry.region_bytes, "the block pool"),
        ] {
            self.check_between(range, behind)?;
        }
        Ok(())
    }

    /// A copy of the superblock: what the source says of itself.
    fn check_copy(&mut self, at: Offset, described: &[u8]) -> Result<(), SourceError> {
        let mut found = Vec::new();
        self.read_piece(at.0..at.0 + described.len() as u64, &mut found)?;
        if let Err(error) = Superblock::parse(&found) {
            self.find(at, Part::Superblock, Problem::SuperblockInvalid { error });
            return Ok(());
        }
        let pairs = described.as_chunks::<8>().0.iter().zip(found.as_chunks::<8>().0);
        let differs = pairs.enumerate().find(|(_, (expected, found))| expected != found);
        if let Some((word, (expected, found))) = differs {
            let (expected, found) = (u64::from_le_bytes(*expected), u64::from_le_bytes(*found));
            let problem = Problem::SuperblockDiffers { expected, found };
            self.find(at.plus(8 * word as u64), Part::Superblock, problem);
        }
        Ok(())
    }

    fn check_between(&mut self, range: Range<u64>, behind: &'static str) -> Result<(), SourceError> {
        let mut bytes = Vec::new();
        let mut start = range.start;
        while start < range.end {
            let end = range.end.min(start + PIECE_BYTES);
            self.read_piece(start..end, &mut bytes)?;
            if let Some((at, found)) = first_nonzero(&bytes) {
                self.find(Offset(start + at), Part::Between, Problem::StrayBytes { behind, found });
                return Ok(());
            }
            start = end;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_word_that_is_not_zero_is_found() {
        let mut bytes = [0; 21];
        assert_eq!(first_nonzero(&bytes), None);
        bytes[20] = 3;
        assert_eq!(first_nonzero(&bytes), Some((16, 3 << 32)));
        bytes[9] = 1;
        assert_eq!(first_nonzero(&bytes), Some((8, 1 << 8)));
    }
}
