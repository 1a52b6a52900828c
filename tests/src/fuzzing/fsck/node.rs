//! A memory node that lies, and watches what it is asked.

use std::ops::Range;
use std::time::Duration;

use arbitrary::Arbitrary;
use sidestep_client::fsck::{Facts, RegionSource, SourceError, Witness};
use sidestep_common::layout::{CHUNK_BYTES, Superblock};
use sidestep_common::wire::{GrantHolder, GrantPage, GrantRecord};

use super::region::{Region, class};

/// No READ is longer.
const PIECE_BYTES_MAX: u64 = 2 << 20;
/// Nor are as many bytes asked for at once, with their marks and headers.
const READ_BYTES_MAX: u64 = 4 << 20;
/// Bounds the time of a look: every word of the fuzzer's may lead to a block, each looked at some times.
const ALL_BYTES_MAX: u64 = 8 << 30;
/// More pauses would be for ever.
const PAUSES_MAX: u32 = 1024;
const GRANTS_MAX: usize = 64;

/// A grant that the node tells of.
#[derive(Arbitrary, Clone, Copy, Debug)]
pub(super) enum GrantSpec {
    Good { chunk: u8, class: u8 },
    Any { offset: u64, class: u8, holder: u8 },
}

/// What else it says.
#[derive(Arbitrary, Debug)]
pub(super) struct AnswerSpec {
    uptime_ms: Option<u32>,
    free_bytes: Option<u64>,
    is_live: bool,
    /// Grants stay in the order in which the fuzzer put them.
    is_unsorted: bool,
    /// Answers to what changed, over and over.
    changes: Vec<bool>,
    /// Revisions of the books, over and over, and whether there are more grants.
    pages: Vec<(u8, bool)>,
}

impl GrantSpec {
    fn record(self, region: &Region) -> GrantRecord {
        match self {
            Self::Good { chunk, class } => {
                let offset = region.pool().0 + u64::from(chunk) % 4 * CHUNK_BYTES;
                Facts::in_use(offset, self::class(class).index())
            }
            Self::Any { offset, class, holder } => {
                let holders = [GrantHolder::Session, GrantHolder::Nobody, GrantHolder::Orphan];
                let holder = holders[usize::from(holder) % holders.len()];
                GrantRecord { offset, class, holder }
            }
        }
    }
}

impl AnswerSpec {
    pub(super) fn facts(&self, region: &Region, grants: &[GrantSpec]) -> Facts {
        let grants = grants.iter().take(GRANTS_MAX).map(|grant| grant.record(region));
        let mut facts = Facts::new(region.superblock, grants.collect());
        // A list that repeats itself ends there; a dump has no more of it.
        facts.grants.dedup_by_key(|grant| grant.offset);
        facts.uptime_ms = self.uptime_ms.map(Into::into);
        facts.free_bytes = self.free_bytes.unwrap_or(facts.free_bytes);
        facts
    }
}

/// The node of one look.
pub(super) struct Node<'a> {
    region: &'a Region,
    facts: Facts,
    answers: &'a AnswerSpec,
    changes: usize,
    pages: usize,
    bytes: u64,
    pauses: u32,
}

impl<'a> Node<'a> {
    pub(super) fn new(region: &'a Region, mut facts: Facts, answers: &'a AnswerSpec) -> Self {
        if answers.is_unsorted {
            facts.grants.reverse();
        }
        Self { region, facts, answers, changes: 0, pages: 0, bytes: 0, pauses: 0 }
    }
}

impl RegionSource for Node<'_> {
    fn superblock(&self) -> Superblock {
        self.facts.superblock
    }

    fn read(&mut self, pieces: &[Range<u64>], into: &mut Vec<u8>) -> Result<(), SourceError> {
        into.clear();
        for piece in pieces {
            assert!(piece.start < piece.end && piece.end - piece.start <= PIECE_BYTES_MAX, "{piece:x?}");
            let start = into.len();
            into.resize(start + (piece.end - piece.start) as usize, 0);
            self.region.read(piece.start, &mut into[start..]);
        }
        let bytes = into.len() as u64;
        self.bytes += bytes;
        assert!(bytes <= READ_BYTES_MAX, "{bytes} bytes at once");
        assert!(self.bytes <= ALL_BYTES_MAX, "there is no end of READs");
        Ok(())
    }

    fn grants(&mut self, from: u64, count: u16) -> Result<GrantPage, SourceError> {
        self.pages += 1;
        let start = self.facts.grants.partition_point(|grant| grant.offset < from);
        let rest = &self.facts.grants[start..];
        let grants: Vec<_> = rest.iter().take(count.into()).copied().collect();
        let (revision, more) =
            match self.answers.pages.get((self.pages - 1) % self.answers.pages.len().max(1)) {
                Some((revision, more)) => (u64::from(*revision), *more),
                None => (0, grants.len() < rest.len()),
            };
        Ok(GrantPage { grants, more, revision, free_bytes: self.facts.free_bytes, reserve_bytes: 0 })
    }

    fn uptime_ms(&mut self) -> Result<Option<u64>, SourceError> {
        Ok(self.facts.uptime_ms)
    }

    fn has_changed(&mut self, _words: &[Witness]) -> Result<bool, SourceError> {
        self.changes += 1;
        let changes = &self.answers.changes;
        Ok(changes.get((self.changes - 1) % changes.len().max(1)).copied().unwrap_or(false))
    }

    fn is_live(&self) -> bool {
        self.answers.is_live
    }

    fn pause(&mut self, time: Duration) {
        self.pauses += 1;
        assert!(
            time < Duration::from_secs(1) && self.pauses <= PAUSES_MAX,
            "pause {}: {time:?}",
            self.pauses
        );
    }
}
