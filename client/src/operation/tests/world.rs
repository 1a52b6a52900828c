//! A memory node without a fabric: operations are stepped by hand, one verb at a time.
//!
//! Always true: every verb passes the auditor, so each test of this folder also shows that blocks are written before they
//! are published and never after, and that what was unlinked is marked once and nothing else is.

use std::ptr::NonNull;
use std::sync::LazyLock;

use sidestep_common::fabric::{BufferPool, Replies, Reply, Unregistered};
use sidestep_common::hash::KeyHash;
use sidestep_common::layout::{
    AtomicityDomain, Block, BucketHeader, DirectoryWord, Geometry, Offset, SizeClass, SlotState, SlotWord,
    Superblock, chunk_shape,
};
use sidestep_common::memory::WordMemory;
use sidestep_common::wire::{BucketReport, ChunkGrant, ChunkPurpose};

use super::super::change::{Change, Changed};
use super::super::get::{Found, Get};
use super::super::{
    Action, Context, Hints, Operation, OperationError, PendingCas, Plan, PlannedVerb, Step, WriteIds,
};
use super::auditor::Auditor;
use crate::allocator::Allocator;
use crate::directory::Directory;

pub(crate) const SEED: u64 = 7;

/// A region as a server lays it out, in this process's memory.
pub(crate) struct World {
    _words: Vec<u64>,
    pub(crate) memory: WordMemory,
    pub(crate) superblock: Superblock,
    pub(crate) directory: Directory,
    next_chunk: u64,
    /// What was granted, in the order of places.
    pub(crate) granted: Vec<ChunkGrant>,
    /// Bytes of free maps that were written, in order: where, and which version.
    pub(crate) marks: Vec<(Offset, u8)>,
    /// Buckets that were reported full.
    pub(crate) reports: Vec<BucketReport>,
    buffers: BufferPool,
    pub(super) auditor: Auditor,
    /// The client's clock; tests move it.
    pub(crate) now_ms: u64,
}

impl World {
    pub(crate) fn new() -> Self {
        Self::with(5 << 20, 0)
    }

    /// A region of `region_bytes`, with a segment for 2 to the power of `shared_bits` entries of the directory.
    pub(crate) fn with(region_bytes: u64, shared_bits: u32) -> Self {
        let geometry = Geometry::for_region(region_bytes).unwrap();
        let superblock = Superblock {
            geometry,
            incarnation: 1,
            hash_seed: SEED,
            domain: AtomicityDomain::Cpu,
            grace_ms: 1000,
        };
        let mut words = vec![0_u64; geometry.region_bytes as usize / 8];
        let base = NonNull::new(words.as_mut_ptr().cast()).unwrap();
        // SAFETY: the vector lives as long as the world and is touched through this value only.
        let memory = unsafe { WordMemory::new(base, geometry.region_bytes) };
        let mut directory = Vec::new();
        for index in 0..geometry.directory_entries() {
            let (segment, depth) = ((index >> shared_bits) as u32, geometry.directory_bits - shared_bits);
            let word = DirectoryWord { segment, generation: 1, depth };
            memory.store(geometry.directory_word_offset(index), word.to_bits()).unwrap();
            directory.extend(word.to_bits().to_le_bytes());
            let header = BucketHeader { depth, prefix: segment, generation: 1, sealed: false };
            let segment = geometry.segment_offset(word).unwrap();
            for bucket in 0..64 {
                memory.store(segment.plus(bucket * 256), header.to_bits()).unwrap();
            }
        }
        Self {
            _words: words,
            memory,
            superblock,
            directory: Directory::from_bytes(&directory),
            next_chunk: geometry.block_pool_offset.0,
            granted: Vec::new(),
            marks: Vec::new(),
            reports: Vec::new(),
            buffers: BufferPool::new(Box::new(Unregistered), 64 << 20),
            auditor: Auditor::default(),
            now_ms: 0,
        }
    }

    pub(crate) fn grant(&mut self, actor: &mut Actor, class: SizeClass, purpose: ChunkPurpose) {
        let shape = chunk_shape(class);
        let offset = self.next_chunk.next_multiple_of(shape.align_bytes);
        self.next_chunk = offset + shape.bytes;
        let grant = ChunkGrant { offset, class: class.index(), versions: Vec::new() };
        actor
            .allocator
            .add(&self.superblock.geometry, &grant, purpose)
            .expect("the test's region is large enough");
        self.granted.push(grant);
    }

    /// The auditor looks at nothing any more: what comes is not what clients alone do.
    pub(crate) fn audit_off(&mut self) {
        self.auditor.is_off = true;
    }

    /// A rebuild has sealed all slots in `range`.
    pub(crate) fn sealed(&mut self, range: &std::ops::Range<u64>) {
        self.auditor.forget(range);
    }

    /// The offset of `slot` in the bucket of `key`.
    pub(crate) fn slot(&self, key: &[u8], slot: u64) -> Offset {
        let hash = KeyHash::of(key, SEED);
        let word = self.directory.word(hash.directory_index(self.superblock.geometry.directory_bits));
        self.superblock.geometry.bucket_offset(word, hash).unwrap().plus(8 + 8 * slot)
    }

    pub(crate) fn slot_words(&self, key: &[u8]) -> Vec<SlotWord> {
        (0..31).map(|slot| SlotWord::from_bits(self.memory.load(self.slot(key, slot)).unwrap())).collect()
    }

    /// The binding and order rules as they can be seen at any moment: no key in two slots, no EMPTY slot before
    /// a filled one.
    pub(crate) fn check_bucket(&self, key: &[u8]) {
        let mut keys = Vec::new();
        let mut saw_empty = false;
        for word in self.slot_words(key) {
            let block = match word.state() {
                SlotState::Empty => {
                    saw_empty = true;
                    continue;
                }
                SlotState::Live(block) | SlotState::Deleted(block) => block,
                other => panic!("{other:?}"),
            };
            assert!(!saw_empty, "an EMPTY slot before a filled one");
            let mut bytes = vec![0; block.class.bytes() as usize];
            self.memory.read(block.offset, &mut bytes).unwrap();
            let found = Block::parse(&bytes, block).expect("a published block fits its word").key.to_vec();
            assert!(!keys.contains(&found), "{found:?} has two slots");
            keys.push(found);
        }
    }

    /// What an operation of `actor` may know and use now.
    pub(crate) fn context<'c>(&'c self, actor: &'c mut Actor) -> Context<'c> {
        Context {
            superblock: &self.superblock,
            directory: &self.directory,
            allocator: &mut actor.allocator,
            write_ids: &mut actor.write_ids,
            hints: &mut actor.hints,
            now_ms: self.now_ms,
        }
    }

    pub(crate) fn execute(&mut self, verb: &PlannedVerb, pieces: (&[u8], &[u8])) -> Reply {
        self.auditor.see(&self.memory, verb, pieces);
        match verb.action {
            Action::Read(bytes) => {
                let mut buffer = self.buffers.take(bytes).unwrap();
                self.memory.read(verb.remote, buffer.as_mut_slice()).unwrap();
                Reply::Read(buffer)
            }
            Action::WriteBlock(header) => {
                let bytes = [&header.as_bytes()[..], pieces.0, pieces.1].concat();
                self.memory.write(verb.remote, &bytes).unwrap();
                Reply::Written
            }
            Action::WriteByte(byte) => {
                self.memory.write(verb.remote, &[byte]).unwrap();
                self.marks.push((verb.remote, byte));
                Reply::Written
            }
            Action::CompareSwap { expected, desired } => {
                Reply::Old(self.memory.compare_swap(verb.remote, expected, desired).unwrap())
            }
        }
    }
}

/// A session's own state.
pub(crate) struct Actor {
    pub(crate) allocator: Allocator,
    write_ids: WriteIds,
    pub(crate) hints: Hints,
}

impl Actor {
    pub(crate) fn new(session: u32) -> Self {
        Self { allocator: Allocator::new(), write_ids: WriteIds::new(session, 0), hints: Hints::default() }
    }
}

/// What the story of a test asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Call<'a> {
    Get(&'a [u8]),
    Put(&'a [u8], &'a [u8]),
    Delete(&'a [u8]),
}

/// What came of it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Answer {
    Value(Option<Vec<u8>>),
    Stored,
    Existed(bool),
    Error(OperationError),
}

enum Machine<'a> {
    Get(Get<'a>),
    Change(Change<'a>),
}

/// A call under way, between two verbs.
pub(crate) struct Running<'a> {
    machine: Machine<'a>,
    plan: Plan,
    next_verb: usize,
    replies: Replies,
    silent: Plan,
    pub(crate) round_trips: u32,
    pub(crate) verbs: u32,
    pub(crate) answer: Option<Answer>,
}

impl<'a> Running<'a> {
    pub(crate) fn new(call: Call<'a>) -> Self {
        let machine = match call {
            Call::Get(key) => Machine::Get(Get::new(key, SEED)),
            Call::Put(key, value) => Machine::Change(Change::put(key, value, SEED).unwrap()),
            Call::Delete(key) => Machine::Change(Change::delete(key, SEED).unwrap()),
        };
        Self {
            machine,
            plan: Plan::new(),
            next_verb: 0,
            replies: Replies::new(),
            silent: Plan::new(),
            round_trips: 0,
            verbs: 0,
            answer: None,
        }
    }

    /// Whether all is done, the silent verbs too.
    pub(crate) fn is_over(&self) -> bool {
        self.answer.is_some() && self.silent.is_empty()
    }

    /// The CAS that is out, if one is.
    pub(super) fn pending_cas(&self) -> Option<PendingCas> {
        match &self.machine {
            Machine::Get(operation) => operation.pending_cas(),
            Machine::Change(operation) => operation.pending_cas(),
        }
    }

    /// How often it began anew.
    pub(super) fn restarts(&self) -> u32 {
        match &self.machine {
            Machine::Get(operation) => operation.restarts(),
            Machine::Change(operation) => operation.restarts(),
        }
    }

    /// Ends it from outside.
    pub(super) fn release(&mut self, world: &World, actor: &mut Actor) {
        match &mut self.machine {
            Machine::Get(operation) => operation.release(&mut world.context(actor)),
            Machine::Change(operation) => operation.release(&mut world.context(actor)),
        }
    }

    /// Executes one verb, asking the operation for more first if none is left.
    pub(crate) fn verb(&mut self, world: &mut World, actor: &mut Actor) {
        if self.answer.is_some() {
            let verb = self.silent.remove(0);
            self.verbs += 1;
            world.execute(&verb, (&[], &[]));
            return;
        }
        if self.next_verb == self.plan.len() && !self.ask(world, actor) {
            return;
        }
        let verb = self.plan[self.next_verb];
        self.next_verb += 1;
        self.verbs += 1;
        let pieces = match &self.machine {
            Machine::Get(operation) => operation.block_pieces(),
            Machine::Change(operation) => operation.block_pieces(),
        };
        self.replies.push(world.execute(&verb, pieces));
        // The last reply decides at once, so that a call is over with its last verb.
        if self.next_verb == self.plan.len() {
            self.ask(world, actor);
        }
    }

    /// Steps the operation; `false` if there is no verb to execute now.
    fn ask(&mut self, world: &mut World, actor: &mut Actor) -> bool {
        if self.next_verb == 0 && !self.plan.is_empty() {
            return true;
        }
        let mut replies = std::mem::take(&mut self.replies);
        loop {
            let mut context = world.context(actor);
            let step = match &mut self.machine {
                Machine::Get(operation) => map(operation.step(&mut context, &replies), |found| {
                    Answer::Value(found.map(|found| value(&found, &replies)))
                }),
                Machine::Change(operation) => {
                    map(operation.step(&mut context, &replies), |changed| match changed {
                        Changed::Stored => Answer::Stored,
                        Changed::Deleted => Answer::Existed(true),
                        Changed::Absent => Answer::Existed(false),
                    })
                }
            };
            replies.clear();
            match step {
                Step::Post(plan) => {
                    self.plan = plan;
                    self.next_verb = 0;
                    self.round_trips += 1;
                    return true;
                }
                Step::Memory(class, purpose) => world.grant(actor, class, purpose),
                // This index never grows.
                Step::Grow(report) => {
                    world.reports.push(report);
                    self.release(world, actor);
                    self.answer = Some(Answer::Error(Context::BUCKET_FULL));
                    return false;
                }
                Step::Pause => {
                    self.plan.clear();
                    self.next_verb = 0;
                    return false;
                }
                Step::Done(result, silent) => {
                    self.answer = Some(result.unwrap_or_else(Answer::Error));
                    self.silent = silent.unwrap_or_default();
                    return false;
                }
            }
        }
    }
}

fn map<T>(step: Step<T>, answer: impl FnOnce(T) -> Answer) -> Step<Answer> {
    match step {
        Step::Post(plan) => Step::Post(plan),
        Step::Memory(class, purpose) => Step::Memory(class, purpose),
        Step::Grow(report) => Step::Grow(report),
        Step::Pause => Step::Pause,
        Step::Done(result, silent) => Step::Done(result.map(answer), silent),
    }
}

fn value(found: &Found, replies: &[Reply]) -> Vec<u8> {
    match &replies[found.reply] {
        Reply::Read(buffer) => buffer.as_slice()[found.value.clone()].to_vec(),
        other => panic!("{other:?}"),
    }
}

/// Runs a call with nobody in between; answer, round trips, verbs.
pub(crate) fn alone(world: &mut World, actor: &mut Actor, call: Call<'_>) -> (Answer, u32, u32) {
    let mut running = Running::new(call);
    for _ in 0..1000 {
        if running.is_over() {
            break;
        }
        running.verb(world, actor);
    }
    (running.answer.expect("a call that nobody disturbs ends"), running.round_trips, running.verbs)
}

/// Runs any operation, nobody in between.
pub(crate) fn perform<O: Operation>(
    world: &mut World,
    actor: &mut Actor,
    operation: &mut O,
) -> Result<O::Output, OperationError> {
    let mut replies = Replies::new();
    loop {
        match operation.step(&mut world.context(actor), &replies) {
            Step::Post(plan) => {
                replies = plan.iter().map(|verb| world.execute(verb, operation.block_pieces())).collect();
            }
            Step::Memory(class, purpose) => world.grant(actor, class, purpose),
            Step::Grow(_) => {
                operation.release(&mut world.context(actor));
                return Err(Context::BUCKET_FULL);
            }
            Step::Pause => replies.clear(),
            Step::Done(result, silent) => {
                silent.iter().flatten().for_each(|verb| drop(world.execute(verb, (&[], &[]))));
                return result;
            }
        }
    }
}

/// A key with the bucket and the tag of `k`. There are few, so that it is looked for once.
pub(super) fn twin_of_k() -> &'static [u8] {
    static TWIN: LazyLock<Vec<u8>> = LazyLock::new(|| colliding(&World::new(), b"k", 1, true).remove(0));
    &TWIN
}

/// Finds `count` keys that share the bucket of `like`, and its tag if `same_tag`; in another order each time
/// the prefix differs.
pub(crate) fn colliding(world: &World, like: &[u8], count: usize, same_tag: bool) -> Vec<Vec<u8>> {
    let bits = world.superblock.geometry.directory_bits;
    let of = |key: &[u8]| {
        let hash = KeyHash::of(key, SEED);
        (hash.directory_index(bits), hash.bucket_index(), hash.tag())
    };
    let wanted = of(like);
    let same = |key: &Vec<u8>| {
        let (directory, bucket, tag) = of(key);
        (directory, bucket) == (wanted.0, wanted.1) && (tag == wanted.2) == same_tag
    };
    (0_u64..).map(|number| format!("key{number}").into_bytes()).filter(same).take(count).collect()
}
