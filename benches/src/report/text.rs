//! A report for people.

use std::fmt::Write;

use super::Report;
use crate::measure::latency::LatencySummary;
use crate::measure::tally::Outcome;

pub(super) fn render(report: &Report) -> String {
    let mut text = String::new();
    write(&mut text, report).expect("a String takes all that is written");
    text
}

fn write(text: &mut String, report: &Report) -> std::fmt::Result {
    let setting = &report.setting;
    writeln!(
        text,
        "kvbench {}  {}  {} over {}",
        setting.phase, setting.input, setting.endpoint, report.fabric.name
    )?;
    writeln!(text, "fabric      {}", report.fabric.description)?;
    let machine = &report.machine;
    writeln!(
        text,
        "machine     {}, {} cores, Linux {}",
        machine.cpu_model, machine.core_count, machine.kernel
    )?;
    writeln!(text, "program     version {}, commit {}", report.version, report.commit)?;
    let load = setting.offered_per_second.map_or_else(
        || "closed loop (each thread goes on when it has an answer)".to_owned(),
        |target| format!("{target:.0} operations/s, timed from the intended start"),
    );
    let seed = setting.seed.map_or_else(String::new, |seed| format!(", seed {seed}"));
    writeln!(text, "load        {} threads, {load}{seed}", setting.threads)?;
    if let (Some(records), Some(bytes)) = (setting.record_count, setting.record_bytes_max) {
        let distribution =
            setting.request_distribution.map_or_else(String::new, |name| format!(", {name} requests"));
        writeln!(text, "data        {records} records of {bytes} bytes{distribution}")?;
    }
    if let Some(keys) = &report.keys {
        let touched =
            keys.touched.map_or_else(|| "unknown how many".to_owned(), |touched| touched.to_string());
        writeln!(text, "keys        {touched} different of numbers {} to {}", keys.first, keys.last)?;
    }
    let ending = if report.interrupted { "  (interrupted)" } else { "" };
    writeln!(text, "time        {:.3} s measured{ending}\n", report.elapsed_seconds)?;

    writeln!(text, "throughput  {:>14} {:>14}", "operations", "per second")?;
    for outcome in Outcome::ALL {
        let rate =
            report.per_second.map_or_else(|| "n/a".to_owned(), |rates| format!("{:.0}", rates.of(outcome)));
        writeln!(text, "  {:<10}{:>14} {rate:>14}", outcome.name(), report.operations.of(outcome))?;
    }
    if report.not_started > 0 {
        writeln!(text, "  {:<10}{:>14}   due, but not begun in time", "late", report.not_started)?;
    }

    writeln!(
        text,
        "\n{:<26}{:>10} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9}",
        "latency in us", "count", "mean", "p50", "p90", "p95", "p99", "p99.9", "p99.99", "max"
    )?;
    if report.kinds.is_empty() {
        writeln!(text, "  n/a")?;
    }
    for kind in &report.kinds {
        for outcome in Outcome::ALL {
            if let Some(summary) = kind.latency.of(outcome) {
                latency(text, &format!("{} {}", kind.kind.name(), outcome.name()), summary)?;
            }
        }
        if let Some(summary) = &kind.service {
            latency(text, &format!("{} from real start", kind.kind.name()), summary)?;
        }
    }

    if !report.costs.is_empty() {
        writeln!(
            text,
            "\n{:<12}{:>12} {:>14} {:>10} {:>16} {:>9} {:>16} {:>16}",
            "cost",
            "operations",
            "round trips/op",
            "verbs/op",
            "silent verbs/op",
            "retries",
            "bytes sent",
            "bytes received"
        )?;
    }
    for cost in &report.costs {
        let average =
            |average: Option<f64>| average.map_or_else(|| "n/a".to_owned(), |value| format!("{value:.3}"));
        writeln!(
            text,
            "  {:<10}{:>12} {:>14} {:>10} {:>16} {:>9} {:>16} {:>16}",
            cost.operation,
            cost.cost.operations,
            average(cost.round_trips_per_operation),
            average(cost.verbs_per_operation),
            average(cost.silent_verbs_per_operation),
            cost.cost.retries,
            cost.cost.sent_bytes,
            cost.cost.received_bytes
        )?;
    }

    match &report.server_cpu {
        None => writeln!(text, "\nserver CPU  n/a")?,
        Some(cpu) => {
            let part = |name, seconds: Option<f64>| {
                seconds.map_or_else(String::new, |seconds| format!(", {:.1} ms {name}", seconds * 1e3))
            };
            let each =
                cpu.us_per_operation.map_or_else(String::new, |each| format!("; {each:.3} us/operation"));
            writeln!(
                text,
                "\nserver CPU  {:.1} ms during the measured phase{}{}{each}",
                cpu.seconds.total * 1e3,
                part("user", cpu.seconds.user),
                part("system", cpu.seconds.system)
            )?;
        }
    }
    if let Some(replay) = &report.replay {
        let ratio =
            replay.hit_ratio.map_or_else(|| "n/a".to_owned(), |ratio| format!("{:.1} %", 100.0 * ratio));
        writeln!(
            text,
            "replay      {} trace operations on {} keys, hit ratio {ratio}, {} writes after misses, {} rows with an \
             expiry (not applied)",
            replay.trace_operations, replay.distinct_keys, replay.fills, replay.rows_with_ttl
        )?;
    }
    if let Some(error) = &report.first_error {
        writeln!(text, "first error {error}")?;
    }
    for note in &report.notes {
        writeln!(text, "note        {note}")?;
    }
    Ok(())
}

fn latency(text: &mut String, name: &str, summary: &LatencySummary) -> std::fmt::Result {
    let us = |nanoseconds: f64| format!("{:.1}", nanoseconds / 1e3);
    let columns = [
        summary.p50_ns,
        summary.p90_ns,
        summary.p95_ns,
        summary.p99_ns,
        summary.p99_9_ns,
        summary.p99_99_ns,
        summary.maximum_ns,
    ];
    write!(text, "  {name:<24}{:>10} {:>9}", summary.count, us(summary.mean_ns))?;
    for column in columns {
        write!(text, " {:>9}", us(column as f64))?;
    }
    if summary.clipped > 0 {
        write!(text, "  ({} clipped)", summary.clipped)?;
    }
    writeln!(text)
}
