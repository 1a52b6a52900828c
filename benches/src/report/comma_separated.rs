//! A report with one line a kind of operation and outcome, for spreadsheets. Absent figures are empty columns.

use std::fmt::Write;

use super::Report;
use crate::measure::tally::Outcome;

pub(super) fn render(report: &Report) -> String {
    let mut text = String::from(
        "phase,fabric,threads,offered_per_second,elapsed_seconds,kind,outcome,count,per_second,min_ns,mean_ns,p50_ns,\
         p90_ns,p95_ns,p99_ns,p99_9_ns,p99_99_ns,max_ns,clipped,commit\n",
    );
    for kind in &report.kinds {
        for outcome in Outcome::ALL {
            let count = *kind.operations.of(outcome);
            let Some(latency) = kind.latency.of(outcome) else { continue };
            let offered =
                report.setting.offered_per_second.map_or_else(String::new, |target| target.to_string());
            writeln!(
                text,
                "{},{},{},{offered},{},{},{},{count},{},{},{},{},{},{},{},{},{},{},{},{}",
                report.setting.phase,
                report.fabric.name,
                report.setting.threads,
                report.elapsed_seconds,
                kind.kind.name(),
                outcome.name(),
                count as f64 / report.elapsed_seconds.max(1e-9),
                latency.minimum_ns,
                latency.mean_ns,
                latency.p50_ns,
                latency.p90_ns,
                latency.p95_ns,
                latency.p99_ns,
                latency.p99_9_ns,
                latency.p99_99_ns,
                latency.maximum_ns,
                latency.clipped,
                report.commit
            )
            .expect("a String takes all that is written");
        }
    }
    text
}
