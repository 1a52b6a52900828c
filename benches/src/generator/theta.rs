//! The skew of a zipfian distribution, checked once.
//!
//! Always true: a [`Theta`] is a number in `[0, 1]`. Nothing behind this border meets a NaN, an infinity or a
//! negative skew, so no sampler can loop on one.

use std::str::FromStr;

/// YCSB's zipfian constant.
pub const THETA_YCSB: Theta = Theta(0.99);

/// How skewed: 0 is uniform, 1 is Zipf's law itself.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Theta(f64);

/// A skew that no sampler here can serve.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("zipfian constant {0:?} is not a number from 0 (uniform) to 1")]
pub struct ThetaError(String);

impl Theta {
    /// Checks a number.
    pub fn new(number: f64) -> Result<Self, ThetaError> {
        if (0.0..=1.0).contains(&number) { Ok(Self(number)) } else { Err(ThetaError(number.to_string())) }
    }

    /// The number.
    pub fn get(self) -> f64 {
        self.0
    }
}

impl FromStr for Theta {
    type Err = ThetaError;

    fn from_str(text: &str) -> Result<Self, ThetaError> {
        let number: f64 = text.trim().parse().map_err(|_| ThetaError(text.to_owned()))?;
        Self::new(number).map_err(|_| ThetaError(text.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_zero_to_one_passes() {
        for good in ["0", "0.5", "0.99", "1.0", " 0.99 "] {
            good.parse::<Theta>().unwrap_or_else(|error| panic!("{error}"));
        }
        for bad in ["1.2", "5", "-1", "NaN", "abc", "", "inf", "1.0000001"] {
            let error = bad.parse::<Theta>().expect_err(bad);
            assert!(error.to_string().contains(bad), "{error} does not name {bad}");
        }
    }
}
