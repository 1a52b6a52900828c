//! Runs operations over a fabric: gives their verbs buffers and batches, waits, and hands replies back.
//!
//! Always true: a buffer taken for a READ comes back to the pool, whatever becomes of the operation, at the
//! latest when the fabric is dropped. A completion that nobody waits for any more (its operation ran out of
//! time) is recognised by its batch id and dropped. Operations run together go in step: all that want verbs
//! share one doorbell, so n gets take the round trips of one, as far as buffers and the fabric's limit go; the
//! rest follows.

use std::time::Duration;

use sidestep_common::fabric::{
    Batch, BatchId, BufferError, Completion, Effect, Fabric, Failure, FailureKind, PostError, Replies, Reply,
    Verb, VerbList,
};
use sidestep_common::layout::{BlockRef, SizeClass};
use sidestep_common::wire::{BucketReport, ChunkPurpose};
use smallvec::SmallVec;

use crate::allocator::due_since_ms;
use crate::backoff::Backoff;
use crate::clock::{Deadline, now_ms};
use crate::error::Error;
use crate::operation::outcome::{effect_of, may_release};
use crate::operation::{Action, Context, Operation, OperationError, PendingCas, Plan, PlannedVerb, Step};
use crate::statistics::Tally;
use crate::trace::{Tracer, swap_outcome};

/// What the driver needs of its session: the operations' context, and what the server alone can do.
pub(crate) trait Ground {
    /// What operations may know and use.
    fn context(&mut self, now_ms: u64) -> Context<'_>;

    /// Asks the server for block memory, for the allocator.
    fn ask_memory(
        &mut self,
        class: SizeClass,
        purpose: ChunkPurpose,
        deadline: Deadline,
    ) -> Result<(), Error>;

    /// Tells the server of a bucket without room. `false` if the index can't grow.
    fn report_bucket(&mut self, report: BucketReport, deadline: Deadline) -> Result<bool, Error>;

    /// Does what the session owes the server. No operation is under way, but for one that is at its start and may yet publish
    /// the block that it `held`.
    fn attend(&mut self, _driver: &mut Driver, _held: Option<BlockRef>, _deadline: Deadline) {}

    /// Gives back what memory it can.
    fn relinquish(&mut self, _driver: &mut Driver, _deadline: Deadline) {}

    /// Whether memory was given back since `since_ms`, which may come back.
    fn gave_since(&self, _since_ms: u64) -> bool {
        false
    }
}

/// Why an operation did not end by itself.
#[derive(Debug)]
pub(crate) enum Stop {
    /// The operation's own error, or its memory's.
    Error(Error),
    /// The deadline passed.
    Timeout(Option<PendingCas>),
    /// The connection failed; with a CAS under way, `effect` says what is known of it.
    Failed(Failure, Option<PendingCas>, Effect),
}

impl From<OperationError> for Stop {
    fn from(error: OperationError) -> Self {
        Self::Error(error.into())
    }
}

impl From<BufferError> for Stop {
    fn from(error: BufferError) -> Self {
        Self::Error(error.into())
    }
}

/// An operation's end.
pub(crate) struct Finished<'a, T> {
    /// Which of the operations.
    pub(crate) index: usize,
    /// Its outcome.
    pub(crate) result: Result<T, Stop>,
    /// The replies to its last verbs; a get's value is among them.
    pub(crate) replies: &'a [Reply],
    /// What it took.
    pub(crate) tally: Tally,
    /// How often it started over.
    pub(crate) restarts: u32,
}

/// An operation between two steps.
struct Active {
    index: usize,
    replies: Replies,
    plan: Plan,
    /// The plan is out.
    batch: Option<BatchId>,
    /// The plan didn't fit into the last doorbell and goes with the next.
    waits: bool,
    tally: Tally,
}

/// What one step came to.
enum Stepped<T> {
    Posts(Plan),
    Pauses,
    Done(Result<T, Stop>, Option<Plan>),
}

/// Runs operations over one fabric.
pub(crate) struct Driver {
    fabric: Box<dyn Fabric>,
    next_batch: u64,
    completions: Vec<Completion>,
    tracer: Option<Tracer>,
    /// The fabric has failed; the session must join again.
    broken: Option<Failure>,
    /// Silent verbs are the last that were posted: no completion behind them says that they took effect.
    ends_silently: bool,
    pause: Backoff,
}

/// Pauses for somebody else's progress start and end here.
const PAUSE_FIRST: Duration = Duration::from_micros(20);
const PAUSE_LIMIT: Duration = Duration::from_millis(10);
/// An operation that nobody interferes with takes three. One that goes on, because rivals or a damaged region make
/// it, looks at its deadline each time: where verbs complete at once, it never waits and would go on for ever.
const ROUND_TRIPS_UNDISTURBED: u64 = 3;
/// Without memory maps are read again after this part of the grace period: a call that fails costs others little.
const PRESSED_GRACE_PART: u64 = 64;
/// Who waits for memory looks around so often.
const MEMORY_WAIT: Duration = Duration::from_millis(5);
/// And asks the server again after so many milliseconds.
const ASK_AGAIN_MS: u64 = 50;
/// A single wait for a completion; a guard against a lost wake-up, not a poll interval.
const WAIT_LIMIT: Duration = Duration::from_millis(100);

impl Driver {
    pub(crate) fn new(fabric: Box<dyn Fabric>, seed: u64) -> Self {
        Self {
            fabric,
            next_batch: 0,
            completions: Vec::new(),
            tracer: None,
            broken: None,
            ends_silently: false,
            pause: Backoff::new(PAUSE_FIRST, PAUSE_LIMIT, seed),
        }
    }

    pub(crate) fn fabric(&self) -> &dyn Fabric {
        &*self.fabric
    }

    /// Whether the connection has failed.
    pub(crate) const fn is_broken(&self) -> bool {
        self.broken.is_some()
    }

    /// Whether verbs that nobody waited for may still be under way.
    pub(crate) const fn ends_silently(&self) -> bool {
        self.ends_silently
    }

    /// Writes every verb down from now on.
    pub(crate) fn start_trace(&mut self) {
        self.tracer = Some(Tracer::new());
    }

    /// Ends that.
    pub(crate) fn take_trace(&mut self) -> Option<Tracer> {
        self.tracer.take()
    }

    /// Operations that may go in step without overrunning the fabric.
    pub(crate) fn width(&self) -> usize {
        // A get's second step may have more than one candidate; half leaves room for that.
        (self.fabric.limits().verbs_in_flight_max / 2).max(1)
    }

    /// Runs `operations` in step until each has ended, and tells `finish` of each. Never fails as a whole.
    pub(crate) fn run<O: Operation>(
        &mut self,
        ground: &mut impl Ground,
        operations: &mut [O],
        deadline: Deadline,
        mut finish: impl FnMut(Finished<'_, O::Output>),
    ) {
        let mut active: SmallVec<[Active; 1]> = (0..operations.len())
            .map(|index| Active {
                index,
                replies: Replies::new(),
                plan: Plan::new(),
                batch: None,
                waits: false,
                tally: Tally::default(),
            })
            .collect();
        let verbs_max = self.fabric.limits().verbs_in_flight_max;
        operations.iter_mut().for_each(|operation| operation.spread(verbs_max));
        let is_alone = operations.len() == 1;
        let mut silent = Plan::new();
        let mut round_trip = 0;
        self.pause.reset();
        while !active.is_empty() {
            let mut pauses = false;
            active.retain(|one| {
                if one.waits {
                    return true;
                }
                let operation = &mut operations[one.index];
                let stepped = self.step(ground, operation, is_alone, &one.replies, deadline);
                let result = match stepped {
                    Stepped::Posts(plan) => {
                        self.recycle(&mut one.replies);
                        one.plan = plan;
                        return true;
                    }
                    Stepped::Pauses if !deadline.has_passed() => {
                        self.recycle(&mut one.replies);
                        pauses = true;
                        return true;
                    }
                    Stepped::Pauses => {
                        // None of its verbs is out: what it holds goes back.
                        operation.release(&mut ground.context(now_ms()));
                        Err(Stop::Timeout(None))
                    }
                    Stepped::Done(result, last) => {
                        if let Some(last) = last {
                            one.tally.verbs += last.len() as u64;
                            one.tally.silent_verbs += last.len() as u64;
                            one.tally.bytes_written += last
                                .iter()
                                .map(|verb| verb.written_bytes(operation.block_pieces()))
                                .sum::<u64>();
                            silent.extend(last);
                        }
                        result
                    }
                };
                let restarts = operation.restarts();
                finish(Finished {
                    index: one.index,
                    result,
                    replies: &one.replies,
                    tally: one.tally,
                    restarts,
                });
                self.recycle(&mut one.replies);
                false
            });
            if pauses {
                // Whoever it waits for may wait for this session: a rebuild, for memory that is recycled.
                if is_alone && operations.iter().all(Operation::may_rewind) {
                    ground.attend(self, operations[0].held_block(), deadline);
                    operations.iter_mut().for_each(Operation::rewind);
                }
                std::thread::sleep(self.pause.next_wait().min(deadline.left()));
            }
            round_trip += u64::from(active.iter().any(|one| !one.plan.is_empty()));
            let posted = if round_trip > ROUND_TRIPS_UNDISTURBED && deadline.has_passed() {
                Err(Halt::Timeout)
            } else {
                self.post(&mut active, operations, &mut silent, round_trip, deadline)
            };
            let stop = posted.and_then(|()| self.wait_for(&mut active, round_trip, deadline));
            if let Err(stop) = stop {
                self.stop(ground, active, operations, &stop, &mut finish);
                return;
            }
        }
        if !silent.is_empty() {
            // Nobody waits for these; a failure shows at the next call.
            self.ends_silently = true;
            let _ = self.post(&mut [], operations, &mut silent, round_trip, deadline);
        }
    }

    /// Posts the plans of all active operations, and the silent verbs, with one doorbell.
    fn post<O: Operation>(
        &mut self,
        active: &mut [Active],
        operations: &[O],
        silent: &mut Plan,
        round_trip: u64,
        deadline: Deadline,
    ) -> Result<(), Halt> {
        let silent_verbs = std::mem::take(silent);
        for one in active.iter_mut().filter(|one| !one.plan.is_empty()) {
            self.next_batch += 1;
            one.batch = Some(BatchId(self.next_batch));
        }
        let mut batches: SmallVec<[Batch<'_>; 1]> = SmallVec::new();
        let built = self.build(&mut batches, active, operations, &silent_verbs, round_trip);
        let posted = built.and_then(|fitting| self.ring(&mut batches, deadline).map(|()| fitting));
        if posted.is_err() {
            // Nothing went out: the buffers come back, and no CAS of this round is pending.
            for verb in batches.iter_mut().flat_map(|batch| batch.verbs.drain(..)) {
                if let Verb::Read { into, .. } = verb {
                    self.fabric.buffers().recycle(into);
                }
            }
        }
        drop(batches);
        let fitting = posted.inspect_err(|_| active.iter_mut().for_each(|one| one.batch = None))?;
        for (at, one) in active.iter_mut().enumerate().filter(|(_, one)| one.batch.is_some()) {
            one.waits = at >= fitting;
            if one.waits {
                one.batch = None;
            } else {
                one.tally.count(&one.plan, operations[one.index].block_pieces());
            }
        }
        Ok(())
    }

    /// Makes batches of the plans, in order, for as many operations as the fabric's limit and the local buffers
    /// allow; says how many those are. The first one's always go, or fail.
    fn build<'b, O: Operation>(
        &mut self,
        batches: &mut SmallVec<[Batch<'b>; 1]>,
        active: &'b [Active],
        operations: &'b [O],
        silent_verbs: &'b Plan,
        round_trip: u64,
    ) -> Result<usize, Halt> {
        let limit = self.fabric.limits().verbs_in_flight_max;
        let mut verbs = silent_verbs.len();
        let mut fitting = active.len();
        for (at, one) in active.iter().enumerate() {
            let (Some(id), operation) = (one.batch, &operations[one.index]) else { continue };
            verbs += one.plan.len();
            if verbs > limit && !batches.is_empty() {
                fitting = at;
                break;
            }
            let mut batch = Batch { id, verbs: VerbList::new(), silent: false };
            match self.fill(&mut batch, &one.plan, operation) {
                Ok(()) => batches.push(batch),
                Err(Halt::Buffers(BufferError::Exhausted { .. })) if !batches.is_empty() => {
                    fitting = at;
                    break;
                }
                Err(halt) => return Err(halt),
            }
            if let Some(tracer) = &mut self.tracer {
                for verb in &one.plan {
                    let bytes = verb.bytes(operation.block_pieces());
                    tracer.posted(round_trip, verb.name(), verb.subject, verb.remote, bytes, false);
                }
            }
        }
        if !silent_verbs.is_empty() {
            let mut verbs = VerbList::new();
            for verb in silent_verbs {
                if let Some(tracer) = &mut self.tracer {
                    tracer.posted(round_trip, verb.name(), verb.subject, verb.remote, 1, true);
                }
                verbs.push(verb.verb(self.fabric.buffers(), (&[], &[]))?);
            }
            self.next_batch += 1;
            batches.push(Batch { id: BatchId(self.next_batch), verbs, silent: true });
        }
        Ok(fitting)
    }

    /// Puts all verbs of a plan into its batch, or takes no buffer.
    fn fill<'b>(
        &mut self,
        batch: &mut Batch<'b>,
        plan: &'b Plan,
        operation: &'b impl Operation,
    ) -> Result<(), Halt> {
        for verb in plan {
            match verb.verb(self.fabric.buffers(), operation.block_pieces()) {
                Ok(verb) => batch.verbs.push(verb),
                Err(error) => {
                    for verb in batch.verbs.drain(..) {
                        if let Verb::Read { into, .. } = verb {
                            self.fabric.buffers().recycle(into);
                        }
                    }
                    return Err(error.into());
                }
            }
        }
        Ok(())
    }

    /// Posts `batches`, waiting for room if verbs of operations that ran out of time are in the way.
    fn ring(&mut self, batches: &mut [Batch<'_>], deadline: Deadline) -> Result<(), Halt> {
        if batches.is_empty() {
            return Ok(());
        }
        loop {
            match self.fabric.post(batches) {
                Ok(()) => return Ok(()),
                Err(PostError::Full { .. }) if deadline.has_passed() => return Err(Halt::Timeout),
                Err(PostError::Full { .. }) => {
                    self.collect(deadline);
                    self.drop_completions();
                }
                Err(error) => {
                    let kind = FailureKind::Disconnected(error.to_string());
                    return Err(Halt::Failed(Failure { verb_index: 0, kind, effect: Effect::No }));
                }
            }
        }
    }

    /// Waits until every batch that is out has come back.
    fn wait_for(&mut self, active: &mut [Active], round_trip: u64, deadline: Deadline) -> Result<(), Halt> {
        let mut missing = active.iter().filter(|one| one.batch.is_some()).count();
        let waits = missing > 0;
        let mut failure = None;
        while missing > 0 {
            if self.completions.is_empty() && !self.collect(deadline) {
                return Err(Halt::Timeout);
            }
            let mut completions = std::mem::take(&mut self.completions);
            for completion in completions.drain(..) {
                let Some(one) = active.iter_mut().find(|one| one.batch == Some(completion.batch)) else {
                    self.drop_completion(completion);
                    continue;
                };
                match completion.result {
                    Ok(replies) => {
                        if let Some(tracer) = &mut self.tracer {
                            tracer.completed(round_trip, one.plan.iter().zip(&replies).map(outcome));
                        }
                        one.batch = None;
                        one.plan.clear();
                        one.replies = replies;
                        missing -= 1;
                    }
                    // What went before may still have come back well; take that in first.
                    Err(found) => {
                        failure.get_or_insert(found);
                        missing -= 1;
                    }
                }
            }
            self.completions = completions;
        }
        // What was posted before has executed too.
        self.ends_silently &= !(waits && failure.is_none());
        failure.map_or(Ok(()), |failure| Err(Halt::Failed(failure)))
    }

    /// Polls until something is there; `false` if the deadline passed first.
    fn collect(&mut self, deadline: Deadline) -> bool {
        loop {
            if self.fabric.poll(&mut self.completions) > 0 {
                return true;
            }
            let left = deadline.left();
            if left.is_zero() {
                return false;
            }
            self.fabric.wait(left.min(WAIT_LIMIT));
        }
    }

    /// The connection failed or time ran out: every operation that is left ends here. One whose replies are all there
    /// gets to see them first: its CAS may have happened, and its block with it.
    fn stop<O: Operation>(
        &mut self,
        ground: &mut impl Ground,
        active: SmallVec<[Active; 1]>,
        operations: &mut [O],
        halt: &Halt,
        finish: &mut impl FnMut(Finished<'_, O::Output>),
    ) {
        if let Halt::Failed(failure) = halt {
            self.broken.get_or_insert_with(|| failure.clone());
        }
        for mut one in active {
            let operation = &mut operations[one.index];
            if !one.replies.is_empty()
                && let Stepped::Done(result, _) = self.last_step(ground, operation, &one.replies)
            {
                // The mark of a block that it freed, if any, is lost, as if the client had died here.
                let (replies, restarts) = (&one.replies[..], operation.restarts());
                finish(Finished { index: one.index, result, replies, tally: one.tally, restarts });
                self.recycle(&mut one.replies);
                continue;
            }
            // Without a batch out, the CAS (if one was planned) was never posted, or is known to have failed.
            let cas = one.batch.and_then(|_| operation.pending_cas());
            if may_release(one.batch.is_some()) {
                operation.release(&mut ground.context(now_ms()));
            }
            let result = Err(match halt {
                Halt::Timeout => Stop::Timeout(cas),
                Halt::Failed(failure) => Stop::Failed(failure.clone(), cas, effect_of(cas, failure)),
                Halt::Buffers(error) => Stop::Error(Error::Buffers(error.clone())),
            });
            let restarts = operation.restarts();
            finish(Finished { index: one.index, result, replies: &[], tally: one.tally, restarts });
            self.recycle(&mut one.replies);
        }
    }

    /// Steps an operation, getting memory and room for it as often as it asks. None of its verbs is out.
    fn step<O: Operation>(
        &mut self,
        ground: &mut impl Ground,
        operation: &mut O,
        is_alone: bool,
        replies: &[Reply],
        deadline: Deadline,
    ) -> Stepped<O::Output> {
        let mut replies = replies;
        loop {
            let wanted = match operation.step(&mut ground.context(now_ms()), replies) {
                Step::Post(plan) => return Stepped::Posts(plan),
                Step::Pause => return Stepped::Pauses,
                Step::Done(result, last) => return Stepped::Done(result.map_err(Stop::from), last),
                Step::Memory(class, purpose) => {
                    let may_attend = is_alone && operation.may_rewind();
                    self.get_memory(ground, (class, purpose), may_attend, deadline).map(|has_attended| {
                        if has_attended {
                            operation.rewind();
                        }
                    })
                }
                Step::Grow(report) => match ground.report_bucket(report, deadline) {
                    Ok(true) => return Stepped::Pauses,
                    Ok(false) => Err(Context::BUCKET_FULL.into()),
                    Err(error) => Err(Stop::Error(error)),
                },
            };
            if let Err(stop) = wanted {
                operation.release(&mut ground.context(now_ms()));
                return Stepped::Done(Err(stop), None);
            }
            replies = &[];
        }
    }

    /// Shows an operation its last replies, when nothing can be done for it any more.
    fn last_step<O: Operation>(
        &mut self,
        ground: &mut impl Ground,
        operation: &mut O,
        replies: &[Reply],
    ) -> Stepped<O::Output> {
        match operation.step(&mut ground.context(now_ms()), replies) {
            Step::Done(result, last) => Stepped::Done(result.map_err(Stop::from), last),
            Step::Post(plan) => Stepped::Posts(plan),
            Step::Pause | Step::Memory(..) | Step::Grow(_) => Stepped::Pauses,
        }
    }

    /// Gets block memory: what has ripened; else what others have marked since the maps were read last, which ripens; else
    /// the server's; else what ripens soon enough, or what comes back to the server meanwhile. ⚑ Who waits holds up nobody,
    /// if it `may_attend`: the memory may be waiting for this session to acknowledge an epoch. Returns whether it has, so that
    /// what was read before is not used any more.
    #[cold]
    fn get_memory(
        &mut self,
        ground: &mut impl Ground,
        (class, purpose): (SizeClass, ChunkPurpose),
        may_attend: bool,
        deadline: Deadline,
    ) -> Result<bool, Stop> {
        let mut refused: Option<(Error, u64)> = None;
        let mut has_relinquished = false;
        let mut has_attended = false;
        loop {
            let now_ms = now_ms();
            let context = ground.context(now_ms);
            let (allocator, grace_ms) = (context.allocator, context.superblock.grace_ms);
            if allocator.ripen(class, purpose, grace_ms, now_ms) {
                return Ok(has_attended);
            }
            // Once there is no other memory, each map is looked at, unless another call has just done so.
            let since_ms = refused.as_ref().map_or_else(
                || due_since_ms(grace_ms, now_ms),
                |(_, refused_ms)| refused_ms.saturating_sub(grace_ms / PRESSED_GRACE_PART),
            );
            let mut next = allocator.harvest((class, ChunkPurpose::General), since_ms);
            if next.is_none() && purpose == ChunkPurpose::Delete {
                next = allocator.harvest((class, purpose), since_ms);
            }
            if let Some(harvest) = next {
                self.aside(ground, harvest, deadline)?;
                if refused.is_some() {
                    continue;
                }
            }
            let Some((error, refused_ms)) = refused.take() else {
                match ground.ask_memory(class, purpose, deadline) {
                    Ok(()) => {}
                    Err(error @ Error::OutOfMemory(_)) => refused = Some((error, now_ms)),
                    Err(error) => return Err(Stop::Error(error)),
                }
                continue;
            };
            if !std::mem::replace(&mut has_relinquished, true) {
                ground.relinquish(self, deadline);
                // What ripened in the meantime is looked for first.
                refused = Some((error, refused_ms));
                continue;
            }
            let ripe_ms = ground.context(now_ms).allocator.ripe_ms(class, purpose, grace_ms);
            let ripe_in = ripe_ms.map(|ripe_ms| Duration::from_millis(ripe_ms.saturating_sub(now_ms)));
            let ripens = ripe_in.is_some_and(|wait| wait < deadline.left());
            // What this session gave back a moment ago may come back to it.
            let returns = ground.gave_since(now_ms.saturating_sub(grace_ms));
            if deadline.has_passed() || !ripens && !returns {
                return Err(Stop::Error(error));
            }
            if may_attend {
                // It wants a block and has none.
                ground.attend(self, None, deadline);
                has_attended = true;
            }
            std::thread::sleep(ripe_in.unwrap_or(MEMORY_WAIT).min(MEMORY_WAIT).min(deadline.left()));
            if now_ms.saturating_sub(refused_ms) < ASK_AGAIN_MS {
                refused = Some((error, refused_ms));
            }
        }
    }

    /// Runs an operation of the session's own between the rounds of others, or between calls: it is in no trace.
    pub(crate) fn aside<O: Operation>(
        &mut self,
        ground: &mut impl Ground,
        operation: O,
        deadline: Deadline,
    ) -> Result<O::Output, Stop> {
        let tracer = self.tracer.take();
        let mut result = Err(Stop::Timeout(None));
        self.run(ground, &mut [operation], deadline, |finished| result = finished.result);
        self.tracer = tracer;
        result
    }

    fn recycle(&mut self, replies: &mut Replies) {
        for reply in replies.drain(..) {
            if let Reply::Read(buffer) = reply {
                self.fabric.buffers().recycle(buffer);
            }
        }
    }

    fn drop_completions(&mut self) {
        for completion in std::mem::take(&mut self.completions) {
            self.drop_completion(completion);
        }
    }

    fn drop_completion(&mut self, completion: Completion) {
        if let Ok(mut replies) = completion.result {
            self.recycle(&mut replies);
        }
    }
}

impl std::fmt::Debug for Driver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Driver({})", self.fabric.describe())
    }
}

/// Why a round ended early.
#[derive(Debug)]
enum Halt {
    Timeout,
    Failed(Failure),
    Buffers(BufferError),
}

impl From<BufferError> for Halt {
    fn from(error: BufferError) -> Self {
        Self::Buffers(error)
    }
}

/// What came of a verb, in words.
fn outcome((verb, reply): (&PlannedVerb, &Reply)) -> String {
    match (&verb.action, reply) {
        (Action::CompareSwap { expected, desired }, Reply::Old(old)) => {
            swap_outcome(*expected, *desired, *old)
        }
        _ => "done".into(),
    }
}

#[cfg(test)]
mod tests;
