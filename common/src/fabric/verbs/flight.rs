//! What is in flight: which work request belongs to which verb of which batch, and how many more fit.
//!
//! Always true: work requests have consecutive numbers, in the order posted, and a card completes them in this
//! order. So one completion says that all before it are done too, and only the last request of a batch need be
//! signalled. Every work request that is not known to be done is counted: the send queue holds `limit + slack` of
//! them and the completion queue as many entries, so neither can overrun, whatever fails.
//!
//! Requests of silent batches are signalled only every `slack` requests. A tail of fewer can stay uncounted,
//! since nothing would tell when they are done; the slack is the room for that tail.
//!
//! Pure: no card is needed to test it.

use std::collections::VecDeque;

use smallvec::SmallVec;

use crate::fabric::{BatchId, Buffer, Completion, Effect, Failure, FailureKind, PostError, Reply};

/// A verb that was posted.
#[derive(Debug)]
pub(super) enum Pending {
    /// A READ with its buffer.
    Read(Buffer),
    /// A WRITE.
    Write,
    /// A CAS or FAA; its result is in the cell of its work request.
    Atomic,
}

/// A batch that was posted.
#[derive(Debug)]
struct InFlight {
    id: BatchId,
    silent: bool,
    /// Number of its first work request.
    first: u64,
    verbs: SmallVec<[Pending; 4]>,
    /// Where the staging memory was after it.
    staged_end: u64,
}

impl InFlight {
    fn end(&self) -> u64 {
        self.first + self.verbs.len() as u64
    }
}

/// Why a connection failed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Cause {
    /// The kind, for the batch that failed.
    pub(super) kind: FailureKind,
    /// Whether the verb that failed, and what is behind it, took effect.
    pub(super) effect: Effect,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Flight {
    limit: usize,
    slack: u64,
    /// Number of the next work request.
    next: u64,
    /// All before this are done.
    done: u64,
    /// Requests at the end that no signal follows.
    tail: u64,
    batches: VecDeque<InFlight>,
    /// The request that failed, and why.
    failed: Option<(u64, Cause)>,
    /// Staging memory before this is free.
    staged_done: u64,
    /// Buffers of failed READs: kept until the queue pair is destroyed.
    retired: Vec<Buffer>,
}

impl Flight {
    /// Room for `limit` verbs at once, and `slack` more for silent ones that nothing signals.
    pub(super) fn new(limit: usize, slack: usize) -> Self {
        assert!(limit > 0 && slack > 0, "{limit} {slack}");
        Self {
            limit,
            slack: slack as u64,
            next: 0,
            done: 0,
            tail: 0,
            batches: VecDeque::new(),
            failed: None,
            staged_done: 0,
            retired: Vec::new(),
        }
    }

    /// Work requests that the send queue, and entries that the completion queue must hold.
    pub(super) const fn queue_depth(limit: usize, slack: usize) -> usize {
        limit + slack
    }

    /// How many verbs may be in flight.
    pub(super) fn limit(&self) -> usize {
        self.limit
    }

    /// Number of the next work request.
    pub(super) fn next(&self) -> u64 {
        self.next
    }

    /// Verbs in flight that something will tell the end of. What is done and not taken counts: its results still lie
    /// in the cells, which go by the same numbers.
    fn in_flight(&self) -> usize {
        let taken = self.batches.front().map_or(self.next, |batch| batch.first);
        (self.next - self.done.min(taken) - self.tail) as usize
    }

    /// Whether waiting brings no more room: all that is left is silent, with no signal behind it.
    pub(super) fn is_idle(&self) -> bool {
        self.in_flight() == 0
    }

    /// Whether [`Self::take`] would take something.
    pub(super) fn has_ended(&self) -> bool {
        self.batches.front().is_some_and(|batch| self.is_over(batch))
    }

    fn is_over(&self, batch: &InFlight) -> bool {
        batch.end() <= self.done || batch.verbs.is_empty() || self.failed.is_some()
    }

    /// Whether a READ may be under way.
    pub(super) fn has_reads(&self) -> bool {
        let reads = |verb: &Pending| matches!(verb, Pending::Read(_));
        self.batches.iter().any(|batch| batch.verbs.iter().any(reads))
    }

    /// Staging memory before this is free.
    pub(super) fn staged_done(&self) -> u64 {
        self.staged_done
    }

    /// The answer to a call that fits when something in flight is done.
    pub(super) fn full(&self, asked: usize) -> PostError {
        PostError::Full { asked, in_flight: self.in_flight(), limit: self.limit }
    }

    /// Whether `asked` more verbs fit.
    pub(super) fn check(&self, asked: usize) -> Result<(), PostError> {
        let limit = self.limit;
        if asked > limit {
            return Err(PostError::TooLarge { what: "verbs of one call", asked, limit });
        }
        if self.in_flight() + asked > limit { Err(self.full(asked)) } else { Ok(()) }
    }

    /// Whether the last of a batch's `count` requests must be signalled, if `tail` requests before it have no signal
    /// behind them; and how many have none then.
    pub(super) fn signal(&self, silent: bool, count: usize, tail: u64) -> (bool, u64) {
        let tail = tail + count as u64;
        let signalled = count > 0 && (!silent || tail >= self.slack);
        (signalled, if signalled { 0 } else { tail })
    }

    /// Requests at the end that no signal follows.
    pub(super) fn tail(&self) -> u64 {
        self.tail
    }

    /// Takes note of a batch that was posted; `tail` is what [`Self::signal`] said for it.
    pub(super) fn push(
        &mut self,
        id: BatchId,
        silent: bool,
        verbs: SmallVec<[Pending; 4]>,
        tail: u64,
        staged_end: u64,
    ) {
        let batch = InFlight { id, silent, first: self.next, verbs, staged_end };
        self.next = batch.end();
        self.tail = tail;
        self.batches.push_back(batch);
    }

    /// The card says that the request of that number is done, and so all before it.
    pub(super) fn complete(&mut self, number: u64) {
        if number >= self.done && number < self.next {
            self.done = number + 1;
        }
    }

    /// The card says that the request of that number failed; what is before it is done, what is behind it is
    /// not. Only the first failure counts, those behind it are its consequence.
    pub(super) fn fail(&mut self, number: u64, cause: Cause) {
        if self.failed.is_none() {
            let number = number.clamp(self.done, self.next);
            self.done = number;
            self.failed = Some((number, cause));
        }
    }

    /// The connection ended; what is not known to be done is in doubt.
    pub(super) fn fail_oldest(&mut self, cause: Cause) {
        self.fail(self.done, cause);
    }

    /// Why the connection failed, if it did.
    pub(super) fn failure(&self) -> Option<&Cause> {
        self.failed.as_ref().map(|(_, cause)| cause)
    }

    /// Appends the completions of all batches that are over; `old` gives the result of an atomic by its number.
    pub(super) fn take(
        &mut self,
        completions: &mut Vec<Completion>,
        mut old: impl FnMut(u64) -> u64,
    ) -> usize {
        let before = completions.len();
        while self.has_ended() {
            let Some(batch) = self.batches.pop_front() else { break };
            self.staged_done = batch.staged_end;
            let (id, silent) = (batch.id, batch.silent);
            let result = if batch.end() <= self.done {
                let numbered = (batch.first..).zip(batch.verbs);
                let reply = |(number, verb)| match verb {
                    Pending::Read(buffer) => Reply::Read(buffer),
                    Pending::Write => Reply::Written,
                    Pending::Atomic => Reply::Old(old(number)),
                };
                Ok(numbered.map(reply).collect())
            } else {
                Err(self.failure_of(batch))
            };
            if !silent {
                completions.push(Completion { batch: id, result });
            }
        }
        completions.len() - before
    }

    fn failure_of(&mut self, batch: InFlight) -> Failure {
        let (number, cause) = match &self.failed {
            Some((number, cause)) => (*number, cause.clone()),
            None => unreachable!("batch {:?} is neither done nor failed", batch.id),
        };
        self.retired.extend(batch.verbs.into_iter().filter_map(|verb| match verb {
            Pending::Read(buffer) => Some(buffer),
            Pending::Write | Pending::Atomic => None,
        }));
        if batch.first <= number {
            let verb_index = (number - batch.first) as usize;
            return Failure { verb_index, kind: cause.kind, effect: cause.effect };
        }
        // Behind the one that failed: not executed if the memory node refused that one, else in doubt too.
        let kind = match cause.effect {
            Effect::No => FailureKind::Flushed,
            Effect::Yes | Effect::Unknown => match cause.kind {
                kind @ FailureKind::Disconnected(_) => kind,
                other => FailureKind::Disconnected(format!("behind a failed verb: {other}")),
            },
        };
        Failure { verb_index: 0, kind, effect: cause.effect }
    }
}

#[cfg(test)]
mod tests {
    use smallvec::smallvec;

    use super::*;

    /// Posts one batch of WRITEs as the fabric would; tells the number of its last request and whether that is
    /// signalled.
    fn post(flight: &mut Flight, id: u64, verbs: usize, silent: bool) -> Result<(u64, bool), PostError> {
        flight.check(verbs)?;
        let (signalled, tail) = flight.signal(silent, verbs, flight.tail());
        let pending = (0..verbs).map(|_| Pending::Write).collect();
        flight.push(BatchId(id), silent, pending, tail, 0);
        Ok((flight.next() - 1, signalled))
    }

    /// A queue of any depth, a card that completes only what is signalled and as late as it can: every batch is
    /// accounted for, in order, and the send queue never holds more than it was made for.
    #[test]
    fn nothing_is_lost_and_nothing_overruns() {
        for limit in [1, 2, 3, 16, 61, 256] {
            for slack in [1, 4, 16, 64] {
                let mut flight = Flight::new(limit, slack);
                let (mut signals, mut completions) = (VecDeque::new(), Vec::new());
                let (mut expected, mut seen, mut retries) = (0, 0, 0);
                for at in 0..20_000_u64 {
                    let (verbs, silent) = (1 + (at % 3) as usize, at % 5 > 1);
                    let verbs = verbs.min(limit);
                    while let Err(error) = post(&mut flight, at, verbs, silent).map(|(number, signalled)| {
                        if signalled {
                            signals.push_back(number);
                        }
                    }) {
                        assert!(matches!(error, PostError::Full { .. }), "{error}");
                        let number = signals.pop_front().expect("a full queue has a signal under way");
                        flight.complete(number);
                        flight.take(&mut completions, |_| 0);
                        retries += 1;
                    }
                    expected += u64::from(!silent);
                    let held = flight.next - flight.done;
                    assert!(
                        held as usize <= Flight::queue_depth(limit, slack),
                        "{held} of {limit} + {slack}"
                    );
                    seen += completions.len() as u64;
                    assert!(completions.drain(..).all(|completion| completion.result.is_ok()));
                }
                for number in signals {
                    flight.complete(number);
                }
                flight.take(&mut completions, |_| 0);
                assert_eq!(seen + completions.len() as u64, expected, "{limit} {slack}");
                assert!(retries > 0, "the limit was reached");
            }
        }
    }

    #[test]
    fn a_tail_that_nothing_signals_never_blocks_a_call_of_full_size() {
        let mut flight = Flight::new(8, 4);
        for id in 0..3 {
            assert!(!post(&mut flight, id, 1, true).unwrap().1);
        }
        assert!(post(&mut flight, 3, 8, false).unwrap().1);
        assert!(matches!(post(&mut flight, 4, 1, false), Err(PostError::Full { in_flight: 11, .. })));
        assert!(matches!(
            post(&mut flight, 4, 9, false),
            Err(PostError::TooLarge { asked: 9, limit: 8, .. })
        ));
    }

    /// A caller that waits, and so learns that batches are done, and posts again before it takes them: their results still
    /// lie in the cells of their numbers, so they go on counting until they are taken.
    #[test]
    fn what_is_done_and_not_taken_keeps_its_room() {
        let mut flight = Flight::new(8, 4);
        for id in 0..8 {
            post(&mut flight, id, 1, false).unwrap();
        }
        assert!(!flight.has_ended());
        flight.complete(7);
        assert!(flight.has_ended());
        assert!(matches!(post(&mut flight, 8, 1, false), Err(PostError::Full { in_flight: 8, .. })));
        assert_eq!(outcomes(&mut flight).len(), 8);
        assert!(!flight.has_ended() && flight.is_idle());
        post(&mut flight, 8, 8, false).unwrap();
    }

    /// Silent requests that no signal follows are there for ever, so nobody must wait for them to make room.
    #[test]
    fn a_tail_alone_is_nothing_to_wait_for() {
        let mut flight = Flight::new(8, 4);
        post(&mut flight, 0, 1, true).unwrap();
        assert!(flight.is_idle());
        post(&mut flight, 1, 1, false).unwrap();
        assert!(!flight.is_idle());
    }

    #[test]
    fn one_completion_ends_all_before_it() {
        let mut flight = Flight::new(16, 4);
        for id in 0..3 {
            let verbs = smallvec![Pending::Write, Pending::Atomic];
            flight.push(BatchId(id), id == 1, verbs, 0, 10 * id);
        }
        flight.complete(3);
        let mut completions = Vec::new();
        assert_eq!(flight.take(&mut completions, |number| 100 + number), 1);
        let replies = completions[0].result.as_ref().unwrap();
        assert!(matches!(replies[..], [Reply::Written, Reply::Old(101)]), "{replies:?}");
        assert_eq!(flight.staged_done(), 10);
        flight.complete(3);
        assert_eq!(flight.take(&mut completions, |_| 0), 0);
    }

    fn outcomes(flight: &mut Flight) -> Vec<(u64, usize, Effect, bool)> {
        let mut completions = Vec::new();
        flight.take(&mut completions, |_| 0);
        completions
            .into_iter()
            .map(|completion| match completion.result {
                Ok(_) => (completion.batch.0, 0, Effect::Yes, false),
                Err(failure) => {
                    let flushed = failure.kind == FailureKind::Flushed;
                    (completion.batch.0, failure.verb_index, failure.effect, flushed)
                }
            })
            .collect()
    }

    /// Batches 0 to 3 of two verbs; the second verb of batch 1 is refused by the memory node. Batch 0 is done
    /// although nothing said so, 1 failed at verb 1, the others were not executed.
    #[test]
    fn a_refused_verb_says_what_happened_before_and_behind_it() {
        let mut flight = Flight::new(16, 4);
        for id in 0..4 {
            post(&mut flight, id, 2, false).unwrap();
        }
        flight.fail(3, Cause { kind: FailureKind::Access("bounds".into()), effect: Effect::No });
        flight.fail(0, Cause { kind: FailureKind::Flushed, effect: Effect::Unknown });
        let no = Effect::No;
        let expected = [(0, 0, Effect::Yes, false), (1, 1, no, false), (2, 0, no, true), (3, 0, no, true)];
        assert_eq!(outcomes(&mut flight), expected);
        assert!(flight.batches.is_empty());
    }

    #[test]
    fn a_lost_connection_leaves_all_that_is_not_done_in_doubt() {
        let mut flight = Flight::new(16, 4);
        for id in 0..3 {
            post(&mut flight, id, 2, id == 1).unwrap();
        }
        flight.complete(1);
        flight.fail_oldest(Cause { kind: FailureKind::Disconnected("gone".into()), effect: Effect::Unknown });
        assert_eq!(outcomes(&mut flight), [(0, 0, Effect::Yes, false), (2, 0, Effect::Unknown, false)]);
    }
}
