//! Which existing key comes next.
//!
//! Always true: a chosen key is in the store as far as this run knows ([`InsertedKeys`]). A draw that is not (a
//! key that is still to be inserted, one whose insert failed) is dropped and drawn again, as YCSB does.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::acknowledged::InsertedKeys;
use super::exact_zipfian::ExactZipfian;
use super::exponential::Exponential;
use super::hotspot::Hotspot;
use super::latest::Latest;
use super::permutation::Permutation;
use super::scrambled::Scrambled;
use crate::random::RandomStream;

/// A request distribution, ready to draw from. Each thread has its own clone.
#[derive(Debug, Clone)]
pub enum KeyChooser {
    /// All of `count` keys from `first` alike.
    Uniform {
        /// The first key number.
        first: u64,
        /// How many keys.
        count: u64,
    },
    /// YCSB's scrambled zipfian.
    Scrambled(Scrambled),
    /// Zipf's law itself, scattered by a permutation.
    ExactZipfian {
        /// Ranks.
        ranks: ExactZipfian,
        /// Where the ranks lie.
        positions: Permutation,
        /// The first key number.
        first: u64,
    },
    /// The newest first.
    Latest(Latest),
    /// A hot and a cold part.
    Hotspot(Hotspot),
    /// Exponentially falling with age.
    Exponential {
        /// Distances from the newest key.
        distances: Exponential,
        /// The first key number.
        first: u64,
    },
    /// One after the other, and again from the start; all threads share one position.
    Sequential {
        /// The first key number.
        first: u64,
        /// How many keys.
        count: u64,
        /// How many were drawn.
        position: Arc<AtomicU64>,
    },
}

impl KeyChooser {
    /// The next key number that may be read.
    pub fn next(&mut self, random: &mut RandomStream, keys: &InsertedKeys) -> u64 {
        loop {
            if let Some(number) = self.draw(random, keys)
                && keys.is_readable(number)
            {
                return number;
            }
        }
    }

    fn draw(&mut self, random: &mut RandomStream, keys: &InsertedKeys) -> Option<u64> {
        match self {
            Self::Uniform { first, count } => Some(*first + random.below(*count)),
            Self::Scrambled(scrambled) => Some(scrambled.next(random)),
            Self::ExactZipfian { ranks, positions, first } => {
                Some(*first + positions.position(ranks.next(random)))
            }
            Self::Latest(latest) => Some(latest.next(keys.last(), random)),
            Self::Hotspot(hotspot) => Some(hotspot.next(random)),
            Self::Exponential { distances, first } => {
                keys.last().checked_sub(distances.next(random)).filter(|number| number >= first)
            }
            Self::Sequential { first, count, position } => {
                Some(*first + position.fetch_add(1, Ordering::Relaxed) % (*count).max(1))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::generator::statistics::chi_square_passes;
    use crate::generator::theta::THETA_YCSB;

    #[test]
    fn uniform_and_sequential_share_evenly() {
        let (mut random, keys) = (RandomStream::new(8, 0), InsertedKeys::new(110));
        let mut uniform = KeyChooser::Uniform { first: 10, count: 100 };
        let mut seen = vec![0u64; 100];
        for _ in 0..1_000_000 {
            seen[(uniform.next(&mut random, &keys) - 10) as usize] += 1;
        }
        chi_square_passes(&seen, &[0.01; 100]);

        let mut one = KeyChooser::Sequential { first: 10, count: 100, position: Arc::default() };
        let mut two = one.clone();
        let drawn: Vec<u64> =
            (0..100).flat_map(|_| [one.next(&mut random, &keys), two.next(&mut random, &keys)]).collect();
        let wanted: Vec<u64> = (10..110).chain(10..110).collect();
        assert_eq!(drawn, wanted, "two threads walk together");
    }

    #[test]
    fn keys_to_come_are_drawn_only_once_they_are_there_and_the_hot_set_stays() {
        // The space is sized for 1,100 keys; 1,000 exist, then 1,050.
        let keys = InsertedKeys::new(1000);
        let scrambled = Scrambled::new(0, 1100, THETA_YCSB).unwrap();
        let hottest = |keys: &InsertedKeys| {
            let (mut random, mut chooser) =
                (RandomStream::new(8, 0), KeyChooser::Scrambled(scrambled.clone()));
            let mut seen = vec![0u64; 1100];
            (0..500_000).for_each(|_| seen[chooser.next(&mut random, keys) as usize] += 1);
            let highest = seen.iter().rposition(|count| *count > 0).unwrap();
            let mut order: Vec<usize> = (0..1000).collect();
            order.sort_by_key(|key| std::cmp::Reverse(seen[*key]));
            (highest, order[..3].to_vec())
        };
        let before = hottest(&keys);
        assert_eq!(before.0, 999);
        (0..50).for_each(|_| keys.acknowledge(keys.take()));
        let after = hottest(&keys);
        assert_eq!(after.0, 1049);
        assert_eq!(before.1, after.1);
    }

    #[test]
    fn threads_draw_different_keys() {
        let keys = InsertedKeys::new(1_000_000);
        let chooser = KeyChooser::Scrambled(Scrambled::new(0, 1_000_001, THETA_YCSB).unwrap());
        let stream = |number| {
            let (mut random, mut chooser) = (RandomStream::new(42, number), chooser.clone());
            (0..1000).map(|_| chooser.next(&mut random, &keys)).collect::<Vec<_>>()
        };
        assert_eq!(stream(0), stream(0));
        assert_ne!(stream(0), stream(1));
    }

    #[test]
    fn exponential_stays_within_the_keys() {
        let (mut random, keys) = (RandomStream::new(8, 0), InsertedKeys::new(100));
        let mut chooser = KeyChooser::Exponential { distances: Exponential::new(95.0, 85.7), first: 20 };
        let mut hit = [false; 100];
        (0..100_000).for_each(|_| hit[chooser.next(&mut random, &keys) as usize] = true);
        assert!(hit[..20].iter().all(|hit| !hit) && hit[20..].iter().all(|hit| *hit));
    }
}
