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

/// Refusals for want of memory.
#[derive(Debug, Default)]
pub struct Shortage {
    last: Mutex<Option<Instant>>,
    /// Whether somebody was refused since the janitor looked.
    is_refused: AtomicBool,
}

impl Shortage {
    /// Somebody was refused; returns whether nobody was for a while.
    pub fn note_refusal(&self) -> bool {
        let mut last = locked(&self.last);
        let is_new = last.is_none_or(|last| last.elapsed() >= REMEMBERED);
        *last = Some(Instant::now());
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
}
