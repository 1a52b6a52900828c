//! `kvbench grow`.

use std::io::Write;

use super::arguments::GrowArguments;
use super::session::stop_flag;
use super::{CommandError, Done, Open};
use crate::endurance::growth::{Growth, Stage, grow, sizes};

pub(super) fn execute(
    arguments: &GrowArguments,
    open: Open<'_>,
    output: &mut dyn Write,
) -> Result<Done, CommandError> {
    if arguments.from == 0 || arguments.to < arguments.from {
        let text = format!("--from {} --to {}: want 1 <= from <= to", arguments.from, arguments.to);
        return Err(CommandError::Usage(text));
    }
    let stop = stop_flag()?;
    let connect = open(&arguments.store.options(Some(u64::from(arguments.values.most))))?;
    let plan = Growth {
        threads: arguments.threads,
        sizes: sizes(arguments.from, arguments.to),
        values: arguments.values,
    };
    let is_quiet = arguments.store.quiet;
    let mut tell = |stage: &Stage| {
        if !is_quiet {
            eprintln!("kvbench: {}", row(stage));
        }
    };
    let stages = grow(&*connect, &plan, &stop, &mut tell)?;
    let failed = |error: std::io::Error| CommandError::Failed(format!("cannot write the report: {error}"));
    report(&stages, output).map_err(failed)?;
    if let Some(error) = stages.iter().find_map(|stage| stage.first_error.as_ref()) {
        eprintln!("kvbench: the first insert that failed: {error}");
    }
    Ok(Done::Lasted { errors: stages.iter().map(|stage| stage.errors).sum() })
}

fn rate(rate: Option<f64>) -> String {
    rate.map_or_else(|| "-".to_owned(), |rate| format!("{rate:.0}"))
}

fn longest_ms(stage: &Stage) -> f64 {
    stage.puts.as_ref().map_or(0.0, |puts| puts.maximum_ns as f64 / 1e6)
}

fn row(stage: &Stage) -> String {
    format!(
        "{:>10} keys in {:>8.2} s; puts/s while rebuilding {:>9}, otherwise {:>9}; longest put {:>8.2} ms; {:>6} segments, {:>7.1} index bytes a key, {} rebuilds, {} of them splits",
        stage.keys,
        stage.elapsed.as_secs_f64(),
        rate(stage.rate_with_rebuilds),
        rate(stage.rate_without),
        longest_ms(stage),
        stage.server.segments,
        stage.index_bytes_per_key(),
        stage.server.rebuilds,
        stage.server.splits,
    )
}

fn report(stages: &[Stage], output: &mut dyn Write) -> std::io::Result<()> {
    for stage in stages {
        writeln!(output, "{}", row(stage))?;
    }
    let elapsed: f64 = stages.iter().map(|stage| stage.elapsed.as_secs_f64()).sum();
    let keys = stages.last().map_or(0, |stage| stage.keys);
    let errors: u64 = stages.iter().map(|stage| stage.errors).sum();
    let longest = stages.iter().map(longest_ms).fold(0.0, f64::max);
    writeln!(
        output,
        "grow: keys {keys} errors {errors} seconds {elapsed:.1} longest_put_ms {longest:.2} segments {} index_bytes_per_key {:.1}",
        stages.last().map_or(0, |stage| stage.server.segments),
        stages.last().map_or(0.0, Stage::index_bytes_per_key),
    )?;
    output.flush()
}
