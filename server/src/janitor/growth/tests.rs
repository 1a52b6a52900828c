//! An index that grows as it is told: reports, rebuilds, and what nothing can help.

use std::ptr::NonNull;

use sidestep_common::hash::KeyHash;
use sidestep_common::layout::{
    AtomicityDomain, BLOCK_HEADER_BYTES, BUCKETS_PER_SEGMENT, BlockHeader, BlockMeta, BlockPlace, BlockRef,
    BucketHeader, CHUNK_BYTES, Geometry, Offset, REGION_BYTES_MIN, SizeClass, SlotState, SlotWord, Version,
    WriteId, chunk_shape,
};

use super::super::rebuild::slot;
use super::*;
use crate::region::Region;

/// A small store, with a region of 32 entries and 36 segments.
struct Bed {
    growth: Growth,
    superblock: Superblock,
    words: WordMemory,
    blocks: u64,
    /// Behind what uses it.
    _memory: Vec<u64>,
}

fn bed(segments: u64) -> Bed {
    let geometry = Geometry::for_region(REGION_BYTES_MIN).unwrap();
    let mut memory = vec![0_u64; geometry.region_bytes as usize / 8];
    let base = NonNull::new(memory.as_mut_ptr().cast()).unwrap();
    // SAFETY: the vector lives as long as the bed, and is not touched otherwise.
    let words = unsafe { WordMemory::new(base, geometry.region_bytes) };
    let region = Region::format(words, geometry, AtomicityDomain::Cpu, 1000, segments, 1).unwrap();
    let superblock = region.superblock;
    let growth = Growth::new(&superblock, words, Slots::of_cpu(words));
    Bed { growth, superblock, words, blocks: 0, _memory: memory }
}

impl Bed {
    fn geometry(&self) -> &Geometry {
        &self.superblock.geometry
    }

    fn word(&self, entry: u32) -> DirectoryWord {
        let place = self.geometry().directory_word_offset(u64::from(entry));
        DirectoryWord::from_bits(self.words.load(place).unwrap())
    }

    fn hash(&self, key: &[u8]) -> KeyHash {
        KeyHash::of(key, self.superblock.hash_seed)
    }

    fn entry(&self, key: &[u8]) -> u32 {
        self.hash(key).directory_index(self.geometry().directory_bits) as u32
    }

    fn report(&self, entry: u32, full: bool) -> Result<bool, IndexFull> {
        self.growth.report(BucketReport { entry, generation: self.word(entry).generation, full })
    }

    /// The slots of the key's bucket.
    fn slots(&self, key: &[u8]) -> Vec<(Offset, SlotWord)> {
        let hash = self.hash(key);
        let bucket = self.geometry().bucket_offset(self.word(self.entry(key)), hash).unwrap();
        let header = BucketHeader::from_bits(self.words.load(bucket).unwrap());
        assert!(header.serves(hash) && !header.sealed, "{header:?}");
        (0..SLOTS_PER_BUCKET)
            .map(|number| {
                let at = slot(bucket, number);
                (at, SlotWord::from_bits(self.words.load(at).unwrap()))
            })
            .collect()
    }

    /// Puts a key into its bucket's first EMPTY slot; `None` if there is none. All keys share a few blocks: this index is
    /// looked at by nobody who reads values.
    fn insert(&mut self, key: &[u8], deleted: bool) -> Option<BlockRef> {
        let (at, _) = self.slots(key).into_iter().find(|(_, word)| *word == SlotWord::EMPTY)?;
        let class = SizeClass::holding((BLOCK_HEADER_BYTES + key.len()) as u64).unwrap();
        let a_chunk = u64::from(chunk_shape(class).block_count);
        let chunk = self.geometry().block_pool_offset.plus(self.blocks / a_chunk * CHUNK_BYTES);
        let block = BlockPlace { chunk, index: (self.blocks % a_chunk) as u32 }.block(class, Version(1));
        let meta = BlockMeta { write_id: WriteId::new(1, self.blocks), expiry_tick: 0, user_flags: 0 };
        self.blocks += 1;
        self.words.write(block.offset, BlockHeader::new(block, meta, key, b"").as_bytes()).unwrap();
        self.words.write(block.offset.plus(BLOCK_HEADER_BYTES as u64), key).unwrap();
        let tag = self.hash(key).tag();
        let word =
            if deleted { SlotWord::deleted(tag, block, false) } else { SlotWord::live(tag, block, false) };
        self.words.store(at, word.bits()).unwrap();
        Some(block)
    }

    fn has(&self, key: &[u8]) -> bool {
        let tag = self.hash(key).tag();
        self.slots(key).iter().any(|(_, word)| {
            let SlotState::Live(block) = word.state() else { return false };
            let mut bytes = vec![0; key.len()];
            self.words.read(block.offset.plus(BLOCK_HEADER_BYTES as u64), &mut bytes).unwrap();
            word.tag() == tag && bytes == key
        })
    }

    /// One piece of the janitor's work; what replaced what, to be recycled in `epoch`.
    fn work(&self, epoch: u64) -> Option<Rebuilt> {
        match self.growth.work() {
            Did::Rebuilt(rebuilt) => {
                self.growth.replaced(&rebuilt, epoch);
                Some(rebuilt)
            }
            Did::Nothing => None,
            other => panic!("{other:?}"),
        }
    }
}

fn key(number: u32) -> Vec<u8> {
    number.to_le_bytes().to_vec()
}

/// Keys that are all of one bucket, whatever the segment's depth.
fn keys_of_one_bucket(bed: &Bed, count: usize) -> Vec<Vec<u8>> {
    let same = |key: &Vec<u8>| (bed.entry(key), bed.hash(key).bucket_index());
    let first = same(&key(0));
    (0..).map(key).filter(|key| same(key) == first).take(count).collect()
}

/// A store that begins with one segment takes keys until its directory can name no more segments; every key stays.
#[test]
fn an_index_grows_to_its_full_size() {
    let mut bed = bed(1);
    let mut count = 0;
    let mut epoch = 1;
    let full = loop {
        let name = key(count);
        if bed.insert(&name, false).is_some() {
            count += 1;
            continue;
        }
        match bed.report(bed.entry(&name), true) {
            Ok(is_news) => assert!(is_news),
            Err(full) => break full,
        }
        let rebuilt = bed.work(epoch).expect("a full bucket is a reason");
        assert_eq!((rebuilt.new.len(), rebuilt.tally.unfit), (2, 0));
        epoch += 1;
        bed.growth.recycle(epoch);
    };
    assert_eq!((full.depth, full.depth_max), (5, 5));
    assert!(full.to_string().contains("depth 5 of 5"), "{full}");
    let figures = bed.growth.figures();
    assert!(figures.segments_serving > 16 && figures.splits_total == figures.segments_serving - 1);
    assert_eq!((figures.rebuilds_total, figures.segments_retired), (figures.splits_total, 0));
    let slots = 32 * BUCKETS_PER_SEGMENT * SLOTS_PER_BUCKET as u64;
    println!(
        "{count} keys in {} segments, {}% of all slots",
        figures.segments_serving,
        u64::from(count) * 100 / slots
    );
    assert!((0..count).all(|number| bed.has(&key(number))));
}

/// However often a segment is reported, it is rebuilt once.
#[test]
fn one_generation_is_rebuilt_once() {
    let mut bed = bed(4);
    let keys = keys_of_one_bucket(&bed, 31);
    keys.iter().for_each(|key| assert!(bed.insert(key, false).is_some()));
    let entry = bed.entry(&keys[0]);
    let generation = bed.word(entry).generation;
    let report = |full| bed.growth.report(BucketReport { entry, generation, full }).unwrap();
    assert!(report(false));
    assert!(!report(false));
    assert!(report(true), "that a writer waits is news");
    assert!(!report(true) && !report(false));
    let other = entry ^ 1;
    assert!(!bed.report(other, true).unwrap(), "an entry of the same segment");
    assert_eq!(bed.work(1).unwrap().new.len(), 2);
    assert!(!report(true), "it comes late");
    assert!(bed.work(1).is_none());
    assert_eq!(bed.growth.figures().rebuilds_total, 1);
}

/// Room is made where it lacks, and nowhere else.
#[test]
fn a_report_without_reason_changes_nothing() {
    let bed = bed(4);
    assert!(bed.report(0, true).unwrap());
    assert!(bed.report(31, false).unwrap());
    assert!(bed.work(1).is_none());
    assert_eq!(bed.growth.figures().rebuilds_total, 0);
    assert!(!bed.growth.has_wishes());
}

/// Dead slots are given up where a segment has nothing else, and where it can't be split.
#[test]
fn dead_slots_make_room_in_one_new_segment() {
    let mut young = bed(4);
    let keys = keys_of_one_bucket(&young, 31);
    keys.iter().for_each(|key| assert!(young.insert(key, true).is_some()));
    young.report(young.entry(&keys[0]), true).unwrap();
    let rebuilt = young.work(1).unwrap();
    assert_eq!((rebuilt.new.len(), rebuilt.tally.dropped), (1, 31));

    let mut grown = bed(32);
    let keys = keys_of_one_bucket(&grown, 32);
    for (number, key) in keys[..31].iter().enumerate() {
        assert!(grown.insert(key, number == 7).is_some());
    }
    assert!(grown.report(grown.entry(&keys[0]), false).unwrap());
    assert!(grown.work(1).is_none(), "one dead slot isn't worth it while nobody waits");
    assert!(grown.report(grown.entry(&keys[0]), true).unwrap());
    assert_eq!(grown.work(1).unwrap().tally.dropped, 1);
    assert!(grown.insert(&keys[31], false).is_some());
    let full = grown.report(grown.entry(&keys[0]), true).unwrap_err();
    assert_eq!(full.depth, 5);
    assert!(grown.work(1).is_none());
    assert!(keys.iter().enumerate().all(|(number, key)| grown.has(key) == (number != 7)));
}

/// While memory is short each segment is looked at, once a round, and those with many dead slots are rebuilt though none of
/// their buckets is crowded.
#[test]
fn dead_slots_give_their_memory_back_when_it_is_short() {
    let mut bed = bed(4);
    let mut number = 0;
    // In one segment every second key is deleted, in another one of fifty.
    let mut dead = 0;
    for (entry, one_in) in [(0, 2), (8, 50)] {
        let mut count = 0;
        while count < 300 {
            number += 1;
            if bed.entry(&key(number)) / 8 == entry / 8
                && bed.insert(&key(number), count % one_in == 0).is_some()
            {
                count += 1;
                dead += usize::from(entry == 0 && count % one_in == 1);
            }
        }
    }
    let (is_worth_it, next) = bed.growth.look_for_dead(0, 1, Reason::Short);
    assert!(is_worth_it && next == Some(8));
    let rebuilt = bed.work(1).unwrap();
    assert_eq!((rebuilt.new.len(), rebuilt.tally.dropped, rebuilt.run.first), (1, dead, 0));
    assert_eq!(bed.growth.look_for_dead(8, 1, Reason::Short), (false, Some(16)));
    assert_eq!(bed.growth.look_for_dead(16, 100, Reason::Short), (false, None));
    assert_eq!(bed.growth.look_for_dead(0, 100, Reason::Short), (false, None), "nothing is left to be found");
    assert!(bed.work(1).is_none());
}

/// A damaged block keeps its segment from being split, once and not again and again; then the bucket is full.
#[test]
fn what_cannot_be_told_apart_is_not_split_again() {
    let mut bed = bed(4);
    let keys = keys_of_one_bucket(&bed, 32);
    let blocks: Vec<BlockRef> = keys[..31].iter().map(|key| bed.insert(key, false).unwrap()).collect();
    bed.words.write(blocks[5].offset.plus(18), &[77]).unwrap();
    let entry = bed.entry(&keys[0]);
    assert!(bed.report(entry, true).unwrap());
    let rebuilt = bed.work(1).unwrap();
    assert_eq!((rebuilt.new.len(), rebuilt.tally.unfit, rebuilt.tally.moved), (1, 1, 31));
    assert!(bed.report(entry, true).is_err());
    assert_eq!(bed.growth.figures().unfit_total, 1);
    assert_eq!((bed.growth.figures().segments_serving, bed.growth.figures().segments_retired), (4, 1));
}

/// No segment is free until the replaced ones are: the wish waits, and is fulfilled then.
#[test]
fn a_rebuild_waits_for_memory() {
    let mut bed = bed(32);
    let keys = keys_of_one_bucket(&bed, 32);
    let entry = bed.entry(&keys[0]);
    // Four are spare; nobody acknowledges.
    for number in 0..5 {
        for key in &keys[..31] {
            if bed.slots(key).iter().all(|(_, word)| *word != SlotWord::EMPTY) {
                break;
            }
            assert!(bed.insert(key, true).is_some());
        }
        assert!(bed.report(entry, true).unwrap());
        if number < 4 {
            assert!(bed.work(9).is_some());
        }
    }
    for _ in 0..3 {
        assert!(matches!(bed.growth.work(), Did::Waits));
        assert!(bed.growth.has_wishes());
    }
    bed.growth.recycle(8);
    assert!(matches!(bed.growth.work(), Did::Waits), "it is epoch 9 that they wait for");
    bed.growth.recycle(9);
    assert!(bed.work(10).is_some());
    let figures = bed.growth.figures();
    assert_eq!((figures.segments_serving, figures.segments_retired, figures.rebuilds_total), (32, 1, 5));
}

#[test]
fn a_report_of_nothing_that_is_comes_late() {
    let bed = bed(4);
    for (entry, generation) in [(0, 0), (0, 2), (31, 7), (32, 1), (u32::MAX, 1)] {
        assert_eq!(bed.growth.report(BucketReport { entry, generation, full: true }), Ok(false), "{entry}");
    }
}
