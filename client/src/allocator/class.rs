//! One class's blocks that can be handed out, and chunks that may bring more.
//!
//! Always true: a block is in one of the lists at most, and then it is not in use.

use std::collections::VecDeque;

/// A block of a chunk, by numbers of this session's.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Spot {
    pub(super) chunk: u32,
    pub(super) index: u32,
}

/// The rest of a chunk whose blocks were never used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Fresh {
    pub(super) chunk: u32,
    pub(super) next_index: u32,
    pub(super) block_count: u32,
}

/// Blocks that were seen marked at one moment, and wait for the grace period.
#[derive(Debug)]
pub(super) struct Batch {
    pub(super) seen_ms: u64,
    pub(super) spots: Vec<Spot>,
}

/// One class's memory for one purpose.
#[derive(Default, Debug)]
pub(super) struct ClassMemory {
    /// Blocks to be handed out, the last one first.
    pub(super) free: Vec<Spot>,
    /// Chunks with blocks that were never used, the one in use first.
    pub(super) fresh: VecDeque<Fresh>,
    /// In the order in which they were seen.
    pub(super) ripening: VecDeque<Batch>,
    /// Its chunks; the next one whose map is read is the first.
    pub(super) chunks: VecDeque<u32>,
    /// Chunks to ask for next time.
    pub(super) ask_chunks: u16,
}

impl ClassMemory {
    pub(super) fn has_free(&self) -> bool {
        !self.free.is_empty() || !self.fresh.is_empty()
    }

    /// A chunk is another's from now on.
    pub(super) fn forget(&mut self, chunk: u32) {
        self.free.retain(|spot| spot.chunk != chunk);
        self.fresh.retain(|fresh| fresh.chunk != chunk);
        self.chunks.retain(|own| *own != chunk);
        for batch in &mut self.ripening {
            batch.spots.retain(|spot| spot.chunk != chunk);
        }
        self.ripening.retain(|batch| !batch.spots.is_empty());
    }
}

impl ClassMemory {
    /// A block was seen marked at that moment.
    pub(super) fn ripens(&mut self, seen_ms: u64, spot: Spot) {
        match self.ripening.back_mut() {
            Some(batch) if batch.seen_ms >= seen_ms => batch.spots.push(spot),
            _ => self.ripening.push_back(Batch { seen_ms, spots: vec![spot] }),
        }
    }
}
