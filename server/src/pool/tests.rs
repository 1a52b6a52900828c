//! The pool against a model that knows nothing but who owns which byte.

use std::collections::BTreeMap;

use sidestep_common::layout::PAGE_UNIT_BYTES;

use super::*;

const A: SessionId = SessionId(1);
const B: SessionId = SessionId(2);

fn pool(region_bytes: u64) -> (Geometry, BlockPool) {
    let geometry = Geometry::for_region(region_bytes).unwrap();
    (geometry, BlockPool::new(&geometry, None))
}

fn class(bytes: u64) -> u8 {
    SizeClass::holding(bytes).unwrap().index()
}

fn tail(grant: &ChunkGrant, first_index: u32) -> ChunkTail {
    ChunkTail { offset: grant.offset, first_index }
}

#[test]
fn tails_of_clean_sessions_go_to_the_next_that_asks_for_the_class() {
    let (_, mut pool) = pool(64 << 20);
    let granted = pool.grant(A, class(200), 1, ChunkPurpose::General).unwrap()[0];
    assert_eq!((granted.first_index, granted.version), (0, 1));
    pool.return_tails(A, &[tail(&granted, 17)]).unwrap();
    let meanwhile = pool.grant(B, class(200), 1, ChunkPurpose::General).unwrap()[0];
    assert_ne!(meanwhile.offset, granted.offset, "not before the session has ended");
    pool.end_session(A, true);
    let other_class = pool.grant(B, class(500), 1, ChunkPurpose::General).unwrap()[0];
    assert_ne!(other_class.offset, granted.offset);
    let again = pool.grant(B, class(200), 1, ChunkPurpose::General).unwrap()[0];
    assert_eq!(again, ChunkGrant { first_index: 17, ..granted });
}

#[test]
fn without_a_clean_end_everything_stays_granted() {
    let (_, mut pool) = pool(64 << 20);
    let granted = pool.grant(A, class(200), 2, ChunkPurpose::General).unwrap();
    pool.return_tails(A, &[tail(&granted[0], 1)]).unwrap();
    pool.end_session(A, false);
    assert_eq!(pool.accounts().left_behind_chunks, 2);
    let fresh = pool.grant(B, class(200), 1, ChunkPurpose::General).unwrap()[0];
    assert!(granted.iter().all(|old| old.offset != fresh.offset));
}

/// A client may claim anything: the pool believes only what agrees with its own books.
#[test]
fn lies_about_tails_are_refused_and_change_nothing() {
    let (_, mut pool) = pool(64 << 20);
    let of_a = pool.grant(A, class(200), 2, ChunkPurpose::General).unwrap();
    let of_b = pool.grant(B, class(200), 1, ChunkPurpose::General).unwrap()[0];
    let before = pool.accounts();
    let count = of_a[0].block_count;
    for lie in [
        vec![tail(&of_b, 0)],
        vec![ChunkTail { offset: of_a[0].offset + 64, first_index: 0 }],
        vec![ChunkTail { offset: u64::MAX, first_index: 0 }],
        vec![tail(&of_a[0], count + 1)],
        vec![tail(&of_a[0], u32::MAX)],
        vec![tail(&of_a[0], 3), tail(&of_a[0], 3)],
        vec![tail(&of_a[0], 3), tail(&of_b, 0)],
    ] {
        assert!(pool.return_tails(A, &lie).is_err(), "{lie:?}");
    }
    assert_eq!(pool.accounts(), before);
    pool.return_tails(A, &[tail(&of_a[0], 3)]).unwrap();
    assert!(matches!(pool.return_tails(A, &[tail(&of_a[0], 5)]), Err(ReturnError::Twice { .. })));
    pool.end_session(A, true);
    let again = pool.grant(B, class(200), 1, ChunkPurpose::General).unwrap()[0];
    assert_eq!(again.first_index, 3);
    assert!(
        matches!(pool.return_tails(B, &[tail(&again, 2)]), Err(ReturnError::Index { granted_index: 3, .. })),
        "the first three blocks are another session's"
    );
}

#[test]
fn deletes_have_a_reserve_that_nobody_else_gets() {
    let (_, mut pool) = pool(4 << 20);
    let reserve_bytes = pool.accounts().reserve_bytes;
    assert_eq!(reserve_bytes, CHUNK_BYTES);
    while pool.grant(A, class(64), 1, ChunkPurpose::General).is_ok() {}
    let error = pool.grant(A, class(64), 1, ChunkPurpose::General).unwrap_err();
    let message = error.to_string();
    assert!(message.contains("1048576") && message.contains("kept for deletes"), "{message}");
    assert!(pool.grant(A, class(1 << 20), 1, ChunkPurpose::General).is_err());
    assert!(pool.grant(A, class(100), 1, ChunkPurpose::Delete).is_ok());
    assert!(matches!(
        pool.grant(A, class(100), 1, ChunkPurpose::Delete),
        Err(GrantError::OutOfMemory { reserve_bytes: 0, .. })
    ));
    assert!(matches!(
        pool.grant(A, class(2000), 1, ChunkPurpose::Delete),
        Err(GrantError::NotForDeletes { block_bytes: 2048, .. })
    ));
}

/// However many chunks a session asks for, it gets one of the reserve at a time.
#[test]
fn nobody_takes_the_whole_reserve_at_once() {
    let (_, mut pool) = pool(128 << 20);
    assert_eq!(pool.accounts().reserve_bytes, 3 * CHUNK_BYTES);
    while pool.grant(A, class(64), 1, ChunkPurpose::General).is_ok() {}
    assert_eq!(pool.grant(A, class(64), 64, ChunkPurpose::Delete).unwrap().len(), 1);
    assert_eq!(pool.grant(B, class(64), 64, ChunkPurpose::Delete).unwrap().len(), 1);
    assert_eq!(pool.accounts().reserve_bytes, CHUNK_BYTES);
}

#[test]
fn quotas_and_nonsense() {
    let geometry = Geometry::for_region(64 << 20).unwrap();
    let mut pool = BlockPool::new(&geometry, Some(3 * CHUNK_BYTES));
    assert_eq!(pool.grant(A, class(64), 10, ChunkPurpose::General).unwrap().len(), 3);
    let error = pool.grant(A, class(64), 1, ChunkPurpose::General).unwrap_err();
    assert!(error.to_string().contains("3145728"), "{error}");
    assert_eq!(pool.grant(B, class(64), 1, ChunkPurpose::General).unwrap().len(), 1);
    assert_eq!(pool.grant(B, class(64), 0, ChunkPurpose::General), Err(GrantError::Count));
    let beyond = SizeClass::COUNT as u8;
    assert_eq!(pool.grant(B, beyond, 1, ChunkPurpose::General), Err(GrantError::Class { class: beyond }));
    assert!(pool.grant(B, 255, 1, ChunkPurpose::General).is_err());
}

/// Sessions come, take, return and go at random. No block ever has two owners, everything lies in the pool, and
/// the sums add up after every step. A failure prints its seed.
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
    let (geometry, mut pool) = pool((8 + 4 * seed) << 20);
    let pool_end = geometry.block_pool_offset.0 + geometry.block_pool_bytes;
    // Every block that was ever handed to a session for use: its bytes, and whose.
    let mut blocks: BTreeMap<u64, u64> = BTreeMap::new();
    let mut sessions: BTreeMap<SessionId, Vec<ChunkGrant>> = BTreeMap::new();
    let mut next_session = 1;
    for step in 0..400 {
        match random(8) {
            0 => {
                sessions.insert(SessionId(next_session), Vec::new());
                next_session += 1;
            }
            1..=5 => {
                let Some((&session, held)) = sessions.iter_mut().nth(random(4) as usize) else { continue };
                let class = random(SizeClass::COUNT as u64) as u8;
                let purpose = if random(4) == 0 { ChunkPurpose::Delete } else { ChunkPurpose::General };
                let granted = pool.grant(session, class, 1 + random(3) as u16, purpose).unwrap_or_default();
                for grant in &granted {
                    let shape = chunk_shape(SizeClass::from_index(grant.class).unwrap());
                    assert!(grant.first_index < grant.block_count, "seed {seed} step {step}: {grant:?}");
                    assert!(grant.offset >= geometry.block_pool_offset.0);
                    assert!(grant.offset + shape.bytes <= pool_end);
                    assert_eq!(grant.offset % shape.align_bytes, 0);
                }
                held.extend(granted);
            }
            _ => {
                let Some((&session, _)) = sessions.iter().nth(random(4) as usize) else { continue };
                let held = sessions.remove(&session).unwrap();
                let clean = random(3) > 0;
                let mut tails = Vec::new();
                for grant in &held {
                    let class = SizeClass::from_index(grant.class).unwrap();
                    let used = random(u64::from(grant.block_count - grant.first_index) + 1) as u32;
                    let end = if clean { grant.first_index + used } else { grant.block_count };
                    // The whole used range as one interval: the model needs no single blocks.
                    if end > grant.first_index {
                        let first = grant.offset
                            + chunk_shape(class).blocks_offset
                            + u64::from(grant.first_index) * class.bytes();
                        let bytes = u64::from(end - grant.first_index) * class.bytes();
                        let before = blocks.range(..first + bytes).next_back();
                        assert!(
                            before.is_none_or(|(start, length)| start + length <= first),
                            "seed {seed} step {step}: {grant:?} overlaps {before:x?}"
                        );
                        blocks.insert(first, bytes);
                    }
                    tails.push(tail(grant, end));
                }
                if clean {
                    pool.return_tails(session, &tails).unwrap();
                }
                pool.end_session(session, clean);
            }
        }
        let accounts = pool.accounts();
        assert_eq!(
            accounts.free_bytes + accounts.reserve_bytes + accounts.granted_bytes,
            accounts.pool_bytes,
            "seed {seed} step {step}"
        );
        assert_eq!(accounts.free_bytes % PAGE_UNIT_BYTES, 0);
        overlap_free(&sessions, seed, step);
    }
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
