//! Numbers for new keys, and which of them may be read already.
//!
//! Always true:
//! - a number is handed out once;
//! - [`InsertedKeys::last`] is the largest number such that every number up to it was acknowledged or abandoned:
//!   a reader never asks for a key whose insert has not finished;
//! - an abandoned number (its insert failed) is never readable, and does not hold back those after it.
//!
//! At most one number a worker thread is in hand, which bounds the set of numbers that finished early.

use std::collections::{BTreeSet, HashSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError, RwLock};

/// The keys of a run, shared by its threads.
#[derive(Debug)]
pub struct InsertedKeys {
    next: AtomicU64,
    /// One more than the last readable number. Released after the keys before it are in the store, acquired by
    /// readers.
    end: AtomicU64,
    finished_early: Mutex<BTreeSet<u64>>,
    has_holes: AtomicBool,
    holes: RwLock<HashSet<u64>>,
}

impl InsertedKeys {
    /// Numbers below `end` exist already; the first new one is `end`. `end` must be at least 1.
    pub fn new(end: u64) -> Self {
        assert!(end > 0, "a run needs at least one existing key");
        Self {
            next: AtomicU64::new(end),
            end: AtomicU64::new(end),
            finished_early: Mutex::default(),
            has_holes: AtomicBool::new(false),
            holes: RwLock::default(),
        }
    }

    /// A number for a new key.
    pub fn take(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    /// The insert of `number` succeeded.
    pub fn acknowledge(&self, number: u64) {
        let mut early = self.finished_early.lock().unwrap_or_else(PoisonError::into_inner);
        early.insert(number);
        let mut end = self.end.load(Ordering::Relaxed);
        while early.remove(&end) {
            end += 1;
        }
        self.end.store(end, Ordering::Release);
    }

    /// The insert of `number` failed, or may have.
    pub fn abandon(&self, number: u64) {
        self.holes.write().unwrap_or_else(PoisonError::into_inner).insert(number);
        self.has_holes.store(true, Ordering::Release);
        self.acknowledge(number);
    }

    /// The last readable number.
    pub fn last(&self) -> u64 {
        self.end.load(Ordering::Acquire) - 1
    }

    /// Whether a key of this number is in the store.
    pub fn is_readable(&self, number: u64) -> bool {
        number < self.end.load(Ordering::Acquire)
            && !(self.has_holes.load(Ordering::Acquire)
                && self.holes.read().unwrap_or_else(PoisonError::into_inner).contains(&number))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gap_holds_back_what_follows() {
        let keys = InsertedKeys::new(10);
        assert_eq!([keys.take(), keys.take(), keys.take()], [10, 11, 12]);
        keys.acknowledge(11);
        assert_eq!(keys.last(), 9);
        assert!(!keys.is_readable(11));
        keys.acknowledge(10);
        assert_eq!(keys.last(), 11);
        keys.abandon(12);
        assert_eq!(keys.last(), 12);
        assert!(keys.is_readable(11) && !keys.is_readable(12));
    }

    #[test]
    fn many_threads_leave_no_gap() {
        let keys = InsertedKeys::new(1);
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| (0..1000).for_each(|_| keys.acknowledge(keys.take())));
            }
        });
        assert_eq!(keys.last(), 8000);
        assert!(keys.finished_early.lock().unwrap().is_empty());
    }
}
