//! What the commands have in common: reading the workload, watching for Ctrl-C, asking the server for its CPU
//! time, writing the results.

use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use super::CommandError;
use super::arguments::{StoreArguments, THREADS_MAX, WorkloadArguments};
use crate::measure::log_file;
use crate::report::admin::{AdminError, CpuSeconds, cpu_seconds};
use crate::report::{Report, ReportFormat};
use crate::runner::progress::{Reporter, Silent, StandardError};
use crate::runner::{Measured, Watch};
use crate::workload::known::warnings;
use crate::workload::properties::Properties;

/// Says something on standard error that the report repeats.
pub(super) fn note(notes: &mut Vec<String>, text: String) {
    eprintln!("kvbench: {text}");
    notes.push(text);
}

/// Reads files and command line; flags win over `-p`, `-p` over files.
pub(super) fn read_properties(
    workload: &WorkloadArguments,
    store: &StoreArguments,
    notes: &mut Vec<String>,
) -> Result<Properties, CommandError> {
    let mut properties = Properties::default();
    for file in &workload.files {
        properties.read(file).map_err(CommandError::usage)?;
    }
    for property in &workload.properties {
        properties.set_argument(property).map_err(CommandError::usage)?;
    }
    for (name, value) in [
        ("recordcount", workload.records.map(|records| records.to_string())),
        ("threadcount", workload.threads.map(|threads| threads.to_string())),
        ("target", workload.target.map(|target| target.to_string())),
        ("dataintegrity", store.verify.then(|| "true".to_owned())),
    ] {
        if let Some(value) = value {
            properties.set(name, &value);
        }
    }
    for warning in warnings(&properties) {
        note(notes, warning);
    }
    Ok(properties)
}

/// The name of a workload in messages.
pub(super) fn workload_name(workload: &WorkloadArguments) -> String {
    let names: Vec<_> = workload.files.iter().map(|file| file.display().to_string()).collect();
    if names.is_empty() { "command line".to_owned() } else { names.join(" + ") }
}

/// Checks the number of threads that a workload file asks for.
pub(super) fn thread_count(count: u64) -> Result<u32, CommandError> {
    u32::try_from(count)
        .ok()
        .filter(|count| (1..=THREADS_MAX).contains(count))
        .ok_or_else(|| CommandError::Usage(format!("threadcount={count} is not from 1 to {THREADS_MAX}")))
}

/// Set by the first Ctrl-C (or SIGTERM), which then ends the run with a report. The second one ends the process.
pub(super) fn stop_flag() -> Result<Arc<AtomicBool>, CommandError> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        // The order matters: the default action is taken only if the flag was set before.
        signal_hook::flag::register_conditional_default(signal, stop.clone())
            .and_then(|_| signal_hook::flag::register(signal, stop.clone()))
            .map_err(|error| CommandError::Failed(format!("cannot watch for signal {signal}: {error}")))?;
    }
    Ok(stop)
}

/// Who watches.
pub(super) fn reporter(
    store: &StoreArguments,
    operations: Option<u64>,
    duration: Option<Duration>,
) -> Box<dyn Reporter> {
    if store.quiet { Box::new(Silent) } else { Box::new(StandardError::new(operations, duration)) }
}

/// The server's CPU time before and after.
pub(super) struct ServerCpuWatch<'a> {
    address: Option<&'a str>,
    before: Option<Result<CpuSeconds, AdminError>>,
    after: Option<Result<CpuSeconds, AdminError>>,
}

impl<'a> ServerCpuWatch<'a> {
    pub(super) fn new(store: &'a StoreArguments) -> Self {
        Self { address: store.admin.as_deref(), before: None, after: None }
    }

    /// What was used in between, or a note why that is not known.
    pub(super) fn finish(self, notes: &mut Vec<String>) -> Option<CpuSeconds> {
        match (self.before?, self.after?) {
            (Ok(before), Ok(after)) => Some(after.since(&before)),
            (Err(error), _) | (_, Err(error)) => {
                note(notes, format!("the server's CPU time is unknown: {error}"));
                None
            }
        }
    }
}

impl Watch for ServerCpuWatch<'_> {
    fn start(&mut self) {
        self.before = self.address.map(cpu_seconds);
    }

    fn end(&mut self) {
        self.after = self.address.map(cpu_seconds);
    }
}

/// Writes the report and, if asked for, the log of latencies.
pub(super) fn publish(
    report: &Report,
    format: ReportFormat,
    store: &StoreArguments,
    measured: &Measured,
    output: &mut dyn Write,
) -> Result<(), CommandError> {
    output
        .write_all(report.render(format).as_bytes())
        .and_then(|()| output.flush())
        .map_err(|error| CommandError::Failed(format!("cannot write the report: {error}")))?;
    if let Some(path) = &store.hdr {
        log_file::write(path, &measured.tally, measured.started, measured.elapsed)
            .map_err(|error| CommandError::Failed(format!("{}: {error}", path.display())))?;
    }
    Ok(())
}
