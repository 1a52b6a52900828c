//! fsck: whether a region is sound.
//!
//! Always true: nothing is changed, in the region or anywhere; whatever the bytes are, looking at them ends, stays within
//! the region, and holds a bounded amount of memory: a bit for each block that is in use, four bytes for each segment,
//! and some MiB. A region that others change meanwhile raises no false alarm; the module `settle` says why.
//!
//! ```text
//!            superblock ─▶ directory ─▶ segments: buckets, slots ─▶ blocks, marks ─▶ free maps, grants
//!                │             │             │                          │                      │
//!                └─────────────┴─────────────┴───── suspicion ──────────┴──────────────────────┘
//!                                                       │ looked at again until certain (`settle`)
//!                                                       ▼
//!                                             finding, "changed", or nothing
//! ```
//!
//! What is checked:
//!
//! - the superblock is valid and the one that the memory node describes; the tick is not in the future; memory between
//!   the parts is zero;
//! - every entry of the directory names a segment; the entries of a run agree and exactly cover its prefix; no segment is
//!   named by two runs;
//! - every bucket serves its prefix, in the directory's generation; it is open, or sealed by a rebuild under way;
//! - every slot holds a valid word; no EMPTY slot comes before a filled one; CLOSED and MOVED words are in sealed buckets
//!   only, or a rebuild goes on;
//! - every LIVE, DELETED or MOVED word names a place where a block of its class can be, in a granted chunk of that class;
//!   the block fits the word; its key hashes to the bucket and has the word's tag;
//!   no key is there twice, no block shared; a deleted key's block has no value; the expires bit says what the block says;
//! - no block that a slot names is marked free, or in a version to come;
//! - grants lie in the pool, aligned, and do not overlap; with what is free they make up the pool to the byte.
//!
//! What no look at the bytes can tell, and why that harms nobody: a flipped blind bit (rivals count themselves as
//! overwritten or not), a mark that was lost (its block waits for a sweep or an audit), one on a block that nobody names (a sweep
//! frees blocks in versions that were never written into them), the tick set back (the memory node sets it again), and bytes of a
//! block behind its value, of blocks that nobody names or of memory without a class, which may have had one.
//!
//! Two things are asked of whoever rebuilds segments: a new segment has its keys in its first slots; and neither the way
//! from the first sealed slot to the last directory word, nor that from there to the last open slot, takes half a second.
//!
//! [`check`] works on any [`RegionSource`]: [`Live`] regions over any fabric, [`Dump`]s, and [`Still`] ones for tests.
//!
//! ```no_run
//! use sidestep_client::Client;
//! use sidestep_client::fsck::{Live, Options, check};
//!
//! let client = Client::builder("sidestep://127.0.0.1:7480")?.damaged_region().connect()?;
//! let report = check(&mut Live::new(client.session()?)?, Options::default())?;
//! for finding in &report.findings {
//!     println!("{finding}");
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod block;
mod bucket;
mod directory;
pub mod dump;
mod finding;
mod grants;
mod live;
mod look;
mod outside;
mod pool;
mod problem;
mod report;
mod settle;
mod source;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;

use std::collections::{HashMap, VecDeque};
use std::ops::Range;

use sidestep_common::layout::{Geometry, Offset};

pub use dump::Dump;
pub use finding::{Finding, Part};
pub use live::Live;
pub use problem::Problem;
pub use report::{Accounts, IndexCounts, Notes, Report, Sum};
pub use source::{Facts, RegionSource, SourceError, Still, Witness};

use grants::{Grants, list};

/// How to look.
#[derive(Default)]
pub struct Options<'a> {
    /// Findings that are kept; all are counted. 1,000 if not set.
    pub findings_max: Option<usize>,
    /// Told how far it is, now and then.
    pub progress: Option<&'a mut dyn FnMut(Progress)>,
}

impl std::fmt::Debug for Options<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Options(findings_max {:?})", self.findings_max)
    }
}

/// How far something is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Progress {
    /// What is looked at.
    pub step: &'static str,
    /// How much of it was.
    pub done: u64,
    /// How much of it there is.
    pub all: u64,
}

/// Findings that are kept if nobody says how many: more than a person reads.
const FINDINGS_MAX: usize = 1000;

/// Looks at a region.
///
/// # Errors
/// [`SourceError`] if its bytes can't be had. What is wrong with the region is in the [`Report`].
pub fn check(source: &mut impl RegionSource, options: Options<'_>) -> Result<Report, SourceError> {
    let superblock = source.superblock();
    let geometry = superblock.geometry;
    let mut checker = Checker {
        geometry,
        hash_seed: superblock.hash_seed,
        grants: Grants::default(),
        report: Report::default(),
        findings_max: options.findings_max.unwrap_or(FINDINGS_MAX),
        progress: options.progress,
        named_by: vec![0; geometry.segment_count as usize],
        replaced: VecDeque::new(),
        suspects: HashMap::new(),
        pauses_left: settle::PAUSES_MAX,
        impatient_with: None,
        block_bytes: Vec::new(),
        source,
    };
    checker.check_superblock()?;
    // What is wrong with grants is found when the pool is gone through, by the list of that moment.
    let grants = &mut checker.grants;
    list(checker.source, &geometry, |record| {
        let _ = grants.learn(&geometry, record);
    })?;
    checker.check_index()?;
    checker.check_pool()?;
    Ok(checker.report)
}

/// A look under way.
struct Checker<'a, 'p, S> {
    source: &'a mut S,
    geometry: Geometry,
    hash_seed: u64,
    grants: Grants,
    report: Report,
    findings_max: usize,
    progress: Option<&'p mut dyn FnMut(Progress)>,
    /// By segment: one more than the first entry of the run that names it; 0 for none.
    named_by: Vec<u32>,
    /// Runs that were replaced while their segments were looked at.
    replaced: VecDeque<Range<u64>>,
    /// Blocks that damaged slots name, with these slots' words.
    suspects: HashMap<u64, Witness>,
    pauses_left: u32,
    /// The segment that was waited for in vain last.
    impatient_with: Option<u32>,
    /// The bytes of blocks, kept to be used again.
    block_bytes: Vec<u8>,
}

impl<S: RegionSource> Checker<'_, '_, S> {
    fn progress(&mut self, step: &'static str, done: u64, all: u64) {
        if let Some(tell) = &mut self.progress {
            tell(Progress { step, done, all });
        }
    }

    fn read_piece(&mut self, piece: Range<u64>, into: &mut Vec<u8>) -> Result<(), SourceError> {
        self.source.read(std::slice::from_ref(&piece), into)
    }

    fn read_word(&mut self, offset: Offset) -> Result<u64, SourceError> {
        let mut bytes = Vec::new();
        self.read_piece(offset.0..offset.0 + 8, &mut bytes)?;
        let mut word = [0; 8];
        word.copy_from_slice(&bytes[..8]);
        Ok(u64::from_le_bytes(word))
    }

    fn find(&mut self, offset: Offset, part: Part, problem: Problem) {
        self.report.add(Finding { offset, part, problem }, self.findings_max);
    }
}
