//! The honest client: one real operation after the other, stepped verb by verb.

use sidestep_client::allocator::Allocator;
use sidestep_client::operation::change::{Change, Changed};
use sidestep_client::operation::get::Get;
use sidestep_client::operation::outcome::{Verdict, effect_of, verdict};
use sidestep_client::operation::resolve::Resolve;
use sidestep_client::operation::{
    Action, Context, Hints, Operation, OperationError, PendingCas, Plan, PlannedVerb, Step, WriteIds,
};
use sidestep_common::fabric::{BufferPool, Effect, Failure, FailureKind, Replies, Reply, Unregistered};
use sidestep_common::layout::{Offset, SizeClass};
use sidestep_common::wire::ChunkPurpose;

use super::interference::Interference;
use super::story::{Call, CallKind};
use super::watch::Watch;
use super::world::{SEED, World, is_block_of, key};

/// How a call ended.
#[derive(PartialEq, Eq, Debug)]
pub(super) enum Answer {
    Value(Option<Vec<u8>>),
    Changed(Changed),
    Error(OperationError),
    /// Its deadline passed while it waited for somebody else's progress.
    TimedOut,
    OutOfMemory,
    /// The completion of its CAS was lost; what was made of that.
    Lost(Verdict),
}

/// A client and all that surrounds it.
pub(super) struct Client {
    pub(super) world: World,
    pub(super) interference: Interference,
    watch: Watch,
    allocator: Allocator,
    write_ids: WriteIds,
    hints: Hints,
    buffers: BufferPool,
}

/// What a plan came to.
enum Executed {
    Replies(Replies),
    /// The completion of this CAS was lost.
    Lost(PendingCas),
}

/// What an operation came to, without the details of its output.
enum Ended<T> {
    Output(T, Vec<(PlannedVerb, Reply)>),
    Error(OperationError),
    TimedOut,
    OutOfMemory,
    Lost(PendingCas),
}

impl Client {
    pub(super) fn new(world: World, interference: Interference) -> Self {
        Self {
            world,
            interference,
            watch: Watch::new(),
            allocator: Allocator::new(),
            write_ids: WriteIds::new(1, 0),
            hints: Hints::default(),
            buffers: BufferPool::new(Box::new(Unregistered), 64 << 20),
        }
    }

    /// Makes one call; ends with its answer.
    pub(super) fn call(&mut self, call: Call) -> Answer {
        let key = key(call.key);
        self.watch.begin(key);
        let value = value_of(call.kind);
        match call.kind {
            CallKind::Get => {
                let mut get = Get::new(key, SEED);
                match self.run(&mut get) {
                    Ended::Output(None, _) => Answer::Value(None),
                    Ended::Output(Some(found), replies) => {
                        let (verb, reply) = &replies[found.reply];
                        let Reply::Read(buffer) = reply else { panic!("a value in {reply:?}") };
                        let bytes = buffer.as_slice();
                        assert!(
                            is_block_of(bytes, verb.remote, key),
                            "a value out of a block that doesn't fit"
                        );
                        Answer::Value(Some(bytes[found.value].to_vec()))
                    }
                    other => self.failed(other),
                }
            }
            CallKind::Put(_) | CallKind::PutLong(_) => {
                let mut put = Change::put(key, &value, SEED).expect("lengths within limits");
                self.change(&mut put)
            }
            CallKind::Delete => {
                let mut delete = Change::delete(key, SEED).expect("a length within limits");
                self.change(&mut delete)
            }
        }
    }

    fn change(&mut self, change: &mut Change<'_>) -> Answer {
        match self.run(change) {
            Ended::Output(changed, _) => Answer::Changed(changed),
            other => self.failed(other),
        }
    }

    fn failed<T>(&mut self, ended: Ended<T>) -> Answer {
        match ended {
            Ended::Output(..) => unreachable!("taken by the caller"),
            Ended::Error(error) => Answer::Error(error),
            Ended::TimedOut => Answer::TimedOut,
            Ended::OutOfMemory => Answer::OutOfMemory,
            Ended::Lost(cas) => self.resolve(cas),
        }
    }

    /// As a session does: the old queue pair was fenced, now the slot tells.
    fn resolve(&mut self, cas: PendingCas) -> Answer {
        self.watch.in_limbo();
        let failure = Failure {
            verb_index: 0,
            kind: FailureKind::Disconnected("its completion was lost".into()),
            effect: Effect::Unknown,
        };
        assert_eq!(effect_of(Some(cas), &failure), Effect::Unknown);
        let effect = match self.resolved(cas) {
            Ended::Output(effect, _) => effect,
            Ended::Error(_) | Ended::TimedOut | Ended::OutOfMemory | Ended::Lost(_) => {
                panic!("one READ of a slot needs nothing and waits for nobody")
            }
        };
        Answer::Lost(verdict(effect, &failure))
    }

    fn resolved(&mut self, cas: PendingCas) -> Ended<Effect> {
        let mut resolve = Resolve::new(cas);
        let Step::Post(plan) = self.step(&mut resolve, &[]) else { panic!("a READ first") };
        let Executed::Replies(replies) = self.execute(&plan, &resolve) else { panic!("no CAS is out") };
        let Step::Done(Ok(effect), mark) = self.step(&mut resolve, &replies) else {
            panic!("then it is known")
        };
        match effect {
            Effect::Yes => self.watch.won(cas),
            Effect::No => self.watch.not_published(),
            Effect::Unknown => {}
        }
        assert!(mark.is_none() || effect == Effect::Yes, "a mark of a block that may still be in use");
        self.recycle(replies);
        self.silent(mark, &resolve);
        Ended::Output(effect, Vec::new())
    }

    fn step<O: Operation>(&mut self, operation: &mut O, replies: &[Reply]) -> Step<O::Output> {
        let mut context = Context {
            superblock: &self.world.superblock,
            directory: &self.world.directory,
            allocator: &mut self.allocator,
            write_ids: &mut self.write_ids,
            hints: &mut self.hints,
            now_ms: self.interference.now_ms,
        };
        let step = operation.step(&mut context, replies);
        assert!(!operation.stage().is_empty());
        step
    }

    fn release(&mut self, operation: &mut impl Operation) {
        operation.release(&mut Context {
            superblock: &self.world.superblock,
            directory: &self.world.directory,
            allocator: &mut self.allocator,
            write_ids: &mut self.write_ids,
            hints: &mut self.hints,
            now_ms: self.interference.now_ms,
        });
    }

    /// Runs an operation to its end, as a driver does.
    fn run<O: Operation>(&mut self, operation: &mut O) -> Ended<O::Output> {
        let mut replies = Replies::new();
        let mut verbs = Plan::new();
        loop {
            match self.step(operation, &replies) {
                Step::Post(plan) => {
                    self.recycle(std::mem::take(&mut replies));
                    assert!(!plan.is_empty(), "a round trip without a verb");
                    match self.execute(&plan, operation) {
                        Executed::Replies(brought) => replies = brought,
                        Executed::Lost(cas) => {
                            assert_eq!(operation.pending_cas(), Some(cas));
                            return Ended::Lost(cas);
                        }
                    }
                    verbs = plan;
                }
                Step::Memory(class, purpose) => {
                    self.recycle(std::mem::take(&mut replies));
                    if !self.get_memory(class, purpose) {
                        self.release(operation);
                        return Ended::OutOfMemory;
                    }
                }
                Step::Pause => {
                    self.recycle(std::mem::take(&mut replies));
                    // Nothing that is still to come would be worth the wait: the deadline passes.
                    if !self.interference.skip_to_next(&mut self.world) {
                        self.release(operation);
                        return Ended::TimedOut;
                    }
                    self.watch.disturbed();
                }
                Step::Grow(report) => {
                    self.recycle(std::mem::take(&mut replies));
                    self.watch.reports(self.world.geometry(), report);
                    // The server promises a rebuild as long as something is still to come, then says that there is none.
                    if !self.interference.skip_to_next(&mut self.world) {
                        self.release(operation);
                        return Ended::Error(Context::BUCKET_FULL);
                    }
                    self.watch.disturbed();
                }
                Step::Done(Ok(output), last) => {
                    self.silent(last, operation);
                    return Ended::Output(output, verbs.into_iter().zip(replies).collect());
                }
                Step::Done(Err(error), last) => {
                    assert!(last.is_none(), "an operation that failed has nothing to free");
                    self.recycle(replies);
                    return Ended::Error(error);
                }
            }
        }
    }

    fn get_memory(&mut self, class: SizeClass, purpose: ChunkPurpose) -> bool {
        if self.interference.refuses_memory() {
            return false;
        }
        let Some(grant) = self.world.grant(class) else { return false };
        self.watch.granted(Offset(grant.offset), class);
        self.allocator.add(self.world.geometry(), &grant, purpose).expect("a sound grant");
        true
    }

    /// Verbs that nobody waits for.
    fn silent(&mut self, plan: Option<Plan>, operation: &impl Operation) {
        let Some(plan) = plan else { return };
        assert!(plan.iter().all(|verb| matches!(verb.action, Action::WriteByte(_))), "{plan:?}");
        let Executed::Replies(replies) = self.execute(&plan, operation) else {
            panic!("no CAS is among these")
        };
        self.recycle(replies);
    }

    /// Executes a plan, with the story between its verbs.
    fn execute(&mut self, plan: &[PlannedVerb], operation: &impl Operation) -> Executed {
        let mut replies = Replies::new();
        for verb in plan {
            self.tick();
            let pieces = operation.block_pieces();
            let written = self.watch.verb(self.world.geometry(), verb, verb.written_bytes(pieces));
            let reply = match verb.action {
                Action::Read(bytes) => self.read(verb.remote, bytes),
                Action::WriteBlock(header) => {
                    self.world.own_block = written;
                    let bytes = [&header.as_bytes()[..], pieces.0, pieces.1].concat();
                    self.world.write(verb.remote, &bytes);
                    Reply::Written
                }
                Action::WriteByte(byte) => {
                    self.world.write(verb.remote, &[byte]);
                    Reply::Written
                }
                Action::CompareSwap { expected, desired } => {
                    let cas = PendingCas { slot: verb.remote, expected, desired };
                    let lost = self.interference.takes_completion();
                    if lost == Some(false) {
                        return Executed::Lost(cas);
                    }
                    let old = self.world.compare_swap(verb.remote, expected, desired);
                    if lost == Some(true) {
                        return Executed::Lost(cas);
                    }
                    self.watch.swapped(cas, old);
                    Reply::Old(old)
                }
            };
            replies.push(reply);
        }
        Executed::Replies(replies)
    }

    fn tick(&mut self) {
        if self.interference.before_verb(&mut self.world) {
            self.watch.disturbed();
        }
    }

    /// A READ, which may be torn.
    fn read(&mut self, remote: Offset, bytes: usize) -> Reply {
        let mut buffer = self.buffers.take(bytes).expect("room for a bucket's blocks");
        let (first, second) = buffer.as_mut_slice().split_at_mut(bytes / 16 * 8);
        self.world.words.read(remote, first).expect("in the region");
        if self.interference.within_read(&mut self.world) {
            self.watch.disturbed();
        }
        self.world.words.read(remote.plus(first.len() as u64), second).expect("in the region");
        Reply::Read(buffer)
    }

    fn recycle(&mut self, replies: Replies) {
        for reply in replies {
            if let Reply::Read(buffer) = reply {
                self.buffers.recycle(buffer);
            }
        }
    }
}

/// The value that a put stores.
pub(super) fn value_of(kind: CallKind) -> Vec<u8> {
    match kind {
        CallKind::Get | CallKind::Delete => Vec::new(),
        CallKind::Put(bytes) => vec![bytes; bytes.into()],
        // Few of a class that lives in extents: they cost as much as all else together.
        CallKind::PutLong(bytes) if bytes % 16 == 0 => vec![bytes as u8; 100_000 + usize::from(bytes)],
        CallKind::PutLong(bytes) => vec![bytes as u8; usize::from(bytes % 4096)],
    }
}
