//! The superblock: what a region says of itself.
//!
//! Always true: a superblock that parses has the right magic, version and checksum, and a geometry equal to
//! the one computed from its size.
//!
//! ```text
//!       0        1        2        3        4        5        6        7
//!   0 │ magic "SIDESTEP"                                                      │
//!   8 │ format version (32)               │ atomicity domain (32)             │
//!  16 │ region bytes                                                          │
//!  24 │ incarnation                                                           │
//!  32 │ hash seed                                                             │
//!  40 │ directory offset                                                      │
//!  48 │ directory bits (32)               │ zero                              │
//!  56 │ segment pool offset                                                   │
//!  64 │ segment count                                                         │
//!  72 │ block pool offset                                                     │
//!  80 │ block pool bytes                                                      │
//!  88 │ grace period, ms                                                      │
//!  96 │ checksum: xxh3-64 of bytes 0 to 95                                    │
//! 256 │ tick: milliseconds since the region was made, advanced by the server  │
//! 512 │ spare copy of bytes 0 to 103                                          │
//! ```
//!
//! The spare copy is for whoever takes a kept region over: a crash while one of the two is written leaves the other.

use xxhash_rust::xxh3::xxh3_64;

use super::{Geometry, GeometryError, Offset, word_at};

/// Bytes kept for the superblock.
pub const SUPERBLOCK_BYTES: u64 = 4096;
/// The version of everything stored. Another version is another format.
pub const FORMAT_VERSION: u32 = 2;
/// Where the tick word lies: a cache line of its own, since the server keeps writing it.
pub const TICK_OFFSET: Offset = Offset(256);
/// Where the spare copy of the superblock lies.
pub const SPARE_SUPERBLOCK_OFFSET: Offset = Offset(512);

const MAGIC: u64 = u64::from_le_bytes(*b"SIDESTEP");
const ENCODED_BYTES: usize = 104;

/// Whose atomics the region's slot words obey. A card's atomics are atomic only against that card's.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum AtomicityDomain {
    /// CPU atomics: `shm`, `tcp`, two-sided commits.
    Cpu,
    /// One card's atomics: `verbs`.
    Nic,
}

impl AtomicityDomain {
    const fn code(self) -> u32 {
        match self {
            Self::Cpu => 1,
            Self::Nic => 2,
        }
    }

    const fn from_code(code: u32) -> Option<Self> {
        match code {
            1 => Some(Self::Cpu),
            2 => Some(Self::Nic),
            _ => None,
        }
    }
}

impl std::fmt::Display for AtomicityDomain {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Cpu => "cpu",
            Self::Nic => "nic",
        })
    }
}

/// Why bytes are not a superblock that this build understands.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum SuperblockError {
    /// Not one at all.
    #[error("not a Sidestep region: magic is {found:#018x}")]
    Magic {
        /// As found.
        found: u64,
    },
    /// Another format.
    #[error("region has format version {found}, this build understands {FORMAT_VERSION}")]
    Version {
        /// As found.
        found: u32,
    },
    /// Damaged.
    #[error("superblock checksum does not fit")]
    Checksum,
    /// A domain that this build doesn't know.
    #[error("region has unknown atomicity domain {found}")]
    Domain {
        /// As found.
        found: u32,
    },
    /// An impossible size.
    #[error(transparent)]
    Geometry(#[from] GeometryError),
    /// Parts lie elsewhere than this build would put them.
    #[error("region geometry is not the one of its size")]
    Layout,
    /// Too few bytes.
    #[error("a superblock has {ENCODED_BYTES} bytes, got {found}")]
    Short {
        /// As given.
        found: usize,
    },
}

/// What a region says of itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Superblock {
    /// Where the parts lie.
    pub geometry: Geometry,
    /// Random, new at each start with an empty region.
    pub incarnation: u64,
    /// Seed of the key hash.
    pub hash_seed: u64,
    /// Whose atomics.
    pub domain: AtomicityDomain,
    /// The grace period before freed memory is used again, in milliseconds.
    pub grace_ms: u64,
}

impl Superblock {
    /// The bytes to be stored at the region's start (the tick is not among them).
    pub fn encode(&self) -> [u8; ENCODED_BYTES] {
        let geometry = &self.geometry;
        let words = [
            MAGIC,
            u64::from(FORMAT_VERSION) | u64::from(self.domain.code()) << 32,
            geometry.region_bytes,
            self.incarnation,
            self.hash_seed,
            geometry.directory_offset.0,
            u64::from(geometry.directory_bits),
            geometry.segment_pool_offset.0,
            geometry.segment_count,
            geometry.block_pool_offset.0,
            geometry.block_pool_bytes,
            self.grace_ms,
        ];
        let mut bytes = [0; ENCODED_BYTES];
        for (at, word) in words.into_iter().enumerate() {
            bytes[at * 8..at * 8 + 8].copy_from_slice(&word.to_le_bytes());
        }
        let checksum = xxh3_64(&bytes[..96]);
        bytes[96..].copy_from_slice(&checksum.to_le_bytes());
        bytes
    }

    /// Parses a superblock.
    ///
    /// # Errors
    /// [`SuperblockError`] says what does not fit.
    pub fn parse(bytes: &[u8]) -> Result<Self, SuperblockError> {
        if bytes.len() < ENCODED_BYTES {
            return Err(SuperblockError::Short { found: bytes.len() });
        }
        let word = |index: usize| word_at(bytes, index * 8);
        if word(0) != MAGIC {
            return Err(SuperblockError::Magic { found: word(0) });
        }
        let version = word(1) as u32;
        if version != FORMAT_VERSION {
            return Err(SuperblockError::Version { found: version });
        }
        if xxh3_64(&bytes[..96]) != word(12) {
            return Err(SuperblockError::Checksum);
        }
        let code = (word(1) >> 32) as u32;
        let domain = AtomicityDomain::from_code(code).ok_or(SuperblockError::Domain { found: code })?;
        let superblock = Self {
            geometry: Geometry::for_region(word(2))?,
            incarnation: word(3),
            hash_seed: word(4),
            domain,
            grace_ms: word(11),
        };
        if superblock.encode()[..] != bytes[..ENCODED_BYTES] {
            return Err(SuperblockError::Layout);
        }
        Ok(superblock)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn superblock() -> Superblock {
        Superblock {
            geometry: Geometry::for_region(64 << 20).unwrap(),
            incarnation: 0x1122_3344_5566_7788,
            hash_seed: 42,
            domain: AtomicityDomain::Nic,
            grace_ms: 5000,
        }
    }

    #[test]
    fn a_superblock_round_trips() {
        for domain in [AtomicityDomain::Nic, AtomicityDomain::Cpu] {
            let superblock = Superblock { domain, ..superblock() };
            assert_eq!(Superblock::parse(&superblock.encode()), Ok(superblock));
        }
    }

    #[test]
    fn golden_bytes() {
        let bytes = superblock().encode();
        let words: Vec<u64> = (0..13).map(|at| word_at(&bytes, at * 8)).collect();
        let golden = [
            0x5045_5453_4544_4953,
            0x2_0000_0002,
            64 << 20,
            0x1122_3344_5566_7788,
            42,
            4096,
            9,
            0x4000,
            576,
            0xa0_0000,
            0x360_0000,
            5000,
            0xceee_e0bf_79f8_ed96,
        ];
        assert_eq!(words, golden, "{words:#x?}");
    }

    #[test]
    fn whatever_is_changed_is_noticed() {
        let good = superblock().encode();
        for at in 0..good.len() {
            let mut bad = good;
            bad[at] ^= 0x10;
            assert!(Superblock::parse(&bad).is_err(), "byte {at}");
        }
        assert_eq!(Superblock::parse(&[]), Err(SuperblockError::Short { found: 0 }));
        assert_eq!(Superblock::parse(&[0; 4096]), Err(SuperblockError::Magic { found: 0 }));
    }
}
