//! Zipf's law itself, without the approximation that YCSB's zipfian makes.
//!
//! Always true: rank `r` of `n` is drawn with probability `r^-theta / zeta(n, theta)`, for every theta from 0 to
//! 1, in constant time and without a table.
//!
//! Source: W. Hörmann, G. Derflinger, "Rejection-inversion to generate variates from monotone discrete
//! distributions", ACM TOMACS 6(3), 1996.

use super::theta::Theta;
use crate::random::RandomStream;

/// Draws 0 most often, then 1, and so on to `count - 1`.
#[derive(Debug, Clone)]
pub struct ExactZipfian {
    count: u64,
    theta: f64,
    area_first: f64,
    area_last: f64,
    shortcut: f64,
}

impl ExactZipfian {
    /// Ranks from 0 to `count - 1`; a count of 0 is taken as 1.
    pub fn new(count: u64, theta: Theta) -> Self {
        let count = count.max(1);
        let theta = theta.get();
        let hat = |x: f64| x.powf(-theta);
        Self {
            count,
            theta,
            area_first: area(1.5, theta) - 1.0,
            area_last: area(count as f64 + 0.5, theta),
            shortcut: 2.0 - area_inverse(area(2.5, theta) - hat(2.0), theta),
        }
    }

    /// The next rank, counted from 0.
    pub fn next(&self, random: &mut RandomStream) -> u64 {
        loop {
            let position = self.area_last + random.unit() * (self.area_first - self.area_last);
            let point = area_inverse(position, self.theta);
            let rank = point.round().clamp(1.0, self.count as f64);
            let accepted = rank - point <= self.shortcut
                || position >= area(rank + 0.5, self.theta) - rank.powf(-self.theta);
            if accepted {
                return rank as u64 - 1;
            }
        }
    }
}

/// The integral of `x^-theta`, zero at `x = 1`.
fn area(x: f64, theta: f64) -> f64 {
    let exponent = 1.0 - theta;
    if exponent.abs() < 1e-9 { x.ln() } else { (exponent * x.ln()).exp_m1() / exponent }
}

/// The `x` at which [`area`] reaches `value`.
fn area_inverse(value: f64, theta: f64) -> f64 {
    let exponent = 1.0 - theta;
    if exponent.abs() < 1e-9 { value.exp() } else { ((value * exponent).max(-1.0).ln_1p() / exponent).exp() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::generator::statistics::{chi_square_passes, top_within};
    use crate::generator::zeta::Zeta;

    #[test]
    fn frequencies_follow_zipfs_law() {
        // Ten million draws put 3 % beyond eight standard deviations for rank 10 of 100,000.
        for (theta, count) in
            [(0.99, 10u64), (0.99, 1000), (0.99, 100_000), (1.0, 1000), (0.5, 1000), (0.0, 1000)]
        {
            let draws: u64 = if count > 10 { 10_000_000 } else { 1_000_000 };
            let mut random = RandomStream::new(5, 0);
            let zipfian = ExactZipfian::new(count, Theta::new(theta).unwrap());
            let mut seen = vec![0u64; count as usize];
            for _ in 0..draws {
                seen[zipfian.next(&mut random) as usize] += 1;
            }
            let zeta = Zeta::new(count, theta).sum();
            let expected: Vec<f64> = (1..=count).map(|rank| (rank as f64).powf(-theta) / zeta).collect();
            top_within(&seen, &expected, 10, if theta == 0.0 { 0.05 } else { 0.03 });
            chi_square_passes(&seen, &expected);
            // How many items are touched at all must come out as well.
            let touched = seen.iter().filter(|count| **count > 0).count() as f64;
            let mean: f64 = expected.iter().map(|p| 1.0 - (1.0 - p).powf(draws as f64)).sum();
            assert!((touched - mean).abs() <= 4.0 * mean.sqrt().min(count as f64), "{touched} of {mean}");
        }
    }

    #[test]
    fn small_counts_have_only_their_items() {
        let mut random = RandomStream::new(5, 0);
        let one = ExactZipfian::new(1, Theta::new(0.99).unwrap());
        assert!((0..1000).all(|_| one.next(&mut random) == 0));
        let two = ExactZipfian::new(2, Theta::new(1.0).unwrap());
        let first = (0..90_000).filter(|_| two.next(&mut random) == 0).count();
        assert!((59_000..61_000).contains(&first), "{first}");
    }
}
