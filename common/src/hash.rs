//! The hash of a key, and which of its bits say what.
//!
//! Always true: every client and every build computes the same hash for the same seed and key; the golden
//! vectors below pin it. The seed is secret to the region, so that chosen keys can't flood one bucket.
//!
//! ```text
//!  63                                    16 15        10 9            0
//! ┌─────────────────────────────────────────┬────────────┬──────────────┐
//! │ directory (its top `directory_bits`)    │ bucket   6 │ tag       10 │
//! └─────────────────────────────────────────┴────────────┴──────────────┘
//! ```
//!
//! xxh3 is the 64-bit variant of Yann Collet's XXH3 (xxHash specification 0.8).

use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::layout::{BUCKETS_PER_SEGMENT, Tag};

/// Bits of the hash that pick a bucket within its segment.
const BUCKET_BITS: u32 = BUCKETS_PER_SEGMENT.trailing_zeros();
const _: () = assert!(BUCKET_BITS == 6 && Tag::BITS + BUCKET_BITS == 16);

/// The largest directory that the bits above tag and bucket allow, as a power of two. It is bounded by the
/// 31 prefix bits of a bucket header.
pub const DIRECTORY_BITS_MAX: u32 = 31;

/// The 64-bit hash of a key under a region's seed.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct KeyHash(u64);

impl KeyHash {
    /// Hashes `key` (any bytes) with the region's `seed`.
    #[inline]
    pub fn of(key: &[u8], seed: u64) -> Self {
        Self(xxh3_64_with_seed(key, seed))
    }

    /// A hash from its 64 bits, for tests and checkers.
    pub const fn from_bits(bits: u64) -> Self {
        Self(bits)
    }

    /// The 64 bits.
    pub const fn bits(self) -> u64 {
        self.0
    }

    /// The directory entry: the top `directory_bits` bits (0 gives the only entry).
    #[inline]
    pub const fn directory_index(self, directory_bits: u32) -> u64 {
        self.prefix(directory_bits)
    }

    /// The top `depth` bits, as a number. A segment of that depth holds the keys that share them.
    #[inline]
    pub const fn prefix(self, depth: u32) -> u64 {
        if depth == 0 { 0 } else { self.0 >> (64 - depth) }
    }

    /// The bucket within the segment, below [`BUCKETS_PER_SEGMENT`].
    #[inline]
    pub const fn bucket_index(self) -> u64 {
        (self.0 >> Tag::BITS) & (BUCKETS_PER_SEGMENT - 1)
    }

    /// The part of the hash that a slot word keeps.
    #[inline]
    pub const fn tag(self) -> Tag {
        Tag::from_low_bits(self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A region outlives builds: another hash would make keys vanish without an error. The vectors were
    /// computed with the reference implementation's Python binding.
    #[test]
    fn golden_vectors() {
        let golden: [(&[u8], u64, u64); 6] = [
            (b"", 0, 0x2d06_8005_38d3_94c2),
            (b"", 0x5eed, 0x52a2_d296_aa03_1b06),
            (b"user6284781860667377211", 0x5eed, 0x824d_6da8_5402_5bc9),
            (b"\0", 0x5eed, 0x4082_c55a_0908_62af),
            (&[0xab; 200], 0x5eed, 0xdd30_79c6_d486_4219),
            (&[0xcd; 1024], 0x5eed, 0x6046_f6fe_2e67_af4a),
        ];
        for (key, seed, bits) in golden {
            assert_eq!(KeyHash::of(key, seed).bits(), bits, "key {key:x?} seed {seed:#x}");
        }
    }

    /// A thousand keys of all lengths up to 599 bytes, folded into one number: another build, or another process on
    /// another machine, must look in the same places. Computed with the same Python binding.
    #[test]
    fn a_thousand_keys_are_where_they_were() {
        let mut all = Vec::new();
        for number in 0..1000_usize {
            let bytes = if number < 600 { number } else { number - 599 };
            let key: Vec<u8> = (0..bytes).map(|at| (number * 7 + at * 13) as u8).collect();
            all.extend(KeyHash::of(&key, 0x5eed).bits().to_le_bytes());
        }
        assert_eq!(xxh3_64_with_seed(&all, 0), 0x7084_8229_55a1_bc98);
    }

    #[test]
    fn fields_do_not_overlap_and_cover_what_they_should() {
        let hash = KeyHash::from_bits(0xfedc_ba98_7654_3210);
        assert_eq!(hash.tag().value(), 0x210);
        assert_eq!(hash.bucket_index(), (0x3210 >> 10) & 63);
        assert_eq!(hash.directory_index(8), 0xfe);
        assert_eq!(hash.directory_index(0), 0);
        assert_eq!(hash.prefix(31), 0xfedc_ba98 >> 1);
    }
}
