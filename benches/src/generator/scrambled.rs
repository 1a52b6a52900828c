//! Scrambled zipfian numbers as YCSB defines them.
//!
//! Always true: the item that a number comes from is drawn from ten billion, whatever the size of the key space,
//! and the published sum belongs to that count. So no key's popularity depends on how many keys there are, except
//! through the last step, the remainder.
//!
//! The hash may send two popular items to one key, and the long tail (about half of all draws) is spread
//! evenly; the result is therefore flatter than a zipfian distribution over the keys themselves. Whoever needs
//! the latter takes `requestdistribution=zipfian_exact`.

use super::fnv::fnv_64;
use super::theta::{THETA_YCSB, Theta};
use super::zeta::Zeta;
use super::zipfian::{Zipfian, ZipfianError, ZipfianLaw};
use crate::random::RandomStream;

/// How many items there are before scrambling.
const ITEM_COUNT: u64 = 10_000_000_000;

/// The sum that belongs to [`ITEM_COUNT`] items and the constant 0.99, as YCSB publishes it.
const ZETA_OF_ITEMS: f64 = 26.469_028_201_783_02;

/// Draws keys of which a scattered few are popular.
#[derive(Debug, Clone)]
pub struct Scrambled {
    items: Zipfian,
    first: u64,
    count: u64,
}

impl Scrambled {
    /// Key numbers from `first` to `first + count - 1`; a count of 0 is taken as 1.
    pub fn new(first: u64, count: u64, theta: Theta) -> Result<Self, ZipfianError> {
        let zeta = if theta == THETA_YCSB {
            Zeta::known(ITEM_COUNT, theta.get(), ZETA_OF_ITEMS)
        } else {
            Zeta::new(ITEM_COUNT, theta.get())
        };
        Ok(Self { items: Zipfian::with_zeta(0, theta, zeta)?, first, count: count.max(1) })
    }

    /// The next key number.
    pub fn next(&self, random: &mut RandomStream) -> u64 {
        self.key_of(self.items.next(random))
    }

    /// Where an item lies.
    pub fn key_of(&self, item: u64) -> u64 {
        self.first + fnv_64(item) % self.count
    }

    /// The law of the items before scrambling.
    pub fn law(&self) -> ZipfianLaw {
        self.items.law()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::generator::statistics::{chi_square_passes, top_within};

    #[test]
    fn keys_get_the_sum_of_the_items_that_fall_on_them() {
        // The first 2 million items are placed one by one; the tail is spread evenly.
        let scrambled = Scrambled::new(0, 1000, THETA_YCSB).unwrap();
        let (mut expected, law) = (vec![0f64; 1000], scrambled.law());
        for item in 0..2_000_000 {
            expected[scrambled.key_of(item) as usize] += law.probability(item);
        }
        let rest = (1.0 - law.below(2_000_000)) / 1000.0;
        expected.iter_mut().for_each(|share| *share += rest);
        let mut random = RandomStream::new(9, 0);
        let mut seen = vec![0u64; 1000];
        for _ in 0..2_000_000 {
            seen[scrambled.next(&mut random) as usize] += 1;
        }
        top_within(&seen, &expected, 10, 0.03);
        chi_square_passes(&seen, &expected);
    }

    #[test]
    fn every_key_of_a_large_space_can_be_reached() {
        // A 32-bit hash would reach a fraction only. With evenly drawn items, 3 draws a key leave e^-3 untouched.
        let count = 200_000u64;
        let scrambled = Scrambled::new(100, count, Theta::new(0.0).unwrap()).unwrap();
        let mut random = RandomStream::new(9, 0);
        let mut hit = vec![false; count as usize];
        for _ in 0..3 * count {
            let key = scrambled.next(&mut random);
            assert!((100..100 + count).contains(&key));
            hit[(key - 100) as usize] = true;
        }
        let touched = hit.iter().filter(|hit| **hit).count() as f64 / count as f64;
        assert!((touched - (1.0 - (-3.0f64).exp())).abs() < 0.002, "{touched}");
    }
}
