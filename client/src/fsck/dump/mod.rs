//! Dumps: a region's bytes in a file, with what the memory node said of them.
//!
//! Always true: a dump that opens is whole: its lengths and checksums are right. What it takes to open one grows with what
//! was written into the file, not with its length, which costs nobody anything. The region's bytes themselves are taken as they come: whether they are sound is
//! what a look at the dump is for.
//!
//! ```text
//! ┌──────────────────────────────────────────┬─────────┬────────┐
//! │ the region, byte for byte; zeros as holes│ payload │ footer │
//! └──────────────────────────────────────────┴─────────┴────────┘
//!
//! payload
//!       0        1        2        3        4        5        6        7
//!   0 │ the superblock as the memory node described it, 104 bytes              │
//! 104 │ for how long it had been running, ms; all ones if nobody knows         │
//! 112 │ bytes of the pool that were free or held back                          │
//! 120 │ 1 if the books of grants did not change while the dump was made        │
//! 128 │ count of grants                                                       │
//! 136 │ count of words that changed                                           │
//! 144 │ grants, 16 bytes each, in the order of their places:                   │
//!     │   offset                                                              │
//!     │   first index (32)                  │ class  │ holder │ zero           │   0 session, 1 nobody, 2 left behind
//!     │ offsets of words of directory and segments that changed, ascending     │
//!
//! footer, 48 bytes
//!   0 │ magic "SDSTDUMP"                                                      │
//!   8 │ version of this format (32)         │ zero                             │
//!  16 │ bytes of the region                                                   │
//!  24 │ bytes of the payload                                                  │
//!  32 │ checksum of the payload: xxh3-64                                      │
//!  40 │ checksum of the footer: xxh3-64 of its bytes 0 to 39                   │
//! ```
//!
//! **Of many moments, yet exact.** A region under load can't be copied in one moment. So the index is read first, then
//! the pool, then the index once more, and the words that changed in between are written down. A word that did not
//! change protected its block all the while the pool was read, as it does in a live region: what is wrong with such a
//! slot is wrong, and what seems wrong with another is counted as changed. So is what a rebuild looks like in a segment of
//! which anything changed: nobody can wait for its end in a dump, so between the two READs of the index lies as much time
//! as a look at a live region would wait.

mod format;
mod write;

use std::fs::File;
use std::io::{self, BufReader, Seek, SeekFrom};
use std::ops::Range;
use std::os::unix::fs::FileExt;

use sidestep_common::layout::{Superblock, SuperblockError};
use sidestep_common::wire::GrantPage;

use super::{Facts, RegionSource, SourceError, Witness};
use format::{FOOTER_BYTES, Footer, Payload};

pub use format::DUMP_VERSION;
pub use write::{Written, write};

/// A dump can't be read or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DumpError {
    /// The file failed.
    #[error("cannot {doing} the dump: {source}")]
    File {
        /// What was tried.
        doing: &'static str,
        /// The cause.
        source: io::Error,
    },
    /// The file does not end like a dump.
    #[error("not a dump of a region: a file of {bytes} bytes that does not end as one does")]
    NotADump {
        /// The file's length.
        bytes: u64,
    },
    /// The file is a dump of another format.
    #[error("the dump has format version {found}, this build understands {DUMP_VERSION}")]
    Version {
        /// As found.
        found: u32,
    },
    /// A checksum does not fit.
    #[error("the checksum of the dump's {part} does not fit")]
    Checksum {
        /// Of what.
        part: &'static str,
    },
    /// The parts do not make up the file.
    #[error("the dump names {named_bytes} bytes of {part}, the file has room for {room_bytes}")]
    Length {
        /// Of what.
        part: &'static str,
        /// As named.
        named_bytes: u64,
        /// As can be.
        room_bytes: u64,
    },
    /// More than such a region can have.
    #[error("the dump names {found} {part}, a region of its size has {limit} at the most")]
    Count {
        /// Of what.
        part: &'static str,
        /// As named.
        found: u64,
        /// As can be.
        limit: u64,
    },
    /// A list is not in its order.
    #[error(
        "the dump's {part} are not in the order of their places: {offset:#x} does not come after the one before"
    )]
    Order {
        /// Of what.
        part: &'static str,
        /// The first that is not.
        offset: u64,
    },
    /// The described superblock is none.
    #[error("the dump's description of the region: {0}")]
    Superblock(#[from] SuperblockError),
}

/// Bytes of the payload that are read at once.
const PIECE_BYTES: usize = 256 << 10;

/// A region in a file.
#[derive(Debug)]
pub struct Dump {
    file: File,
    facts: Facts,
    /// Words of the index that changed while it was made, ascending.
    changed: Vec<u64>,
    is_still: bool,
}

impl Dump {
    /// Opens a dump.
    ///
    /// # Errors
    /// [`DumpError`] if the file is none, or not whole.
    pub fn open(file: File) -> Result<Self, DumpError> {
        let failed = |source| DumpError::File { doing: "read", source };
        let file_bytes = file.metadata().map_err(failed)?.len();
        let Some(footer_start) = file_bytes.checked_sub(FOOTER_BYTES as u64) else {
            return Err(DumpError::NotADump { bytes: file_bytes });
        };
        let mut footer = [0; FOOTER_BYTES];
        file.read_exact_at(&mut footer, footer_start).map_err(failed)?;
        let footer = Footer::parse(&footer, file_bytes)?;
        let mut payload = &file;
        payload.seek(SeekFrom::Start(footer.image_bytes)).map_err(failed)?;
        let payload = Payload::read(BufReader::with_capacity(PIECE_BYTES, payload), &footer)?;
        let is_still = payload.books_are_still && payload.changed.is_empty();
        Ok(Self { file, facts: payload.facts, changed: payload.changed, is_still })
    }

    /// Whether nothing changed while it was made, as far as can be seen.
    pub const fn is_still(&self) -> bool {
        self.is_still
    }
}

impl RegionSource for Dump {
    fn superblock(&self) -> Superblock {
        self.facts.superblock
    }

    fn read(&mut self, pieces: &[Range<u64>], into: &mut Vec<u8>) -> Result<(), SourceError> {
        into.clear();
        for piece in pieces {
            let start = into.len();
            into.resize(start + (piece.end - piece.start) as usize, 0);
            let read = self.file.read_exact_at(&mut into[start..], piece.start);
            read.map_err(|source| DumpError::File { doing: "read", source })?;
        }
        Ok(())
    }

    fn grants(&mut self, from: u64, count: u16) -> Result<GrantPage, SourceError> {
        Ok(self.facts.page(from, count))
    }

    fn uptime_ms(&mut self) -> Result<Option<u64>, SourceError> {
        Ok(self.facts.uptime_ms)
    }

    fn has_changed(&mut self, words: &[Witness]) -> Result<bool, SourceError> {
        Ok(words.iter().any(|(offset, _)| self.changed.binary_search(&offset.0).is_ok()))
    }

    fn was_moving(&self, part: &Range<u64>) -> bool {
        let next = self.changed.partition_point(|offset| *offset < part.start);
        self.changed.get(next).is_some_and(|offset| *offset < part.end)
    }
}
