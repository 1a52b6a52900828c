//! What is done by the clock: the tick, leases, and those who couldn't be fenced.
//!
//! Always true: one thread advances the tick, and nothing that may block runs on it, so the tick is late by its
//! period at the most. It wakes ten times a second and else costs nothing.

use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::task;

use crate::node::Node;

/// Between two ticks. Expiry is as exact as this.
const TICK_PERIOD: Duration = Duration::from_millis(100);
/// Ticks between two attempts at sessions that couldn't be fenced.
const TICKS_PER_RETRY: u32 = 10;

/// The housekeeping thread; it ends when this is dropped.
#[derive(Debug)]
pub struct Housekeeping {
    stop: Arc<Stop>,
    thread: Option<JoinHandle<()>>,
}

/// Tells the thread to end. A condition variable, because a channel spins before it sleeps, which is most of what an
/// idle server would cost.
#[derive(Debug, Default)]
struct Stop {
    stopped: Mutex<bool>,
    changed: Condvar,
}

impl Stop {
    /// Sleeps for `period`; returns whether to go on.
    fn sleep(&self, period: Duration) -> bool {
        let stopped = self.stopped.lock().unwrap_or_else(PoisonError::into_inner);
        let slept = self.changed.wait_timeout_while(stopped, period, |stopped| !*stopped);
        !*slept.unwrap_or_else(PoisonError::into_inner).0
    }

    fn now(&self) {
        *self.stopped.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.changed.notify_all();
    }
}

/// Work that may block.
///
/// Always true: a piece of work begins only when the one before has ended; one that panicked has.
#[derive(Debug, Default)]
struct OneAtATime {
    last: Option<task::JoinHandle<()>>,
}

impl OneAtATime {
    /// Runs `work` on `runtime`'s threads for what may block, unless earlier work is still under way; says whether.
    fn try_start(&mut self, runtime: &Handle, work: impl FnOnce() + Send + 'static) -> bool {
        let is_free = self.last.as_ref().is_none_or(task::JoinHandle::is_finished);
        if is_free {
            self.last = Some(runtime.spawn_blocking(work));
        }
        is_free
    }
}

impl Housekeeping {
    /// Starts it for a node that serves. What may block runs on `runtime`'s threads for that.
    ///
    /// # Errors
    /// If there can be no more threads.
    pub fn start(node: Arc<Node>, runtime: Handle) -> std::io::Result<Self> {
        let stop = Arc::new(Stop::default());
        let told = Arc::clone(&stop);
        let mut ending = OneAtATime::default();
        let mut ticks = 0_u32;
        let thread = std::thread::Builder::new().name("housekeeping".into()).spawn(move || {
            while told.sleep(TICK_PERIOD) {
                let Some(serving) = node.serving() else { continue };
                serving.region.advance_tick();
                ticks = ticks.wrapping_add(1);
                let (some_expired, some_linger) = {
                    let sessions = serving.sessions();
                    (sessions.some_expired(), ticks.is_multiple_of(TICKS_PER_RETRY) && sessions.some_linger())
                };
                if some_expired || some_linger {
                    let node = Arc::clone(&node);
                    ending.try_start(&runtime, move || {
                        node.end_expired();
                        if some_linger {
                            node.retry_lingering();
                        }
                    });
                }
            }
        })?;
        Ok(Self { stop, thread: Some(thread) })
    }
}

impl Drop for Housekeeping {
    fn drop(&mut self) {
        self.stop.now();
        if let Some(thread) = self.thread.take() {
            // A panic there was reported when it happened.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;
    use std::time::Instant;

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(20);

    /// Fencing one session takes long: no second attempt begins beside it. Another attempt panics: leases that run out
    /// later are ended all the same.
    #[test]
    fn work_that_panics_does_not_keep_later_work_from_beginning() {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).build().unwrap();
        let mut ending = OneAtATime::default();
        let mut start = |work: Box<dyn FnOnce() + Send>| ending.try_start(runtime.handle(), work);
        let (let_go, held) = channel::<()>();
        let (tell, told) = channel();
        assert!(start(Box::new(move || {
            let _ = held.recv();
            panic!("on purpose, by a test");
        })));
        assert!(!start(Box::new(|| unreachable!("the first one is under way"))));
        let_go.send(()).unwrap();
        let deadline = Instant::now() + PATIENCE;
        loop {
            let tell = tell.clone();
            if start(Box::new(move || tell.send(()).unwrap())) {
                break;
            }
            assert!(Instant::now() < deadline, "nothing begins any more");
            std::thread::yield_now();
        }
        assert_eq!(told.recv_timeout(PATIENCE), Ok(()));
    }
}
