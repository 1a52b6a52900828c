//! The server's rebuild of a segment, a word or two at a time, on the simulated region's memory.
//!
//! Always true: what is done, and in which order, the server's own code decides (`sidestep_server::janitor`); here is only
//! where clients are let in between, and what the oracles are shown.

use std::convert::Infallible;

use sidestep_common::fabric::sim::SimNode;
use sidestep_common::layout::{
    BUCKET_BYTES, Block, BucketHeader, DirectoryWord, Offset, SLOTS_PER_BUCKET, SlotState, SlotWord,
};
use sidestep_server::janitor::rebuild::{
    Index, NewSegments, Phase, Rebuild as Machine, STEP_WORDS, Swap, Words,
};
use sidestep_server::janitor::segments::Segments;

use super::book::{Book, JANITOR};
use super::region::{Key, Region};
use super::story::{Rebuild, Story};
use super::violation::{Promise, Violation};
use super::world::Footprint;

/// Slots of a bucket that are sealed and unsealed one by one; the rest in one go, since nobody uses them.
const SINGLE_SLOTS: usize = 2;
/// Nobody acknowledges epochs in these worlds: what waits for one waits for ever.
const EPOCH_TO_COME: u64 = 2;

/// Rebuilds under way and to come.
pub(super) struct Janitor {
    two: bool,
    /// Rebuilds that are to begin yet.
    left: u8,
    index: Index,
    segments: Segments,
    current: Option<(Machine, NewSegments)>,
    /// Slots that come before those that matter.
    fillers: usize,
    is_building: bool,
}

impl Janitor {
    pub(super) fn new(region: &Region, story: &Story) -> Self {
        let superblock = &region.superblock;
        let buckets = if story.keys().contains(&Key::Elsewhere) { 2 } else { 1 };
        let geometry = superblock.geometry;
        // As the directory was made: nothing was rebuilt before.
        let serving = geometry.directory_entries() / region.entries();
        let words = (0..serving as u32).map(|segment| DirectoryWord { segment, generation: 1, depth: 0 });
        Self {
            two: story.rebuild == Some(Rebuild::Two),
            left: 1 + u8::from(story.rebuild_again),
            index: Index { buckets, ..Index::new(geometry, superblock.hash_seed) },
            segments: Segments::of_directory(words, geometry.segment_count),
            current: None,
            fillers: usize::from(story.fillers),
            is_building: false,
        }
    }

    pub(super) fn is_done(&self) -> bool {
        self.left == 0 && self.current.is_none()
    }

    /// What its last step changed nobody knows of yet.
    pub(super) const fn is_building(&self) -> bool {
        self.is_building
    }

    /// Takes the next step.
    ///
    /// # Errors
    /// The promise that it broke.
    pub(super) fn step(
        &mut self,
        region: &Region,
        book: &mut Book,
        footprint: &mut Footprint,
    ) -> Result<(), Violation> {
        if self.current.is_none() {
            self.begin(region);
        }
        let Some((rebuild, taken)) = &mut self.current else { return Ok(()) };
        let slots = self.index.slots();
        let count = match rebuild.phase() {
            Phase::Look(at) => slots_together(at, self.fillers),
            Phase::Unseal(at) if at / slots == half_of_first(region, rebuild) => {
                slots_together(at % slots, self.fillers)
            }
            Phase::Unseal(at) => slots - at % slots,
            Phase::Publish(at) => entries_together(region, rebuild, at),
            // Nobody knows of the new segments.
            Phase::Build(_) | Phase::Seal(_) => STEP_WORDS,
            Phase::Headers(_) | Phase::Mark(_) | Phase::Done => 1,
        };
        self.is_building = matches!(rebuild.phase(), Phase::Build(_));
        let is_alone = rebuild.phase() == Phase::Look(self.fillers);
        let mut words = RegionWords { region, book, footprint, violation: None };
        let Ok(()) = rebuild.step(&mut words, count);
        // One slot is left alone between the look and the seal.
        while matches!(rebuild.phase(), Phase::Seal(_)) && !is_alone {
            let Ok(()) = rebuild.step(&mut words, count);
        }
        let violation = words.violation;
        if rebuild.is_done() {
            let (old, new) = (rebuild.old_word().segment, rebuild.new_words());
            self.segments.replace(old, *taken, new, EPOCH_TO_COME);
            self.segments.recycle(EPOCH_TO_COME - 1);
            self.current = None;
        }
        violation.map_or(Ok(()), Err)
    }

    fn begin(&mut self, region: &Region) {
        if self.left == 0 {
            return;
        }
        self.left -= 1;
        let entry = region.first_entry();
        let place = self.index.geometry.directory_word_offset(entry);
        let word = DirectoryWord::from_bits(region.node.load(place));
        let two = self.two && word.depth < self.index.geometry.directory_bits;
        let Some(taken) = self.segments.take(two) else { unreachable!("half of the pool is free") };
        let Some(rebuild) = Machine::new(self.index, entry as u32, word, taken) else {
            unreachable!("{word:?} becomes {taken:?}")
        };
        self.current = Some((rebuild, taken));
    }
}

/// The new segment of the first key.
fn half_of_first(region: &Region, rebuild: &Machine) -> usize {
    let run = rebuild.run();
    let entry = region.hash(Key::First).directory_index(region.superblock.geometry.directory_bits) as u32;
    (entry - run.first) as usize * rebuild.new_words().count() / run.count as usize
}

/// Entries from number `at` of the run on, up to one that keys of stories have.
fn entries_together(region: &Region, rebuild: &Machine, at: usize) -> usize {
    let bits = region.superblock.geometry.directory_bits;
    let entries = [Key::First, Key::Twin, Key::Neighbour, Key::Elsewhere]
        .map(|key| region.hash(key).directory_index(bits) as usize)
        .map(|entry| entry.wrapping_sub(rebuild.run().first as usize));
    entries.into_iter().filter(|entry| *entry >= at).min().map_or(STEP_WORDS, |entry| entry + 1 - at)
}

/// Slots from `at` on that are done in one step: fillers together, then some alone, then the rest of the bucket.
fn slots_together(at: usize, fillers: usize) -> usize {
    let (bucket, number) = (at / SLOTS_PER_BUCKET, at % SLOTS_PER_BUCKET);
    let fillers = if bucket == 0 { fillers } else { 0 };
    if number < fillers {
        fillers - number
    } else if number < fillers + SINGLE_SLOTS {
        1
    } else {
        SLOTS_PER_BUCKET - number
    }
}

/// The region's memory, as the server reaches it; the oracles look on.
struct RegionWords<'w> {
    region: &'w Region,
    book: &'w mut Book,
    footprint: &'w mut Footprint,
    violation: Option<Violation>,
}

impl RegionWords<'_> {
    fn node(&self) -> &SimNode {
        &self.region.node
    }

    fn note(&mut self, seen: Result<(), Violation>) {
        if let Err(violation) = seen {
            self.violation.get_or_insert(violation);
        }
    }

    /// A slot word was changed.
    fn swapped(&mut self, swap: &Swap) -> Result<(), Violation> {
        let (old, new) = (SlotWord::from_bits(swap.expected), SlotWord::from_bits(swap.desired));
        match (old.state(), new.state()) {
            (SlotState::Deleted(block), SlotState::Closed) => self.book.dropped(block),
            (_, SlotState::Live(block)) => {
                self.opened(swap.at)?;
                let mut bytes = vec![0; block.class.bytes() as usize];
                self.node().read(block.offset, &mut bytes);
                // Whether it fits is the business of those who publish and of those who reuse.
                if let Some(key) =
                    Block::parse(&bytes, block).ok().and_then(|block| self.region.key_of(block.key))
                {
                    self.book.opened(swap.at, key);
                }
            }
            (_, SlotState::Empty) => {
                self.opened(swap.at)?;
                self.book.emptied(swap.at);
            }
            _ => {}
        }
        Ok(())
    }

    /// A slot was opened: all entries that its bucket serves must name its segment.
    fn opened(&self, slot: Offset) -> Result<(), Violation> {
        let geometry = &self.region.superblock.geometry;
        let header = self.node().load(Offset(slot.0 - slot.0 % BUCKET_BYTES));
        let BucketHeader { depth, prefix, generation, .. } = BucketHeader::from_bits(header);
        let shared = geometry.directory_bits - depth;
        for entry in u64::from(prefix) << shared..(u64::from(prefix) + 1) << shared {
            let word = DirectoryWord::from_bits(self.node().load(geometry.directory_word_offset(entry)));
            let start = geometry.segment_offset(word);
            let is_there = start.is_some_and(|start| slot >= start && slot.0 < start.0 + BUCKET_BYTES * 64);
            if !is_there {
                let detail =
                    format!("slot {slot} of generation {generation} is open; entry {entry} is {word:?}");
                return Err(Violation::new(Promise::Rebuild, detail));
            }
        }
        Ok(())
    }
}

impl Words for RegionWords<'_> {
    type Error = Infallible;

    fn load(&mut self, at: Offset) -> Result<u64, Infallible> {
        self.footprint.server_touches(at.0, 8, false);
        Ok(self.node().load(at))
    }

    fn read(&mut self, at: Offset, into: &mut [u8]) -> Result<(), Infallible> {
        self.footprint.server_touches(at.0, into.len() as u64, false);
        self.node().read(at, into);
        Ok(())
    }

    fn store(&mut self, at: Offset, word: u64) -> Result<(), Infallible> {
        self.footprint.server_touches(at.0, 8, true);
        self.node().store(at, word);
        Ok(())
    }

    fn mark(&mut self, at: Offset, version: u8) -> Result<(), Infallible> {
        self.footprint.server_touches(at.0, 1, true);
        self.node().write(at, &[version]);
        let seen = self.book.marked(JANITOR, at.0, u64::from(version));
        self.note(seen);
        Ok(())
    }

    fn swap(&mut self, swaps: &mut [Swap]) -> Result<(), Infallible> {
        for swap in swaps {
            self.footprint.server_touches(swap.at.0, 8, true);
            swap.found = self.node().load(swap.at);
            if swap.found == swap.expected {
                self.node().store(swap.at, swap.desired);
                let seen = self.swapped(swap);
                self.note(seen);
            }
        }
        Ok(())
    }
}
