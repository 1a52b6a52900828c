//! An in-process store for tests of the load generator: a map behind a lock, shared by the threads.
//!
//! Always true: it says nothing of any fabric; it counts one round trip and one verb an operation.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::store::{Connect, Cost, Counters, Effect, Fabric, ServerFigures, Store, StoreError};

type Map = Arc<Mutex<HashMap<Vec<u8>, Vec<u8>>>>;

/// Opens stores on one map.
#[derive(Debug, Default)]
pub(crate) struct Memory {
    pub(crate) map: Map,
    /// Every so many'th put fails (0: none).
    pub(crate) failing_put: u64,
    /// The first operation of each store takes so long.
    pub(crate) stall: Duration,
    /// Whether opening fails.
    pub(crate) is_unreachable: bool,
    pub(crate) puts: Arc<AtomicU64>,
}

struct MemoryStore {
    map: Map,
    failing_put: u64,
    stall: Duration,
    puts: Arc<AtomicU64>,
    counters: Counters,
}

impl Memory {
    pub(crate) fn len(&self) -> usize {
        self.map.lock().unwrap().len()
    }
}

impl Connect for Memory {
    fn open(&self) -> Result<Box<dyn Store>, StoreError> {
        if self.is_unreachable {
            return Err(StoreError::Unreachable { endpoint: "memory".into(), reason: "asked to be".into() });
        }
        Ok(Box::new(MemoryStore {
            map: self.map.clone(),
            failing_put: self.failing_put,
            stall: self.stall,
            puts: self.puts.clone(),
            counters: Counters::default(),
        }))
    }
}

fn count(cost: &mut Cost, sent_bytes: usize, received_bytes: usize) {
    cost.add(&Cost {
        operations: 1,
        round_trips: 1,
        verbs: 1,
        silent_verbs: 0,
        retries: 0,
        sent_bytes: sent_bytes as u64,
        received_bytes: received_bytes as u64,
    });
}

impl Store for MemoryStore {
    fn get(&mut self, key: &[u8], value: &mut Vec<u8>) -> Result<bool, StoreError> {
        std::thread::sleep(std::mem::take(&mut self.stall));
        let map = self.map.lock().unwrap();
        value.clear();
        value.extend_from_slice(map.get(key).map_or(&[], |found| found));
        count(&mut self.counters.get, 0, value.len());
        Ok(map.contains_key(key))
    }

    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<(), StoreError> {
        count(&mut self.counters.put, value.len(), 0);
        let number = self.puts.fetch_add(1, Ordering::Relaxed) + 1;
        if self.failing_put > 0 && number.is_multiple_of(self.failing_put) {
            return Err(StoreError::Failed {
                operation: "put",
                effect: Effect::No,
                reason: "asked to".into(),
            });
        }
        self.map.lock().unwrap().insert(key.to_vec(), value.to_vec());
        Ok(())
    }

    fn delete(&mut self, key: &[u8]) -> Result<bool, StoreError> {
        count(&mut self.counters.delete, 0, 0);
        Ok(self.map.lock().unwrap().remove(key).is_some())
    }

    fn counters(&self) -> Counters {
        self.counters
    }

    fn fabric(&self) -> Fabric {
        Fabric { name: "memory".to_owned(), description: "a map in this process".to_owned() }
    }

    /// Of a pool of 4 MiB, of which each entry takes its bytes.
    fn server(&mut self) -> Result<ServerFigures, StoreError> {
        let map = self.map.lock().unwrap();
        let used: usize = map.iter().map(|(key, value)| key.len() + value.len()).sum();
        let pool_bytes = 4 << 20;
        Ok(ServerFigures {
            pool_bytes,
            free_bytes: pool_bytes - used as u64,
            segments: 1 + map.len() as u64 / 1000,
            ..ServerFigures::default()
        })
    }
}

/// The place of a shared trace or workload file. Where there is none, says so and gives nothing: the test that
/// asked is to be counted as skipped.
pub(crate) fn shared_trace(folder: &str, name: &str) -> Option<std::path::PathBuf> {
    let from_environment = std::env::var_os("SIDESTEP_TRACES").map(std::path::PathBuf::from);
    let workspace = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().skip(1);
    let beside = workspace.map(|folder| folder.join("shared/traces")).find(|folder| folder.is_dir());
    let found = from_environment
        .or(beside)
        .map(|traces| traces.join(folder).join(name))
        .filter(|path| path.is_file());
    if found.is_none() {
        use std::io::Write;
        // Past the test harness's capture, so that the skip is visible in a passing run.
        let _ = writeln!(
            std::io::stderr(),
            "SKIPPED: no {folder}/{name}; set SIDESTEP_TRACES to the traces folder"
        );
    }
    found
}
