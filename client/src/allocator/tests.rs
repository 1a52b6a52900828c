//! Each rule of a session's block memory by itself.

use std::collections::HashSet;

use ChunkPurpose::{Delete, General};
use sidestep_common::fabric::Reply;
use sidestep_common::layout::{SlotState, free_map_offset};
use sidestep_common::wire::{AuditedChunk, Pulse, ReturnedChunk};

use super::*;
use crate::operation::tests::world::{Actor, Answer, Call, World, alone, perform};
use crate::operation::{Operation, Step};

const GRACE_MS: u64 = 1000;

fn grant(class: SizeClass, offset: u64) -> ChunkGrant {
    ChunkGrant { offset, class: class.index(), versions: Vec::new() }
}

fn geometry() -> Geometry {
    Geometry::for_region(64 << 20).unwrap()
}

/// A world with one session, and a class of which a chunk has nine blocks only.
fn small() -> (World, Actor, SizeClass, Vec<u8>) {
    let class = SizeClass::holding(100 << 10).unwrap();
    (World::new(), Actor::new(1), class, vec![7; 100 << 10])
}

fn put(world: &mut World, actor: &mut Actor, key: &[u8], value: &[u8]) {
    assert_eq!(alone(world, actor, Call::Put(key, value)).0, Answer::Stored);
}

fn harvest(world: &mut World, actor: &mut Actor, class: SizeClass) -> Option<u32> {
    let mut harvest = actor.allocator.harvest((class, General), due_since_ms(GRACE_MS, world.now_ms))?;
    Some(perform(world, actor, &mut harvest).unwrap())
}

fn block_of(world: &World, key: &[u8]) -> BlockRef {
    let words = world.slot_words(key);
    let SlotState::Live(block) = words[0].state() else { panic!("{words:?}") };
    block
}

#[test]
fn each_block_is_handed_out_once() {
    let class = SizeClass::holding(64 << 10).unwrap();
    let pool = geometry().block_pool_offset.0;
    let mut allocator = Allocator::new();
    assert_eq!(allocator.allocate(class, General), None);
    allocator.add(&geometry(), &grant(class, pool), General).unwrap();
    allocator.add(&geometry(), &grant(class, pool + (1 << 20)), General).unwrap();
    let mut seen = HashSet::new();
    while let Some(block) = allocator.allocate(class, General) {
        assert!(seen.insert(block.offset), "{block:?} twice");
        assert_eq!(block.version, Version::FIRST);
    }
    assert_eq!(seen.len(), 2 * chunk_shape(class).block_count as usize);
    let unpublished = BlockPlace { chunk: Offset(pool), index: 3 }.block(class, Version::FIRST);
    allocator.give_back(unpublished);
    assert_eq!(allocator.allocate(class, General), Some(unpublished));
    allocator.published(unpublished);
    allocator.give_back(unpublished);
    assert_eq!(allocator.allocate(class, General), None, "it was published");
}

#[test]
fn what_is_for_deletes_is_for_nothing_else() {
    let class = SizeClass::holding(64).unwrap();
    let pool = geometry().block_pool_offset.0;
    let mut allocator = Allocator::new();
    allocator.add(&geometry(), &grant(class, pool), Delete).unwrap();
    assert_eq!(allocator.allocate(class, General), None);
    let block = allocator.allocate(class, Delete).unwrap();
    allocator.give_back(block);
    assert_eq!(allocator.allocate(class, General), None);
    assert_eq!(allocator.allocate(class, Delete), Some(block));
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
    let (asked, found) = (class.index(), other.index());
    assert_eq!(add(&chunks(other)[..1]), Err(GrantError::Class { class: asked, found, offset: pool }));
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
    let blocks = chunk_shape(class).block_count as usize;
    let bad = [
        ChunkGrant { offset: 0, ..good.clone() },
        ChunkGrant { offset: pool + 64, ..good.clone() },
        ChunkGrant { offset: u64::MAX - 5, ..good.clone() },
        ChunkGrant { offset: 64 << 20, ..good.clone() },
        ChunkGrant { class: 200, ..good.clone() },
        ChunkGrant { versions: vec![0; blocks + 1], ..good.clone() },
    ];
    let mut allocator = Allocator::new();
    for grant in bad {
        let error = allocator.add(&geometry(), &grant, General).unwrap_err();
        assert!(matches!(error, GrantError::Impossible { .. }), "{grant:?}: {error}");
    }
    assert_eq!(allocator.allocate(class, General), None);
    allocator.add(&geometry(), &good, General).unwrap();
    // The same again, and an extent in its midst.
    let extent = grant(SizeClass::holding(200 << 10).unwrap(), pool + (512 << 10));
    for grant in [good, extent] {
        let error = allocator.add(&geometry(), &grant, General).unwrap_err();
        assert!(matches!(error, GrantError::Twice { .. }), "{error}");
    }
}

/// A value is overwritten; the owner reads the map, waits, and uses the memory in its next version.
#[test]
pub(crate) fn a_freed_block_is_used_again_after_the_grace_period() {
    let (mut world, mut actor, class, value) = small();
    world.now_ms = 5_000;
    put(&mut world, &mut actor, b"k", &value);
    let first = block_of(&world, b"k");
    assert_eq!(harvest(&mut world, &mut actor, class), Some(0), "it is in use");
    put(&mut world, &mut actor, b"k", &value);
    assert_eq!(harvest(&mut world, &mut actor, class), None, "its map was just read");
    world.now_ms += GRACE_MS;
    assert_eq!(harvest(&mut world, &mut actor, class), Some(1));
    while actor.allocator.allocate(class, General).is_some() {}
    for (late_ms, is_free) in [(0, false), (GRACE_MS, false), (GRACE_MS + 1, true)] {
        let now_ms = world.now_ms + late_ms;
        assert_eq!(actor.allocator.ripen(class, General, GRACE_MS, now_ms), is_free, "{late_ms}");
    }
    let again = actor.allocator.allocate(class, General).unwrap();
    assert_eq!(again, BlockRef { version: Version(2), ..first });
    assert_eq!(actor.allocator.allocate(class, General), None);
}

/// A block in its second use, whose map says that the first one ended, is in use. Only the mark of this use frees it.
#[test]
pub(crate) fn an_old_mark_frees_nothing() {
    let (mut world, mut actor, class, value) = small();
    put(&mut world, &mut actor, b"k", &value);
    put(&mut world, &mut actor, b"k", &value);
    let mut uses = 0;
    for _ in 0..3 {
        world.now_ms += GRACE_MS + 1;
        harvest(&mut world, &mut actor, class);
        world.now_ms += GRACE_MS + 1;
        actor.allocator.ripen(class, General, GRACE_MS, world.now_ms);
        put(&mut world, &mut actor, b"k", &value);
        let block = block_of(&world, b"k");
        uses += u32::from(block.version != Version::FIRST);
        let mut mark = [0];
        world.memory.read(free_map_offset(block).unwrap(), &mut mark).unwrap();
        assert_ne!(mark[0], block.version.0);
        assert!(
            actor.allocator.chunks.iter().all(|chunk| (0..chunk.shape.block_count).all(|index| chunk
                .block(index, 0)
                .offset
                != block.offset
                || chunk.in_use.has(index))),
            "{block:?} is in use"
        );
        world.now_ms += GRACE_MS;
        let before = actor.allocator.chunks.iter().map(|chunk| chunk.ripening).sum::<u32>();
        harvest(&mut world, &mut actor, class);
        let ripening = actor.allocator.chunks.iter().map(|chunk| chunk.ripening).sum::<u32>();
        assert!(ripening - before <= 1, "only what was overwritten ripens");
        let in_use = actor.allocator.chunks.iter().map(|chunk| chunk.in_use.iter().count()).sum::<usize>();
        assert_eq!(in_use, 1, "and what the key's slot names does not");
    }
    assert!(uses > 0, "no block was used again");
}

/// A block that lives through as many uses as there are versions would be taken for what it was. Without an epoch that
/// everybody acknowledges it is not used so often; with one it goes on.
#[test]
pub(crate) fn versions_do_not_come_round_between_two_epochs() {
    let (mut world, mut actor, class, value) = small();
    world.grant(&mut actor, class, General);
    let mut taken = Vec::new();
    while let Some(block) = actor.allocator.allocate(class, General) {
        taken.push(block);
    }
    taken.drain(1..).for_each(|block| actor.allocator.published(block));
    actor.allocator.give_back(taken[0]);
    let (mut uses, mut versions) = (0, HashSet::new());
    let mut one_use = |world: &mut World, actor: &mut Actor| {
        actor.allocator.ripen(class, General, GRACE_MS, world.now_ms);
        let Some(block) = actor.allocator.allocate(class, General) else { return false };
        actor.allocator.give_back(block);
        put(world, actor, b"k", &value);
        alone(world, actor, Call::Delete(b"k"));
        uses += 1;
        if uses <= 255 {
            assert!(versions.insert(block_version(world, block)), "a version came round");
        }
        world.now_ms += GRACE_MS;
        harvest(world, actor, class);
        world.now_ms += GRACE_MS + 1;
        true
    };
    let mut count = 0;
    while one_use(&mut world, &mut actor) {
        count += 1;
        assert!(count < 256, "used {count} times between two epochs");
    }
    assert!(count > 200, "{count}");
    assert!(actor.allocator.wants_epoch());
    // Two epochs, each raised after the count began and quiesced: whatever began before is over.
    for (epoch, now_ms) in [(5, 10), (7, 30)] {
        let hear = |actor: &mut Actor, epoch, quiesced, asked_ms| {
            actor.allocator.hear(&Pulse { epoch, quiesced, ..Pulse::default() }, asked_ms, now_ms);
        };
        hear(&mut actor, epoch, 1, Some(now_ms - 9));
        hear(&mut actor, epoch + 1, epoch, Some(now_ms - 8));
        assert!(!one_use(&mut world, &mut actor), "epoch {epoch} was the newest before");
        hear(&mut actor, epoch + 1, epoch + 1, None);
    }
    assert!(!actor.allocator.wants_epoch());
    world.now_ms += GRACE_MS;
    harvest(&mut world, &mut actor, class);
    world.now_ms += GRACE_MS + 1;
    assert!(one_use(&mut world, &mut actor));
}

fn block_version(world: &World, block: BlockRef) -> u8 {
    let mut header = [0; 24];
    world.memory.read(block.offset, &mut header).unwrap();
    header[18]
}

/// An operation may begin early in one period and end late in the next: the uses of both count.
#[test]
fn the_uses_of_two_periods_count() {
    let (mut world, mut actor, class, _) = small();
    world.grant(&mut actor, class, General);
    let allocator = &mut actor.allocator;
    let set = |allocator: &mut Allocator, reuses| {
        allocator.chunks.iter_mut().for_each(|chunk| chunk.reuses = reuses)
    };
    set(allocator, [200, 0]);
    let reuses = |allocator: &Allocator| allocator.chunks.iter().next().unwrap().reuses;
    let pulse = |epoch| Pulse { epoch, quiesced: epoch, ..Pulse::default() };
    allocator.hear(&pulse(3), None, 50);
    allocator.hear(&pulse(9), None, 60);
    assert_eq!(reuses(allocator), [200, 0], "said unasked, perhaps long ago");
    allocator.hear(&pulse(9), Some(70), 80);
    allocator.hear(&pulse(10), None, 90);
    assert_eq!(reuses(allocator), [0, 200]);
    allocator.hear(&pulse(11), Some(90), 100);
    allocator.hear(&pulse(12), None, 110);
    assert_eq!(reuses(allocator), [0, 200], "asked for before the period began");
    assert!(allocator.wants_epoch());
    set(allocator, [100, 200]);
    assert!(!reuse::may_reuse([100, 200]));
}

/// A block in limbo whose CAS took effect, and which was overwritten since, is found by its mark.
#[test]
fn a_mark_ends_limbo() {
    let (mut world, mut actor, class, value) = small();
    put(&mut world, &mut actor, b"k", &value);
    let block = block_of(&world, b"k");
    put(&mut world, &mut actor, b"k", &value);
    // As if the first put had never heard of its CAS.
    let spot = Spot { chunk: 0, index: 0 };
    actor.allocator.hands.push(Hand { spot, offset: block.offset, before: 0 });
    assert!(actor.allocator.take_returns(Give::All, 9).is_empty(), "a block of it is in limbo");
    world.now_ms += GRACE_MS;
    assert_eq!(harvest(&mut world, &mut actor, class), Some(1));
    assert!(actor.allocator.hands.is_empty());
}

/// Whoever unlinked a block died before marking it. An audit doesn't reach it: its owner writes the mark, and the block
/// ripens from then on. What the audit reached stays, and so does what was handed out after the audit was announced.
#[test]
pub(crate) fn what_an_audit_does_not_reach_is_reclaimed() {
    let (mut world, mut actor, class, value) = small();
    put(&mut world, &mut actor, b"k", &value);
    let lost = block_of(&world, b"k");
    put(&mut world, &mut actor, b"k", &value);
    let (place, _) = world.marks.pop().unwrap();
    world.memory.write(place, &[0]).unwrap();
    put(&mut world, &mut actor, b"limbo", &value);
    let limbo = actor.allocator.allocate(class, General).unwrap();
    actor.allocator.note_audit(4);
    let chunks = actor.allocator.audited_chunks(4);
    assert_eq!((chunks.len(), actor.allocator.audited_chunks(3).len()), (1, 0));
    // Handed out after, so that the scan may have come too early for it.
    let later = block_after(&mut world, &mut actor, &value);
    world.now_ms = 10_000;
    let reached = |index: u32| AuditedChunk { offset: chunks[0], reached: vec![1 << index] };
    let audited = [AuditedChunk { offset: chunks[0], reached: vec![0b0000_0110] }, reached(0)];
    assert_eq!(BlockPlace::of(lost.offset, class).unwrap().index, 0);
    actor.allocator.learn_audit(3, &audited);
    assert!(actor.allocator.reclaim().is_none(), "of another audit");
    actor.allocator.learn_audit(4, &audited);
    let mut reclaim = actor.allocator.reclaim().expect("two blocks are not reached");
    // The auditor knows of one block unlinked and not marked; the other's mark is of what was never published.
    world.audit_off();
    assert_eq!(perform(&mut world, &mut actor, &mut reclaim), Ok(2));
    for block in [lost, limbo] {
        let mut mark = [0];
        world.memory.read(free_map_offset(block).unwrap(), &mut mark).unwrap();
        assert_eq!(mark[0], block.version.0, "the mark is made up for");
    }
    let index = BlockPlace::of(later.offset, class).unwrap().index;
    assert!(actor.allocator.chunks.iter().any(|chunk| chunk.in_use.has(index)), "it was in hand");
    assert!(actor.allocator.hands.is_empty());
    while actor.allocator.allocate(class, General).is_some() {}
    assert!(!actor.allocator.ripen(class, General, GRACE_MS, world.now_ms + GRACE_MS));
    assert!(actor.allocator.ripen(class, General, GRACE_MS, world.now_ms + GRACE_MS + 1));
}

/// One that is published after the audit was announced.
fn block_after(world: &mut World, actor: &mut Actor, value: &[u8]) -> BlockRef {
    put(world, actor, b"later", value);
    block_of(world, b"later")
}

/// A block that was freed in the usual way and used again while the audit went on is in another use.
#[test]
fn an_audit_says_nothing_of_later_uses() {
    let (mut world, mut actor, class, value) = small();
    put(&mut world, &mut actor, b"k", &value);
    actor.allocator.note_audit(1);
    let chunks = actor.allocator.audited_chunks(1);
    put(&mut world, &mut actor, b"k", &value);
    world.now_ms = GRACE_MS;
    assert_eq!(harvest(&mut world, &mut actor, class), Some(1));
    let audited = [AuditedChunk { offset: chunks[0], reached: vec![0] }];
    actor.allocator.learn_audit(1, &audited);
    assert!(actor.allocator.reclaim().is_none());
}

/// An operation waits at its start, with a block that it has written: what it publishes behind the audit's scan is not taken for
/// lost, while a block in limbo beside it is.
#[test]
fn a_block_that_is_held_is_not_audited() {
    let (mut world, mut actor, class, _) = small();
    world.grant(&mut actor, class, General);
    let limbo = actor.allocator.allocate(class, General).unwrap();
    let held = actor.allocator.allocate(class, General).unwrap();
    actor.allocator.hold(Some(held));
    actor.allocator.note_audit(1);
    actor.allocator.hold(None);
    actor.allocator.published(held);
    let chunks = actor.allocator.audited_chunks(1);
    let audited = [AuditedChunk { offset: chunks[0], reached: vec![] }];
    actor.allocator.learn_audit(1, &audited);
    let mut reclaim = actor.allocator.reclaim().expect("the one in limbo");
    world.audit_off();
    assert_eq!(perform(&mut world, &mut actor, &mut reclaim), Ok(1));
    let byte = |block| {
        let mut mark = [0];
        world.memory.read(free_map_offset(block).unwrap(), &mut mark).unwrap();
        mark[0]
    };
    assert_eq!((byte(limbo), byte(held)), (limbo.version.0, 0));
}

/// A chunk with blocks that nobody names and nobody marked, as an audit finds them.
fn unreached(blocks: u32) -> (World, Actor, SizeClass, u64) {
    let class = SizeClass::holding(10 << 10).unwrap();
    let (mut world, mut actor) = (World::new(), Actor::new(1));
    world.grant(&mut actor, class, General);
    for _ in 0..blocks {
        let block = actor.allocator.allocate(class, General).unwrap();
        actor.allocator.published(block);
    }
    world.audit_off();
    let offset = world.granted[0].offset;
    (world, actor, class, offset)
}

/// An audit is done and the next one is announced before its result is there: both results count, each for what was in use at
/// its own beginning.
#[test]
fn the_next_audit_does_not_hide_the_last() {
    let (mut world, mut actor, class, offset) = unreached(2);
    actor.allocator.note_audit(1);
    let later = actor.allocator.allocate(class, General).unwrap();
    actor.allocator.published(later);
    assert_eq!(actor.allocator.audited_chunks(1), [offset]);
    actor.allocator.note_audit(2);
    let mut reclaimed = |actor: &mut Actor, number| {
        actor.allocator.learn_audit(number, &[AuditedChunk { offset, reached: Vec::new() }]);
        let reclaim = actor.allocator.reclaim();
        reclaim.map_or(0, |mut reclaim| perform(&mut world, actor, &mut reclaim).unwrap())
    };
    assert_eq!(reclaimed(&mut actor, 1), 2);
    assert_eq!(reclaimed(&mut actor, 2), 1, "what was reclaimed is not found again");
    assert_eq!(actor.allocator.chunks.iter().map(|chunk| chunk.snapshots.len()).sum::<usize>(), 0);
}

/// Time ran out in the midst of a reclaim. What it did not come to is reclaimed by the next one; until then the chunk stays.
#[test]
fn a_reclaim_cut_short_is_gone_on_with() {
    let (mut world, mut actor, class, offset) = unreached(50);
    actor.allocator.note_audit(1);
    actor.allocator.learn_audit(1, &[AuditedChunk { offset, reached: Vec::new() }]);
    let mut reclaim = actor.allocator.reclaim().unwrap();
    let Step::Post(plan) = reclaim.step(&mut world.context(&mut actor), &[]) else {
        panic!("nothing to write")
    };
    let replies: Vec<Reply> = plan.iter().map(|verb| world.execute(verb, (&[], &[]))).collect();
    let Step::Post(rest) = reclaim.step(&mut world.context(&mut actor), &replies) else {
        panic!("50 at once")
    };
    drop(reclaim);
    assert!(actor.allocator.take_returns(Give::All, 9).is_empty());
    let mut reclaim = actor.allocator.reclaim().expect("the rest");
    assert_eq!(perform(&mut world, &mut actor, &mut reclaim), Ok(rest.len() as u32));
    assert!(actor.allocator.reclaim().is_none());
    let ripening: u32 = actor.allocator.chunks.iter().map(|chunk| chunk.ripening).sum();
    assert_eq!(ripening, 50);
    assert!(actor.allocator.ripe_ms(class, General, GRACE_MS).is_some());
    assert!(!actor.allocator.take_returns(Give::All, 9).is_empty());
}

/// All that a reclaim finds in a chunk is one use more, however many blocks those are; where no use more is allowed it waits
/// for an epoch.
#[test]
fn a_reclaim_is_one_use_of_each_chunk() {
    let (mut world, mut actor, _, offset) = unreached(50);
    actor.allocator.note_audit(1);
    actor.allocator.learn_audit(1, &[AuditedChunk { offset, reached: Vec::new() }]);
    let set = |actor: &mut Actor, reuses| {
        actor.allocator.chunks.iter_mut().for_each(|chunk| chunk.reuses = reuses);
    };
    set(&mut actor, [reuse::REUSES_MAX, 0]);
    assert!(actor.allocator.reclaim().is_none(), "versions would come round");
    set(&mut actor, [reuse::REUSES_MAX - 1, 0]);
    let mut reclaim = actor.allocator.reclaim().unwrap();
    assert_eq!(perform(&mut world, &mut actor, &mut reclaim), Ok(50));
    let reuses: Vec<_> = actor.allocator.chunks.iter().map(|chunk| chunk.reuses).collect();
    assert_eq!(reuses, [[reuse::REUSES_MAX, 0]]);
    assert!(actor.allocator.wants_epoch());
}

/// Chunks that are empty go back as that, with each block's version; others only when all are wanted, and none with a block
/// in hand. Whoever gets them next finds their blocks by their marks.
#[test]
fn chunks_go_back_with_their_versions() {
    let (mut world, mut actor, class, value) = small();
    put(&mut world, &mut actor, b"k", &value);
    put(&mut world, &mut actor, b"k", &value);
    let offset = world.granted[0].offset;
    assert!(actor.allocator.take_returns(Give::Empty, 9).is_empty(), "a slot names a block of it");
    let hand = actor.allocator.allocate(class, General).unwrap();
    assert!(actor.allocator.take_returns(Give::All, 9).is_empty(), "a block of it is in hand");
    actor.allocator.give_back(hand);
    let returned = actor.allocator.take_returns(Give::All, 9);
    assert_eq!(returned, [ReturnedChunk { offset, versions: vec![1, 1], empty: false }]);
    assert!(!actor.allocator.has_chunks());
    assert_eq!(actor.allocator.allocate(class, General), None);

    let mut next = Actor::new(2);
    let adopted = ChunkGrant { offset, class: class.index(), versions: returned[0].versions.clone() };
    next.allocator.add(&world.superblock.geometry, &adopted, General).unwrap();
    let unused = next.allocator.allocate(class, General).unwrap();
    assert_eq!((BlockPlace::of(unused.offset, class).unwrap().index, unused.version), (2, Version(1)));
    next.allocator.give_back(unused);
    alone(&mut world, &mut next, Call::Delete(b"k"));
    world.now_ms = GRACE_MS;
    assert_eq!(harvest(&mut world, &mut next, class), Some(2));
    assert!(
        next.allocator.take_returns(Give::Empty, 9).iter().all(|chunk| chunk.offset != offset),
        "they ripen"
    );
    next.allocator.ripen(class, General, GRACE_MS, 2 * GRACE_MS + 1);
    let returned = next.allocator.take_returns(Give::Empty, 9);
    assert_eq!(returned, [ReturnedChunk { offset, versions: vec![1, 1], empty: true }]);
}

/// Version 0 means that a block was never used, so none is used with it.
#[test]
fn versions_come_round_past_zero() {
    let class = SizeClass::holding(64).unwrap();
    let pool = geometry().block_pool_offset.0;
    let mut allocator = Allocator::new();
    let adopted = ChunkGrant { versions: vec![255; 3], ..grant(class, pool) };
    allocator.add(&geometry(), &adopted, General).unwrap();
    assert_eq!(following(255), Version(1));
    assert_eq!((following(0), following(7)), (Version(1), Version(8)));
    let unused = allocator.allocate(class, General).unwrap();
    assert_eq!(BlockPlace::of(unused.offset, class).unwrap().index, 3, "the map must tell of the others");
}
