//! Memory that deleted keys hold.
//!
//! A deleted key's slot names a block with its key until its segment is rebuilt, so a store from which much is deleted fills
//! with the dead. While memory is short, segments with many of them are rebuilt although none is crowded.
//!
//! Always true: it goes round the index a slice at a time and rests in between, so it takes a small part of a processor at
//! most; while memory is not short it does nothing.

use std::time::{Duration, Instant};

use super::growth::{RebuildWork, rebuild_work};
use super::policy::Reason;
use crate::node::Serving;

/// One slice of work, about.
const SLICE: Duration = Duration::from_millis(2);
/// The rest after a slice, in slices.
const REST: u32 = 8;
/// Segments between two looks at the clock.
const SEGMENTS_PER_LOOK: usize = 16;
/// The rest after a round that found something; twice as long each time after one that didn't,
const ROUND_REST: Duration = Duration::from_millis(100);
/// but no longer than this,
const ROUND_REST_MAX: Duration = Duration::from_secs(60);
/// or this, if somebody was refused memory.
const ROUND_REST_MAX_IF_REFUSED: Duration = Duration::from_secs(1);

/// How far the round has come.
#[derive(Debug)]
pub(super) struct Tidying {
    /// The directory's entry to go on at.
    next: u64,
    /// A segment was rebuilt in this round.
    has_found: bool,
    round_rest: Duration,
    /// When to go on.
    due: Option<Instant>,
    /// Whose refusals it goes round for.
    streak: u64,
}

impl Default for Tidying {
    fn default() -> Self {
        Self { next: 0, has_found: false, round_rest: ROUND_REST, due: None, streak: 0 }
    }
}

impl Tidying {
    /// Goes on for a slice, if memory is short and it is time. Returns how the last rebuild stands, and when to go on.
    pub(super) fn go_on(&mut self, serving: &Serving) -> (RebuildWork, Option<Instant>) {
        let mut work = RebuildWork::default();
        if !serving.wants_memory() {
            return (work, None);
        }
        let streak = serving.shortage.streak();
        if streak != self.streak {
            // They want to know what there is now.
            *self = Self { streak, ..Self::default() };
        }
        let begun = Instant::now();
        if let Some(due) = self.due.filter(|due| *due > begun) {
            return (work, Some(due));
        }
        let reason = if serving.shortage.is_recent() { Reason::Refused } else { Reason::Short };
        let mut is_round_over = false;
        while begun.elapsed() < SLICE && !is_round_over {
            let (is_worth_it, next) = serving.growth.look_for_dead(self.next, SEGMENTS_PER_LOOK, reason);
            self.next = next.unwrap_or(0);
            is_round_over = next.is_none();
            if is_worth_it {
                self.has_found = true;
                serving.shortage.note_tidying();
                work = rebuild_work(serving);
                // Either the card has failed, or segments must become free first.
                if work.is_under_way || serving.growth.has_wishes() {
                    break;
                }
            }
        }
        let mut rest = begun.elapsed() * REST;
        if is_round_over {
            let (found, is_refused) = (std::mem::take(&mut self.has_found), reason == Reason::Refused);
            if is_refused && !found {
                serving.shortage.note_tidy();
            }
            let most = if is_refused { ROUND_REST_MAX_IF_REFUSED } else { ROUND_REST_MAX };
            self.round_rest = if found { ROUND_REST } else { (self.round_rest * 2).min(most) };
            rest += self.round_rest;
        }
        let due = begun + rest;
        self.due = Some(due);
        (work, Some(due))
    }
}
