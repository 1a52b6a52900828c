//! Sweeps: what sessions left behind when they ended without a word.
//!
//! A session that dies leaves chunks of which nobody knows which blocks are published, and blocks in other owners' chunks that
//! it unlinked and did not live to mark. One scan of the index finds both: it is the *sweep* of the one and the *audit* by
//! which the others find theirs.
//!
//! Always true:
//! - ⚑ an audit is announced, then an epoch raised, and the scan begins when everybody has acknowledged that epoch: what an
//!   owner had in hand when it did so was in hand at the scan's beginning, and it leaves those blocks out;
//! - ⚑ nothing that was found is used before everybody has acknowledged an epoch raised after the scan: whoever unlinked a
//!   block that the scan missed has finished with it, and its mark has arrived;
//! - ⚑ of a session's chunks only those are audited that were granted before the announcement: so their owner was there to hear
//!   it, and acknowledged the epoch behind it. Who came later may know of no beginning, and count what it published since;
//! - whoever ended before the scan began is part of it; whoever ended after the announcement makes another one necessary,
//!   since owners left blocks out that they published since.
//!
//! ```text
//!  rest ──wanted──▶ announced ──epoch quiesced──▶ scanning ──▶ scanned ──epoch quiesced──▶ rest
//!                                                                         chunks settled, audit done
//! ```
//!
//! [`SweepBook`] is what sessions see of it; [`Sweep`] is advanced by the janitor, a step at a time, and knows neither threads
//! nor clocks.

use std::collections::HashMap;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use sidestep_common::fabric::SessionId;
use sidestep_common::layout::Geometry;
use sidestep_common::memory::{AccessError, WordMemory};

use super::scan::{Scan, ScanFigures};
use crate::epochs::Epochs;
use crate::node::locked;
use crate::pool::{BlockPool, Holder, Settled};

/// Segments scanned in one step: a few milliseconds.
const SEGMENTS_PER_STEP: u64 = 1024;

/// A session that ended and left something to find.
#[derive(Clone, Copy, Debug)]
pub struct Death {
    /// Which.
    pub session: SessionId,
    /// When its end was noticed.
    pub noticed: Instant,
    /// Chunks that it still held.
    pub chunks: usize,
}

/// Figures of the sweeps since the start.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SweepFigures {
    /// Scans of the whole index.
    pub sweeps_total: u64,
    /// Sessions swept.
    pub sessions_total: u64,
    /// Blocks that were found lost in chunks of nobody and of ended sessions.
    pub blocks_found_total: u64,
    /// From the moment in which the end of the session swept last was noticed until it was swept.
    pub last_delay: Duration,
    /// The longest such time.
    pub max_delay: Duration,
    /// The sum of all.
    pub delay_total: Duration,
    /// What the last scan saw.
    pub last_scan: ScanFigures,
    /// What the scans took.
    pub scan_total: Duration,
}

/// What is known of sweeps by all.
#[derive(Debug, Default)]
pub struct SweepBook {
    is_wanted: bool,
    /// Wanted for no other reason than that a chunk changed hands during the last one.
    is_repeat_wanted: bool,
    deaths: Vec<Death>,
    begun: u64,
    done: u64,
    /// What the newest audit that is done found of sessions' chunks: which grant each was, and the blocks reached.
    audited: HashMap<u64, (u64, Vec<u8>)>,
    figures: SweepFigures,
}

impl SweepBook {
    /// A session was fenced that left something to find.
    pub fn note_death(&mut self, death: Death) {
        self.is_wanted = true;
        self.deaths.push(death);
    }

    /// Marks may have been lost, though nobody died.
    pub const fn want(&mut self) {
        self.is_wanted = true;
    }

    /// Whether blocks that an audit found lost in the chunk at `offset` may not be reclaimed yet.
    pub fn concerns(&self, offset: u64) -> bool {
        self.begun > self.done || self.audited.contains_key(&offset)
    }

    /// The newest audit that was announced.
    pub const fn begun(&self) -> u64 {
        self.begun
    }

    /// The newest audit that is done.
    pub const fn done(&self) -> u64 {
        self.done
    }

    /// The blocks that the newest audit reached of the chunk at `offset`, if it saw it as that grant.
    pub fn audited(&self, offset: u64, serial: u64) -> Option<&[u8]> {
        let (found_serial, reached) = self.audited.get(&offset)?;
        (*found_serial == serial).then_some(reached)
    }

    /// The figures.
    pub const fn figures(&self) -> SweepFigures {
        self.figures
    }
}

/// What a sweep works with. None of the locks is held at its beginning.
#[derive(Clone, Copy, Debug)]
pub struct Books<'a> {
    /// Who has acknowledged what.
    pub epochs: &'a Mutex<Epochs>,
    /// The pool.
    pub pool: &'a Mutex<BlockPool>,
    /// What all know of sweeps.
    pub sweeps: &'a Mutex<SweepBook>,
    /// The region's words.
    pub words: WordMemory,
    /// Where its parts lie.
    pub geometry: Geometry,
}

/// How far the last step brought it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Progress {
    /// There is nothing to do, or an epoch is waited for.
    Waits,
    /// There is more to do.
    GoesOn,
    /// An audit is done: the sessions are to be told.
    Done,
}

/// One sweep after the other.
#[derive(Debug, Default)]
pub struct Sweep {
    stage: Stage,
}

#[derive(Debug, Default)]
enum Stage {
    #[default]
    Rest,
    Announced {
        target: u64,
        announced: Announced,
    },
    Scanning(Pass),
    Scanned {
        target: u64,
        pass: Pass,
    },
}

/// What an announcement was about.
#[derive(Clone, Copy, Debug)]
struct Announced {
    /// The newest grant of the pool then.
    last_serial: u64,
    is_repeat: bool,
}

#[derive(Debug)]
struct Pass {
    announced: Announced,
    scan: Scan,
    deaths: Vec<Death>,
    took: Duration,
}

impl Sweep {
    /// Does one step. No rebuild may be under way.
    ///
    /// # Errors
    /// If the words are not those of the geometry's region.
    pub fn advance(&mut self, books: &Books<'_>) -> Result<Progress, AccessError> {
        match std::mem::take(&mut self.stage) {
            Stage::Rest => Ok(self.announce(books)),
            Stage::Announced { target, announced } => {
                if locked(books.epochs).quiesced() < target {
                    self.stage = Stage::Announced { target, announced };
                    return Ok(Progress::Waits);
                }
                // The deaths before the chunks, so that no death is taken for swept whose chunks weren't looked for.
                let deaths = std::mem::take(&mut locked(books.sweeps).deaths);
                let cut_up = locked(books.pool).cut_up();
                let scan = Scan::new(books.geometry, cut_up);
                self.stage = Stage::Scanning(Pass { announced, scan, deaths, took: Duration::ZERO });
                Ok(Progress::GoesOn)
            }
            Stage::Scanning(mut pass) => {
                let begun = Instant::now();
                let is_done = pass.scan.advance(books.words, SEGMENTS_PER_STEP)?;
                pass.took += begun.elapsed();
                self.stage = if is_done {
                    Stage::Scanned { target: locked(books.epochs).target(), pass }
                } else {
                    Stage::Scanning(pass)
                };
                Ok(Progress::GoesOn)
            }
            Stage::Scanned { target, pass } => {
                if locked(books.epochs).quiesced() < target {
                    self.stage = Stage::Scanned { target, pass };
                    return Ok(Progress::Waits);
                }
                settle(books, pass);
                Ok(Progress::Done)
            }
        }
    }

    /// Whether a scan is between its first and its last step.
    pub const fn is_scanning(&self) -> bool {
        matches!(self.stage, Stage::Scanning(_))
    }

    fn announce(&mut self, books: &Books<'_>) -> Progress {
        let last_serial = locked(books.pool).last_serial();
        // Both locks, so that whoever is told of the epoch to come is told of the audit too.
        let mut epochs = locked(books.epochs);
        let mut sweeps = locked(books.sweeps);
        if !sweeps.is_wanted && !sweeps.is_repeat_wanted {
            return Progress::Waits;
        }
        let announced = Announced { last_serial, is_repeat: !sweeps.is_wanted };
        (sweeps.is_wanted, sweeps.is_repeat_wanted) = (false, false);
        sweeps.begun += 1;
        self.stage = Stage::Announced { target: epochs.target(), announced };
        Progress::GoesOn
    }
}

/// Puts what was found into the books.
fn settle(books: &Books<'_>, pass: Pass) {
    let (mut audited, mut found_total) = (HashMap::new(), 0);
    let last_serial = pass.announced.last_serial;
    for found in pass.scan.found() {
        let chunk = found.chunk();
        if chunk.holder == Holder::Session {
            if chunk.serial > last_serial {
                continue;
            }
            let bits = found.bits();
            let end = bits.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
            audited.insert(chunk.offset, (chunk.serial, bits[..end].to_vec()));
            continue;
        }
        // The pool is locked for one chunk at a time.
        match locked(books.pool).settle(chunk, |block| found.reached(block)) {
            Settled::Free | Settled::Changed => {}
            Settled::Ownerless { found } => found_total += u64::from(found),
        }
    }
    // Whoever adopted a chunk since the announcement knows nothing of what was lost in it before.
    let has_adopted = locked(books.pool).last_adopted() > last_serial;
    let mut sweeps = locked(books.sweeps);
    sweeps.done = sweeps.begun;
    sweeps.audited = audited;
    sweeps.is_repeat_wanted |= has_adopted && !pass.announced.is_repeat && !pass.deaths.is_empty();
    let figures = &mut sweeps.figures;
    figures.sweeps_total += 1;
    figures.blocks_found_total += found_total;
    figures.last_scan = pass.scan.figures();
    figures.scan_total += pass.took;
    for death in &pass.deaths {
        let delay = death.noticed.elapsed();
        figures.sessions_total += 1;
        figures.last_delay = delay;
        figures.max_delay = figures.max_delay.max(delay);
        figures.delay_total += delay;
        tracing::info!(
            session = death.session.0,
            chunks = death.chunks,
            delay_ms = delay.as_millis() as u64,
            "session swept"
        );
    }
    let seen = figures.last_scan;
    let (audit, scan_us) = (sweeps.done, pass.took.as_micros() as u64);
    drop(sweeps);
    tracing::info!(
        audit,
        segments = seen.segments,
        blocks = seen.blocks,
        found = found_total,
        scan_us,
        "index swept"
    );
    if seen.malformed > 0 {
        tracing::error!(words = seen.malformed, "the index has words that are none");
    }
}

#[cfg(test)]
#[path = "sweep_tests.rs"]
mod tests;
