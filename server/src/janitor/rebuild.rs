//! The rebuild of one segment into one or two new ones, as a machine without I/O.
//!
//! Always true: slot words are changed by compare-and-swap only, each until it is as it should be; the steps come in this
//! order, and none begins before the one in front of it is done for the whole segment:
//!
//! ```text
//!            old segment                          new segments                      directory
//! 1 seal     EMPTY, DELETED ─▶ CLOSED             (nobody knows of them)            names the old one
//!            LIVE ─▶ MOVED
//! 2 build                                         every slot MOVED or CLOSED
//! 3 headers  open ─▶ SEALED
//! 4 publish                                                                         names the new ones
//! 5 unseal                                        MOVED ─▶ LIVE, CLOSED ─▶ EMPTY
//! 6 mark     the blocks of the DELETED words that were closed are marked free, each once
//! ```
//!
//! Why in this order (⚑ each loses data if it isn't kept):
//! - 1 first: what is copied in 2 can't change any more.
//! - 3 before 5: as long as no new slot can change, the words of the old segment are as good as those of the new ones.
//!   Afterwards a reader with an old copy of the directory finds SEALED, and asks the directory.
//! - 4 before 5: a writer that knows a slot of recycled memory from earlier must not find it open while nobody reads it.
//! - 6 last: until then a reader may still be led to the block, and whoever unlinks a block marks it; the owner adds the
//!   grace period.
//!
//! A rebuild that failed halfway goes on where it was: every step can be taken again. It does no more per call than it is
//! asked to, so that the simulator can let others in between any two words. [`Words`] is how it reaches the region.

use sidestep_common::hash::KeyHash;
use sidestep_common::layout::{
    BLOCK_HEADER_BYTES, BUCKET_BYTES, BUCKET_HEADER_BYTES, BUCKETS_PER_SEGMENT, BlockRef, BucketHeader,
    DirectoryWord, Geometry, KEY_BYTES_MAX, Offset, SLOTS_PER_BUCKET, SlotState, SlotWord, free_map_offset,
};
use sidestep_common::planted::{Fault, is_planted};
use sidestep_common::wire::DirectoryRun;

/// Words of one step when nobody is to be let in between: eight buckets.
pub const STEP_WORDS: usize = 8 * SLOTS_PER_BUCKET;

/// A compare-and-swap of a slot word.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Swap {
    /// Which word.
    pub at: Offset,
    /// Swap if it holds this.
    pub expected: u64,
    /// What to put there.
    pub desired: u64,
    /// What was there.
    pub found: u64,
}

/// The region's words, as the janitor reaches them.
pub trait Words {
    /// Why it can't.
    type Error;

    /// Loads a word.
    ///
    /// # Errors
    /// If it can't be reached.
    fn load(&mut self, at: Offset) -> Result<u64, Self::Error>;

    /// Copies bytes out.
    ///
    /// # Errors
    /// If they can't be reached.
    fn read(&mut self, at: Offset, into: &mut [u8]) -> Result<(), Self::Error>;

    /// Stores a word that only the server changes.
    ///
    /// # Errors
    /// If it can't be reached; then it was not changed.
    fn store(&mut self, at: Offset, word: u64) -> Result<(), Self::Error>;

    /// Stores a byte of a free map, and leaves its neighbours alone.
    ///
    /// # Errors
    /// If it can't be reached; then it was not changed.
    fn mark(&mut self, at: Offset, version: u8) -> Result<(), Self::Error>;

    /// Compares and swaps slot words, in the region's atomicity domain, in any order; fills in what was found.
    ///
    /// # Errors
    /// If not all could be tried. Some may have taken effect; none will any more.
    fn swap(&mut self, swaps: &mut [Swap]) -> Result<(), Self::Error>;
}

/// What a rebuild has to know of its region.
#[derive(Clone, Copy, Debug)]
pub struct Index {
    /// Where the parts lie.
    pub geometry: Geometry,
    /// The seed of the key hash.
    pub hash_seed: u64,
    /// Buckets of a segment that are rebuilt: all. The simulator's segments have fewer in use.
    pub buckets: u64,
}

impl Index {
    /// That of a region.
    pub const fn new(geometry: Geometry, hash_seed: u64) -> Self {
        Self { geometry, hash_seed, buckets: BUCKETS_PER_SEGMENT }
    }

    /// Slots of a segment that are rebuilt.
    pub const fn slots(&self) -> usize {
        self.buckets as usize * SLOTS_PER_BUCKET
    }

    /// The entries that a segment of this depth serves, `entry` among them.
    pub const fn run(&self, entry: u32, depth: u32) -> DirectoryRun {
        let count = 1 << (self.geometry.directory_bits - depth);
        DirectoryRun { first: entry / count * count, count }
    }
}

/// What the segment becomes: the numbers of free segments.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NewSegments {
    /// One with room for what was deleted.
    One(u32),
    /// Two, each for half of the keys.
    Two(u32, u32),
}

/// How far a rebuild is; the number counts words of the step that are done, slots by bucket, new segments one after the
/// other.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Phase {
    /// Step 1: the next slots are to be looked at.
    Look(usize),
    /// Step 1: those looked at, from here on, are to be closed or moved.
    Seal(usize),
    /// Step 2, counted in buckets.
    Build(usize),
    /// Step 3, counted in buckets.
    Headers(usize),
    /// Step 4, counted in entries.
    Publish(usize),
    /// Step 5.
    Unseal(usize),
    /// Step 6, counted in blocks.
    Mark(usize),
    /// All is done.
    Done,
}

/// What a rebuild did.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Tally {
    /// Slots that went on to a new segment.
    pub moved: usize,
    /// Slots of deleted keys that were given up.
    pub dropped: usize,
    /// Swaps that found a word changed by a client since the look.
    pub lost_swaps: usize,
    /// Slots whose half can't be told, for which reason the segment was not split.
    pub unfit: usize,
    /// Sealed slots that somebody changed who may not: a client that keeps to no protocol. What is in them stays.
    pub disturbed: usize,
}

/// A segment, by its directory word.
#[derive(Clone, Copy, Debug)]
struct Half {
    offset: Offset,
    word: DirectoryWord,
    prefix: u32,
}

/// A rebuild under way. See the module.
#[derive(Debug)]
pub struct Rebuild {
    index: Index,
    old: Half,
    run: DirectoryRun,
    /// The first, or both, are what the segment becomes.
    halves: [Half; 2],
    halves_count: usize,
    phase: Phase,
    /// Swaps that are to be tried, again if need be.
    swaps: Vec<Swap>,
    /// The last swaps of step 5 failed, and some of them may have taken effect.
    in_doubt: bool,
    /// Blocks of DELETED words that were closed.
    dropped: Vec<BlockRef>,
    tally: Tally,
}

/// Room for a block's header and key.
const KEY_ROOM: usize = BLOCK_HEADER_BYTES + KEY_BYTES_MAX;

impl Rebuild {
    /// Rebuilds the segment that `word`, of entry `entry`, names. `None` if the pool doesn't have these segments, or a
    /// segment of that depth can't be split.
    pub fn new(index: Index, entry: u32, word: DirectoryWord, into: NewSegments) -> Option<Self> {
        let geometry = &index.geometry;
        if word.depth > geometry.directory_bits {
            return None;
        }
        let run = index.run(entry, word.depth);
        let generation =
            if is_planted(Fault::GenerationKept) { word.generation } else { word.next_generation() };
        let prefix = run.first >> (geometry.directory_bits - word.depth);
        let half = |word: DirectoryWord, prefix: u32| {
            Some(Half { offset: geometry.segment_offset(word)?, word, prefix })
        };
        let (halves, halves_count) = match into {
            NewSegments::One(segment) => {
                let one = half(DirectoryWord { segment, generation, depth: word.depth }, prefix)?;
                ([one, one], 1)
            }
            NewSegments::Two(low, high) => {
                let depth = word.depth + 1;
                if depth > geometry.directory_bits {
                    return None;
                }
                let of = |segment| DirectoryWord { segment, generation, depth };
                ([half(of(low), 2 * prefix)?, half(of(high), 2 * prefix + 1)?], 2)
            }
        };
        Some(Self {
            old: half(word, prefix)?,
            run,
            halves,
            halves_count,
            phase: Phase::Look(0),
            swaps: Vec::with_capacity(STEP_WORDS),
            in_doubt: false,
            dropped: Vec::with_capacity(index.slots()),
            tally: Tally::default(),
            index,
        })
    }

    /// How far it is.
    pub const fn phase(&self) -> Phase {
        self.phase
    }

    /// Whether all is done.
    pub fn is_done(&self) -> bool {
        self.phase == Phase::Done
    }

    /// What it did so far.
    pub const fn tally(&self) -> Tally {
        self.tally
    }

    /// The directory word of the segment that is rebuilt.
    pub const fn old_word(&self) -> DirectoryWord {
        self.old.word
    }

    /// The entries whose words change.
    pub const fn run(&self) -> DirectoryRun {
        self.run
    }

    /// The directory words of the new segments. Fewer than were asked for if the segment could not be split.
    pub fn new_words(&self) -> impl Iterator<Item = DirectoryWord> + '_ {
        self.halves[..self.halves_count].iter().map(|half| half.word)
    }

    /// Goes on to the end.
    ///
    /// # Errors
    /// As the words; it can be called again.
    pub fn run_through<W: Words>(&mut self, words: &mut W) -> Result<(), W::Error> {
        while !self.is_done() {
            self.step(words, STEP_WORDS)?;
        }
        Ok(())
    }

    /// Goes on with up to `count` words of the step that it is at (at least one, at most [`STEP_WORDS`]).
    ///
    /// # Errors
    /// As the words; it can be called again.
    pub fn step<W: Words>(&mut self, words: &mut W, count: usize) -> Result<(), W::Error> {
        let count = count.clamp(1, STEP_WORDS);
        match self.phase {
            Phase::Look(from) => self.look(words, from, (from + count).min(self.index.slots())),
            Phase::Seal(next) => self.seal(words, next),
            Phase::Build(from) => self.build(words, from, count),
            Phase::Headers(from) => self.headers(words, from, count),
            Phase::Publish(from) => self.publish(words, from, count),
            Phase::Unseal(from) => self.unseal(words, from, count),
            Phase::Mark(from) => self.mark(words, from, count),
            Phase::Done => Ok(()),
        }
    }

    fn old_bucket(&self, bucket: usize) -> Offset {
        self.old.offset.plus(BUCKET_BYTES * bucket as u64)
    }

    fn new_bucket(&self, half: usize, bucket: usize) -> Offset {
        self.halves[half].offset.plus(BUCKET_BYTES * bucket as u64)
    }

    /// Step 1, first half: what is there now.
    fn look<W: Words>(&mut self, words: &mut W, from: usize, to: usize) -> Result<(), W::Error> {
        self.swaps.clear();
        for number in from..to {
            let at = slot(self.old.offset, number);
            let expected = words.load(at)?;
            let desired = sealed(SlotWord::from_bits(expected)).bits();
            if desired != expected {
                self.swaps.push(Swap { at, expected, desired, found: 0 });
            }
        }
        if is_planted(Fault::SealSkipped) {
            self.swaps.clear();
        }
        self.phase = if self.swaps.is_empty() { self.behind_seal(to) } else { Phase::Seal(to) };
        Ok(())
    }

    /// Step 1, second half: tries until each slot is sealed. Slots change under it, each as often as clients change it.
    fn seal<W: Words>(&mut self, words: &mut W, next: usize) -> Result<(), W::Error> {
        words.swap(&mut self.swaps)?;
        let (dropped, tally) = (&mut self.dropped, &mut self.tally);
        self.swaps.retain_mut(|swap| {
            let expected = SlotWord::from_bits(swap.expected).state();
            // If it is as desired, an earlier try took effect whose answer was lost: nobody else seals.
            let won = swap.found == swap.expected || swap.found == swap.desired;
            if let SlotState::Deleted(block) = expected
                && (won || is_planted(Fault::LostDroppedMarked))
            {
                dropped.push(block);
            }
            if won {
                return false;
            }
            tally.lost_swaps += 1;
            swap.expected = swap.found;
            swap.desired = sealed(SlotWord::from_bits(swap.found)).bits();
            swap.desired != swap.expected && !is_planted(Fault::LostSealNotRepeated)
        });
        if self.swaps.is_empty() {
            self.phase = self.behind_seal(next);
        }
        Ok(())
    }

    fn behind_seal(&self, next: usize) -> Phase {
        if next == self.index.slots() { Phase::Build(0) } else { Phase::Look(next) }
    }

    /// Step 2: bucket by bucket; what goes on fills the first slots, the rest is CLOSED.
    fn build<W: Words>(&mut self, words: &mut W, from: usize, count: usize) -> Result<(), W::Error> {
        let to = (from + count.div_ceil(SLOTS_PER_BUCKET)).min(self.index.buckets as usize);
        for bucket in from..to {
            if !self.build_bucket(words, bucket)? {
                // Nobody knows of the new segments yet, so one of them can be all of it.
                let word = DirectoryWord { depth: self.old.word.depth, ..self.halves[0].word };
                self.halves[0] = Half { word, prefix: self.old.prefix, ..self.halves[0] };
                self.halves_count = 1;
                (self.tally.moved, self.tally.disturbed) = (0, 0);
                self.phase = Phase::Build(0);
                return Ok(());
            }
        }
        self.go_on(to == self.index.buckets as usize, Phase::Build(to));
        Ok(())
    }

    /// `false` if it can't be told to which half a slot belongs.
    fn build_bucket<W: Words>(&mut self, words: &mut W, bucket: usize) -> Result<bool, W::Error> {
        let old = self.old_bucket(bucket);
        let mut filled = [0; 2];
        for number in 0..SLOTS_PER_BUCKET {
            let found = SlotWord::from_bits(words.load(slot(old, number))?);
            self.tally.disturbed += usize::from(found != sealed(found));
            let Some(word) = carried(found) else { continue };
            let half = if self.halves_count == 1 { Some(0) } else { self.half_of(words, word, bucket)? };
            let Some(half) = half else {
                self.tally.unfit += 1;
                return Ok(false);
            };
            words.store(slot(self.new_bucket(half, bucket), filled[half]), word.bits())?;
            filled[half] += 1;
        }
        self.tally.moved += filled[0] + filled[1];
        for (half, filled) in filled.into_iter().enumerate().take(self.halves_count) {
            let new = self.new_bucket(half, bucket);
            for number in filled..SLOTS_PER_BUCKET {
                words.store(slot(new, number), SlotWord::CLOSED.bits())?;
            }
            words.store(new, self.halves[half].header().to_bits())?;
        }
        Ok(true)
    }

    /// The half of a MOVED word's key, which its block tells. `None` if what is there isn't the block that the word names:
    /// then nothing is known of the key. Only what the half depends on is looked at, header and key, and judged by the bits
    /// of the key's hash that are known already: the checksum would need the whole value, and writers wait.
    fn half_of<W: Words>(
        &self,
        words: &mut W,
        word: SlotWord,
        bucket: usize,
    ) -> Result<Option<usize>, W::Error> {
        let SlotState::Moved(block) = word.state() else { return Ok(None) };
        if !self.index.geometry.block_pool_holds(block.offset, block.class.bytes()) {
            return Ok(None);
        }
        let mut bytes = [0; KEY_ROOM];
        words.read(block.offset, &mut bytes[..BLOCK_HEADER_BYTES])?;
        let key_bytes = usize::from(u16::from_le_bytes([bytes[16], bytes[17]]));
        let end = BLOCK_HEADER_BYTES + key_bytes;
        if bytes[18] != block.version.0 || end > KEY_ROOM.min(block.class.bytes() as usize) {
            return Ok(None);
        }
        words.read(block.offset.plus(BLOCK_HEADER_BYTES as u64), &mut bytes[BLOCK_HEADER_BYTES..end])?;
        let hash = KeyHash::of(&bytes[BLOCK_HEADER_BYTES..end], self.index.hash_seed);
        let fits = hash.tag() == word.tag()
            && hash.bucket_index() == bucket as u64
            && hash.prefix(self.old.word.depth) == u64::from(self.old.prefix);
        let bit = (hash.prefix(self.halves[0].word.depth) & 1) as usize;
        Ok(fits.then_some(if is_planted(Fault::WrongHalf) { 1 - bit } else { bit }))
    }

    /// Step 3.
    fn headers<W: Words>(&mut self, words: &mut W, from: usize, count: usize) -> Result<(), W::Error> {
        let to = (from + count).min(self.index.buckets as usize);
        let sealed = BucketHeader { sealed: true, ..self.old.header() }.to_bits();
        for bucket in from..to {
            words.store(self.old_bucket(bucket), sealed)?;
        }
        self.go_on(to == self.index.buckets as usize, Phase::Headers(to));
        Ok(())
    }

    /// Step 4: only the server writes these words, and clients read them whole.
    fn publish<W: Words>(&mut self, words: &mut W, from: usize, count: usize) -> Result<(), W::Error> {
        let entries = self.run.count as usize;
        let last = if is_planted(Fault::RunCutShort) { entries.div_ceil(2) } else { entries };
        let to = (from + count).min(last);
        for entry in from..to {
            let half = entry * self.halves_count / entries;
            let place = self.index.geometry.directory_word_offset(u64::from(self.run.first) + entry as u64);
            words.store(place, self.halves[half].word.to_bits())?;
        }
        self.go_on(to == last, Phase::Publish(to));
        Ok(())
    }

    /// Step 5. Nobody but the janitor changes a sealed slot, so each swap takes effect, or was in doubt and did earlier.
    fn unseal<W: Words>(&mut self, words: &mut W, from: usize, count: usize) -> Result<(), W::Error> {
        let slots = self.index.slots();
        let all = slots * self.halves_count;
        let to = (from + count).min(all);
        self.swaps.clear();
        let mut disturbed = 0;
        for number in from..to {
            let at = slot(self.halves[number / slots].offset, number % slots);
            let expected = words.load(at)?;
            let desired = match SlotWord::from_bits(expected).state() {
                SlotState::Moved(_) => SlotWord::from_bits(expected).to_live().bits(),
                SlotState::Closed => SlotWord::EMPTY.bits(),
                // It went on as it was.
                SlotState::Malformed => continue,
                SlotState::Empty | SlotState::Live(_) | SlotState::Deleted(_) => {
                    disturbed += usize::from(!self.in_doubt);
                    continue;
                }
            };
            self.swaps.push(Swap { at, expected, desired, found: 0 });
        }
        self.in_doubt = true;
        words.swap(&mut self.swaps)?;
        self.in_doubt = false;
        disturbed += self.swaps.iter().filter(|swap| swap.found != swap.expected).count();
        self.tally.disturbed += disturbed;
        self.go_on(to == all, Phase::Unseal(to));
        Ok(())
    }

    /// Step 6.
    fn mark<W: Words>(&mut self, words: &mut W, from: usize, count: usize) -> Result<(), W::Error> {
        let to = (from + count).min(self.dropped.len());
        for block in &self.dropped[from..to] {
            // A word that names no possible block is corrupt; nothing can be marked for it.
            let Some(byte) = free_map_offset(*block) else { continue };
            if self.index.geometry.block_pool_holds(byte, 1) {
                words.mark(byte, block.version.0)?;
                if is_planted(Fault::DroppedMarkedTwice) {
                    words.mark(byte, block.version.0)?;
                }
            }
        }
        self.go_on(to == self.dropped.len(), Phase::Mark(to));
        Ok(())
    }

    /// Goes on to `phase` of the same step, or to the next step if this one is done.
    fn go_on(&mut self, is_done: bool, phase: Phase) {
        self.phase = if is_done { behind(phase) } else { phase };
        if self.phase == Phase::Mark(0) {
            self.tally.dropped = self.dropped.len();
            if self.dropped.is_empty() || is_planted(Fault::DroppedNotMarked) {
                self.phase = Phase::Done;
            }
        }
    }
}

/// The step behind that of `phase`. ⚑ See the module for why they come in this order.
fn behind(phase: Phase) -> Phase {
    const ORDER: [Phase; 6] = [
        Phase::Build(0),
        Phase::Headers(0),
        Phase::Publish(0),
        Phase::Unseal(0),
        Phase::Mark(0),
        Phase::Done,
    ];
    let [build, headers, publish, unseal, mark, done] = ORDER;
    let order = if is_planted(Fault::HeadersSealedLast) {
        [build, publish, unseal, headers, mark, done]
    } else if is_planted(Fault::HeadersNotSealed) {
        [build, publish, unseal, mark, done, done]
    } else if is_planted(Fault::UnsealedBeforePublished) {
        [build, headers, unseal, publish, mark, done]
    } else {
        ORDER
    };
    let is_same = |step: &Phase| std::mem::discriminant(step) == std::mem::discriminant(&phase);
    order.iter().position(is_same).and_then(|at| order.get(at + 1)).copied().unwrap_or(Phase::Done)
}

/// Slot `number` of the buckets from `start` on.
pub(super) const fn slot(start: Offset, number: usize) -> Offset {
    let (bucket, slot) = (number / SLOTS_PER_BUCKET, number % SLOTS_PER_BUCKET);
    start.plus(BUCKET_BYTES * bucket as u64 + BUCKET_HEADER_BYTES + 8 * slot as u64)
}

/// A slot's word once it is sealed. A malformed one stays: no client changes it, and it may tell somebody what happened.
fn sealed(word: SlotWord) -> SlotWord {
    match word.state() {
        SlotState::Deleted(_) if is_planted(Fault::DeletedCarried) => word.to_moved(),
        SlotState::Empty | SlotState::Deleted(_) => SlotWord::CLOSED,
        SlotState::Live(_) => word.to_moved(),
        SlotState::Moved(_) | SlotState::Closed | SlotState::Malformed => word,
    }
}

/// What goes on to the new segment of a sealed slot. One that isn't sealed was changed by somebody who may not.
fn carried(word: SlotWord) -> Option<SlotWord> {
    match word.state() {
        SlotState::Moved(_) | SlotState::Malformed => Some(word),
        SlotState::Live(_) => Some(word.to_moved()),
        SlotState::Closed | SlotState::Empty | SlotState::Deleted(_) => None,
    }
}

impl Half {
    const fn header(&self) -> BucketHeader {
        BucketHeader {
            depth: self.word.depth,
            prefix: self.prefix,
            generation: self.word.generation,
            sealed: false,
        }
    }
}

#[cfg(test)]
mod tests;
