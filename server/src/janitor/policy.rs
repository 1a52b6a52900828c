//! Which rebuild helps a segment, if one does.
//!
//! Always true: a segment is rebuilt only if that makes room in a bucket that lacks it. It is split if living keys fill it,
//! and moved into one new segment if dead slots do, or if it can't be split.

use sidestep_common::layout::{Offset, SLOTS_PER_BUCKET, SlotState, SlotWord};

use super::rebuild::{Index, Words, slot};

/// A bucket with so many slots taken soon will be full: clients say so when they take the slot.
pub const CROWDED_SLOTS: usize = 26;
/// Dead slots that make a rebuild into one worth it before a bucket is full.
const DEAD_SLOTS_WORTH_IT: usize = 8;

/// Buckets with at least so many slots taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Crowd {
    /// How many.
    pub buckets: usize,
    /// Slots of deleted keys, in that of them which has the fewest.
    pub dead_least: usize,
    /// In that which has the most.
    pub dead_most: usize,
}

impl Crowd {
    fn add(&mut self, dead: usize) {
        self.dead_least = if self.buckets == 0 { dead } else { self.dead_least.min(dead) };
        self.dead_most = self.dead_most.max(dead);
        self.buckets += 1;
    }
}

/// What a look at a segment's slots shows.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Survey {
    /// Buckets with [`CROWDED_SLOTS`] slots taken or more.
    pub crowded: Crowd,
    /// Buckets with no EMPTY slot.
    pub full: Crowd,
    /// A rebuild has begun.
    pub is_sealed: bool,
}

/// Looks at the segment at `start`. Clients go on meanwhile, so it is true only about.
///
/// # Errors
/// As the words.
pub fn survey<W: Words>(words: &mut W, index: &Index, start: Offset) -> Result<Survey, W::Error> {
    let mut survey = Survey::default();
    for bucket in 0..index.buckets as usize {
        let (mut taken, mut dead) = (0, 0);
        for number in 0..SLOTS_PER_BUCKET {
            let word = words.load(slot(start, bucket * SLOTS_PER_BUCKET + number))?;
            match SlotWord::from_bits(word).state() {
                SlotState::Empty => {}
                SlotState::Live(_) | SlotState::Malformed => taken += 1,
                SlotState::Deleted(_) => {
                    taken += 1;
                    dead += 1;
                }
                SlotState::Closed | SlotState::Moved(_) => survey.is_sealed = true,
            }
        }
        if taken >= CROWDED_SLOTS {
            survey.crowded.add(dead);
        }
        if taken == SLOTS_PER_BUCKET {
            survey.full.add(dead);
        }
    }
    Ok(survey)
}

/// What is to be done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Advice {
    /// Two new segments.
    Split,
    /// One new segment, without the dead slots.
    Compact,
    /// Nothing: there is room.
    Leave,
    /// Nothing can: a bucket is full of living keys, and the segment can't be split.
    Full,
}

/// What a segment needs that was reported as full (`is_full`) or filling up.
pub fn advise(survey: &Survey, is_full: bool, can_split: bool) -> Advice {
    let crowd = if is_full { &survey.full } else { &survey.crowded };
    if crowd.buckets == 0 || survey.is_sealed {
        return Advice::Leave;
    }
    if crowd.dead_least * 2 > SLOTS_PER_BUCKET {
        return Advice::Compact;
    }
    if can_split {
        return Advice::Split;
    }
    let worth_it = if is_full { 1 } else { DEAD_SLOTS_WORTH_IT };
    if crowd.dead_most >= worth_it {
        Advice::Compact
    } else if is_full {
        Advice::Full
    } else {
        Advice::Leave
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn crowd(dead: &[usize]) -> Crowd {
        let mut crowd = Crowd::default();
        dead.iter().for_each(|dead| crowd.add(*dead));
        crowd
    }

    fn advice(full: &[usize], crowded: &[usize], is_full: bool, can_split: bool) -> Advice {
        let survey = Survey { full: crowd(full), crowded: crowd(crowded), is_sealed: false };
        advise(&survey, is_full, can_split)
    }

    #[test]
    fn living_keys_split_and_dead_ones_are_given_up() {
        assert_eq!(advice(&[], &[0], true, true), Advice::Leave, "there is room by now");
        assert_eq!(advice(&[0], &[0], true, true), Advice::Split);
        assert_eq!(advice(&[31], &[31], true, true), Advice::Compact);
        assert_eq!(advice(&[16, 15], &[16, 15], true, true), Advice::Split, "one of two would be full soon");
        assert_eq!(advice(&[], &[3], false, true), Advice::Split);
        assert_eq!(advice(&[], &[20, 16], false, true), Advice::Compact);
    }

    /// Where nothing can be split, each dead slot counts when a writer waits; else only many do.
    #[test]
    fn what_cannot_be_split_is_compacted_or_full() {
        assert_eq!(advice(&[0], &[0], true, false), Advice::Full);
        assert_eq!(advice(&[0, 1], &[0, 1], true, false), Advice::Compact);
        assert_eq!(advice(&[], &[7], false, false), Advice::Leave);
        assert_eq!(advice(&[], &[8, 0], false, false), Advice::Compact);
    }

    #[test]
    fn a_rebuild_under_way_is_left_alone() {
        let survey = Survey { full: crowd(&[0]), crowded: crowd(&[0]), is_sealed: true };
        assert_eq!(advise(&survey, true, false), Advice::Leave);
    }
}
