//! Regions that others change between any two words that are read: no false alarm.
//!
//! Always true: everything happens on one thread, in an order that a seed repeats. The others are real operations, taken a
//! verb at a time; blocks are used again the moment they are marked free, without any grace, which is worse than what any
//! client may do; a segment is rebuilt word by word.

use std::ops::Range;
use std::time::Duration;

use sidestep_common::hash::KeyHash;
use sidestep_common::layout::{
    BUCKET_BYTES, BUCKETS_PER_SEGMENT, Block, BlockPlace, BucketHeader, CHUNK_BYTES, DirectoryWord, Offset,
    SLOTS_PER_BUCKET, SPARE_SUPERBLOCK_OFFSET, SizeClass, SlotState, SlotWord, Superblock, Version,
};
use sidestep_common::wire::{ChunkPurpose, GrantPage};

use super::super::testing::{Random, Region, facts};
use super::super::{Options, RegionSource, Report, SourceError, Witness, check, dump};
use super::memory_file;
use crate::operation::tests::world::{Actor, Call, Running, SEED, World, colliding};

static VALUE: [u8; 600] = [0x5a; 600];
const ACTORS: u32 = 4;

/// A world that goes on while it is looked at.
struct Moving {
    world: World,
    actors: Vec<(Actor, Option<Running<'static>>)>,
    keys: Vec<&'static [u8]>,
    rebuild: Option<Rebuild>,
    random: Random,
    /// One in so many words that are read is followed by a verb of somebody's.
    words_per_verb: u64,
    verbs: u64,
    questions: u64,
    is_stopped: bool,
    /// The rebuild goes on alone.
    is_rebuilt_only: bool,
}

impl Moving {
    fn new(seed: u64, words_per_verb: u64, with_rebuild: bool) -> Self {
        // Two entries to a segment, so that there are segments to rebuild into.
        let mut world = World::with(9 << 20, 1);
        let leak = |key: Vec<u8>| -> &'static [u8] { Vec::leak(key) };
        let mut keys: Vec<&'static [u8]> = vec![b"hot"];
        keys.extend(colliding(&world, b"hot", 6, false).into_iter().map(leak));
        keys.extend(colliding(&world, b"hot", 2, true).into_iter().map(leak));
        keys.extend((0..40).map(|number| leak(format!("key {number}").into_bytes())));
        let mut actors: Vec<_> = (1..=ACTORS).map(|session| (Actor::new(session), None)).collect();
        for (actor, _) in &mut actors {
            world.grant(actor, SizeClass::holding(64).unwrap(), ChunkPurpose::General);
        }
        Self {
            world,
            actors,
            keys,
            rebuild: with_rebuild.then(|| Rebuild::new(seed)),
            random: Random(seed),
            words_per_verb,
            verbs: 0,
            questions: 0,
            is_stopped: false,
            is_rebuilt_only: false,
        }
    }

    /// A verb of somebody's, sometimes a step of the rebuild.
    fn step(&mut self) {
        if self.is_stopped {
            return;
        }
        if let Some(rebuild) = &mut self.rebuild
            && (self.is_rebuilt_only || self.random.below(3) == 0)
        {
            rebuild.step(&mut self.world);
            return;
        }
        let at = self.random.below(u64::from(ACTORS)) as usize;
        let (actor, running) = &mut self.actors[at];
        let running = running.get_or_insert_with(|| {
            let key = match self.random.below(3) {
                0 => self.keys[0],
                1 => self.keys[self.random.below(9) as usize],
                _ => self.keys[self.random.below(self.keys.len() as u64) as usize],
            };
            // The pool has seven chunks: one for the short values of each, three for longer and longer ones of the first,
            // granted one after the other.
            let long = match self.random.below(4) {
                0 if at == 0 => 100 + 128 * (self.verbs as usize / 7000).min(2),
                _ => 0,
            };
            Running::new(match self.random.below(3) {
                0 => Call::Delete(key),
                _ => Call::Put(key, &VALUE[..long + self.random.below(8) as usize]),
            })
        });
        running.verb(&mut self.world, actor);
        self.verbs += 1;
        if running.is_over() {
            assert!(running.answer.is_some());
            self.actors[at].1 = None;
        }
        self.reuse();
    }

    /// Its owner uses a block again as soon as it is marked free.
    fn reuse(&mut self) {
        for (place, mark) in std::mem::take(&mut self.world.marks) {
            let chunk = Offset(place.0 & !(CHUNK_BYTES - 1));
            let grant = self.world.granted.iter().find(|grant| grant.offset == chunk.0).unwrap();
            let class = SizeClass::from_index(grant.class).unwrap();
            let place = BlockPlace { chunk, index: (place.0 - chunk.0) as u32 };
            let block = place.block(class, Version(mark).next());
            for (actor, _) in &mut self.actors {
                actor.allocator.reuse_next(block);
            }
        }
    }

    fn maybe_step(&mut self) {
        if self.random.below(self.words_per_verb) == 0 {
            self.step();
        }
    }

    /// All calls end, and the rebuild does; nothing moves any more.
    fn stop(&mut self) {
        if let Some(rebuild) = &mut self.rebuild {
            while !rebuild.is_over() {
                rebuild.step(&mut self.world);
            }
        }
        for at in 0..self.actors.len() {
            for _ in 0..10_000 {
                let (actor, running) = &mut self.actors[at];
                let Some(one) = running else { break };
                one.verb(&mut self.world, actor);
                if one.is_over() {
                    *running = None;
                }
            }
            assert!(self.actors[at].1.is_none(), "a call that nobody disturbs ends");
        }
        self.is_stopped = true;
    }
}

impl RegionSource for Moving {
    fn superblock(&self) -> Superblock {
        self.world.superblock
    }

    /// Word by word, from a random one on and round; others go on in between.
    fn read(&mut self, pieces: &[Range<u64>], into: &mut Vec<u8>) -> Result<(), SourceError> {
        into.clear();
        for piece in pieces {
            let start = into.len();
            into.resize(start + (piece.end - piece.start) as usize, 0);
            let words: Vec<Range<u64>> = (piece.start / 8..piece.end.div_ceil(8))
                .map(|word| (8 * word).max(piece.start)..(8 * word + 8).min(piece.end))
                .collect();
            let first = self.random.below(words.len() as u64) as usize;
            for word in words[first..].iter().chain(&words[..first]) {
                self.maybe_step();
                let at = start + (word.start - piece.start) as usize;
                let bytes = &mut into[at..][..(word.end - word.start) as usize];
                let encoded = self.world.superblock.encode();
                let copies = [0, SPARE_SUPERBLOCK_OFFSET.0].map(|start| start..start + encoded.len() as u64);
                match copies.iter().find(|copy| copy.contains(&word.start)) {
                    Some(copy) => {
                        let range = (word.start - copy.start) as usize..(word.end - copy.start) as usize;
                        bytes.copy_from_slice(&encoded[range]);
                    }
                    None => self.world.memory.read(Offset(word.start), bytes).unwrap(),
                }
            }
        }
        Ok(())
    }

    fn grants(&mut self, from: u64, count: u16) -> Result<GrantPage, SourceError> {
        self.step();
        Ok(facts(&self.world).page(from, count))
    }

    fn uptime_ms(&mut self) -> Result<Option<u64>, SourceError> {
        Ok(None)
    }

    fn has_changed(&mut self, words: &[Witness]) -> Result<bool, SourceError> {
        self.questions += 1;
        let mut has_changed = false;
        for (offset, bits) in words {
            self.maybe_step();
            has_changed |= self.world.memory.load(*offset).unwrap() != *bits;
        }
        Ok(has_changed)
    }

    fn is_live(&self) -> bool {
        true
    }

    fn pause(&mut self, time: Duration) {
        for _ in 0..time.as_millis() * 50 {
            self.step();
        }
    }
}

/// A segment that is rebuilt, one word at a time, as section 5 of the design has it: seal, build, seal the headers,
/// publish, unseal. Then the next one, as long as there are segments.
struct Rebuild {
    random: Random,
    source: u32,
    next_free: Option<u32>,
    stores: Vec<(Offset, u64)>,
    sealing: u64,
    over: bool,
}

impl Rebuild {
    fn new(seed: u64) -> Self {
        let random = Random(seed ^ 0xbeef);
        Self { random, source: 0, next_free: None, stores: Vec::new(), sealing: 0, over: false }
    }

    fn is_over(&self) -> bool {
        self.over
    }

    fn step(&mut self, world: &mut World) {
        let geometry = world.superblock.geometry;
        let entries = geometry.directory_entries();
        let slots = BUCKETS_PER_SEGMENT * SLOTS_PER_BUCKET as u64;
        let next_free = *self.next_free.get_or_insert(entries as u32 / 2);
        if let Some((place, word)) = self.stores.pop() {
            world.memory.store(place, word).unwrap();
            if self.stores.is_empty() {
                self.source += 1;
            }
            return;
        }
        // Half of the segments are free; each is rebuilt into one, or split into two.
        if u64::from(next_free) + 2 > entries || u64::from(self.source) * 2 >= entries {
            self.over = true;
            return;
        }
        let word = DirectoryWord { segment: self.source, generation: 1, depth: geometry.directory_bits - 1 };
        let segment = geometry.segment_offset(word).unwrap();
        let slot = |bucket: u64, slot: u64| segment.plus(bucket * BUCKET_BYTES + 8 + 8 * slot);
        if self.sealing < slots {
            let place = slot(self.sealing / SLOTS_PER_BUCKET as u64, self.sealing % SLOTS_PER_BUCKET as u64);
            let found = SlotWord::from_bits(world.memory.load(place).unwrap());
            let sealed = match found.state() {
                SlotState::Live(_) => found.to_moved(),
                _ => SlotWord::CLOSED,
            };
            world.memory.store(place, sealed.bits()).unwrap();
            self.sealing += 1;
            return;
        }
        self.sealing = 0;
        world.sealed(&(segment.0..segment.0 + BUCKETS_PER_SEGMENT * BUCKET_BYTES));
        let halves = 1 + self.random.below(2) as u32;
        self.build(world, (word, segment), next_free, halves);
        self.next_free = Some(next_free + halves);
    }

    /// Builds the new segments in memory that nobody reads, and plans the rest, the last store first.
    fn build(&mut self, world: &World, (old, segment): (DirectoryWord, Offset), first: u32, halves: u32) {
        let geometry = world.superblock.geometry;
        let (mut headers, mut publish, mut unseal) = (Vec::new(), Vec::new(), Vec::new());
        for half in 0..halves {
            let word = DirectoryWord { segment: first + half, generation: 2, depth: old.depth + halves - 1 };
            let prefix = old.segment * halves + half;
            let header = BucketHeader { depth: word.depth, prefix, generation: 2, sealed: false };
            let new = geometry.segment_offset(word).unwrap();
            for bucket in 0..BUCKETS_PER_SEGMENT {
                let mut words = Vec::new();
                for slot in 0..SLOTS_PER_BUCKET as u64 {
                    let place = segment.plus(bucket * BUCKET_BYTES + 8 + 8 * slot);
                    let moved = SlotWord::from_bits(world.memory.load(place).unwrap());
                    let SlotState::Moved(block) = moved.state() else { continue };
                    let mut bytes = vec![0; block.class.bytes() as usize];
                    world.memory.read(block.offset, &mut bytes).unwrap();
                    let key = Block::parse(&bytes, block).unwrap().key.to_vec();
                    if header.serves(KeyHash::of(&key, SEED)) {
                        words.push((moved, SlotWord::live(moved.tag(), block, moved.is_blind())));
                    }
                }
                words.resize(SLOTS_PER_BUCKET, (SlotWord::CLOSED, SlotWord::EMPTY));
                let start = new.plus(bucket * BUCKET_BYTES);
                world.memory.store(start, header.to_bits()).unwrap();
                for (slot, (sealed, open)) in (0_u64..).zip(words) {
                    let place = start.plus(8 + 8 * slot);
                    world.memory.store(place, sealed.bits()).unwrap();
                    unseal.push((place, open.bits()));
                }
            }
            let entries = 2 / u64::from(halves);
            let first_entry = u64::from(prefix) * entries;
            for entry in first_entry..first_entry + entries {
                publish.push((geometry.directory_word_offset(entry), word.to_bits()));
            }
        }
        let header = BucketHeader { depth: old.depth, prefix: old.segment, generation: 1, sealed: true };
        for bucket in 0..BUCKETS_PER_SEGMENT {
            headers.push((segment.plus(bucket * BUCKET_BYTES), header.to_bits()));
        }
        self.stores = [headers, publish, unseal].concat();
        self.stores.reverse();
    }
}

fn look(moving: &mut Moving) -> Report {
    check(moving, Options::default()).unwrap()
}

/// Clients put and delete a few hot keys at every moment while the region is looked at: nothing is found; and when they
/// have stopped, nothing is found either, nothing is "changed", and the accounts add up.
#[test]
fn a_region_under_load_raises_no_alarm() {
    let (mut questions, mut verbs) = (0, 0);
    for seed in 1..=3 {
        let words_per_verb = [1, 5, 50][seed as usize % 3];
        let mut moving = Moving::new(seed, words_per_verb, false);
        for round in 0..2 {
            let report = look(&mut moving);
            assert_eq!(report.findings.first(), None, "seed {seed} round {round}");
            assert!(report.accounts.is_balanced(), "seed {seed} round {round}: {:?}", report.accounts);
        }
        moving.stop();
        let report = look(&mut moving);
        assert_eq!((&report.findings[..], report.notes.changed), (&[][..], 0), "seed {seed}");
        assert!(report.accounts.is_balanced(), "seed {seed}: {:?}", report.accounts);
        questions += moving.questions;
        verbs += moving.verbs;
    }
    println!("{verbs} verbs of others, {questions} suspicions looked into");
    assert!(questions > 50, "{questions} suspicions: then this shows nothing");
}

/// The same while segments are rebuilt and split under it.
#[test]
fn a_rebuild_under_way_raises_no_alarm() {
    let (mut questions, mut sealed) = (0, 0);
    for seed in 1..=2 {
        let mut moving = Moving::new(seed, [2, 10][seed as usize % 2], true);
        for round in 0..3 {
            let report = look(&mut moving);
            assert_eq!(report.findings.first(), None, "seed {seed} round {round}");
            sealed += report.notes.sealed_buckets;
        }
        moving.stop();
        let report = look(&mut moving);
        assert_eq!((&report.findings[..], report.notes.changed), (&[][..], 0), "seed {seed}");
        assert_eq!(report.notes.sealed_buckets, 0, "seed {seed}");
        assert!(report.accounts.is_balanced(), "seed {seed}: {:?}", report.accounts);
        questions += moving.questions;
    }
    println!("{questions} suspicions looked into, {sealed} sealed buckets seen");
    assert!(questions > 100, "{questions} suspicions: then this shows nothing");
}

/// While segments are rebuilt and nobody else does anything, every key is somewhere, and a look finds it there: in the old
/// segment, or in the new one if the old one was replaced meanwhile.
#[test]
fn no_key_is_missed_while_segments_are_rebuilt() {
    for seed in 1..=2 {
        let mut moving = Moving::new(seed, 1, false);
        (0..3000).for_each(|_| moving.step());
        moving.stop();
        let keys = look(&mut moving).index.live;
        (moving.rebuild, moving.is_stopped, moving.is_rebuilt_only) = (Some(Rebuild::new(seed)), false, true);
        moving.words_per_verb = 1 + 9 * seed;
        let report = look(&mut moving);
        assert_eq!(report.findings.first(), None, "seed {seed}");
        assert!(
            report.index.live + report.index.moved >= keys,
            "seed {seed}: {keys} keys, {:?}",
            report.index
        );
        moving.stop();
        assert_eq!(look(&mut moving).index.live, keys, "seed {seed}");
    }
}

/// A dump that was made while segments were rebuilt, and clients worked too.
#[test]
fn a_dump_of_a_rebuild_under_way_raises_no_alarm() {
    for seed in 1..=6 {
        let mut moving = Moving::new(seed, [20, 200, 2000][seed as usize % 3], true);
        (0..seed * 1700).for_each(|_| moving.step());
        let file = memory_file();
        let written = dump::write(&mut moving, &file, None).unwrap();
        let report = check(&mut dump::Dump::open(file).unwrap(), Options::default()).unwrap();
        assert_eq!(report.findings.first(), None, "seed {seed}: {written:?}, {:?}", report.by_kind);
    }
}

/// A dump of a region under load is of many moments, and all the same nothing in it looks wrong: what changed meanwhile
/// is known. Damage to a slot that nobody touched is found in it.
#[test]
fn a_dump_under_load_raises_no_alarm_and_hides_no_damage() {
    let mut changed_words = 0;
    for seed in 1..=3 {
        let mut moving = Moving::new(seed, [3, 50, 500][seed as usize % 3], false);
        (0..3000).for_each(|_| moving.step());
        // A key that the others leave alone.
        let quiet = b"quiet";
        let (actor, running) = &mut moving.actors[3];
        assert!(running.as_ref().is_none_or(|running| running.answer.is_none()));
        let mut put = Running::new(Call::Put(quiet, b"untouched"));
        while !put.is_over() {
            put.verb(&mut moving.world, actor);
        }
        let file = memory_file();
        let written = dump::write(&mut moving, &file, None).unwrap();
        changed_words += written.changed_words;
        let mut opened = dump::Dump::open(file.try_clone().unwrap()).unwrap();
        assert_eq!(opened.is_still(), written.changed_words == 0);
        let report = check(&mut opened, Options::default()).unwrap();
        assert_eq!(report.findings.first(), None, "seed {seed}");
        assert!(report.accounts.is_balanced(), "seed {seed}: {:?}", report.accounts);

        // The byte of the free map of its block says that it is free.
        let region = Region::of(&moving.world);
        let of_quiet = region.slots().find(|slot| {
            let bytes = &region.bytes[slot.block.offset.0 as usize..][..slot.block.class.bytes() as usize];
            Block::parse(bytes, slot.block).is_ok_and(|block| block.key == quiet)
        });
        let block = of_quiet.unwrap().block;
        let mark = sidestep_common::layout::free_map_offset(block).unwrap();
        std::os::unix::fs::FileExt::write_all_at(&file, &[block.version.0], mark.0).unwrap();
        let report = check(&mut opened, Options::default()).unwrap();
        assert_eq!(report.count_of("marked-free"), 1, "seed {seed}: {:?}", report.by_kind);
    }
    assert!(changed_words > 0);
}
