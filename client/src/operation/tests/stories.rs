//! Single stories: costs without contention, collisions, full buckets, corruption.

use sidestep_common::hash::KeyHash;
use sidestep_common::layout::{
    BlockRef, BucketHeader, DirectoryWord, Offset, SizeClass, SlotState, SlotWord, Version, chunk_shape,
};
use sidestep_common::wire::ChunkPurpose::General;

use super::super::OperationError;
use super::world::{Actor, Answer, Call, Running, World, alone, colliding, twin_of_k};

fn value(text: &[u8]) -> Answer {
    Answer::Value(Some(text.to_vec()))
}

/// The contract of the design: round trips and verbs of each operation. The mark of the freed block is the one
/// verb more of an overwrite and a delete that nobody waits for.
#[test]
fn costs_are_those_of_the_contract() {
    let (mut world, mut actor) = (World::new(), Actor::new(1));
    let absent = alone(&mut world, &mut actor, Call::Get(b"k"));
    assert_eq!(absent, (Answer::Value(None), 1, 1), "get, absent");
    assert_eq!(alone(&mut world, &mut actor, Call::Put(b"k", b"one")), (Answer::Stored, 2, 3), "insert");
    assert_eq!(alone(&mut world, &mut actor, Call::Get(b"k")), (value(b"one"), 2, 2), "get, present");
    assert_eq!(
        alone(&mut world, &mut actor, Call::Put(b"k", b"two")),
        (Answer::Stored, 3, 4 + 1),
        "overwrite"
    );
    assert_eq!(alone(&mut world, &mut actor, Call::Get(b"k")), (value(b"two"), 2, 2));
    assert_eq!(
        alone(&mut world, &mut actor, Call::Delete(b"k")),
        (Answer::Existed(true), 3, 4 + 1),
        "delete"
    );
    assert_eq!(alone(&mut world, &mut actor, Call::Delete(b"k")), (Answer::Existed(false), 1, 1));
    assert_eq!(alone(&mut world, &mut actor, Call::Get(b"k")), (Answer::Value(None), 1, 1), "get, deleted");
    assert_eq!(alone(&mut world, &mut actor, Call::Put(b"k", b"three")), (Answer::Stored, 3, 4 + 1), "again");
    assert_eq!(alone(&mut world, &mut actor, Call::Get(b"k")), (value(b"three"), 2, 2));
    assert_eq!(world.slot_words(b"k").iter().filter(|word| **word != SlotWord::EMPTY).count(), 1, "one slot");
}

/// A neighbour that was deleted has another tag, so its block tells a put nothing and is not read.
#[test]
fn a_deleted_neighbour_costs_nothing() {
    let (mut world, mut actor) = (World::new(), Actor::new(1));
    let neighbour = colliding(&world, b"k", 1, false).remove(0);
    alone(&mut world, &mut actor, Call::Put(&neighbour, b"n"));
    alone(&mut world, &mut actor, Call::Delete(&neighbour));
    assert_eq!(alone(&mut world, &mut actor, Call::Put(b"k", b"v")), (Answer::Stored, 2, 3));
}

/// Each block that was unlinked is marked free with the version that was unlinked, exactly there.
#[test]
fn unlinked_blocks_are_marked_with_their_version() {
    let (mut world, mut actor) = (World::new(), Actor::new(1));
    alone(&mut world, &mut actor, Call::Put(b"k", b"one"));
    let SlotState::Live(first) = world.slot_words(b"k")[0].state() else { panic!() };
    alone(&mut world, &mut actor, Call::Put(b"k", b"two"));
    let mut map = [0; 3];
    let chunk = sidestep_common::layout::free_map_offset(first).unwrap();
    world.memory.read(chunk, &mut map).unwrap();
    assert_eq!(map, [1, 0, 0]);
}

/// Two keys with the same bucket and the same tag: the key in the block decides, never the tag.
#[test]
pub(super) fn equal_tags_are_told_apart_by_the_key() {
    let (mut world, mut actor) = (World::new(), Actor::new(1));
    let twin = colliding(&world, b"a", 1, true).remove(0);
    alone(&mut world, &mut actor, Call::Put(b"a", b"A"));
    assert_eq!(alone(&mut world, &mut actor, Call::Get(&twin)).0, Answer::Value(None));
    assert_eq!(alone(&mut world, &mut actor, Call::Delete(&twin)).0, Answer::Existed(false));
    alone(&mut world, &mut actor, Call::Put(&twin, b"B"));
    assert_eq!(alone(&mut world, &mut actor, Call::Get(b"a")).0, value(b"A"));
    assert_eq!(alone(&mut world, &mut actor, Call::Get(&twin)).0, value(b"B"));
    assert_eq!(alone(&mut world, &mut actor, Call::Delete(b"a")).0, Answer::Existed(true));
    assert_eq!(alone(&mut world, &mut actor, Call::Get(&twin)).0, value(b"B"));
    alone(&mut world, &mut actor, Call::Put(b"a", b"A2"));
    assert_eq!(alone(&mut world, &mut actor, Call::Get(b"a")).0, value(b"A2"));
    world.check_bucket(b"a");
}

/// A bucket full of other keys refuses a new one and changes nothing; what is there can be read, overwritten
/// and deleted, and absent keys are answered at once.
#[test]
fn a_full_bucket_refuses_new_keys_only() {
    let (mut world, mut actor) = (World::new(), Actor::new(1));
    let keys = colliding(&world, b"full", 33, false);
    for key in &keys[..31] {
        assert_eq!(alone(&mut world, &mut actor, Call::Put(key, key)).0, Answer::Stored);
    }
    let before = world.slot_words(b"full");
    let full = Answer::Error(OperationError::BucketFull { slots: 31 });
    for key in &keys[31..] {
        assert_eq!(alone(&mut world, &mut actor, Call::Put(key, b"x")).0, full);
        assert_eq!(alone(&mut world, &mut actor, Call::Get(key)), (Answer::Value(None), 1, 1));
    }
    assert_eq!(world.slot_words(b"full"), before, "a refused put changes nothing");
    for key in &keys[..31] {
        assert_eq!(alone(&mut world, &mut actor, Call::Get(key)).0, value(key));
    }
    assert_eq!(alone(&mut world, &mut actor, Call::Put(&keys[30], b"new")).0, Answer::Stored);
    assert_eq!(alone(&mut world, &mut actor, Call::Delete(&keys[0])).0, Answer::Existed(true));
    assert_eq!(alone(&mut world, &mut actor, Call::Put(&keys[0], b"back")).0, Answer::Stored);
    world.check_bucket(b"full");
}

/// The block of a put that a full bucket refuses, and of one that was overwritten before it won, is used by the next one:
/// nothing leaks.
#[test]
pub(super) fn a_block_that_was_not_published_is_used_again() {
    let (mut world, mut actor, mut rival) = (World::new(), Actor::new(1), Actor::new(2));
    let keys = colliding(&world, b"full", 32, false);
    for key in &keys[..31] {
        alone(&mut world, &mut actor, Call::Put(key, b"v"));
    }
    let class = SizeClass::holding(64).unwrap();
    let next = actor.allocator.allocate(class, General).unwrap();
    actor.allocator.give_back(next);
    for _ in 0..5 {
        alone(&mut world, &mut actor, Call::Put(&keys[31], b"v"));
        let mut loses = Running::new(Call::Put(&keys[0], b"v"));
        while loses.pending_cas().is_none() {
            loses.verb(&mut world, &mut actor);
        }
        alone(&mut world, &mut rival, Call::Put(&keys[0], b"rival"));
        while !loses.is_over() {
            loses.verb(&mut world, &mut actor);
        }
        assert_eq!(loses.answer, Some(Answer::Stored));
    }
    assert_eq!(actor.allocator.allocate(class, General), Some(next));
    assert_eq!(world.reports.len(), 5, "each time the server was told");
}

/// A put loses its CAS. To a blind word: it was overwritten the moment it happened, and is done. To a word whose
/// writer read the key first (as counters and compare-and-put will): that writer did not see ours, so it must be
/// written all the same.
#[test]
pub(super) fn a_put_claims_to_be_overwritten_by_blind_words_only() {
    const BLIND: u64 = 1 << 61;
    for (blind, left_behind) in [(true, b"rival"), (false, b"first")] {
        for existed in [true, false] {
            let (mut world, mut actor, mut rival) = (World::new(), Actor::new(1), Actor::new(2));
            if existed {
                alone(&mut world, &mut actor, Call::Put(b"k", b"old"));
            }
            let mut put = Running::new(Call::Put(b"k", b"first"));
            // READ bucket, WRITE block, and READ block of the old value: the CAS is next.
            for _ in 0..2 + u32::from(existed) {
                put.verb(&mut world, &mut actor);
            }
            alone(&mut world, &mut rival, Call::Put(b"k", b"rival"));
            let word = world.slot_words(b"k")[0].bits();
            assert_eq!(word & BLIND, BLIND, "puts are blind");
            world.memory.store(world.slot(b"k", 0), if blind { word } else { word & !BLIND }).unwrap();
            while !put.is_over() {
                put.verb(&mut world, &mut actor);
            }
            assert_eq!(put.answer, Some(Answer::Stored));
            assert_eq!(put.restarts(), u32::from(!blind && existed), "blind {blind}, existed {existed}");
            let found = alone(&mut world, &mut actor, Call::Get(b"k")).0;
            assert_eq!(found, value(left_behind), "blind {blind}, existed {existed}");
        }
    }
}

/// An insert loses its slot. The returned word's tag tells a neighbour, and the next slot is tried at once; only a twin's
/// block is read.
#[test]
fn an_insert_reads_no_block_of_a_rival_with_another_tag() {
    let neighbour = colliding(&World::new(), b"k", 1, false).remove(0);
    for (rival_key, cost) in [(&neighbour[..], (3, 4)), (twin_of_k(), (4, 5))] {
        let (mut world, mut actor, mut rival) = (World::new(), Actor::new(1), Actor::new(2));
        let mut put = Running::new(Call::Put(b"k", b"v"));
        for _ in 0..2 {
            put.verb(&mut world, &mut actor);
        }
        alone(&mut world, &mut rival, Call::Put(rival_key, b"r"));
        while !put.is_over() {
            put.verb(&mut world, &mut actor);
        }
        assert_eq!(put.answer, Some(Answer::Stored));
        assert_eq!((put.round_trips, put.verbs), cost, "against {rival_key:?}");
        world.check_bucket(b"k");
    }
}

/// A bucket serves other keys or is sealed, and its directory word is of an earlier generation than the one that led
/// there, or of the same one and another segment's. No server does that; who believed it would read the two in turns
/// for ever.
#[test]
fn a_directory_that_goes_back_is_a_typed_error() {
    let key: &[u8] = b"k";
    for (sealed, segment, generation) in
        [(false, 0, 0), (true, 0, 0), (false, 1, 1), (true, 1, 1), (false, 0, 1)]
    {
        let (mut world, mut actor) = (World::new(), Actor::new(1));
        alone(&mut world, &mut actor, Call::Put(key, b"v"));
        let geometry = world.superblock.geometry;
        let index = KeyHash::of(key, super::world::SEED).directory_index(geometry.directory_bits);
        let known = world.directory.word(index);
        assert_eq!(known.generation, 1);
        let word = DirectoryWord { segment: known.segment ^ segment, generation, ..known };
        world.memory.store(geometry.directory_word_offset(index), word.to_bits()).unwrap();
        let header = Offset(world.slot(key, 0).0 - 8);
        let served = BucketHeader::from_bits(world.memory.load(header).unwrap());
        let prefix = if sealed { served.prefix } else { served.prefix ^ 1 };
        world.memory.store(header, BucketHeader { sealed, prefix, ..served }.to_bits()).unwrap();
        for call in [Call::Get(key), Call::Put(key, b"w"), Call::Delete(key)] {
            let mut running = Running::new(call);
            for _ in 0..20 {
                if running.is_over() {
                    break;
                }
                running.verb(&mut world, &mut actor);
            }
            if word == known {
                // A rebuild that has not published its segment looks like this: the call waits.
                assert_eq!(running.answer, None, "{call:?}");
                continue;
            }
            let Some(Answer::Error(error)) = running.answer else { panic!("{call:?}: {:?}", running.answer) };
            assert!(matches!(error, OperationError::Corrupt { .. }), "{call:?}: {error}");
            assert!(running.verbs <= 3, "{call:?} took {} verbs", running.verbs);
        }
    }
}

/// Words that no correct client writes: a typed error, or an answer that is true all the same; never a verb
/// outside the block pool, and never an endless loop.
#[test]
fn corruption_is_a_typed_error() {
    let (mut world, mut actor) = (World::new(), Actor::new(1));
    alone(&mut world, &mut actor, Call::Put(b"k", b"v"));
    let (slot, good) = (world.slot(b"k", 0), world.slot_words(b"k")[0]);
    let SlotState::Live(block) = good.state() else { panic!() };
    let outside = BlockRef { offset: sidestep_common::layout::Offset(64), ..block };
    let shifted =
        BlockRef { offset: block.offset.plus(64 * 20_000), class: SizeClass::holding(128).unwrap(), ..block };
    let unfit = BlockRef { version: Version(9), ..block };
    for bad in [
        1,
        SlotWord::live(good.tag(), outside, true).bits(),
        SlotWord::live(good.tag(), shifted, true).bits(),
        SlotWord::live(good.tag(), unfit, true).bits(),
        good.bits() | 0x7f << 43,
    ] {
        world.memory.store(slot, bad).unwrap();
        for call in [Call::Get(b"k"), Call::Put(b"k", b"w"), Call::Delete(b"k")] {
            let (answer, ..) = alone(&mut world, &mut actor, call);
            let is_corrupt = matches!(answer, Answer::Error(OperationError::Corrupt { .. }));
            assert!(is_corrupt, "{bad:#x} {call:?}: {answer:?}");
        }
    }
}

/// A CAS is answered with a word that names a place where no block can be. Whoever took it for the next expected word
/// would free that "block" with a WRITE into whatever lies there, such as the superblock.
#[test]
fn a_damaged_word_that_a_swap_meets_is_not_followed() {
    for call in [Call::Put(b"k", b"w"), Call::Delete(b"k")] {
        let (mut world, mut actor) = (World::new(), Actor::new(1));
        alone(&mut world, &mut actor, Call::Put(b"k", b"v"));
        let good = world.slot_words(b"k")[0];
        let SlotState::Live(block) = good.state() else { panic!() };
        let mut superblock = [0; 4096];
        world.memory.read(Offset(0), &mut superblock).unwrap();
        let mut running = Running::new(call);
        // Up to the CAS, which has been asked for and not executed.
        for _ in 0..3 {
            running.verb(&mut world, &mut actor);
        }
        let outside = BlockRef { offset: Offset(chunk_shape(block.class).blocks_offset), ..block };
        // Not blind, so that nobody may claim to have been overwritten by it.
        let bad = SlotWord::live(good.tag(), outside, false);
        world.memory.store(world.slot(b"k", 0), bad.bits()).unwrap();
        while !running.is_over() {
            running.verb(&mut world, &mut actor);
        }
        let is_corrupt = matches!(running.answer, Some(Answer::Error(OperationError::Corrupt { .. })));
        assert!(is_corrupt, "{call:?}: {:?}", running.answer);
        let mut after = [0; 4096];
        world.memory.read(Offset(0), &mut after).unwrap();
        assert!(after == superblock, "{call:?} wrote into the superblock");
    }
}
