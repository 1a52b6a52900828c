//! An index that grows under inserts: from a few keys to many in one run, with what each size costs.
//!
//! Always true: keys are new ones only; throughput with and without a rebuild under way comes from the same run, slice by
//! slice, told apart by whether the server finished rebuilds in the slice.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::{EnduranceError, Sizes, ValueMaker, key_bytes};
use crate::measure::latency::{Latency, LatencySummary};
use crate::runner::share::share;
use crate::store::{Connect, ServerFigures, StoreError};

/// Bytes of a segment of the index, for the report: 64 buckets of 256.
const SEGMENT_BYTES: u64 = 64 * 256;
/// Throughput is looked at in slices of this length.
const SLICE: Duration = Duration::from_millis(50);

/// What to do.
#[derive(Debug, Clone)]
pub struct Growth {
    /// Threads.
    pub threads: u32,
    /// Numbers of keys at which to stop and look, in order.
    pub sizes: Vec<u64>,
    /// Lengths of values.
    pub values: Sizes,
}

/// What was seen from one size to the next.
#[derive(Debug, Clone)]
pub struct Stage {
    /// Keys at its end.
    pub keys: u64,
    /// How long it took.
    pub elapsed: Duration,
    /// Latencies of its inserts.
    pub puts: Option<LatencySummary>,
    /// Inserts a second in slices in which the server finished rebuilds.
    pub rate_with_rebuilds: Option<f64>,
    /// The same in all others.
    pub rate_without: Option<f64>,
    /// Inserts that failed.
    pub errors: u64,
    /// What the first of them said.
    pub first_error: Option<String>,
    /// The server at its end.
    pub server: ServerFigures,
}

impl Stage {
    /// Bytes of the index for each key.
    pub fn index_bytes_per_key(&self) -> f64 {
        (self.server.segments * SEGMENT_BYTES) as f64 / self.keys.max(1) as f64
    }
}

/// Inserts and bytes of time with and without rebuilds.
#[derive(Default)]
struct Slices {
    with: (u64, Duration),
    without: (u64, Duration),
}

impl Slices {
    fn add(&mut self, inserts: u64, elapsed: Duration, has_rebuilds: bool) {
        let part = if has_rebuilds { &mut self.with } else { &mut self.without };
        part.0 += inserts;
        part.1 += elapsed;
    }

    fn rate((inserts, elapsed): (u64, Duration)) -> Option<f64> {
        (!elapsed.is_zero()).then(|| inserts as f64 / elapsed.as_secs_f64())
    }
}

/// Inserts keys up to each size. `tell` hears of each stage when it is done; `stop` ends the run early.
///
/// # Errors
/// [`EnduranceError`] if the store can't be opened; inserts that fail are counted.
pub fn grow(
    connect: &dyn Connect,
    plan: &Growth,
    stop: &AtomicBool,
    tell: &mut dyn FnMut(&Stage),
) -> Result<Vec<Stage>, EnduranceError> {
    let mut watcher = connect.open()?;
    let mut stores = Vec::new();
    for _ in 0..plan.threads {
        stores.push(connect.open()?);
    }
    let mut stages = Vec::new();
    let mut first = 0;
    for &keys in &plan.sizes {
        let (done, over) = (AtomicU64::new(0), AtomicU64::new(0));
        let mut slices = Slices::default();
        let start = Instant::now();
        let count = keys.saturating_sub(first);
        let insert = |index: u32, store: &mut dyn crate::store::Store| {
            let mine = share(count, plan.threads, index);
            let (mut maker, mut key, mut puts) =
                (ValueMaker::new(plan.values), Vec::new(), Latency::default());
            let mut failure = (0_u64, None);
            for number in first + mine.start..first + mine.end {
                if stop.load(Ordering::Relaxed) {
                    break;
                }
                key_bytes(number, &mut key);
                let value = maker.make(number, 0);
                let begun = Instant::now();
                let put = store.put(&key, value);
                puts.record(begun.elapsed().as_nanos() as u64);
                if let Err(error) = put {
                    failure.0 += 1;
                    failure.1.get_or_insert_with(|| error.to_string());
                }
                done.fetch_add(1, Ordering::Relaxed);
            }
            over.fetch_add(1, Ordering::AcqRel);
            (puts, failure)
        };
        let results: Result<Vec<_>, StoreError> = std::thread::scope(|scope| {
            let handles: Vec<_> = (0..)
                .zip(&mut stores)
                .map(|(index, store)| {
                    let insert = &insert;
                    scope.spawn(move || insert(index, &mut **store))
                })
                .collect();
            let mut look = || -> Result<(), StoreError> {
                let mut before = (0, start, watcher.server()?.rebuilds);
                while over.load(Ordering::Acquire) < u64::from(plan.threads) {
                    std::thread::sleep(SLICE);
                    let now = (done.load(Ordering::Relaxed), Instant::now(), watcher.server()?.rebuilds);
                    slices.add(now.0 - before.0, now.1 - before.1, now.2 > before.2);
                    before = now;
                }
                Ok(())
            };
            let looked = look();
            let results = handles
                .into_iter()
                .map(|handle| handle.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
                .collect();
            looked.map(|()| results)
        });
        let (mut puts, mut errors, mut first_error) = (Latency::default(), 0, None);
        for (latency, (failed, said)) in results? {
            puts.merge(&latency);
            errors += failed;
            first_error = first_error.or(said);
        }
        let stage = Stage {
            keys: first + done.load(Ordering::Relaxed),
            elapsed: start.elapsed(),
            puts: puts.summary(),
            rate_with_rebuilds: Slices::rate(slices.with),
            rate_without: Slices::rate(slices.without),
            errors,
            first_error,
            server: watcher.server()?,
        };
        tell(&stage);
        stages.push(stage);
        first = keys;
        if stop.load(Ordering::Relaxed) {
            break;
        }
    }
    Ok(stages)
}

/// Sizes from `from` to `to`, ten times as many each, the last one exact.
pub fn sizes(from: u64, to: u64) -> Vec<u64> {
    let mut sizes: Vec<u64> =
        std::iter::successors(Some(from.max(1)), |size| size.checked_mul(10).filter(|next| *next < to))
            .collect();
    if sizes.last() != Some(&to) && to > from {
        sizes.push(to);
    }
    sizes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Memory;

    #[test]
    fn sizes_go_up_tenfold_to_the_last() {
        assert_eq!(sizes(1000, 20_000_000), [1000, 10_000, 100_000, 1_000_000, 10_000_000, 20_000_000]);
        assert_eq!(sizes(10, 100), [10, 100]);
        assert_eq!(sizes(10, 10), [10]);
        assert_eq!(sizes(0, 5), [1, 5]);
    }

    #[test]
    fn every_key_is_inserted_once() {
        let memory = Memory::default();
        let values = Sizes::new(8..=8).unwrap();
        let plan = Growth { threads: 3, sizes: sizes(100, 5000), values };
        let mut told = Vec::new();
        let stages =
            grow(&memory, &plan, &AtomicBool::new(false), &mut |stage| told.push(stage.keys)).unwrap();
        assert_eq!(told, [100, 1000, 5000]);
        assert_eq!(memory.len(), 5000);
        let last = stages.last().unwrap();
        assert_eq!((last.errors, last.server.segments), (0, 6));
        assert!((last.index_bytes_per_key() - 6.0 * 16384.0 / 5000.0).abs() < 1e-9);
        assert_eq!(stages.iter().map(|stage| stage.puts.as_ref().unwrap().count).sum::<u64>(), 5000);
    }

    #[test]
    fn inserts_that_fail_are_counted() {
        let memory = Memory { failing_put: 10, ..Memory::default() };
        let values = Sizes::new(8..=8).unwrap();
        let plan = Growth { threads: 1, sizes: vec![100], values };
        let stages = grow(&memory, &plan, &AtomicBool::new(false), &mut |_| {}).unwrap();
        assert_eq!(stages[0].errors, 10);
        assert!(stages[0].first_error.as_ref().unwrap().contains("asked to"));
    }
}
