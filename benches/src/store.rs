//! What the load generator asks of a store, and what it counts there.
//!
//! Always true:
//! - a [`Store`] belongs to one worker thread and is never shared;
//! - counters only grow, so the difference of two snapshots is what happened in between.

use std::ops::Sub;

pub use sidestep_client::Effect;

/// Opens the stores of a run: one for each worker thread.
pub trait Connect: Sync {
    /// Opens a store for the calling thread.
    fn open(&self) -> Result<Box<dyn Store>, StoreError>;
}

/// The operations of one worker thread. It may be opened by another one.
pub trait Store: Send {
    /// Reads the value of `key` into `value` (whose old content is dropped); false if there is none.
    fn get(&mut self, key: &[u8], value: &mut Vec<u8>) -> Result<bool, StoreError>;
    /// Writes `value` under `key`, whether there was one or not.
    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<(), StoreError>;
    /// Removes `key`; says whether it was there.
    fn delete(&mut self, key: &[u8]) -> Result<bool, StoreError>;
    /// What the operations of this store have cost so far.
    fn counters(&self) -> Counters;
    /// The fabric in use, for the report.
    fn fabric(&self) -> Fabric;
    /// How things stand at the server.
    fn server(&mut self) -> Result<ServerFigures, StoreError>;
}

/// What the server says of itself.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize)]
pub struct ServerFigures {
    /// Bytes for keys and values.
    pub pool_bytes: u64,
    /// Bytes of it that are cut up for no size class.
    pub free_bytes: u64,
    /// Bytes kept for deletes.
    pub reserve_bytes: u64,
    /// Chunks of sessions that ended, not swept yet.
    pub orphan_chunks: u64,
    /// Resident memory of the server's process.
    pub resident_bytes: u64,
    /// Segments that serve.
    pub segments: u64,
    /// Segments rebuilt since the start.
    pub rebuilds: u64,
    /// Those of them that were split in two.
    pub splits: u64,
}

/// What lies between client and memory node.
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize)]
pub struct Fabric {
    /// Its short name.
    pub name: String,
    /// A line for people.
    pub description: String,
}

/// Why a store could not do what it was asked.
#[derive(Debug, Clone, thiserror::Error)]
pub enum StoreError {
    /// No connection could be made.
    #[error("cannot reach {endpoint}: {reason}")]
    Unreachable {
        /// Where it was tried.
        endpoint: String,
        /// What went wrong.
        reason: String,
    },
    /// The server was reached and cannot serve this client.
    #[error("{reason}")]
    Refused {
        /// Why.
        reason: String,
    },
    /// One operation failed.
    #[error("{operation} failed (did it happen: {effect}): {reason}")]
    Failed {
        /// Which operation.
        operation: &'static str,
        /// Whether it changed the store all the same.
        effect: Effect,
        /// What went wrong.
        reason: String,
    },
}

/// What one kind of operation has cost.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize)]
pub struct Cost {
    /// Finished operations.
    pub operations: u64,
    /// Round trips on their critical path.
    pub round_trips: u64,
    /// Verbs posted for them and waited for.
    pub verbs: u64,
    /// Verbs that nobody waits for, such as marking an old block as free.
    pub silent_verbs: u64,
    /// Times that an operation started over or tried its compare-and-swap again.
    pub retries: u64,
    /// Bytes sent to the memory node.
    pub sent_bytes: u64,
    /// Bytes fetched from the memory node.
    pub received_bytes: u64,
}

impl Cost {
    /// Adds another store's costs.
    pub fn add(&mut self, other: &Self) {
        self.operations += other.operations;
        self.round_trips += other.round_trips;
        self.verbs += other.verbs;
        self.silent_verbs += other.silent_verbs;
        self.retries += other.retries;
        self.sent_bytes += other.sent_bytes;
        self.received_bytes += other.received_bytes;
    }
}

impl Sub for Cost {
    type Output = Self;

    fn sub(self, earlier: Self) -> Self {
        Self {
            operations: self.operations.saturating_sub(earlier.operations),
            round_trips: self.round_trips.saturating_sub(earlier.round_trips),
            verbs: self.verbs.saturating_sub(earlier.verbs),
            silent_verbs: self.silent_verbs.saturating_sub(earlier.silent_verbs),
            retries: self.retries.saturating_sub(earlier.retries),
            sent_bytes: self.sent_bytes.saturating_sub(earlier.sent_bytes),
            received_bytes: self.received_bytes.saturating_sub(earlier.received_bytes),
        }
    }
}

/// What the operations of a store have cost, by kind.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize)]
pub struct Counters {
    /// Reads.
    pub get: Cost,
    /// Writes.
    pub put: Cost,
    /// Removals.
    pub delete: Cost,
}

impl Counters {
    /// Adds another store's costs.
    pub fn add(&mut self, other: &Self) {
        self.get.add(&other.get);
        self.put.add(&other.put);
        self.delete.add(&other.delete);
    }
}

impl Sub for Counters {
    type Output = Self;

    fn sub(self, earlier: Self) -> Self {
        Self {
            get: self.get - earlier.get,
            put: self.put - earlier.put,
            delete: self.delete - earlier.delete,
        }
    }
}
