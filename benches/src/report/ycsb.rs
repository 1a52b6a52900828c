//! A report as YCSB's text exporter writes it: `[SECTION], Name, value`, latencies in microseconds.
//!
//! Where we differ: operations that found nothing are in `Return=NOT_FOUND` and in a section of their own
//! (`[READ-MISSED]`), failed ones in `[READ-FAILED]`.

use std::fmt::Write;

use super::Report;
use crate::measure::tally::Outcome;

pub(super) fn render(report: &Report) -> String {
    let mut text = String::new();
    write(&mut text, report).expect("a String takes all that is written");
    text
}

fn write(text: &mut String, report: &Report) -> std::fmt::Result {
    writeln!(text, "[OVERALL], RunTime(ms), {:.0}", report.elapsed_seconds * 1e3)?;
    let rate = report.per_second.map_or(0.0, |rates| rates.successes + rates.misses);
    writeln!(text, "[OVERALL], Throughput(ops/sec), {rate}")?;
    if let Some(cpu) = &report.server_cpu {
        writeln!(text, "[SERVER], CpuTime(ms), {:.3}", cpu.seconds.total * 1e3)?;
    }
    for cost in &report.costs {
        let section = cost.operation.to_uppercase();
        for (name, average) in [
            ("RoundTripsPerOperation", cost.round_trips_per_operation),
            ("VerbsPerOperation", cost.verbs_per_operation),
        ] {
            if let Some(average) = average {
                writeln!(text, "[{section}], {name}, {average}")?;
            }
        }
    }
    for kind in &report.kinds {
        for outcome in Outcome::ALL {
            let suffix = match outcome {
                Outcome::Success => "",
                Outcome::Miss => "-MISSED",
                Outcome::Error => "-FAILED",
            };
            let section = format!("{}{suffix}", kind.kind.name());
            if let Some(latency) = kind.latency.of(outcome) {
                let us = |nanoseconds: u64| nanoseconds as f64 / 1e3;
                writeln!(text, "[{section}], Operations, {}", latency.count)?;
                writeln!(text, "[{section}], AverageLatency(us), {}", latency.mean_ns / 1e3)?;
                writeln!(text, "[{section}], MinLatency(us), {}", us(latency.minimum_ns))?;
                writeln!(text, "[{section}], MaxLatency(us), {}", us(latency.maximum_ns))?;
                writeln!(text, "[{section}], 50thPercentileLatency(us), {}", us(latency.p50_ns))?;
                writeln!(text, "[{section}], 95thPercentileLatency(us), {}", us(latency.p95_ns))?;
                writeln!(text, "[{section}], 99thPercentileLatency(us), {}", us(latency.p99_ns))?;
                writeln!(text, "[{section}], 99.9PercentileLatency(us), {}", us(latency.p99_9_ns))?;
                writeln!(text, "[{section}], 99.99PercentileLatency(us), {}", us(latency.p99_99_ns))?;
            }
        }
        for (outcome, name) in
            [(Outcome::Success, "OK"), (Outcome::Miss, "NOT_FOUND"), (Outcome::Error, "ERROR")]
        {
            let count = *kind.operations.of(outcome);
            if count > 0 {
                writeln!(text, "[{}], Return={name}, {count}", kind.kind.name())?;
            }
        }
    }
    Ok(())
}
