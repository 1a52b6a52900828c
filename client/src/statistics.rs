//! What a client did: operations, round trips, verbs, bytes, retries, per kind of operation.
//!
//! Always true: a session's counters have one writer, the thread that drives it, so counting costs a load and a
//! store, and anybody may read them at any time. Errors are counted apart from operations that succeeded.

use serde::Serialize;
use sidestep_common::sync::{Arc, AtomicU64, Ordering};

use crate::operation::Plan;

/// Kinds of operation that are counted apart.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    /// get, also each key of a multi-get.
    Get,
    /// put.
    Put,
    /// delete.
    Delete,
}

/// One kind's figures.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
pub struct KindStatistics {
    /// Operations that ended with an answer.
    pub operations: u64,
    /// Of these, those that found no key.
    pub misses: u64,
    /// Calls that ended with an error. What was tried again and then went well is none.
    pub errors: u64,
    /// Waits for the memory node; the keys of a multi-get each count the round trips they shared.
    pub round_trips: u64,
    /// Verbs posted, silent ones too.
    pub verbs: u64,
    /// Verbs among them that nobody waited for.
    pub silent_verbs: u64,
    /// Bytes fetched from the memory node.
    pub bytes_read: u64,
    /// Bytes stored there, 8 for each atomic.
    pub bytes_written: u64,
    /// Times that an operation had to start over or try its CAS again.
    pub retries: u64,
}

/// A client's or session's figures.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
pub struct Statistics {
    /// Gets.
    pub get: KindStatistics,
    /// Puts.
    pub put: KindStatistics,
    /// Deletes.
    pub delete: KindStatistics,
    /// Data paths joined again after a failure.
    pub reconnects: u64,
    /// Requests for block memory.
    pub chunk_requests: u64,
}

impl Statistics {
    pub(crate) fn add(&mut self, other: &Self) {
        for (sum, part) in
            [(&mut self.get, &other.get), (&mut self.put, &other.put), (&mut self.delete, &other.delete)]
        {
            sum.operations += part.operations;
            sum.misses += part.misses;
            sum.errors += part.errors;
            sum.round_trips += part.round_trips;
            sum.verbs += part.verbs;
            sum.silent_verbs += part.silent_verbs;
            sum.bytes_read += part.bytes_read;
            sum.bytes_written += part.bytes_written;
            sum.retries += part.retries;
        }
        self.reconnects += other.reconnects;
        self.chunk_requests += other.chunk_requests;
    }
}

/// What one operation took, counted by the driver.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Tally {
    /// Waits for the memory node.
    pub round_trips: u64,
    /// Verbs posted, silent ones too.
    pub verbs: u64,
    /// Verbs that nobody waited for.
    pub silent_verbs: u64,
    /// Bytes fetched.
    pub bytes_read: u64,
    /// Bytes stored.
    pub bytes_written: u64,
}

impl Tally {
    /// One more round trip, with these verbs of an operation whose block has these pieces.
    pub(crate) fn count(&mut self, plan: &Plan, pieces: (&[u8], &[u8])) {
        self.round_trips += 1;
        self.verbs += plan.len() as u64;
        for verb in plan {
            self.bytes_written += verb.written_bytes(pieces);
            self.bytes_read += verb.read_bytes();
        }
    }
}

/// A counter with one writer.
#[derive(Default, Debug)]
struct Counter(AtomicU64);

impl Counter {
    #[inline]
    fn add(&self, more: u64) {
        // One writer: nothing can come between. Readers want a number, not an order.
        self.0.store(self.0.load(Ordering::Relaxed) + more, Ordering::Relaxed);
    }

    fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

#[derive(Default, Debug)]
struct KindCounters {
    operations: Counter,
    misses: Counter,
    errors: Counter,
    round_trips: Counter,
    verbs: Counter,
    silent_verbs: Counter,
    bytes_read: Counter,
    bytes_written: Counter,
    retries: Counter,
}

/// A session's counters; written by its thread, read by anybody.
#[derive(Default, Debug)]
pub(crate) struct Counters {
    kinds: [KindCounters; 3],
    reconnects: Counter,
    chunk_requests: Counter,
}

/// A session's counters as it holds them; what is counted when it lets go of them is in the sum.
pub(crate) type SharedCounters = Arc<Counters>;

/// The counters of all of a client's sessions.
///
/// Always true: a session that has ended costs nothing, and what it did stays in the sum.
#[derive(Default, Debug)]
pub(crate) struct AllCounters {
    sessions: Vec<SharedCounters>,
    ended: Statistics,
}

impl AllCounters {
    /// Counters for one more session.
    pub(crate) fn add(&mut self) -> SharedCounters {
        let ended = &mut self.ended;
        self.sessions.retain_mut(|counters| {
            // Sees all that the session counted before it let go (an acquire, for the release of letting go).
            let last = Arc::get_mut(counters);
            if let Some(last) = &last {
                ended.add(&last.snapshot());
            }
            last.is_none()
        });
        let counters = Arc::new(Counters::default());
        self.sessions.push(Arc::clone(&counters));
        counters
    }

    /// What all sessions did, those that have ended too.
    pub(crate) fn sum(&self) -> Statistics {
        let mut sum = self.ended;
        self.sessions.iter().for_each(|counters| sum.add(&counters.snapshot()));
        sum
    }
}

/// How an operation ended, for counting.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Ending {
    Hit,
    Miss,
    Error,
    /// Not yet: what it took counts, how it ends is counted by its call, which may try again.
    Open,
}

impl Counters {
    #[inline]
    pub(crate) fn count(&self, kind: Kind, ending: Ending, tally: Tally, retries: u32) {
        let counters = &self.kinds[kind as usize];
        match ending {
            Ending::Hit => counters.operations.add(1),
            Ending::Miss => {
                counters.operations.add(1);
                counters.misses.add(1);
            }
            Ending::Error => counters.errors.add(1),
            Ending::Open => {}
        }
        counters.round_trips.add(tally.round_trips);
        counters.verbs.add(tally.verbs);
        counters.silent_verbs.add(tally.silent_verbs);
        counters.bytes_read.add(tally.bytes_read);
        counters.bytes_written.add(tally.bytes_written);
        counters.retries.add(u64::from(retries));
    }

    pub(crate) fn count_reconnect(&self) {
        self.reconnects.add(1);
    }

    pub(crate) fn count_chunk_request(&self) {
        self.chunk_requests.add(1);
    }

    pub(crate) fn snapshot(&self) -> Statistics {
        let kind = |kind: Kind| {
            let counters = &self.kinds[kind as usize];
            KindStatistics {
                operations: counters.operations.get(),
                misses: counters.misses.get(),
                errors: counters.errors.get(),
                round_trips: counters.round_trips.get(),
                verbs: counters.verbs.get(),
                silent_verbs: counters.silent_verbs.get(),
                bytes_read: counters.bytes_read.get(),
                bytes_written: counters.bytes_written.get(),
                retries: counters.retries.get(),
            }
        };
        Statistics {
            get: kind(Kind::Get),
            put: kind(Kind::Put),
            delete: kind(Kind::Delete),
            reconnects: self.reconnects.get(),
            chunk_requests: self.chunk_requests.get(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sessions come and go (or never come, when the server can't be reached): what they did is kept, they are not.
    #[test]
    fn sessions_that_ended_stay_in_the_sum_only() {
        let mut all = AllCounters::default();
        let keeper = all.add();
        keeper.count_reconnect();
        for _ in 0..1000 {
            all.add().count(Kind::Put, Ending::Hit, Tally { verbs: 3, ..Tally::default() }, 0);
            assert!(all.sessions.len() <= 3);
        }
        let sum = all.sum();
        assert_eq!((sum.put.operations, sum.put.verbs, sum.reconnects), (1000, 3000, 1));
    }
}

#[cfg(all(test, loom))]
mod models {
    use sidestep_common::sync::explore;

    use super::*;

    /// A session counts and ends, while another one is opened and asks for the sum: it never sinks, and in the end nothing
    /// is lost.
    #[test]
    fn what_an_ended_session_did_is_never_lost() {
        explore(None, || {
            let mut all = AllCounters::default();
            let counters = all.add();
            let session = loom::thread::spawn(move || counters.kinds[0].operations.add(1));
            let before = all.sum().get.operations;
            let other = all.add();
            let after = all.sum().get.operations;
            assert!(before <= after, "{before} {after}");
            session.join().unwrap();
            drop(other);
            drop(all.add());
            assert_eq!((all.sum().get.operations, all.sessions.len()), (1, 1));
        });
    }

    /// A session is kept when its thread ends, and another thread goes on with it: both count, while a third one looks.
    #[test]
    fn counters_pass_from_thread_to_thread() {
        explore(None, || {
            let counters = Arc::new(Counters::default());
            // The lock is what hands sessions on in `thread_local`.
            let kept = std::sync::Arc::new(loom::sync::Mutex::new(Arc::clone(&counters)));
            let earlier = std::sync::Arc::clone(&kept);
            let thread = loom::thread::spawn(move || earlier.lock().unwrap().kinds[0].operations.add(1));
            kept.lock().unwrap().kinds[0].operations.add(1);
            let seen = counters.kinds[0].operations.get();
            assert!((1..=2).contains(&seen), "{seen}");
            thread.join().unwrap();
            assert_eq!(counters.kinds[0].operations.get(), 2);
        });
    }
}
