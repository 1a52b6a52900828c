//! A client of the simulated world: runs real operations over the simulated fabric, one step at a time.
//!
//! Always true: what it does after each completion, loss and rejoin is decided by the product's own code
//! (`sidestep_client::operation`); here is only what a thread would wait for in between. A client's own steps take no
//! time: it goes on at once when a completion is there, which gives the strictest history.

use std::sync::Arc;

use sidestep_client::allocator::{Allocator, Harvest};
use sidestep_client::directory::Directory;
use sidestep_client::operation::change::{Change, Changed};
use sidestep_client::operation::get::{Found, Get};
use sidestep_client::operation::outcome::{Verdict, effect_of, effect_of_timeout, may_release, verdict};
use sidestep_client::operation::resolve::Resolve;
use sidestep_client::operation::{
    Context, Hints, Operation, OperationError, PendingCas, Plan, Step, WriteIds,
};
use sidestep_common::fabric::sim::{QueuePairId, SimFabric};
use sidestep_common::fabric::{
    Batch, BatchId, Completion, Effect, Fabric, Failure, FailureKind, Replies, Reply, Rights, VerbList,
};
use sidestep_common::layout::SizeClass;
use sidestep_common::wire::ChunkPurpose;

use super::region::{ENTRIES, Region, value_bytes, value_number};
use super::story::{Ask, Call};
use super::violation::{Promise, Violation};
use crate::linearizability::Answer;

/// Verbs in flight of a client; no operation has as many.
const DEPTH: usize = 64;
const BUFFER_LIMIT_BYTES: usize = 1 << 20;

/// An operation under way.
enum Machine {
    Get(Get<'static>),
    Change(Change<'static>),
    Resolve(Resolve, Lost),
    /// Before a call, of the client's own free maps.
    Harvest(Harvest),
}

/// A CAS whose completion was lost.
#[derive(Clone, Debug)]
struct Lost {
    failure: Failure,
    ask: Ask,
}

/// How a call ended.
#[derive(Clone, Copy, Debug)]
pub(super) enum End {
    /// With this answer.
    Answered(Answer),
    /// Nobody knows whether it happened.
    Unknown,
    /// It certainly did not happen.
    Nothing,
    /// With an error of its own, having done nothing.
    Refused(OperationError),
}

/// What a client's own step came to.
#[derive(Debug)]
pub(super) enum Event {
    /// The call ended.
    Ended(End),
    /// It wants block memory; answer with [`Client::memory`].
    Memory(SizeClass, ChunkPurpose),
    /// It waits for somebody else's progress.
    Pauses,
    /// It waits for completions, or has nothing to do.
    Waits,
}

/// What remains to be done after the connection was lost.
#[derive(Clone, Debug)]
enum Rejoining {
    /// Nothing: no call was under way.
    Idle,
    /// The call is to begin anew.
    Again,
    /// The CAS is to be resolved.
    Resolve(PendingCas, Lost),
}

pub(super) struct Client {
    pub(super) fabric: SimFabric,
    directory: Arc<Directory>,
    allocator: Allocator,
    write_ids: WriteIds,
    hints: Hints,
    /// Before the next call free maps are read; blocks are used again after so long.
    harvest_grace_ms: Option<u64>,
    machine: Option<Machine>,
    /// The call under way, with the number of its value.
    call: Option<(Call, u64)>,
    plan: Plan,
    batch: Option<BatchId>,
    next_batch: u64,
    completions: Vec<Completion>,
    rejoining: Option<Rejoining>,
    pauses: bool,
    /// Marks that went out.
    marks_posted: u32,
    /// Of the words of its directory, when they were last looked at.
    generations: [u32; ENTRIES],
    /// Its clock is ahead by so much.
    pub(super) ahead_ms: u64,
    /// What it did last, for those who kill it while a mark is out.
    last: Ask,
}

impl Client {
    pub(super) fn new(region: &Region, session: u32) -> Self {
        Self {
            fabric: region.node.connect(Rights::ReadWrite, DEPTH, BUFFER_LIMIT_BYTES),
            directory: Arc::new(Directory::from_bytes(&region.directory)),
            allocator: Allocator::new(),
            write_ids: WriteIds::new(session, 0),
            hints: Hints::default(),
            harvest_grace_ms: None,
            machine: None,
            call: None,
            plan: Plan::new(),
            batch: None,
            next_batch: 0,
            completions: Vec::new(),
            rejoining: None,
            pauses: false,
            marks_posted: 0,
            generations: [0; ENTRIES],
            ahead_ms: 0,
            last: Ask::Get,
        }
    }

    /// It uses that copy of the directory.
    pub(super) fn share(&mut self, directory: Arc<Directory>) {
        self.directory = directory;
    }

    pub(super) fn allocator(&mut self) -> &mut Allocator {
        &mut self.allocator
    }

    pub(super) const fn queue_pair(&self) -> QueuePairId {
        self.fabric.id()
    }

    /// Marks that went out.
    pub(super) const fn marks_posted(&self) -> u32 {
        self.marks_posted
    }

    /// A call is under way.
    pub(super) const fn is_busy(&self) -> bool {
        self.call.is_some()
    }

    /// Its connection is lost, and it must join again before anything else.
    pub(super) const fn must_rejoin(&self) -> bool {
        self.rejoining.is_some()
    }

    /// It waits for somebody else's progress.
    pub(super) const fn pauses(&self) -> bool {
        self.pauses
    }

    /// What it does and waits for.
    pub(super) fn stage(&self) -> (&'static str, &'static str) {
        match &self.machine {
            Some(Machine::Get(get)) => ("get", get.stage()),
            Some(Machine::Change(change)) => {
                (if self.ask() == Some(Ask::Delete) { "delete" } else { "put" }, change.stage())
            }
            Some(Machine::Resolve(resolve, _)) => ("resolve", resolve.stage()),
            Some(Machine::Harvest(harvest)) => ("harvest", harvest.stage()),
            None => match self.last {
                Ask::Get => ("get", "start"),
                Ask::Put => ("put", "mark"),
                Ask::Delete => ("delete", "mark"),
            },
        }
    }

    fn ask(&self) -> Option<Ask> {
        self.call.map(|(call, _)| call.ask)
    }

    /// Begins a call.
    pub(super) fn begin(&mut self, region: &Region, now_ms: u64, call: Call, value: u64) -> Event {
        self.call = Some((call, value));
        self.last = call.ask;
        match self.look_for_memory() {
            Some(harvest) => {
                self.machine = Some(Machine::Harvest(harvest));
                self.step(region, now_ms, Replies::new()).unwrap_or(Event::Waits)
            }
            None => self.begin_anew(region, now_ms),
        }
    }

    /// The next call looks for blocks that others have freed, and uses them again after that time.
    pub(super) fn harvest_first(&mut self, grace_ms: u64) {
        self.harvest_grace_ms = Some(grace_ms);
    }

    fn look_for_memory(&mut self) -> Option<Harvest> {
        self.harvest_grace_ms?;
        let classes = self.allocator.classes();
        classes.into_iter().find_map(|class| self.allocator.harvest(class, u64::MAX))
    }

    /// What has ripened is free.
    fn ripen(&mut self, now_ms: u64) {
        let Some(grace_ms) = self.harvest_grace_ms else { return };
        for (class, purpose) in self.allocator.classes() {
            // Where memory is used again at once, clocks stand still.
            let late_ms = u64::from(grace_ms == 0);
            self.allocator.ripen(class, purpose, grace_ms, now_ms + late_ms);
        }
    }

    fn begin_anew(&mut self, region: &Region, now_ms: u64) -> Event {
        let Some((call, value)) = self.call else { return Event::Waits };
        self.ripen(now_ms);
        let (key, seed) = (region.key(call.key), region.superblock.hash_seed);
        let change = |change: Option<Change<'static>>| {
            let Some(change) = change else { unreachable!("keys and values are short") };
            Machine::Change(change)
        };
        self.machine = Some(match call.ask {
            Ask::Get => Machine::Get(Get::new(key, seed)),
            Ask::Put => change(Change::put(key, value_bytes(value), seed)),
            Ask::Delete => change(Change::delete(key, seed)),
        });
        self.step(region, now_ms, Replies::new()).unwrap_or(Event::Waits)
    }

    /// Goes on after a pause, or with the memory that it wanted.
    pub(super) fn resume(&mut self, region: &Region, now_ms: u64) -> Result<Event, Violation> {
        self.pauses = false;
        self.step(region, now_ms, Replies::new())
    }

    /// The server refused the memory that was wanted: the call ends before its first verb that needs it.
    pub(super) fn no_memory(&mut self) -> End {
        self.end();
        End::Nothing
    }

    fn end(&mut self) {
        self.machine = None;
        self.call = None;
        self.batch = None;
        self.plan.clear();
    }

    /// Takes what has completed and goes on as far as it can.
    pub(super) fn go_on(&mut self, region: &Region, now_ms: u64) -> Result<Event, Violation> {
        let mut completions = std::mem::take(&mut self.completions);
        self.fabric.poll(&mut completions);
        let mut own = None;
        let mut failed = None;
        for Completion { batch, result } in completions.drain(..) {
            if Some(batch) == self.batch {
                own = Some(result);
            } else {
                match result {
                    Ok(replies) => self.recycle(replies),
                    Err(failure) => failed = Some(failure),
                }
            }
        }
        self.completions = completions;
        match own {
            Some(Ok(replies)) => {
                self.batch = None;
                self.plan.clear();
                self.step(region, now_ms, replies)
            }
            Some(Err(failure)) => Ok(self.lost(region, now_ms, failure)),
            None => {
                if failed.is_some() && self.rejoining.is_none() {
                    self.rejoining = Some(Rejoining::Idle);
                }
                Ok(Event::Waits)
            }
        }
    }

    /// The batch of the call under way failed.
    fn lost(&mut self, region: &Region, now_ms: u64, failure: Failure) -> Event {
        let is_out = self.batch.take().is_some();
        match self.machine.take() {
            Some(Machine::Get(_) | Machine::Harvest(_)) => self.judge(&failure, Effect::No),
            Some(Machine::Change(mut change)) => {
                let cas = change.pending_cas().filter(|_| is_out);
                if may_release(is_out) {
                    change.release(&mut self.context(region, now_ms));
                }
                let effect = effect_of(cas, &failure);
                match cas.filter(|_| effect == Effect::Unknown) {
                    Some(cas) => {
                        let ask = self.ask().unwrap_or(Ask::Put);
                        self.rejoining = Some(Rejoining::Resolve(cas, Lost { failure, ask }));
                        Event::Waits
                    }
                    None => self.judge(&failure, effect),
                }
            }
            // Resolving failed too: nobody knows.
            Some(Machine::Resolve(_, lost)) => self.judge(&lost.failure, Effect::Unknown),
            None => Event::Waits,
        }
    }

    fn context<'c>(&'c mut self, region: &'c Region, now_ms: u64) -> Context<'c> {
        Context {
            superblock: &region.superblock,
            directory: &self.directory,
            allocator: &mut self.allocator,
            write_ids: &mut self.write_ids,
            hints: &mut self.hints,
            now_ms: now_ms + self.ahead_ms,
        }
    }

    fn judge(&mut self, failure: &Failure, effect: Effect) -> Event {
        self.batch = None;
        self.plan.clear();
        self.rejoining.get_or_insert(Rejoining::Idle);
        match verdict(effect, failure) {
            Verdict::Succeeded => {
                let answer = match self.ask() {
                    Some(Ask::Delete) => Answer::Existed(true),
                    _ => Answer::Stored,
                };
                self.end();
                Event::Ended(End::Answered(answer))
            }
            Verdict::Again => {
                self.rejoining = Some(Rejoining::Again);
                Event::Waits
            }
            Verdict::Failed(effect) => {
                self.end();
                Event::Ended(if effect == Effect::No { End::Nothing } else { End::Unknown })
            }
        }
    }

    /// The connection was lost while no call waited for anything: the next one must join again first.
    pub(super) fn connection_lost(&mut self) {
        if self.call.is_some() && self.rejoining.is_none() {
            // It paused, or its completion was there already: it begins anew.
            self.machine = None;
            self.batch = None;
            self.rejoining = Some(Rejoining::Again);
        }
        self.rejoining.get_or_insert(Rejoining::Idle);
        self.pauses = false;
    }

    /// Whether no word of its directory has become older since this was asked last.
    pub(super) fn directory_only_grows(&mut self, region: &Region) -> bool {
        let mut grows = true;
        for (at, newest) in (region.first_entry()..).zip(&mut self.generations) {
            let generation = self.directory.word(at).generation;
            grows &= generation >= *newest;
            *newest = generation;
        }
        grows
    }

    /// The time of the call under way is up: it ends with its verbs out.
    pub(super) fn time_out(&mut self, region: &Region, now_ms: u64) -> End {
        let is_out = self.batch.take().is_some();
        let effect = match self.machine.take() {
            Some(Machine::Change(mut change)) => {
                let cas = change.pending_cas().filter(|_| is_out);
                if may_release(is_out) {
                    change.release(&mut self.context(region, now_ms));
                }
                effect_of_timeout(cas)
            }
            // A CAS whose fate was being looked for stays what it was.
            Some(Machine::Resolve(..)) => Effect::Unknown,
            Some(Machine::Get(_) | Machine::Harvest(_)) | None => Effect::No,
        };
        self.end();
        if effect == Effect::No { End::Nothing } else { End::Unknown }
    }

    /// Joins again on a new queue pair; in a new life of the server, as a new session that has forgotten everything.
    pub(super) fn rejoin(
        &mut self,
        region: &Region,
        now_ms: u64,
        new_session: Option<u32>,
    ) -> Result<Event, Violation> {
        self.fabric = region.node.connect(Rights::ReadWrite, DEPTH, BUFFER_LIMIT_BYTES);
        self.pauses = false;
        if let Some(session) = new_session {
            self.allocator = Allocator::new();
            self.directory = Arc::new(Directory::from_bytes(&region.directory));
            self.generations = [0; ENTRIES];
            self.write_ids = WriteIds::new(session, 0);
        }
        match self.rejoining.take() {
            None | Some(Rejoining::Idle) => Ok(Event::Waits),
            Some(Rejoining::Again) => Ok(self.begin_anew(region, now_ms)),
            Some(Rejoining::Resolve(_, lost)) if new_session.is_some() => {
                // The old region's slot can't be read any more.
                let event = self.judge(&lost.failure, Effect::Unknown);
                self.rejoining = None;
                Ok(event)
            }
            Some(Rejoining::Resolve(cas, lost)) => {
                self.machine = Some(Machine::Resolve(Resolve::new(cas), lost));
                self.step(region, now_ms, Replies::new())
            }
        }
    }

    fn step(&mut self, region: &Region, now_ms: u64, replies: Replies) -> Result<Event, Violation> {
        let mut context = Context {
            superblock: &region.superblock,
            directory: &self.directory,
            allocator: &mut self.allocator,
            write_ids: &mut self.write_ids,
            hints: &mut self.hints,
            now_ms: now_ms + self.ahead_ms,
        };
        let mut torn = None;
        let step = match &mut self.machine {
            None => return Ok(Event::Waits),
            Some(Machine::Harvest(harvest)) => {
                // Its own clock tells the owner how long a block has ripened; that it jumps is for those who read.
                context.now_ms = now_ms;
                map(harvest.step(&mut context, &replies), |_| End::Nothing)
            }
            Some(Machine::Get(get)) => map(get.step(&mut context, &replies), |found| {
                let value = found.as_ref().map(|found| value_number(value_of(found, &replies)));
                if value == Some(None) {
                    torn = found.as_ref().map(|found| value_of(found, &replies).to_vec());
                }
                End::Answered(Answer::Value(value.flatten()))
            }),
            Some(Machine::Change(change)) => map(change.step(&mut context, &replies), |changed| {
                End::Answered(match changed {
                    Changed::Stored => Answer::Stored,
                    Changed::Deleted => Answer::Existed(true),
                    Changed::Absent => Answer::Existed(false),
                })
            }),
            Some(Machine::Resolve(resolve, lost)) => {
                let (failure, ask) = (lost.failure.clone(), lost.ask);
                map(resolve.step(&mut context, &replies), |effect| match verdict(effect, &failure) {
                    Verdict::Succeeded if ask == Ask::Delete => End::Answered(Answer::Existed(true)),
                    Verdict::Succeeded => End::Answered(Answer::Stored),
                    Verdict::Again => End::Nothing,
                    Verdict::Failed(Effect::No) => End::Nothing,
                    Verdict::Failed(_) => End::Unknown,
                })
            }
        };
        self.recycle(replies);
        if let Some(bytes) = torn {
            return Err(Violation::new(Promise::WholeValues, format!("a get returned {bytes:?}")));
        }
        Ok(match step {
            Step::Post(plan) => self.post(region, now_ms, plan),
            Step::Memory(class, purpose) => Event::Memory(class, purpose),
            // This index grows by the story's rebuild alone, for which nobody waits.
            Step::Grow(_) => {
                if let Some(Machine::Change(mut change)) = self.machine.take() {
                    change.release(&mut self.context(region, now_ms));
                }
                self.end();
                Event::Ended(End::Refused(Context::BUCKET_FULL))
            }
            Step::Pause => {
                self.pauses = true;
                Event::Pauses
            }
            Step::Done(result, silent) => {
                if matches!(self.machine, Some(Machine::Harvest(_))) {
                    return Ok(self.begin_anew(region, now_ms));
                }
                let was_resolving = matches!(self.machine, Some(Machine::Resolve(..)));
                let end = match result {
                    Ok(end) => end,
                    Err(error) => End::Refused(error),
                };
                if let Some(silent) = silent {
                    self.post_silently(&silent);
                }
                if was_resolving && matches!(end, End::Nothing) {
                    // It did not happen, so it is tried again.
                    self.machine = None;
                    return Ok(self.begin_anew(region, now_ms));
                }
                self.end();
                Event::Ended(end)
            }
        })
    }

    fn post(&mut self, region: &Region, now_ms: u64, plan: Plan) -> Event {
        self.next_batch += 1;
        let id = BatchId(self.next_batch);
        self.plan = plan;
        let pieces = match &self.machine {
            Some(Machine::Change(change)) => change.block_pieces(),
            _ => (&[][..], &[][..]),
        };
        let mut verbs = VerbList::new();
        for verb in &self.plan {
            match verb.verb(self.fabric.buffers(), pieces) {
                Ok(verb) => verbs.push(verb),
                Err(error) => unreachable!("a few READs fit: {error}"),
            }
        }
        let posted = self.fabric.post(&mut [Batch { id, verbs, silent: false }]);
        match posted {
            Ok(()) => {
                self.batch = Some(id);
                Event::Waits
            }
            Err(error) => {
                // Nothing went out, so no CAS is pending.
                let kind = FailureKind::Disconnected(error.to_string());
                let failure = Failure { verb_index: 0, kind, effect: Effect::No };
                self.lost(region, now_ms, failure)
            }
        }
    }

    /// Verbs that nobody waits for; if they can't go out, they are lost as if the client had died here.
    fn post_silently(&mut self, plan: &Plan) {
        self.next_batch += 1;
        self.marks_posted += plan.len() as u32;
        let mut verbs = VerbList::new();
        for verb in plan {
            match verb.verb(self.fabric.buffers(), (&[], &[])) {
                Ok(verb) => verbs.push(verb),
                Err(error) => unreachable!("marks need no buffer: {error}"),
            }
        }
        let _ = self.fabric.post(&mut [Batch { id: BatchId(self.next_batch), verbs, silent: true }]);
    }

    fn recycle(&mut self, replies: Replies) {
        for reply in replies {
            if let Reply::Read(buffer) = reply {
                self.fabric.buffers().recycle(buffer);
            }
        }
    }
}

fn map<T>(step: Step<T>, end: impl FnOnce(T) -> End) -> Step<End> {
    match step {
        Step::Post(plan) => Step::Post(plan),
        Step::Memory(class, purpose) => Step::Memory(class, purpose),
        Step::Grow(report) => Step::Grow(report),
        Step::Pause => Step::Pause,
        Step::Done(result, silent) => Step::Done(result.map(end), silent),
    }
}

fn value_of<'r>(found: &Found, replies: &'r [Reply]) -> &'r [u8] {
    match &replies[found.reply] {
        Reply::Read(buffer) => &buffer.as_slice()[found.value.clone()],
        other => unreachable!("a value is in a READ's buffer, not in {other:?}"),
    }
}
