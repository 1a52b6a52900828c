//! Directory words: which segment serves a run of hash prefixes.
//!
//! Always true: a word of a later generation replaces one of an earlier, never the reverse, so copies that
//! arrive out of order do no harm. The all-zero word names nothing.
//!
//! ```text
//!  63        58 57                    32 31                         0
//! ┌────────────┬────────────────────────┬────────────────────────────┐
//! │ depth    6 │ generation          26 │ segment number          32 │
//! └────────────┴────────────────────────┴────────────────────────────┘
//! ```

use super::BucketHeader;

/// One entry of the directory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DirectoryWord {
    /// The segment's number in the segment pool.
    pub segment: u32,
    /// The segment's generation, as in its bucket headers; 26 bits.
    pub generation: u32,
    /// The segment's depth, as in its bucket headers.
    pub depth: u32,
}

impl DirectoryWord {
    /// The word's bits.
    pub const fn to_bits(self) -> u64 {
        ((self.depth & 0x3f) as u64) << 58
            | ((self.generation & 0x3ff_ffff) as u64) << 32
            | self.segment as u64
    }

    /// A word from its bits.
    pub const fn from_bits(bits: u64) -> Self {
        Self {
            segment: bits as u32,
            generation: ((bits >> 32) & 0x3ff_ffff) as u32,
            depth: (bits >> 58) as u32,
        }
    }

    /// Whether this word was published after `other` for the same entry. Generations come round, so this is right while
    /// fewer than half of them lie between the two words: whoever acknowledges an epoch has read the directory anew.
    pub const fn is_newer_than(self, other: Self) -> bool {
        let ahead = self.generation.wrapping_sub(other.generation) & BucketHeader::GENERATION_MAX;
        ahead != 0 && ahead <= BucketHeader::GENERATION_MAX / 2
    }

    /// The generation of the segments that replace this word's.
    pub const fn next_generation(self) -> u32 {
        // None is 0: a header of zeros belongs to memory that was never a segment.
        if self.generation >= BucketHeader::GENERATION_MAX { 1 } else { self.generation + 1 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn golden_word() {
        let word = DirectoryWord { segment: 0x89ab_cdef, generation: 0x123_4567, depth: 17 };
        assert_eq!(word.to_bits(), 0x4523_4567_89ab_cdef);
        assert_eq!(DirectoryWord::from_bits(word.to_bits()), word);
        assert!(DirectoryWord { generation: 0x123_4568, ..word }.is_newer_than(word));
        assert!(!word.is_newer_than(word));
    }

    /// A segment that is rebuilt a hundred times a second is so for eight days until its generations come round.
    #[test]
    fn generations_come_round() {
        let word = |generation| DirectoryWord { segment: 1, generation, depth: 3 };
        let last = word(BucketHeader::GENERATION_MAX);
        let next = word(last.next_generation());
        assert_eq!(next.generation, 1);
        assert!(next.is_newer_than(last) && !last.is_newer_than(next));
        assert!(word(5).is_newer_than(word(BucketHeader::GENERATION_MAX - 5)));
        assert!(!word(BucketHeader::GENERATION_MAX - 5).is_newer_than(word(5)));
        assert_eq!(word(7).next_generation(), 8);
    }
}
