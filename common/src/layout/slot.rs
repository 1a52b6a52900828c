//! The slot word: the only thing that a CAS ever changes.
//!
//! Always true: the all-zero word is EMPTY and nothing else is; CLOSED is one fixed word; LIVE, DELETED and
//! MOVED words name a block. Any other pattern is [`SlotState::Malformed`] and is treated as corruption.
//!
//! ```text
//!  63 62   61      60     59      50 49       43 42      35 34                          0
//! ┌──────┬───────┬─────────┬─────────┬───────────┬──────────┬────────────────────────────┐
//! │state2│blind 1│expires 1│ tag  10 │ class   7 │version 8 │ block, in 64-byte units 35 │
//! └──────┴───────┴─────────┴─────────┴───────────┴──────────┴────────────────────────────┘
//!  state: 0 EMPTY (rest zero) or CLOSED (rest all ones), 1 LIVE, 2 DELETED, 3 MOVED
//! ```
//!
//! State transitions are in the design: an insert takes EMPTY to LIVE; puts and deletes go between LIVE and
//! DELETED; a rebuild closes the rest. **Binding rule**: once out of EMPTY, a slot belongs to one key until its
//! segment's memory is recycled.

use super::{BLOCK_UNIT_BYTES, Offset, SizeClass};
use crate::planted::{Fault, is_planted};

/// Ten bits of a key's hash, kept in its slot so that most other keys are ruled out without a READ.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Tag(u16);

impl Tag {
    /// Bits of a tag.
    pub const BITS: u32 = 10;

    /// The tag in the low bits of `bits`.
    #[inline]
    pub const fn from_low_bits(bits: u64) -> Self {
        Self((bits & ((1 << Self::BITS) - 1)) as u16)
    }

    /// Its value, below 1024.
    #[inline]
    pub const fn value(self) -> u16 {
        self.0
    }
}

/// The 8-bit version of a block: which use of its memory this is. It wraps, which epochs make harmless.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Version(pub u8);

impl Version {
    /// The version of a block's first use: not what a fresh free map holds, so a fresh block isn't free twice.
    pub const FIRST: Self = Self(1);

    /// The version of the next use.
    pub fn next(self) -> Self {
        Self(self.0.wrapping_add(u8::from(!is_planted(Fault::VersionKept))))
    }
}

/// A block as a slot word names it: where, how large, and which use of that memory.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct BlockRef {
    /// Where the block starts, a multiple of 64 bytes.
    pub offset: Offset,
    /// Its size class.
    pub class: SizeClass,
    /// Which use of this memory.
    pub version: Version,
}

/// What a slot word says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SlotState {
    /// Never used.
    Empty,
    /// Was empty when a rebuild sealed it; takes no key any more.
    Closed,
    /// Holds a key and its value.
    Live(BlockRef),
    /// Holds a key that was deleted; the block has the key only.
    Deleted(BlockRef),
    /// Was LIVE when a rebuild sealed it.
    Moved(BlockRef),
    /// No valid word: corruption or another format.
    Malformed,
}

/// A slot's 64 bits.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct SlotWord(u64);

const STATE_SHIFT: u32 = 62;
const BLIND_BIT: u64 = 1 << 61;
const EXPIRES_BIT: u64 = 1 << 60;
const TAG_SHIFT: u32 = 50;
const CLASS_SHIFT: u32 = 43;
const VERSION_SHIFT: u32 = 35;
const BLOCK_MASK: u64 = (1 << VERSION_SHIFT) - 1;
const LIVE: u64 = 1;
const DELETED: u64 = 2;
const MOVED: u64 = 3;

const _: () = assert!(TAG_SHIFT + Tag::BITS == 60 && CLASS_SHIFT + SizeClass::BITS == TAG_SHIFT);

impl SlotWord {
    /// The word of a slot that was never used.
    pub const EMPTY: Self = Self(0);
    /// The word that a rebuild puts into empty and deleted slots.
    pub const CLOSED: Self = Self((1 << STATE_SHIFT) - 1);

    /// The word's bits, as stored.
    #[inline]
    pub const fn bits(self) -> u64 {
        self.0
    }

    /// A word from its bits.
    #[inline]
    pub const fn from_bits(bits: u64) -> Self {
        Self(bits)
    }

    const fn named(state: u64, tag: Tag, block: BlockRef, blind: bool) -> Self {
        let units = block.offset.0 / BLOCK_UNIT_BYTES;
        debug_assert!(units <= BLOCK_MASK && block.offset.0.is_multiple_of(BLOCK_UNIT_BYTES));
        Self(
            state << STATE_SHIFT
                | if blind { BLIND_BIT } else { 0 }
                | (tag.value() as u64) << TAG_SHIFT
                | (block.class.index() as u64) << CLASS_SHIFT
                | (block.version.0 as u64) << VERSION_SHIFT
                | (units & BLOCK_MASK),
        )
    }

    /// A LIVE word for a key with `tag` whose block is `block`; `blind` if its writer read nothing.
    #[inline]
    pub const fn live(tag: Tag, block: BlockRef, blind: bool) -> Self {
        Self::named(LIVE, tag, block, blind)
    }

    /// A DELETED word; `block` holds the key only.
    #[inline]
    pub const fn deleted(tag: Tag, block: BlockRef, blind: bool) -> Self {
        Self::named(DELETED, tag, block, blind)
    }

    /// The MOVED form of a LIVE word: same key, block and version.
    #[inline]
    pub const fn to_moved(self) -> Self {
        Self(self.0 | MOVED << STATE_SHIFT)
    }

    /// The LIVE form of a MOVED word: same key, block and version.
    #[inline]
    pub const fn to_live(self) -> Self {
        Self(self.0 & !(MOVED << STATE_SHIFT) | LIVE << STATE_SHIFT)
    }

    /// What the word says.
    #[inline]
    pub const fn state(self) -> SlotState {
        match self.0 >> STATE_SHIFT {
            0 if self.0 == Self::EMPTY.0 => SlotState::Empty,
            0 if self.0 == Self::CLOSED.0 => SlotState::Closed,
            0 => SlotState::Malformed,
            state => match self.block() {
                None => SlotState::Malformed,
                Some(block) => match state {
                    LIVE => SlotState::Live(block),
                    DELETED => SlotState::Deleted(block),
                    _ => SlotState::Moved(block),
                },
            },
        }
    }

    const fn block(self) -> Option<BlockRef> {
        match SizeClass::from_index(((self.0 >> CLASS_SHIFT) & 0x7f) as u8) {
            None => None,
            Some(class) => Some(BlockRef {
                offset: Offset((self.0 & BLOCK_MASK) * BLOCK_UNIT_BYTES),
                class,
                version: Version((self.0 >> VERSION_SHIFT) as u8),
            }),
        }
    }

    /// The tag of the key the slot belongs to; meaningless for EMPTY and CLOSED.
    #[inline]
    pub const fn tag(self) -> Tag {
        Tag::from_low_bits(self.0 >> TAG_SHIFT)
    }

    /// Whether a blind operation wrote the word: one that read nothing it depends on, so that a rival it beat
    /// may count itself as overwritten.
    #[inline]
    pub const fn is_blind(self) -> bool {
        self.0 & BLIND_BIT != 0
    }

    /// Whether the key can expire, so that a reader must look at the tick.
    #[inline]
    pub const fn can_expire(self) -> bool {
        self.0 & EXPIRES_BIT != 0
    }
}

impl std::fmt::Debug for SlotWord {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:#018x} ", self.0)?;
        match self.state() {
            SlotState::Empty => write!(f, "EMPTY"),
            SlotState::Closed => write!(f, "CLOSED"),
            SlotState::Malformed => write!(f, "malformed"),
            SlotState::Live(block) => write!(f, "LIVE tag {} {block:?}", self.tag().0),
            SlotState::Deleted(block) => write!(f, "DELETED tag {} {block:?}", self.tag().0),
            SlotState::Moved(block) => write!(f, "MOVED tag {} {block:?}", self.tag().0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block() -> BlockRef {
        BlockRef {
            offset: Offset(0x1_2345_6740),
            class: SizeClass::from_index(17).unwrap(),
            version: Version(0xa5),
        }
    }

    #[test]
    fn golden_words() {
        let tag = Tag::from_low_bits(0x2aa);
        assert_eq!(SlotWord::live(tag, block(), true).bits(), 0x6aa8_8d28_048d_159d);
        assert_eq!(SlotWord::deleted(tag, block(), false).bits(), 0x8aa8_8d28_048d_159d);
        assert_eq!(SlotWord::CLOSED.bits(), 0x3fff_ffff_ffff_ffff);
    }

    #[test]
    fn words_round_trip() {
        let tag = Tag::from_low_bits(0x3ff);
        let live = SlotWord::live(tag, block(), true);
        assert_eq!(live.state(), SlotState::Live(block()));
        assert!(live.is_blind() && !live.can_expire() && live.tag() == tag);
        let deleted = SlotWord::deleted(tag, block(), false);
        assert_eq!(deleted.state(), SlotState::Deleted(block()));
        assert!(!deleted.is_blind());
        assert_eq!(live.to_moved().state(), SlotState::Moved(block()));
        assert_eq!(live.to_moved().to_live(), live);
        assert_eq!(SlotWord::EMPTY.state(), SlotState::Empty);
        assert_eq!(SlotWord::CLOSED.state(), SlotState::Closed);
        let expiring = SlotWord::from_bits(live.bits() | 1 << 60);
        assert!(expiring.can_expire() && expiring.state() == live.state() && expiring.tag() == tag);
    }

    /// Versions count on and come round: the mark of one use never frees the next.
    #[test]
    fn each_use_has_a_version_of_its_own() {
        assert_eq!([0, 1, 254, 255].map(|version| Version(version).next().0), [1, 2, 255, 0]);
    }

    /// A word would name another place than was meant.
    #[test]
    #[cfg(debug_assertions)]
    fn no_word_is_made_for_a_place_that_it_cannot_name() {
        for offset in [65, 1 << 41] {
            let block = BlockRef { offset: Offset(offset), ..block() };
            let made = std::panic::catch_unwind(|| SlotWord::live(Tag::from_low_bits(1), block, true));
            assert!(made.is_err(), "{offset:#x}");
        }
    }

    /// Whatever the bits are, reading them yields a state and no panic; unknown classes are malformed.
    #[test]
    fn any_bits_are_read() {
        let mut bits = 0x9e37_79b9_7f4a_7c15_u64;
        for _ in 0..100_000 {
            bits = bits.wrapping_mul(0xd134_2543_de82_ef95).wrapping_add(1);
            let word = SlotWord::from_bits(bits);
            let _ = format!("{word:?}");
            if bits >> 62 != 0 && (bits >> 43) & 0x7f >= SizeClass::COUNT as u64 {
                assert_eq!(word.state(), SlotState::Malformed);
            }
        }
        assert_eq!(SlotWord::from_bits(1).state(), SlotState::Malformed);
    }
}
