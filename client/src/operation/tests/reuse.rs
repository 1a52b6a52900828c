//! Memory that is used again under an operation that was stopped: at once, when only the block itself can tell, and after
//! the grace period, when only the clock can.
//!
//! Reclamation will take a block with its next version. A version that has come round is the same one again.

use sidestep_common::layout::{BLOCK_HEADER_BYTES, BlockRef, SlotState, Version};

use super::super::change::Change;
use super::super::{Operation, Step};
use super::world::{Actor, Answer, Call, Running, SEED, World, alone, twin_of_k};

/// Which version a block has when it is used again.
pub(super) type NextVersion = fn(Version) -> Version;

const COME_ROUND: NextVersion = |version| version;

fn value(text: &[u8]) -> Answer {
    Answer::Value(Some(text.to_vec()))
}

/// The block of the key in the first slot.
fn first_block(world: &World, key: &[u8]) -> BlockRef {
    let SlotState::Live(block) = world.slot_words(key)[0].state() else { panic!("not there") };
    block
}

/// What reclamation does, without its waiting: `block` is the next one that `actor` uses.
fn reuse(actor: &mut Actor, block: BlockRef, version: NextVersion) {
    actor.allocator.reuse_next(BlockRef { version: version(block.version), ..block });
}

/// Steps `running` by so many verbs.
fn step(world: &mut World, actor: &mut Actor, running: &mut Running<'_>, verbs: usize) {
    for _ in 0..verbs {
        running.verb(world, actor);
    }
}

/// Steps `running` to its end.
fn finish(world: &mut World, actor: &mut Actor, running: &mut Running<'_>) -> Answer {
    for _ in 0..100 {
        if running.is_over() {
            break;
        }
        running.verb(world, actor);
    }
    running.answer.clone().expect("nobody disturbs it any more")
}

/// A get is stopped between the READ of the bucket and that of the block. Meanwhile the key is deleted and its
/// block's memory used for another key, version and all but one alike. The get must not return those bytes.
#[test]
fn a_block_reused_under_a_reader_is_noticed() {
    let (mut world, mut actor, mut reader) = (World::new(), Actor::new(1), Actor::new(2));
    alone(&mut world, &mut actor, Call::Put(b"k1", b"first"));
    let block = first_block(&world, b"k1");
    let mut get = Running::new(Call::Get(b"k1"));
    step(&mut world, &mut reader, &mut get, 1);
    alone(&mut world, &mut actor, Call::Delete(b"k1"));
    reuse(&mut actor, block, Version::next);
    alone(&mut world, &mut actor, Call::Put(b"k2", b"other"));
    assert_eq!(finish(&mut world, &mut reader, &mut get), Answer::Value(None));
}

/// The same, but the key was overwritten and not deleted: "absent" would be as wrong as the other key's bytes. A
/// block that does not fit proves nothing, so the slot is read again.
#[test]
pub(super) fn a_block_reused_under_a_reader_proves_nothing() {
    let (mut world, mut actor, mut reader) = (World::new(), Actor::new(1), Actor::new(2));
    alone(&mut world, &mut actor, Call::Put(b"k1", b"first"));
    let block = first_block(&world, b"k1");
    let mut get = Running::new(Call::Get(b"k1"));
    step(&mut world, &mut reader, &mut get, 1);
    alone(&mut world, &mut actor, Call::Put(b"k1", b"second"));
    reuse(&mut actor, block, Version::next);
    alone(&mut world, &mut actor, Call::Put(b"k2", b"other"));
    assert_eq!(finish(&mut world, &mut reader, &mut get), value(b"second"));
    assert_eq!(get.round_trips, 4);
}

/// The same, again and again: each block that does not fit was named by another word, so writers are fast, and nothing is
/// corrupt.
#[test]
fn a_reader_that_is_outrun_tells_of_no_corruption() {
    let (mut world, mut actor, mut reader) = (World::new(), Actor::new(1), Actor::new(2));
    alone(&mut world, &mut actor, Call::Put(b"k1", b"first"));
    let mut get = Running::new(Call::Get(b"k1"));
    for _ in 0..10 {
        step(&mut world, &mut reader, &mut get, 1);
        let block = first_block(&world, b"k1");
        alone(&mut world, &mut actor, Call::Put(b"k1", b"second"));
        reuse(&mut actor, block, Version::next);
        alone(&mut world, &mut actor, Call::Put(b"k2", b"other"));
        step(&mut world, &mut reader, &mut get, 1);
        assert_eq!(get.answer, None);
    }
    assert_eq!(finish(&mut world, &mut reader, &mut get), value(b"second"));
    assert_eq!(get.restarts(), 10);
}

/// A block is reused under a reader, and the READ of it is torn: its header is still the old one, with the old version.
/// Only the checksum tells that the rest is not.
#[test]
pub(super) fn a_torn_block_proves_nothing() {
    let (mut world, mut actor, mut reader) = (World::new(), Actor::new(1), Actor::new(2));
    alone(&mut world, &mut actor, Call::Put(b"k1", b"first"));
    let block = first_block(&world, b"k1");
    let mut header = [0; BLOCK_HEADER_BYTES];
    world.memory.read(block.offset, &mut header).unwrap();
    let mut get = Running::new(Call::Get(b"k1"));
    step(&mut world, &mut reader, &mut get, 1);
    alone(&mut world, &mut actor, Call::Put(b"k1", b"second"));
    reuse(&mut actor, block, Version::next);
    // It is written and not published, so nobody else minds its header.
    let mut put = Running::new(Call::Put(b"k2", b"other"));
    step(&mut world, &mut actor, &mut put, 2);
    world.memory.write(block.offset, &header).unwrap();
    assert_eq!(finish(&mut world, &mut reader, &mut get), value(b"second"));
}

/// The reader was stopped for more than half a grace period: what it read may be of two lives, so it starts
/// again, though everything fits.
#[test]
fn conclusions_older_than_half_the_grace_period_are_thrown_away() {
    let (mut world, mut actor) = (World::new(), Actor::new(1));
    alone(&mut world, &mut actor, Call::Put(b"k", b"v"));
    for (late_ms, round_trips) in [(500, 2), (501, 4)] {
        let mut get = Running::new(Call::Get(b"k"));
        get.verb(&mut world, &mut actor);
        world.now_ms += late_ms;
        assert_eq!(finish(&mut world, &mut actor, &mut get), value(b"v"));
        assert_eq!(get.round_trips, round_trips, "{late_ms} ms late");
        assert_eq!(get.restarts(), u32::from(late_ms > 500), "{late_ms} ms late");
    }
}

/// The same for a put: it reads its bucket and block again, and does not write its own again.
#[test]
fn a_put_that_is_too_late_starts_again() {
    let (mut world, mut actor) = (World::new(), Actor::new(1));
    alone(&mut world, &mut actor, Call::Put(b"k", b"v"));
    for (late_ms, restarts, verbs) in [(500, 0, 5), (501, 1, 7)] {
        let mut put = Running::new(Call::Put(b"k", b"w"));
        put.verb(&mut world, &mut actor);
        world.now_ms += late_ms;
        assert_eq!(finish(&mut world, &mut actor, &mut put), Answer::Stored);
        assert_eq!((put.restarts(), put.verbs), (restarts, verbs), "{late_ms} ms late");
    }
}

/// `call` on a key is stopped after so many verbs. Its key is overwritten, the grace period passes, and the block that it
/// is to read is used again, by somebody who does `reuser`, but only so many verbs of it (all, if `None`). Then the call
/// goes on.
pub(super) struct Pause<'a> {
    call: Call<'a>,
    verbs: usize,
    reuser: (Call<'a>, Option<usize>),
    answer: Answer,
    found: Option<&'a [u8]>,
}

impl Pause<'_> {
    /// Lets it happen, and wants the right answer, and the right value and one slot for the key afterwards.
    pub(super) fn run(&self, version: NextVersion) {
        let (mut world, mut actor, mut rival) = (World::new(), Actor::new(1), Actor::new(2));
        alone(&mut world, &mut rival, Call::Put(KEY, b"old"));
        let block = first_block(&world, KEY);
        let mut running = Running::new(self.call);
        step(&mut world, &mut actor, &mut running, self.verbs);
        alone(&mut world, &mut rival, Call::Put(KEY, b"newer"));
        world.now_ms += world.superblock.grace_ms + 1;
        reuse(&mut rival, block, version);
        let (reuser, verbs) = self.reuser;
        match verbs {
            None => drop(alone(&mut world, &mut rival, reuser)),
            Some(verbs) => step(&mut world, &mut rival, &mut Running::new(reuser), verbs),
        }
        assert_eq!(finish(&mut world, &mut actor, &mut running), self.answer);
        let found = Answer::Value(self.found.map(<[u8]>::to_vec));
        assert_eq!(alone(&mut world, &mut actor, Call::Get(KEY)).0, found);
        world.check_bucket(KEY);
    }
}

const KEY: &[u8] = b"k";
const NEIGHBOUR: (Call<'static>, Option<usize>) = (Call::Put(b"n", b"neighbour"), None);
/// A WRITE that no CAS follows.
const UNPUBLISHED: (Call<'static>, Option<usize>) = (Call::Put(KEY, b"never"), Some(2));

pub(super) fn a_get_that_finds() -> Pause<'static> {
    let (call, answer, found) = (Call::Get(KEY), value(b"newer"), Some(&b"newer"[..]));
    Pause { call, verbs: 1, reuser: UNPUBLISHED, answer, found }
}

pub(super) fn a_get_that_misses() -> Pause<'static> {
    Pause { reuser: NEIGHBOUR, ..a_get_that_finds() }
}

pub(super) fn a_delete_that_misses() -> Pause<'static> {
    Pause { call: Call::Delete(KEY), verbs: 1, reuser: NEIGHBOUR, answer: Answer::Existed(true), found: None }
}

pub(super) fn a_put_that_inserts() -> Pause<'static> {
    let (call, found) = (Call::Put(KEY, b"v"), Some(&b"v"[..]));
    Pause { call, verbs: 2, reuser: NEIGHBOUR, answer: Answer::Stored, found }
}

/// Stopped while its first READ is out: the clock has run since that was posted.
pub(super) fn a_put_that_waits_for_its_bucket() -> Pause<'static> {
    Pause { verbs: 1, ..a_put_that_inserts() }
}

/// A client is stopped for longer than the grace period before it reads a block, and finds the block used again. What it
/// would conclude is wrong, and the version doesn't always tell.
#[test]
fn what_was_stopped_beyond_its_grace_concludes_nothing() {
    for version in [Version::next, COME_ROUND] {
        a_get_that_finds().run(version);
        a_get_that_misses().run(version);
        a_delete_that_misses().run(version);
        a_put_that_inserts().run(version);
        a_put_that_waits_for_its_bucket().run(version);
        a_put_replaces_no_block_of_long_ago(version);
        an_insert_claims_against_no_rival_of_long_ago(version);
    }
}

/// A put finds a slot with its tag, and is stopped before it reads the block, which is a twin's. Meanwhile the block is
/// unlinked, and written for the put's own key by somebody who dies before publishing it. Whoever took the slot for its own
/// key's would lose the CAS to the twin and claim to be overwritten.
pub(super) fn a_put_replaces_no_block_of_long_ago(version: NextVersion) {
    let (mut world, mut actor, mut rival) = (World::new(), Actor::new(1), Actor::new(2));
    alone(&mut world, &mut rival, Call::Put(twin_of_k(), b"twin"));
    let mut put = Running::new(Call::Put(KEY, b"v"));
    step(&mut world, &mut actor, &mut put, 2);
    end_long_ago(&mut world, (&mut actor, &mut put), &mut rival, version);
}

/// An insert loses its slot to a twin, and is stopped before it reads that rival's block. Meanwhile the same happens:
/// whoever took the rival for its own key's would claim to be overwritten, and the key would never be there.
pub(super) fn an_insert_claims_against_no_rival_of_long_ago(version: NextVersion) {
    let (mut world, mut actor, mut rival) = (World::new(), Actor::new(1), Actor::new(2));
    let mut put = Running::new(Call::Put(KEY, b"v"));
    step(&mut world, &mut actor, &mut put, 2);
    alone(&mut world, &mut rival, Call::Put(twin_of_k(), b"twin"));
    step(&mut world, &mut actor, &mut put, 1);
    end_long_ago(&mut world, (&mut actor, &mut put), &mut rival, version);
}

/// The twin's block is used again under `put`, which then goes on.
fn end_long_ago(
    world: &mut World,
    (actor, put): (&mut Actor, &mut Running<'_>),
    rival: &mut Actor,
    version: NextVersion,
) {
    let block = first_block(world, KEY);
    alone(world, rival, Call::Put(twin_of_k(), b"again"));
    world.now_ms += world.superblock.grace_ms + 1;
    reuse(rival, block, version);
    let (never_published, verbs) = UNPUBLISHED;
    step(world, rival, &mut Running::new(never_published), verbs.unwrap_or(0));
    assert_eq!(finish(world, actor, put), Answer::Stored);
    assert_eq!(alone(world, actor, Call::Get(KEY)).0, value(b"v"));
    world.check_bucket(KEY);
}

/// A delete that waits for memory goes on where it was; but if its session acknowledges an epoch meanwhile it reads its bucket
/// again: the segment may be another's by then.
#[test]
fn a_delete_that_waited_over_an_epoch_reads_its_bucket_again() {
    for rewound in [false, true] {
        let (mut world, mut actor, mut rival) = (World::new(), Actor::new(1), Actor::new(2));
        alone(&mut world, &mut rival, Call::Put(KEY, b"old"));
        let mut delete = Change::delete(KEY, SEED).unwrap();
        let Step::Post(plan) = delete.step(&mut world.context(&mut actor), &[]) else {
            panic!("it reads its bucket")
        };
        let replies = [world.execute(&plan[0], (&[], &[]))];
        let Step::Memory(class, purpose) = delete.step(&mut world.context(&mut actor), &replies) else {
            panic!("it has no memory")
        };
        assert!(delete.may_rewind());
        if rewound {
            delete.rewind();
        }
        world.grant(&mut actor, class, purpose);
        let Step::Post(plan) = delete.step(&mut world.context(&mut actor), &[]) else { panic!("it goes on") };
        assert_eq!(plan[0].subject, if rewound { "bucket" } else { "block" });
    }
}
