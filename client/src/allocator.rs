//! A session's block memory: chunks that the server granted, cut into blocks without asking anybody.
//!
//! Always true: a block is handed out at most once for each version, and only from a chunk that this session
//! was granted. A block that was handed out is either published by a CAS, or given back unpublished, or in
//! limbo because nobody knows (then it is never used again by this session). What was granted for deletes, which
//! may be out of the server's reserve, is used for nothing else.
//!
//! Reuse of blocks that were published and later freed belongs here and comes with reclamation: the owner reads
//! the free maps of its chunks, waits for the grace period, and adds such blocks, with their next version, to
//! `spare`.

use std::collections::VecDeque;

use sidestep_common::layout::{BlockPlace, BlockRef, Geometry, Offset, SizeClass, Version, chunk_shape};
use sidestep_common::planted::{Fault, is_planted};
use sidestep_common::wire::{ChunkGrant, ChunkPurpose, ChunkTail};

/// The rest of a chunk whose blocks were never used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Fresh {
    chunk: Offset,
    next_index: u32,
    block_count: u32,
    version: Version,
}

/// One class's blocks.
#[derive(Default, Debug)]
struct ClassMemory {
    /// Blocks given back unpublished.
    spare: Vec<BlockRef>,
    /// Chunks with blocks that were never used, the one in use first.
    fresh: VecDeque<Fresh>,
    /// Chunks to ask for next time.
    ask_chunks: u16,
}

impl ClassMemory {
    #[inline]
    fn take(&mut self, class: SizeClass) -> Option<BlockRef> {
        if let Some(block) = self.spare.pop() {
            if is_planted(Fault::SpareHandedTwice) {
                self.spare.push(block);
            }
            return Some(block);
        }
        let fresh = self.fresh.front_mut()?;
        let place = BlockPlace { chunk: fresh.chunk, index: fresh.next_index };
        let block = place.block(class, fresh.version);
        fresh.next_index += u32::from(!is_planted(Fault::FreshHandedTwice));
        if fresh.next_index == fresh.block_count && !is_planted(Fault::ChunkEndIgnored) {
            self.fresh.pop_front();
        }
        Some(block)
    }
}

/// The server granted what can't be right.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum GrantError {
    /// It can't be a chunk.
    #[error("the server granted an impossible chunk: {grant:?}")]
    Impossible {
        /// As granted.
        grant: ChunkGrant,
    },
    /// It is of another class than the one asked for.
    #[error("the server granted a chunk of another class than {class}: {grant:?}")]
    Class {
        /// As asked.
        class: u8,
        /// As granted.
        grant: ChunkGrant,
    },
    /// None, or more than were asked for.
    #[error("the server granted {granted} chunks, {asked} were asked for")]
    Count {
        /// How many.
        granted: usize,
        /// As asked.
        asked: u16,
    },
}

/// Chunks asked for at once at the most: 64 MiB of a large pool, so that a busy session asks seldom.
const ASK_CHUNKS_MAX: u64 = 64;
/// And at the most this part of the pool, so that an idle session of a small one holds little.
const ASK_POOL_PART: u64 = 64;

/// A session's block memory.
#[derive(Debug)]
pub struct Allocator {
    /// By class, for any use.
    general: Vec<ClassMemory>,
    /// By class, for deletes.
    deletes: Vec<ClassMemory>,
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
        Self { general: classes(), deletes: classes() }
    }

    /// A block of `class` for `purpose`, or `None` if a chunk must be asked for. Deletes use the general memory first.
    #[inline]
    pub fn allocate(&mut self, class: SizeClass, purpose: ChunkPurpose) -> Option<BlockRef> {
        let index = usize::from(class.index());
        let block = self.general[index].take(class);
        if block.is_none() && purpose == ChunkPurpose::Delete {
            return self.deletes[index].take(class);
        }
        block
    }

    /// Takes back a block that was allocated for `purpose`, was never published, and whose WRITE, if any, has
    /// completed.
    #[inline]
    pub fn give_back(&mut self, block: BlockRef, purpose: ChunkPurpose) {
        self.memory(block.class, purpose).spare.push(block);
    }

    fn memory(&mut self, class: SizeClass, purpose: ChunkPurpose) -> &mut ClassMemory {
        let classes = match purpose {
            ChunkPurpose::General => &mut self.general,
            ChunkPurpose::Delete => &mut self.deletes,
        };
        &mut classes[usize::from(class.index())]
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

    /// Adds what the server granted when it was asked for at most `count` chunks of `class`. There is a block of the class
    /// afterwards, and the server can't make the session hold more than it asked for.
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
        for &grant in grants {
            if grant.class != class.index() {
                return Err(GrantError::Class { class: class.index(), grant });
            }
            self.add(geometry, grant, purpose)?;
        }
        Ok(())
    }

    /// Adds a chunk that the server granted for `purpose`.
    ///
    /// # Errors
    /// If it can't be one: outside the pool, misplaced, or of another shape than its class has.
    pub fn add(
        &mut self,
        geometry: &Geometry,
        grant: ChunkGrant,
        purpose: ChunkPurpose,
    ) -> Result<(), GrantError> {
        let error = Err(GrantError::Impossible { grant });
        let Some(class) = SizeClass::from_index(grant.class) else { return error };
        let shape = chunk_shape(class);
        let sound = grant.block_count == shape.block_count
            && grant.first_index < grant.block_count
            && grant.offset.is_multiple_of(shape.align_bytes)
            && geometry.block_pool_holds(Offset(grant.offset), shape.bytes);
        if !sound {
            return error;
        }
        self.memory(class, purpose).fresh.push_back(Fresh {
            chunk: Offset(grant.offset),
            next_index: grant.first_index,
            block_count: grant.block_count,
            version: Version(grant.version),
        });
        Ok(())
    }

    /// Takes out the rests of all chunks, to be given back to the server. Spare blocks stay behind.
    pub fn take_tails(&mut self) -> Vec<ChunkTail> {
        let classes = self.general.iter_mut().chain(&mut self.deletes);
        let fresh = classes.flat_map(|memory| memory.fresh.drain(..));
        fresh.map(|fresh| ChunkTail { offset: fresh.chunk.0, first_index: fresh.next_index }).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use ChunkPurpose::{Delete, General};

    use super::*;

    fn grant(class: SizeClass, offset: u64) -> ChunkGrant {
        let block_count = chunk_shape(class).block_count;
        ChunkGrant { offset, class: class.index(), first_index: 0, block_count, version: 1 }
    }

    fn geometry() -> Geometry {
        Geometry::for_region(64 << 20).unwrap()
    }

    #[test]
    fn each_block_is_handed_out_once() {
        let class = SizeClass::holding(64 << 10).unwrap();
        let pool = geometry().block_pool_offset.0;
        let mut allocator = Allocator::new();
        assert_eq!(allocator.allocate(class, General), None);
        allocator.add(&geometry(), grant(class, pool), General).unwrap();
        allocator.add(&geometry(), grant(class, pool + (1 << 20)), General).unwrap();
        let mut seen = HashSet::new();
        while let Some(block) = allocator.allocate(class, General) {
            assert!(seen.insert(block.offset), "{block:?} twice");
        }
        assert_eq!(seen.len(), 2 * chunk_shape(class).block_count as usize);
        let unpublished = BlockPlace { chunk: Offset(pool), index: 3 }.block(class, Version::FIRST);
        allocator.give_back(unpublished, General);
        assert_eq!(allocator.allocate(class, General), Some(unpublished));
    }

    #[test]
    fn tails_are_what_was_never_used() {
        let class = SizeClass::holding(1000).unwrap();
        let pool = geometry().block_pool_offset.0;
        let mut allocator = Allocator::new();
        allocator.add(&geometry(), grant(class, pool), General).unwrap();
        allocator.allocate(class, General).unwrap();
        allocator.allocate(class, General).unwrap();
        assert_eq!(allocator.take_tails(), [ChunkTail { offset: pool, first_index: 2 }]);
        assert_eq!(allocator.allocate(class, General), None);
    }

    #[test]
    fn what_is_for_deletes_is_for_nothing_else() {
        let class = SizeClass::holding(64).unwrap();
        let pool = geometry().block_pool_offset.0;
        let mut allocator = Allocator::new();
        allocator.add(&geometry(), grant(class, pool), Delete).unwrap();
        assert_eq!(allocator.allocate(class, General), None);
        let block = allocator.allocate(class, Delete).unwrap();
        allocator.give_back(block, Delete);
        assert_eq!(allocator.allocate(class, General), None);
        assert_eq!(allocator.allocate(class, Delete), Some(block));
        assert_eq!(allocator.take_tails(), [ChunkTail { offset: pool, first_index: 1 }]);
        let large = Geometry::for_region(64 << 30).unwrap();
        assert_eq!([(); 3].map(|()| allocator.ask_chunks(&large, class, Delete)), [1; 3]);
    }

    #[test]
    fn a_session_asks_for_more_each_time_but_for_a_small_part_of_the_pool() {
        let class = SizeClass::holding(1000).unwrap();
        let large = Geometry::for_region(64 << 30).unwrap();
        let mut allocator = Allocator::new();
        let asked: Vec<u16> = (0..9).map(|_| allocator.ask_chunks(&large, class, General)).collect();
        assert_eq!(asked, [1, 2, 4, 8, 16, 32, 64, 64, 64]);
        assert_eq!(
            allocator.ask_chunks(&geometry(), class, General),
            1,
            "54 MiB have no 64th part of more than one"
        );
    }

    /// A session that asked for blocks of a class and was granted others would ask again, and again, and take whatever
    /// it was given each time.
    #[test]
    fn grants_that_were_not_asked_for_are_refused() {
        let [class, other] = [64, 128].map(|bytes| SizeClass::holding(bytes).unwrap());
        let pool = geometry().block_pool_offset.0;
        let chunks = |class| [0, 1 << 20, 2 << 20].map(|at| grant(class, pool + at));
        let mut allocator = Allocator::new();
        let mut add = |grants: &[ChunkGrant]| allocator.add_asked(&geometry(), (class, 2, General), grants);
        assert_eq!(add(&[]), Err(GrantError::Count { granted: 0, asked: 2 }));
        assert_eq!(add(&chunks(class)), Err(GrantError::Count { granted: 3, asked: 2 }));
        let odd = chunks(other)[0];
        assert_eq!(add(&[odd]), Err(GrantError::Class { class: class.index(), grant: odd }));
        assert_eq!(allocator.allocate(class, General), None);
        assert_eq!(allocator.allocate(other, General), None);
        allocator.add_asked(&geometry(), (class, 2, General), &chunks(class)[..2]).unwrap();
        assert!(allocator.allocate(class, General).is_some());
    }

    #[test]
    fn impossible_grants_are_refused() {
        let class = SizeClass::holding(64).unwrap();
        let pool = geometry().block_pool_offset.0;
        let good = grant(class, pool);
        let bad = [
            ChunkGrant { offset: 0, ..good },
            ChunkGrant { offset: pool + 64, ..good },
            ChunkGrant { offset: u64::MAX - 5, ..good },
            ChunkGrant { offset: 64 << 20, ..good },
            ChunkGrant { class: 200, ..good },
            ChunkGrant { block_count: good.block_count + 1, ..good },
            ChunkGrant { first_index: good.block_count, ..good },
        ];
        let mut allocator = Allocator::new();
        for grant in bad {
            assert_eq!(allocator.add(&geometry(), grant, General), Err(GrantError::Impossible { grant }));
        }
        assert_eq!(allocator.allocate(class, General), None);
    }
}
