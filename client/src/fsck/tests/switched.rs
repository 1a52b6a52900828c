//! One change, at any moment of a look: whatever was seen before it and after it, nothing looks wrong.

use std::ops::Range;

use sidestep_common::layout::{BlockPlace, Offset, SizeClass, Superblock, Version};
use sidestep_common::wire::{GrantHolder, GrantPage};

use super::super::testing::Region;
use super::super::{Options, RegionSource, SourceError, Witness, check};
use crate::operation::tests::world::{Actor, Call, World, alone, colliding};

/// A region that becomes another after some questions.
struct Switched {
    before: Region,
    after: Region,
    questions_left: u32,
    questions: u32,
}

impl Switched {
    fn now(&mut self) -> &Region {
        self.questions += 1;
        if self.questions_left == 0 {
            return &self.after;
        }
        self.questions_left -= 1;
        &self.before
    }
}

impl RegionSource for Switched {
    fn superblock(&self) -> Superblock {
        self.before.facts.superblock
    }

    fn read(&mut self, pieces: &[Range<u64>], into: &mut Vec<u8>) -> Result<(), SourceError> {
        into.clear();
        // The change may fall between any two pieces, in the order asked or the other way round.
        let backwards = self.questions_left.is_multiple_of(2);
        let mut parts: Vec<Vec<u8>> = vec![Vec::new(); pieces.len()];
        for at in 0..pieces.len() {
            let at = if backwards { pieces.len() - 1 - at } else { at };
            let piece = &pieces[at];
            parts[at] = self.now().bytes[piece.start as usize..piece.end as usize].to_vec();
        }
        into.extend(parts.concat());
        Ok(())
    }

    fn grants(&mut self, from: u64, count: u16) -> Result<GrantPage, SourceError> {
        Ok(self.now().facts.page(from, count))
    }

    fn uptime_ms(&mut self) -> Result<Option<u64>, SourceError> {
        Ok(self.now().facts.uptime_ms)
    }

    fn has_changed(&mut self, words: &[Witness]) -> Result<bool, SourceError> {
        Ok(words.iter().any(|(offset, bits)| self.now().word(*offset) != *bits))
    }

    fn is_live(&self) -> bool {
        true
    }
}

/// A look at each moment of which the change happens.
fn at_every_moment(what: &str, before: &Region, after: &Region) {
    let look = |questions_left| {
        let mut source =
            Switched { before: before.clone(), after: after.clone(), questions_left, questions: 0 };
        let report = check(&mut source, Options::default()).unwrap();
        (report, source.questions)
    };
    let (report, all) = look(u32::MAX);
    assert!(report.is_clean(), "{what}, before: {:?}", report.findings);
    assert!(look(0).0.is_clean(), "{what}, after");
    let mut moment = 1;
    while moment <= all + 4 {
        let (report, _) = look(moment);
        assert!(report.is_clean(), "{what}, after {moment} of {all} questions: {:?}", report.findings);
        assert!(report.accounts.is_balanced(), "{what}, after {moment}: {:?}", report.accounts);
        moment += 1;
    }
}

fn world() -> (World, Actor) {
    let (mut world, mut actor) = (World::with(5 << 20, 0), Actor::new(1));
    for key in [&b"one"[..], b"two", b"three"] {
        alone(&mut world, &mut actor, Call::Put(key, b"value"));
    }
    alone(&mut world, &mut actor, Call::Delete(b"three"));
    for key in colliding(&world, b"one", 3, false) {
        alone(&mut world, &mut actor, Call::Put(&key, b"neighbour"));
    }
    (world, actor)
}

#[test]
fn a_put_or_delete_at_any_moment_is_no_error() {
    let keys = |world: &World| colliding(world, b"one", 4, false);
    let stories: [(&str, &[Call<'_>]); 5] = [
        ("an overwrite", &[Call::Put(b"one", b"again")]),
        ("a delete", &[Call::Delete(b"two")]),
        ("a deleted key's return", &[Call::Put(b"three", b"again")]),
        ("a new key", &[Call::Put(b"four", b"new")]),
        // Of a class that nobody had memory of: a chunk is granted.
        ("a longer value", &[Call::Put(b"one", &[7; 1000])]),
    ];
    for (what, calls) in stories {
        let (mut world, mut actor) = world();
        let before = Region::of(&world);
        for call in calls {
            alone(&mut world, &mut actor, *call);
        }
        at_every_moment(what, &before, &Region::of(&world));
    }
    let (mut world, mut actor) = world();
    let before = Region::of(&world);
    for key in keys(&world) {
        alone(&mut world, &mut actor, Call::Put(&key, b"into the bucket"));
    }
    at_every_moment("keys into one bucket", &before, &Region::of(&world));
}

/// A block is unlinked, marked, and used again for a key of another bucket, all in a moment.
#[test]
fn a_block_used_again_at_any_moment_is_no_error() {
    let (mut world, mut actor) = world();
    let before = Region::of(&world);
    for (key, next) in [(&b"one"[..], &b"five"[..]), (b"two", b"six"), (b"five", b"seven")] {
        alone(&mut world, &mut actor, Call::Delete(key));
        let (place, mark) = world.marks.pop().unwrap();
        let class = SizeClass::holding(64).unwrap();
        let chunk = Offset(place.0 & !0xf_ffff);
        let block =
            BlockPlace { chunk, index: (place.0 - chunk.0) as u32 }.block(class, Version(mark).next());
        actor.allocator.reuse_next(block);
        alone(&mut world, &mut actor, Call::Put(next, b"in its memory"));
    }
    at_every_moment("blocks used again", &before, &Region::of(&world));
}

/// The chunk of a session that has ended is granted and used; a chunk is granted, used and left behind, with no key in it.
#[test]
fn memory_granted_at_any_moment_is_no_error() {
    let (mut world, mut actor) = world();
    let mut before = Region::of(&world);
    before.facts.grants[0].holder = GrantHolder::Nobody;
    alone(&mut world, &mut actor, Call::Put(b"eight", b"in the tail"));
    alone(&mut world, &mut actor, Call::Put(b"eight", &[8; 2000]));
    alone(&mut world, &mut actor, Call::Delete(b"eight"));
    let mut after = Region::of(&world);
    after.facts.grants[1].holder = GrantHolder::Orphan;
    at_every_moment("memory granted", &before, &after);
}
