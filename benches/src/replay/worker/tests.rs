//! Whole replays against an in-process store, with the counts that the traces' documentation states.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

use super::*;
use crate::measure::tally::Tally;
use crate::replay::dispatch::{Dispatched, queues};
use crate::replay::trace::{Limits, TraceError, TraceFormat, open};
use crate::runner::progress::Silent;
use crate::runner::{Schedule, run};
use crate::testing::{Memory, shared_trace};

const LIMITS: Limits = Limits { value_bytes_max: 1 << 20 };

fn replay(
    memory: &Memory,
    format: TraceFormat,
    path: &Path,
    threads: u32,
) -> Result<(Tally, Dispatched), TraceError> {
    // Small blocks: the tests are about which are there.
    let requests = open(format, path, 16, LIMITS)?;
    let (dispatcher, receivers) = queues(threads);
    let workers = receivers
        .into_iter()
        .map(|receiver| Box::new(ReplayWorker::new(receiver, true)) as Box<dyn Worker>)
        .collect();
    std::thread::scope(|scope| {
        let reading = scope.spawn(|| dispatcher.run(requests));
        let stop = AtomicBool::new(false);
        let measured = run(memory, workers, &Schedule::default(), &stop, &mut Silent, &mut ()).unwrap();
        Ok((measured.tally, reading.join().unwrap()?))
    })
}

fn trace_operations(tally: &Tally) -> u64 {
    Outcome::ALL.iter().map(|outcome| tally.total(*outcome)).sum::<u64>()
        - tally.total_of(OperationKind::Insert)
}

fn reads(tally: &Tally) -> (u64, u64) {
    let count = |outcome| tally.cell(OperationKind::Read, outcome).count;
    (count(Outcome::Success), count(Outcome::Miss))
}

fn written(name: &str, content: &[u8]) -> PathBuf {
    let path = std::env::temp_dir().join(format!("kvbench-{}-{name}", std::process::id()));
    std::fs::write(&path, content).unwrap();
    path
}

/// What a look-aside cache of any size must answer, computed from the rows alone: (hits, misses, fills).
fn cachelib_model(path: &Path) -> (u64, u64, u64) {
    let text = std::fs::read_to_string(path).unwrap();
    let mut rows = text.lines().map(|line| line.split(',').collect::<Vec<_>>());
    let header = rows.next().unwrap();
    let column = |name: &str| header.iter().position(|column| *column == name).unwrap();
    let (key, operation, count, size) = (column("key"), column("op"), column("op_count"), column("size"));
    let rows: Vec<_> = rows.collect();
    let (mut present, mut hits, mut misses, mut fills) = (HashMap::new(), 0, 0, 0);
    for (index, row) in rows.iter().enumerate() {
        for _ in 0..row[count].parse::<u64>().unwrap() {
            match row[operation] {
                "DELETE" => {
                    present.remove(row[key]);
                }
                "SET" | "SET_LEASE" => {
                    present.insert(row[key], ());
                }
                _ if present.contains_key(row[key]) => hits += 1,
                _ => {
                    misses += 1;
                    if rows[index..].iter().any(|later| later[key] == row[key] && later[size] != "0") {
                        present.insert(row[key], ());
                        fills += 1;
                    }
                }
            }
        }
    }
    (hits, misses, fills)
}

#[test]
fn cachelib_samples_come_out_as_stated() {
    for (name, operations, keys) in [("kv_traces_1.csv", 691, 52), ("kv_traces_2.csv", 433, 62)] {
        let Some(path) = shared_trace("cachelib", name) else { return };
        let (hits, misses, fills) = cachelib_model(&path);
        assert!(hits > misses && fills > 0);
        for threads in [1, 4] {
            let memory = Memory::default();
            let (tally, dispatched) = replay(&memory, TraceFormat::Cachelib, &path, threads).unwrap();
            assert_eq!((dispatched.operations, dispatched.distinct_keys), (operations, keys), "{name}");
            assert_eq!(trace_operations(&tally), operations, "{name}");
            assert_eq!(tally.first_error, None);
            assert_eq!(reads(&tally), (hits, misses), "{name}");
            assert_eq!(tally.total_of(OperationKind::Insert), fills, "{name}");
            assert!(dispatched.rows_with_ttl > 0);
        }
    }
}

#[test]
fn mooncake_traces_have_the_stated_hit_ratios() {
    for (name, references, blocks, percent) in [
        ("conversation_trace.jsonl", 288_500, 182_790, 36.6),
        ("synthetic_trace.jsonl", 121_877, 43_924, 64.0),
    ] {
        let Some(path) = shared_trace("mooncake", name) else { return };
        for threads in [1, 3] {
            let memory = Memory::default();
            let (tally, dispatched) = replay(&memory, TraceFormat::Mooncake, &path, threads).unwrap();
            assert_eq!(dispatched.operations, references, "{name}");
            let (hits, misses) = reads(&tally);
            assert_eq!((hits + misses, misses), (references, blocks), "{name}");
            assert_eq!(dispatched.distinct_keys, blocks, "{name}");
            assert_eq!(memory.len() as u64, blocks, "{name}");
            let ratio = 100.0 * hits as f64 / (hits + misses) as f64;
            assert!((ratio - percent).abs() < 0.05, "{name}: {ratio}");
        }
    }
}

#[test]
fn twitters_five_rows_are_five_misses_that_fill() {
    let Some(path) = shared_trace("twitter", "five_rows.csv") else { return };
    let memory = Memory::default();
    let (tally, dispatched) = replay(&memory, TraceFormat::Twitter, &path, 2).unwrap();
    assert_eq!((dispatched.operations, dispatched.distinct_keys), (5, 5));
    assert_eq!(reads(&tally), (0, 5));
    let map = memory.map.lock().unwrap();
    assert_eq!(map[&b"q:q:1:8WTfjZU14ee"[..]].len(), 213);
    assert_eq!(map[&b"yDqF:3q:1AJrrJ1nnCJKKrnGx1A"[..]].len(), 27);
}

#[test]
fn a_miss_is_filled_from_a_later_row_and_repeats_hit() {
    // k: three gets recorded as misses, then a set of 7 bytes. The first misses and inserts, two hit.
    // n: a miss that no later row explains stays a miss. d: deleted, then read as a hit of 5 bytes.
    let rows = "op,key,op_count,key_size,ttl,size\nGET,k,3,2,0,0\nGET,n,2,2,0,0\nSET,d,1,2,9,4\nDELETE,d,1,2,0,0\n\
                GET_LEASE,d,2,2,0,5\r\n\nSET_LEASE,k,1,2,0,7\nGET,k,0,2,0,7\n";
    let path = written("later.csv", rows.as_bytes());
    let memory = Memory::default();
    let (tally, dispatched) = replay(&memory, TraceFormat::Cachelib, &path, 3).unwrap();
    std::fs::remove_file(&path).unwrap();
    assert_eq!(dispatched, Dispatched { operations: 10, distinct_keys: 3, rows_with_ttl: 1 });
    assert_eq!(reads(&tally), (3, 4));
    assert_eq!(tally.total_of(OperationKind::Insert), 2);
    assert_eq!(tally.cell(OperationKind::Delete, Outcome::Success).count, 1);
    let map = memory.map.lock().unwrap();
    assert_eq!((map[&b"k\0"[..]].len(), map[&b"d\0"[..]].len(), map.len()), (7, 5, 2));
}

#[test]
fn malformed_lines_are_refused_with_their_place() {
    let header = "key,key_size,op,op_count,size,ttl\n";
    for (name, rows, words) in [
        ("a", "k,2,GET,1,0,0\nk,2,FETCH,1,0,0\n", ":3: op \"FETCH\""),
        ("b", "k,2,GET,1,0\n", ":2: 5 columns"),
        ("c", "k,2,GET,x,0,0\n", ":2: op_count \"x\""),
        ("d", "k,2,GET,1,9999999,0\n", ":2: size 9999999"),
        ("e", "k,5000,GET,1,0,0\n", ":2: a key of 5000 bytes"),
    ] {
        let path = written(name, format!("{header}{rows}").as_bytes());
        let memory = Memory::default();
        let error = replay(&memory, TraceFormat::Cachelib, &path, 1).expect_err(words).to_string();
        std::fs::remove_file(&path).unwrap();
        assert!(error.contains(words), "{error} lacks {words}");
        assert_eq!(memory.len(), 0, "nothing is done before the whole trace was checked");
    }
    let path = written("headless", b"1,2,3\n");
    let error = replay(&Memory::default(), TraceFormat::Cachelib, &path, 1).unwrap_err().to_string();
    assert!(error.contains(":1: no column key"), "{error}");
    let endless = vec![b'x'; 5 << 20];
    let path = written("headless", &endless);
    let error = replay(&Memory::default(), TraceFormat::Mooncake, &path, 1).unwrap_err().to_string();
    std::fs::remove_file(&path).unwrap();
    assert!(error.contains(":1: more than the 4194304 bytes"), "{error}");
}

#[test]
fn a_wrong_value_is_found() {
    let path = written("wrong", b"0,key,3,100,1,set,0\n0,key,3,100,1,get,0\n0,key,3,100,1,append,0\n");
    let memory = Memory::default();
    let (tally, _) = replay(&memory, TraceFormat::Twitter, &path, 1).unwrap();
    assert_eq!((tally.total(Outcome::Success), &tally.first_error), (3, &None));
    memory.map.lock().unwrap().get_mut(&b"key"[..]).unwrap()[99] ^= 1;
    std::fs::write(&path, b"0,key,3,100,1,get,0\n").unwrap();
    let (tally, _) = replay(&memory, TraceFormat::Twitter, &path, 1).unwrap();
    std::fs::remove_file(&path).unwrap();
    assert_eq!(tally.total(Outcome::Error), 1);
    assert!(tally.first_error.unwrap().contains("wrong value under key key: 100 bytes"));
}
