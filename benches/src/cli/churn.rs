//! `kvbench churn`.

use std::io::Write;

use super::arguments::ChurnArguments;
use super::session::stop_flag;
use super::{CommandError, Done, Open};
use crate::endurance::churn::{Churn, Churned, PARTS, Part, churn};

const MIB: f64 = (1 << 20) as f64;

pub(super) fn execute(
    arguments: &ChurnArguments,
    open: Open<'_>,
    output: &mut dyn Write,
) -> Result<Done, CommandError> {
    if arguments.ops.is_none() && arguments.duration.is_none() {
        return Err(CommandError::usage("nothing says when to end: give --ops or --duration"));
    }
    if !(arguments.fill > 0.0 && arguments.fill <= 100.0) {
        return Err(CommandError::Usage(format!("--fill {} is not above 0 and up to 100", arguments.fill)));
    }
    let stop = stop_flag()?;
    let connect = open(&arguments.store.options(Some(u64::from(arguments.values.most))))?;
    let plan = Churn {
        threads: arguments.threads,
        fill: arguments.fill / 100.0,
        operations: arguments.ops,
        duration: arguments.duration,
        sizes: arguments.values,
        seed: arguments.seed,
    };
    let is_quiet = arguments.store.quiet;
    let mut tell = |part: usize, done: &Part| {
        if !is_quiet {
            eprintln!("kvbench: part {} of {PARTS}: {}", part + 1, row(done));
        }
    };
    let churned = churn(&*connect, &plan, &stop, &mut tell)?;
    let failed = |error: std::io::Error| CommandError::Failed(format!("cannot write the report: {error}"));
    report(&churned, output).map_err(failed)?;
    if let Some(error) = &churned.first_error {
        eprintln!("kvbench: the first operation that failed: {error}");
    }
    Ok(Done::Lasted { errors: churned.errors + churned.wrong })
}

fn row(part: &Part) -> String {
    let rate = part.operations as f64 / part.elapsed.as_secs_f64().max(1e-9);
    let us = |ns: Option<u64>| ns.map_or_else(|| "-".to_owned(), |ns| format!("{:.1}", ns as f64 / 1000.0));
    let puts = part.puts.as_ref();
    format!(
        "{} ops, {rate:.0}/s, put p50 {} p99 {} max {} us; server: {:.1} MiB free of {:.1}, {:.1} MiB resident, {} segments, {} rebuilds",
        part.operations,
        us(puts.map(|puts| puts.p50_ns)),
        us(puts.map(|puts| puts.p99_ns)),
        us(puts.map(|puts| puts.maximum_ns)),
        part.server.free_bytes as f64 / MIB,
        part.server.pool_bytes as f64 / MIB,
        part.server.resident_bytes as f64 / MIB,
        part.server.segments,
        part.server.rebuilds,
    )
}

fn report(churned: &Churned, output: &mut dyn Write) -> std::io::Result<()> {
    let filled = &churned.filled;
    writeln!(
        output,
        "filled with {} keys in {:.1} s: {:.1} MiB free of {:.1}, {} segments",
        churned.keys,
        churned.fill_elapsed.as_secs_f64(),
        filled.free_bytes as f64 / MIB,
        filled.pool_bytes as f64 / MIB,
        filled.segments,
    )?;
    for (number, part) in churned.parts.iter().enumerate() {
        writeln!(output, "part {:2}: {}", number + 1, row(part))?;
    }
    let elapsed: f64 = churned.parts.iter().map(|part| part.elapsed.as_secs_f64()).sum();
    let end = |part: Option<&Part>| {
        let p99 = part.and_then(|part| part.puts.as_ref()).map_or(0.0, |puts| puts.p99_ns as f64 / 1000.0);
        let server = part.map(|part| part.server).unwrap_or_default();
        let used = server.pool_bytes.saturating_sub(server.free_bytes) as f64 / MIB;
        (p99, server.resident_bytes as f64 / MIB, used)
    };
    let (first, last) = (end(churned.parts.first()), end(churned.parts.last()));
    writeln!(
        output,
        "churn: ops {} rate {:.0} errors {} checked {} wrong {} p99_first_us {:.1} p99_last_us {:.1} p99_ratio {:.2} rss_first_mib {:.1} rss_last_mib {:.1} used_first_mib {:.1} used_last_mib {:.1}",
        churned.operations(),
        churned.operations() as f64 / elapsed.max(1e-9),
        churned.errors,
        churned.checked,
        churned.wrong,
        first.0,
        last.0,
        churned.latency_ratio().unwrap_or(0.0),
        first.1,
        last.1,
        first.2,
        last.2,
    )?;
    output.flush()
}
