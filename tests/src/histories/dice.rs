//! Seeded randomness.
//!
//! Always true: the same seed gives the same numbers, on every machine and in every build.

/// Throws dice: SplitMix64 (Steele, Lea and Flood, 2014).
#[derive(Clone, Debug)]
pub struct Dice {
    state: u64,
}

impl Dice {
    /// The dice of `seed`.
    pub const fn new(seed: u64) -> Self {
        Self { state: seed }
    }

    /// Any number.
    pub const fn any(&mut self) -> u64 {
        self.state = self.state.wrapping_add(GOLDEN);
        mix(self.state)
    }

    /// A number below `below`, which is not 0. The bias is of no matter: it is below a millionth for what is small.
    pub const fn below(&mut self, below: u64) -> u64 {
        self.any() % below
    }

    /// Whether something happens that happens `per_mille` times in a thousand.
    pub const fn chance(&mut self, per_mille: u64) -> bool {
        self.below(1000) < per_mille
    }
}

/// 2^64 divided by the golden ratio: steps that come close to each other late.
pub const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

/// Spreads what differs in one bit over all of them; different numbers stay different.
pub const fn mix(number: u64) -> u64 {
    let mut word = number;
    word = (word ^ word >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ word >> 31
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The first numbers of seed 1234567, as the authors' own program prints them: a seed that somebody wrote down means
    /// the same years later.
    #[test]
    fn golden_numbers() {
        let mut dice = Dice::new(1_234_567);
        let golden = [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423];
        assert_eq!(golden.map(|_| dice.any()), golden);
    }

    #[test]
    fn chances_are_kept() {
        let mut dice = Dice::new(1);
        assert!((0..1000).all(|_| !dice.chance(0) && dice.chance(1000) && dice.below(7) < 7));
        let often = (0..10_000).filter(|_| dice.chance(250)).count();
        assert!((2_300..2_700).contains(&often), "{often} of 10000");
    }
}
