//! Where a region's bytes come from, and what the memory node says beside them.
//!
//! Always true: a source changes nothing. The checker trusts none of its answers; it relies on their order in time
//! alone, as each method says.

use std::ops::Range;
use std::time::Duration;

use sidestep_common::layout::{Offset, SizeClass, Superblock, chunk_shape};
use sidestep_common::wire::{GrantHolder, GrantPage, GrantRecord};

use super::dump::DumpError;
use crate::error::Error;

/// The region could not be looked at. Says nothing of whether it is sound.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SourceError {
    /// The memory node or the connection to it.
    #[error(transparent)]
    Client(#[from] Error),
    /// The dump.
    #[error(transparent)]
    Dump(#[from] DumpError),
    /// The server was restarted meanwhile: what was seen so far is of a region that is gone.
    #[error("the region was replaced while it was looked at: incarnation {expected:#x}, now {found:#x}")]
    Replaced {
        /// The incarnation at the beginning.
        expected: u64,
        /// The incarnation now.
        found: u64,
    },
    /// Any other source's own.
    #[error("{0}")]
    Other(Box<dyn std::error::Error + Send + Sync>),
}

/// A word that something was concluded from: where it was read, and what it was.
pub type Witness = (Offset, u64);

/// A region to look at.
pub trait RegionSource {
    /// The superblock as the memory node describes it, not as it is in the region.
    fn superblock(&self) -> Superblock;

    /// Reads `pieces` of the region (ranges of bytes, none empty, none longer than 2 MiB) into `into`, one behind the
    /// other, replacing what is in there. Every byte is read after the call began.
    ///
    /// # Errors
    /// [`SourceError`] if they can't be had.
    fn read(&mut self, pieces: &[Range<u64>], into: &mut Vec<u8>) -> Result<(), SourceError>;

    /// The grants from the place `from` on, at most `count`, as they were at some moment after the call began.
    ///
    /// # Errors
    /// [`SourceError`] if they can't be had.
    fn grants(&mut self, from: u64, count: u16) -> Result<GrantPage, SourceError>;

    /// For how long the memory node has been running, at some moment after the call began; none if nobody knows.
    ///
    /// # Errors
    /// [`SourceError`] if it can't be had.
    fn uptime_ms(&mut self) -> Result<Option<u64>, SourceError>;

    /// Whether one of these words may have been another at some moment between the READ that showed it and this call.
    ///
    /// # Errors
    /// [`SourceError`] if that can't be told.
    fn has_changed(&mut self, words: &[Witness]) -> Result<bool, SourceError>;

    /// Where looking again shows nothing else: whether anything in that part of the region changed while it was copied.
    fn was_moving(&self, _part: &Range<u64>) -> bool {
        false
    }

    /// Whether looking again may show something else.
    fn is_live(&self) -> bool {
        false
    }

    /// Lets the others make progress for a while; only called if looking again may help.
    fn pause(&mut self, _time: Duration) {}
}

/// What is known of a region that nobody changes, beside its bytes.
#[derive(Clone, Debug)]
pub struct Facts {
    /// The superblock as the memory node describes it.
    pub superblock: Superblock,
    /// The grants, in the order of their places.
    pub grants: Vec<GrantRecord>,
    /// Bytes never granted, those held back for deletes too.
    pub free_bytes: u64,
    /// For how long the memory node has been running.
    pub uptime_ms: Option<u64>,
}

impl Facts {
    /// Of a memory node that has granted these chunks and extents and has all else of its pool free.
    pub fn new(superblock: Superblock, mut grants: Vec<GrantRecord>) -> Self {
        grants.sort_unstable_by_key(|grant| grant.offset);
        let classes = grants.iter().filter_map(|grant| SizeClass::from_index(grant.class));
        let granted_bytes = classes.map(|class| chunk_shape(class).bytes).fold(0, u64::saturating_add);
        let free_bytes = superblock.geometry.block_pool_bytes.saturating_sub(granted_bytes);
        Self { superblock, grants, free_bytes, uptime_ms: None }
    }

    /// The page of grants that a memory node would give.
    pub(super) fn page(&self, from: u64, count: u16) -> GrantPage {
        let start = self.grants.partition_point(|grant| grant.offset < from);
        let rest = &self.grants[start..];
        let grants: Vec<_> = rest.iter().take(usize::from(count.max(1))).copied().collect();
        let more = grants.len() < rest.len();
        GrantPage { grants, more, revision: 0, free_bytes: self.free_bytes, reserve_bytes: 0 }
    }

    /// A grant of which a living session may have used any block.
    pub const fn in_use(offset: u64, class: u8) -> GrantRecord {
        GrantRecord { offset, class, holder: GrantHolder::Session }
    }
}

/// A region that nobody changes: each READ of the same place brings the same bytes.
#[derive(Debug)]
pub struct Still<R> {
    facts: Facts,
    read: R,
}

impl<R: FnMut(Offset, &mut [u8]) -> Result<(), SourceError>> Still<R> {
    /// One whose bytes `read` brings.
    pub const fn new(facts: Facts, read: R) -> Self {
        Self { facts, read }
    }
}

impl<R: FnMut(Offset, &mut [u8]) -> Result<(), SourceError>> RegionSource for Still<R> {
    fn superblock(&self) -> Superblock {
        self.facts.superblock
    }

    fn read(&mut self, pieces: &[Range<u64>], into: &mut Vec<u8>) -> Result<(), SourceError> {
        into.clear();
        for piece in pieces {
            let start = into.len();
            into.resize(start + (piece.end - piece.start) as usize, 0);
            (self.read)(Offset(piece.start), &mut into[start..])?;
        }
        Ok(())
    }

    fn grants(&mut self, from: u64, count: u16) -> Result<GrantPage, SourceError> {
        Ok(self.facts.page(from, count))
    }

    fn uptime_ms(&mut self) -> Result<Option<u64>, SourceError> {
        Ok(self.facts.uptime_ms)
    }

    fn has_changed(&mut self, _words: &[Witness]) -> Result<bool, SourceError> {
        Ok(false)
    }
}
