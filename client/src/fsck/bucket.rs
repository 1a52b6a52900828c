//! One bucket: what its header and words say by themselves.
//!
//! Always true: pure; it judges a copy. Words of a copy may be of different moments, so what it finds is a suspicion
//! until [`super::settle`] has seen that the words it rests on stayed.

use std::ops::Range;

use sidestep_common::hash::KeyHash;
use sidestep_common::layout::{
    BUCKET_BYTES, BUCKET_HEADER_BYTES, BlockPlace, BlockRef, Bucket, DirectoryWord, Geometry, Offset,
    SEGMENT_BYTES, SlotState, SlotWord,
};
use smallvec::{SmallVec, smallvec};

use super::source::Witness;
use super::{Finding, Part, Problem};

/// Entries of the directory that name one segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Run {
    /// The first of them.
    pub(super) entry: u64,
    /// Their word.
    pub(super) word: DirectoryWord,
    /// What the hashes of its keys begin with, `word.depth` bits.
    pub(super) prefix: u64,
    /// Where the segment starts.
    pub(super) segment: Offset,
}

impl Run {
    /// The bytes of its segment.
    pub(super) const fn bytes(&self) -> Range<u64> {
        self.segment.0..self.segment.0 + SEGMENT_BYTES
    }

    /// The word that leads to it.
    pub(super) const fn witness(&self, geometry: &Geometry) -> Witness {
        (geometry.directory_word_offset(self.entry), self.word.to_bits())
    }
}

/// A bucket of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Site {
    pub(super) run: Run,
    pub(super) bucket: u64,
}

impl Site {
    /// Where the bucket starts.
    pub(super) const fn offset(&self) -> Offset {
        self.run.segment.plus(self.bucket * BUCKET_BYTES)
    }

    /// Where a slot of it is.
    pub(super) const fn slot_offset(&self, slot: usize) -> Offset {
        self.offset().plus(BUCKET_HEADER_BYTES + 8 * slot as u64)
    }

    const fn part(&self) -> Part {
        Part::Bucket { segment: self.run.word.segment, bucket: self.bucket }
    }

    pub(super) const fn slot_part(&self, slot: usize) -> Part {
        Part::Slot { segment: self.run.word.segment, bucket: self.bucket, slot }
    }

    /// Whether a key with this hash belongs here.
    pub(super) const fn serves(&self, hash: KeyHash) -> bool {
        hash.prefix(self.run.word.depth) == self.run.prefix && hash.bucket_index() == self.bucket
    }
}

/// What seems to be wrong, and the words that it was concluded from.
#[derive(Clone, Debug)]
pub(super) struct Suspicion {
    pub(super) finding: Finding,
    pub(super) words: SmallVec<[Witness; 2]>,
}

/// A slot that names a block where one can be.
#[derive(Clone, Copy, Debug)]
pub(super) struct Named {
    pub(super) slot: usize,
    pub(super) word: SlotWord,
    pub(super) block: BlockRef,
    pub(super) place: BlockPlace,
    /// The key, if the block is sound.
    pub(super) key: Option<Key>,
    /// Something about the slot is certainly wrong.
    pub(super) is_damaged: bool,
}

/// A key, as far as it must be remembered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Key {
    /// Its hash.
    pub(super) hash: KeyHash,
    /// Its hash with another seed: two keys with both in common are one, but for a chance of 2^-128.
    pub(super) digest: KeyHash,
    pub(super) key_bytes: u64,
    pub(super) value_bytes: u64,
}

/// A look at a bucket.
#[derive(Debug)]
pub(super) struct Look {
    pub(super) site: Site,
    pub(super) bucket: Bucket,
    pub(super) suspicions: SmallVec<[Suspicion; 1]>,
    pub(super) named: Vec<Named>,
}

impl Look {
    /// Looks at the words of a bucket. Blocks are not looked at yet.
    pub(super) fn new(site: Site, bytes: &[u8]) -> Self {
        let bucket = Bucket::parse(bytes);
        let mut look = Self { site, bucket, suspicions: SmallVec::new(), named: Vec::new() };
        look.judge_header();
        look.judge_words();
        look
    }

    /// Something about a slot is wrong.
    pub(super) fn suspect_slot(&mut self, slot: usize, problem: Problem, others: &[usize]) {
        let mut words: SmallVec<[Witness; 2]> = smallvec![self.witness(slot)];
        words.extend(others.iter().map(|&other| self.witness(other)));
        let finding =
            Finding { offset: self.site.slot_offset(slot), part: self.site.slot_part(slot), problem };
        self.suspicions.push(Suspicion { finding, words });
    }

    /// A slot's word, and where it was read.
    pub(super) fn witness(&self, slot: usize) -> Witness {
        (self.site.slot_offset(slot), self.bucket.slots[slot].bits())
    }

    fn judge_header(&mut self) {
        let (header, word, prefix) = (self.bucket.header, self.site.run.word, self.site.run.prefix);
        let problem = if header.generation != word.generation {
            Problem::BucketGeneration { expected: word.generation, found: header.generation }
        } else if header.depth != word.depth {
            Problem::BucketDepth { expected: word.depth, found: header.depth }
        } else if u64::from(header.prefix) != prefix {
            Problem::BucketPrefix { expected: prefix, found: header.prefix }
        } else {
            return;
        };
        let offset = self.site.offset();
        let finding = Finding { offset, part: self.site.part(), problem };
        self.suspicions.push(Suspicion { finding, words: smallvec![(offset, header.to_bits())] });
    }

    fn judge_words(&mut self) {
        let slots = self.bucket.slots;
        let sealed = self.bucket.header.sealed;
        for (slot, word) in slots.iter().enumerate() {
            let problem = match word.state() {
                SlotState::Malformed => Problem::SlotMalformed { word: word.bits() },
                SlotState::Empty | SlotState::Live(_) | SlotState::Deleted(_) if sealed => {
                    Problem::SlotOpen { word: word.bits() }
                }
                SlotState::Closed if !sealed => Problem::SlotClosed,
                SlotState::Moved(_) if !sealed => Problem::SlotMoved { word: word.bits() },
                _ => continue,
            };
            self.suspect_slot(slot, problem, &[]);
        }
        // The first EMPTY slot stands for all. The filled one stays filled, whatever its word becomes; CLOSED is neither,
        // and what is no word says nothing.
        let is_filled = |word: &SlotWord| {
            matches!(word.state(), SlotState::Live(_) | SlotState::Deleted(_) | SlotState::Moved(_))
        };
        let empty = slots.iter().position(|word| word.state() == SlotState::Empty);
        let filled = slots.iter().rposition(is_filled);
        if let (Some(empty), Some(filled)) = (empty, filled)
            && empty < filled
        {
            self.suspect_slot(empty, Problem::EmptyBeforeFilled { slot: filled }, &[]);
        }
    }

    /// The slots that name blocks.
    pub(super) fn blocks(&self) -> impl Iterator<Item = (usize, SlotWord, BlockRef)> {
        let slots = self.bucket.slots;
        slots.into_iter().enumerate().filter_map(|(slot, word)| match word.state() {
            SlotState::Live(block) | SlotState::Deleted(block) | SlotState::Moved(block) => {
                Some((slot, word, block))
            }
            SlotState::Empty | SlotState::Closed | SlotState::Malformed => None,
        })
    }

    /// Compares the keys of all sound blocks: no key may be there twice.
    pub(super) fn judge_keys(&mut self) {
        for at in 1..self.named.len() {
            let later = self.named[at];
            let twin = self.named[..at].iter().find(|earlier| {
                earlier.block.offset == later.block.offset
                    || matches!((earlier.key, later.key), (Some(one), Some(other))
                        if (one.hash, one.digest) == (other.hash, other.digest))
            });
            let Some(&Named { slot, block, .. }) = twin else { continue };
            let problem = if block.offset == later.block.offset {
                Problem::BlockShared { block: block.offset }
            } else {
                Problem::KeyTwice { slot }
            };
            self.suspect_slot(later.slot, problem, &[slot]);
        }
    }
}

#[cfg(test)]
mod tests {
    use sidestep_common::layout::{BucketHeader, SizeClass, Tag, Version};

    use super::*;

    fn site() -> Site {
        let word = DirectoryWord { segment: 5, generation: 3, depth: 4 };
        Site { run: Run { entry: 8, word, prefix: 8, segment: Offset(0x4000) }, bucket: 2 }
    }

    fn look(sealed: bool, slots: &[SlotWord]) -> Vec<(&'static str, u64)> {
        let header = BucketHeader { depth: 4, prefix: 8, generation: 3, sealed };
        let mut bytes = header.to_bits().to_le_bytes().to_vec();
        bytes.extend(slots.iter().flat_map(|slot| slot.bits().to_le_bytes()));
        bytes.resize(BUCKET_BYTES as usize, 0);
        let found = Look::new(site(), &bytes);
        let name =
            |one: &Suspicion| (one.finding.problem.name(), (one.finding.offset.0 - site().offset().0) / 8);
        found.suspicions.iter().map(name).collect()
    }

    fn live(offset: u64) -> SlotWord {
        let class = SizeClass::from_index(0).unwrap();
        let block = BlockRef { offset: Offset(offset), class, version: Version(1) };
        SlotWord::live(Tag::from_low_bits(1), block, true)
    }

    #[test]
    fn words_are_judged_by_the_state_of_their_bucket() {
        let open = [live(64), live(128)];
        assert_eq!(look(false, &open), []);
        assert_eq!(
            look(false, &[live(64), SlotWord::CLOSED, live(128).to_moved()]),
            [("slot-closed", 2), ("slot-moved", 3)]
        );
        let sealed: Vec<_> = (0..31).map(|_| SlotWord::CLOSED).collect();
        assert_eq!(look(true, &sealed), []);
        assert_eq!(look(true, &open)[..2], [("slot-open", 1), ("slot-open", 2)]);
        assert_eq!(look(false, &[SlotWord::from_bits(1)]), [("slot-malformed", 1)]);
    }

    /// However the holes lie, the first EMPTY slot is named if a filled one is behind it.
    #[test]
    fn holes_are_found() {
        let empty = SlotWord::EMPTY;
        assert_eq!(look(false, &[empty, live(64)]), [("empty-before-filled", 1)]);
        assert_eq!(look(false, &[live(64), empty, empty, live(128), empty]), [("empty-before-filled", 2)]);
        assert_eq!(look(false, &[live(64), empty, SlotWord::CLOSED]), [("slot-closed", 3)], "neither");
        let mut last = vec![empty; 30];
        last.push(live(64));
        assert_eq!(look(false, &last), [("empty-before-filled", 1)]);
    }
}
