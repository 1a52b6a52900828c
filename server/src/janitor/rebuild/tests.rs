//! Rebuilds of a real segment in real memory.

use std::collections::{HashMap, HashSet};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use sidestep_common::layout::{
    BlockHeader, BlockMeta, BlockPlace, CHUNK_BYTES, REGION_BYTES_MIN, SizeClass, Version, WriteId,
    chunk_shape,
};
use sidestep_common::memory::WordMemory;

use super::super::slots::{SlotError, Slots};
use super::*;

const SEED: u64 = 5;

/// A region with one segment, number 0, which all of the directory names, and chunks of blocks.
struct Bed {
    _memory: Vec<u64>,
    words: WordMemory,
    index: Index,
    class: SizeClass,
    next_block: AtomicU64,
}

impl Bed {
    fn new() -> Self {
        let geometry = Geometry::for_region(REGION_BYTES_MIN).unwrap();
        let mut memory = vec![0_u64; geometry.region_bytes as usize / 8];
        let base = NonNull::new(memory.as_mut_ptr().cast()).unwrap();
        // SAFETY: the vector lives as long as the bed, and is not touched otherwise.
        let words = unsafe { WordMemory::new(base, geometry.region_bytes) };
        let index = Index::new(geometry, SEED);
        let word = DirectoryWord { segment: 0, generation: 1, depth: 0 };
        for entry in 0..geometry.directory_entries() {
            words.store(geometry.directory_word_offset(entry), word.to_bits()).unwrap();
        }
        let header = BucketHeader { depth: 0, prefix: 0, generation: 1, sealed: false };
        for bucket in 0..BUCKETS_PER_SEGMENT {
            let at = geometry.segment_pool_offset.plus(bucket * BUCKET_BYTES);
            words.store(at, header.to_bits()).unwrap();
        }
        let class = SizeClass::holding(100).unwrap();
        Self { _memory: memory, words, index, class, next_block: AtomicU64::new(0) }
    }

    fn word(&self, entry: u32) -> DirectoryWord {
        let place = self.index.geometry.directory_word_offset(u64::from(entry));
        DirectoryWord::from_bits(self.words.load(place).unwrap())
    }

    fn hash(&self, key: &[u8]) -> KeyHash {
        KeyHash::of(key, SEED)
    }

    /// A block of its own with this key.
    fn block(&self, key: &[u8], version: Version) -> BlockRef {
        let number = self.next_block.fetch_add(1, Ordering::Relaxed);
        let a_chunk = u64::from(chunk_shape(self.class).block_count);
        let chunk = self.index.geometry.block_pool_offset.plus(number / a_chunk * CHUNK_BYTES);
        let place = BlockPlace { chunk, index: (number % a_chunk) as u32 };
        let block = place.block(self.class, version);
        let meta = BlockMeta { write_id: WriteId::new(1, number), expiry_tick: 0, user_flags: 0 };
        let value = number.to_le_bytes();
        let header = BlockHeader::new(block, meta, key, &value);
        self.words.write(block.offset, header.as_bytes()).unwrap();
        self.words.write(block.offset.plus(BLOCK_HEADER_BYTES as u64), &[key, &value].concat()).unwrap();
        block
    }

    /// The slots of the bucket for `hash`, through the directory, with their places.
    fn slots(&self, hash: KeyHash) -> Vec<(Offset, SlotWord)> {
        let entry = hash.directory_index(self.index.geometry.directory_bits) as u32;
        let bucket = self.index.geometry.bucket_offset(self.word(entry), hash).unwrap();
        let header = BucketHeader::from_bits(self.words.load(bucket).unwrap());
        assert!(header.serves(hash) && !header.sealed, "{header:?}");
        (0..SLOTS_PER_BUCKET)
            .map(|number| {
                let at = slot(bucket, number);
                (at, SlotWord::from_bits(self.words.load(at).unwrap()))
            })
            .collect()
    }

    /// The slots with the key.
    fn find(&self, key: &[u8]) -> Vec<(Offset, SlotWord)> {
        let hash = self.hash(key);
        let mut found = self.slots(hash);
        found.retain(|(_, word)| {
            let (SlotState::Live(block) | SlotState::Deleted(block)) = word.state() else { return false };
            let mut bytes = vec![0; key.len()];
            self.words.read(block.offset.plus(BLOCK_HEADER_BYTES as u64), &mut bytes).unwrap();
            word.tag() == hash.tag() && bytes == key
        });
        found
    }

    /// Puts the key into the first EMPTY slot; `None` if there is none.
    fn insert(&self, key: &[u8], deleted: bool) -> Option<SlotWord> {
        let hash = self.hash(key);
        let (at, _) = self.slots(hash).into_iter().find(|(_, word)| *word == SlotWord::EMPTY)?;
        let block = self.block(key, Version(3));
        let word = if deleted {
            SlotWord::deleted(hash.tag(), block, false)
        } else {
            SlotWord::live(hash.tag(), block, true)
        };
        self.words.store(at, word.bits()).unwrap();
        Some(word)
    }

    fn rebuild(&self, into: NewSegments) -> Rebuild {
        Rebuild::new(self.index, 0, self.word(0), into).unwrap()
    }

    fn marked(&self, block: BlockRef) -> bool {
        let mut byte = [0];
        self.words.read(free_map_offset(block).unwrap(), &mut byte).unwrap();
        byte[0] == block.version.0
    }

    fn run(&self, into: NewSegments) -> Rebuild {
        let mut rebuild = self.rebuild(into);
        rebuild.run_through(&mut Slots::of_cpu(self.words)).unwrap();
        rebuild
    }
}

fn key(number: u32) -> Vec<u8> {
    format!("key {number}").into_bytes()
}

/// Keys until buckets are full; every key is there once afterwards, in the half of its hash, and can be changed.
#[test]
fn a_split_keeps_every_key_once() {
    let bed = Bed::new();
    let mut words = HashMap::new();
    for number in 0..3000 {
        if let Some(word) = bed.insert(&key(number), false) {
            words.insert(number, word);
        }
    }
    assert!(words.len() > 1800, "{}", words.len());
    let rebuild = bed.run(NewSegments::Two(1, 2));
    assert_eq!(rebuild.tally(), Tally { moved: words.len(), dropped: 0, lost_swaps: 0, ..Tally::default() });
    assert_eq!(rebuild.run(), DirectoryRun { first: 0, count: 32 });
    for entry in 0..32 {
        let expected = DirectoryWord { segment: 1 + entry / 16, generation: 2, depth: 1 };
        assert_eq!(bed.word(entry), expected);
    }
    for (number, word) in &words {
        let found = bed.find(&key(*number));
        assert_eq!(found.iter().map(|entry| entry.1).collect::<Vec<_>>(), [*word], "{number}");
    }
    // A second generation, each half by itself; and a third.
    for (entry, segments) in [(0, (3, 4)), (16, (5, 6)), (24, (7, 8))] {
        let (low, high) = segments;
        let mut rebuild =
            Rebuild::new(bed.index, entry, bed.word(entry), NewSegments::Two(low, high)).unwrap();
        rebuild.run_through(&mut Slots::of_cpu(bed.words)).unwrap();
    }
    assert_eq!(bed.word(31), DirectoryWord { segment: 8, generation: 4, depth: 3 });
    for (number, word) in &words {
        let found = bed.find(&key(*number));
        assert_eq!(found.iter().map(|entry| entry.1).collect::<Vec<_>>(), [*word], "{number}");
    }
}

/// Each slot of the segment taken: into one it is the same again, and clients see SEALED in the old one.
#[test]
fn a_full_segment_is_moved_whole() {
    let bed = Bed::new();
    let mut words = HashSet::new();
    for number in 0.. {
        if words.len() == bed.index.slots() {
            break;
        }
        words.extend(bed.insert(&key(number), false).map(SlotWord::bits));
    }
    let rebuild = bed.run(NewSegments::One(5));
    assert_eq!(rebuild.tally().moved, bed.index.slots());
    assert_eq!(bed.word(31), DirectoryWord { segment: 5, generation: 2, depth: 0 });
    let old = bed.index.geometry.segment_pool_offset;
    let new = old.plus(5 * 16384);
    let mut moved = HashSet::new();
    for number in 0..bed.index.slots() {
        let word = SlotWord::from_bits(bed.words.load(slot(old, number)).unwrap());
        assert!(matches!(word.state(), SlotState::Moved(_)), "{word:?}");
        moved.insert(bed.words.load(slot(new, number)).unwrap());
        let header = bed.words.load(old.plus(number as u64 / 31 * BUCKET_BYTES)).unwrap();
        assert!(BucketHeader::from_bits(header).sealed);
    }
    assert_eq!(moved, words);
}

/// Nothing but deleted keys: all slots are EMPTY afterwards, and each block is marked with its version.
#[test]
fn a_dead_segment_becomes_an_empty_one() {
    let bed = Bed::new();
    let dead: Vec<SlotWord> = (0..1500).filter_map(|number| bed.insert(&key(number), true)).collect();
    let mut rebuild = bed.rebuild(NewSegments::One(2));
    let mut slots = Slots::of_cpu(bed.words);
    let blocks: Vec<BlockRef> = dead
        .iter()
        .map(|word| match word.state() {
            SlotState::Deleted(block) => block,
            state => panic!("{state:?}"),
        })
        .collect();
    while !matches!(rebuild.phase(), Phase::Mark(_)) {
        assert!(!blocks.iter().any(|block| bed.marked(*block)), "{:?}", rebuild.phase());
        rebuild.step(&mut slots, STEP_WORDS).unwrap();
    }
    rebuild.run_through(&mut slots).unwrap();
    assert_eq!(rebuild.tally(), Tally { moved: 0, dropped: dead.len(), lost_swaps: 0, ..Tally::default() });
    assert!(blocks.iter().all(|block| bed.marked(*block)));
    for number in 0..1500 {
        assert_eq!(bed.find(&key(number)), []);
        assert!(bed.slots(bed.hash(&key(number))).iter().all(|(_, word)| *word == SlotWord::EMPTY));
    }
}

/// What must be true between any two words of a rebuild, whoever looks.
#[test]
fn every_step_keeps_the_order() {
    let bed = Bed::new();
    for number in 0..800 {
        bed.insert(&key(number), number % 3 == 0);
    }
    let mut rebuild = bed.rebuild(NewSegments::Two(1, 2));
    let old = bed.index.geometry.segment_pool_offset;
    let count = bed.index.slots();
    let mut slots = Slots::of_cpu(bed.words);
    let is_sealed = |start: Offset, number| {
        let word = SlotWord::from_bits(bed.words.load(slot(start, number)).unwrap());
        matches!(word.state(), SlotState::Moved(_) | SlotState::Closed)
    };
    let header = |start: Offset, bucket: u64| {
        BucketHeader::from_bits(bed.words.load(start.plus(bucket * BUCKET_BYTES)).unwrap())
    };
    let mut steps = 0;
    while !rebuild.is_done() {
        let before = rebuild.phase();
        rebuild.step(&mut slots, 1).unwrap();
        steps += 1;
        // Looking at all of it each time would take minutes.
        if steps % 97 != 0 && std::mem::discriminant(&before) == std::mem::discriminant(&rebuild.phase()) {
            continue;
        }
        let old_sealed = (0..count).all(|number| is_sealed(old, number));
        let headers_sealed = (0..64).all(|bucket| header(old, bucket).sealed);
        let published = (0..32).filter(|entry| bed.word(*entry).segment != 0).count();
        let opened = [1, 2].iter().any(|segment| {
            let start = old.plus(segment * 16384);
            header(start, 63).generation != 0 && (0..count).any(|number| !is_sealed(start, number))
        });
        match rebuild.phase() {
            Phase::Look(_) | Phase::Seal(_) => assert!(!headers_sealed && published == 0),
            Phase::Build(_) => assert!(old_sealed && !headers_sealed && published == 0),
            Phase::Headers(_) => assert!(old_sealed && published == 0 && !opened),
            Phase::Publish(at) => assert!(old_sealed && headers_sealed && published == at && !opened),
            Phase::Unseal(_) | Phase::Mark(_) | Phase::Done => {
                assert!(old_sealed && headers_sealed && published == 32);
            }
        }
    }
    // Look and swap, build (all of a bucket), headers, entries, two segments to open, marks.
    assert!(steps > 4 * count, "{steps}");
}

/// One block is not what its slot names. Which half it belongs to can't be told, so the segment isn't split.
#[test]
fn what_does_not_fit_is_not_split() {
    for damage in 0..4 {
        let bed = Bed::new();
        let words: Vec<SlotWord> = (0..500).filter_map(|number| bed.insert(&key(number), false)).collect();
        let SlotState::Live(block) = words[77].state() else { panic!() };
        match damage {
            0 => bed.words.write(block.offset.plus(18), &[99]).unwrap(),
            1 => bed.words.write(block.offset.plus(16), &[255, 255]).unwrap(),
            2 => bed.words.write(block.offset.plus(BLOCK_HEADER_BYTES as u64), b"another").unwrap(),
            _ => {
                let (at, word) = bed.find(&key(77))[0];
                assert_eq!(word, words[77]);
                // Of no class that is.
                bed.words.store(at, word.bits() | 0x7f << 43).unwrap();
            }
        }
        let rebuild = bed.run(NewSegments::Two(1, 2));
        assert_eq!(rebuild.tally().unfit, 1, "damage {damage}");
        assert_eq!(rebuild.tally().moved, words.len());
        let one = DirectoryWord { segment: 1, generation: 2, depth: 0 };
        assert_eq!(rebuild.new_words().collect::<Vec<_>>(), [one]);
        assert_eq!((bed.word(0), bed.word(31)), (one, one));
        for (number, word) in words.iter().enumerate().filter(|(number, _)| *number != 77) {
            assert_eq!(bed.find(&key(number as u32))[0].1, *word);
        }
    }
}

/// Clients change their keys all the while, each its own, with a block a change. What a client's last CAS published is
/// there at the end; every block that it unlinked it marks itself, and none is marked that is in use.
#[test]
fn clients_that_go_on_lose_nothing() {
    const CLIENTS: u32 = 3;
    const KEYS: u32 = 40;
    let bed = Bed::new();
    for number in 0..CLIENTS * KEYS {
        bed.insert(&key(number), false).unwrap();
    }
    let stop = AtomicBool::new(false);
    let (lost, last) = std::thread::scope(|scope| {
        let clients: Vec<_> = (0..CLIENTS)
            .map(|client| {
                let (bed, stop) = (&bed, &stop);
                scope.spawn(move || {
                    let mut last: HashMap<u32, SlotWord> = HashMap::new();
                    let mut round = 0_u32;
                    while !stop.load(Ordering::Relaxed) || last.len() < KEYS as usize {
                        let number = client * KEYS + round % KEYS;
                        round += 1;
                        // The next version of the same block: nobody reads it in this test but its owner.
                        let Some((at, word)) = found_open(bed, &key(number)) else { continue };
                        let (SlotState::Live(block) | SlotState::Deleted(block)) = word.state() else {
                            panic!("{word:?}")
                        };
                        let block = BlockRef { version: block.version.next(), ..block };
                        bed.words.write(block.offset.plus(18), &[block.version.0]).unwrap();
                        let tag = bed.hash(&key(number)).tag();
                        let new = SlotWord::live(tag, block, true);
                        let old = bed.words.compare_swap(at, word.bits(), new.bits()).unwrap();
                        if old == word.bits() {
                            last.insert(number, new);
                        } else {
                            assert_eq!(old, word.to_moved().bits(), "only a rebuild was in the way");
                        }
                    }
                    last
                })
            })
            .collect();
        let mut lost = 0;
        // From segment to segment, each freed when nobody of this test can use it: never.
        for segment in 1..20 {
            let mut rebuild = bed.rebuild(NewSegments::One(segment));
            rebuild.run_through(&mut Polite(Slots::of_cpu(bed.words), segment)).unwrap();
            assert_eq!(rebuild.tally().moved, (CLIENTS * KEYS) as usize);
            lost += rebuild.tally().lost_swaps;
        }
        stop.store(true, Ordering::Relaxed);
        let mut last = HashMap::new();
        for client in clients {
            last.extend(client.join().unwrap());
        }
        (lost, last)
    });
    println!("{lost} swaps lost to clients");
    assert_eq!(last.len(), (CLIENTS * KEYS) as usize);
    for (number, word) in last {
        let found = bed.find(&key(number));
        assert_eq!(found.iter().map(|entry| entry.1).collect::<Vec<_>>(), [word], "{number}");
    }
}

/// Lets others run between the look at a slot and the swap.
struct Polite(Slots, u32);

impl Words for Polite {
    type Error = SlotError;

    fn load(&mut self, at: Offset) -> Result<u64, SlotError> {
        self.0.load(at)
    }

    fn read(&mut self, at: Offset, into: &mut [u8]) -> Result<(), SlotError> {
        self.0.read(at, into)
    }

    fn store(&mut self, at: Offset, word: u64) -> Result<(), SlotError> {
        self.0.store(at, word)
    }

    fn mark(&mut self, at: Offset, version: u8) -> Result<(), SlotError> {
        self.0.mark(at, version)
    }

    fn swap(&mut self, swaps: &mut [Swap]) -> Result<(), SlotError> {
        self.1 += 1;
        if self.1.is_multiple_of(8) {
            std::thread::yield_now();
        }
        self.0.swap(swaps)
    }
}

/// A client is faster each time, three times in a row: its newest word is the one that goes on, and what it unlinked is its
/// own to mark.
#[test]
fn what_changes_between_look_and_seal_goes_on_as_it_is_then() {
    struct Quick<'b> {
        bed: &'b Bed,
        slots: Slots,
        keys: [&'static [u8]; 3],
        left: u32,
    }

    impl Words for Quick<'_> {
        type Error = SlotError;

        fn load(&mut self, at: Offset) -> Result<u64, SlotError> {
            self.slots.load(at)
        }

        fn read(&mut self, at: Offset, into: &mut [u8]) -> Result<(), SlotError> {
            self.slots.read(at, into)
        }

        fn store(&mut self, at: Offset, word: u64) -> Result<(), SlotError> {
            self.slots.store(at, word)
        }

        fn mark(&mut self, at: Offset, version: u8) -> Result<(), SlotError> {
            self.slots.mark(at, version)
        }

        fn swap(&mut self, swaps: &mut [Swap]) -> Result<(), SlotError> {
            if self.left > 0 {
                self.left -= 1;
                let bed = self.bed;
                for (number, key) in self.keys.into_iter().enumerate() {
                    let tag = bed.hash(key).tag();
                    let block = bed.block(key, Version(1));
                    // Changed, deleted and put by turns, inserted.
                    let new = match (number, self.left % 2) {
                        (1, 1) => SlotWord::live(tag, block, false),
                        (1, _) => SlotWord::deleted(tag, block, false),
                        _ => SlotWord::live(tag, block, true),
                    };
                    let at = bed.find(key).first().map_or_else(
                        || {
                            bed.slots(bed.hash(key))
                                .into_iter()
                                .find(|slot| slot.1 == SlotWord::EMPTY)
                                .unwrap()
                                .0
                        },
                        |found| found.0,
                    );
                    bed.words.store(at, new.bits()).unwrap();
                }
            }
            self.slots.swap(swaps)
        }
    }

    let bed = Bed::new();
    // All in the first buckets, which are sealed in one step.
    let is_early = |key: &Vec<u8>| bed.hash(key).bucket_index() < 8;
    let keys: Vec<&'static [u8]> = (0..).map(key).filter(is_early).take(3).map(|key| &*key.leak()).collect();
    bed.insert(keys[0], false).unwrap();
    let first_deleted = bed.insert(keys[1], true).unwrap();
    let mut words =
        Quick { bed: &bed, slots: Slots::of_cpu(bed.words), keys: [keys[0], keys[1], keys[2]], left: 3 };
    let mut rebuild = bed.rebuild(NewSegments::One(1));
    rebuild.run_through(&mut words).unwrap();
    let tally = rebuild.tally();
    assert_eq!((tally.moved, tally.dropped, tally.lost_swaps), (2, 1, 9));
    let SlotState::Deleted(block) = first_deleted.state() else { panic!() };
    assert!(!bed.marked(block), "who put over it marks it");
    let live =
        |key| bed.find(key).iter().filter(|(_, word)| matches!(word.state(), SlotState::Live(_))).count();
    assert_eq!([live(keys[0]), live(keys[1]), live(keys[2])], [1, 0, 1]);
}

/// The slot of a key as a client finds it; none while its segment is rebuilt.
fn found_open(bed: &Bed, key: &[u8]) -> Option<(Offset, SlotWord)> {
    let hash = bed.hash(key);
    let entry = hash.directory_index(bed.index.geometry.directory_bits) as u32;
    let bucket = bed.index.geometry.bucket_offset(bed.word(entry), hash).unwrap();
    for number in 0..SLOTS_PER_BUCKET {
        let at = slot(bucket, number);
        let word = SlotWord::from_bits(bed.words.load(at).unwrap());
        let SlotState::Live(block) = word.state() else { continue };
        let mut bytes = vec![0; key.len()];
        bed.words.read(block.offset.plus(BLOCK_HEADER_BYTES as u64), &mut bytes).unwrap();
        if word.tag() == hash.tag() && bytes == key {
            let header = BucketHeader::from_bits(bed.words.load(bucket).unwrap());
            return (!header.sealed).then_some((at, word));
        }
    }
    None
}

/// Words whose swaps fail now and then, before or after they took effect, all or half of them.
struct Failing {
    slots: Slots,
    calls: u32,
}

impl Words for Failing {
    type Error = &'static str;

    fn load(&mut self, at: Offset) -> Result<u64, Self::Error> {
        self.slots.load(at).map_err(|_| "load")
    }

    fn read(&mut self, at: Offset, into: &mut [u8]) -> Result<(), Self::Error> {
        self.slots.read(at, into).map_err(|_| "read")
    }

    fn store(&mut self, at: Offset, word: u64) -> Result<(), Self::Error> {
        self.slots.store(at, word).map_err(|_| "store")
    }

    fn mark(&mut self, at: Offset, version: u8) -> Result<(), Self::Error> {
        self.slots.mark(at, version).map_err(|_| "mark")
    }

    fn swap(&mut self, swaps: &mut [Swap]) -> Result<(), Self::Error> {
        self.calls += 1;
        let tried = match self.calls % 4 {
            0 => swaps.len(),
            1 => swaps.len() / 2,
            2 => 0,
            _ => {
                self.slots.swap(swaps).map_err(|_| "swap")?;
                return Ok(());
            }
        };
        // The answers are lost.
        let mut unheard = swaps[..tried].to_vec();
        self.slots.swap(&mut unheard).map_err(|_| "swap")?;
        Err("lost")
    }
}

/// Answers of swaps are lost: the rebuild goes on where it was, and what is there at the end is what would be otherwise.
#[test]
fn lost_answers_lose_nothing() {
    for into in [NewSegments::One(1), NewSegments::Two(1, 2)] {
        let bed = Bed::new();
        let words: Vec<Option<SlotWord>> =
            (0..900).map(|number| bed.insert(&key(number), number % 2 == 0)).collect();
        let mut rebuild = bed.rebuild(into);
        let mut failing = Failing { slots: Slots::of_cpu(bed.words), calls: 0 };
        let mut failures = 0;
        while let Err(error) = rebuild.run_through(&mut failing) {
            assert_eq!(error, "lost");
            failures += 1;
        }
        assert!(failures > 20, "{failures}");
        let dead = words.iter().step_by(2).flatten().count();
        let live = words.iter().skip(1).step_by(2).flatten().count();
        assert_eq!(rebuild.tally(), Tally { moved: live, dropped: dead, lost_swaps: 0, ..Tally::default() });
        for (number, word) in words.iter().enumerate() {
            let Some(word) = word else { continue };
            let found: Vec<SlotWord> =
                bed.find(&key(number as u32)).into_iter().map(|entry| entry.1).collect();
            let (SlotState::Live(block) | SlotState::Deleted(block)) = word.state() else { panic!() };
            if number % 2 == 0 {
                assert!(found.is_empty() && bed.marked(block));
            } else {
                assert!(found == [*word] && !bed.marked(block));
            }
        }
    }
}

/// A client that keeps to no protocol changes sealed slots, old and new. Nothing is lost but what it did itself.
#[test]
fn who_changes_sealed_slots_stops_nothing() {
    let bed = Bed::new();
    let words: Vec<SlotWord> = (0..200).filter_map(|number| bed.insert(&key(number), false)).collect();
    let places: Vec<Offset> = (0..4).map(|number| bed.find(&key(number))[0].0).collect();
    let mut rebuild = bed.rebuild(NewSegments::One(1));
    let mut slots = Slots::of_cpu(bed.words);
    while rebuild.phase() != Phase::Build(0) {
        rebuild.step(&mut slots, STEP_WORDS).unwrap();
    }
    bed.words.store(places[0], SlotWord::EMPTY.bits()).unwrap();
    bed.words.store(places[1], words[1].bits()).unwrap();
    while rebuild.phase() != Phase::Unseal(0) {
        rebuild.step(&mut slots, STEP_WORDS).unwrap();
    }
    // Already LIVE, where the rebuild would make it so.
    let (at, moved) =
        bed.slots(bed.hash(&key(2))).into_iter().find(|(_, word)| *word == words[2].to_moved()).unwrap();
    bed.words.store(at, moved.to_live().bits()).unwrap();
    rebuild.run_through(&mut slots).unwrap();
    assert_eq!((rebuild.tally().moved, rebuild.tally().disturbed), (199, 3));
    assert_eq!(bed.find(&key(0)), []);
    for (number, word) in words.iter().enumerate().skip(1) {
        assert_eq!(bed.find(&key(number as u32))[0].1, *word, "{number}");
    }
}

#[test]
fn what_cannot_be_rebuilt_is_refused() {
    let bed = Bed::new();
    let word = bed.word(0);
    assert!(Rebuild::new(bed.index, 0, word, NewSegments::One(36)).is_none(), "the pool has 36");
    let deepest = DirectoryWord { depth: bed.index.geometry.directory_bits, ..word };
    assert!(Rebuild::new(bed.index, 0, deepest, NewSegments::Two(1, 2)).is_none());
    assert!(Rebuild::new(bed.index, 0, DirectoryWord { depth: 63, ..word }, NewSegments::One(1)).is_none());
}

/// How long writers of a segment wait. `cargo test --release -- --ignored --nocapture how_long`
#[test]
#[ignore = "a measurement"]
fn how_long_a_rebuild_takes() {
    for into in [NewSegments::One(1), NewSegments::Two(1, 2)] {
        let mut times = Vec::new();
        for _ in 0..31 {
            let bed = Bed::new();
            let mut filled = 0;
            for number in 0..40_000 {
                filled += usize::from(bed.insert(&key(number), false).is_some());
            }
            let mut rebuild = bed.rebuild(into);
            let start = std::time::Instant::now();
            rebuild.run_through(&mut Slots::of_cpu(bed.words)).unwrap();
            times.push(start.elapsed());
            assert_eq!(rebuild.tally().moved, filled);
        }
        times.sort();
        println!("{into:?}: median {:?}, longest {:?}", times[15], times[30]);
    }
}
