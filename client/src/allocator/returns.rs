//! Giving chunks back.
//!
//! Always true: no block of a chunk that goes back is in hand or in limbo; one that goes back as empty has no block that a
//! slot names, and each was so for the grace period.

use sidestep_common::wire::ReturnedChunk;

use super::Allocator;

/// Which chunks go back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Give {
    /// Those without a block that a slot names.
    Empty,
    /// All without a block in hand.
    All,
}

impl Allocator {
    /// Takes out up to `count` chunks, for the server.
    pub fn take_returns(&mut self, give: Give, count: usize) -> Vec<ReturnedChunk> {
        let in_hand = |at: u32| self.hands.iter().any(|hand| hand.spot.chunk == at);
        let wanted: Vec<u32> = self
            .chunks
            .numbered()
            // What an audit found is reclaimed first: the next owner knows nothing of it.
            .filter(|(at, chunk)| !in_hand(*at) && chunk.unreached.is_none())
            .filter(|(_, chunk)| give == Give::All || chunk.is_idle())
            .map(|(at, _)| at)
            .take(count)
            .collect();
        wanted
            .into_iter()
            .filter_map(|at| {
                let chunk = self.chunks.remove(at)?;
                self.memory(chunk.class, chunk.purpose).forget(at);
                let (offset, empty) = (chunk.offset.0, chunk.is_idle());
                Some(ReturnedChunk { offset, versions: chunk.known_versions(), empty })
            })
            .collect()
    }
}
