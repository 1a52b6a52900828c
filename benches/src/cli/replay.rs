//! `kvbench replay`.

use super::arguments::ReplayArguments;
use super::session::{ServerCpuWatch, publish, reporter, stop_flag};
use super::{CommandError, Open};
use crate::measure::tally::Outcome;
use crate::replay::dispatch::queues;
use crate::replay::trace::{Limits, TraceFormat, open as open_trace};
use crate::replay::worker::ReplayWorker;
use crate::report::{ReplayReport, Report, Setting};
use crate::runner::{Schedule, Worker, run};
use crate::workload::operation::OperationKind;

pub(super) fn execute(
    arguments: &ReplayArguments,
    open: Open<'_>,
    output: &mut dyn std::io::Write,
) -> Result<Report, CommandError> {
    let store = &arguments.store;
    if arguments.block_size > store.max_value {
        let (block, limit) = (arguments.block_size, store.max_value);
        return Err(CommandError::Usage(format!(
            "--block-size {block} is more than the {limit} bytes that a value may have"
        )));
    }
    // The sizes of the other formats are known only row by row.
    let value_bytes = (arguments.format == TraceFormat::Mooncake).then(|| u64::from(arguments.block_size));
    let limits = Limits { value_bytes_max: store.max_value };
    let requests = open_trace(arguments.format, &arguments.file, arguments.block_size, limits)
        .map_err(CommandError::usage)?;

    let stop = stop_flag()?;
    let connect = open(&store.options(value_bytes))?;
    let (dispatcher, receivers) = queues(arguments.threads);
    let workers = receivers
        .into_iter()
        .map(|receiver| Box::new(ReplayWorker::new(receiver, store.verify)) as Box<dyn Worker>)
        .collect();
    let mut notes = Vec::new();
    let mut cpu = ServerCpuWatch::new(store);
    let mut reporter = reporter(store, None, None);
    let (measured, dispatched) = std::thread::scope(|scope| {
        let reading = scope.spawn(|| dispatcher.run(requests));
        let measured = run(&*connect, workers, &Schedule::default(), &stop, &mut *reporter, &mut cpu)?;
        let dispatched = reading.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        Ok::<_, CommandError>((measured, dispatched.map_err(CommandError::usage)?))
    })?;
    let cpu_used = cpu.finish(&mut notes);

    let setting = Setting {
        phase: "replay",
        input: arguments.file.display().to_string(),
        endpoint: store.endpoint.to_string(),
        threads: arguments.threads,
        seed: None,
        offered_per_second: None,
        warmup_seconds: 0.0,
        record_count: None,
        record_bytes_max: None,
        request_distribution: None,
    };
    let mut report = Report::new(setting, &measured, cpu_used, notes);
    let fills = measured.tally.total_of(OperationKind::Insert);
    let hits = measured.tally.cell(OperationKind::Read, Outcome::Success).count;
    let reads = hits + measured.tally.cell(OperationKind::Read, Outcome::Miss).count;
    report.replay = Some(ReplayReport {
        trace_operations: report.operation_count() - fills,
        fills,
        hit_ratio: (reads > 0).then(|| hits as f64 / reads as f64),
        distinct_keys: dispatched.distinct_keys,
        rows_with_ttl: dispatched.rows_with_ttl,
    });
    publish(&report, arguments.report, store, &measured, output)?;
    Ok(report)
}
