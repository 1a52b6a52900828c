//! "Hotspot": a share of the operations goes to a share of the keys; within each part all keys are alike.
//!
//! Always true: both shares are in `[0, 1]`; a part that has no keys gets no operations.

use crate::random::RandomStream;

/// Draws from a hot and a cold part; the hot keys come first.
#[derive(Debug, Clone)]
pub struct Hotspot {
    first: u64,
    hot_count: u64,
    cold_count: u64,
    hot_operations: f64,
}

impl Hotspot {
    /// Over `count` keys from `first`, of which `hot_data` (a fraction) get `hot_operations` (a fraction).
    /// Fractions outside `[0, 1]` are the caller's to refuse; here they are brought to the nearer end.
    pub fn new(first: u64, count: u64, hot_data: f64, hot_operations: f64) -> Self {
        let count = count.max(1);
        let hot_count = ((count as f64 * hot_data.clamp(0.0, 1.0)) as u64).min(count);
        Self {
            first,
            hot_count,
            cold_count: count - hot_count,
            hot_operations: hot_operations.clamp(0.0, 1.0),
        }
    }

    /// The next key number.
    pub fn next(&self, random: &mut RandomStream) -> u64 {
        let wants_hot = random.unit() < self.hot_operations;
        if self.cold_count == 0 || (wants_hot && self.hot_count > 0) {
            self.first + random.below(self.hot_count)
        } else {
            self.first + self.hot_count + random.below(self.cold_count)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::generator::statistics::chi_square_passes;

    #[test]
    fn a_fifth_of_the_keys_gets_four_fifths_of_the_operations() {
        let hotspot = Hotspot::new(50, 100, 0.2, 0.8);
        let mut random = RandomStream::new(4, 0);
        let mut seen = vec![0u64; 100];
        for _ in 0..1_000_000 {
            seen[(hotspot.next(&mut random) - 50) as usize] += 1;
        }
        let expected: Vec<f64> = (0..100).map(|key| if key < 20 { 0.8 / 20.0 } else { 0.2 / 80.0 }).collect();
        chi_square_passes(&seen, &expected);
    }

    #[test]
    fn empty_parts_are_never_drawn_from() {
        let mut random = RandomStream::new(4, 0);
        for (hot_data, hot_operations) in [(0.0, 1.0), (1.0, 0.0), (0.001, 0.5), (1.0, 1.0)] {
            let hotspot = Hotspot::new(7, 10, hot_data, hot_operations);
            assert!((0..10_000).all(|_| (7..17).contains(&hotspot.next(&mut random))));
        }
    }
}
