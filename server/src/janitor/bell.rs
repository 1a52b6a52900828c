//! What wakes the janitor.
//!
//! Always true: whoever rings after a change is heard after it: a ring while the janitor works makes it look once more.
//! Many rings are one. Nothing is spent while nobody rings.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// The bell of one janitor.
#[derive(Debug, Default)]
pub struct Bell {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    is_rung: bool,
    is_over: bool,
}

impl Bell {
    /// There may be something to do.
    pub fn ring(&self) {
        self.locked().is_rung = true;
        self.changed.notify_one();
    }

    /// There will be nothing to do any more.
    pub fn end(&self) {
        self.locked().is_over = true;
        self.changed.notify_all();
    }

    /// Whether [`Bell::end`] was called: long work ends early then.
    pub fn is_over(&self) -> bool {
        self.locked().is_over
    }

    /// Waits for a ring, or for `deadline` if there is one; returns whether to go on.
    pub fn wait(&self, deadline: Option<Instant>) -> bool {
        let mut state = self.locked();
        while !state.is_rung && !state.is_over {
            state = match deadline.map(|deadline| deadline.saturating_duration_since(Instant::now())) {
                Some(left) if left.is_zero() => break,
                Some(left) => {
                    self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0
                }
                None => self.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
            };
        }
        state.is_rung = false;
        !state.is_over
    }

    fn locked(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_ring_before_the_wait_is_heard_and_is_heard_once() {
        let bell = Bell::default();
        bell.ring();
        bell.ring();
        assert!(bell.wait(None));
        let deadline = Instant::now() + Duration::from_millis(5);
        assert!(bell.wait(Some(deadline)));
        assert!(Instant::now() >= deadline, "the second ring was part of the first");
        bell.end();
        assert!(!bell.wait(None));
    }

    #[test]
    fn a_ring_wakes() {
        let bell = Bell::default();
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| (bell.wait(None), bell.wait(None)));
            bell.ring();
            while bell.locked().is_rung {
                std::thread::yield_now();
            }
            bell.end();
            assert_eq!(waiting.join().unwrap(), (true, false));
        });
    }
}
