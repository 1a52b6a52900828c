//! Whether memory is short, so that idle sessions should give back what they don't need.
//!
//! It is if little is free, or if somebody was refused a moment ago: a pool may be too broken up for a large extent long before
//! it is full.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::locked;

/// A refusal counts for so long.
const REMEMBERED: Duration = Duration::from_secs(30);
/// A search for chunks that nobody uses tells as long as this that there are none; when there are refusals, the janitor
/// searches more often.
const SEARCH_COUNTS: Duration = Duration::from_secs(2);

/// Refusals for want of memory.
#[derive(Debug, Default)]
pub struct Shortage {
    last: Mutex<Option<Instant>>,
    /// Whether somebody was refused since the janitor looked.
    is_refused: AtomicBool,
    /// What the janitor found since the first of the refusals that are remembered.
    findings: Mutex<Findings>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Findings {
    /// When it last had looked for chunks that nobody uses.
    searched: Option<Instant>,
    /// When it last freed blocks of deleted keys.
    tidied: Option<Instant>,
    /// It went round the whole index and found none worth it.
    is_tidy: bool,
    /// Counts the times that refusals began.
    streak: u64,
}

impl Shortage {
    /// Somebody was refused; returns whether nobody was for a while.
    pub fn note_refusal(&self) -> bool {
        let mut last = locked(&self.last);
        let is_new = last.is_none_or(|last| last.elapsed() >= REMEMBERED);
        *last = Some(Instant::now());
        if is_new {
            let mut findings = locked(&self.findings);
            *findings = Findings { streak: findings.streak + 1, ..Findings::default() };
        }
        // A flag by itself; the ring of the bell behind it orders what the janitor sees.
        self.is_refused.store(true, Ordering::Relaxed);
        is_new
    }

    /// Whether somebody was refused lately.
    pub fn is_recent(&self) -> bool {
        locked(&self.last).is_some_and(|last| last.elapsed() < REMEMBERED)
    }

    /// Whether somebody was refused since [`Shortage::take_refused`].
    pub fn is_refused(&self) -> bool {
        self.is_refused.load(Ordering::Relaxed)
    }

    /// Whether somebody was; from now on nobody.
    pub fn take_refused(&self) -> bool {
        self.is_refused.swap(false, Ordering::Relaxed)
    }

    /// The janitor has looked for chunks that nobody uses.
    pub fn note_search(&self) {
        locked(&self.findings).searched = Some(Instant::now());
    }

    /// There are more of them, and perhaps unused ones.
    pub fn forget_search(&self) {
        locked(&self.findings).searched = None;
    }

    /// It has freed blocks of deleted keys.
    pub fn note_tidying(&self) {
        let mut findings = locked(&self.findings);
        (findings.tidied, findings.is_tidy) = (Some(Instant::now()), false);
    }

    /// It went round the index and found nothing that was worth freeing.
    pub fn note_tidy(&self) {
        locked(&self.findings).is_tidy = true;
    }

    /// Another number each time that refusals begin.
    pub fn streak(&self) -> u64 {
        locked(&self.findings).streak
    }

    /// Whether memory may turn up by itself: it is still being looked for, or blocks were freed that have not ripened for
    /// `grace` yet.
    pub fn may_end(&self, grace: Duration) -> bool {
        let Findings { searched, tidied, is_tidy, .. } = *locked(&self.findings);
        let is_within =
            |moment: Option<Instant>, limit| moment.is_some_and(|moment| moment.elapsed() < limit);
        !is_tidy || !is_within(searched, SEARCH_COUNTS) || is_within(tidied, grace * 2)
    }
}
