//! How far a run has come.
//!
//! Always true: a thread counts in a cache line of its own, so that counting slows nobody down.

use std::io::{IsTerminal, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::measure::tally::Outcome;

/// How often a line is printed where there is no terminal.
const LINE_INTERVAL: Duration = Duration::from_secs(10);

/// Counts of one thread; relaxed, since they are only shown.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Line([AtomicU64; 3]);

/// Counts of all threads.
#[derive(Debug)]
pub struct Progress(Vec<Line>);

/// Sums of the counts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// Successes.
    pub successes: u64,
    /// Misses.
    pub misses: u64,
    /// Errors.
    pub errors: u64,
}

impl Snapshot {
    fn operations(&self) -> u64 {
        self.successes + self.misses + self.errors
    }
}

impl Progress {
    pub(crate) fn new(threads: u32) -> Self {
        Self((0..threads).map(|_| Line::default()).collect())
    }

    pub(crate) fn add(&self, thread: u32, outcome: Outcome) {
        // This thread is the only writer.
        let count = &self.0[thread as usize].0[outcome as usize];
        count.store(count.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    }

    pub(crate) fn reset(&self, thread: u32) {
        self.0[thread as usize].0.iter().for_each(|count| count.store(0, Ordering::Relaxed));
    }

    pub(crate) fn snapshot(&self) -> Snapshot {
        let sum =
            |outcome| self.0.iter().map(|line| line.0[outcome as usize].load(Ordering::Relaxed)).sum::<u64>();
        Snapshot { successes: sum(Outcome::Success), misses: sum(Outcome::Miss), errors: sum(Outcome::Error) }
    }
}

/// Shows progress to somebody.
pub trait Reporter {
    /// A phase begins.
    fn phase(&mut self, name: &'static str);
    /// This much is done.
    fn show(&mut self, elapsed: Duration, snapshot: &Snapshot);
    /// All is done.
    fn finish(&mut self, elapsed: Duration, snapshot: &Snapshot);
}

/// Shows nothing.
#[derive(Debug, Default)]
pub struct Silent;

impl Reporter for Silent {
    fn phase(&mut self, _name: &'static str) {}
    fn show(&mut self, _elapsed: Duration, _snapshot: &Snapshot) {}
    fn finish(&mut self, _elapsed: Duration, _snapshot: &Snapshot) {}
}

/// Shows one changing line on a terminal, or a line now and then elsewhere. Writes to standard error, so that
/// the report on standard output stays clean.
#[derive(Debug)]
pub struct StandardError {
    is_terminal: bool,
    phase: &'static str,
    operations: Option<u64>,
    duration: Option<Duration>,
    last_shown: Duration,
    last_operations: u64,
    next_line: Duration,
}

impl StandardError {
    /// For a run of so many operations or so long, if that is known.
    pub fn new(operations: Option<u64>, duration: Option<Duration>) -> Self {
        Self {
            is_terminal: std::io::stderr().is_terminal(),
            phase: "connecting",
            operations,
            duration,
            last_shown: Duration::ZERO,
            last_operations: 0,
            next_line: LINE_INTERVAL,
        }
    }

    fn line(&self, elapsed: Duration, snapshot: &Snapshot) -> String {
        let interval = elapsed.saturating_sub(self.last_shown).as_secs_f64();
        let rate = if interval > 0.0 {
            snapshot.operations().saturating_sub(self.last_operations) as f64 / interval
        } else {
            0.0
        };
        let by_count = self.operations.map(|all| snapshot.operations() as f64 / all.max(1) as f64);
        let by_time = self.duration.map(|all| elapsed.as_secs_f64() / all.as_secs_f64().max(1e-9));
        let percent = match (by_count, by_time) {
            (None, None) => String::new(),
            (one, two) => {
                format!(" {:5.1} %", 100.0 * one.unwrap_or(0.0).max(two.unwrap_or(0.0)).min(1.0))
            }
        };
        format!(
            "{} {:6.1} s{percent} {:>12} operations {rate:>10.0}/s, {} misses, {} errors",
            self.phase,
            elapsed.as_secs_f64(),
            snapshot.operations(),
            snapshot.misses,
            snapshot.errors
        )
    }
}

impl Reporter for StandardError {
    fn phase(&mut self, name: &'static str) {
        self.phase = name;
        if self.is_terminal {
            let mut stream = std::io::stderr().lock();
            let _ = write!(stream, "\r\x1b[2K{name}");
            let _ = stream.flush();
        }
    }

    fn show(&mut self, elapsed: Duration, snapshot: &Snapshot) {
        let mut stream = std::io::stderr().lock();
        // Nobody is there to be told when standard error is closed.
        if self.is_terminal {
            let _ = write!(stream, "\r\x1b[2K{}", self.line(elapsed, snapshot));
            let _ = stream.flush();
        } else if elapsed >= self.next_line {
            let _ = writeln!(stream, "{}", self.line(elapsed, snapshot));
            self.next_line = elapsed + LINE_INTERVAL;
        } else {
            return;
        }
        self.last_shown = elapsed;
        self.last_operations = snapshot.operations();
    }

    fn finish(&mut self, elapsed: Duration, snapshot: &Snapshot) {
        self.last_shown = Duration::ZERO;
        self.last_operations = 0;
        self.phase = "done";
        let line = self.line(elapsed, snapshot);
        let mut stream = std::io::stderr().lock();
        let _ = writeln!(stream, "{}{line}", if self.is_terminal { "\r\x1b[2K" } else { "" });
    }
}
