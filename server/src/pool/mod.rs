//! The block pool: memory handed to sessions in bulk.
//!
//! Always true:
//! - no two grants overlap, and a grant's blocks are used by at most one session;
//! - free + reserve + cut up = the pool's bytes, to the byte, and the cut-up bytes are the sum over their states;
//! - ⚑ memory changes its owner only when every session has acknowledged an epoch from after it was given up, or was fenced:
//!   else an old mark, or an old owner's WRITE, could meet the new owner's blocks;
//! - memory that is cut up for a size class anew has a free map of zeros when it is granted.
//!
//! ```text
//!            cut up                            returned                quiesced, blocks published
//!  free ───────────────▶ of a session ──────────────────▶ returned ──────────────────┐
//!   ▲ ▲                     │    ▲                           │ quiesced, empty        ▼
//!   │ └─────────────────────┼────┼───────────────────────────┘             ┌──── ownerless
//!   │                       │    └─ adopted by a session that asks for the class ─┘   ▲
//!   │                       │ session ended                                           │
//!   │                       ▼                                                         │
//!   └─────────────────── orphan ──────────────────────────────────────────────────────┘
//!      the index reaches no block of it      swept: the versions of its blocks are known again
//! ```
//!
//! An ownerless chunk all of whose blocks are free is taken back when memory is short ([`BlockPool::reclaim`]), by way of
//! *returned*.
//!
//! The **reserve** lets deletes work when everything else is full: a thirty-second part of the pool in whole chunks, at
//! least one if the pool has three, at most 64. It is granted for key-only blocks, and only when nothing else is left; what
//! was cut out of it comes back to it.

mod accounts;
mod free_runs;
mod maps;
mod page;
mod refused;
mod swept;

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};

use sidestep_common::fabric::SessionId;
use sidestep_common::layout::{
    BlockHeader, CHUNK_BYTES, ChunkShape, Geometry, KEY_BYTES_MAX, Offset, SizeClass, chunk_shape,
};
use sidestep_common::memory::WordMemory;
use sidestep_common::wire::{ChunkGrant, ChunkPurpose, FRAME_BYTES_MAX, ReturnedChunk};

pub use accounts::{PoolAccounts, Share};
use free_runs::FreeRuns;
use maps::Maps;
pub(crate) use maps::{VERSION_AT, free_version};
pub use page::GRANTS_PER_PAGE_MAX;
pub use refused::{GrantError, ReturnError};
pub use swept::{CutUp, Holder, Settled};

/// Chunks granted in one answer: a session asks again long before it is through with 64 MiB.
pub const CHUNKS_PER_GRANT_MAX: u16 = 64;
/// Bytes of one answer's grants, as [`grant_bytes`] counts them: the message around them is far shorter than the rest.
const GRANT_BYTES_MAX: usize = FRAME_BYTES_MAX - 1024;

/// One part in this many is kept for deletes.
const RESERVE_SHARE: u64 = 32;
/// The reserve has at most so many chunks.
const RESERVE_CHUNKS_MAX: u64 = 64;
/// Pools with fewer chunks than this have no reserve: it would be half of them.
const RESERVE_POOL_CHUNKS_MIN: u64 = 3;

/// Ownerless chunks that are looked at for one grant while there is fresh memory too: a look is at 16 KiB at the most.
const LOOKS_MAX: usize = 4;
/// The same when there is none: some milliseconds.
const LAST_LOOKS_MAX: usize = 512;
/// An ownerless chunk is worth adopting if one block in so many is free, while there is fresh memory.
const FREE_SHARE: u32 = 16;
/// Memory is short if less than one part in this many is free.
const SHORT_SHARE: u64 = 16;
/// Ownerless chunks that are looked at in one go when memory is taken back; the pool is locked meanwhile.
const RECLAIM_LOOKS: usize = 64;

/// Who has a piece of the pool's memory.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Owner {
    /// A session.
    Session(SessionId),
    /// Nobody yet: a session gave it back, and others may not have noticed. Free, or ownerless, when the epoch `target` is
    /// quiesced.
    Returned { target: u64, empty: bool },
    /// The last session to use it is gone, and which of its blocks are free is not known.
    Orphan,
    /// Nobody. Which blocks are free is known.
    Ownerless,
}

#[derive(Clone, Debug)]
struct Grant {
    class: SizeClass,
    owner: Owner,
    /// Which grant of the pool it is: another one after the memory was granted again.
    serial: u64,
    /// The version of each block's last use, as in [`ChunkGrant::versions`]; kept while it has no session.
    versions: Vec<u8>,
}

/// What a session holds.
#[derive(Debug, Default)]
struct Held {
    bytes: u64,
    chunks: BTreeSet<u64>,
}

/// The block pool of one region.
#[derive(Debug)]
pub struct BlockPool {
    free: FreeRuns,
    reserve: FreeRuns,
    /// Memory before this belongs to the reserve.
    reserve_end: u64,
    maps: Maps,
    grants: BTreeMap<u64, Grant>,
    /// Chunks that can be adopted, by class.
    ownerless: BTreeMap<SizeClass, BTreeSet<u64>>,
    /// Where the next look for one to adopt begins, by class, so that all get their turn.
    looked_until: HashMap<SizeClass, u64>,
    /// Chunks that were given back: what they wait for, where they are, which grant they were. In order of the targets.
    returned: VecDeque<(u64, u64, u64)>,
    /// What each session holds, so that its end costs what it held.
    held: HashMap<SessionId, Held>,
    quota_bytes: u64,
    accounts: PoolAccounts,
    last_serial: u64,
    /// The newest grant of a chunk with blocks in it.
    last_adopted: u64,
    /// Counts the changes, so that pages of a list can be told to be of one moment.
    revision: u64,
}

impl BlockPool {
    /// All of a fresh region's pool, whose bytes are `words`. A session may hold `quota_bytes`.
    pub fn new(geometry: &Geometry, quota_bytes: Option<u64>, words: WordMemory) -> Self {
        let (start, bytes) = (geometry.block_pool_offset, geometry.block_pool_bytes);
        let reserve_bytes = reserve_end(geometry) - start.0;
        Self {
            reserve: FreeRuns::of(start, reserve_bytes),
            free: FreeRuns::of(start.plus(reserve_bytes), bytes - reserve_bytes),
            reserve_end: start.0 + reserve_bytes,
            maps: Maps::of(words),
            grants: BTreeMap::new(),
            ownerless: BTreeMap::new(),
            looked_until: HashMap::new(),
            returned: VecDeque::new(),
            held: HashMap::new(),
            quota_bytes: quota_bytes.unwrap_or(u64::MAX),
            accounts: PoolAccounts { pool_bytes: bytes, ..PoolAccounts::default() },
            last_serial: 0,
            last_adopted: 0,
            revision: 0,
        }
    }

    /// Takes a chunk of a kept region into the books: nobody's, with these versions. `false` if its memory is not free: then
    /// it laps over another, and nothing was changed.
    pub fn take_over(&mut self, offset: u64, class: SizeClass, versions: Vec<u8>) -> bool {
        let bytes = chunk_shape(class).bytes;
        let runs = if offset < self.reserve_end { &mut self.reserve } else { &mut self.free };
        if !runs.take_at(Offset(offset), bytes) {
            return false;
        }
        let grant = Grant { class, owner: Owner::Ownerless, serial: 0, versions };
        self.grants.insert(offset, grant);
        self.accounts.ownerless.add(bytes);
        self.ownerless.entry(class).or_default().insert(offset);
        true
    }

    /// Grants `session` up to `count` chunks (or extents) of a class, at least one and no more than a message holds. While
    /// memory is short it is one: what a session asks for ahead of its need may be what another one lacks.
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
        let longest_bytes = grant_bytes(shape.block_count as usize);
        let mut granted: Vec<ChunkGrant> = Vec::new();
        let mut message_bytes = 0;
        let count_max = if self.is_short() { 1 } else { CHUNKS_PER_GRANT_MAX };
        for _ in 0..count.min(count_max) {
            if message_bytes + longest_bytes > GRANT_BYTES_MAX {
                break;
            }
            // Out of the reserve no more than one at a time, whatever is asked: it is everybody's.
            let purpose = if granted.is_empty() { purpose } else { ChunkPurpose::General };
            match self.grant_one(session, class, shape, purpose) {
                Ok(grant) => {
                    message_bytes += grant_bytes(grant.versions.len());
                    granted.push(grant);
                }
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
        let Some(offset) = self.find(class, shape, purpose) else {
            return Err(GrantError::OutOfMemory {
                asked_bytes: shape.bytes,
                block_bytes: class.bytes(),
                free_bytes: self.free.free_bytes(),
                pool_bytes: self.accounts.pool_bytes,
                reserve_bytes: self.reserve.free_bytes(),
            });
        };
        self.last_serial += 1;
        let serial = self.last_serial;
        self.set_owner(offset, Owner::Session(session));
        let Some(grant) = self.grants.get_mut(&offset) else { unreachable!("{offset:#x} was just found") };
        grant.serial = serial;
        let versions = std::mem::take(&mut grant.versions);
        if !versions.is_empty() {
            self.last_adopted = serial;
        }
        Ok(ChunkGrant { offset, class: class.index(), versions })
    }

    /// Memory for a grant: an ownerless chunk worth having, else fresh memory, else any ownerless chunk with a free block,
    /// and for deletes what the reserve has. Fresh memory is cut up for the class, as an ownerless chunk.
    fn find(&mut self, class: SizeClass, shape: ChunkShape, purpose: ChunkPurpose) -> Option<u64> {
        let (worth_it, any) = ((shape.block_count / FREE_SHARE).max(1), 1);
        let outside = self.reserve_end..u64::MAX;
        if let Some(offset) = self.adoptable(class, outside.clone(), LOOKS_MAX, worth_it) {
            return Some(offset);
        }
        if let Some(offset) = self.free.take(shape) {
            return Some(self.cut(offset, class, shape));
        }
        if let Some(offset) = self.adoptable(class, outside, LAST_LOOKS_MAX, any) {
            return Some(offset);
        }
        if purpose != ChunkPurpose::Delete {
            return None;
        }
        if let Some(offset) = self.adoptable(class, 0..self.reserve_end, LAST_LOOKS_MAX, any) {
            return Some(offset);
        }
        let offset = self.reserve.take(shape)?;
        Some(self.cut(offset, class, shape))
    }

    /// An ownerless chunk in `range` with at least `wanted` free blocks, among the next `looks`.
    fn adoptable(
        &mut self,
        class: SizeClass,
        range: std::ops::Range<u64>,
        looks: usize,
        wanted: u32,
    ) -> Option<u64> {
        let chunks = self.ownerless.get(&class)?;
        let start = self.looked_until.get(&class).map_or(range.start, |until| until + 1);
        let start = start.clamp(range.start, range.end);
        let in_turn = chunks.range(start..range.end).chain(chunks.range(range.start..start));
        let mut last = None;
        let found = in_turn.take(looks).copied().find(|&offset| {
            last = Some(offset);
            let grant = self.grants.get(&offset);
            grant.is_some_and(|grant| self.maps.has_free(Offset(offset), class, &grant.versions, wanted))
        });
        if let Some(last) = last {
            self.looked_until.insert(class, last);
        }
        found
    }

    /// Cuts memory up for a class.
    fn cut(&mut self, offset: Offset, class: SizeClass, shape: ChunkShape) -> u64 {
        self.maps.clear(offset, class);
        let grant = Grant { class, owner: Owner::Ownerless, serial: 0, versions: Vec::new() };
        let replaced = self.grants.insert(offset.0, grant);
        assert!(replaced.is_none(), "{offset} was free and is cut up: {replaced:?}");
        self.accounts.ownerless.add(shape.bytes);
        self.ownerless.entry(class).or_default().insert(offset.0);
        offset.0
    }

    /// Takes chunks back from `session`: all of them, or none. What was returned is somebody else's once the epoch is
    /// quiesced that `target` gives; it is asked for only if the chunks are taken.
    ///
    /// # Errors
    /// [`ReturnError`] names the first that isn't what it claims to be.
    pub fn return_chunks(
        &mut self,
        session: SessionId,
        chunks: Vec<ReturnedChunk>,
        target: impl FnOnce() -> u64,
    ) -> Result<(), ReturnError> {
        if chunks.len() > ReturnedChunk::COUNT_MAX {
            return Err(ReturnError::TooMany { count: chunks.len() });
        }
        let mut seen = BTreeSet::new();
        for chunk in &chunks {
            self.check_returned(session, chunk)?;
            if !seen.insert(chunk.offset) {
                return Err(ReturnError::Twice { offset: chunk.offset });
            }
        }
        if chunks.is_empty() {
            return Ok(());
        }
        let target = target();
        for ReturnedChunk { offset, versions, empty } in chunks {
            let Some(grant) = self.grants.get_mut(&offset) else { unreachable!("{offset:#x} was checked") };
            grant.versions = versions;
            self.returned.push_back((target, offset, grant.serial));
            self.set_owner(offset, Owner::Returned { target, empty });
        }
        Ok(())
    }

    fn check_returned(&self, session: SessionId, chunk: &ReturnedChunk) -> Result<(), ReturnError> {
        let offset = chunk.offset;
        let grant = self.grants.get(&offset).filter(|grant| grant.owner == Owner::Session(session));
        let grant = grant.ok_or(ReturnError::NotGranted { offset })?;
        let block_count = chunk_shape(grant.class).block_count;
        let count = chunk.versions.len();
        if count > block_count as usize {
            return Err(ReturnError::Versions { offset, count, block_count });
        }
        if chunk.empty
            && let Some((block, mark, version)) =
                self.maps.first_in_use(Offset(offset), grant.class, &chunk.versions)
        {
            return Err(ReturnError::NotEmpty { offset, block, mark, version });
        }
        Ok(())
    }

    /// The session is over, and nothing of it can take effect any more. What it still held waits for a sweep; returns how
    /// many chunks that is.
    pub fn end_session(&mut self, session: SessionId) -> usize {
        let Some(held) = self.held.get_mut(&session) else { return 0 };
        let chunks = std::mem::take(&mut held.chunks);
        for &offset in &chunks {
            self.set_owner(offset, Owner::Orphan);
        }
        self.held.remove(&session);
        chunks.len()
    }

    /// Every session has acknowledged the epoch `quiesced`: what waited for it is free or can be adopted. Returns how many
    /// chunks that is.
    pub fn recycle(&mut self, quiesced: u64) -> usize {
        let mut count = 0;
        while let Some(&(target, offset, serial)) = self.returned.front()
            && target <= quiesced
        {
            self.returned.pop_front();
            let grant = self.grants.get(&offset).filter(|grant| grant.serial == serial);
            // A sweep may have found it empty before.
            let Some(&Grant { owner: Owner::Returned { empty, .. }, .. }) = grant else { continue };
            count += 1;
            if empty {
                self.free(offset);
            } else {
                self.set_owner(offset, Owner::Ownerless);
            }
        }
        count
    }

    /// Takes back ownerless chunks from `from` on that have only free blocks, once the epoch `target` is quiesced: until
    /// then somebody may still read them. Looks at some and returns where to go on; `None` behind the last one.
    pub fn reclaim(&mut self, from: u64, target: u64) -> Option<u64> {
        let looked_at: Vec<u64> = self
            .grants
            .range(from..)
            .filter(|(_, grant)| grant.owner == Owner::Ownerless)
            .take(RECLAIM_LOOKS)
            .map(|(offset, _)| *offset)
            .collect();
        for &offset in &looked_at {
            let Some(grant) = self.grants.get(&offset) else { continue };
            if self.maps.first_in_use(Offset(offset), grant.class, &grant.versions).is_none() {
                self.returned.push_back((target, offset, grant.serial));
                self.set_owner(offset, Owner::Returned { target, empty: true });
            }
        }
        (looked_at.len() == RECLAIM_LOOKS).then(|| looked_at.last().map_or(0, |last| last + 1))
    }

    /// The sums.
    pub const fn accounts(&self) -> PoolAccounts {
        PoolAccounts {
            free_bytes: self.free.free_bytes(),
            reserve_bytes: self.reserve.free_bytes(),
            ..self.accounts
        }
    }

    /// Whether so little is free that idle sessions should give back what they don't need.
    pub const fn is_short(&self) -> bool {
        self.free.free_bytes() < self.accounts.pool_bytes / SHORT_SHARE
    }

    /// The newest grant.
    pub const fn last_serial(&self) -> u64 {
        self.last_serial
    }

    /// The newest grant of a chunk that somebody else had before, with blocks in it.
    pub const fn last_adopted(&self) -> u64 {
        self.last_adopted
    }

    /// Which grant the chunk at `offset` is, if it is `session`'s.
    pub fn serial_of(&self, session: SessionId, offset: u64) -> Option<u64> {
        let grant = self.grants.get(&offset)?;
        (grant.owner == Owner::Session(session)).then_some(grant.serial)
    }

    /// Gives a cut-up chunk another owner: the only place where owners change, so all books change together.
    fn set_owner(&mut self, offset: u64, owner: Owner) {
        self.revision += 1;
        let Some(grant) = self.grants.get_mut(&offset) else { unreachable!("{offset:#x} is not cut up") };
        let (class, bytes) = (grant.class, chunk_shape(grant.class).bytes);
        self.accounts.share(&grant.owner).remove(bytes);
        self.accounts.share(&owner).add(bytes);
        let before = std::mem::replace(&mut grant.owner, owner.clone());
        match before {
            Owner::Session(session) => {
                if let Some(held) = self.held.get_mut(&session) {
                    held.bytes -= bytes;
                    held.chunks.remove(&offset);
                }
            }
            Owner::Ownerless => {
                self.ownerless.entry(class).or_default().remove(&offset);
            }
            Owner::Returned { .. } | Owner::Orphan => {}
        }
        match owner {
            Owner::Session(session) => {
                let held = self.held.entry(session).or_default();
                held.bytes += bytes;
                held.chunks.insert(offset);
            }
            Owner::Ownerless => {
                self.ownerless.entry(class).or_default().insert(offset);
            }
            Owner::Returned { .. } | Owner::Orphan => {}
        }
    }

    /// A chunk of nobody is of no class any more.
    fn free(&mut self, offset: u64) {
        // By way of the one place where the books of owners change.
        self.set_owner(offset, Owner::Orphan);
        let Some(grant) = self.grants.remove(&offset) else { unreachable!("{offset:#x} is not cut up") };
        let bytes = chunk_shape(grant.class).bytes;
        self.accounts.orphan.remove(bytes);
        let runs = if offset < self.reserve_end { &mut self.reserve } else { &mut self.free };
        runs.give_back(Offset(offset), bytes);
    }
}

/// Where the reserve ends, which begins where the pool does.
pub const fn reserve_end(geometry: &Geometry) -> u64 {
    let chunks = geometry.block_pool_bytes / CHUNK_BYTES;
    let share = chunks / RESERVE_SHARE;
    let reserve_chunks = if chunks < RESERVE_POOL_CHUNKS_MIN {
        0
    } else if share < 1 {
        1
    } else if share > RESERVE_CHUNKS_MAX {
        RESERVE_CHUNKS_MAX
    } else {
        share
    };
    geometry.block_pool_offset.0 + reserve_chunks * CHUNK_BYTES
}

/// Bytes of a grant with so many versions in a message, generously.
const fn grant_bytes(version_count: usize) -> usize {
    version_count + 32
}

#[cfg(test)]
mod tests;
