//! `kvbench load`.

use super::arguments::LoadArguments;
use super::session::{
    ServerCpuWatch, note, publish, read_properties, reporter, stop_flag, thread_count, workload_name,
};
use super::{CommandError, Open};
use crate::random::RandomStream;
use crate::report::{Report, Setting};
use crate::runner::share::share;
use crate::runner::{Schedule, Worker, run};
use crate::workload::dataset::Dataset;
use crate::workload::record::Records;
use crate::workload::settings::Settings;
use crate::workload::worker::LoadWorker;

pub(super) fn execute(
    arguments: &LoadArguments,
    open: Open<'_>,
    output: &mut dyn std::io::Write,
) -> Result<Report, CommandError> {
    let (store, workload) = (&arguments.store, &arguments.workload);
    let mut notes = Vec::new();
    let properties = read_properties(workload, store, &mut notes)?;
    let name = workload_name(workload);
    let settings =
        Settings::new(&properties, &name, u64::from(store.max_value)).map_err(CommandError::usage)?;
    let threads = thread_count(settings.thread_count)?;
    let records = Records::new(&settings).map_err(CommandError::usage)?;
    let workers = (0..threads)
        .map(|index| {
            let share = share(settings.insert_count, threads, index);
            let numbers = settings.insert_start + share.start..settings.insert_start + share.end;
            let random = RandomStream::new(workload.seed, index);
            Box::new(LoadWorker::new(records.clone(), random, numbers)) as Box<dyn Worker>
        })
        .collect();

    let stop = stop_flag()?;
    let connect = open(&store.options(Some(settings.record_bytes_max())))?;
    let schedule = Schedule { target: settings.target, ..Schedule::default() };
    let mut cpu = ServerCpuWatch::new(store);
    let mut reporter = reporter(store, Some(settings.insert_count), None);
    let measured = run(&*connect, workers, &schedule, &stop, &mut *reporter, &mut cpu)?;
    let cpu_used = cpu.finish(&mut notes);
    let setting = Setting {
        phase: "load",
        input: name,
        endpoint: store.endpoint.to_string(),
        threads,
        seed: Some(workload.seed),
        offered_per_second: settings.target,
        warmup_seconds: 0.0,
        record_count: Some(settings.record_count),
        record_bytes_max: Some(settings.record_bytes_max()),
        request_distribution: None,
    };
    let mut report = Report::new(setting, &measured, cpu_used, notes);
    if report.operations.errors == 0 && !report.interrupted {
        Dataset::new(&settings).write(&mut *connect.open()?)?;
    } else {
        let inserted = report.operations.successes;
        let text = format!("only {inserted} of {} records were inserted", settings.insert_count);
        note(&mut report.notes, text);
    }
    publish(&report, workload.format, store, &measured, output)?;
    Ok(report)
}
