//! "Latest": the newest key is the most popular one, older ones fall off by a zipfian curve.
//!
//! Always true: a drawn key has been acknowledged; the curve spans exactly the keys there are at that moment.

use super::theta::Theta;
use super::zipfian::{Zipfian, ZipfianError};
use crate::random::RandomStream;

/// Draws keys by age.
#[derive(Debug, Clone)]
pub struct Latest {
    ages: Zipfian,
    first: u64,
}

impl Latest {
    /// Over keys from `first` to `last`, which may grow later.
    pub fn new(first: u64, last: u64, theta: Theta) -> Result<Self, ZipfianError> {
        Ok(Self { ages: Zipfian::new(0, last.saturating_sub(first) + 1, theta)?, first })
    }

    /// The next key number, where `last` is the newest key.
    pub fn next(&mut self, last: u64, random: &mut RandomStream) -> u64 {
        self.ages.resize(last.saturating_sub(self.first) + 1);
        last - self.ages.next(random).min(last)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::generator::statistics::{chi_square_passes, top_within};
    use crate::generator::theta::THETA_YCSB;

    #[test]
    fn the_newest_leads_and_the_lead_moves() {
        let mut random = RandomStream::new(2, 0);
        let mut latest = Latest::new(10, 1009, THETA_YCSB).unwrap();
        for last in [1009u64, 1010, 1500] {
            let count = (last - 9) as usize;
            let mut seen = vec![0u64; count];
            for _ in 0..2_000_000 {
                seen[(last - latest.next(last, &mut random)) as usize] += 1;
            }
            let law = Zipfian::new(0, count as u64, THETA_YCSB).unwrap().law();
            let expected: Vec<f64> = (0..count as u64).map(|age| law.probability(age)).collect();
            top_within(&seen, &expected, 10, 0.03);
            chi_square_passes(&seen, &expected);
        }
    }

    #[test]
    fn a_single_key_is_enough() {
        let mut random = RandomStream::new(2, 0);
        let mut latest = Latest::new(0, 0, THETA_YCSB).unwrap();
        assert!((0..100).all(|_| latest.next(0, &mut random) == 0));
    }
}
