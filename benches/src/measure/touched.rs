//! Which keys of the data set a run has asked for.
//!
//! Always true: a key number is counted once, whoever touches it first. The bitmap has a bound; of larger data
//! sets only the range is known.

use std::sync::atomic::{AtomicU64, Ordering};

/// Key numbers with a bit each: 2^28 of them take 32 MiB.
const TRACKED_KEYS_MAX: u64 = 1 << 28;

/// Shared by the threads of a run. Nothing is published through it, so all accesses are relaxed; the joining of
/// the threads makes the bits visible to the report.
#[derive(Debug)]
pub struct Touched {
    bits: Vec<AtomicU64>,
    beyond: AtomicU64,
}

impl Touched {
    /// For key numbers below `key_count`, and a quarter more for keys that the run inserts.
    pub fn new(key_count: u64) -> Self {
        let tracked = key_count.saturating_add(key_count / 4).saturating_add(1024);
        let words = if tracked > TRACKED_KEYS_MAX { 0 } else { tracked.div_ceil(64) };
        Self { bits: (0..words).map(|_| AtomicU64::new(0)).collect(), beyond: AtomicU64::new(0) }
    }

    /// A key was asked for.
    pub fn mark(&self, number: u64) {
        let bit = 1 << (number % 64);
        match self.bits.get((number / 64) as usize) {
            // Popular keys are marked already; looking first keeps their words shared between the caches.
            Some(word) if word.load(Ordering::Relaxed) & bit == 0 => {
                word.fetch_or(bit, Ordering::Relaxed);
            }
            Some(_) => {}
            None if self.beyond.load(Ordering::Relaxed) == 0 => self.beyond.store(1, Ordering::Relaxed),
            None => {}
        }
    }

    /// How many different keys were asked for; nothing if that is not known.
    pub fn count(&self) -> Option<u64> {
        (self.beyond.load(Ordering::Relaxed) == 0)
            .then(|| self.bits.iter().map(|word| u64::from(word.load(Ordering::Relaxed).count_ones())).sum())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_each_key_once() {
        let touched = Touched::new(1000);
        [0, 63, 64, 999, 0, 63].into_iter().for_each(|number| touched.mark(number));
        assert_eq!(touched.count(), Some(4));
        touched.mark(1 << 40);
        assert_eq!(touched.count(), None);
    }
}
