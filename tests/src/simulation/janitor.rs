//! A rebuild of the segment, as section 5 of the design describes it, one word at a time.
//!
//! Always true: it changes slot words by compare-and-swap and never gives up on one; its six steps come in their order.
//! It is the simulator's own until the server rebuilds segments; clients meet every state of a rebuild already.

use sidestep_common::hash::KeyHash;
use sidestep_common::layout::{
    BUCKET_BYTES, BUCKET_HEADER_BYTES, Block, Bucket, BucketHeader, DirectoryWord, Offset, SLOTS_PER_BUCKET,
    SlotState, SlotWord,
};

use super::book::Book;
use super::region::{Key, Region};
use super::story::Rebuild;

/// Slots that are sealed and unsealed one by one; the rest in one go, since nobody uses them.
const SINGLE_SLOTS: usize = 2;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    Seal(usize),
    Build,
    SealHeader,
    Publish(u64),
    Unseal(usize),
    Done,
}

/// A rebuild under way.
#[derive(Clone, Debug)]
pub(super) struct Janitor {
    into: Rebuild,
    phase: Phase,
    /// Slots that come before those that matter.
    fillers: usize,
    /// The new bucket of each half, with its words.
    halves: Vec<Half>,
}

/// A new bucket: where, by which directory word, and its words with the slots that they come from.
type Half = (Offset, DirectoryWord, Vec<(SlotWord, Option<Offset>)>);

/// Memory that a step read or changed.
pub(super) type Touched = (Offset, u64);

impl Janitor {
    pub(super) const fn new(into: Rebuild, fillers: usize) -> Self {
        Self { into, phase: Phase::Seal(0), fillers, halves: Vec::new() }
    }

    pub(super) fn is_done(&self) -> bool {
        self.phase == Phase::Done
    }

    fn bucket(region: &Region) -> Offset {
        let geometry = &region.superblock.geometry;
        let hash = region.hash(Key::First);
        let word =
            DirectoryWord::from_bits(region.node.load(geometry.directory_word_offset(region.first_entry())));
        let old = DirectoryWord {
            generation: 1,
            segment: (region.first_entry() / region.entries()) as u32,
            ..word
        };
        match geometry.bucket_offset(old, hash) {
            Some(bucket) => bucket,
            None => unreachable!("the first segment exists"),
        }
    }

    /// Takes the next step; what it touched.
    pub(super) fn step(&mut self, region: &Region, book: &mut Book) -> Vec<Touched> {
        let bucket = Self::bucket(region);
        let slot = |number: usize| bucket.plus(BUCKET_HEADER_BYTES + 8 * number as u64);
        match self.phase {
            Phase::Seal(at) => {
                let range = self.range(at);
                for number in range.clone() {
                    let word = SlotWord::from_bits(region.node.load(slot(number)));
                    let sealed = match word.state() {
                        SlotState::Live(_) => word.to_moved(),
                        SlotState::Deleted(block) => {
                            book.dropped(block);
                            SlotWord::CLOSED
                        }
                        _ => SlotWord::CLOSED,
                    };
                    region.node.store(slot(number), sealed.bits());
                }
                let touched = vec![(slot(range.start), 8 * range.len() as u64)];
                self.phase =
                    if range.end == SLOTS_PER_BUCKET { Phase::Build } else { Phase::Seal(range.end) };
                touched
            }
            Phase::Build => {
                self.build(region, bucket);
                self.phase = Phase::SealHeader;
                vec![(bucket, BUCKET_BYTES)]
            }
            Phase::SealHeader => {
                let header = BucketHeader::from_bits(region.node.load(bucket));
                region.node.store(bucket, BucketHeader { sealed: true, ..header }.to_bits());
                self.phase = Phase::Publish(0);
                vec![(bucket, 8)]
            }
            Phase::Publish(at) => {
                let index = region.first_entry() + at;
                let half = (at * self.halves.len() as u64 / region.entries()) as usize;
                let place = region.superblock.geometry.directory_word_offset(index);
                region.node.store(place, self.halves[half].1.to_bits());
                self.phase =
                    if at + 1 == region.entries() { Phase::Unseal(0) } else { Phase::Publish(at + 1) };
                vec![(place, 8)]
            }
            Phase::Unseal(at) => {
                let range = self.range(at);
                let mut touched = Vec::new();
                for (half, _, words) in &self.halves {
                    for number in range.clone() {
                        let (word, old) = words[number];
                        let place = half.plus(BUCKET_HEADER_BYTES + 8 * number as u64);
                        let unsealed = match word.state() {
                            SlotState::Moved(_) => word,
                            _ => SlotWord::EMPTY,
                        };
                        if let (Some(old), SlotState::Moved(block)) = (old, word.state()) {
                            book.rebound(old, place);
                            let live = SlotWord::live(word.tag(), block, word.is_blind());
                            region.node.store(place, live.bits());
                        } else {
                            region.node.store(place, unsealed.bits());
                        }
                    }
                    let first = half.plus(BUCKET_HEADER_BYTES + 8 * range.start as u64);
                    touched.push((first, 8 * range.len() as u64));
                }
                self.phase =
                    if range.end == SLOTS_PER_BUCKET { Phase::Done } else { Phase::Unseal(range.end) };
                touched
            }
            Phase::Done => Vec::new(),
        }
    }

    /// Slots of one step: fillers together, then some alone, then the rest.
    fn range(&self, at: usize) -> std::ops::Range<usize> {
        if at < self.fillers {
            return at..self.fillers;
        }
        if at < self.fillers + SINGLE_SLOTS && at < SLOTS_PER_BUCKET {
            return at..at + 1;
        }
        at..SLOTS_PER_BUCKET
    }

    /// Builds the new buckets: every slot MOVED or CLOSED, filled ones first.
    fn build(&mut self, region: &Region, bucket: Offset) {
        let geometry = &region.superblock.geometry;
        let mut bytes = [0; BUCKET_BYTES as usize];
        region.node.read(bucket, &mut bytes);
        let old = Bucket::parse(&bytes);
        let halves = match self.into {
            Rebuild::One => 1_u32,
            Rebuild::Two => 2,
        };
        let depth = old.header.depth + halves - 1;
        let generation = old.header.generation + 1;
        for half in 0..halves {
            let prefix = old.header.prefix * halves + half;
            // Segments from the middle of the pool on are free.
            let segment = geometry.segment_count as u32 / 2 + half;
            let word = DirectoryWord { segment, generation, depth };
            let Some(place) = geometry.bucket_offset(word, region.hash(Key::First)) else {
                unreachable!("half of the pool is free")
            };
            let header = BucketHeader { depth, prefix, generation, sealed: false };
            let mut words = Vec::new();
            for (number, &moved) in old.slots.iter().enumerate() {
                let SlotState::Moved(block) = moved.state() else { continue };
                let mut block_bytes = vec![0; block.class.bytes() as usize];
                region.node.read(block.offset, &mut block_bytes);
                let Ok(block) = Block::parse(&block_bytes, block) else { continue };
                let hash = KeyHash::of(block.key, region.superblock.hash_seed);
                if header.serves(hash) {
                    let from = bucket.plus(BUCKET_HEADER_BYTES + 8 * number as u64);
                    words.push((moved, Some(from)));
                }
            }
            words.resize(SLOTS_PER_BUCKET, (SlotWord::CLOSED, None));
            region.node.store(place, header.to_bits());
            for (number, (word, _)) in words.iter().enumerate() {
                region.node.store(place.plus(BUCKET_HEADER_BYTES + 8 * number as u64), word.bits());
            }
            self.halves.push((place, word, words));
        }
    }
}
