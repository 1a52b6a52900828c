//! What a run has shown, in one structure that all formats are written from.
//!
//! Always true: what was not measured is absent (`null`, "n/a"), never 0; successes, misses and errors are apart.

pub mod admin;
mod comma_separated;
pub mod machine;
mod text;
mod ycsb;

use std::time::Duration;

use serde::Serialize;

use crate::measure::latency::{Latency, LatencySummary};
use crate::measure::tally::{Outcome, Tally};
use crate::runner::Measured;
use crate::store::{Cost, Fabric};
use crate::workload::operation::OperationKind;
use admin::CpuSeconds;
use machine::Machine;

/// How a report is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum ReportFormat {
    /// For people.
    Text,
    /// As YCSB writes it, for its tools.
    Ycsb,
    /// Everything, for programs.
    Json,
    /// One line a kind of operation and outcome.
    Csv,
}

/// What was run, and where.
#[derive(Debug, Clone, Serialize)]
pub struct Setting {
    /// "load", "run" or "replay".
    pub phase: &'static str,
    /// Workload files or trace.
    pub input: String,
    /// Where the store is.
    pub endpoint: String,
    /// Worker threads.
    pub threads: u32,
    /// Seed of the random streams; none in a replay.
    pub seed: Option<u64>,
    /// Operations a second that were offered; none: each thread goes on as soon as it has an answer.
    pub offered_per_second: Option<f64>,
    /// Seconds of warming up.
    pub warmup_seconds: f64,
    /// Records, if there is a data set.
    pub record_count: Option<u64>,
    /// Bytes of the largest record.
    pub record_bytes_max: Option<u64>,
    /// How requests spread over keys.
    pub request_distribution: Option<&'static str>,
}

/// Counts or rates by outcome.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct ByOutcome<Number> {
    /// Did what was asked.
    pub successes: Number,
    /// Found no value.
    pub misses: Number,
    /// Failed.
    pub errors: Number,
}

/// One kind of operation.
#[derive(Debug, Clone, Serialize)]
pub struct KindReport {
    /// Which.
    pub kind: OperationKind,
    /// How many.
    pub operations: ByOutcome<u64>,
    /// Latencies; with an offered load they count from the intended start.
    pub latency: ByOutcome<Option<LatencySummary>>,
    /// Latencies of successes and misses from the real start; only with an offered load.
    pub service: Option<LatencySummary>,
}

/// What the store's operations have cost.
#[derive(Debug, Clone, Serialize)]
pub struct CostReport {
    /// "get", "put" or "delete".
    pub operation: &'static str,
    /// The sums.
    #[serde(flatten)]
    pub cost: Cost,
    /// Their averages.
    pub round_trips_per_operation: Option<f64>,
    /// Their averages, without silent ones.
    pub verbs_per_operation: Option<f64>,
    /// Their averages.
    pub silent_verbs_per_operation: Option<f64>,
}

/// CPU time of the server's process during the measured phase.
#[derive(Debug, Clone, Serialize)]
pub struct ServerCpu {
    /// Seconds.
    #[serde(flatten)]
    pub seconds: CpuSeconds,
    /// Microseconds an operation.
    pub us_per_operation: Option<f64>,
}

/// Which keys a run asked for.
#[derive(Debug, Clone, Serialize)]
pub struct KeyReport {
    /// The first key number that there was to ask for.
    pub first: u64,
    /// The last one.
    pub last: u64,
    /// How many different ones were asked for; unknown for very large data sets.
    pub touched: Option<u64>,
}

/// What is special about a replay.
#[derive(Debug, Clone, Serialize)]
pub struct ReplayReport {
    /// Operations of the trace that were done.
    pub trace_operations: u64,
    /// Writes that misses caused.
    pub fills: u64,
    /// Reads that found a value, as a fraction.
    pub hit_ratio: Option<f64>,
    /// Different keys in the trace.
    pub distinct_keys: u64,
    /// Rows with an expiry, which was not applied.
    pub rows_with_ttl: u64,
}

/// Everything.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// This program's version.
    pub version: &'static str,
    /// The commit that it was built from.
    pub commit: &'static str,
    /// Where it ran.
    pub machine: Machine,
    /// The fabric between client and server.
    pub fabric: Fabric,
    /// What was run.
    #[serde(flatten)]
    pub setting: Setting,
    /// Whether it was ended early.
    pub interrupted: bool,
    /// Length of the measured phase.
    pub elapsed_seconds: f64,
    /// How many operations.
    pub operations: ByOutcome<u64>,
    /// Operations that were due within the time but had not begun at its end.
    pub not_started: u64,
    /// How many a second; absent if nothing was done.
    pub per_second: Option<ByOutcome<f64>>,
    /// By kind.
    pub kinds: Vec<KindReport>,
    /// By operation of the store.
    pub costs: Vec<CostReport>,
    /// The server's CPU time, if it could be asked.
    pub server_cpu: Option<ServerCpu>,
    /// Keys, in a run.
    pub keys: Option<KeyReport>,
    /// The trace, in a replay.
    pub replay: Option<ReplayReport>,
    /// The first error's text.
    pub first_error: Option<String>,
    /// What else the reader should know.
    pub notes: Vec<String>,
}

impl Report {
    /// From what was measured; the special parts are still missing.
    pub fn new(
        setting: Setting,
        measured: &Measured,
        server_cpu: Option<CpuSeconds>,
        notes: Vec<String>,
    ) -> Self {
        let tally = &measured.tally;
        let operations = by_outcome(|outcome| tally.total(outcome));
        let all = operations.successes + operations.misses + operations.errors;
        let elapsed_seconds = measured.elapsed.as_secs_f64();
        let per_second = (all > 0 && measured.elapsed > Duration::ZERO)
            .then(|| by_outcome(|outcome| tally.total(outcome) as f64 / elapsed_seconds));
        let costs = [
            ("get", measured.counters.get),
            ("put", measured.counters.put),
            ("delete", measured.counters.delete),
        ];
        Self {
            version: env!("CARGO_PKG_VERSION"),
            commit: env!("SIDESTEP_COMMIT"),
            machine: Machine::detect(),
            fabric: measured.fabric.clone(),
            setting,
            interrupted: measured.interrupted,
            elapsed_seconds,
            operations,
            not_started: tally.not_started,
            per_second,
            kinds: OperationKind::ALL.into_iter().filter_map(|kind| KindReport::new(kind, tally)).collect(),
            costs: costs.into_iter().filter_map(|(name, cost)| CostReport::new(name, cost)).collect(),
            server_cpu: server_cpu.map(|seconds| ServerCpu {
                seconds,
                us_per_operation: (all > 0).then(|| seconds.total * 1e6 / all as f64),
            }),
            keys: None,
            replay: None,
            first_error: tally.first_error.clone(),
            notes,
        }
    }

    /// All operations.
    pub fn operation_count(&self) -> u64 {
        self.operations.successes + self.operations.misses + self.operations.errors
    }

    /// In a format.
    pub fn render(&self, format: ReportFormat) -> String {
        match format {
            ReportFormat::Text => text::render(self),
            ReportFormat::Ycsb => ycsb::render(self),
            ReportFormat::Csv => comma_separated::render(self),
            ReportFormat::Json => {
                let mut json = serde_json::to_string_pretty(self).expect("numbers and texts are JSON");
                json.push('\n');
                json
            }
        }
    }
}

impl KindReport {
    fn new(kind: OperationKind, tally: &Tally) -> Option<Self> {
        if tally.total_of(kind) == 0 {
            return None;
        }
        let summary =
            |outcome| tally.cell(kind, outcome).latency.as_ref().and_then(|latency| latency.summary());
        let mut service: Option<Latency> = None;
        for outcome in [Outcome::Success, Outcome::Miss] {
            if let Some(part) = &tally.cell(kind, outcome).service {
                service.get_or_insert_default().merge(part);
            }
        }
        Some(Self {
            kind,
            operations: by_outcome(|outcome| tally.cell(kind, outcome).count),
            latency: by_outcome(summary),
            service: service.and_then(|latency| latency.summary()),
        })
    }
}

impl CostReport {
    fn new(operation: &'static str, cost: Cost) -> Option<Self> {
        if cost == Cost::default() {
            return None;
        }
        let average = |sum: u64| (cost.operations > 0).then(|| sum as f64 / cost.operations as f64);
        Some(Self {
            operation,
            cost,
            round_trips_per_operation: average(cost.round_trips),
            verbs_per_operation: average(cost.verbs),
            silent_verbs_per_operation: average(cost.silent_verbs),
        })
    }
}

impl<Number> ByOutcome<Number> {
    /// The part of one outcome.
    pub fn of(&self, outcome: Outcome) -> &Number {
        match outcome {
            Outcome::Success => &self.successes,
            Outcome::Miss => &self.misses,
            Outcome::Error => &self.errors,
        }
    }
}

fn by_outcome<Number>(mut of: impl FnMut(Outcome) -> Number) -> ByOutcome<Number> {
    ByOutcome { successes: of(Outcome::Success), misses: of(Outcome::Miss), errors: of(Outcome::Error) }
}

#[cfg(test)]
mod tests;
