//! The janitor: what is rare and takes the whole index or the whole pool.
//!
//! Always true:
//! - one thread does all of it, one thing after the other, so no segment is scanned during a rebuild, and ⚑ the epoch is
//!   raised only between rebuilds, after the last one's last directory word;
//! - it is woken by what happened (the [`Bell`]), never by a clock without a reason, and costs nothing while nothing
//!   happens;
//! - it holds no lock while it works on the index.
//!
//! ```text
//! a session ended, acknowledged, returned chunks, was refused memory, reported a bucket
//!    │ ring
//!    ▼
//! recycle ─▶ rebuild ─▶ sweep ─▶ raise the epoch, if somebody waits for one ─▶ tell the sessions ─▶ wait
//! ```

mod bell;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod growth;
pub mod policy;
pub mod rebuild;
mod scan;
pub mod segments;
pub mod slots;
mod sweep;
mod tidying;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

pub use bell::Bell;
pub use growth::{Growth, GrowthFigures, RebuildWork, rebuild_work};
pub use scan::{Found, Scan, ScanFigures};
pub use sweep::{Books, Death, Progress, Sweep, SweepBook, SweepFigures};

use crate::node::{Node, Serving};
use tidying::Tidying;

/// Between two looks for ownerless chunks that became empty.
const RECLAIM_PERIOD: Duration = Duration::from_secs(1);

/// The janitor's thread; it ends when this is dropped.
#[derive(Debug)]
pub struct Janitor {
    node: Arc<Node>,
    thread: Option<JoinHandle<()>>,
}

impl Janitor {
    /// Starts it for a node that serves.
    ///
    /// # Errors
    /// If there can be no more threads.
    pub fn start(node: Arc<Node>) -> std::io::Result<Self> {
        let of_thread = Arc::clone(&node);
        if let Some(serving) = node.serving() {
            // A figure by itself; nothing is read by its being set.
            serving.janitor_is_up.store(true, Ordering::Relaxed);
        }
        let thread = std::thread::Builder::new().name("janitor".into()).spawn(move || {
            let Some(serving) = of_thread.serving() else { return };
            let _up = Up(serving);
            let mut work = Work::default();
            let mut deadline = None;
            while serving.bell.wait(deadline) {
                deadline = work.round(serving);
            }
        })?;
        Ok(Self { node, thread: Some(thread) })
    }
}

impl Drop for Janitor {
    fn drop(&mut self) {
        if let Some(serving) = self.node.serving() {
            serving.bell.end();
        }
        if let Some(thread) = self.thread.take() {
            // A panic there was reported when it happened.
            let _ = thread.join();
        }
    }
}

/// Says so when the janitor's thread ends.
struct Up<'a>(&'a Serving);

impl Drop for Up<'_> {
    fn drop(&mut self) {
        self.0.janitor_is_up.store(false, Ordering::Relaxed);
        if std::thread::panicking() {
            tracing::error!(
                "the janitor has died: keys are served, but nothing is recycled and the index does not grow"
            );
        }
    }
}

/// What the janitor has under way.
#[derive(Debug, Default)]
struct Work {
    sweep: Sweep,
    /// When ownerless chunks were last looked through for empty ones.
    reclaimed: Option<Instant>,
    tidying: Tidying,
}

impl Work {
    /// Does once what there is to do; returns when there will be something.
    fn round(&mut self, serving: &Serving) -> Option<Instant> {
        let quiesced = serving.epochs().quiesced();
        recycle(serving, quiesced);
        let reclaim = self.reclaim(serving);
        let mut work = rebuild_work(serving);
        if !work.is_under_way {
            work = self.sweep(serving, work);
        }
        let mut tidy = None;
        if !work.is_under_way {
            (work, tidy) = self.tidying.go_on(serving);
        }
        if !work.is_under_way {
            raise_if_wanted(serving);
        }
        reclaim.into_iter().chain(tidy).chain(work.deadline).min()
    }

    /// Sweeps as far as it can. Between two steps of a scan, writers that wait for a rebuild have it.
    fn sweep(&mut self, serving: &Serving, mut work: RebuildWork) -> RebuildWork {
        let books = serving.books();
        while !serving.bell.is_over() {
            match self.sweep.advance(&books) {
                Ok(Progress::GoesOn) if self.sweep.is_scanning() => {
                    work = rebuild_work(serving);
                    if work.is_under_way {
                        break;
                    }
                    // A large index takes seconds: what waits for epochs does not wait for the scan.
                    let quiesced = serving.epochs().quiesced();
                    recycle(serving, quiesced);
                    raise_if_wanted(serving);
                }
                Ok(Progress::GoesOn) => {}
                Ok(Progress::Waits) => break,
                Ok(Progress::Done) => {
                    serving.shortage.forget_search();
                    serving.tell_sessions();
                }
                Err(error) => unreachable!("the index is in the region: {error}"),
            }
        }
        work
    }

    /// Memory was refused: ownerless chunks that became empty are taken back. Not more often than [`RECLAIM_PERIOD`], since
    /// a full store refuses all the time.
    fn reclaim(&mut self, serving: &Serving) -> Option<Instant> {
        if !serving.shortage.is_refused() {
            return None;
        }
        let next = self.reclaimed.map(|reclaimed| reclaimed + RECLAIM_PERIOD);
        if let Some(next) = next.filter(|next| *next > Instant::now()) {
            return Some(next);
        }
        serving.shortage.take_refused();
        self.reclaimed = Some(Instant::now());
        let mut from = Some(0);
        while let Some(start) = from {
            let mut pool = serving.pool();
            let before = pool.accounts().returned.chunks;
            // The target is from before it is wanted: a round that finds nothing raises nothing.
            let target = serving.epochs().newest() + 1;
            from = pool.reclaim(start, target);
            if pool.accounts().returned.chunks > before {
                serving.epochs().want();
            }
        }
        serving.shortage.note_search();
        None
    }
}

/// Frees what was given back and is nobody's by now.
fn recycle(serving: &Serving, quiesced: u64) {
    if serving.pool().recycle(quiesced) > 0 {
        serving.shortage.forget_search();
        tracing::debug!(quiesced, "memory that was given back is free");
    }
}

/// Raises the epoch if somebody waits for one, and tells the sessions. With nobody to acknowledge it, it is quiesced at once,
/// and those who wait are to look again.
fn raise_if_wanted(serving: &Serving) {
    let mut epochs = serving.epochs();
    if !epochs.should_raise() {
        return;
    }
    let epoch = epochs.raise();
    let is_quiesced = epochs.quiesced() == epoch;
    drop(epochs);
    tracing::debug!(epoch, "epoch raised");
    serving.tell_sessions();
    if is_quiesced {
        serving.bell.ring();
    }
}
