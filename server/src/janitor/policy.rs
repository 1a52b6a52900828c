//! Which rebuild helps a segment, if one does.
//!
//! Always true: a segment is rebuilt only if that makes room in a bucket that lacks it, or, while memory is short, if it gives
//! back the blocks of many dead slots. It is split if living keys fill it, and moved into one new segment if dead slots do, or
//! if it can't be split.

use sidestep_common::layout::{Offset, SLOTS_PER_BUCKET, SlotState, SlotWord};

use super::rebuild::{Index, Words, slot};

/// A bucket with so many slots taken soon will be full: clients say so when they take the slot.
pub const CROWDED_SLOTS: usize = 26;
/// Dead slots that make a rebuild into one worth it before a bucket is full.
const DEAD_SLOTS_WORTH_IT: usize = 8;
/// A crowded bucket with no more living keys than this has room for a while once its dead slots are gone. Where keys come and
/// go, an index that split there would double for nothing.
const LIVE_SLOTS_LEFT_TOGETHER: usize = CROWDED_SLOTS - DEAD_SLOTS_WORTH_IT;

/// Buckets with at least so many slots taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Crowd {
    /// How many.
    pub buckets: usize,
    /// Slots of keys, in that of them which has the most.
    pub live_most: usize,
    /// Slots of deleted keys, likewise.
    pub dead_most: usize,
}

impl Crowd {
    fn add(&mut self, live: usize, dead: usize) {
        self.live_most = self.live_most.max(live);
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
    /// Slots of keys in all buckets.
    pub live: usize,
    /// Slots of deleted keys in all buckets.
    pub dead: usize,
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
        let (mut live, mut dead) = (0, 0);
        for number in 0..SLOTS_PER_BUCKET {
            let word = words.load(slot(start, bucket * SLOTS_PER_BUCKET + number))?;
            match SlotWord::from_bits(word).state() {
                SlotState::Empty => {}
                SlotState::Live(_) | SlotState::Malformed => live += 1,
                SlotState::Deleted(_) => dead += 1,
                SlotState::Closed | SlotState::Moved(_) => survey.is_sealed = true,
            }
        }
        if live + dead >= CROWDED_SLOTS {
            survey.crowded.add(live, dead);
        }
        if live + dead == SLOTS_PER_BUCKET {
            survey.full.add(live, dead);
        }
        survey.live += live;
        survey.dead += dead;
    }
    Ok(survey)
}

/// Why a segment is looked at.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Reason {
    /// Memory is short, and dead slots have some.
    Short,
    /// The same, and somebody was refused memory.
    Refused,
    /// A bucket fills up.
    Crowded,
    /// A bucket is full, and a writer waits.
    Full,
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

/// What a segment needs.
pub fn advise(survey: &Survey, reason: Reason, can_split: bool) -> Advice {
    let crowd = match reason {
        _ if survey.is_sealed => return Advice::Leave,
        Reason::Short => return for_memory(survey, LIVE_PER_DEAD),
        Reason::Refused => return for_memory(survey, LIVE_PER_DEAD_IF_REFUSED),
        Reason::Crowded => &survey.crowded,
        Reason::Full => &survey.full,
    };
    if crowd.buckets == 0 {
        return Advice::Leave;
    }
    if crowd.live_most <= LIVE_SLOTS_LEFT_TOGETHER {
        return Advice::Compact;
    }
    if can_split {
        return Advice::Split;
    }
    let is_full = reason == Reason::Full;
    let worth_it = if is_full { 1 } else { DEAD_SLOTS_WORTH_IT };
    if crowd.dead_most >= worth_it {
        Advice::Compact
    } else if is_full {
        Advice::Full
    } else {
        Advice::Leave
    }
}

/// A rebuild for the sake of memory gives back at least so many blocks,
const DEAD_BLOCKS_LEAST: usize = 16;
/// and one for so many keys that it moves,
const LIVE_PER_DEAD: usize = 8;
/// or for so many.
const LIVE_PER_DEAD_IF_REFUSED: usize = 16;

/// Whether the blocks of its dead slots are worth a rebuild.
const fn for_memory(survey: &Survey, live_per_dead: usize) -> Advice {
    if survey.dead >= DEAD_BLOCKS_LEAST && survey.dead * live_per_dead >= survey.live {
        Advice::Compact
    } else {
        Advice::Leave
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of buckets with so many slots of keys and of deleted keys.
    fn crowd(buckets: &[(usize, usize)]) -> Crowd {
        let mut crowd = Crowd::default();
        buckets.iter().for_each(|(live, dead)| crowd.add(*live, *dead));
        crowd
    }

    fn full(buckets: &[(usize, usize)], can_split: bool) -> Advice {
        let survey = Survey { full: crowd(buckets), crowded: crowd(buckets), ..Survey::default() };
        advise(&survey, Reason::Full, can_split)
    }

    fn crowded(buckets: &[(usize, usize)], can_split: bool) -> Advice {
        let survey = Survey { crowded: crowd(buckets), ..Survey::default() };
        assert_eq!(advise(&survey, Reason::Full, can_split), Advice::Leave, "there is room by now");
        advise(&survey, Reason::Crowded, can_split)
    }

    #[test]
    fn living_keys_split_and_dead_ones_are_given_up() {
        assert_eq!(full(&[(31, 0)], true), Advice::Split);
        assert_eq!(full(&[(0, 31)], true), Advice::Compact);
        assert_eq!(full(&[(18, 13)], true), Advice::Compact);
        assert_eq!(full(&[(18, 13), (19, 12)], true), Advice::Split, "one of two would be full soon");
        assert_eq!(crowded(&[(24, 3)], true), Advice::Split);
        assert_eq!(crowded(&[(10, 16), (18, 8)], true), Advice::Compact);
    }

    /// Where nothing can be split, each dead slot counts when a writer waits; else only many do.
    #[test]
    fn what_cannot_be_split_is_compacted_or_full() {
        assert_eq!(full(&[(31, 0)], false), Advice::Full);
        assert_eq!(full(&[(31, 0), (30, 1)], false), Advice::Compact);
        assert_eq!(crowded(&[(19, 7)], false), Advice::Leave);
        assert_eq!(crowded(&[(19, 8), (26, 0)], false), Advice::Compact);
    }

    /// For memory's sake alone nothing is split, and nothing is moved for a few blocks.
    #[test]
    fn memory_is_worth_a_rebuild_if_there_is_enough_of_it() {
        let advice = |live, dead, reason| advise(&Survey { live, dead, ..Survey::default() }, reason, true);
        for (reason, live) in [(Reason::Short, 128), (Reason::Refused, 256)] {
            assert_eq!(advice(0, 15, reason), Advice::Leave);
            assert_eq!(advice(0, 16, reason), Advice::Compact);
            assert_eq!(advice(live, 16, reason), Advice::Compact);
            assert_eq!(advice(live + 1, 16, reason), Advice::Leave);
        }
    }

    #[test]
    fn a_rebuild_under_way_is_left_alone() {
        let full = crowd(&[(31, 0)]);
        let survey = Survey { full, dead: 100, is_sealed: true, ..Survey::default() };
        assert_eq!(advise(&survey, Reason::Full, false), Advice::Leave);
        assert_eq!(advise(&survey, Reason::Refused, false), Advice::Leave);
    }
}
