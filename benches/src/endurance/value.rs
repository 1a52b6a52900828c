//! Values that say what they are.
//!
//! Always true: length and bytes of a value follow from the key's number and the write's number alone, and two writes give
//! different values, but for values of less than eight bytes.

use std::ops::RangeInclusive;

/// How long values are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sizes {
    /// The shortest, in bytes.
    pub least: u32,
    /// The longest, in bytes.
    pub most: u32,
}

impl Sizes {
    /// From a range; nothing if it is empty.
    pub fn new(range: RangeInclusive<u32>) -> Option<Self> {
        (!range.is_empty()).then_some(Self { least: *range.start(), most: *range.end() })
    }
}

/// Makes and checks values.
#[derive(Debug, Clone)]
pub struct ValueMaker {
    sizes: Sizes,
    bytes: Vec<u8>,
}

/// The finalizer of SplitMix64 (Steele, Lea, Flood: "Fast splittable pseudorandom number generators", 2014).
const fn mix(number: u64) -> u64 {
    let mut mixed = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

impl ValueMaker {
    /// Of values that are so long.
    pub fn new(sizes: Sizes) -> Self {
        Self { sizes, bytes: Vec::with_capacity(sizes.most as usize) }
    }

    /// The value of write `write` of key `key`.
    pub fn make(&mut self, key: u64, write: u32) -> &[u8] {
        let seed = mix(key ^ u64::from(write).rotate_right(20));
        let span = u64::from(self.sizes.most - self.sizes.least) + 1;
        let length = self.sizes.least + (mix(seed) % span) as u32;
        self.bytes.clear();
        let mut word = seed;
        while self.bytes.len() < length as usize {
            let left = (length as usize - self.bytes.len()).min(8);
            self.bytes.extend_from_slice(&word.to_le_bytes()[..left]);
            word = word.rotate_left(8) ^ seed;
        }
        &self.bytes
    }

    /// Whether that is the value of write `write` of key `key`.
    pub fn check(&mut self, key: u64, write: u32, value: &[u8]) -> bool {
        self.make(key, write) == value
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_repeat_differ_and_have_all_lengths() {
        let mut maker = ValueMaker::new(Sizes::new(16..=20).unwrap());
        let mut lengths = std::collections::BTreeSet::new();
        let mut values = std::collections::HashSet::new();
        for key in 0..50 {
            for write in 0..4 {
                let value = maker.make(key, write).to_vec();
                assert!(maker.check(key, write, &value));
                assert!(!maker.check(key, write + 1, &value) && !maker.check(key + 1, write, &value));
                lengths.insert(value.len());
                assert!(values.insert(value));
            }
        }
        assert_eq!(lengths.into_iter().collect::<Vec<_>>(), [16, 17, 18, 19, 20]);
        assert_eq!(Sizes::new(RangeInclusive::new(5, 4)), None);
    }
}
