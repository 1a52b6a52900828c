use super::*;
use crate::generator::acknowledged::InsertedKeys;
use crate::measure::touched::Touched;
use crate::random::RandomStream;
use crate::runner::progress::Silent;
use crate::testing::Memory;
use crate::workload::plan::Plan;
use crate::workload::properties::Properties;
use crate::workload::settings::Settings;
use crate::workload::worker::{LoadWorker, RunWorker, Shared};

fn settings(arguments: &[&str]) -> Settings {
    let mut properties = Properties::default();
    properties.set_argument("fieldcount=1").unwrap();
    arguments.iter().for_each(|argument| properties.set_argument(argument).unwrap());
    Settings::new(&properties, "test", 1 << 20).unwrap()
}

fn load(memory: &Memory, settings: &Settings, threads: u32) -> Measured {
    let plan = Plan::new(settings).unwrap();
    let workers = (0..threads)
        .map(|index| {
            let random = RandomStream::new(1, index);
            let numbers = share::share(settings.insert_count, threads, index);
            Box::new(LoadWorker::new(plan.records.clone(), random, numbers)) as Box<dyn Worker>
        })
        .collect();
    run(memory, workers, &Schedule::default(), &AtomicBool::new(false), &mut Silent, &mut ()).unwrap()
}

fn drive(memory: &Memory, settings: &Settings, threads: u32, schedule: &Schedule) -> (Measured, Shared) {
    let plan = Plan::new(settings).unwrap();
    let shared = Shared {
        keys: InsertedKeys::new(settings.record_count),
        touched: Touched::new(settings.record_count),
    };
    let workers = (0..threads)
        .map(|index| {
            let random = RandomStream::new(1, index);
            Box::new(RunWorker::new(plan.clone(), &shared, random, settings.data_integrity))
                as Box<dyn Worker>
        })
        .collect();
    let measured = run(memory, workers, schedule, &AtomicBool::new(false), &mut Silent, &mut ()).unwrap();
    (measured, shared)
}

fn operations(measured: &Measured) -> u64 {
    Outcome::ALL.iter().map(|outcome| measured.tally.total(*outcome)).sum()
}

#[test]
fn a_load_inserts_exactly_the_records_asked_for() {
    for records in [1u64, 7, 100, 1001] {
        for threads in [1, 3, 8, 64] {
            let memory = Memory::default();
            let measured = load(&memory, &settings(&[&format!("recordcount={records}")]), threads);
            assert_eq!(memory.len() as u64, records, "{records} records on {threads} threads");
            assert_eq!(operations(&measured), records);
            assert_eq!(measured.counters.put.operations, records);
        }
    }
}

#[test]
fn a_run_does_exactly_the_operations_asked_for() {
    let settings = settings(&["recordcount=100"]);
    let memory = Memory::default();
    load(&memory, &settings, 2);
    for asked in [0u64, 1, 7, 1000] {
        for threads in [1, 3, 8] {
            let schedule = Schedule { operations: Some(asked), ..Schedule::default() };
            let (measured, _) = drive(&memory, &settings, threads, &schedule);
            assert_eq!(operations(&measured), asked, "{threads} threads");
            assert_eq!(measured.tally.total(Outcome::Success), asked);
        }
    }
}

#[test]
fn misses_and_errors_are_counted_apart() {
    // Half of the records are not there; every tenth put fails.
    let memory = Memory { failing_put: 10, ..Memory::default() };
    let small = settings(&["recordcount=500", "dataintegrity=true"]);
    let loaded = load(&memory, &small, 1);
    assert_eq!(loaded.tally.total(Outcome::Error), 50);
    assert!(loaded.tally.first_error.unwrap().contains("asked to"));
    let large =
        settings(&["recordcount=1000", "readproportion=0.5", "updateproportion=0.5", "dataintegrity=true"]);
    let schedule = Schedule { operations: Some(10_000), ..Schedule::default() };
    let (measured, shared) = drive(&memory, &large, 2, &schedule);
    assert_eq!(operations(&measured), 10_000);
    let errors = measured.tally.cell(OperationKind::Update, Outcome::Error).count;
    assert!((400..600).contains(&errors), "{errors}");
    let misses = measured.tally.cell(OperationKind::Read, Outcome::Miss).count;
    assert!(misses > 0 && measured.tally.cell(OperationKind::Read, Outcome::Error).count == 0);
    assert!((990..=1000).contains(&shared.touched.count().unwrap()));
}

#[test]
fn wrong_values_are_found() {
    let settings =
        settings(&["recordcount=100", "dataintegrity=true", "readproportion=1", "updateproportion=0"]);
    let memory = Memory::default();
    load(&memory, &settings, 1);
    let schedule = Schedule { operations: Some(1000), ..Schedule::default() };
    assert_eq!(drive(&memory, &settings, 2, &schedule).0.tally.total(Outcome::Error), 0);
    memory.map.lock().unwrap().values_mut().for_each(|value| value[50] ^= 1);
    let (measured, _) = drive(&memory, &settings, 2, &schedule);
    assert_eq!(measured.tally.total(Outcome::Error), 1000);
    assert!(measured.tally.first_error.unwrap().contains("wrong value under key user"));
}

#[test]
fn inserted_keys_are_read_only_when_they_are_there() {
    // Latest reads the newest keys while four threads insert: not one read may miss, and failed inserts are never
    // read.
    let settings = settings(&[
        "recordcount=100",
        "readproportion=0.7",
        "updateproportion=0",
        "insertproportion=0.3",
        "requestdistribution=latest",
    ]);
    let memory = Memory { failing_put: 7, ..Memory::default() };
    let loaded = load(&Memory { map: memory.map.clone(), ..Memory::default() }, &settings, 1);
    assert_eq!(loaded.tally.total(Outcome::Error), 0);
    let schedule = Schedule { operations: Some(20_000), ..Schedule::default() };
    let (measured, _) = drive(&memory, &settings, 4, &schedule);
    assert_eq!(measured.tally.total(Outcome::Miss), 0);
    let failed = measured.tally.cell(OperationKind::Insert, Outcome::Error).count;
    let inserted = measured.tally.cell(OperationKind::Insert, Outcome::Success).count;
    assert!(failed > 0);
    assert_eq!(memory.len() as u64, 100 + inserted);
}

#[test]
fn a_stall_counts_for_all_operations_that_were_due() {
    // One thread at 1,000 a second; the first get takes 200 ms. Some 200 operations are late because of it, which
    // a closed loop would show as a single slow one.
    let settings = settings(&["recordcount=10", "readproportion=1", "updateproportion=0"]);
    let memory = Memory { stall: Duration::from_millis(200), ..Memory::default() };
    let schedule = Schedule { operations: Some(400), target: Some(1000.0), ..Schedule::default() };
    let (measured, _) = drive(&memory, &settings, 1, &schedule);
    let cell = measured.tally.cell(OperationKind::Read, Outcome::Miss);
    let latency = cell.latency.as_ref().unwrap().summary().unwrap();
    let service = cell.service.as_ref().unwrap().summary().unwrap();
    assert!(latency.p90_ns > 100_000_000 / 2, "latency p90 {}", latency.p90_ns);
    assert!(service.p90_ns < 20_000_000, "service p90 {}", service.p90_ns);
    assert!(measured.elapsed >= Duration::from_millis(399));
}

#[test]
fn time_ends_a_run_and_warming_up_is_not_counted() {
    let settings = settings(&["recordcount=10"]);
    let memory = Memory::default();
    load(&memory, &settings, 1);
    let schedule = Schedule {
        duration: Some(Duration::from_millis(100)),
        warmup: Duration::from_millis(50),
        target: Some(1000.0),
        ..Schedule::default()
    };
    let (measured, _) = drive(&memory, &settings, 2, &schedule);
    let done = operations(&measured) + measured.tally.not_started;
    assert!((95..=100).contains(&done), "{done} operations were due in the measured 100 ms");
    assert_eq!(measured.counters.get.operations + measured.counters.put.operations, operations(&measured));
}

#[test]
fn an_unreachable_store_ends_the_run() {
    let settings = settings(&["recordcount=10"]);
    let memory = Memory { is_unreachable: true, ..Memory::default() };
    let plan = Plan::new(&settings).unwrap();
    let worker = Box::new(LoadWorker::new(plan.records, RandomStream::new(1, 0), 0..10));
    let result =
        run(&memory, vec![worker], &Schedule::default(), &AtomicBool::new(false), &mut Silent, &mut ());
    assert!(matches!(result, Err(StoreError::Unreachable { .. })));
}

#[test]
fn the_stop_flag_ends_a_run_without_end() {
    let settings = settings(&["recordcount=10"]);
    let memory = Memory::default();
    let plan = Plan::new(&settings).unwrap();
    let shared = Shared { keys: InsertedKeys::new(10), touched: Touched::new(10) };
    let worker = Box::new(RunWorker::new(plan, &shared, RandomStream::new(1, 0), false));
    let stop = AtomicBool::new(false);
    let measured = std::thread::scope(|scope| {
        scope.spawn(|| {
            let deadline = Instant::now() + Duration::from_secs(10);
            while memory.len() == 0 && Instant::now() < deadline {
                std::thread::yield_now();
            }
            stop.store(true, Ordering::Relaxed);
        });
        run(&memory, vec![worker], &Schedule::default(), &stop, &mut Silent, &mut ()).unwrap()
    });
    assert!(measured.interrupted && operations(&measured) > 0);
}
