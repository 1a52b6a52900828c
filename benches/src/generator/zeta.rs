//! The generalized harmonic number `zeta(n, theta) = 1 + 1/2^theta + … + 1/n^theta`.
//!
//! Always true: `sum` belongs to exactly `count` terms. A sampler that kept the sum of another count would draw
//! from a distribution that nobody asked for, so count and sum travel together and only [`Zeta::grow_to`]
//! changes them.

/// How many leading terms are added one by one; the rest comes from the Euler-Maclaurin formula, whose error
/// after this many terms is below 1e-14.
const LEADING_TERMS: u64 = 1000;

/// How many new terms are added one by one when the count grows.
const GROWTH_TERMS: u64 = 4096;

/// The sum together with the count it belongs to.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Zeta {
    count: u64,
    theta: f64,
    sum: f64,
}

impl Zeta {
    /// The sum of `count` terms, quickly for any count.
    pub(crate) fn new(count: u64, theta: f64) -> Self {
        let leading = count.min(LEADING_TERMS);
        let mut sum: f64 = (1..=leading).map(|term| (term as f64).powf(-theta)).sum();
        if count > leading {
            sum += tail(leading as f64, count as f64, theta);
        }
        Self { count, theta, sum }
    }

    /// A sum that is already known.
    pub(crate) fn known(count: u64, theta: f64, sum: f64) -> Self {
        Self { count, theta, sum }
    }

    /// The sum.
    pub(crate) fn sum(&self) -> f64 {
        self.sum
    }

    /// The count that the sum belongs to.
    pub(crate) fn count(&self) -> u64 {
        self.count
    }

    /// Takes the sum to a larger count: a few new terms are added to it, many are computed afresh. A smaller
    /// count is computed afresh too.
    pub(crate) fn grow_to(&mut self, count: u64) {
        if count < self.count || count - self.count > GROWTH_TERMS {
            *self = Self::new(count, self.theta);
            return;
        }
        for term in self.count + 1..=count {
            self.sum += (term as f64).powf(-self.theta);
        }
        self.count = count;
    }
}

/// The terms after `from` up to and including `to`: the integral, half the difference of the ends, and the first
/// correction by derivatives.
fn tail(from: f64, to: f64, theta: f64) -> f64 {
    let term = |x: f64| x.powf(-theta);
    let slope = |x: f64| -theta * x.powf(-theta - 1.0);
    let third = |x: f64| -theta * (theta + 1.0) * (theta + 2.0) * x.powf(-theta - 3.0);
    let integral = if (theta - 1.0).abs() < 1e-9 {
        (to / from).ln()
    } else {
        (to.powf(1.0 - theta) - from.powf(1.0 - theta)) / (1.0 - theta)
    };
    integral + (term(to) - term(from)) / 2.0 + (slope(to) - slope(from)) / 12.0
        - (third(to) - third(from)) / 720.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agrees_with_the_plain_sum() {
        for theta in [0.0, 0.5, 0.99, 1.0] {
            for count in [1u64, 2, 10, 999, 1000, 1001, 100_000] {
                let plain: f64 = (1..=count).map(|term| (term as f64).powf(-theta)).sum();
                let quick = Zeta::new(count, theta).sum();
                assert!(
                    (quick / plain - 1.0).abs() < 1e-11,
                    "zeta({count}, {theta}): {quick} is not {plain}"
                );
            }
        }
    }

    #[test]
    fn the_published_constant_belongs_to_ten_billion_items() {
        let sum = Zeta::new(10_000_000_000, 0.99).sum();
        assert!((sum - 26.469_028_201_783_02).abs() < 1e-6, "{sum}");
        // And not to 10^16 items, for which it has been used elsewhere.
        assert!((Zeta::new(10_000_000_000_000_000, 0.99).sum() - sum).abs() > 10.0);
    }

    #[test]
    fn growing_equals_starting_afresh() {
        let mut grown = Zeta::new(1000, 0.99);
        for count in [1001, 1002, 5000, 5000, 20_000, 300] {
            grown.grow_to(count);
            let fresh = Zeta::new(count, 0.99);
            assert_eq!(grown.count(), count);
            assert!((grown.sum() / fresh.sum() - 1.0).abs() < 1e-12, "at {count}");
        }
    }
}
