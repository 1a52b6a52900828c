//! When operations are due: an open loop.
//!
//! Always true: operation `i` of a run is due at `start + i / target`, whatever became of those before it. The
//! threads take turns, so together they keep to the rate. A store that stalls makes operations late, and they
//! are timed from when they were due (otherwise a stall of one second would count as one slow operation instead
//! of all those that should have run in that second).

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Sleeping ends this much early; the rest is spent yielding, since sleep overshoots by about as much.
const SLEEP_MARGIN: Duration = Duration::from_micros(100);

/// The longest sleep between two looks at the stop flag.
const SLEEP_MAX: Duration = Duration::from_millis(50);

/// One thread's schedule.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Pace {
    start: Instant,
    target: f64,
    threads: u32,
    index: u32,
}

impl Pace {
    pub(crate) fn new(start: Instant, target: f64, threads: u32, index: u32) -> Self {
        Self { start, target, threads, index }
    }

    /// When this thread's operation number `number` is due.
    pub(crate) fn due(&self, number: u64) -> Instant {
        let position = number as f64 * f64::from(self.threads) + f64::from(self.index);
        // Beyond a century it does not matter when exactly.
        let seconds = (position / self.target).min(3e9);
        self.start + Duration::from_secs_f64(seconds)
    }

    /// How many of this thread's operations are due before `end`.
    pub(crate) fn due_before(&self, end: Instant) -> u64 {
        let positions = end.saturating_duration_since(self.start).as_secs_f64() * self.target;
        ((positions - f64::from(self.index)) / f64::from(self.threads)).ceil().max(0.0) as u64
    }
}

/// Waits until `due` or until `stop` is set.
pub(crate) fn wait_until(due: Instant, stop: &AtomicBool) {
    loop {
        let remaining = due.saturating_duration_since(Instant::now());
        if remaining.is_zero() || stop.load(Ordering::Relaxed) {
            return;
        }
        if remaining > SLEEP_MARGIN {
            std::thread::sleep((remaining - SLEEP_MARGIN).min(SLEEP_MAX));
        } else {
            std::thread::yield_now();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_take_turns() {
        let start = Instant::now();
        let mut due: Vec<_> = (0..3)
            .flat_map(|index| (0..10).map(move |number| Pace::new(start, 1000.0, 3, index).due(number)))
            .collect();
        due.sort();
        for (position, due) in due.into_iter().enumerate() {
            assert!(
                (due - start).abs_diff(Duration::from_millis(position as u64)) < Duration::from_micros(1)
            );
        }
        let end = start + Duration::from_millis(10);
        let before: u64 = (0..3).map(|index| Pace::new(start, 1000.0, 3, index).due_before(end)).sum();
        assert_eq!(before, 10);
        Pace::new(start, 1e-12, 1, 0).due(u64::MAX);
    }
}
