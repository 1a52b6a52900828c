//! A fixed permutation of `[0, count)`: it scatters popular ranks over the key space and joins none.
//!
//! Always true: different ranks have different positions, so the counts are the same as before, only elsewhere;
//! and the permutation is a function of the number of bits of `count - 1`, so one more key moves a rank only if
//! its walk met the new position.

/// Scatters ranks.
#[derive(Debug, Clone, Copy)]
pub struct Permutation {
    count: u64,
    mask: u64,
    shift: u32,
}

impl Permutation {
    /// Over the numbers below `count`; a count of 0 is taken as 1.
    pub fn new(count: u64) -> Self {
        let count = count.max(1);
        let bits = (64 - (count - 1).leading_zeros()).max(1);
        Self { count, mask: u64::MAX >> (64 - bits), shift: (bits / 2).max(1) }
    }

    /// The position of `rank`, which must be below the count.
    pub fn position(&self, rank: u64) -> u64 {
        // Walk the cycle of the larger, power-of-two permutation until it comes back into range: at most one
        // step more than there are positions out of range, on average less than one.
        let mut position = self.mix(rank);
        while position >= self.count {
            position = self.mix(position);
        }
        position
    }

    /// A bijection of the numbers of this many bits: each step can be undone.
    fn mix(&self, mut number: u64) -> u64 {
        for multiplier in [0x9E37_79B9_7F4A_7C15_u64, 0xBF58_476D_1CE4_E5B9, 0x94D0_49BB_1331_11EB] {
            number ^= number >> self.shift;
            number = number.wrapping_mul(multiplier).wrapping_add(0x632B_E59B_D9B4_E019) & self.mask;
        }
        number ^ (number >> self.shift)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_joined_or_lost() {
        for count in [1u64, 2, 3, 5, 64, 1000, 1023, 1024, 1025, 99_999] {
            let permutation = Permutation::new(count);
            let mut hit = vec![false; count as usize];
            for rank in 0..count {
                let position = permutation.position(rank) as usize;
                assert!(!std::mem::replace(&mut hit[position], true), "{count}: {position} twice");
            }
        }
    }

    #[test]
    fn the_hottest_keys_stay_when_a_key_is_added() {
        for count in [1000u64, 100_000] {
            let (before, after) = (Permutation::new(count), Permutation::new(count + 1));
            for rank in 0..10 {
                assert_eq!(before.position(rank), after.position(rank), "rank {rank} of {count}");
            }
        }
    }
}
