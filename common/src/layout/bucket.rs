//! Buckets and segments: the index.
//!
//! Always true: a segment's memory only ever holds segments, so any 256 bytes read through an old directory
//! are a bucket, though perhaps not the right one; the header says which keys it serves.
//!
//! ```text
//! bucket, 256 B
//!     0 ┌ header ─────────────────────────────────────┐
//!       │ sealed 1 │ depth 6 │ generation 26 │ prefix 31 │   bits 63, 62..57, 56..31, 30..0
//!     8 ├ slot 0 ─ slot 1 ─ ... ─ slot 30 ────────────┤
//!   256 └─────────────────────────────────────────────┘
//! segment, 16 KiB: bucket 0, bucket 1, ..., bucket 63 (six bits of the hash choose)
//! ```
//!
//! **Order rule**: an insert takes the first EMPTY slot in slot order and has seen every slot before it as not
//! EMPTY, examined for its own key.

use super::{SlotWord, word_at};
use crate::hash::KeyHash;

/// Buckets in a segment.
pub const BUCKETS_PER_SEGMENT: u64 = 64;
/// Bytes of a bucket, fetched with one READ.
pub const BUCKET_BYTES: u64 = 256;
/// Bytes of a bucket's header.
pub const BUCKET_HEADER_BYTES: u64 = 8;
/// Slots in a bucket.
pub const SLOTS_PER_BUCKET: usize = 31;
/// Bytes of a segment.
pub const SEGMENT_BYTES: u64 = BUCKETS_PER_SEGMENT * BUCKET_BYTES;

const _: () = assert!(BUCKET_HEADER_BYTES + 8 * SLOTS_PER_BUCKET as u64 == BUCKET_BYTES);

/// The first word of a bucket: which keys its segment serves, and whether it is still open.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BucketHeader {
    /// Keys served share this many top bits of the hash, at most 31.
    pub depth: u32,
    /// Those bits.
    pub prefix: u32,
    /// Grows with every rebuild of these keys' segment; 26 bits, never 0 in a segment in use.
    pub generation: u32,
    /// A rebuild has finished with this segment; the directory may name another.
    pub sealed: bool,
}

const SEALED_BIT: u64 = 1 << 63;
const DEPTH_SHIFT: u32 = 57;
const GENERATION_SHIFT: u32 = 31;

impl BucketHeader {
    /// The largest generation.
    pub const GENERATION_MAX: u32 = (1 << 26) - 1;

    /// The header's word.
    pub const fn to_bits(self) -> u64 {
        (if self.sealed { SEALED_BIT } else { 0 })
            | ((self.depth & 0x3f) as u64) << DEPTH_SHIFT
            | ((self.generation & Self::GENERATION_MAX) as u64) << GENERATION_SHIFT
            | (self.prefix & 0x7fff_ffff) as u64
    }

    /// A header from its word; any bits give one, and [`BucketHeader::serves`] says whether it is any use.
    pub const fn from_bits(bits: u64) -> Self {
        Self {
            depth: ((bits >> DEPTH_SHIFT) & 0x3f) as u32,
            prefix: (bits & 0x7fff_ffff) as u32,
            generation: ((bits >> GENERATION_SHIFT) & Self::GENERATION_MAX as u64) as u32,
            sealed: bits & SEALED_BIT != 0,
        }
    }

    /// Whether the segment is in use and serves keys with this hash.
    #[inline]
    pub const fn serves(self, hash: KeyHash) -> bool {
        self.generation != 0 && self.depth <= 31 && hash.prefix(self.depth) == self.prefix as u64
    }
}

/// A copy of a bucket, as one READ brought it. Words may be of different moments.
#[derive(Clone, Debug)]
pub struct Bucket {
    /// Its header.
    pub header: BucketHeader,
    /// Its slots, in slot order.
    pub slots: [SlotWord; SLOTS_PER_BUCKET],
}

impl Bucket {
    /// Copies a bucket out of the 256 bytes of a READ.
    ///
    /// # Panics
    /// If `bytes` is shorter than a bucket: the caller asked for its length.
    #[inline]
    pub fn parse(bytes: &[u8]) -> Self {
        assert!(
            bytes.len() >= BUCKET_BYTES as usize,
            "a bucket has {BUCKET_BYTES} bytes, got {}",
            bytes.len()
        );
        Self {
            header: BucketHeader::from_bits(word_at(bytes, 0)),
            slots: std::array::from_fn(|slot| {
                SlotWord::from_bits(word_at(bytes, BUCKET_HEADER_BYTES as usize + 8 * slot))
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn golden_header() {
        let header = BucketHeader { depth: 14, prefix: 0x2abc, generation: 0x12345, sealed: true };
        assert_eq!(header.to_bits(), 0x9c00_91a2_8000_2abc);
        assert_eq!(BucketHeader::from_bits(header.to_bits()), header);
        let open = BucketHeader { sealed: false, ..header };
        assert_eq!(BucketHeader::from_bits(open.to_bits()), open);
    }

    #[test]
    fn a_header_serves_the_keys_of_its_prefix_only() {
        let hash = KeyHash::from_bits(0xabcd_0000_0000_0000);
        let header = BucketHeader { depth: 16, prefix: 0xabcd, generation: 1, sealed: false };
        assert!(header.serves(hash));
        assert!(!header.serves(KeyHash::from_bits(0xabce_0000_0000_0000)));
        assert!(BucketHeader { depth: 0, prefix: 0, ..header }.serves(hash));
        assert!(!BucketHeader::from_bits(0).serves(hash), "memory that was never a segment serves nobody");
        assert!(BucketHeader { depth: 31, prefix: 0xabcd << 15, ..header }.serves(hash), "the deepest");
        assert!(!BucketHeader { depth: 32, prefix: 0xabcd << 16, ..header }.serves(hash));
        assert!(!BucketHeader { depth: 63, ..header }.serves(hash));
    }

    #[test]
    fn a_bucket_is_its_words() {
        let mut bytes = [0_u8; 256];
        bytes[8..16].copy_from_slice(&7_u64.to_le_bytes());
        bytes[248..].copy_from_slice(&9_u64.to_le_bytes());
        let bucket = Bucket::parse(&bytes);
        assert_eq!(bucket.slots[0].bits(), 7);
        assert_eq!(bucket.slots[30].bits(), 9);
    }
}
