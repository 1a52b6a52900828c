//! What follows the region in a dump: payload and footer. Drawn in [`super`].
//!
//! Always true: parsing yields what encoding was given, or an error; it never panics, and holds no more than was read and
//! found in order. A length is worth nothing: a file of zeros that nobody wrote is as long as somebody says.

use std::io::{self, Read};

use sidestep_common::layout::{Geometry, PAGE_UNIT_BYTES, Superblock};
use sidestep_common::wire::{GrantHolder, GrantRecord};
use xxhash_rust::xxh3::{Xxh3, xxh3_64};

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

    /// Reads the payload that a footer names.
    pub(super) fn read(from: impl Read, footer: &Footer) -> Result<Self, DumpError> {
        let mut from = Checked { from, checksum: Xxh3::new() };
        if footer.payload_bytes < HEAD_BYTES as u64 {
            return Err(payload_length(HEAD_BYTES as u64, footer));
        }
        let head = from.take::<HEAD_BYTES>()?;
        let superblock = Superblock::parse(&head[..SUPERBLOCK_BYTES])?;
        let geometry = &superblock.geometry;
        if geometry.region_bytes != footer.image_bytes {
            let (part, room_bytes) = ("region", footer.image_bytes);
            return Err(DumpError::Length { part, named_bytes: geometry.region_bytes, room_bytes });
        }
        let (grant_count, changed_count) = (word(&head, 128), word(&head, 136));
        let named_bytes = grant_count
            .saturating_mul(GRANT_BYTES as u64)
            .saturating_add(changed_count.saturating_mul(8))
            .saturating_add(HEAD_BYTES as u64);
        if named_bytes != footer.payload_bytes {
            return Err(payload_length(named_bytes, footer));
        }
        within("grants", grant_count, geometry.block_pool_bytes / PAGE_UNIT_BYTES)?;
        within("changed words", changed_count, index_words(geometry))?;
        let mut grants: Vec<GrantRecord> = Vec::new();
        for _ in 0..grant_count {
            let next = grant(&from.take()?)?;
            if grants.last().is_some_and(|last| last.offset >= next.offset) {
                return Err(DumpError::Order { part: "grants", offset: next.offset });
            }
            grants.push(next);
        }
        let mut changed: Vec<u64> = Vec::new();
        for _ in 0..changed_count {
            let next = u64::from_le_bytes(from.take()?);
            if changed.last().is_some_and(|last| *last >= next) {
                return Err(DumpError::Order { part: "changed words", offset: next });
            }
            changed.push(next);
        }
        if from.checksum.digest() != footer.payload_checksum {
            return Err(DumpError::Checksum { part: "payload" });
        }
        Ok(Self {
            facts: Facts {
                superblock,
                grants,
                free_bytes: word(&head, 112),
                uptime_ms: Some(word(&head, 104)).filter(|uptime_ms| *uptime_ms != NOBODY_KNOWS),
            },
            books_are_still: word(&head, 120) == 1,
            changed,
        })
    }
}

/// Bytes that are counted in a checksum as they are read.
struct Checked<R> {
    from: R,
    checksum: Xxh3,
}

impl<R: Read> Checked<R> {
    fn take<const N: usize>(&mut self) -> Result<[u8; N], DumpError> {
        let mut bytes = [0; N];
        let failed = |source: io::Error| DumpError::File { doing: "read", source };
        self.from.read_exact(&mut bytes).map_err(failed)?;
        self.checksum.update(&bytes);
        Ok(bytes)
    }
}

/// Words of directory and segments.
const fn index_words(geometry: &Geometry) -> u64 {
    (geometry.block_pool_offset.0 - geometry.directory_offset.0) / 8
}

fn within(part: &'static str, found: u64, limit: u64) -> Result<(), DumpError> {
    if found > limit { Err(DumpError::Count { part, found, limit }) } else { Ok(()) }
}

fn payload_length(named_bytes: u64, footer: &Footer) -> DumpError {
    DumpError::Length { part: "payload", named_bytes, room_bytes: footer.payload_bytes }
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
        let (found, expected) = (Payload::read(&bytes[..], &footer).unwrap(), payload());
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
            assert!(Payload::read(&bad[..], &footer).is_err(), "bit {bit}");
            // Also if the checksum was made to fit: what is named must be there.
            let fitting = Footer::new(footer.image_bytes, &bad);
            let _ = Payload::read(&bad[..], &fitting);
        }
        for length in 0..bytes.len() {
            let cut = &bytes[..length];
            assert!(Payload::read(cut, &Footer::new(footer.image_bytes, cut)).is_err(), "{length} bytes");
        }
    }

    /// Payloads that end in zeros without end, as a file does that nobody filled: more grants or words than such a region
    /// has are not even read, and of those that it may have the first two zeros are enough.
    #[test]
    fn what_was_never_written_takes_no_memory() {
        let geometry = Geometry::for_region(2 << 40).unwrap();
        let facts = Facts::new(Superblock { geometry, ..superblock() }, Vec::new());
        let head = Payload { facts, books_are_still: true, changed: Vec::new() }.encode();
        let open = |grants: u64, words: u64| {
            let mut head = head.clone();
            head[128..136].copy_from_slice(&grants.to_le_bytes());
            head[136..144].copy_from_slice(&words.to_le_bytes());
            let payload_bytes = HEAD_BYTES as u64 + GRANT_BYTES as u64 * grants + 8 * words;
            let footer = Footer { payload_bytes, ..Footer::new(geometry.region_bytes, &head) };
            Payload::read((&head[..]).chain(io::repeat(0)), &footer).unwrap_err()
        };
        let (grants, words) = (geometry.block_pool_bytes / PAGE_UNIT_BYTES, index_words(&geometry));
        let DumpError::Count { part: "grants", found, limit } = open(1 << 40, 0) else {
            panic!("not noticed")
        };
        assert_eq!((found, limit), (1 << 40, grants));
        assert_eq!(
            open(0, words + 1).to_string(),
            format!(
                "the dump names {} changed words, a region of its size has {words} at the most",
                words + 1
            )
        );
        for (part, error) in [("grants", open(grants, words)), ("changed words", open(1, words))] {
            assert!(matches!(error, DumpError::Order { part: found, offset: 0 } if found == part), "{error}");
        }
    }
}
