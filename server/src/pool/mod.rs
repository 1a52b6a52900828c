//! The block pool: memory handed to sessions in bulk.
//!
//! Always true:
//! - a block belongs to at most one session, and no two grants overlap;
//! - free + reserve + granted = the pool's bytes, to the byte;
//! - memory that was once cut up for a size class stays with that class. Blocks that were written but never
//!   published would else lie where another class keeps its free map, and that map must start as zeros.
//!   Changing a chunk's class needs quiescence and a clean map, and comes with reclamation.
//!
//! ```text
//!            take                    tail returned, session ended cleanly
//!  free ───────────────▶ granted ─────────────────────────────▶ tail ──┐
//!            take           │ ▲                                        │ next session that
//!  reserve ─────────────────┤ └────────────────────────────────────────┘ asks for the class
//!  (deletes only)           │ session ended otherwise
//!                           ▼
//!                        left behind: waits for the sweep that finds which blocks the index reaches
//! ```
//!
//! The first use of a block has version 1: the free map starts as zeros, and a byte that equals the version
//! means "free".
//!
//! The **reserve** lets deletes work when everything else is full: a thirty-second part of the pool in whole
//! chunks, at least one if the pool has three, at most 64. It is granted for key-only blocks, and only when
//! nothing else is left.

mod free_runs;
mod page;
mod refused;

use std::collections::{BTreeMap, BTreeSet, HashMap};

use sidestep_common::fabric::SessionId;
use sidestep_common::layout::{
    BlockHeader, CHUNK_BYTES, ChunkShape, Geometry, KEY_BYTES_MAX, SizeClass, chunk_shape,
};
use sidestep_common::wire::{ChunkGrant, ChunkPurpose, ReturnedChunk};

use free_runs::FreeRuns;
pub use page::GRANTS_PER_PAGE_MAX;
pub use refused::{GrantError, ReturnError};

/// Chunks granted in one answer: a session asks again long before it is through with 64 MiB.
pub const CHUNKS_PER_GRANT_MAX: u16 = 64;

/// One part in this many is kept for deletes.
const RESERVE_SHARE: u64 = 32;
/// The reserve has at most so many chunks.
const RESERVE_CHUNKS_MAX: u64 = 64;
/// Pools with fewer chunks than this have no reserve: it would be half of them.
const RESERVE_POOL_CHUNKS_MIN: u64 = 3;

/// Who has a piece of the pool's memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Owner {
    /// A session uses blocks from the grant's first index on.
    Session(SessionId),
    /// A session has returned the tail and goes on with what it used; at its clean end the tail is free.
    Returned(SessionId),
    /// Nobody: the blocks from the first index on wait for a session that asks for the class.
    Tail,
    /// The last session to use it is gone, and what of it is unused is not known.
    LeftBehind,
}

#[derive(Clone, Copy, Debug)]
struct Grant {
    class: SizeClass,
    /// The first block that was never used, as far as the server was told.
    first_index: u32,
    owner: Owner,
}

/// What a session holds. A tail counts as its whole chunk.
#[derive(Debug, Default)]
struct Held {
    bytes: u64,
    chunks: Vec<u64>,
}

/// Sums over the pool.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PoolAccounts {
    /// Bytes of the pool.
    pub pool_bytes: u64,
    /// Bytes never granted and not in the reserve.
    pub free_bytes: u64,
    /// Bytes kept for deletes.
    pub reserve_bytes: u64,
    /// Bytes granted, now or earlier.
    pub granted_bytes: u64,
    /// Bytes of unused blocks, among the granted, that the next session gets.
    pub tail_bytes: u64,
    /// Chunks whose session ended without saying what it used.
    pub left_behind_chunks: u64,
}

/// The block pool of one region.
#[derive(Debug)]
pub struct BlockPool {
    free: FreeRuns,
    reserve: FreeRuns,
    pool_bytes: u64,
    grants: BTreeMap<u64, Grant>,
    /// Chunks whose tails can be granted, by class.
    tails: BTreeMap<SizeClass, BTreeSet<u64>>,
    /// What each session holds, so that its end costs what it held.
    held: HashMap<SessionId, Held>,
    quota_bytes: u64,
    /// Counts the changes, so that pages of a list can be told to be of one moment.
    revision: u64,
}

impl BlockPool {
    /// All of a fresh region's pool. A session may hold `quota_bytes`.
    pub fn new(geometry: &Geometry, quota_bytes: Option<u64>) -> Self {
        let (start, bytes) = (geometry.block_pool_offset, geometry.block_pool_bytes);
        let chunks = bytes / CHUNK_BYTES;
        let reserve_chunks = match chunks {
            0..RESERVE_POOL_CHUNKS_MIN => 0,
            _ => (chunks / RESERVE_SHARE).clamp(1, RESERVE_CHUNKS_MAX),
        };
        let reserve_bytes = reserve_chunks * CHUNK_BYTES;
        Self {
            reserve: FreeRuns::of(start, reserve_bytes),
            free: FreeRuns::of(start.plus(reserve_bytes), bytes - reserve_bytes),
            pool_bytes: bytes,
            grants: BTreeMap::new(),
            tails: BTreeMap::new(),
            held: HashMap::new(),
            quota_bytes: quota_bytes.unwrap_or(u64::MAX),
            revision: 0,
        }
    }

    /// Grants `session` up to `count` chunks (or extents) of a class, at least one.
    ///
    /// # Errors
    /// [`GrantError`]; then nothing was granted.
    pub fn grant(
        &mut self,
        session: SessionId,
        class: u8,
        count: u16,
        purpose: ChunkPurpose,
    ) -> Result<Vec<ChunkGrant>, GrantError> {
        let class = SizeClass::from_index(class).ok_or(GrantError::Class { class })?;
        if count == 0 {
            return Err(GrantError::Count);
        }
        if purpose == ChunkPurpose::Delete {
            let limit_bytes = BlockHeader::block_bytes(KEY_BYTES_MAX, 0);
            if SizeClass::holding(limit_bytes).is_none_or(|largest| class > largest) {
                return Err(GrantError::NotForDeletes { block_bytes: class.bytes(), limit_bytes });
            }
        }
        let shape = chunk_shape(class);
        let mut granted = Vec::new();
        for _ in 0..count.min(CHUNKS_PER_GRANT_MAX) {
            // Out of the reserve no more than one at a time, whatever is asked: it is everybody's.
            let purpose = if granted.is_empty() { purpose } else { ChunkPurpose::General };
            match self.grant_one(session, class, shape, purpose) {
                Ok(grant) => granted.push(grant),
                Err(error) if granted.is_empty() => return Err(error),
                Err(_) => break,
            }
        }
        Ok(granted)
    }

    fn grant_one(
        &mut self,
        session: SessionId,
        class: SizeClass,
        shape: ChunkShape,
        purpose: ChunkPurpose,
    ) -> Result<ChunkGrant, GrantError> {
        let held_bytes = self.held.get(&session).map_or(0, |held| held.bytes);
        if held_bytes.saturating_add(shape.bytes) > self.quota_bytes {
            let quota_bytes = self.quota_bytes;
            return Err(GrantError::Quota { held_bytes, asked_bytes: shape.bytes, quota_bytes });
        }
        let tail = self.tails.get_mut(&class).and_then(BTreeSet::pop_first);
        let fresh = || self.free.take(shape).map(|offset| offset.0);
        let mut offset = tail.or_else(fresh);
        if offset.is_none() && purpose == ChunkPurpose::Delete {
            offset = self.reserve.take(shape).map(|offset| offset.0);
        }
        let Some(offset) = offset else {
            return Err(GrantError::OutOfMemory {
                asked_bytes: shape.bytes,
                block_bytes: class.bytes(),
                free_bytes: self.free.free_bytes(),
                pool_bytes: self.pool_bytes,
                reserve_bytes: self.reserve.free_bytes(),
            });
        };
        self.revision += 1;
        let owner = Owner::Session(session);
        let grant = self.grants.entry(offset).or_insert(Grant { class, first_index: 0, owner });
        grant.owner = owner;
        let first_index = grant.first_index;
        let held = self.held.entry(session).or_default();
        held.bytes += shape.bytes;
        held.chunks.push(offset);
        let _ = first_index;
        Ok(ChunkGrant { offset, class: class.index(), versions: Vec::new() })
    }

    /// Takes chunks back from `session`: all of them, or none.
    ///
    /// # Errors
    /// [`ReturnError`] names the first that isn't what it claims to be.
    pub fn return_chunks(
        &mut self,
        session: SessionId,
        chunks: &[ReturnedChunk],
        _target: u64,
    ) -> Result<(), ReturnError> {
        for chunk in chunks {
            let offset = chunk.offset;
            let grant = self.grants.get(&offset).ok_or(ReturnError::NotGranted { offset })?;
            if grant.owner != Owner::Session(session) {
                return Err(ReturnError::NotGranted { offset });
            }
        }
        for chunk in chunks {
            if let Some(grant) = self.grants.get_mut(&chunk.offset) {
                grant.owner = Owner::Returned(session);
            }
        }
        Ok(())
    }

    /// The session is over, and nothing of it can take effect any more. After a clean end returned tails are
    /// free for the next; everything else is left behind for the sweep.
    pub fn end_session(&mut self, session: SessionId, clean: bool) {
        self.revision += 1;
        for offset in self.held.remove(&session).unwrap_or_default().chunks {
            let Some(grant) = self.grants.get_mut(&offset) else {
                unreachable!("session {session} holds {offset:#x}, which was never granted")
            };
            let unused = chunk_shape(grant.class).block_count - grant.first_index;
            if clean && grant.owner == Owner::Returned(session) && unused > 0 {
                grant.owner = Owner::Tail;
                self.tails.entry(grant.class).or_default().insert(offset);
            } else {
                grant.owner = Owner::LeftBehind;
            }
        }
    }

    /// The sums.
    pub fn accounts(&self) -> PoolAccounts {
        let mut accounts = PoolAccounts {
            pool_bytes: self.pool_bytes,
            free_bytes: self.free.free_bytes(),
            reserve_bytes: self.reserve.free_bytes(),
            ..PoolAccounts::default()
        };
        for grant in self.grants.values() {
            let shape = chunk_shape(grant.class);
            accounts.granted_bytes += shape.bytes;
            match grant.owner {
                Owner::Tail => {
                    accounts.tail_bytes +=
                        u64::from(shape.block_count - grant.first_index) * grant.class.bytes();
                }
                Owner::LeftBehind => accounts.left_behind_chunks += 1,
                Owner::Session(_) | Owner::Returned(_) => {}
            }
        }
        accounts
    }
}

#[cfg(test)]
mod tests;
