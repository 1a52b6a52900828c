//! The pool against a model that knows nothing but who owns which byte.

use std::collections::BTreeMap;
use std::ptr::NonNull;

use sidestep_common::layout::{BlockPlace, PAGE_UNIT_BYTES, Version};
use sidestep_common::wire::{Response, decode, encode};

use super::*;

const A: SessionId = SessionId(1);
const B: SessionId = SessionId(2);

/// A region's memory. It must outlive the pools that are made of it.
pub(super) struct Bed {
    pub(super) geometry: Geometry,
    pub(super) words: WordMemory,
    _memory: Vec<u64>,
}

impl Bed {
    pub(super) fn new(region_bytes: u64) -> Self {
        let mut memory = vec![0_u64; region_bytes as usize / 8];
        let base = NonNull::new(memory.as_mut_ptr().cast()).unwrap();
        // SAFETY: the vector is kept beside the words, and each test keeps the bed to its end.
        let words = unsafe { WordMemory::new(base, region_bytes) };
        Self { geometry: Geometry::for_region(region_bytes).unwrap(), words, _memory: memory }
    }

    pub(super) fn pool(&self, quota_bytes: Option<u64>) -> BlockPool {
        BlockPool::new(&self.geometry, quota_bytes, self.words)
    }

    /// Marks a block free, as whoever unlinked it does.
    fn mark(&self, grant: &ChunkGrant, block: u64, version: u8) {
        self.words.write(Offset(grant.offset + block), &[version]).unwrap();
    }

    fn map(&self, offset: u64, blocks: usize) -> Vec<u8> {
        let mut map = vec![0; blocks];
        self.words.read(Offset(offset), &mut map).unwrap();
        map
    }
}

fn class(bytes: u64) -> u8 {
    SizeClass::holding(bytes).unwrap().index()
}

fn block_count(grant: &ChunkGrant) -> u32 {
    chunk_shape(SizeClass::from_index(grant.class).unwrap()).block_count
}

fn give_back(grant: &ChunkGrant, versions: Vec<u8>, empty: bool) -> ReturnedChunk {
    ReturnedChunk { offset: grant.offset, versions, empty }
}

fn take_back(pool: &mut BlockPool, session: SessionId, chunk: ReturnedChunk, target: u64) {
    pool.return_chunks(session, vec![chunk], || target).unwrap();
}

fn one(pool: &mut BlockPool, session: SessionId, bytes: u64) -> ChunkGrant {
    pool.grant(session, class(bytes), 1, ChunkPurpose::General).unwrap().remove(0)
}

/// A chunk with blocks in it changes hands once everybody knows, with the versions of its blocks, and only within its class.
#[test]
fn returned_chunks_are_adopted_by_the_next_that_asks_for_the_class() {
    let bed = Bed::new(64 << 20);
    let mut pool = bed.pool(None);
    let granted = one(&mut pool, A, 200);
    assert!(granted.versions.is_empty(), "it is fresh");
    let versions = vec![7; block_count(&granted) as usize / 2];
    (0..versions.len() as u64 / 2).for_each(|block| bed.mark(&granted, block, 7));
    take_back(&mut pool, A, give_back(&granted, versions.clone(), false), 5);
    assert_eq!((pool.accounts().returned.chunks, pool.accounts().session.chunks), (1, 0));
    assert_eq!(pool.recycle(4), 0);
    assert_ne!(one(&mut pool, B, 200).offset, granted.offset, "not before everybody knows");
    assert_eq!(pool.recycle(5), 1);
    assert_eq!(pool.accounts().ownerless.chunks, 1);
    assert_ne!(one(&mut pool, B, 500).offset, granted.offset);
    let again = one(&mut pool, B, 200);
    assert_eq!(again, ChunkGrant { versions, ..granted });
    assert!(pool.return_chunks(A, vec![give_back(&again, vec![], false)], || 9).is_err(), "it is B's");
}

/// Empty memory is of no class: what another class left where the map will be is gone when it is granted.
#[test]
fn empty_chunks_serve_any_class() {
    let bed = Bed::new(4 << 20);
    let mut pool = bed.pool(None);
    let free_bytes = pool.accounts().free_bytes;
    let mut all = Vec::new();
    while let Ok(granted) = pool.grant(A, class(64), 1, ChunkPurpose::General) {
        all.extend(granted);
    }
    for grant in &all {
        let versions: Vec<u8> = (0..block_count(grant)).map(|block| (block % 251) as u8).collect();
        bed.words.write(Offset(grant.offset), &versions).unwrap();
        take_back(&mut pool, A, give_back(grant, versions, true), 3);
    }
    assert!(pool.grant(B, class(3000), 1, ChunkPurpose::General).is_err());
    assert_eq!(pool.recycle(3), all.len());
    assert_eq!((pool.accounts().free_bytes, pool.accounts().granted_bytes()), (free_bytes, 0));
    let other = one(&mut pool, B, 3000);
    assert!(other.versions.is_empty());
    assert!(bed.map(other.offset, block_count(&other) as usize).iter().all(|byte| *byte == 0));
}

/// A client may claim anything: the pool believes only what agrees with its own books and with the maps.
#[test]
fn lies_about_returned_chunks_are_refused_and_change_nothing() {
    let bed = Bed::new(64 << 20);
    let mut pool = bed.pool(None);
    let of_a = pool.grant(A, class(200), 2, ChunkPurpose::General).unwrap();
    let of_b = one(&mut pool, B, 200);
    let before = pool.accounts();
    let count = block_count(&of_a[0]) as usize;
    let good = give_back(&of_a[0], vec![1], false);
    for (lie, word) in [
        (vec![give_back(&of_b, vec![], false)], "no chunk at"),
        (vec![ReturnedChunk { offset: of_a[0].offset + 64, versions: vec![], empty: false }], "no chunk at"),
        (vec![ReturnedChunk { offset: u64::MAX, versions: vec![], empty: true }], "0xffffffffffffffff"),
        (vec![give_back(&of_a[0], vec![0; count + 1], false)], "blocks"),
        (vec![give_back(&of_a[0], vec![0, 0, 1], true)], "block 2 in its use 1"),
        (vec![good.clone(), good.clone()], "twice"),
        (vec![good.clone(), give_back(&of_b, vec![], false)], "no chunk at"),
        (vec![good.clone(); 4], "4 chunks"),
    ] {
        let error = pool.return_chunks(A, lie.clone(), || unreachable!()).unwrap_err().to_string();
        assert!(error.contains(word), "{lie:?}: {error}");
    }
    assert_eq!(pool.accounts(), before);
    take_back(&mut pool, A, good.clone(), 2);
    assert!(matches!(pool.return_chunks(A, vec![good], || 3), Err(ReturnError::NotGranted { .. })));
}

/// What a session still held is for the sweep. A block that the index reaches goes on in its use; one that was in hand, or
/// unlinked without a mark, is free in a use that nobody can have heard of; one that was free or never used is so still, and
/// costs no mark: a dead session's chunks have millions of them.
#[test]
fn an_ended_sessions_chunk_is_swept() {
    let bed = Bed::new(64 << 20);
    let mut pool = bed.pool(None);
    let granted = pool.grant(A, class(200), 2, ChunkPurpose::General).unwrap();
    let class = SizeClass::from_index(granted[0].class).unwrap();
    let header = |block: u32, version: u8| {
        let chunk = Offset(granted[0].offset);
        let place = BlockPlace { chunk, index: block }.block(class, Version(version));
        bed.words.write(place.offset.plus(18), &[version]).unwrap();
    };
    header(0, 9); // published
    header(1, 9); // in hand
    header(2, 9); // free: marked with the same
    header(3, 9); // in hand again, after a use that was marked with 10 as its versions came round
    bed.mark(&granted[0], 2, 9);
    bed.mark(&granted[0], 3, 10);
    assert_eq!(pool.end_session(A), 2);
    assert_eq!((pool.end_session(A), pool.accounts().orphan.chunks), (0, 2));
    assert_ne!(one(&mut pool, B, 200).offset, granted[0].offset);
    let chunks: Vec<_> = pool.cut_up().into_iter().filter(|chunk| chunk.holder == Holder::Orphan).collect();
    assert_eq!(chunks.len(), 2);
    let reached = |block| (block == 0).then_some(Version(9));
    assert_eq!(pool.settle(&chunks[0], reached), Settled::Ownerless { found: 2 });
    assert_eq!(pool.settle(&chunks[1], |_| None), Settled::Free);
    assert_eq!(pool.settle(&chunks[1], |_| None), Settled::Changed, "it is gone");
    assert_eq!(pool.accounts().swept_total, 2);
    let adopted = one(&mut pool, B, 200);
    assert_eq!(adopted.offset, granted[0].offset);
    assert_eq!(adopted.versions, [9, 10, 9, 11], "the others were never used");
    assert_eq!(bed.map(adopted.offset, 5), [0, 10, 9, 11, 0]);
}

/// Somebody unlinked a block of a chunk that has no owner and did not live to mark it: the sweep marks it in its stead.
#[test]
fn lost_blocks_of_chunks_without_an_owner_are_found() {
    let bed = Bed::new(64 << 20);
    let mut pool = bed.pool(None);
    let granted = pool.grant(A, class(200), 3, ChunkPurpose::General).unwrap();
    for grant in &granted {
        take_back(&mut pool, A, give_back(grant, vec![4, 4, 4], false), 2);
    }
    pool.recycle(2);
    let listed = pool.cut_up();
    assert!(listed.iter().all(|chunk| chunk.holder == Holder::Nobody));
    bed.mark(&granted[0], 1, 4);
    let reached = |block| (block == 0).then_some(Version(4));
    assert_eq!(pool.settle(&listed[0], reached), Settled::Ownerless { found: 1 });
    assert_eq!(bed.map(granted[0].offset, 4), [0, 4, 4, 0]);
    assert_eq!(pool.settle(&listed[1], |_| None), Settled::Free);
    // The third one is adopted before the sweep comes to it.
    let adopted = pool.grant(B, class(200), 2, ChunkPurpose::General).unwrap();
    assert!(adopted.iter().any(|grant| grant.offset == granted[2].offset));
    assert_eq!(pool.settle(&listed[2], |_| None), Settled::Changed);
    assert_eq!(pool.accounts().session.chunks, 2);
}

/// Chunks with nothing free are nobody's first choice, but one free block is better than a refusal.
#[test]
fn ownerless_chunks_are_adopted_for_what_is_free_in_them() {
    let bed = Bed::new(4 << 20);
    let mut pool = bed.pool(None);
    let first = one(&mut pool, A, 64);
    let versions = vec![1; block_count(&first) as usize];
    take_back(&mut pool, A, give_back(&first, versions.clone(), false), 2);
    pool.recycle(2);
    let fresh = one(&mut pool, B, 64);
    assert_ne!(fresh.offset, first.offset, "it has no free block");
    bed.mark(&first, 16_000, 1);
    while pool.grant(B, class(3000), 1, ChunkPurpose::General).is_ok() {}
    assert_eq!(one(&mut pool, B, 64), ChunkGrant { versions, ..first });
    assert!(pool.grant(B, class(64), 1, ChunkPurpose::General).is_err());
}

/// All blocks of an ownerless chunk became free: any class can have it, once nobody can read them any more.
#[test]
fn ownerless_chunks_that_became_empty_are_taken_back() {
    let bed = Bed::new(64 << 20);
    let mut pool = bed.pool(None);
    let granted = pool.grant(A, class(200), 2, ChunkPurpose::General).unwrap();
    for grant in &granted {
        take_back(&mut pool, A, give_back(grant, vec![1; 3], false), 2);
    }
    pool.recycle(2);
    (0..3).for_each(|block| bed.mark(&granted[1], block, 1));
    assert_eq!(pool.reclaim(0, 3), None);
    assert_eq!((pool.accounts().returned.chunks, pool.accounts().ownerless.chunks), (1, 1));
    assert_eq!((pool.recycle(2), pool.recycle(3)), (0, 1));
    assert_eq!((pool.accounts().granted_bytes(), pool.accounts().ownerless.chunks), (CHUNK_BYTES, 1));
}

#[test]
fn deletes_have_a_reserve_that_nobody_else_gets() {
    let bed = Bed::new(4 << 20);
    let mut pool = bed.pool(None);
    let reserve_bytes = pool.accounts().reserve_bytes;
    assert_eq!(reserve_bytes, CHUNK_BYTES);
    while pool.grant(A, class(64), 1, ChunkPurpose::General).is_ok() {}
    let error = pool.grant(A, class(64), 1, ChunkPurpose::General).unwrap_err();
    let message = error.to_string();
    assert!(message.contains("1048576") && message.contains("kept for deletes"), "{message}");
    assert!(pool.grant(A, class(1 << 20), 1, ChunkPurpose::General).is_err());
    let last = pool.grant(A, class(100), 1, ChunkPurpose::Delete).unwrap().remove(0);
    assert!(matches!(
        pool.grant(A, class(100), 1, ChunkPurpose::Delete),
        Err(GrantError::OutOfMemory { reserve_bytes: 0, .. })
    ));
    assert!(matches!(
        pool.grant(A, class(2000), 1, ChunkPurpose::Delete),
        Err(GrantError::NotForDeletes { block_bytes: 2048, .. })
    ));
    // It comes back with blocks in it: still for deletes only. It comes back empty: it is the reserve again.
    take_back(&mut pool, A, give_back(&last, vec![1], false), 2);
    pool.recycle(2);
    assert!(pool.grant(B, class(100), 1, ChunkPurpose::General).is_err());
    let again = pool.grant(B, class(100), 1, ChunkPurpose::Delete).unwrap().remove(0);
    assert_eq!(again, ChunkGrant { versions: vec![1], ..last });
    take_back(&mut pool, B, give_back(&again, vec![0], true), 3);
    pool.recycle(3);
    assert_eq!(pool.accounts().reserve_bytes, reserve_bytes);
    assert!(pool.grant(B, class(64), 1, ChunkPurpose::General).is_err());
}

/// However many chunks a session asks for, it gets one of the reserve at a time.
#[test]
fn nobody_takes_the_whole_reserve_at_once() {
    let bed = Bed::new(128 << 20);
    let mut pool = bed.pool(None);
    assert_eq!(pool.accounts().reserve_bytes, 3 * CHUNK_BYTES);
    while pool.grant(A, class(64), 1, ChunkPurpose::General).is_ok() {}
    assert_eq!(pool.grant(A, class(64), 64, ChunkPurpose::Delete).unwrap().len(), 1);
    assert_eq!(pool.grant(B, class(64), 64, ChunkPurpose::Delete).unwrap().len(), 1);
    assert_eq!(pool.accounts().reserve_bytes, CHUNK_BYTES);
}

#[test]
fn quotas_and_nonsense() {
    let bed = Bed::new(64 << 20);
    let mut pool = bed.pool(Some(3 * CHUNK_BYTES));
    let granted = pool.grant(A, class(64), 10, ChunkPurpose::General).unwrap();
    assert_eq!(granted.len(), 3);
    let error = pool.grant(A, class(64), 1, ChunkPurpose::General).unwrap_err();
    assert!(error.to_string().contains("3145728"), "{error}");
    take_back(&mut pool, A, give_back(&granted[0], vec![], true), 2);
    assert!(pool.grant(A, class(64), 1, ChunkPurpose::General).is_ok(), "what was given back does not count");
    assert_eq!(pool.grant(B, class(64), 1, ChunkPurpose::General).unwrap().len(), 1);
    assert_eq!(pool.grant(B, class(64), 0, ChunkPurpose::General), Err(GrantError::Count));
    let beyond = SizeClass::COUNT as u8;
    assert_eq!(pool.grant(B, beyond, 1, ChunkPurpose::General), Err(GrantError::Class { class: beyond }));
    assert!(pool.grant(B, 255, 1, ChunkPurpose::General).is_err());
}

/// What is asked for ahead is granted as long as there is plenty.
#[test]
fn short_memory_is_granted_a_chunk_at_a_time() {
    let bed = Bed::new(256 << 20);
    let mut pool = bed.pool(None);
    assert!(!pool.is_short());
    assert_eq!(pool.grant(A, class(64), 8, ChunkPurpose::General).unwrap().len(), 8);
    while !pool.is_short() {
        one(&mut pool, A, 64);
    }
    assert_eq!(pool.grant(B, class(64), 8, ChunkPurpose::General).unwrap().len(), 1);
}

/// However many chunks with however many blocks: the answer is a message.
#[test]
fn grants_fit_a_message() {
    let bed = Bed::new(256 << 20);
    for bytes in [64, 128, 1000, 100 << 10] {
        let mut pool = bed.pool(None);
        let granted = pool.grant(A, class(bytes), 64, ChunkPurpose::General).unwrap();
        for grant in &granted {
            let versions = (0..block_count(grant)).map(|block| block as u8 | 1).collect();
            take_back(&mut pool, A, give_back(grant, versions, false), 2);
        }
        pool.recycle(2);
        let again = pool.grant(B, class(bytes), 64, ChunkPurpose::General).unwrap();
        assert!(!again.is_empty());
        let message = Response::Chunks(again);
        assert_eq!(decode::<Response>(&encode(&message).unwrap()).unwrap(), message);
    }
}

/// Sessions come, take, return and go at random, and sweeps come between. No block ever has two owners, everything lies in
/// the pool, the sums add up after every step, and in the end all comes back. A failure prints its seed.
#[test]
fn no_block_ever_has_two_owners() {
    for seed in 1..=40_u64 {
        random_life(seed);
    }
}

fn random_life(seed: u64) {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mut random = move |below: u64| {
        state = state.wrapping_mul(0xd134_2543_de82_ef95).wrapping_add(1);
        (state >> 33) % below
    };
    let bed = Bed::new((8 + 4 * seed) << 20);
    let (geometry, mut pool) = (bed.geometry, bed.pool(None));
    let fresh = pool.accounts();
    let pool_end = geometry.block_pool_offset.0 + geometry.block_pool_bytes;
    let mut sessions: BTreeMap<SessionId, Vec<ChunkGrant>> = BTreeMap::new();
    let (mut next_session, mut epoch) = (1, 1);
    for step in 0..400 {
        match random(10) {
            0 => {
                sessions.insert(SessionId(next_session), Vec::new());
                next_session += 1;
            }
            1..=4 => {
                let Some((&session, held)) = sessions.iter_mut().nth(random(4) as usize) else { continue };
                let class = random(SizeClass::COUNT as u64) as u8;
                let purpose = if random(4) == 0 { ChunkPurpose::Delete } else { ChunkPurpose::General };
                let granted = pool.grant(session, class, 1 + random(3) as u16, purpose).unwrap_or_default();
                for grant in &granted {
                    let shape = chunk_shape(SizeClass::from_index(grant.class).unwrap());
                    assert!(grant.offset >= geometry.block_pool_offset.0);
                    assert!(grant.offset + shape.bytes <= pool_end);
                    assert_eq!(grant.offset % shape.align_bytes, 0);
                    if grant.versions.is_empty() {
                        let map = bed.map(grant.offset, shape.block_count as usize);
                        assert!(map.iter().all(|byte| *byte == 0), "seed {seed} step {step}: {grant:?}");
                    }
                }
                held.extend(granted);
            }
            5 | 6 => {
                let Some((&session, held)) = sessions.iter_mut().nth(random(4) as usize) else { continue };
                let Some(grant) = held.pop() else { continue };
                let empty = random(2) == 0;
                let versions: Vec<u8> = (0..block_count(&grant)).map(|_| 1 + random(255) as u8).collect();
                // The map of an empty one says so; that of another one says that a half is free.
                let marked = versions.len() / if empty { 1 } else { 2 };
                bed.words.write(Offset(grant.offset), &versions[..marked]).unwrap();
                take_back(&mut pool, session, give_back(&grant, versions, empty), epoch + 1);
            }
            7 => {
                let Some((&session, _)) = sessions.iter().nth(random(4) as usize) else { continue };
                let held = sessions.remove(&session).unwrap();
                assert_eq!(pool.end_session(session), held.len(), "seed {seed} step {step}");
            }
            8 => {
                epoch += 1;
                pool.recycle(epoch);
            }
            _ => {
                let reached = random(3);
                for chunk in pool.cut_up().iter().filter(|chunk| chunk.holder != Holder::Session) {
                    pool.settle(chunk, |block| (u64::from(block) < reached).then_some(Version(3)));
                }
                pool.reclaim(0, epoch + 1);
            }
        }
        let accounts = pool.accounts();
        let shares = [accounts.session, accounts.returned, accounts.orphan, accounts.ownerless];
        let sum: u64 = shares.iter().map(|share| share.bytes).sum();
        assert_eq!(sum, accounts.granted_bytes());
        assert_eq!(
            accounts.free_bytes + accounts.reserve_bytes + sum,
            accounts.pool_bytes,
            "seed {seed} step {step}"
        );
        assert_eq!(shares.map(|share| share.chunks).iter().sum::<u64>() as usize, pool.cut_up().len());
        assert_eq!(accounts.free_bytes % PAGE_UNIT_BYTES, 0);
        overlap_free(&sessions, seed, step);
    }
    for session in std::mem::take(&mut sessions).into_keys() {
        pool.end_session(session);
    }
    for chunk in pool.cut_up() {
        pool.settle(&chunk, |_| None);
    }
    pool.recycle(u64::MAX);
    let end = PoolAccounts { swept_total: 0, ..pool.accounts() };
    assert_eq!(end, fresh, "seed {seed}");
}

/// What living sessions hold never overlaps.
fn overlap_free(sessions: &BTreeMap<SessionId, Vec<ChunkGrant>>, seed: u64, step: u64) {
    let mut held: Vec<(u64, u64)> = sessions
        .values()
        .flatten()
        .map(|grant| {
            (grant.offset, grant.offset + chunk_shape(SizeClass::from_index(grant.class).unwrap()).bytes)
        })
        .collect();
    held.sort_unstable();
    for pair in held.windows(2) {
        assert!(pair[0].1 <= pair[1].0, "seed {seed} step {step}: {pair:x?}");
    }
}
