//! The directory: which runs of entries name which segments.
//!
//! Always true: each segment is looked at once in a pass, however often it is named, and never unless the pool has it.
//! A run whose word was replaced while its segment was looked at is gone through again, a bounded number of times.

use std::collections::VecDeque;
use std::ops::Range;

use sidestep_common::layout::DirectoryWord;

use super::bucket::{Run, Suspicion};
use super::{Checker, Finding, Part, Problem, RegionSource, SourceError};

/// Entries read at once: 256 KiB.
const PIECE_ENTRIES: u64 = 32 << 10;
/// Segments looked at together: they share round trips, and their blocks do.
const SEGMENTS_TOGETHER: usize = 16;
/// How often runs that were replaced are gone through again. A segment is rebuilt seldom, so twice is rare already.
const ROUNDS_MAX: u32 = 4;

/// Where the walk is in a run.
struct Walk {
    run: Option<(u64, u64)>,
    /// Entries of the run that are still to come.
    left: u64,
    /// The entry before, and its word.
    previous: Option<(u64, u64)>,
}

impl<S: RegionSource> Checker<'_, '_, S> {
    /// Goes through the directory and looks at every segment that it names.
    pub(super) fn check_index(&mut self) -> Result<(), SourceError> {
        let entries = self.geometry.directory_entries();
        let mut round = VecDeque::new();
        round.push_back(0..entries);
        for _ in 0..ROUNDS_MAX {
            while let Some(range) = round.pop_front() {
                self.walk(range)?;
            }
            round.extend(self.replaced.drain(..));
            if round.is_empty() {
                break;
            }
        }
        self.report.notes.changed += round.len() as u64;
        Ok(())
    }

    fn walk(&mut self, range: Range<u64>) -> Result<(), SourceError> {
        let mut walk = Walk { run: None, left: 0, previous: None };
        let mut together = Vec::with_capacity(SEGMENTS_TOGETHER);
        let mut bytes = Vec::new();
        let mut entry = range.start;
        while entry < range.end {
            let count = PIECE_ENTRIES.min(range.end - entry);
            let start = self.geometry.directory_word_offset(entry).0;
            self.read_piece(start..start + 8 * count, &mut bytes)?;
            for word in bytes.as_chunks::<8>().0 {
                if let Some(run) = self.step(&mut walk, entry, u64::from_le_bytes(*word))? {
                    together.push(run);
                }
                if together.len() == SEGMENTS_TOGETHER {
                    self.check_segments(&together)?;
                    together.clear();
                    self.progress("index", entry, range.end);
                }
                entry += 1;
            }
        }
        self.check_segments(&together)?;
        self.progress("index", range.end, range.end);
        Ok(())
    }

    /// Takes in one entry; gives the run that begins with it, if its segment is to be looked at.
    fn step(&mut self, walk: &mut Walk, entry: u64, bits: u64) -> Result<Option<Run>, SourceError> {
        let previous = walk.previous.replace((entry, bits));
        let mut is_broken = false;
        if walk.left > 0
            && let Some((first, expected)) = walk.run
        {
            if bits == expected {
                walk.left -= 1;
                return Ok(None);
            }
            is_broken = true;
            let problem = Problem::RunBroken { entry, expected, found: bits };
            self.suspect_entry(first, expected, problem, Some((entry, bits)))?;
        }
        walk.left = 0;
        let word = DirectoryWord::from_bits(bits);
        let directory_bits = self.geometry.directory_bits;
        let problem = if word.generation == 0 {
            Problem::DirectoryEmpty { word: bits }
        } else if word.depth > directory_bits {
            Problem::DirectoryDepth { depth: word.depth, limit: directory_bits }
        } else if u64::from(word.segment) >= self.geometry.segment_count {
            Problem::SegmentOutside { segment: word.segment, segment_count: self.geometry.segment_count }
        } else {
            return self.begin(walk, (entry, word), previous.filter(|_| !is_broken));
        };
        self.suspect_entry(entry, bits, problem, None)?;
        Ok(None)
    }

    /// An entry with a word that can be begins a run, or what is left of a broken one.
    fn begin(
        &mut self,
        walk: &mut Walk,
        (entry, word): (u64, DirectoryWord),
        previous: Option<(u64, u64)>,
    ) -> Result<Option<Run>, SourceError> {
        let run_entries = 1_u64 << (self.geometry.directory_bits - word.depth);
        let prefix = entry / run_entries;
        if entry.is_multiple_of(run_entries) {
            walk.run = Some((entry, word.to_bits()));
            walk.left = run_entries - 1;
        } else if let Some((before, found)) = previous.filter(|(_, found)| *found != word.to_bits()) {
            let problem = Problem::RunBroken { entry: before, expected: word.to_bits(), found };
            self.suspect_entry(entry, word.to_bits(), problem, Some((before, found)))?;
        }
        let Some(segment) = self.geometry.segment_offset(word) else { return Ok(None) };
        let named_by = &mut self.named_by[word.segment as usize];
        // One more than the entry's number, so that 0 is none.
        let Some(other) = std::mem::replace(named_by, entry as u32 + 1).checked_sub(1).map(u64::from) else {
            self.report.index.segments += 1;
            return Ok(Some(Run { entry, word, prefix, segment }));
        };
        // What is left of a broken run has its segment in common with the rest, and again what was gone through again.
        if other == entry || other / run_entries == prefix {
            return Ok(None);
        }
        let other_bits = self.read_word(self.geometry.directory_word_offset(other))?;
        if DirectoryWord::from_bits(other_bits).segment != word.segment {
            // The other run was replaced, and its segment has got other keys.
            return Ok(Some(Run { entry, word, prefix, segment }));
        }
        let problem = Problem::SegmentNamedTwice { segment: word.segment, entry: other };
        self.suspect_entry(entry, word.to_bits(), problem, Some((other, other_bits)))?;
        Ok(None)
    }

    /// Something about an entry seems wrong: is it, if one looks again?
    fn suspect_entry(
        &mut self,
        entry: u64,
        bits: u64,
        problem: Problem,
        other: Option<(u64, u64)>,
    ) -> Result<(), SourceError> {
        let offset = self.geometry.directory_word_offset(entry);
        let mut words = smallvec::smallvec![(offset, bits)];
        words.extend(other.map(|(other, bits)| (self.geometry.directory_word_offset(other), bits)));
        let finding = Finding { offset, part: Part::Entry(entry), problem };
        if !self.settle_words(&Suspicion { finding, words })? {
            self.replace(entry, DirectoryWord::from_bits(bits).depth);
        }
        Ok(())
    }

    /// The run of that entry was replaced: it is gone through again.
    pub(super) fn replace(&mut self, entry: u64, depth: u32) {
        let run_entries = 1_u64 << self.geometry.directory_bits.saturating_sub(depth);
        let first = entry - entry % run_entries;
        let range = first..first + run_entries;
        if self.source.is_live() && self.replaced.back() != Some(&range) {
            self.replaced.push_back(range);
        }
    }

    /// Looks at the segments of `runs`.
    fn check_segments(&mut self, runs: &[Run]) -> Result<(), SourceError> {
        if runs.is_empty() {
            return Ok(());
        }
        let pieces: Vec<_> = runs.iter().map(Run::bytes).collect();
        let mut bytes = Vec::new();
        self.source.read(&pieces, &mut bytes)?;
        let looks = self.look(runs, &bytes)?;
        for look in looks {
            self.settle(look)?;
        }
        Ok(())
    }
}
