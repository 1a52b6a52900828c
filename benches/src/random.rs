//! Streams of random numbers: one for each worker thread, all from one `--seed`.
//!
//! Always true:
//! - the same seed and stream number give the same numbers, on every machine and in every version;
//! - two streams of one seed never overlap: each begins 2^192 numbers after the one before (the generator's
//!   *long jump*), so threads do not walk over the same keys in step;
//! - a stream belongs to one thread; there is no lock and nothing shared.

use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{Rng, SeedableRng};

/// The seed that is used when the command line names none.
pub const SEED_DEFAULT: u64 = 42;

/// One thread's source of randomness.
#[derive(Debug, Clone)]
pub struct RandomStream(Xoshiro256PlusPlus);

impl RandomStream {
    /// Stream number `stream` of the family that `seed` names.
    pub fn new(seed: u64, stream: u32) -> Self {
        let mut generator = Xoshiro256PlusPlus::seed_from_u64(seed);
        for _ in 0..stream {
            generator.long_jump();
        }
        Self(generator)
    }

    /// The next 64 random bits.
    pub fn bits(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// A number in `[0, 1)`, a multiple of 2^-53.
    pub fn unit(&mut self) -> f64 {
        (self.bits() >> 11) as f64 * (1.0 / (1u64 << 53) as f64)
    }

    /// A number in `[0, bound)`, each equally likely; 0 if `bound` is 0.
    ///
    /// Multiply and shift, with rejection of the few products that would favour small numbers (Lemire, "Fast
    /// random integer generation in an interval", 2019).
    pub fn below(&mut self, bound: u64) -> u64 {
        if bound == 0 {
            return 0;
        }
        let unfair = bound.wrapping_neg() % bound;
        loop {
            let product = u128::from(self.bits()) * u128::from(bound);
            if product as u64 >= unfair {
                return (product >> 64) as u64;
            }
        }
    }

    /// Fills `bytes` with random bytes.
    pub fn fill(&mut self, bytes: &mut [u8]) {
        self.0.fill_bytes(bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_reproduces_and_streams_differ() {
        let take = |seed, stream| {
            let mut random = RandomStream::new(seed, stream);
            (0..1000).map(|_| random.bits()).collect::<Vec<_>>()
        };
        assert_eq!(take(42, 3), take(42, 3));
        assert_ne!(take(42, 3), take(43, 3));
        let first: std::collections::HashSet<_> = take(42, 0).into_iter().collect();
        assert!(take(42, 1).iter().all(|number| !first.contains(number)), "streams 0 and 1 share numbers");
    }

    #[test]
    fn below_is_fair_at_an_awkward_bound() {
        // 3 does not divide 2^64; each third must get its share within five standard deviations.
        let mut random = RandomStream::new(7, 0);
        let mut counts = [0f64; 3];
        for _ in 0..300_000 {
            counts[random.below(3) as usize] += 1.0;
        }
        let deviation = (300_000f64 * (1.0 / 3.0) * (2.0 / 3.0)).sqrt();
        assert!(counts.iter().all(|count| (count - 100_000.0).abs() < 5.0 * deviation), "{counts:?}");
        assert_eq!(random.below(0), 0);
        assert_eq!(random.below(1), 0);
        assert!((0..1000).all(|_| (0.0..1.0).contains(&random.unit())));
    }
}
