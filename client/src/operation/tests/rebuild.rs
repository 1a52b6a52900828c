//! Operations while their segment is rebuilt, by a janitor of which only the words are here.
//!
//! Always true: the words change in the order that the design gives: seal the slots, build the new bucket, seal the header,
//! publish the directory word, unseal.

use sidestep_common::hash::KeyHash;
use sidestep_common::layout::{BucketHeader, DirectoryWord, Offset, SLOTS_PER_BUCKET, SlotState, SlotWord};

use super::world::{Actor, Answer, Call, Running, SEED, World, alone, colliding};
use crate::directory::Directory;

/// The rebuild of one key's segment into another of the pool. Of its buckets only the key's has any words.
struct Rebuild {
    index: u64,
    old: DirectoryWord,
    new: DirectoryWord,
    from: Offset,
    to: Offset,
}

impl Rebuild {
    fn new(world: &World, key: &[u8]) -> Self {
        let geometry = world.superblock.geometry;
        let hash = KeyHash::of(key, SEED);
        let index = hash.directory_index(geometry.directory_bits);
        let old = world.directory.word(index);
        let segment = (old.segment + 1) % geometry.segment_count as u32;
        let new = DirectoryWord { segment, generation: old.generation + 1, ..old };
        let bucket = |word| geometry.bucket_offset(word, hash).unwrap();
        Self { index, old, new, from: bucket(old), to: bucket(new) }
    }

    /// LIVE becomes MOVED; EMPTY and DELETED become CLOSED.
    fn seal(&self, world: &World, slots: impl IntoIterator<Item = usize>) {
        change(world, self.from, slots, |word| match word.state() {
            SlotState::Live(_) => word.to_moved(),
            _ => SlotWord::CLOSED,
        });
    }

    fn build(&self, world: &World) {
        let header = BucketHeader { generation: self.new.generation, ..header(world, self.from) };
        world.memory.store(self.to, header.to_bits()).unwrap();
        for at in (1..=SLOTS_PER_BUCKET as u64).map(|slot| 8 * slot) {
            let word = world.memory.load(self.from.plus(at)).unwrap();
            world.memory.store(self.to.plus(at), word).unwrap();
        }
    }

    fn seal_header(&self, world: &World) {
        let header = BucketHeader { sealed: true, ..header(world, self.from) };
        world.memory.store(self.from, header.to_bits()).unwrap();
    }

    fn publish(&self, world: &World) {
        let at = world.superblock.geometry.directory_word_offset(self.index);
        world.memory.store(at, self.new.to_bits()).unwrap();
    }

    /// MOVED becomes LIVE, CLOSED becomes EMPTY.
    fn unseal(&self, world: &World, slots: impl IntoIterator<Item = usize>) {
        change(world, self.to, slots, |word| match word.state() {
            SlotState::Moved(_) => SlotWord::from_bits(word.bits() & !(0b10 << 62)),
            _ => SlotWord::EMPTY,
        });
    }

    /// All that is left to do once the slots are sealed.
    fn finish(&self, world: &World) {
        self.build(world);
        self.seal_header(world);
        self.publish(world);
        self.unseal(world, ALL);
    }

    fn run(&self, world: &World) {
        self.seal(world, ALL);
        self.finish(world);
    }
}

const ALL: std::ops::Range<usize> = 0..SLOTS_PER_BUCKET;

fn header(world: &World, bucket: Offset) -> BucketHeader {
    BucketHeader::from_bits(world.memory.load(bucket).unwrap())
}

fn change(
    world: &World,
    bucket: Offset,
    slots: impl IntoIterator<Item = usize>,
    to: impl Fn(SlotWord) -> SlotWord,
) {
    for at in slots.into_iter().map(|slot| 8 + 8 * slot as u64) {
        let word = SlotWord::from_bits(world.memory.load(bucket.plus(at)).unwrap());
        world.memory.store(bucket.plus(at), to(word).bits()).unwrap();
    }
}

/// The directory as it is in the region now.
fn fresh_directory(world: &World) -> Directory {
    let geometry = world.superblock.geometry;
    let mut bytes = vec![0; geometry.directory_entries() as usize * 8];
    world.memory.read(geometry.directory_word_offset(0), &mut bytes).unwrap();
    Directory::from_bytes(&bytes)
}

fn value(text: &[u8]) -> Answer {
    Answer::Value(Some(text.to_vec()))
}

fn with_key() -> (World, Actor, Rebuild) {
    let (mut world, mut actor) = (World::new(), Actor::new(1));
    alone(&mut world, &mut actor, Call::Put(b"k", b"v"));
    let rebuild = Rebuild::new(&world, b"k");
    (world, actor, rebuild)
}

/// So many verbs that whoever doesn't wait has ended.
fn waits(world: &mut World, actor: &mut Actor, running: &mut Running<'_>) {
    for _ in 0..40 {
        running.verb(world, actor);
    }
    assert_eq!(running.answer, None, "it must wait for the rebuild");
}

fn finish(world: &mut World, actor: &mut Actor, running: &mut Running<'_>) -> Answer {
    for _ in 0..100 {
        if running.is_over() {
            break;
        }
        running.verb(world, actor);
    }
    running.answer.clone().expect("the rebuild is over")
}

/// Gets never wait: not while slots are sealed, not while the header is, and an old copy of the directory costs one READ.
#[test]
pub(super) fn gets_do_not_wait_for_a_rebuild() {
    let (mut world, mut actor, rebuild) = with_key();
    let get = |world: &mut World, actor: &mut Actor| alone(world, actor, Call::Get(b"k"));
    rebuild.seal(&world, ALL);
    assert_eq!(get(&mut world, &mut actor), (value(b"v"), 2, 2));
    rebuild.build(&world);
    rebuild.seal_header(&world);
    // The directory still names it: the words count.
    assert_eq!(get(&mut world, &mut actor), (value(b"v"), 3, 3));
    rebuild.publish(&world);
    assert_eq!(get(&mut world, &mut actor), (value(b"v"), 4, 4));
    rebuild.unseal(&world, ALL);
    assert_eq!(get(&mut world, &mut actor), (value(b"v"), 2, 2));
    assert_eq!(alone(&mut world, &mut actor, Call::Put(b"k", b"w")).0, Answer::Stored);
    assert_eq!(get(&mut world, &mut actor), (value(b"w"), 2, 2));
}

/// The key's slot is MOVED and later ones are still EMPTY. A change waits, and finds the key when all is done.
#[test]
pub(super) fn changes_wait_for_a_rebuild() {
    for (call, answer, found) in [
        (Call::Delete(b"k"), Answer::Existed(true), None),
        (Call::Put(b"k", b"w"), Answer::Stored, Some(b"w".to_vec())),
    ] {
        let (mut world, mut actor, rebuild) = with_key();
        rebuild.seal(&world, 0..1);
        let mut running = Running::new(call);
        waits(&mut world, &mut actor, &mut running);
        rebuild.seal(&world, 1..SLOTS_PER_BUCKET);
        waits(&mut world, &mut actor, &mut running);
        rebuild.finish(&world);
        assert_eq!(finish(&mut world, &mut actor, &mut running), answer);
        assert_eq!(alone(&mut world, &mut actor, Call::Get(b"k")).0, Answer::Value(found));
        world.check_bucket(b"k");
    }
}

/// A rebuild has sealed a neighbour's slot and not yet the key's. The neighbour's tag is another, so nobody waits for it and
/// nobody reads its block.
#[test]
fn a_moved_neighbour_is_in_nobodys_way() {
    let (mut world, mut actor) = (World::new(), Actor::new(1));
    let neighbour = colliding(&world, b"k", 1, false).remove(0);
    alone(&mut world, &mut actor, Call::Put(&neighbour, b"n"));
    Rebuild::new(&world, b"k").seal(&world, 0..1);
    assert_eq!(alone(&mut world, &mut actor, Call::Get(b"k")), (Answer::Value(None), 1, 1));
    assert_eq!(alone(&mut world, &mut actor, Call::Put(b"k", b"v")), (Answer::Stored, 2, 3));
    assert_eq!(alone(&mut world, &mut actor, Call::Get(b"k")), (value(b"v"), 2, 2));
    assert_eq!(alone(&mut world, &mut actor, Call::Delete(b"k")).0, Answer::Existed(true));
}

/// The new bucket is unsealed from its last slot on. One insert reads it while the first slot is still CLOSED, another
/// one of the same key reads it a moment later. If CLOSED were taken for occupied, both would succeed.
#[test]
pub(super) fn an_insert_that_saw_closed_starts_over() {
    let (mut world, mut one, mut two) = (World::new(), Actor::new(1), Actor::new(2));
    let rebuild = Rebuild::new(&world, b"k");
    rebuild.seal(&world, ALL);
    rebuild.build(&world);
    rebuild.seal_header(&world);
    rebuild.publish(&world);
    world.directory = fresh_directory(&world);
    rebuild.unseal(&world, 1..SLOTS_PER_BUCKET);
    let mut early = Running::new(Call::Put(b"k", b"early"));
    early.verb(&mut world, &mut one);
    rebuild.unseal(&world, 0..1);
    let mut late = Running::new(Call::Put(b"k", b"late"));
    late.verb(&mut world, &mut two);
    assert_eq!(finish(&mut world, &mut one, &mut early), Answer::Stored);
    assert_eq!(finish(&mut world, &mut two, &mut late), Answer::Stored);
    world.check_bucket(b"k");
}

/// The slot is sealed between a change's READ and its CAS: the MOVED word is not the next expected one, and a put that
/// lost to it was not overwritten.
#[test]
pub(super) fn a_swap_that_meets_a_rebuild_starts_over() {
    for (call, found) in [(Call::Put(b"k", b"w"), Some(b"w".to_vec())), (Call::Delete(b"k"), None)] {
        let (mut world, mut actor, rebuild) = with_key();
        let mut running = Running::new(call);
        for _ in 0..3 {
            running.verb(&mut world, &mut actor);
        }
        rebuild.run(&world);
        finish(&mut world, &mut actor, &mut running);
        assert_eq!(alone(&mut world, &mut actor, Call::Get(b"k")).0, Answer::Value(found), "{call:?}");
    }
}

/// The old directory leads every call to the sealed bucket once. It begins anew, which is counted, and a put does not
/// write its block again.
#[test]
fn a_call_that_begins_anew_counts_it_and_writes_its_block_once() {
    for (call, verbs) in [(Call::Get(b"k"), 4), (Call::Put(b"k", b"w"), 6 + 1), (Call::Delete(b"k"), 6 + 1)] {
        let (mut world, mut actor, rebuild) = with_key();
        rebuild.run(&world);
        let mut running = Running::new(call);
        finish(&mut world, &mut actor, &mut running);
        assert_eq!((running.restarts(), running.verbs), (1, verbs), "{call:?}");
    }
}

/// By its header the bucket is other keys', by the directory this key's: somebody else must go on first. Each time that a
/// call waits for that is counted.
#[test]
fn each_wait_is_counted() {
    for (call, first_verbs) in [(Call::Get(b"k"), 2), (Call::Put(b"k", b"w"), 3), (Call::Delete(b"k"), 2)] {
        let (mut world, mut actor, rebuild) = with_key();
        let good = header(&world, rebuild.from);
        let other = BucketHeader { prefix: good.prefix ^ 1, ..good };
        world.memory.store(rebuild.from, other.to_bits()).unwrap();
        let mut running = Running::new(call);
        for waits in 1..4 {
            for _ in 0..if waits == 1 { first_verbs } else { 2 } {
                running.verb(&mut world, &mut actor);
            }
            assert_eq!((running.restarts(), running.answer.clone()), (waits, None), "{call:?}");
        }
        world.memory.store(rebuild.from, good.to_bits()).unwrap();
        let answer = finish(&mut world, &mut actor, &mut running);
        assert!(
            !matches!(answer, Answer::Error(_) | Answer::Existed(false) | Answer::Value(None)),
            "{answer:?}"
        );
        assert_eq!(running.restarts(), 3, "{call:?}");
    }
}

/// A client still has the old directory when another has changed the key in the new segment.
#[test]
pub(super) fn an_old_directory_hides_no_change() {
    let (mut world, mut actor, rebuild) = with_key();
    rebuild.run(&world);
    let fresh = fresh_directory(&world);
    let old = std::mem::replace(&mut world.directory, fresh);
    alone(&mut world, &mut actor, Call::Put(b"k", b"w"));
    world.directory = old;
    assert_eq!(alone(&mut world, &mut actor, Call::Get(b"k")), (value(b"w"), 4, 4));
    assert_eq!(alone(&mut world, &mut actor, Call::Get(b"k")), (value(b"w"), 2, 2));
}

/// The same, and an answer to an earlier READ of the directory arrives when the newer word is known.
#[test]
pub(super) fn a_late_answer_brings_no_old_value_back() {
    let (mut world, mut actor, rebuild) = with_key();
    rebuild.run(&world);
    world.directory = fresh_directory(&world);
    alone(&mut world, &mut actor, Call::Put(b"k", b"w"));
    world.directory.learn(rebuild.index, rebuild.old);
    assert_eq!(alone(&mut world, &mut actor, Call::Get(b"k")).0, value(b"w"));
}

/// The segment was full, so none of its words is CLOSED. A key that one client inserts into the new segment is deleted by
/// another that has the old directory.
#[test]
pub(super) fn a_full_sealed_bucket_proves_no_absence() {
    let (mut world, mut actor) = (World::new(), Actor::new(1));
    let keys = colliding(&world, b"k", SLOTS_PER_BUCKET, false);
    for key in &keys {
        alone(&mut world, &mut actor, Call::Put(key, b"v"));
    }
    let rebuild = Rebuild::new(&world, b"k");
    rebuild.run(&world);
    // As if the last key had gone to the other half.
    change(&world, rebuild.to, [SLOTS_PER_BUCKET - 1], |_| SlotWord::EMPTY);
    let fresh = fresh_directory(&world);
    let old = std::mem::replace(&mut world.directory, fresh);
    assert_eq!(alone(&mut world, &mut actor, Call::Put(b"k", b"w")).0, Answer::Stored);
    world.directory = old;
    assert_eq!(alone(&mut world, &mut actor, Call::Delete(b"k")).0, Answer::Existed(true));
}

/// After the rebuild the old segment's memory serves other keys. Whoever comes by the old directory must see that it is
/// not the key's any more.
#[test]
pub(super) fn a_recycled_segment_is_foreign() {
    for call in [Call::Get(b"k"), Call::Delete(b"k"), Call::Put(b"k", b"w")] {
        let (mut world, mut actor, rebuild) = with_key();
        rebuild.run(&world);
        let header = header(&world, rebuild.from);
        let other = BucketHeader { prefix: header.prefix ^ 1, generation: 3, sealed: false, ..header };
        world.memory.store(rebuild.from, other.to_bits()).unwrap();
        change(&world, rebuild.from, ALL, |_| SlotWord::EMPTY);
        let (answer, ..) = alone(&mut world, &mut actor, call);
        let expected = match call {
            Call::Get(_) => value(b"v"),
            Call::Put(..) => Answer::Stored,
            Call::Delete(_) => Answer::Existed(true),
        };
        assert_eq!(answer, expected);
        assert_eq!(
            world.memory.load(rebuild.from.plus(8)).unwrap(),
            0,
            "{call:?} went to the other keys' bucket"
        );
    }
}
