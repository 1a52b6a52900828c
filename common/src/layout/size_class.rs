//! Size classes of blocks: log-linear, four to a doubling.
//!
//! Always true: a class's size is a multiple of 64 bytes and grows strictly with the class, so a slot word
//! that names a class tells how many bytes one READ must fetch. Classes 0 to 7 are 64 to 512 bytes in steps
//! of 64; from there on each doubling has four steps (640, 768, 896, 1024, 1280, ...), so at most a fifth of a
//! block is lost to rounding.

/// Blocks are placed at multiples of this, and sized in it.
pub const BLOCK_UNIT_BYTES: u64 = 64;

const LINEAR_CLASSES: u64 = 8;
const STEPS_PER_DOUBLING: u64 = 4;

/// A size class: 7 bits in a slot word.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct SizeClass(u8);

impl SizeClass {
    /// Bits that a slot word has for a class.
    pub const BITS: u32 = 7;

    /// The largest class in use: it holds the largest key and value (1.25 MiB).
    pub const MAX: Self = Self::holding_const(
        super::BLOCK_HEADER_BYTES as u64 + super::KEY_BYTES_MAX as u64 + super::VALUE_BYTES_MAX as u64,
    );

    /// The number of classes in use.
    pub const COUNT: usize = Self::MAX.0 as usize + 1;

    const fn holding_const(bytes: u64) -> Self {
        let units = bytes.div_ceil(BLOCK_UNIT_BYTES);
        if units <= LINEAR_CLASSES {
            return Self(units.saturating_sub(1) as u8);
        }
        // units is in (4 * 2^k, 8 * 2^k] for the step 2^k
        let shift = (units - 1).ilog2() - STEPS_PER_DOUBLING.ilog2();
        let steps = units.div_ceil(1 << shift);
        Self(
            (LINEAR_CLASSES + (shift as u64 - 1) * STEPS_PER_DOUBLING + (steps - STEPS_PER_DOUBLING) - 1)
                as u8,
        )
    }

    /// The smallest class whose blocks hold `bytes`, or `None` above [`SizeClass::MAX`].
    #[inline]
    pub const fn holding(bytes: u64) -> Option<Self> {
        if bytes > Self::MAX.bytes() { None } else { Some(Self::holding_const(bytes)) }
    }

    /// A class from its number, if it is in use.
    #[inline]
    pub const fn from_index(index: u8) -> Option<Self> {
        if index <= Self::MAX.0 { Some(Self(index)) } else { None }
    }

    /// The class's number.
    #[inline]
    pub const fn index(self) -> u8 {
        self.0
    }

    /// Bytes of one block of this class.
    #[inline]
    pub const fn bytes(self) -> u64 {
        let class = self.0 as u64;
        if class < LINEAR_CLASSES {
            return (class + 1) * BLOCK_UNIT_BYTES;
        }
        let above = class - LINEAR_CLASSES;
        let shift = above / STEPS_PER_DOUBLING + 1;
        ((STEPS_PER_DOUBLING + above % STEPS_PER_DOUBLING + 1) << shift) * BLOCK_UNIT_BYTES
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_log_linear() {
        let bytes: Vec<u64> = (0..18).map(|index| SizeClass::from_index(index).unwrap().bytes()).collect();
        assert_eq!(
            bytes,
            [64, 128, 192, 256, 320, 384, 448, 512, 640, 768, 896, 1024, 1280, 1536, 1792, 2048, 2560, 3072]
        );
        assert_eq!(SizeClass::MAX.bytes(), 1280 << 10);
        const { assert!(SizeClass::COUNT <= 1 << SizeClass::BITS) };
    }

    #[test]
    fn holding_is_the_smallest_that_fits() {
        for bytes in 1..=SizeClass::MAX.bytes() {
            let class = SizeClass::holding(bytes).unwrap();
            assert!(class.bytes() >= bytes, "{bytes}");
            if class.index() > 0 {
                assert!(SizeClass::from_index(class.index() - 1).unwrap().bytes() < bytes, "{bytes}");
            }
        }
        assert_eq!(SizeClass::holding(0), SizeClass::from_index(0));
        assert_eq!(SizeClass::holding(SizeClass::MAX.bytes() + 1), None);
        assert_eq!(SizeClass::from_index(SizeClass::COUNT as u8), None);
    }
}
