//! Keys that come and go in a store that is nearly full.
//!
//! Each thread has keys of its own: it overwrites one at random with a value of another size, or takes its oldest away, or
//! inserts one that never was. So the number of keys and the bytes they take stay about the same, and whatever else
//! changes is drift.
//!
//! Always true: an operation that failed is an error, also one that only found no memory; a value that is read back is
//! compared with the one that was written last.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::{EnduranceError, Sizes, ValueMaker, key_bytes};
use crate::measure::latency::{Latency, LatencySummary};
use crate::random::RandomStream;
use crate::runner::share::share;
use crate::store::{Connect, ServerFigures, Store, StoreError};

/// The run is reported in so many parts.
pub const PARTS: usize = 10;
/// Of every so many operations one value is read back.
const OPERATIONS_PER_CHECK: u64 = 64;
/// A thread looks at how full the store is after so many inserts.
const INSERTS_PER_LOOK: u64 = 512;
/// Between two looks at the threads' progress.
const LOOK_INTERVAL: Duration = Duration::from_millis(50);

/// What to do.
#[derive(Debug, Clone, Copy)]
pub struct Churn {
    /// Threads.
    pub threads: u32,
    /// How full the store is made first: bytes that are cut up for size classes, of those for keys and values.
    pub fill: f64,
    /// Operations over all threads; without it, the duration ends the run.
    pub operations: Option<u64>,
    /// The longest the run may take, filling aside.
    pub duration: Option<Duration>,
    /// Lengths of values.
    pub sizes: Sizes,
    /// Of all random numbers.
    pub seed: u64,
}

/// One part of the run.
#[derive(Debug, Clone)]
pub struct Part {
    /// Operations in it.
    pub operations: u64,
    /// How long it took.
    pub elapsed: Duration,
    /// Latencies of puts.
    pub puts: Option<LatencySummary>,
    /// The server at its end.
    pub server: ServerFigures,
}

/// What came out.
#[derive(Debug, Clone)]
pub struct Churned {
    /// Keys in the store all along, about.
    pub keys: u64,
    /// How long filling took.
    pub fill_elapsed: Duration,
    /// The server when the store was full.
    pub filled: ServerFigures,
    /// The run's parts, in order.
    pub parts: Vec<Part>,
    /// Operations that failed.
    pub errors: u64,
    /// What the first of them said.
    pub first_error: Option<String>,
    /// Values read back.
    pub checked: u64,
    /// Those that were not what was written.
    pub wrong: u64,
}

impl Churned {
    /// Operations of the run.
    pub fn operations(&self) -> u64 {
        self.parts.iter().map(|part| part.operations).sum()
    }

    /// The last part's p99 latency of puts, as a multiple of the first's.
    pub fn latency_ratio(&self) -> Option<f64> {
        let p99 = |part: Option<&Part>| part?.puts.as_ref().map(|puts| puts.p99_ns as f64);
        Some(p99(self.parts.last())? / p99(self.parts.first())?.max(1.0))
    }
}

/// What a thread has done in one part.
#[derive(Debug, Default, Clone)]
struct Share {
    operations: u64,
    puts: Latency,
}

struct Key {
    number: u64,
    write: u32,
}

struct Thread<'a> {
    plan: &'a Churn,
    /// Its own part of the plan's.
    operations: Option<u64>,
    store: Box<dyn Store>,
    random: RandomStream,
    maker: ValueMaker,
    live: VecDeque<Key>,
    next: u64,
    key: Vec<u8>,
    value: Vec<u8>,
    errors: u64,
    first_error: Option<String>,
    checked: u64,
    wrong: u64,
}

/// What the threads and the one that looks at them share.
struct Shared {
    parts: AtomicU64,
    done: [AtomicU64; PARTS],
    is_over: AtomicBool,
}

impl Thread<'_> {
    fn put(&mut self, number: u64, write: u32) -> Result<(), StoreError> {
        key_bytes(number, &mut self.key);
        self.store.put(&self.key, self.maker.make(number, write))
    }

    fn insert(&mut self) -> Result<(), StoreError> {
        let number = self.next;
        self.next += 1;
        self.put(number, 0)?;
        self.live.push_back(Key { number, write: 0 });
        Ok(())
    }

    /// Inserts until the store is as full as was asked. A thread that finds no more memory is content if others did.
    fn fill(&mut self) -> Result<(), EnduranceError> {
        loop {
            let server = self.store.server()?;
            let used = server.pool_bytes.saturating_sub(server.free_bytes);
            if used as f64 >= self.plan.fill * server.pool_bytes as f64 {
                return Ok(());
            }
            for _ in 0..INSERTS_PER_LOOK {
                if let Err(error) = self.insert() {
                    return Err(EnduranceError::Fill {
                        keys: self.live.len() as u64,
                        bytes: used,
                        percent: self.plan.fill * 100.0,
                        reason: error.to_string(),
                    });
                }
            }
        }
    }

    fn note(&mut self, result: Result<(), StoreError>) -> bool {
        if let Err(error) = &result {
            self.errors += 1;
            self.first_error.get_or_insert_with(|| error.to_string());
        }
        result.is_ok()
    }

    /// One operation; whether it was a put, with its latency.
    fn operate(&mut self, target: usize) -> Option<u64> {
        let begun = Instant::now();
        if self.random.below(2) == 0 && !self.live.is_empty() {
            let at = self.random.below(self.live.len() as u64) as usize;
            let (number, write) = (self.live[at].number, self.live[at].write + 1);
            let result = self.put(number, write);
            if self.note(result) {
                self.live[at].write = write;
            } else {
                // It may have happened: nothing is known of the key any more.
                self.forget(at);
            }
            return Some(begun.elapsed().as_nanos() as u64);
        }
        if self.live.len() >= target {
            let oldest = self.live.pop_front()?;
            key_bytes(oldest.number, &mut self.key);
            let existed = self.store.delete(&self.key);
            self.wrong += u64::from(matches!(existed, Ok(false)));
            self.note(existed.map(|_| ()));
            return None;
        }
        let result = self.insert();
        self.note(result);
        Some(begun.elapsed().as_nanos() as u64)
    }

    fn forget(&mut self, at: usize) {
        if let Some(key) = self.live.remove(at) {
            key_bytes(key.number, &mut self.key);
            let deleted = self.store.delete(&self.key).map(|_| ());
            self.note(deleted);
        }
    }

    fn check(&mut self) {
        if self.live.is_empty() {
            return;
        }
        let at = self.random.below(self.live.len() as u64) as usize;
        let (number, write) = (self.live[at].number, self.live[at].write);
        key_bytes(number, &mut self.key);
        match self.store.get(&self.key, &mut self.value) {
            Ok(found) => {
                self.checked += 1;
                let is_right = found && self.maker.check(number, write, &self.value);
                self.wrong += u64::from(!is_right);
            }
            Err(error) => {
                self.note(Err(error));
            }
        }
    }

    fn run(&mut self, shared: &Shared, start: Instant) -> Vec<Share> {
        let target = self.live.len().max(1);
        let mine = self.operations;
        let mut shares = vec![Share::default(); PARTS];
        let mut count = 0;
        let mut part = 0;
        while mine != Some(0) && !shared.is_over.load(Ordering::Relaxed) {
            if let Some(latency_ns) = self.operate(target) {
                shares[part].puts.record(latency_ns);
            }
            count += 1;
            shares[part].operations += 1;
            if count % OPERATIONS_PER_CHECK == 0 {
                self.check();
                // Time is looked at here too, and not at every operation.
                if let Some(duration) = self.plan.duration.filter(|_| mine.is_none()) {
                    let at = start.elapsed().as_secs_f64() / duration.as_secs_f64() * PARTS as f64;
                    while part < PARTS && part < at as usize {
                        shared.done[part].fetch_add(1, Ordering::AcqRel);
                        part += 1;
                    }
                }
            }
            if let Some(mine) = mine {
                while part < PARTS && count >= mine * (part as u64 + 1) / PARTS as u64 {
                    shared.done[part].fetch_add(1, Ordering::AcqRel);
                    part += 1;
                }
                if self.plan.duration.is_some_and(|most| start.elapsed() > most) {
                    break;
                }
            }
            if part == PARTS {
                break;
            }
        }
        shares
    }
}

/// Fills the store, then lets keys come and go. `stop` ends it early; `tell` hears of each part.
///
/// # Errors
/// [`EnduranceError`] if the store can't be opened or filled; operations that fail later are counted.
pub fn churn(
    connect: &dyn Connect,
    plan: &Churn,
    stop: &AtomicBool,
    tell: &mut dyn FnMut(usize, &Part),
) -> Result<Churned, EnduranceError> {
    let mut watcher = connect.open()?;
    let begun = Instant::now();
    let mut threads = Vec::new();
    for index in 0..plan.threads {
        threads.push(Thread {
            plan,
            operations: plan.operations.map(|all| {
                let mine = share(all, plan.threads, index);
                mine.end - mine.start
            }),
            store: connect.open()?,
            random: RandomStream::new(plan.seed, index),
            maker: ValueMaker::new(plan.sizes),
            live: VecDeque::new(),
            // No two threads, and no two runs of 2^40 inserts a thread, have a key in common.
            next: u64::from(index) << 40,
            key: Vec::new(),
            value: Vec::new(),
            errors: 0,
            first_error: None,
            checked: 0,
            wrong: 0,
        });
    }
    let filled: Result<(), EnduranceError> = std::thread::scope(|scope| {
        let handles: Vec<_> = threads.iter_mut().map(|thread| scope.spawn(|| thread.fill())).collect();
        handles.into_iter().try_for_each(joined)
    });
    filled?;
    let mut churned = Churned {
        keys: threads.iter().map(|thread| thread.live.len() as u64).sum(),
        fill_elapsed: begun.elapsed(),
        filled: watcher.server()?,
        parts: Vec::new(),
        errors: 0,
        first_error: None,
        checked: 0,
        wrong: 0,
    };
    let shared = Shared {
        parts: AtomicU64::new(0),
        done: std::array::from_fn(|_| AtomicU64::new(0)),
        is_over: AtomicBool::new(false),
    };
    let start = Instant::now();
    let mut ends: Vec<(Duration, ServerFigures)> = Vec::new();
    let shares: Result<Vec<Vec<Share>>, StoreError> = std::thread::scope(|scope| {
        let handles: Vec<_> = threads
            .iter_mut()
            .map(|thread| {
                let shared = &shared;
                scope.spawn(move || {
                    let shares = thread.run(shared, start);
                    shared.parts.fetch_add(1, Ordering::AcqRel);
                    shares
                })
            })
            .collect();
        let mut look = || -> Result<(), StoreError> {
            loop {
                let is_done = shared.parts.load(Ordering::Acquire) == u64::from(plan.threads);
                while ends.len() < PARTS
                    && (is_done || shared.done[ends.len()].load(Ordering::Acquire) == u64::from(plan.threads))
                {
                    ends.push((start.elapsed(), watcher.server()?));
                }
                if is_done {
                    return Ok(());
                }
                if stop.load(Ordering::Relaxed) {
                    shared.is_over.store(true, Ordering::Relaxed);
                }
                std::thread::sleep(LOOK_INTERVAL);
            }
        };
        let looked = look();
        shared.is_over.store(true, Ordering::Relaxed);
        let shares = handles.into_iter().map(joined).collect();
        looked.map(|()| shares)
    });
    let shares = shares?;
    let mut before = Duration::ZERO;
    for (part, (end, server)) in ends.into_iter().enumerate() {
        let mut puts = Latency::default();
        let mut operations = 0;
        for share in shares.iter().map(|shares| &shares[part]) {
            puts.merge(&share.puts);
            operations += share.operations;
        }
        let done = Part { operations, elapsed: end - before, puts: puts.summary(), server };
        before = end;
        tell(part, &done);
        churned.parts.push(done);
    }
    for thread in threads {
        churned.errors += thread.errors;
        churned.checked += thread.checked;
        churned.wrong += thread.wrong;
        churned.first_error = churned.first_error.or(thread.first_error);
    }
    Ok(churned)
}

fn joined<T>(handle: std::thread::ScopedJoinHandle<'_, T>) -> T {
    handle.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Memory;

    fn plan() -> Churn {
        let sizes = Sizes::new(100..=300).unwrap();
        Churn { threads: 3, fill: 0.1, operations: Some(9000), duration: None, sizes, seed: 7 }
    }

    #[test]
    fn the_store_stays_as_full_as_it_was_made() {
        let memory = Memory::default();
        let churned = churn(&memory, &plan(), &AtomicBool::new(false), &mut |_, _| {}).unwrap();
        assert_eq!((churned.errors, churned.wrong, churned.operations()), (0, 0, 9000));
        // A thread that had no turn while the others filled the store has nothing to check for a while.
        assert!(churned.checked >= 9000 / OPERATIONS_PER_CHECK / 3, "{}", churned.checked);
        assert_eq!(churned.parts.len(), PARTS);
        assert!(churned.parts.iter().all(|part| part.operations == 900));
        let filled = churned.filled.pool_bytes - churned.filled.free_bytes;
        assert!(filled >= churned.filled.pool_bytes / 10);
        let difference = memory.len().abs_diff(churned.keys as usize);
        assert!(difference <= 3, "{difference} keys more or less than at the start");
        assert!(churned.latency_ratio().unwrap() > 0.0);
    }

    #[test]
    fn what_fails_is_counted_and_named() {
        let memory = Memory { failing_put: 1000, ..Memory::default() };
        // Filling may not fail; one insert in a thousand does, sooner or later.
        let plan = Churn { fill: 0.0, ..plan() };
        let churned = churn(&memory, &plan, &AtomicBool::new(false), &mut |_, _| {}).unwrap();
        assert!(churned.errors > 0);
        assert!(churned.first_error.unwrap().contains("asked to"));
        assert_eq!(churned.wrong, 0);
    }

    #[test]
    fn a_store_that_can_not_be_filled_is_said() {
        let memory = Memory { failing_put: 100, ..Memory::default() };
        let error = churn(&memory, &plan(), &AtomicBool::new(false), &mut |_, _| {}).unwrap_err();
        assert!(matches!(error, EnduranceError::Fill { .. }), "{error}");
    }

    #[test]
    fn time_ends_it_too() {
        let plan = Churn { operations: None, duration: Some(Duration::from_millis(200)), ..plan() };
        let churned = churn(&Memory::default(), &plan, &AtomicBool::new(false), &mut |_, _| {}).unwrap();
        assert_eq!(churned.parts.len(), PARTS);
        assert!(churned.operations() > 0 && churned.wrong == 0);
    }
}
