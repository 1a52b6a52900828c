//! What a worker thread has done: counts and latencies by kind of operation and by outcome.
//!
//! Always true: each finished operation is in exactly one count: a success, a miss or an error. A histogram
//! exists only where something was recorded, so that many threads cost little memory.

use std::time::Duration;

use super::latency::Latency;
use crate::workload::operation::OperationKind;

/// How an operation ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// It did what was asked.
    Success,
    /// It found no value.
    Miss,
    /// It failed, or found a wrong value.
    Error,
}

impl Outcome {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Success, Self::Miss, Self::Error];

    /// The name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Success => "success",
            Self::Miss => "miss",
            Self::Error => "error",
        }
    }
}

/// Latencies of one kind and outcome.
#[derive(Debug, Default)]
pub struct Cell {
    /// From the intended start (or the start, if nothing was scheduled) to the end.
    pub latency: Option<Box<Latency>>,
    /// From the real start to the end; only with a schedule.
    pub service: Option<Box<Latency>>,
    /// How many.
    pub count: u64,
}

/// All of them.
#[derive(Debug, Default)]
pub struct Tally {
    cells: [[Cell; 3]; 5],
    /// Operations that were due before the end but had not begun then.
    pub not_started: u64,
    /// The first error's text.
    pub first_error: Option<String>,
}

impl Tally {
    /// Notes a finished operation.
    pub fn record(
        &mut self,
        kind: OperationKind,
        outcome: Outcome,
        latency: Duration,
        service: Option<Duration>,
    ) {
        let cell = &mut self.cells[kind as usize][outcome as usize];
        cell.count += 1;
        cell.latency.get_or_insert_default().record(nanoseconds(latency));
        if let Some(service) = service {
            cell.service.get_or_insert_default().record(nanoseconds(service));
        }
    }

    /// Adds another thread's.
    pub fn merge(&mut self, other: Self) {
        let both = self.cells.iter_mut().flatten().zip(other.cells.into_iter().flatten());
        for (mine, theirs) in both {
            mine.count += theirs.count;
            merge(&mut mine.latency, theirs.latency);
            merge(&mut mine.service, theirs.service);
        }
        self.not_started += other.not_started;
        self.first_error = self.first_error.take().or(other.first_error);
    }

    /// One kind and outcome.
    pub fn cell(&self, kind: OperationKind, outcome: Outcome) -> &Cell {
        &self.cells[kind as usize][outcome as usize]
    }

    /// How many operations ended so, of all kinds.
    pub fn total(&self, outcome: Outcome) -> u64 {
        OperationKind::ALL.iter().map(|kind| self.cell(*kind, outcome).count).sum()
    }

    /// How many operations of a kind there were.
    pub fn total_of(&self, kind: OperationKind) -> u64 {
        Outcome::ALL.iter().map(|outcome| self.cell(kind, *outcome).count).sum()
    }
}

fn merge(mine: &mut Option<Box<Latency>>, theirs: Option<Box<Latency>>) {
    match (mine.as_mut(), theirs) {
        (Some(mine), Some(theirs)) => mine.merge(&theirs),
        (None, theirs) => *mine = theirs,
        (_, None) => {}
    }
}

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
