//! Where worker threads and the main thread meet: before the start, and at the end.
//!
//! Always true: the gate opens only when each worker waits at it or is gone, so a worker that failed (or
//! panicked) never leaves the others waiting; all workers that pass see the same starting time.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

#[derive(Debug)]
struct State {
    waiting: u32,
    gone: u32,
    generation: u64,
    start: Instant,
}

/// Shared by the threads of a run.
#[derive(Debug)]
pub(crate) struct Gate {
    threads: u32,
    state: Mutex<State>,
    changed: Condvar,
}

/// Says that a worker is gone when it is dropped.
pub(crate) struct Presence<'a>(&'a Gate);

impl Drop for Presence<'_> {
    fn drop(&mut self) {
        self.0.lock().gone += 1;
        self.0.changed.notify_all();
    }
}

impl Gate {
    pub(crate) fn new(threads: u32) -> Self {
        let state = State { waiting: 0, gone: 0, generation: 0, start: Instant::now() };
        Self { threads, state: Mutex::new(state), changed: Condvar::new() }
    }

    /// A worker is here; it must keep the presence until it is done.
    pub(crate) fn enter(&self) -> Presence<'_> {
        Presence(self)
    }

    /// A worker waits for the gate to open and gets the starting time.
    pub(crate) fn pass(&self) -> Instant {
        let mut state = self.lock();
        let generation = state.generation;
        state.waiting += 1;
        self.changed.notify_all();
        while state.generation == generation {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.start
    }

    /// The main thread waits for all workers, does `last_thing`, and opens the gate.
    pub(crate) fn open(&self, last_thing: impl FnOnce()) {
        let mut state = self.lock();
        while state.waiting + state.gone < self.threads {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        drop(state);
        last_thing();
        let mut state = self.lock();
        state.waiting = 0;
        state.generation += 1;
        state.start = Instant::now();
        self.changed.notify_all();
    }

    /// The main thread waits until all workers wait or are gone, at most so long; whether they do.
    pub(crate) fn wait_all(&self, timeout: Duration) -> bool {
        let state = self.lock();
        let (state, _) = self
            .changed
            .wait_timeout_while(state, timeout, |state| state.waiting + state.gone < self.threads)
            .unwrap_or_else(PoisonError::into_inner);
        state.waiting + state.gone >= self.threads
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
