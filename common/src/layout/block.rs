//! Blocks: a key with its value, immutable once a slot word names them.
//!
//! Always true: a block *fits* a slot word only if its checksum is right for the address and version that the
//! word names. A block that does not fit proves nothing (it may be half written, or reused): read the slot
//! again. Only a fitting block with another key is another key.
//!
//! ```text
//!       0        1        2        3        4        5        6        7
//!   0 │ checksum: xxh3-64 of bytes 8.. of header, key and value, seeded with address and version │
//!   8 │ write id: session (24 high bits), sequence (40)                      │
//!  16 │ key bytes (16)  │ version │ zero   │ value bytes (32)                │
//!  24 │ expiry tick, 0 for never                                             │
//!  32 │ user flags (32)                   │ zero                             │
//!  40 │ key, then value, with nothing between; the rest of the block is whatever it was │
//! ```

use xxhash_rust::xxh3::{Xxh3, xxh3_64_with_seed};

use super::{BLOCK_UNIT_BYTES, BlockRef, SizeClass, word_at};
use crate::planted::{Fault, is_planted};

/// Bytes of a block's header.
pub const BLOCK_HEADER_BYTES: usize = 40;
/// The longest key, in bytes. The shortest has one byte.
pub const KEY_BYTES_MAX: usize = 1024;
/// The longest value, in bytes. The shortest has none.
pub const VALUE_BYTES_MAX: usize = 1 << 20;

const CHECKSUM_BYTES: usize = 8;

/// Who wrote a block: a session and its count of writes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct WriteId(u64);

impl WriteId {
    /// Bits of the sequence; the session has the rest.
    pub const SEQUENCE_BITS: u32 = 40;

    /// The id of write `sequence` of `session` (24 bits).
    pub const fn new(session: u32, sequence: u64) -> Self {
        Self(
            ((session & 0xff_ffff) as u64) << Self::SEQUENCE_BITS
                | (sequence & ((1 << Self::SEQUENCE_BITS) - 1)),
        )
    }

    /// Its 64 bits.
    pub const fn bits(self) -> u64 {
        self.0
    }

    /// The session that wrote.
    pub const fn session(self) -> u32 {
        (self.0 >> Self::SEQUENCE_BITS) as u32
    }
}

/// What a block says beside its key and value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BlockMeta {
    /// Who wrote it.
    pub write_id: WriteId,
    /// The tick at which it expires; 0 for never.
    pub expiry_tick: u64,
    /// 32 bits for the user.
    pub user_flags: u32,
}

/// A header ready to be written in front of a key and a value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BlockHeader([u8; BLOCK_HEADER_BYTES]);

impl BlockHeader {
    /// The header of a block at `place` that holds `key` and `value`.
    ///
    /// # Panics
    /// If key or value is longer than its limit, or they don't fit the class: callers have checked both.
    pub fn new(place: BlockRef, meta: BlockMeta, key: &[u8], value: &[u8]) -> Self {
        assert!(
            key.len() <= KEY_BYTES_MAX && value.len() <= VALUE_BYTES_MAX,
            "{} {}",
            key.len(),
            value.len()
        );
        assert!(Self::block_bytes(key.len(), value.len()) <= place.class.bytes(), "{place:?} is too small");
        let mut bytes = [0; BLOCK_HEADER_BYTES];
        bytes[8..16].copy_from_slice(&meta.write_id.bits().to_le_bytes());
        bytes[16..18].copy_from_slice(&(key.len() as u16).to_le_bytes());
        bytes[18] = place.version.0;
        bytes[20..24].copy_from_slice(&(value.len() as u32).to_le_bytes());
        bytes[24..32].copy_from_slice(&meta.expiry_tick.to_le_bytes());
        bytes[32..36].copy_from_slice(&meta.user_flags.to_le_bytes());
        let mut hasher = Xxh3::with_seed(checksum_seed(place));
        hasher.update(&bytes[CHECKSUM_BYTES..]);
        hasher.update(key);
        hasher.update(value);
        bytes[..CHECKSUM_BYTES].copy_from_slice(&hasher.digest().to_le_bytes());
        Self(bytes)
    }

    /// The header's bytes.
    pub const fn as_bytes(&self) -> &[u8; BLOCK_HEADER_BYTES] {
        &self.0
    }

    /// Bytes that a block with such a key and value needs.
    pub const fn block_bytes(key_bytes: usize, value_bytes: usize) -> u64 {
        (BLOCK_HEADER_BYTES + key_bytes + value_bytes) as u64
    }

    /// The class for such a block; `None` if key or value is over its limit.
    pub const fn class_for(key_bytes: usize, value_bytes: usize) -> Option<SizeClass> {
        if key_bytes > KEY_BYTES_MAX || value_bytes > VALUE_BYTES_MAX {
            return None;
        }
        SizeClass::holding(Self::block_bytes(key_bytes, value_bytes))
    }
}

/// A checksum is bound to the place: a block copied elsewhere, or read under another version, doesn't fit.
fn checksum_seed(place: BlockRef) -> u64 {
    let version = if is_planted(Fault::ChecksumWithoutVersion) { 0 } else { place.version.0 };
    (place.offset.0 / BLOCK_UNIT_BYTES) << 8 | u64::from(version)
}

/// Why bytes are not the block that a slot word names. Each means: read the slot again.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum BlockError {
    /// The lengths in the header don't fit the block.
    #[error(
        "block header names a key of {key_bytes} and a value of {value_bytes} bytes, more than {available_bytes} hold"
    )]
    Lengths {
        /// Key bytes as the header says.
        key_bytes: usize,
        /// Value bytes as the header says.
        value_bytes: usize,
        /// Bytes that were read.
        available_bytes: usize,
    },
    /// The block is of another use of this memory.
    #[error("block has version {found}, the slot names {expected}")]
    Version {
        /// As the slot says.
        expected: u8,
        /// As the block says.
        found: u8,
    },
    /// The checksum is not that of these bytes at this place.
    #[error("block checksum does not fit its bytes, address and version")]
    Checksum,
}

/// A block that fits its slot word, borrowed from the bytes that a READ brought.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Block<'a> {
    /// Who wrote it, when it expires, the user's flags.
    pub meta: BlockMeta,
    /// The key.
    pub key: &'a [u8],
    /// The value; empty in a DELETED slot's block.
    pub value: &'a [u8],
}

impl<'a> Block<'a> {
    /// Checks that `bytes`, read from `place`, are the block that a slot word with `place` names.
    ///
    /// # Errors
    /// [`BlockError`] if they are not, whatever the reason.
    pub fn parse(bytes: &'a [u8], place: BlockRef) -> Result<Self, BlockError> {
        let unfit = |key_bytes, value_bytes| BlockError::Lengths {
            key_bytes,
            value_bytes,
            available_bytes: bytes.len(),
        };
        if bytes.len() < BLOCK_HEADER_BYTES {
            return Err(unfit(0, 0));
        }
        let lengths = word_at(bytes, 16);
        let key_bytes = (lengths & 0xffff) as usize;
        let version = (lengths >> 16) as u8;
        let value_bytes = (lengths >> 32) as usize;
        if version != place.version.0 && !is_planted(Fault::VersionUnchecked) {
            return Err(BlockError::Version { expected: place.version.0, found: version });
        }
        if key_bytes > KEY_BYTES_MAX
            || value_bytes > VALUE_BYTES_MAX
            || BLOCK_HEADER_BYTES + key_bytes + value_bytes > bytes.len()
        {
            return Err(unfit(key_bytes, value_bytes));
        }
        let end = BLOCK_HEADER_BYTES + key_bytes + value_bytes;
        let checksum = xxh3_64_with_seed(&bytes[CHECKSUM_BYTES..end], checksum_seed(place));
        if checksum != word_at(bytes, 0) && !is_planted(Fault::ChecksumUnchecked) {
            return Err(BlockError::Checksum);
        }
        Ok(Self {
            meta: BlockMeta {
                write_id: WriteId(word_at(bytes, 8)),
                expiry_tick: word_at(bytes, 24),
                user_flags: word_at(bytes, 32) as u32,
            },
            key: &bytes[BLOCK_HEADER_BYTES..BLOCK_HEADER_BYTES + key_bytes],
            value: &bytes[BLOCK_HEADER_BYTES + key_bytes..end],
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Offset, Version};
    use super::*;

    fn place() -> BlockRef {
        BlockRef { offset: Offset(0x40_0040), class: SizeClass::holding(128).unwrap(), version: Version(3) }
    }

    fn bytes(place: BlockRef, key: &[u8], value: &[u8]) -> Vec<u8> {
        let meta = BlockMeta { write_id: WriteId::new(7, 9), expiry_tick: 0, user_flags: 0xfeed };
        let mut bytes = BlockHeader::new(place, meta, key, value).as_bytes().to_vec();
        bytes.extend_from_slice(key);
        bytes.extend_from_slice(value);
        bytes.resize(place.class.bytes() as usize, 0xee);
        bytes
    }

    #[test]
    fn a_block_round_trips() {
        let bytes = bytes(place(), b"key", b"some value");
        let block = Block::parse(&bytes, place()).unwrap();
        assert_eq!((block.key, block.value), (&b"key"[..], &b"some value"[..]));
        assert_eq!(block.meta.write_id.session(), 7);
        assert_eq!(block.meta.user_flags, 0xfeed);
    }

    #[test]
    fn golden_bytes() {
        let bytes = bytes(place(), b"key", b"v");
        let golden =
            [0x4f64_b88f_4175_7035, 0x0900_0000_0007_0000, 0x0300_0300_0100_0000, 0, 0xedfe_0000_0000_0000];
        let words: Vec<u64> = (0..5).map(|at| word_at(&bytes, at * 8).swap_bytes()).collect();
        assert_eq!(words, golden, "{words:#x?}");
    }

    /// Tearing, reuse and misdirected reads: any changed byte, other address or version is noticed.
    #[test]
    fn what_does_not_fit_is_refused() {
        let good = bytes(place(), b"key", b"some value");
        for at in 0..BLOCK_HEADER_BYTES + 13 {
            for bit in 0..8 {
                let mut bad = good.clone();
                bad[at] ^= 1 << bit;
                assert!(Block::parse(&bad, place()).is_err(), "byte {at} bit {bit}");
            }
        }
        let elsewhere = BlockRef { offset: Offset(0x40_0080), ..place() };
        assert_eq!(Block::parse(&good, elsewhere), Err(BlockError::Checksum));
        let later = BlockRef { version: Version(4), ..place() };
        assert_eq!(Block::parse(&good, later), Err(BlockError::Version { expected: 4, found: 3 }));
        assert!(Block::parse(&good[..20], place()).is_err());
        assert!(Block::parse(&[], place()).is_err());
        assert!(Block::parse(&[0; 128], place()).is_err());
    }

    /// A client asks for the class of what it is to write; one class too small and the header is refused, with none
    /// the put is.
    #[test]
    fn a_class_holds_header_key_and_value() {
        assert_eq!(BlockHeader::block_bytes(3, 10), 53);
        let class = |key_bytes, value_bytes| BlockHeader::class_for(key_bytes, value_bytes);
        assert_eq!(class(10, 14).map(SizeClass::bytes), Some(64));
        assert_eq!(class(10, 15).map(SizeClass::bytes), Some(128));
        assert_eq!(class(KEY_BYTES_MAX, VALUE_BYTES_MAX), Some(SizeClass::MAX));
        assert_eq!(class(KEY_BYTES_MAX + 1, 0), None);
        assert_eq!(class(0, VALUE_BYTES_MAX + 1), None);
    }

    /// The largest block, and one that fills its class to the last byte.
    #[test]
    fn blocks_at_their_limits_round_trip() {
        let largest = BlockRef { class: SizeClass::MAX, ..place() };
        let full = 128 - BLOCK_HEADER_BYTES - 3;
        for (place, key_bytes, value_bytes) in
            [(largest, KEY_BYTES_MAX, VALUE_BYTES_MAX), (place(), 3, full), (place(), 1, 0)]
        {
            let (key, value) = (vec![1; key_bytes], vec![2; value_bytes]);
            let bytes = bytes(place, &key, &value);
            let block = Block::parse(&bytes, place).unwrap();
            assert!(block.key == key && block.value == value, "{key_bytes} {value_bytes}");
        }
    }

    /// No correct client writes them: a key or a value over its limit, with a checksum that is right all the same, and
    /// more than the block holds.
    #[test]
    fn lengths_over_their_limits_are_refused() {
        let largest = BlockRef { class: SizeClass::MAX, ..place() };
        let good = bytes(largest, b"key", b"value");
        let with_lengths = |key_bytes: usize, value_bytes: usize| {
            let mut bad = good.clone();
            bad[16..18].copy_from_slice(&(key_bytes as u16).to_le_bytes());
            bad[20..24].copy_from_slice(&(value_bytes as u32).to_le_bytes());
            let end = (BLOCK_HEADER_BYTES + key_bytes + value_bytes).min(bad.len());
            let checksum = xxh3_64_with_seed(&bad[CHECKSUM_BYTES..end], checksum_seed(largest));
            bad[..CHECKSUM_BYTES].copy_from_slice(&checksum.to_le_bytes());
            bad
        };
        assert!(Block::parse(&with_lengths(KEY_BYTES_MAX, VALUE_BYTES_MAX), largest).is_ok());
        for (key_bytes, value_bytes) in
            [(KEY_BYTES_MAX + 1, 0), (1, VALUE_BYTES_MAX + 1), (1, u32::MAX as usize)]
        {
            let unfit = BlockError::Lengths { key_bytes, value_bytes, available_bytes: good.len() };
            assert_eq!(Block::parse(&with_lengths(key_bytes, value_bytes), largest), Err(unfit));
        }
        let short = &good[..BLOCK_HEADER_BYTES + 7];
        let unfit = BlockError::Lengths { key_bytes: 3, value_bytes: 5, available_bytes: short.len() };
        assert_eq!(Block::parse(short, largest), Err(unfit));
        // A header alone says what it is of.
        let later = BlockRef { version: Version(4), ..largest };
        let other = BlockError::Version { expected: 4, found: 3 };
        assert_eq!(Block::parse(&good[..BLOCK_HEADER_BYTES], later), Err(other));
    }

    /// A header is never made for what can't be read back.
    #[test]
    fn no_header_is_made_over_the_limits() {
        let meta = BlockMeta { write_id: WriteId::new(7, 9), expiry_tick: 0, user_flags: 0 };
        let largest = BlockRef { class: SizeClass::MAX, ..place() };
        for (place, key_bytes, value_bytes) in
            [(largest, KEY_BYTES_MAX + 1, 0), (largest, 0, VALUE_BYTES_MAX + 1), (place(), 3, 86)]
        {
            let (key, value) = (vec![1; key_bytes], vec![2; value_bytes]);
            let made = std::panic::catch_unwind(|| BlockHeader::new(place, meta, &key, &value));
            assert!(made.is_err(), "{place:?} {key_bytes} {value_bytes}");
        }
    }
}
