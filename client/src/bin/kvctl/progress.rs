//! How far a long command is, for a person who waits.
//!
//! Always true: only a terminal is told, on standard error, some times a second; nothing of it is left at the end.

use std::io::{self, IsTerminal, Write};
use std::time::{Duration, Instant};

use sidestep_client::fsck::Progress;

use crate::arguments::OutputFormat;

/// Between two lines: often enough to be seen moving.
const PERIOD: Duration = Duration::from_millis(200);

/// The line that tells how far it is.
#[derive(Debug)]
pub(crate) struct ProgressLine {
    is_shown: bool,
    last: Option<Instant>,
}

impl ProgressLine {
    /// Shown if a person can see it.
    pub(crate) fn new(output: OutputFormat) -> Self {
        Self { is_shown: output == OutputFormat::Text && io::stderr().is_terminal(), last: None }
    }

    /// Tells, if it is time to. Where nobody looks any more, nobody is told.
    pub(crate) fn tell(&mut self, progress: Progress) {
        if !self.is_shown || self.last.is_some_and(|last| last.elapsed() < PERIOD) {
            return;
        }
        self.last = Some(Instant::now());
        let percent = progress.done.saturating_mul(100).checked_div(progress.all).unwrap_or(100);
        let _ = write!(io::stderr(), "\r\x1b[K{}: {} %", progress.step, percent.min(100));
    }

    /// Takes the line away.
    pub(crate) fn end(&self) {
        if self.last.is_some() {
            let _ = write!(io::stderr(), "\r\x1b[K");
        }
    }
}
