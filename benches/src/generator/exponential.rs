//! "Exponential": how far a key lies behind the newest one falls off exponentially.
//!
//! Always true: `percentile` is between 0 and 100 and `fraction` in `(0, 1]` (checked by the workload's
//! settings), so the rate is positive and finite and redrawing what lies too far ends.

use crate::random::RandomStream;

/// Draws distances.
#[derive(Debug, Clone)]
pub struct Exponential {
    mean: f64,
}

impl Exponential {
    /// `percentile` % of the distances lie below `range`.
    pub fn new(percentile: f64, range: f64) -> Self {
        Self { mean: range / -(1.0 - percentile / 100.0).ln() }
    }

    /// The next distance, rounded down.
    pub fn next(&self, random: &mut RandomStream) -> u64 {
        // 1 - unit is in (0, 1], so the logarithm is finite.
        (-(1.0 - random.unit()).ln() * self.mean) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::generator::statistics::chi_square_passes;

    #[test]
    fn distances_follow_the_curve() {
        let exponential = Exponential::new(95.0, 100.0);
        let mut random = RandomStream::new(6, 0);
        let mut seen = vec![0u64; 400];
        for _ in 0..1_000_000 {
            let distance = exponential.next(&mut random) as usize;
            seen[distance.min(399)] += 1;
        }
        let within: u64 = seen[..100].iter().sum();
        assert!((within as f64 / 1e6 - 0.95).abs() < 0.002, "{within}");
        let survival = |x: f64| 0.05f64.powf(x / 100.0);
        let mut expected: Vec<f64> =
            (0..400).map(|d| survival(d as f64) - survival(d as f64 + 1.0)).collect();
        expected[399] = survival(399.0);
        chi_square_passes(&seen, &expected);
    }
}
