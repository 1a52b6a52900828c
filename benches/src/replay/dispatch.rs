//! Hands the requests of a trace to worker threads, by key.
//!
//! Always true: all requests of a key go to the same thread, in order; the trace is read no further ahead than
//! the queues are long, so a trace of any length needs little memory.

use std::collections::HashSet;
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use super::trace::{Request, Requests, TraceError};

/// Requests that are handed over together: enough to make the queue's lock cheap.
pub const BATCH_REQUESTS: usize = 128;

/// Batches that wait for a thread: enough to keep it busy while another thread's batches fill.
const QUEUE_BATCHES: usize = 32;

/// What the reading thread found.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Dispatched {
    /// Operations that the trace asks for, repetitions counted.
    pub operations: u64,
    /// Different keys.
    pub distinct_keys: u64,
    /// Rows with an expiry, which is not applied.
    pub rows_with_ttl: u64,
}

/// The queues: one sender for the reading thread, one receiver a worker.
pub fn queues(threads: u32) -> (Dispatcher, Vec<Receiver<Vec<Request>>>) {
    let (senders, receivers) = (0..threads).map(|_| sync_channel(QUEUE_BATCHES)).unzip();
    (Dispatcher { senders }, receivers)
}

/// The reading thread's side.
#[derive(Debug)]
pub struct Dispatcher {
    senders: Vec<SyncSender<Vec<Request>>>,
}

impl Dispatcher {
    /// Reads the whole trace. Ends early, without an error, when a worker is gone.
    pub fn run(self, requests: Requests) -> Result<Dispatched, TraceError> {
        let mut dispatched = Dispatched::default();
        // Hashes stand for keys: among 2^32 keys two would share one with a chance of a half.
        let (hasher, mut seen) = (RandomState::new(), HashSet::new());
        let mut batches: Vec<Vec<Request>> = self.senders.iter().map(|_| Vec::new()).collect();
        for request in requests {
            let request = request?;
            dispatched.operations += u64::from(request.repeat);
            dispatched.rows_with_ttl += u64::from(request.has_ttl);
            let hash = hasher.hash_one(&request.key);
            seen.insert(hash);
            let thread = (hash % self.senders.len() as u64) as usize;
            batches[thread].push(request);
            if batches[thread].len() == BATCH_REQUESTS
                && self.senders[thread].send(std::mem::take(&mut batches[thread])).is_err()
            {
                break;
            }
        }
        for (sender, batch) in self.senders.iter().zip(batches) {
            // A worker that is gone was interrupted, or failed, and says so itself.
            let _ = sender.send(batch);
        }
        dispatched.distinct_keys = seen.len() as u64;
        Ok(dispatched)
    }
}
