//! `kvbench run`.

use super::arguments::RunArguments;
use super::session::{
    ServerCpuWatch, note, publish, read_properties, reporter, stop_flag, thread_count, workload_name,
};
use super::{CommandError, Open};
use crate::generator::acknowledged::InsertedKeys;
use crate::measure::touched::Touched;
use crate::random::RandomStream;
use crate::report::{KeyReport, Report, Setting};
use crate::runner::{Schedule, Worker, run};
use crate::store::Store;
use crate::workload::dataset::{Dataset, DatasetError};
use crate::workload::plan::Plan;
use crate::workload::properties::Properties;
use crate::workload::settings::Settings;
use crate::workload::worker::{RunWorker, Shared};

pub(super) fn execute(
    arguments: &RunArguments,
    open: Open<'_>,
    output: &mut dyn std::io::Write,
) -> Result<Report, CommandError> {
    let (store, workload) = (&arguments.store, &arguments.workload);
    let mut notes = Vec::new();
    let mut properties = read_properties(workload, store, &mut notes)?;
    if let Some(ops) = arguments.ops {
        properties.set("operationcount", &ops.to_string());
    }
    let is_count_missing = properties.get("recordcount").is_none();
    properties.set_stand_in("recordcount", "1");
    let name = workload_name(workload);
    let mut settings =
        Settings::new(&properties, &name, u64::from(store.max_value)).map_err(CommandError::usage)?;
    let threads = thread_count(settings.thread_count)?;
    let schedule = schedule(arguments, &properties, &settings)?;

    let stop = stop_flag()?;
    let connect = open(&store.options(Some(settings.record_bytes_max())))?;
    let is_count_given = properties.is_explicit("recordcount");
    reconcile(&mut *connect.open()?, &mut settings, is_count_given, is_count_missing, &mut notes)?;
    let plan = Plan::new(&settings).map_err(CommandError::usage)?;
    let shared = Shared {
        keys: InsertedKeys::new(settings.record_count),
        touched: Touched::new(settings.record_count),
    };
    let workers = (0..threads)
        .map(|index| {
            let random = RandomStream::new(workload.seed, index);
            let worker = RunWorker::new(plan.clone(), &shared, random, settings.data_integrity);
            Box::new(worker) as Box<dyn Worker + '_>
        })
        .collect();

    let mut cpu = ServerCpuWatch::new(store);
    let mut reporter = reporter(store, schedule.operations, schedule.duration);
    let measured = run(&*connect, workers, &schedule, &stop, &mut *reporter, &mut cpu)?;
    let cpu_used = cpu.finish(&mut notes);
    let setting = Setting {
        phase: "run",
        input: name,
        endpoint: store.endpoint.to_string(),
        threads,
        seed: Some(workload.seed),
        offered_per_second: settings.target,
        warmup_seconds: schedule.warmup.as_secs_f64(),
        record_count: Some(settings.record_count),
        record_bytes_max: Some(settings.record_bytes_max()),
        request_distribution: Some(settings.distribution.name()),
    };
    let mut report = Report::new(setting, &measured, cpu_used, notes);
    report.keys = Some(KeyReport {
        first: settings.insert_start,
        last: shared.keys.last(),
        touched: shared.touched.count(),
    });
    publish(&report, workload.format, store, &measured, output)?;
    Ok(report)
}

/// When the run ends. A duration on the command line lifts the operation count of the file, which is there for
/// people who name no end; a count on the command line holds beside it.
fn schedule(
    arguments: &RunArguments,
    properties: &Properties,
    settings: &Settings,
) -> Result<Schedule, CommandError> {
    let is_count_explicit = properties.is_explicit("operationcount");
    let duration = match (arguments.duration, settings.execution_time_max) {
        (Some(one), Some(two)) => Some(one.min(two)),
        (one, two) => one.or(two),
    };
    let counts = is_count_explicit || (arguments.duration.is_none() && settings.operation_count > 0);
    if !counts && duration.is_none() {
        return Err(CommandError::Usage("nothing says when to end: give --ops or --duration".to_owned()));
    }
    Ok(Schedule {
        operations: counts.then_some(settings.operation_count),
        duration,
        warmup: arguments.warmup,
        target: settings.target,
    })
}

/// Looks for the note that the load left, and fits the settings to it.
fn reconcile(
    store: &mut dyn Store,
    settings: &mut Settings,
    is_count_given: bool,
    is_count_missing: bool,
    notes: &mut Vec<String>,
) -> Result<(), CommandError> {
    let dataset = Dataset::read(store).map_err(|error| match error {
        DatasetError::Store(error) => error.into(),
        malformed @ DatasetError::Malformed(_) => CommandError::Failed(malformed.to_string()),
    })?;
    match dataset {
        Some(dataset) => {
            for text in dataset.reconcile(settings, is_count_given).map_err(CommandError::Usage)? {
                note(notes, text);
            }
        }
        None if is_count_missing => {
            let text = "no recordcount is given, and the store holds no note of a load (kvbench load)";
            return Err(CommandError::usage(text));
        }
        None => note(
            notes,
            format!(
                "the store holds no note of a load (kvbench load): assuming recordcount={}",
                settings.record_count
            ),
        ),
    }
    Ok(())
}
