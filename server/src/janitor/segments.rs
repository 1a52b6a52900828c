//! The book of segments: which of the pool's the directory names, which wait, which are free.
//!
//! Always true: each segment is serving, retired, free, or in the hands of the janitor, who builds it. A retired one becomes
//! free only when every session has acknowledged the epoch that it waits for, ⚑ since until then somebody may still use a
//! slot of it that it knows from earlier.
//!
//! It can't run out for good: the directory names at most one segment an entry, the pool has more, and whatever is not
//! serving is free or will be.

use std::collections::VecDeque;
use std::ops::Range;

use sidestep_common::layout::DirectoryWord;
use sidestep_common::planted::{Fault, is_planted};

use super::rebuild::NewSegments;

/// The segments of one pool.
#[derive(Debug)]
pub struct Segments {
    /// Never used, so that memory which isn't needed is not touched.
    untouched: Range<u32>,
    /// Used before, and nobody's any more.
    free: Vec<u32>,
    /// With the epoch that they wait for; the oldest first.
    retired: VecDeque<(u64, u32)>,
    serving: u64,
}

impl Segments {
    /// The book of a pool of `count` segments whose directory has these words, when no session is there.
    pub fn of_directory(words: impl Iterator<Item = DirectoryWord>, count: u64) -> Self {
        let count = count as u32;
        let mut is_serving = Vec::new();
        let mut serving = 0;
        for word in words.filter(|word| word.segment < count) {
            let at = word.segment as usize;
            if at >= is_serving.len() {
                is_serving.resize(at + 1, false);
            }
            serving += u64::from(!std::mem::replace(&mut is_serving[at], true));
        }
        let untouched = is_serving.len() as u32..count;
        let free = (0..untouched.start).rev().filter(|segment| !is_serving[*segment as usize]).collect();
        Self { untouched, free, retired: VecDeque::new(), serving }
    }

    /// How many the directory names.
    pub const fn serving(&self) -> u64 {
        self.serving
    }

    /// How many wait.
    pub fn retired(&self) -> usize {
        self.retired.len()
    }

    /// How many are free.
    pub fn free(&self) -> usize {
        self.untouched.len() + self.free.len()
    }

    /// Takes one or two; `None` if so many aren't free.
    pub fn take(&mut self, two: bool) -> Option<NewSegments> {
        if self.free() < 1 + usize::from(two) {
            return None;
        }
        let first = self.take_one()?;
        Some(if two { NewSegments::Two(first, self.take_one()?) } else { NewSegments::One(first) })
    }

    fn take_one(&mut self) -> Option<u32> {
        self.free.pop().or_else(|| self.untouched.next())
    }

    /// A rebuild is done: these of `taken` serve from now on, in place of `old`, which waits for `epoch`. What else was taken
    /// was not needed.
    pub fn replace(
        &mut self,
        old: u32,
        taken: NewSegments,
        serve: impl Iterator<Item = DirectoryWord>,
        epoch: u64,
    ) {
        let serve: Vec<u32> = serve.map(|word| word.segment).collect();
        let taken = match taken {
            NewSegments::One(segment) => vec![segment],
            NewSegments::Two(low, high) => vec![low, high],
        };
        self.serving = self.serving - 1 + serve.len() as u64;
        self.free.extend(taken.iter().filter(|segment| !serve.contains(segment)));
        self.retired.push_back((epoch, old));
    }

    /// Everybody has acknowledged epoch `quiesced`. Returns how many became free.
    pub fn recycle(&mut self, quiesced: u64) -> usize {
        let before = self.retired.len();
        while let Some((epoch, segment)) = self.retired.front().copied() {
            if epoch > quiesced && !is_planted(Fault::RecycledEarly) {
                break;
            }
            self.retired.pop_front();
            self.free.push(segment);
        }
        before - self.retired.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn word(segment: u32) -> DirectoryWord {
        DirectoryWord { segment, generation: 1, depth: 2 }
    }

    fn book(serving: &[u32], count: u64) -> Segments {
        // Each named by two entries.
        Segments::of_directory(serving.iter().flat_map(|segment| [word(*segment); 2]), count)
    }

    #[test]
    fn what_the_directory_does_not_name_is_free() {
        let mut segments = book(&[0, 4, 1], 7);
        assert_eq!((segments.serving(), segments.retired(), segments.free()), (3, 0, 4));
        assert_eq!(segments.take(true), Some(NewSegments::Two(2, 3)));
        assert_eq!(segments.take(true), Some(NewSegments::Two(5, 6)));
        assert_eq!(segments.take(false), None);
    }

    /// One that was replaced is used again when everybody has acknowledged the epoch that it waits for, and not before.
    #[test]
    fn retired_segments_wait() {
        let mut segments = book(&[0], 3);
        let taken = segments.take(true).unwrap();
        assert_eq!(segments.take(false), None);
        segments.replace(0, taken, [word(1), word(2)].into_iter(), 8);
        assert_eq!((segments.serving(), segments.retired(), segments.free()), (2, 1, 0));
        assert_eq!((segments.recycle(7), segments.take(false)), (0, None));
        assert_eq!(segments.recycle(8), 1);
        assert_eq!(segments.take(true), None, "only one is there");
        assert_eq!(segments.take(false), Some(NewSegments::One(0)));
        segments.replace(2, NewSegments::One(0), [word(0)].into_iter(), 9);
        assert_eq!((segments.serving(), segments.recycle(100), segments.free()), (2, 1, 1));
    }

    #[test]
    fn what_was_not_needed_is_free_again() {
        let mut segments = book(&[0], 3);
        let taken = segments.take(true).unwrap();
        segments.replace(0, taken, [word(1)].into_iter(), 2);
        assert_eq!((segments.serving(), segments.free()), (1, 1));
        assert_eq!(segments.take(false), Some(NewSegments::One(2)));
    }

    /// Rebuilds in any mix: the segments add up, and one that waits is never handed out.
    #[test]
    fn segments_add_up() {
        const COUNT: u64 = 36;
        let mut segments = book(&[0, 1], COUNT);
        let mut serving = vec![0, 1];
        let mut random = 7_u64;
        for epoch in 1..5000_u64 {
            random = random.wrapping_mul(0xd134_2543_de82_ef95).wrapping_add(1);
            let old = (random >> 33) as usize % serving.len();
            let two = serving.len() < 32 && random >> 60 < 6;
            let Some(taken) = segments.take(two) else {
                assert!(segments.recycle(epoch) > 0, "something always waits when nothing is free");
                continue;
            };
            let new = match taken {
                NewSegments::One(segment) => vec![segment],
                NewSegments::Two(low, high) => vec![low, high],
            };
            assert!(!new.iter().any(|segment| serving.contains(segment)));
            assert!(!segments.retired.iter().any(|entry| new.contains(&entry.1)));
            let old = serving.swap_remove(old);
            serving.extend(&new);
            segments.replace(old, taken, new.into_iter().map(word), epoch);
            assert_eq!(segments.serving(), serving.len() as u64);
            assert_eq!(segments.serving() as usize + segments.retired() + segments.free(), COUNT as usize);
        }
    }
}
