//! Waiting longer each time.
//!
//! Always true: the wait grows by a factor of two up to a limit and is drawn at random between half of that and
//! all of it, so that clients that failed together don't try together.

use std::time::Duration;

/// A growing, jittered wait.
#[derive(Clone, Debug)]
pub(crate) struct Backoff {
    next: Duration,
    first: Duration,
    limit: Duration,
    random: u64,
}

impl Backoff {
    /// Starts with about `first` and grows to about `limit`. `seed` makes clients differ.
    pub(crate) const fn new(first: Duration, limit: Duration, seed: u64) -> Self {
        Self { next: first, first, limit, random: seed | 1 }
    }

    /// The next wait.
    pub(crate) fn next_wait(&mut self) -> Duration {
        let whole = self.next;
        self.next = (whole * 2).min(self.limit);
        // xorshift64: spreads attempts, decides nothing.
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        whole / 2 + whole.mul_f64((self.random >> 11) as f64 / (1_u64 << 53) as f64 / 2.0)
    }

    /// It went well: start small again.
    pub(crate) const fn reset(&mut self) {
        self.next = self.first;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_grow_to_the_limit_and_differ() {
        let (first, limit) = (Duration::from_millis(10), Duration::from_millis(500));
        let mut one = Backoff::new(first, limit, 3);
        let mut two = Backoff::new(first, limit, 99);
        let mut whole = first;
        let mut equal = 0;
        for _ in 0..20 {
            let (a, b) = (one.next_wait(), two.next_wait());
            assert!(a >= whole / 2 && a <= whole, "{a:?} of {whole:?}");
            equal += u32::from(a == b);
            whole = (whole * 2).min(limit);
        }
        assert!(equal < 3);
        one.reset();
        assert!(one.next_wait() <= first);
    }
}
