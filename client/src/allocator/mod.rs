//! A session's block memory: chunks that the server granted, cut into blocks without asking anybody, and used again without
//! asking anybody.
//!
//! Always true: a block is handed out at most once for each version, and only from a chunk that this session has. What was
//! granted for deletes, which may be out of the server's reserve, is used for nothing else.
//!
//! ```text
//!            ┌────────────────── given back unpublished ──────────────────┐
//!            ▼                                                            │
//! never used ──▶ handed out: in hand ──▶ published ──▶ marked by others ──┼─▶ ripening ──▶ free ──▶ handed out
//!                                 │                      ▲      ▲ harvest │       ▲ grace period
//!                                 └─▶ in limbo ──────────┘      audit ────┘───────┘
//!                                     (nobody knows)
//! ```
//!
//! A block in hand when no operation is under way is in limbo: nobody knows whether its CAS took effect. Its mark tells if it
//! did and was replaced since, an audit tells otherwise.

mod audit;
mod chunk;
mod chunks;
mod class;
mod grant;
mod harvest;
mod returns;
mod reuse;
#[cfg(test)]
pub(crate) mod tests;

use sidestep_common::layout::{BlockPlace, BlockRef, Geometry, Offset, SizeClass, Version, chunk_shape};
use sidestep_common::planted::{Fault, is_planted};
use sidestep_common::wire::{ChunkGrant, ChunkPurpose};

pub use audit::Reclaim;
pub use grant::GrantError;
pub use harvest::{Harvest, due_since_ms};
pub use returns::Give;

use chunk::{Chunk, following};
use chunks::Chunks;
use class::{ClassMemory, Fresh, Spot};
use reuse::Period;

/// Chunks asked for at once at the most: 64 MiB of a large pool, so that a busy session asks seldom.
const ASK_CHUNKS_MAX: u64 = 64;
/// And at the most this part of the pool, so that an idle session of a small one holds little.
const ASK_POOL_PART: u64 = 64;

/// A block that was handed out, and of which nothing was heard since.
#[derive(Clone, Copy, Debug)]
struct Hand {
    spot: Spot,
    offset: Offset,
    /// The version of the use before.
    before: u8,
}

/// A session's block memory.
#[derive(Debug)]
pub struct Allocator {
    chunks: Chunks,
    /// By class, for any use.
    general: Vec<ClassMemory>,
    /// By class, for deletes.
    deletes: Vec<ClassMemory>,
    /// One for each operation under way, and those in limbo.
    hands: Vec<Hand>,
    /// Of these, the one of an operation that waits at its start.
    held: Option<BlockRef>,
    period: Period,
    /// Blocks of some chunk were used again so often that an epoch should be raised.
    wants_epoch: bool,
}

impl Default for Allocator {
    fn default() -> Self {
        Self::new()
    }
}

impl Allocator {
    /// No memory yet.
    pub fn new() -> Self {
        let classes = || (0..SizeClass::COUNT).map(|_| ClassMemory::default()).collect();
        Self {
            chunks: Chunks::default(),
            general: classes(),
            deletes: classes(),
            hands: Vec::new(),
            held: None,
            period: Period::default(),
            wants_epoch: false,
        }
    }

    /// A block of `class` for `purpose`, or `None` if memory must be got first. Deletes use the general memory first.
    #[inline]
    pub fn allocate(&mut self, class: SizeClass, purpose: ChunkPurpose) -> Option<BlockRef> {
        let block = self.take(class, ChunkPurpose::General);
        if block.is_none() && purpose == ChunkPurpose::Delete {
            return self.take(class, purpose);
        }
        block
    }

    #[inline]
    fn take(&mut self, class: SizeClass, purpose: ChunkPurpose) -> Option<BlockRef> {
        let memory = self.memory(class, purpose);
        let spot = match memory.free.pop() {
            Some(spot) => {
                if is_planted(Fault::SpareHandedTwice) {
                    memory.free.push(spot);
                }
                spot
            }
            None => {
                let fresh = memory.fresh.front_mut()?;
                let spot = Spot { chunk: fresh.chunk, index: fresh.next_index };
                fresh.next_index += u32::from(!is_planted(Fault::FreshHandedTwice));
                if fresh.next_index == fresh.block_count && !is_planted(Fault::ChunkEndIgnored) {
                    memory.fresh.pop_front();
                }
                spot
            }
        };
        let chunk = self.chunks.get_mut(spot.chunk)?;
        let before = chunk.version(spot.index);
        let version = following(before);
        chunk.set_version(spot.index, version.0);
        chunk.in_use.add(spot.index);
        let block = chunk.block(spot.index, version.0);
        self.hands.push(Hand { spot, offset: block.offset, before });
        Some(block)
    }

    /// A block that was allocated is named by a slot from now on.
    #[inline]
    pub fn published(&mut self, block: BlockRef) {
        self.let_go(block);
    }

    /// Takes back a block that was allocated, was never published, and whose WRITE, if any, has completed or can't take
    /// effect any more.
    #[inline]
    pub fn give_back(&mut self, block: BlockRef) {
        let Some(Hand { spot, before, .. }) = self.let_go(block) else { return };
        let Some(chunk) = self.chunks.get_mut(spot.chunk) else { return };
        chunk.set_version(spot.index, before);
        chunk.leave_use(spot.index);
        let (class, purpose) = (chunk.class, chunk.purpose);
        self.memory(class, purpose).free.push(spot);
    }

    fn let_go(&mut self, block: BlockRef) -> Option<Hand> {
        // The newest is the last.
        let at = self.hands.iter().rposition(|hand| hand.offset == block.offset)?;
        Some(self.hands.swap_remove(at))
    }

    fn memory(&mut self, class: SizeClass, purpose: ChunkPurpose) -> &mut ClassMemory {
        let classes = match purpose {
            ChunkPurpose::General => &mut self.general,
            ChunkPurpose::Delete => &mut self.deletes,
        };
        &mut classes[usize::from(class.index())]
    }

    /// Lets blocks whose grace period is over be handed out. Says whether there is one to be had for `purpose`.
    pub fn ripen(&mut self, class: SizeClass, purpose: ChunkPurpose, grace_ms: u64, now_ms: u64) -> bool {
        let purposes: &[ChunkPurpose] = match purpose {
            ChunkPurpose::General => &[ChunkPurpose::General],
            ChunkPurpose::Delete => &[ChunkPurpose::General, ChunkPurpose::Delete],
        };
        let mut has_free = false;
        for &purpose in purposes {
            let classes = if purpose == ChunkPurpose::Delete { &mut self.deletes } else { &mut self.general };
            let memory = &mut classes[usize::from(class.index())];
            while memory.ripening.front().is_some_and(|batch| is_ripe(batch.seen_ms, grace_ms, now_ms)) {
                let Some(batch) = memory.ripening.pop_front() else { break };
                for spot in &batch.spots {
                    if let Some(chunk) = self.chunks.get_mut(spot.chunk) {
                        chunk.ripening = chunk.ripening.saturating_sub(1);
                    }
                }
                memory.free.extend(batch.spots);
            }
            has_free |= memory.has_free();
        }
        has_free
    }

    /// When the next block for `purpose` will have ripened, if one ripens.
    pub fn ripe_ms(&self, class: SizeClass, purpose: ChunkPurpose, grace_ms: u64) -> Option<u64> {
        let first = |classes: &[ClassMemory]| {
            classes[usize::from(class.index())].ripening.front().map(|batch| batch.seen_ms)
        };
        let general = first(&self.general);
        let deletes = (purpose == ChunkPurpose::Delete).then(|| first(&self.deletes)).flatten();
        [general, deletes]
            .into_iter()
            .flatten()
            .min()
            .map(|seen_ms| seen_ms.saturating_add(grace_ms).saturating_add(1))
    }

    /// How many chunks to ask for: one at first, then twice as many each time. For deletes always one: it may come
    /// out of the reserve, which is small and everybody's.
    pub fn ask_chunks(&mut self, geometry: &Geometry, class: SizeClass, purpose: ChunkPurpose) -> u16 {
        if purpose == ChunkPurpose::Delete {
            return 1;
        }
        let pool_part = geometry.block_pool_bytes / chunk_shape(class).bytes / ASK_POOL_PART;
        let ask = &mut self.memory(class, purpose).ask_chunks;
        *ask = (u64::from(*ask) * 2).min(ASK_CHUNKS_MAX).min(pool_part).max(1) as u16;
        *ask
    }

    /// Adds what the server granted when it was asked for at most `count` chunks of `class`. The server can't make the
    /// session hold more than it asked for.
    ///
    /// # Errors
    /// [`GrantError`]; what came before the chunk that is wrong was added.
    pub fn add_asked(
        &mut self,
        geometry: &Geometry,
        (class, count, purpose): (SizeClass, u16, ChunkPurpose),
        grants: &[ChunkGrant],
    ) -> Result<(), GrantError> {
        if grants.is_empty() || grants.len() > count.into() {
            return Err(GrantError::Count { granted: grants.len(), asked: count });
        }
        for grant in grants {
            if grant.class != class.index() {
                let (class, found, offset) = (class.index(), grant.class, grant.offset);
                return Err(GrantError::Class { class, found, offset });
            }
            self.add(geometry, grant, purpose)?;
        }
        Ok(())
    }

    /// Adds a chunk that the server granted for `purpose`. What of it was never used can be handed out at once; of the rest
    /// a harvest will tell.
    ///
    /// # Errors
    /// If it can't be one: outside the pool, misplaced, of another shape than its class has, or the session's already.
    pub fn add(
        &mut self,
        geometry: &Geometry,
        grant: &ChunkGrant,
        purpose: ChunkPurpose,
    ) -> Result<(), GrantError> {
        let (offset, class) = grant::check(geometry, grant)?;
        let chunk = Chunk::new(offset, class, purpose, &grant.versions);
        let block_count = chunk.shape.block_count;
        let Some(at) = self.chunks.add(chunk) else {
            return Err(GrantError::Twice { offset: offset.0, class: class.index() });
        };
        let memory = self.memory(class, purpose);
        memory.chunks.push_front(at);
        let known = grant.versions.len() as u32;
        let unused = (0..).zip(&grant.versions).filter(|(_, version)| **version == 0);
        memory.free.extend(unused.map(|(index, _)| Spot { chunk: at, index }));
        if known < block_count {
            memory.fresh.push_back(Fresh { chunk: at, next_index: known, block_count });
        }
        Ok(())
    }

    /// Whether the session has any chunk.
    pub fn has_chunks(&self) -> bool {
        self.chunks.iter().next().is_some()
    }

    /// Class and purpose of all chunks, each once.
    pub fn classes(&self) -> Vec<(SizeClass, ChunkPurpose)> {
        let mut classes = Vec::new();
        for chunk in self.chunks.iter() {
            let one = (chunk.class, chunk.purpose);
            if !classes.contains(&one) {
                classes.push(one);
            }
        }
        classes
    }

    /// Makes `block`, in that use, the next one of its class to be handed out. Only for tests, in which memory is used again
    /// without waiting.
    #[doc(hidden)]
    pub fn reuse_next(&mut self, block: BlockRef) {
        let Some(place) = BlockPlace::of(block.offset, block.class) else { return };
        let Some(at) = self.chunks.at(place.chunk) else { return };
        let Some(chunk) = self.chunks.get_mut(at) else { return };
        let before = if block.version == Version::FIRST { 0 } else { block.version.0.wrapping_sub(1) };
        chunk.set_version(place.index, before);
        chunk.in_use.remove(place.index);
        let purpose = chunk.purpose;
        self.memory(block.class, purpose).free.push(Spot { chunk: at, index: place.index });
    }
}

/// ⚑ Whether a block that was seen marked at `seen_ms` has waited for the grace period.
fn is_ripe(seen_ms: u64, grace_ms: u64, now_ms: u64) -> bool {
    now_ms.saturating_sub(seen_ms) > grace_ms || is_planted(Fault::ReusedBeforeGrace)
}
