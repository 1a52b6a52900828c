//! What follows the region in a dump: payload and footer. Drawn in [`super`].
//!
//! Always true: parsing yields what encoding was given, or an error; it never panics, and allocates no more than the
//! bytes it was given are long.

use sidestep_common::layout::Superblock;
use sidestep_common::wire::{GrantHolder, GrantRecord};
use xxhash_rust::xxh3::xxh3_64;

use super::super::Facts;
use super::DumpError;

/// The version of dumps. Another version is another format.
pub const DUMP_VERSION: u32 = 1;
/// Bytes of a footer.
pub(super) const FOOTER_BYTES: usize = 48;

const MAGIC: [u8; 8] = *b"SDSTDUMP";
const SUPERBLOCK_BYTES: usize = 104;
const HEAD_BYTES: usize = 144;
const GRANT_BYTES: usize = 16;
const NOBODY_KNOWS: u64 = u64::MAX;

/// Where the parts of a dump are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Footer {
    pub(super) image_bytes: u64,
    pub(super) payload_bytes: u64,
    payload_checksum: u64,
}

impl Footer {
    pub(super) fn new(image_bytes: u64, payload: &[u8]) -> Self {
        Self { image_bytes, payload_bytes: payload.len() as u64, payload_checksum: xxh3_64(payload) }
    }

    pub(super) fn encode(&self) -> [u8; FOOTER_BYTES] {
        let mut bytes = [0; FOOTER_BYTES];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..12].copy_from_slice(&DUMP_VERSION.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.image_bytes.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.payload_bytes.to_le_bytes());
        bytes[32..40].copy_from_slice(&self.payload_checksum.to_le_bytes());
        let checksum = xxh3_64(&bytes[..40]);
        bytes[40..].copy_from_slice(&checksum.to_le_bytes());
        bytes
    }

    /// Parses the last bytes of a file of `file_bytes`.
    pub(super) fn parse(bytes: &[u8; FOOTER_BYTES], file_bytes: u64) -> Result<Self, DumpError> {
        if bytes[..8] != MAGIC {
            return Err(DumpError::NotADump { bytes: file_bytes });
        }
        let version = word(bytes, 8) as u32;
        if version != DUMP_VERSION {
            return Err(DumpError::Version { found: version });
        }
        if xxh3_64(&bytes[..40]) != word(bytes, 40) {
            return Err(DumpError::Checksum { part: "footer" });
        }
        let (image_bytes, payload_bytes) = (word(bytes, 16), word(bytes, 24));
        let room_bytes = file_bytes.saturating_sub(FOOTER_BYTES as u64);
        let named_bytes = image_bytes.saturating_add(payload_bytes);
        if named_bytes != room_bytes {
            return Err(DumpError::Length { part: "region and payload", named_bytes, room_bytes });
        }
        Ok(Self { image_bytes, payload_bytes, payload_checksum: word(bytes, 32) })
    }
}

/// What is known of the region beside its bytes.
#[derive(Debug)]
pub(super) struct Payload {
    pub(super) facts: Facts,
    /// The books of grants did not change while the dump was made.
    pub(super) books_are_still: bool,
    /// Words of the index that changed while the dump was made, ascending.
    pub(super) changed: Vec<u64>,
}

impl Payload {
    pub(super) fn encode(&self) -> Vec<u8> {
        let facts = &self.facts;
        let mut bytes = facts.superblock.encode().to_vec();
        for word in [
            facts.uptime_ms.unwrap_or(NOBODY_KNOWS),
            facts.free_bytes,
            u64::from(self.books_are_still),
            facts.grants.len() as u64,
            self.changed.len() as u64,
        ] {
            bytes.extend(word.to_le_bytes());
        }
        for grant in &facts.grants {
            bytes.extend(grant.offset.to_le_bytes());
            bytes.extend([0; 4]);
            bytes.extend([grant.class, holder_code(grant.holder), 0, 0]);
        }
        bytes.extend(self.changed.iter().flat_map(|offset| offset.to_le_bytes()));
        bytes
    }

    pub(super) fn parse(bytes: &[u8], footer: &Footer) -> Result<Self, DumpError> {
        if xxh3_64(bytes) != footer.payload_checksum {
            return Err(DumpError::Checksum { part: "payload" });
        }
        if bytes.len() < HEAD_BYTES {
            return Err(payload_length(HEAD_BYTES as u64, bytes));
        }
        let superblock = Superblock::parse(&bytes[..SUPERBLOCK_BYTES])?;
        let region_bytes = superblock.geometry.region_bytes;
        if region_bytes != footer.image_bytes {
            let (part, room_bytes) = ("region", footer.image_bytes);
            return Err(DumpError::Length { part, named_bytes: region_bytes, room_bytes });
        }
        let (grant_count, changed_count) = (word(bytes, 128), word(bytes, 136));
        let grants_bytes = grant_count.saturating_mul(GRANT_BYTES as u64);
        let named_bytes =
            grants_bytes.saturating_add(changed_count.saturating_mul(8)).saturating_add(HEAD_BYTES as u64);
        if named_bytes != bytes.len() as u64 {
            return Err(payload_length(named_bytes, bytes));
        }
        let (grants, changed) = bytes[HEAD_BYTES..].split_at(grants_bytes as usize);
        let uptime_ms = Some(word(bytes, 104)).filter(|uptime_ms| *uptime_ms != NOBODY_KNOWS);
        Ok(Self {
            facts: Facts {
                superblock,
                grants: grants.as_chunks::<GRANT_BYTES>().0.iter().map(grant).collect::<Result<_, _>>()?,
                free_bytes: word(bytes, 112),
                uptime_ms,
            },
            books_are_still: word(bytes, 120) == 1,
            changed: changed.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word)).collect(),
        })
    }
}

fn payload_length(named_bytes: u64, bytes: &[u8]) -> DumpError {
    DumpError::Length { part: "payload", named_bytes, room_bytes: bytes.len() as u64 }
}

const fn holder_code(holder: GrantHolder) -> u8 {
    match holder {
        GrantHolder::Session => 0,
        GrantHolder::Nobody => 1,
        GrantHolder::Orphan => 2,
    }
}

fn grant(bytes: &[u8; GRANT_BYTES]) -> Result<GrantRecord, DumpError> {
    let holder = match bytes[13] {
        0 => GrantHolder::Session,
        1 => GrantHolder::Nobody,
        2 => GrantHolder::Orphan,
        _ => return Err(DumpError::Checksum { part: "grants" }),
    };
    Ok(GrantRecord { offset: word(bytes, 0), class: bytes[12], holder })
}

/// The little-endian word at `at`; the callers' bytes hold it.
fn word(bytes: &[u8], at: usize) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(word)
}

/// Keeps the superblock's length in step with what is drawn.
const _: fn(&Superblock) -> [u8; SUPERBLOCK_BYTES] = Superblock::encode;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fsck::testing::superblock;

    fn payload() -> Payload {
        let grant = |number: u64, holder| GrantRecord { offset: number << 20, class: number as u8, holder };
        let holders = [GrantHolder::Session, GrantHolder::Nobody, GrantHolder::Orphan];
        let grants = (1..).zip(holders).map(|(number, holder)| grant(number, holder)).collect();
        let facts = Facts { superblock: superblock(), grants, free_bytes: 5, uptime_ms: Some(9) };
        Payload { facts, books_are_still: true, changed: vec![0x1000, 0x4008] }
    }

    /// The footer and payload, as they follow a region's bytes.
    fn encoded() -> (Vec<u8>, Footer) {
        let bytes = payload().encode();
        let footer = Footer::new(superblock().geometry.region_bytes, &bytes);
        (bytes, footer)
    }

    #[test]
    fn what_is_written_comes_back() {
        let (bytes, footer) = encoded();
        let file_bytes = footer.image_bytes + footer.payload_bytes + FOOTER_BYTES as u64;
        assert_eq!(Footer::parse(&footer.encode(), file_bytes).unwrap(), footer);
        let (found, expected) = (Payload::parse(&bytes, &footer).unwrap(), payload());
        assert_eq!(found.facts.grants, expected.facts.grants);
        assert_eq!(found.facts.superblock, expected.facts.superblock);
        assert_eq!((found.facts.free_bytes, found.facts.uptime_ms), (5, Some(9)));
        assert_eq!((found.books_are_still, found.changed), (true, expected.changed));
    }

    #[test]
    fn golden_bytes() {
        let (bytes, footer) = encoded();
        let words = |bytes: &[u8]| -> Vec<u64> {
            (0..bytes.len() / 8).map(|at| word(bytes, 8 * at).swap_bytes()).collect()
        };
        let grants = [
            [0x0000_1000_0000_0000, 0x0000_0000_0100_0000],
            [0x0000_2000_0000_0000, 0x0000_0000_0201_0000],
            [0x0000_3000_0000_0000, 0x0000_0000_0302_0000],
        ];
        assert_eq!(words(&bytes[SUPERBLOCK_BYTES..HEAD_BYTES]), [9, 5, 1, 3, 2].map(u64::swap_bytes));
        assert_eq!(words(&bytes[HEAD_BYTES..HEAD_BYTES + 48]), grants.concat());
        assert_eq!(words(&bytes[HEAD_BYTES + 48..]), [0x1000, 0x4008].map(u64::swap_bytes));
        let footer = words(&footer.encode());
        assert_eq!(footer[..2], [u64::from_be_bytes(*b"SDSTDUMP"), 1_u64.swap_bytes()]);
        assert_eq!(footer[2..4], [4 << 20, 208].map(u64::swap_bytes));
    }

    /// Whichever bit is flipped, whatever is cut off: an error, and no panic.
    #[test]
    fn damage_is_noticed() {
        let (bytes, footer) = encoded();
        let file_bytes = footer.image_bytes + footer.payload_bytes + FOOTER_BYTES as u64;
        for bit in 0..8 * FOOTER_BYTES {
            let mut bad = footer.encode();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(Footer::parse(&bad, file_bytes).is_err(), "bit {bit}");
        }
        for wrong in [0, 1, file_bytes - 1, file_bytes + 1, u64::MAX] {
            assert!(matches!(Footer::parse(&footer.encode(), wrong), Err(DumpError::Length { .. })));
        }
        for bit in 0..8 * bytes.len() {
            let mut bad = bytes.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(Payload::parse(&bad, &footer).is_err(), "bit {bit}");
            // Also if the checksum was made to fit: what is named must be there.
            let fitting = Footer::new(footer.image_bytes, &bad);
            let _ = Payload::parse(&bad, &fitting);
        }
        for length in 0..bytes.len() {
            let cut = &bytes[..length];
            assert!(Payload::parse(cut, &Footer::new(footer.image_bytes, cut)).is_err(), "{length} bytes");
        }
    }
}
