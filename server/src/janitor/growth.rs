//! The janitor's work on the index: reports of full buckets, and rebuilds.
//!
//! Always true: a segment is rebuilt once, however often it was reported: a report names its generation, and is late when
//! another one is there. A report waits until its rebuild was done or turned out not to be needed; one that nothing can help
//! is refused and nothing was changed. ⚑ The epoch that a replaced segment waits for is raised after its rebuild's last step.

use std::collections::{HashSet, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use sidestep_common::layout::{
    BUCKET_BYTES, BUCKETS_PER_SEGMENT, BucketHeader, DirectoryWord, SLOTS_PER_BUCKET, Superblock,
};
use sidestep_common::memory::WordMemory;
use sidestep_common::wire::{BucketReport, DirectoryRun, Refusal, RefusalCode};

use super::policy::{Advice, Reason, advise, survey};
use super::rebuild::{Index, NewSegments, Rebuild, Tally};
use super::segments::Segments;
use super::slots::{SlotError, Slots};
use crate::node::{Serving, refusal};

/// Segments that wait for a rebuild. Who reports one more is heard when it tries again.
const WISHES_MAX: usize = 4096;
/// After the card failed, time until the next try.
const RETRY: Duration = Duration::from_millis(500);

/// What is known of the index's growth.
#[derive(Debug)]
pub struct Growth {
    index: Index,
    words: WordMemory,
    books: Mutex<Books>,
    /// What the janitor works with. Its thread takes it out, and puts it back when it turns to something else.
    hands: Mutex<Option<Hands>>,
}

#[derive(Debug)]
struct Books {
    segments: Segments,
    wishes: VecDeque<Wish>,
    /// Segments with a slot whose half can't be told.
    unsplittable: HashSet<u32>,
    figures: GrowthFigures,
}

/// A segment that should be rebuilt.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Wish {
    /// The first entry that names it.
    first: u32,
    generation: u32,
    reason: Reason,
}

#[derive(Debug)]
struct Hands {
    slots: Slots,
    /// A rebuild that could not go on.
    current: Option<(Rebuild, NewSegments)>,
}

/// Figures of the index.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct GrowthFigures {
    /// Segments that the directory names.
    pub segments_serving: u64,
    /// Segments that were replaced and wait until nobody can use them any more.
    pub segments_retired: u64,
    /// Rebuilds of segments since the start.
    pub rebuilds_total: u64,
    /// Those of them that made two out of one.
    pub splits_total: u64,
    /// Slots found whose half could not be told, so that their segment was not split.
    pub unfit_total: u64,
}

/// How the work on the index stands when the janitor turns to something else.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RebuildWork {
    /// A rebuild is between its first and its last step: the epoch is not raised, and nothing is scanned.
    pub is_under_way: bool,
    /// There will be something to do at that time.
    pub deadline: Option<Instant>,
}

/// A report was in vain.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "the index can't grow where a bucket is full: its {SLOTS_PER_BUCKET} slots have living keys, and its segment, of depth \
     {depth} of {depth_max}, can't be split"
)]
struct IndexFull {
    /// The segment's depth.
    depth: u32,
    /// The most.
    depth_max: u32,
}

/// What came of the next piece of work.
#[derive(Debug)]
enum Did {
    /// There is nothing to do.
    Nothing,
    /// Segments must be recycled first.
    Waits,
    /// A segment was rebuilt.
    Rebuilt(Rebuilt),
    /// The rebuild under way could not go on.
    Failed(SlotError),
}

#[derive(Debug)]
struct Rebuilt {
    old: DirectoryWord,
    run: DirectoryRun,
    taken: NewSegments,
    new: Vec<DirectoryWord>,
    tally: Tally,
}

impl Growth {
    /// Of a region without sessions; `slots` are its words.
    ///
    /// # Panics
    /// If the memory is shorter than the region that was made in it.
    pub fn new(superblock: &Superblock, words: WordMemory, slots: Slots) -> Self {
        let geometry = superblock.geometry;
        let directory = (0..geometry.directory_entries()).map(|entry| {
            match words.load(geometry.directory_word_offset(entry)) {
                Ok(word) => DirectoryWord::from_bits(word),
                Err(error) => panic!("entry {entry} of the directory: {error}"),
            }
        });
        let segments = Segments::of_directory(directory, geometry.segment_count);
        let books = Books {
            segments,
            wishes: VecDeque::new(),
            unsplittable: HashSet::new(),
            figures: GrowthFigures::default(),
        };
        Self {
            index: Index::new(geometry, superblock.hash_seed),
            words,
            books: Mutex::new(books),
            hands: Mutex::new(Some(Hands { slots, current: None })),
        }
    }

    /// The figures.
    pub fn figures(&self) -> GrowthFigures {
        let books = self.books();
        GrowthFigures {
            segments_serving: books.segments.serving(),
            segments_retired: books.segments.retired() as u64,
            ..books.figures
        }
    }

    fn books(&self) -> MutexGuard<'_, Books> {
        // Each holder leaves the books whole.
        self.books.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a report down. Returns whether there is something to do that wasn't known.
    fn report(&self, report: BucketReport) -> Result<bool, IndexFull> {
        let Some(word) = self.word(report.entry).filter(|word| word.generation == report.generation) else {
            return Ok(false);
        };
        let can_split = self.can_split(&self.books(), word);
        if report.full && !can_split {
            // Only then it may be refused. Loads are allowed in every domain.
            let mut slots = Slots::of_cpu(self.words);
            if self.advice(&mut slots, word, Reason::Full, can_split) == Advice::Full {
                return Err(IndexFull { depth: word.depth, depth_max: self.index.geometry.directory_bits });
            }
        }
        let first = self.index.run(report.entry, word.depth).first;
        let reason = if report.full { Reason::Full } else { Reason::Crowded };
        let wish = Wish { first, generation: report.generation, reason };
        Ok(self.books().wish(wish))
    }

    fn can_split(&self, books: &Books, word: DirectoryWord) -> bool {
        word.depth < self.index.geometry.directory_bits && !books.unsplittable.contains(&word.segment)
    }

    /// The entry's word, if it is one: its depth and segment are.
    fn word(&self, entry: u32) -> Option<DirectoryWord> {
        let geometry = &self.index.geometry;
        let word = self.words.load(geometry.directory_word_offset(u64::from(entry))).ok()?;
        let word = DirectoryWord::from_bits(word);
        (word.depth <= geometry.directory_bits && geometry.segment_offset(word).is_some()).then_some(word)
    }

    fn advice(&self, slots: &mut Slots, word: DirectoryWord, reason: Reason, can_split: bool) -> Advice {
        let Some(start) = self.index.geometry.segment_offset(word) else { return Advice::Leave };
        match survey(slots, &self.index, start) {
            Ok(survey) => advise(&survey, reason, can_split),
            Err(error) => unreachable!("segment {} is in the region: {error}", word.segment),
        }
    }

    /// Everybody has acknowledged epoch `quiesced`.
    fn recycle(&self, quiesced: u64) {
        let recycled = self.books().segments.recycle(quiesced);
        if recycled > 0 {
            tracing::debug!(recycled, "segments are free again");
        }
    }

    /// Does one rebuild, if one is wanted. On the janitor's thread.
    fn work(&self) -> Did {
        let hands = self.hands.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(mut hands) = hands else { unreachable!("there is one janitor") };
        let did = self.work_with(&mut hands);
        *self.hands.lock().unwrap_or_else(PoisonError::into_inner) = Some(hands);
        did
    }

    fn work_with(&self, hands: &mut Hands) -> Did {
        let (mut rebuild, taken) = match hands.current.take() {
            Some(current) => current,
            None => match self.begin(hands) {
                Ok(begun) => begun,
                Err(did) => return did,
            },
        };
        if let Err(error) = rebuild.run_through(&mut hands.slots) {
            hands.current = Some((rebuild, taken));
            return Did::Failed(error);
        }
        Did::Rebuilt(Rebuilt {
            old: rebuild.old_word(),
            run: rebuild.run(),
            new: rebuild.new_words().collect(),
            tally: rebuild.tally(),
            taken,
        })
    }

    /// Begins the next rebuild that helps.
    fn begin(&self, hands: &mut Hands) -> Result<(Rebuild, NewSegments), Did> {
        loop {
            let Some((wish, word, can_split)) = self.next_wish() else { return Err(Did::Nothing) };
            if !self.is_sound(wish.first, word) {
                tracing::error!(
                    entry = wish.first,
                    ?word,
                    "a directory word is not that of its segment; it is not rebuilt"
                );
                continue;
            }
            let two = match self.advice(&mut hands.slots, word, wish.reason, can_split) {
                Advice::Split => true,
                Advice::Compact => false,
                // Whoever waits reports it again, and is refused then if nothing can help.
                Advice::Leave | Advice::Full => continue,
            };
            let mut books = self.books();
            let Some(taken) = books.segments.take(two) else {
                books.wishes.push_front(wish);
                return Err(Did::Waits);
            };
            match Rebuild::new(self.index, wish.first, word, taken) {
                Some(rebuild) => return Ok((rebuild, taken)),
                None => unreachable!("{word:?} can't become {taken:?}, which the pool has"),
            }
        }
    }

    /// Whether all of the word's run names it, and its segment is of that run. Whoever may write may write a word anywhere; a
    /// rebuild by it would take other keys' segments away.
    fn is_sound(&self, entry: u32, word: DirectoryWord) -> bool {
        let geometry = &self.index.geometry;
        if word.depth > geometry.directory_bits {
            return false;
        }
        let run = self.index.run(entry, word.depth);
        let prefix = run.first >> (geometry.directory_bits - word.depth);
        let Some(segment) = geometry.segment_offset(word) else { return false };
        (run.first..run.first + run.count).all(|entry| self.word(entry) == Some(word))
            && (0..BUCKETS_PER_SEGMENT).all(|bucket| {
                let header = self.words.load(segment.plus(bucket * BUCKET_BYTES));
                header.is_ok_and(|bits| {
                    let header = BucketHeader::from_bits(bits);
                    !header.sealed
                        && (header.depth, header.prefix, header.generation)
                            == (word.depth, prefix, word.generation)
                })
            })
    }

    /// The next wish that isn't late, one for which a writer waits first; with the directory word that it is about.
    fn next_wish(&self) -> Option<(Wish, DirectoryWord, bool)> {
        let mut books = self.books();
        while !books.wishes.is_empty() {
            let urgent = books.wishes.iter().position(|wish| wish.reason == Reason::Full).unwrap_or(0);
            let wish = books.wishes.remove(urgent)?;
            if let Some(word) = self.word(wish.first).filter(|word| word.generation == wish.generation) {
                let can_split = self.can_split(&books, word);
                return Some((wish, word, can_split));
            }
        }
        None
    }

    /// A rebuild is done, and its old segment waits for `epoch`.
    fn replaced(&self, rebuilt: &Rebuilt, epoch: u64) {
        let mut books = self.books();
        books.unsplittable.remove(&rebuilt.old.segment);
        if rebuilt.tally.unfit > 0 {
            books.unsplittable.extend(rebuilt.new.iter().map(|word| word.segment));
        }
        books.figures.rebuilds_total += 1;
        books.figures.splits_total += u64::from(rebuilt.new.len() == 2);
        books.figures.unfit_total += rebuilt.tally.unfit as u64;
        books.segments.replace(rebuilt.old.segment, rebuilt.taken, rebuilt.new.iter().copied(), epoch);
    }

    /// Looks at the next `segments` for the sake of their dead slots' memory, beginning at entry `from` of the directory, until
    /// one is worth a rebuild; then that is a wish. Returns whether there is one, and where to go on, if it isn't the end.
    pub(super) fn look_for_dead(
        &self,
        mut from: u64,
        segments: usize,
        reason: Reason,
    ) -> (bool, Option<u64>) {
        let entries = self.index.geometry.directory_entries();
        // Loads are allowed in every domain.
        let mut slots = Slots::of_cpu(self.words);
        for _ in 0..segments {
            if from >= entries {
                break;
            }
            // What is no directory word is somebody else's business.
            let Some(word) = self.word(from as u32) else {
                from += 1;
                continue;
            };
            let run = self.index.run(from as u32, word.depth);
            from = u64::from(run.first) + u64::from(run.count);
            if self.advice(&mut slots, word, reason, false) == Advice::Compact {
                let wish = Wish { first: run.first, generation: word.generation, reason };
                self.books().wish(wish);
                return (true, (from < entries).then_some(from));
            }
        }
        (false, (from < entries).then_some(from))
    }

    pub(super) fn has_wishes(&self) -> bool {
        !self.books().wishes.is_empty()
    }
}

impl Books {
    /// Takes a wish down; one for a segment is enough. Returns whether it is news.
    fn wish(&mut self, wish: Wish) -> bool {
        let same = |known: &&mut Wish| known.first == wish.first && known.generation == wish.generation;
        if let Some(known) = self.wishes.iter_mut().find(same) {
            let is_news = wish.reason > known.reason;
            known.reason = known.reason.max(wish.reason);
            return is_news;
        }
        if self.wishes.len() >= WISHES_MAX {
            return false;
        }
        self.wishes.push_back(wish);
        true
    }
}

impl Serving {
    /// Takes the report of a full bucket.
    ///
    /// # Errors
    /// The refusal to send.
    pub fn report_bucket(&self, report: BucketReport) -> Result<(), Refusal> {
        match self.growth.report(report) {
            Ok(true) => self.bell.ring(),
            Ok(false) => {}
            Err(error) => return Err(refusal(RefusalCode::IndexFull, error.to_string())),
        }
        Ok(())
    }
}

/// Does what there is to do for the index: recycles segments that nobody can use any more, rebuilds one. Runs on the
/// janitor's thread, with no lock held.
pub fn rebuild_work(serving: &Serving) -> RebuildWork {
    let growth = &serving.growth;
    let quiesced = serving.epochs().quiesced();
    growth.recycle(quiesced);
    let start = Instant::now();
    match growth.work() {
        Did::Nothing => {}
        Did::Waits => {
            serving.epochs().want();
            tracing::debug!("a rebuild waits until segments are free again");
        }
        Did::Rebuilt(rebuilt) => {
            let epoch = {
                let mut epochs = serving.epochs();
                epochs.note_change(rebuilt.run);
                epochs.target()
            };
            growth.replaced(&rebuilt, epoch);
            tell(&rebuilt, start.elapsed());
            if growth.has_wishes() {
                // Others have their turn in between: the epoch, which recycles segments, and sweeps.
                serving.bell.ring();
            }
        }
        Did::Failed(error) => {
            tracing::error!(%error, "a rebuild of the index can't go on; tried again");
            return RebuildWork { is_under_way: true, deadline: Some(Instant::now() + RETRY) };
        }
    }
    RebuildWork::default()
}

fn tell(rebuilt: &Rebuilt, elapsed: Duration) {
    let Rebuilt { old, new, run, tally, .. } = rebuilt;
    tracing::debug!(
        entry = run.first,
        entries = run.count,
        depth = old.depth,
        generation = old.generation,
        segments = new.len(),
        moved = tally.moved,
        dropped = tally.dropped,
        lost_swaps = tally.lost_swaps,
        elapsed_us = elapsed.as_micros() as u64,
        "segment rebuilt"
    );
    if tally.disturbed > 0 {
        tracing::warn!(
            entry = run.first,
            slots = tally.disturbed,
            "a client changed sealed slots, which none may"
        );
    }
    if tally.unfit > 0 {
        tracing::warn!(
            entry = run.first,
            segment = new.first().map(|word| word.segment),
            "a slot of the segment names no block with a key of its own, so the segment was not split; see kvctl fsck"
        );
    }
}

#[cfg(test)]
mod tests;
