//! The janitor: what is rare and takes the whole index or the whole pool.
//!
//! Always true:
//! - one thread does all of it, one thing after the other, so no scan of the index runs during a rebuild, and ⚑ the epoch
//!   is raised only between rebuilds, after the last one's last directory word;
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
mod growth;
pub mod policy;
pub mod rebuild;
pub mod segments;
pub mod slots;

use std::sync::Arc;
use std::thread::JoinHandle;

pub use bell::Bell;
pub use growth::{Growth, GrowthFigures, RebuildWork, rebuild_work};

use crate::node::{Node, Serving};

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
        let thread = std::thread::Builder::new().name("janitor".into()).spawn(move || {
            let Some(serving) = of_thread.serving() else { return };
            let mut deadline = None;
            while serving.bell.wait(deadline) {
                deadline = round(serving).deadline;
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

/// Does once what there is to do.
fn round(serving: &Serving) -> RebuildWork {
    let work = rebuild_work(serving);
    if !work.is_under_way {
        raise_if_wanted(serving);
    }
    work
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
