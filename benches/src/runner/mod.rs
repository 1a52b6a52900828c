//! Runs workers on threads, each with its own store, and takes the time.
//!
//! Always true:
//! - time is measured between the moment before the store is called (or the moment when it should have been, if
//!   operations are scheduled) and the moment after; making keys and values and checking them lies outside;
//! - the measured phase begins on all threads at once, after every one is connected and warmed up, and its end is
//!   announced before the first store is closed: what connecting and closing cost the server is outside;
//! - exactly the asked number of operations is done, unless time, the stop flag or the work itself ends first.

mod gate;
mod pace;
pub mod progress;
pub mod share;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime};

use crate::measure::tally::{Outcome, Tally};
use crate::store::{Connect, Counters, Fabric, Store, StoreError};
use crate::workload::operation::OperationKind;
use gate::Gate;
use pace::{Pace, wait_until};
use progress::{Progress, Reporter};

/// How often the progress is shown to whoever watches.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(250);

/// One thread's source of work.
pub trait Worker: Send {
    /// Decides on the next operation; nothing when the work is done.
    fn prepare(&mut self) -> Option<OperationKind>;
    /// Does it.
    fn execute(&mut self, store: &mut dyn Store) -> Result<Outcome, StoreError>;
    /// Draws the consequences: may find that a success was none, and says why.
    fn settle(&mut self, result: Result<Outcome, StoreError>) -> Result<Outcome, String>;
}

/// When to begin, how fast to go, when to end.
#[derive(Debug, Clone, Copy, Default)]
pub struct Schedule {
    /// Measured operations over all threads; without it, as many as the work or the time give.
    pub operations: Option<u64>,
    /// Length of the measured phase at most.
    pub duration: Option<Duration>,
    /// Operations are done but not counted for so long.
    pub warmup: Duration,
    /// Operations a second over all threads; without it, as fast as they come back.
    pub target: Option<f64>,
}

/// Somebody who wants to look at the server just before and just after the measured phase.
pub trait Watch {
    /// All threads are ready.
    fn start(&mut self);
    /// All are done, with their stores still open.
    fn end(&mut self);
}

/// Nobody.
impl Watch for () {
    fn start(&mut self) {}
    fn end(&mut self) {}
}

/// What came out.
#[derive(Debug)]
pub struct Measured {
    /// Counts and latencies.
    pub tally: Tally,
    /// What the stores counted in the measured phase.
    pub counters: Counters,
    /// The fabric.
    pub fabric: Fabric,
    /// From the start to the end of the last operation.
    pub elapsed: Duration,
    /// When the measured phase began.
    pub started: SystemTime,
    /// Whether the stop flag ended it.
    pub interrupted: bool,
}

struct ThreadResult {
    tally: Tally,
    counters: Counters,
    fabric: Fabric,
    elapsed: Duration,
}

/// Runs `workers`, one a thread.
pub fn run(
    connect: &dyn Connect,
    workers: Vec<Box<dyn Worker + '_>>,
    schedule: &Schedule,
    stop: &AtomicBool,
    reporter: &mut dyn Reporter,
    watch: &mut dyn Watch,
) -> Result<Measured, StoreError> {
    let threads = u32::try_from(workers.len()).expect("the command line bounds the number of threads");
    let gate = Gate::new(threads);
    let progress = Progress::new(threads);
    let failed = AtomicBool::new(false);
    let mut started = SystemTime::now();
    let results: Vec<Result<ThreadResult, StoreError>> = std::thread::scope(|scope| {
        let mut handles = Vec::new();
        for (index, worker) in (0..).zip(workers) {
            let (gate, progress, failed) = (&gate, &progress, &failed);
            let task = Task { schedule, threads, index, stop, failed, gate, progress };
            handles.push(scope.spawn(move || task.run(connect, worker)));
        }
        if !schedule.warmup.is_zero() {
            gate.open(|| reporter.phase("warming up"));
        }
        gate.open(|| {
            watch.start();
            reporter.phase("running");
            started = SystemTime::now();
        });
        let start = Instant::now();
        while !gate.wait_all(PROGRESS_INTERVAL) {
            reporter.show(start.elapsed(), &progress.snapshot());
        }
        gate.open(|| watch.end());
        reporter.finish(start.elapsed(), &progress.snapshot());
        let resume = |panic| std::panic::resume_unwind(panic);
        handles.into_iter().map(|handle| handle.join().unwrap_or_else(resume)).collect()
    });

    let (mut tally, mut counters) = (Tally::default(), Counters::default());
    let (mut fabric, mut elapsed) = (Fabric::default(), Duration::ZERO);
    for result in results {
        let result = result?;
        tally.merge(result.tally);
        counters.add(&result.counters);
        elapsed = elapsed.max(result.elapsed);
        fabric = result.fabric;
    }
    Ok(Measured { tally, counters, fabric, elapsed, started, interrupted: stop.load(Ordering::Relaxed) })
}

/// One worker thread's surroundings.
struct Task<'a> {
    schedule: &'a Schedule,
    threads: u32,
    index: u32,
    stop: &'a AtomicBool,
    failed: &'a AtomicBool,
    gate: &'a Gate,
    progress: &'a Progress,
}

impl Task<'_> {
    fn run(
        &self,
        connect: &dyn Connect,
        mut worker: Box<dyn Worker + '_>,
    ) -> Result<ThreadResult, StoreError> {
        let _presence = self.gate.enter();
        let mut store = connect.open().inspect_err(|_| self.failed.store(true, Ordering::Relaxed))?;
        if !self.schedule.warmup.is_zero() {
            let start = self.gate.pass();
            self.drive(&mut *worker, &mut *store, start, None, Some(start + self.schedule.warmup));
        }
        let start = self.gate.pass();
        let before = store.counters();
        let operations = self.schedule.operations.map(|total| {
            let share = share::share(total, self.threads, self.index);
            share.end - share.start
        });
        let end = self.schedule.duration.and_then(|duration| start.checked_add(duration));
        self.progress.reset(self.index);
        let (tally, finished) = self.drive(&mut *worker, &mut *store, start, operations, end);
        // A worker may hold the end of a queue whose other end waits for room: it must not outlive its work.
        drop(worker);
        self.gate.pass();
        Ok(ThreadResult {
            tally,
            counters: store.counters() - before,
            fabric: store.fabric(),
            elapsed: finished.saturating_duration_since(start),
        })
    }

    /// Does operations until their number, the time or the work ends. Returns also when the last one was done.
    fn drive(
        &self,
        worker: &mut dyn Worker,
        store: &mut dyn Store,
        start: Instant,
        operations: Option<u64>,
        end: Option<Instant>,
    ) -> (Tally, Instant) {
        let pace = self.schedule.target.map(|target| Pace::new(start, target, self.threads, self.index));
        let (mut tally, mut now, mut number) = (Tally::default(), start, 0);
        while operations.is_none_or(|operations| number < operations)
            && end.is_none_or(|end| now < end)
            && !self.stop.load(Ordering::Relaxed)
            && !self.failed.load(Ordering::Relaxed)
        {
            let due = pace.map(|pace| pace.due(number));
            if let Some(due) = due {
                if end.is_some_and(|end| due >= end) {
                    break;
                }
                wait_until(due, self.stop);
                if self.stop.load(Ordering::Relaxed) {
                    break;
                }
            }
            let Some(kind) = worker.prepare() else { break };
            let begun = Instant::now();
            let result = worker.execute(store);
            now = Instant::now();
            let latency = now.saturating_duration_since(due.unwrap_or(begun));
            let outcome = worker.settle(result).unwrap_or_else(|error| {
                tally.first_error.get_or_insert(error);
                Outcome::Error
            });
            tally.record(kind, outcome, latency, due.map(|_| now.saturating_duration_since(begun)));
            self.progress.add(self.index, outcome);
            number += 1;
        }
        if let (Some(pace), Some(end)) = (pace, end) {
            let due = pace.due_before(end.min(now.max(start))).min(operations.unwrap_or(u64::MAX));
            tally.not_started = due.saturating_sub(number);
        }
        (tally, now)
    }
}

#[cfg(test)]
mod tests;
