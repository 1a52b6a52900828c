//! What is done by the clock: the tick, leases, and those who couldn't be fenced.
//!
//! Always true: one thread advances the tick, and nothing that may block runs on it, so the tick is late by its
//! period at the most. It wakes ten times a second and else costs nothing.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::runtime::Handle;

use crate::node::Node;

/// Between two ticks. Expiry is as exact as this.
const TICK_PERIOD: Duration = Duration::from_millis(100);
/// Ticks between two attempts at sessions that couldn't be fenced.
const TICKS_PER_RETRY: u32 = 10;

/// The housekeeping thread; it ends when this is dropped.
#[derive(Debug)]
pub struct Housekeeping {
    stop: Option<SyncSender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Housekeeping {
    /// Starts it for a node that serves. What may block runs on `runtime`'s threads for that.
    ///
    /// # Errors
    /// If there can be no more threads.
    pub fn start(node: Arc<Node>, runtime: Handle) -> std::io::Result<Self> {
        let (stop, stopped) = sync_channel::<()>(0);
        let busy = Arc::new(AtomicBool::new(false));
        let mut ticks = 0_u32;
        let thread = std::thread::Builder::new().name("housekeeping".into()).spawn(move || {
            while stopped.recv_timeout(TICK_PERIOD) == Err(RecvTimeoutError::Timeout) {
                let Some(serving) = node.serving() else { continue };
                serving.region.advance_tick();
                ticks = ticks.wrapping_add(1);
                let (some_expired, some_linger) = {
                    let sessions = serving.sessions();
                    (sessions.some_expired(), ticks.is_multiple_of(TICKS_PER_RETRY) && sessions.some_linger())
                };
                if (some_expired || some_linger) && !busy.swap(true, Ordering::AcqRel) {
                    let (node, busy) = (Arc::clone(&node), Arc::clone(&busy));
                    runtime.spawn_blocking(move || {
                        node.end_expired();
                        if some_linger {
                            node.retry_lingering();
                        }
                        busy.store(false, Ordering::Release);
                    });
                }
            }
        })?;
        Ok(Self { stop: Some(stop), thread: Some(thread) })
    }
}

impl Drop for Housekeeping {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // A panic there was reported when it happened.
            let _ = thread.join();
        }
    }
}
