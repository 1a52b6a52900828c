//! Regions of every age are taken over: whole, in the middle of each step of a rebuild, and damaged.

use std::collections::HashMap;
use std::ptr::NonNull;

use sidestep_common::layout::{
    BlockHeader, BlockMeta, CHUNK_BYTES, REGION_BYTES_MIN, Version, WriteId, free_map_offset,
};

use super::*;
use crate::janitor::rebuild::{Index, NewSegments, Rebuild};
use crate::janitor::slots::Slots;
use crate::region::Region;

const GRACE_MS: u64 = 700;

/// A region with keys, as another process left it.
struct Bed {
    _memory: Vec<u64>,
    words: WordMemory,
    superblock: Superblock,
    class: SizeClass,
    next_block: u64,
    keys: HashMap<Vec<u8>, BlockRef>,
}

impl Bed {
    /// Of one segment with so many keys, of which every fifth is deleted again.
    fn new(count: u64) -> Self {
        let mut memory = vec![0_u64; REGION_BYTES_MIN as usize / 8];
        let base = NonNull::new(memory.as_mut_ptr().cast()).unwrap();
        // SAFETY: the vector lives as long as the bed, and is not touched otherwise.
        let words = unsafe { WordMemory::new(base, REGION_BYTES_MIN) };
        let geometry = Geometry::for_region(REGION_BYTES_MIN).unwrap();
        let region = Region::format(words, geometry, AtomicityDomain::Cpu, 5000, 1, 1).unwrap();
        let superblock = region.superblock;
        let class = SizeClass::holding(100).unwrap();
        let mut bed = Self { _memory: memory, words, superblock, class, next_block: 0, keys: HashMap::new() };
        for number in 0..count {
            bed.insert(format!("key {number}").as_bytes(), number % 5 == 4);
        }
        bed
    }

    /// The free memory that the key's block gets, in the order of the chunks.
    fn block(&mut self, key: &[u8]) -> BlockRef {
        let each = u64::from(chunk_shape(self.class).block_count);
        let chunk = self.superblock.geometry.block_pool_offset.plus(self.next_block / each * CHUNK_BYTES);
        let place = BlockPlace { chunk, index: (self.next_block % each) as u32 };
        self.next_block += 1;
        let block = place.block(self.class, Version(3));
        let meta = BlockMeta { write_id: WriteId::new(1, self.next_block), expiry_tick: 0, user_flags: 0 };
        let header = BlockHeader::new(block, meta, key, b"value");
        self.words.write(block.offset, header.as_bytes()).unwrap();
        let content = [key, b"value"].concat();
        self.words.write(block.offset.plus(BLOCK_HEADER_BYTES as u64), &content).unwrap();
        block
    }

    fn slots(&self, key: &[u8]) -> Vec<(Offset, SlotWord)> {
        let geometry = self.superblock.geometry;
        let hash = KeyHash::of(key, self.superblock.hash_seed);
        let entry = geometry.directory_word_offset(hash.directory_index(geometry.directory_bits));
        let word = DirectoryWord::from_bits(self.words.load(entry).unwrap());
        let bucket = geometry.bucket_offset(word, hash).unwrap();
        let header = BucketHeader::from_bits(self.words.load(bucket).unwrap());
        assert!(header.serves(hash) && !header.sealed, "{header:?}");
        let slot = |number: u64| {
            let at = bucket.plus(BUCKET_HEADER_BYTES + 8 * number);
            (at, SlotWord::from_bits(self.words.load(at).unwrap()))
        };
        (0..SLOTS_PER_BUCKET as u64).map(slot).collect()
    }

    fn insert(&mut self, key: &[u8], deleted: bool) {
        let empty = self.slots(key).into_iter().find(|(_, word)| *word == SlotWord::EMPTY);
        let Some((at, _)) = empty else { return };
        let block = self.block(key);
        let tag = KeyHash::of(key, self.superblock.hash_seed).tag();
        if deleted {
            self.words.store(at, SlotWord::deleted(tag, block, false).bits()).unwrap();
        } else {
            self.words.store(at, SlotWord::live(tag, block, true).bits()).unwrap();
            self.keys.insert(key.to_vec(), block);
        }
    }

    fn take_over(&mut self) -> Result<Recovered, RecoveryError> {
        let life = NewLife { domain: AtomicityDomain::Cpu, grace_ms: GRACE_MS, incarnation: 77 };
        let recovered = take_over(self.words, life)?;
        self.superblock = recovered.superblock;
        Ok(recovered)
    }

    /// Every key is there once, and LIVE; nothing else is; free is what nobody has.
    fn check(&self, recovered: &Recovered) {
        assert_eq!(recovered.keys, self.keys.len() as u64);
        for (key, block) in &self.keys {
            let found = self
                .slots(key)
                .into_iter()
                .filter(|(_, word)| matches!(word.state(), SlotState::Live(found) if found == *block));
            assert_eq!(found.count(), 1, "{}", String::from_utf8_lossy(key));
            let slots = self.slots(key);
            for (_, word) in &slots {
                let state = word.state();
                assert!(!matches!(state, SlotState::Moved(_) | SlotState::Closed), "{state:?}");
            }
            let filled = slots.iter().take_while(|(_, word)| *word != SlotWord::EMPTY).count();
            assert!(slots[filled..].iter().all(|(_, word)| *word == SlotWord::EMPTY), "a hole before a key");
        }
        for chunk in &recovered.chunks {
            assert_eq!(chunk.class, self.class);
            let mut map = vec![0; chunk.versions.len()];
            self.words.read(Offset(chunk.offset), &mut map).unwrap();
            let free = map.iter().zip(&chunk.versions).filter(|(byte, version)| byte == version).count();
            let here =
                |block: &&BlockRef| (chunk.offset..chunk.offset + CHUNK_BYTES).contains(&block.offset.0);
            let live = self.keys.values().filter(here).count();
            assert!(free + live <= map.len(), "a block is free that a key has");
            for block in self.keys.values().filter(here) {
                let byte = free_map_offset(*block).unwrap().0 - chunk.offset;
                assert_eq!(chunk.versions[byte as usize], block.version.0);
            }
        }
    }
}

#[test]
fn a_whole_region_is_taken_over_as_it_is() {
    let mut bed = Bed::new(600);
    let seed = bed.superblock.hash_seed;
    bed.words.store(TICK_OFFSET, 123_456).unwrap();
    let recovered = bed.take_over().unwrap();
    bed.check(&recovered);
    assert_eq!((recovered.tick_ms, recovered.mended), (123_456, 0));
    let superblock = recovered.superblock;
    assert_eq!((superblock.incarnation, superblock.grace_ms, superblock.hash_seed), (77, GRACE_MS, seed));
    let mut bytes = [0; 256];
    bed.words.read(Offset(0), &mut bytes).unwrap();
    assert_eq!(Superblock::parse(&bytes), Ok(superblock));
    assert_eq!(recovered.chunks.len(), 1);
}

#[test]
fn an_empty_region_has_no_chunks() {
    let mut bed = Bed::new(0);
    let recovered = bed.take_over().unwrap();
    bed.check(&recovered);
    assert!(recovered.chunks.is_empty());
}

/// The process died after any number of the steps of a rebuild, words one by one around the borders. Then the one that
/// takes over dies too, before it is through: the next one finds the same keys.
#[test]
fn a_rebuild_is_finished_or_undone_wherever_it_was() {
    for into in [NewSegments::One(3), NewSegments::Two(3, 4)] {
        let mut steps = 0;
        loop {
            let mut bed = Bed::new(300);
            let geometry = bed.superblock.geometry;
            let word = DirectoryWord::from_bits(bed.words.load(geometry.directory_word_offset(0)).unwrap());
            let index = Index::new(geometry, bed.superblock.hash_seed);
            let mut rebuild = Rebuild::new(index, 0, word, into).unwrap();
            let mut slots = Slots::of_cpu(bed.words);
            for _ in 0..steps {
                // A prime number of words, so that a stop comes anywhere within buckets; entries of the directory one by one.
                let count = if format!("{:?}", rebuild.phase()).starts_with("Publish") { 1 } else { 97 };
                rebuild.step(&mut slots, count).unwrap();
            }
            let is_done = rebuild.is_done();
            let only_marks = format!("{:?}", rebuild.phase()).starts_with("Mark");
            let recovered = bed.take_over().unwrap_or_else(|error| panic!("{into:?} {steps}: {error}"));
            bed.check(&recovered);
            assert!(
                recovered.mended > 0 || is_done || only_marks || steps < 2,
                "{into:?} {steps}: nothing to mend?"
            );
            let again = bed.take_over().unwrap();
            bed.check(&again);
            assert_eq!(again.mended, 0, "{into:?} {steps}");
            if is_done {
                break;
            }
            steps += 1;
        }
        assert!(steps > 30, "{steps} steps are not all of them");
    }
}

#[test]
fn a_crash_while_the_superblock_is_written_is_survived() {
    let mut bed = Bed::new(10);
    bed.words.store(Offset(24), 1).unwrap();
    let recovered = bed.take_over().unwrap();
    bed.check(&recovered);
}

/// While one copy is bad it is the one that is written first: a second crash leaves the good one.
#[test]
fn the_bad_superblock_is_written_first() {
    let bed = Bed::new(0);
    let good = read_superblock(bed.words).unwrap();
    assert_eq!(good, (bed.superblock, SPARE_SUPERBLOCK_OFFSET));
    for (bad, first) in [(Offset(0), Offset(0)), (SPARE_SUPERBLOCK_OFFSET, SPARE_SUPERBLOCK_OFFSET)] {
        let torn = bed.words.load(bad.plus(24)).unwrap();
        bed.words.store(bad.plus(24), !torn).unwrap();
        assert_eq!(read_superblock(bed.words).unwrap(), (bed.superblock, first));
        bed.words.store(bad.plus(24), torn).unwrap();
    }
}

/// Whatever doesn't fit is named, and nothing is changed.
#[test]
fn damage_is_refused_and_left_alone() {
    type Damage = fn(&Bed) -> &'static str;
    let cases: [Damage; 9] = [
        |bed| {
            bed.words.store(Offset(0), 5).unwrap();
            bed.words.store(SPARE_SUPERBLOCK_OFFSET, 5).unwrap();
            "magic"
        },
        |bed| {
            let at = bed.superblock.geometry.directory_word_offset(3);
            bed.words.store(at, 0).unwrap();
            "names no segment"
        },
        |bed| {
            let geometry = bed.superblock.geometry;
            let word = DirectoryWord { segment: 1, generation: 9, depth: geometry.directory_bits };
            bed.words.store(geometry.directory_word_offset(0), word.to_bits()).unwrap();
            "header"
        },
        |bed| {
            bed.words.store(bed.superblock.geometry.segment_pool_offset, 12_345).unwrap();
            "header"
        },
        |bed| {
            let (at, _) = live(bed);
            bed.words.store(at, 1).unwrap();
            "no valid word"
        },
        |bed| {
            let (_, block) = live(bed);
            bed.words.store(block.offset.plus(40), 1).unwrap();
            "does not fit"
        },
        |bed| {
            let (at, block) = live(bed);
            let outside = BlockRef { offset: Offset(64), ..block };
            let tag = SlotWord::from_bits(bed.words.load(at).unwrap()).tag();
            bed.words.store(at, SlotWord::live(tag, outside, false).bits()).unwrap();
            "where no block can be"
        },
        |bed| {
            // A key in another bucket.
            let (at, _) = live(bed);
            let bucket = Offset(at.0 - at.0 % BUCKET_BYTES);
            let other = bed.superblock.geometry.segment_pool_offset;
            let other = if other == bucket { other.plus(BUCKET_BYTES) } else { other };
            bed.words.store(other.plus(BUCKET_BYTES - 8), bed.words.load(at).unwrap()).unwrap();
            "belongs elsewhere"
        },
        |bed| {
            // A key twice in its bucket.
            let (at, _) = live(bed);
            let bucket = Offset(at.0 - at.0 % BUCKET_BYTES);
            bed.words.store(bucket.plus(BUCKET_BYTES - 8), bed.words.load(at).unwrap()).unwrap();
            "twice"
        },
    ];
    for damage in cases {
        let mut bed = Bed::new(60);
        let expected = damage(&bed);
        let before: Vec<u64> =
            (0..REGION_BYTES_MIN / 8).map(|at| bed.words.load(Offset(8 * at)).unwrap()).collect();
        let error = bed.take_over().unwrap_err();
        assert!(error.to_string().contains(expected), "{expected}: {error}");
        let after: Vec<u64> =
            (0..REGION_BYTES_MIN / 8).map(|at| bed.words.load(Offset(8 * at)).unwrap()).collect();
        assert!(before == after, "{expected}: it was changed");
    }
}

/// The first key's slot and block.
fn live(bed: &Bed) -> (Offset, BlockRef) {
    let key = bed.keys.keys().min().unwrap();
    let found = bed.slots(key).into_iter().find_map(|(at, word)| match word.state() {
        SlotState::Live(block) if bed.keys[key] == block => Some((at, block)),
        _ => None,
    });
    found.unwrap()
}

#[test]
fn another_domain_or_length_is_refused() {
    let bed = Bed::new(1);
    let life = NewLife { domain: AtomicityDomain::Nic, grace_ms: GRACE_MS, incarnation: 1 };
    let error = take_over(bed.words, life).unwrap_err();
    assert!(matches!(error, RecoveryError::Domain { .. }), "{error}");
    let base = bed.words.base();
    // SAFETY: half of the memory that the bed keeps.
    let half = unsafe { WordMemory::new(base, REGION_BYTES_MIN / 2) };
    let life = NewLife { domain: AtomicityDomain::Cpu, ..life };
    assert!(matches!(take_over(half, life), Err(RecoveryError::Length { .. })));
}
