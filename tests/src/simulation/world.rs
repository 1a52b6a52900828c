//! One world: its region, clients, janitor and clock, and what may happen in it next.
//!
//! Always true: everything that happens is a [`Choice`] that a scheduler makes, so a list of choices is a run and the same
//! list is the same run. Oracles look at every step; the history is checked at the end.
//!
//! A call begins with its first verb and ends with its last completion: later and earlier would only weaken the order in
//! time that the checker holds answers against.

use std::sync::Arc;

use sidestep_client::directory::Directory;
use sidestep_client::operation::OperationError;
use sidestep_common::fabric::sim::{Loss, QueuePairId, Step as NetStep, Touch, WayBack};
use sidestep_common::layout::{BlockRef, CHUNK_BYTES, SLOTS_PER_BUCKET, SizeClass, chunk_shape};
use sidestep_common::planted::{Fault, is_planted};
use sidestep_common::wire::{ChunkGrant, ChunkPurpose};
use smallvec::SmallVec;

use super::book::Book;
use super::client::{Client, End, Event};
use super::coverage::{Coverage, Stage};
use super::fault::Befall;
use super::history::{Fate, History, Record};
use super::janitor::Janitor;
use super::region::{GRACE_MS, Key, Region};
use super::story::{Ask, Call, Reuse, Story};
use super::violation::{Promise, Violation};
use crate::linearizability::{Answer, Checker};

/// A schedule with more steps than this has no end.
const STEPS_MAX: u32 = 600;
/// The same for one with all steps of verbs.
const FINE_STEPS_MAX: u32 = 20_000;
/// Verbs of one call, whoever is in its way: rivals are few and have few calls.
const VERBS_A_CALL_MAX: u32 = 120;
/// The client that made what was there before.
const FOUNDER: usize = usize::MAX;

/// Something that happens next.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Choice {
    /// A client's oldest verb goes all the way; if it has none, its next call begins with one.
    Verb(u8),
    /// A client begins its next call, or goes on after a pause.
    Begin(u8),
    /// A step of a client's verbs.
    Network(u8, NetStep),
    /// A client that lost its connection has the old one fenced, and joins again.
    Rejoin(u8),
    /// A verb of a client that is dead executes yet.
    Late(u8),
    /// The server fences a client that is dead.
    Fence(u8),
    /// The janitor's next step.
    Janitor,
    /// Something befalls a client.
    Befalls(u8, Befall),
}

/// What a choice read and changed, for those who ask whether two choices could have come in the other order.
#[derive(Clone, Default, Debug)]
pub struct Footprint {
    client: Option<u8>,
    reads: SmallVec<[(u64, u64); 2]>,
    writes: SmallVec<[(u64, u64); 2]>,
    begins: bool,
    ends: bool,
    is_fault: bool,
    is_global: bool,
}

impl Footprint {
    /// Whether the order of the two could matter to anybody.
    pub fn conflicts_with(&self, other: &Self) -> bool {
        let overlap = |one: &[(u64, u64)], two: &[(u64, u64)]| {
            one.iter().any(|a| two.iter().any(|b| a.0 < b.0 + b.1 && b.0 < a.0 + a.1))
        };
        self.is_global
            || other.is_global
            || self.client == other.client
            || self.is_fault && other.is_fault
            || self.ends && other.begins
            || self.begins && other.ends
            || overlap(&self.writes, &other.writes)
            || overlap(&self.writes, &other.reads)
            || overlap(&self.reads, &other.writes)
    }

    fn touch(&mut self, touch: &Touch) {
        let place = (touch.offset, touch.bytes);
        if touch.changed { self.writes.push(place) } else { self.reads.push(place) }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Life {
    Alive,
    Dead,
    Fenced,
}

struct Actor {
    client: Client,
    life: Life,
    next_call: usize,
    /// The call under way.
    record: Option<usize>,
    verbs: u32,
    refuse_memory: bool,
    /// Verbs that are out although nobody waits for them any more, and of what they were.
    stray: usize,
    stray_stage: Stage,
    /// The memory had seen so many changes when its present try began. While there are no more, a pause goes on.
    tried_at: u64,
}

/// Counts of a run.
#[derive(Clone, Copy, Default, Debug)]
pub struct Counts {
    /// Choices made.
    pub steps: u64,
    /// Verbs, or parts of them, that took effect.
    pub verbs: u64,
    /// Clients killed.
    pub kills: u64,
    /// Things that befell somebody.
    pub befalls: u64,
}

impl Counts {
    /// Adds another's.
    pub const fn add(&mut self, other: &Self) {
        self.steps += other.steps;
        self.verbs += other.verbs;
        self.kills += other.kills;
        self.befalls += other.befalls;
    }
}

/// A world of one story.
pub struct World<'r> {
    region: &'r Region,
    story: Story,
    keys: Vec<(Key, Option<u64>)>,
    way_back: WayBack,
    founded: Book,
    founded_chunk: u64,
    // Of the run:
    actors: Vec<Actor>,
    janitor: Option<Janitor>,
    book: Book,
    history: History,
    next_chunk: u64,
    now_ms: u64,
    steps: u32,
    changes: u64,
    lives: u32,
    befalls_left: u8,
    fenced: Vec<QueuePairId>,
    violation: Option<Violation>,
    random: u64,
    checker: Checker,
    events: Vec<crate::linearizability::Event>,
    /// What was hit, in all runs.
    pub coverage: Coverage,
    /// Counts, of all runs.
    pub counts: Counts,
}

impl<'r> World<'r> {
    /// The world of `story` in `region`, which is used by no other world meanwhile.
    ///
    /// # Panics
    /// If the story's beginning doesn't go as a story should: nobody disturbs it.
    pub fn new(region: &'r Region, story: Story) -> Self {
        let mut world = Self {
            region,
            keys: Vec::new(),
            way_back: WayBack::default(),
            founded: Book::default(),
            founded_chunk: region.first_chunk,
            actors: Vec::new(),
            janitor: None,
            book: Book::default(),
            history: History::default(),
            next_chunk: region.first_chunk,
            now_ms: 1_000_000,
            steps: 0,
            changes: 0,
            lives: 1,
            befalls_left: 0,
            fenced: Vec::new(),
            violation: None,
            random: 0,
            checker: Checker::new(),
            events: Vec::new(),
            coverage: Coverage::default(),
            counts: Counts::default(),
            story,
        };
        region.node.reset();
        world.found();
        world
    }

    /// What was there before.
    fn found(&mut self) {
        let mut calls: Vec<Call> =
            (0..self.story.fillers).map(|number| Call { ask: Ask::Put, key: Key::Filler(number) }).collect();
        calls.extend(&self.story.before);
        let mut client = Client::new(self.region, 100);
        let mut values: Vec<(Key, Option<u64>)> =
            self.story.keys().into_iter().map(|key| (key, None)).collect();
        for (number, call) in calls.into_iter().enumerate() {
            let value = 1 + number as u64;
            let answer = self.alone(&mut client, FOUNDER, call, value);
            let entry = values.iter_mut().find(|entry| entry.0 == call.key);
            match (call.ask, answer, entry) {
                (Ask::Put, Some(End::Answered(Answer::Stored)), entry) => {
                    if let Some(entry) = entry {
                        entry.1 = Some(value);
                    }
                }
                (Ask::Delete, Some(End::Answered(Answer::Existed(_))), Some(entry)) => entry.1 = None,
                (Ask::Get, ..) => {}
                // With a fault planted a story may well begin badly.
                (.., answer, _) => {
                    let detail = format!("{call}, before anybody else: {answer:?}");
                    self.violation.get_or_insert(Violation::new(Promise::Errors, detail));
                }
            }
        }
        self.keys = values;
        if self.story.reuse != Reuse::Never {
            self.book.inherit(FOUNDER, 0);
        }
        self.founded = self.book.clone();
        self.founded_chunk = self.next_chunk;
        drop(client);
        self.way_back = self.region.node.mark();
    }

    /// Runs a call with nobody in between. `None` if it does not end.
    fn alone(&mut self, client: &mut Client, owner: usize, call: Call, value: u64) -> Option<End> {
        let mut event = client.begin(self.region, self.now_ms, call, value);
        for _ in 0..VERBS_A_CALL_MAX {
            match event {
                Event::Ended(end) => {
                    // Its mark, if any.
                    while let Some(step) = self.region.node.whole_step(client.queue_pair()) {
                        self.observe(owner, step);
                    }
                    let _ = client.go_on(self.region, self.now_ms);
                    return Some(end);
                }
                Event::Memory(class, purpose) => {
                    let grant = self.grant(owner, class, purpose);
                    Self::add(self.region, client, grant, purpose);
                    event = self.note(|world| client.resume(world.region, world.now_ms))?;
                }
                Event::Pauses => return None,
                Event::Waits => {
                    let step = self.region.node.whole_step(client.queue_pair())?;
                    self.observe(owner, step);
                    event = self.note(|world| client.go_on(world.region, world.now_ms))?;
                }
            }
        }
        None
    }

    fn note<T>(&mut self, act: impl FnOnce(&mut Self) -> Result<T, Violation>) -> Option<T> {
        match act(self) {
            Ok(value) => Some(value),
            Err(violation) => {
                self.violation.get_or_insert(violation);
                None
            }
        }
    }

    /// What the server does when it is asked for memory.
    fn grant(&mut self, owner: usize, class: SizeClass, purpose: ChunkPurpose) -> ChunkGrant {
        let offset = self.next_chunk;
        self.next_chunk += CHUNK_BYTES;
        self.book.granted(offset, owner, class, purpose);
        let block_count = chunk_shape(class).block_count;
        let first_index = if self.story.scarce { block_count - 1 } else { 0 };
        let version = self.story.first_version;
        ChunkGrant { offset, class: class.index(), first_index, block_count, version }
    }

    fn add(region: &Region, client: &mut Client, grant: ChunkGrant, purpose: ChunkPurpose) {
        let added = client.allocator().add(&region.superblock.geometry, grant, purpose);
        assert!(added.is_ok(), "the region has room for every chunk of a story: {added:?}");
    }

    /// Lets a step of the network happen and shows it to the oracles.
    fn observe(&mut self, owner: usize, step: NetStep) -> Option<Touch> {
        let touch = self.region.node.step(step)?;
        self.counts.verbs += 1;
        self.changes += u64::from(touch.changed);
        if touch.changed && self.fenced.contains(&touch.queue_pair) {
            let detail = format!("{touch:?} took effect behind a fence");
            self.violation.get_or_insert(Violation::new(Promise::Fence, detail));
        }
        let region = self.region;
        if let Err(violation) = self.book.touched(owner, &touch, region) {
            self.violation.get_or_insert(violation);
        }
        Some(touch)
    }

    /// Back to the beginning. `seed` is for where verbs tear.
    pub fn reset(&mut self, seed: u64) {
        self.actors.clear();
        self.region.node.reset();
        self.book.clone_from(&self.founded);
        self.history.records.clear();
        self.next_chunk = self.founded_chunk;
        self.now_ms = 1_000_000;
        self.steps = 0;
        self.changes = 0;
        self.lives = 1;
        self.befalls_left = self.story.befalls;
        self.fenced.clear();
        self.random = seed;
        let fillers = usize::from(self.story.fillers);
        self.janitor = self.story.rebuild.map(|into| Janitor::new(into, fillers));
        let copy = || {
            let region = self.region;
            let bytes = if self.story.misled { &region.old_directory } else { &region.directory };
            Arc::new(Directory::from_bytes(bytes))
        };
        let shared = self.story.together.then(copy);
        for number in 0..self.story.clients.len() {
            let mut client = Client::new(self.region, number as u32 + 1);
            if let Some(directory) = &shared {
                client.share(Arc::clone(directory));
            } else if self.story.misled {
                client.share(copy());
            }
            if self.story.reuse != Reuse::Never && number == 0 {
                self.take_over(&mut client);
            }
            self.actors.push(Actor {
                client,
                life: Life::Alive,
                next_call: 0,
                record: None,
                verbs: 0,
                refuse_memory: false,
                stray: 0,
                stray_stage: ("", ""),
                tried_at: 0,
            });
        }
    }

    /// The first client goes on with the chunks of whoever was there before.
    fn take_over(&self, client: &mut Client) {
        for (chunk, purpose) in self.book.chunks_of(0) {
            let Some(class) = self.book.class_of(chunk) else { continue };
            if self.book.used_blocks(chunk) == chunk_shape(class).block_count {
                continue;
            }
            let grant = ChunkGrant {
                offset: chunk,
                class: class.index(),
                first_index: self.book.used_blocks(chunk),
                block_count: chunk_shape(class).block_count,
                version: self.story.first_version,
            };
            Self::add(self.region, client, grant, purpose);
        }
    }

    /// The story.
    pub const fn story(&self) -> &Story {
        &self.story
    }

    /// What was broken, if anything was.
    pub fn take_violation(&mut self) -> Option<Violation> {
        self.violation.take()
    }

    /// Everything that may happen next. What must not happen for the run to be over comes last: with only that left, it
    /// is over.
    pub fn choices(&mut self, into: &mut Vec<Choice>) {
        into.clear();
        if self.violation.is_some() {
            return;
        }
        let mut steps = Vec::new();
        for (number, actor) in self.actors.iter().enumerate() {
            let me = number as u8;
            let id = actor.client.queue_pair();
            match actor.life {
                Life::Fenced => {}
                Life::Dead => {
                    if self.region.node.pending(id) > 0 {
                        into.push(Choice::Late(me));
                        into.push(Choice::Fence(me));
                    }
                }
                Life::Alive if actor.client.must_rejoin() => {
                    if self.has_more(actor) {
                        into.push(Choice::Rejoin(me));
                    }
                    if self.region.node.pending(id) > 0 {
                        into.push(Choice::Late(me));
                        if !self.has_more(actor) {
                            into.push(Choice::Fence(me));
                        }
                    }
                }
                Life::Alive => {
                    let pending = self.region.node.pending(id);
                    let may_begin = if actor.client.pauses() {
                        actor.tried_at != self.changes
                    } else {
                        !actor.client.is_busy() && self.has_more(actor)
                    };
                    if self.story.fine {
                        steps.clear();
                        let random = &mut self.random;
                        self.region.node.fine_steps(id, &mut steps, |below| draw(random, below));
                        into.extend(steps.iter().map(|step| Choice::Network(me, *step)));
                        if may_begin {
                            into.push(Choice::Begin(me));
                        }
                    } else if pending > 0 || may_begin {
                        into.push(Choice::Verb(me));
                    }
                }
            }
        }
        if self.janitor.as_ref().is_some_and(|janitor| !janitor.is_done()) {
            into.push(Choice::Janitor);
        }
        if self.befalls_left > 0 && !into.is_empty() {
            self.befalling(into);
        }
    }

    fn has_more(&self, actor: &Actor) -> bool {
        let number = self.actors.iter().position(|other| std::ptr::eq(other, actor));
        let calls = number.map_or(0, |number| self.story.clients[number].len());
        actor.client.is_busy() || actor.next_call < calls
    }

    fn befalling(&self, into: &mut Vec<Choice>) {
        for (number, actor) in self.actors.iter().enumerate() {
            if actor.life != Life::Alive || actor.client.must_rejoin() {
                continue;
            }
            let id = actor.client.queue_pair();
            let pending = self.region.node.pending(id);
            let is_busy = actor.client.is_busy();
            // Marks of the last call may be out.
            let concerned = is_busy || pending > 0;
            for &befall in &self.story.may_befall {
                let possible = match befall {
                    Befall::Death | Befall::LossBefore => concerned,
                    Befall::LossAfter => pending > 0,
                    Befall::Flush => pending > 0,
                    Befall::Timeout => is_busy && pending > 0,
                    Befall::Restart => concerned && self.lives == 1 && self.janitor.is_none(),
                    Befall::Standstill | Befall::ClockJump => is_busy,
                    Befall::NoMemory => {
                        !is_busy && pending == 0 && self.has_more(actor) && !actor.refuse_memory
                            || actor.client.stage() == ("delete", "bucket") && !actor.refuse_memory
                    }
                    Befall::ReadAgain => self.story.fine && !self.region.node.reads_to_repeat(id).is_empty(),
                    Befall::Tear | Befall::LateEffect => false,
                };
                if possible {
                    into.push(Choice::Befalls(number as u8, befall));
                }
            }
        }
    }

    /// Makes a choice; one that is not possible does nothing.
    pub fn take(&mut self, choice: Choice) -> Footprint {
        self.steps += 1;
        self.counts.steps += 1;
        let mut footprint = Footprint::default();
        match choice {
            Choice::Verb(me) => {
                footprint.client = Some(me);
                self.verb(usize::from(me), &mut footprint);
            }
            Choice::Begin(me) => {
                footprint.client = Some(me);
                self.begin(usize::from(me), &mut footprint);
            }
            Choice::Network(me, step) => {
                footprint.client = Some(me);
                self.network(usize::from(me), step, &mut footprint);
            }
            Choice::Rejoin(me) => {
                footprint.client = Some(me);
                self.rejoin(usize::from(me), &mut footprint);
            }
            Choice::Late(me) => {
                footprint.client = Some(me);
                self.late(usize::from(me), &mut footprint);
            }
            Choice::Fence(me) => {
                footprint.client = Some(me);
                self.fence(usize::from(me));
                if let Some(actor) = self.actors.get_mut(usize::from(me))
                    && actor.life == Life::Dead
                {
                    actor.life = Life::Fenced;
                }
            }
            Choice::Janitor => {
                if let Some(janitor) = &mut self.janitor {
                    let touched = janitor.step(self.region, &mut self.book);
                    self.changes += 1;
                    footprint.writes.extend(touched.into_iter().map(|(offset, bytes)| (offset.0, bytes)));
                }
            }
            Choice::Befalls(me, befall) => {
                footprint.client = Some(me);
                footprint.is_fault = true;
                self.befall(usize::from(me), befall, &mut footprint);
            }
        }
        let limit = if self.story.fine { FINE_STEPS_MAX } else { STEPS_MAX };
        if self.steps > limit {
            let detail = format!("no end after {limit} steps");
            self.violation.get_or_insert(Violation::new(Promise::Progress, detail));
        }
        footprint
    }

    fn verb(&mut self, me: usize, footprint: &mut Footprint) {
        let Some(actor) = self.actors.get(me) else { return };
        if actor.life != Life::Alive || actor.client.must_rejoin() {
            return;
        }
        let id = actor.client.queue_pair();
        if self.region.node.pending(id) == 0 {
            self.begin(me, footprint);
        }
        let id = self.actors[me].client.queue_pair();
        if let Some(step) = self.region.node.whole_step(id) {
            self.network(me, step, footprint);
        }
    }

    /// Begins the next call, or resumes a paused one.
    fn begin(&mut self, me: usize, footprint: &mut Footprint) {
        let Some(actor) = self.actors.get_mut(me) else { return };
        if actor.life != Life::Alive || actor.client.must_rejoin() {
            return;
        }
        if actor.client.pauses() {
            if actor.tried_at == self.changes {
                return;
            }
            actor.tried_at = self.changes;
            let event = actor.client.resume(self.region, self.now_ms);
            self.after(me, event, footprint);
            return;
        }
        if actor.client.is_busy() {
            return;
        }
        let Some(&call) = self.story.clients[me].get(actor.next_call) else { return };
        actor.next_call += 1;
        actor.verbs = 0;
        actor.tried_at = self.changes;
        let value = 100 * (me as u64 + 1) + actor.next_call as u64;
        actor.record = Some(self.history.records.len());
        self.history.records.push(Record {
            client: me,
            call,
            value,
            life: self.lives - 1,
            invoked: 2 * u64::from(self.steps),
            fate: Fate::Open,
        });
        footprint.begins = true;
        if self.story.reuse != Reuse::Never {
            self.harvest(me, footprint);
        }
        let event = self.actors[me].client.begin(self.region, self.now_ms, call, value);
        self.after(me, Ok(event), footprint);
    }

    /// The owner of chunks looks for blocks that are free: what reclamation will do.
    fn harvest(&mut self, me: usize, footprint: &mut Footprint) {
        let grace_ms = if self.story.reuse == Reuse::AtOnce { 0 } else { GRACE_MS };
        let free = self.book.harvest(me, self.now_ms, grace_ms, &self.region.node);
        let allocator = self.actors[me].client.allocator();
        for (block, purpose) in free {
            let version = block.version.next();
            allocator.give_back(BlockRef { version, ..block }, purpose);
        }
        let maps = self.book.chunks_of(me).into_iter().map(|(chunk, _)| (chunk, 64));
        footprint.reads.extend(maps);
    }

    fn network(&mut self, me: usize, step: NetStep, footprint: &mut Footprint) {
        let Some(actor) = self.actors.get(me) else { return };
        if actor.life != Life::Alive || step.queue_pair() != actor.client.queue_pair() {
            return;
        }
        let stage = actor.client.stage();
        if let Some(touch) = self.observe(me, step) {
            footprint.touch(&touch);
            let actor = &mut self.actors[me];
            actor.verbs += u32::from(touch.whole);
            if matches!(step, NetStep::Execute(..)) && !touch.whole && actor.client.is_busy() {
                self.coverage.hit(stage, Befall::Tear);
            }
            if touch.whole && actor.stray > 0 {
                actor.stray -= 1;
                self.coverage.hit(actor.stray_stage, Befall::LateEffect);
            }
            if actor.verbs > VERBS_A_CALL_MAX {
                let detail = format!("client {me}'s call took more than {VERBS_A_CALL_MAX} verbs");
                self.violation.get_or_insert(Violation::new(Promise::Progress, detail));
            }
        }
        let event = self.actors[me].client.go_on(self.region, self.now_ms);
        self.after(me, event, footprint);
    }

    /// What follows a client's own step.
    fn after(&mut self, me: usize, event: Result<Event, Violation>, footprint: &mut Footprint) {
        if self.story.rebuild.is_some() && !self.actors[me].client.directory_only_grows(self.region) {
            let detail = format!("client {me} forgot a newer word of the directory for an older one");
            self.violation.get_or_insert(Violation::new(Promise::Directory, detail));
        }
        let mut event = event;
        loop {
            match event {
                Err(violation) => {
                    self.violation.get_or_insert(violation);
                    return;
                }
                Ok(Event::Waits | Event::Pauses) => return,
                Ok(Event::Memory(class, purpose)) => {
                    let actor = &mut self.actors[me];
                    let pool_end = self.region.superblock.geometry.region_bytes;
                    let is_empty = self.next_chunk + CHUNK_BYTES > pool_end;
                    if std::mem::take(&mut actor.refuse_memory) || is_empty {
                        let stage = actor.client.stage();
                        self.coverage.hit(stage, Befall::NoMemory);
                        let end = self.actors[me].client.no_memory();
                        self.ended(me, end, footprint);
                        return;
                    }
                    let grant = self.grant(me, class, purpose);
                    Self::add(self.region, &mut self.actors[me].client, grant, purpose);
                    event = self.actors[me].client.resume(self.region, self.now_ms);
                }
                Ok(Event::Ended(end)) => {
                    self.ended(me, end, footprint);
                    return;
                }
            }
        }
    }

    fn ended(&mut self, me: usize, end: End, footprint: &mut Footprint) {
        footprint.ends = true;
        let Some(number) = self.actors[me].record.take() else { return };
        if matches!(end, End::Answered(Answer::Stored))
            && let Err(violation) = self.book.stored(me)
        {
            self.violation.get_or_insert(violation);
        }
        let at = 2 * u64::from(self.steps) + 1;
        let record = &mut self.history.records[number];
        record.fate = match end {
            End::Answered(answer) => Fate::Returned(at, answer),
            End::Unknown => Fate::Open,
            End::Nothing => Fate::Nothing,
            End::Refused(error) => {
                let wanted = usize::from(self.story.fillers) + self.keys.len();
                let is_full = matches!(error, OperationError::BucketFull { .. });
                if !is_full || wanted <= SLOTS_PER_BUCKET {
                    let detail = format!("client {me}: {}: {error}", record.call);
                    self.violation.get_or_insert(Violation::new(Promise::Errors, detail));
                }
                Fate::Nothing
            }
        };
    }

    fn fence(&mut self, me: usize) {
        let Some(actor) = self.actors.get_mut(me) else { return };
        let id = actor.client.queue_pair();
        if self.region.node.pending(id) > 0 {
            self.book.excuse(me);
        }
        self.region.node.fence(id);
        self.fenced.push(id);
    }

    fn rejoin(&mut self, me: usize, footprint: &mut Footprint) {
        if !self.actors.get(me).is_some_and(|actor| actor.life == Life::Alive && actor.client.must_rejoin()) {
            return;
        }
        if is_planted(Fault::ResolvedBeforeFence) {
            // Goes on beside the old queue pair; its verbs take effect when they like.
            self.strays_live_on(me);
        } else {
            self.fence(me);
        }
        let life = self.lives - 1;
        let actor = &mut self.actors[me];
        let mut new_session = None;
        if let Some(number) = actor.record
            && self.history.records[number].life != life
        {
            self.history.records[number].life = life;
            new_session = Some(1000 + me as u32);
        } else if actor.record.is_none() && life > 0 {
            new_session = Some(1000 + me as u32);
        }
        let old_life = actor.record;
        let event = actor.client.rejoin(self.region, self.now_ms, new_session);
        if new_session.is_some()
            && let (Some(number), Ok(Event::Ended(End::Unknown))) = (old_life, &event)
        {
            // Whatever it did, it did in the old life.
            self.history.records[number].life = life - 1;
        }
        self.after(me, event, footprint);
    }

    /// A planted fault keeps a lost queue pair alive: its verbs become another actor's.
    fn strays_live_on(&mut self, me: usize) {
        let mut client = Client::new(self.region, 500 + me as u32);
        std::mem::swap(&mut client.fabric, &mut self.actors[me].client.fabric);
        self.book.excuse(me);
        self.story_strays(client, me);
    }

    fn story_strays(&mut self, client: Client, owner: usize) {
        let stray_stage = self.actors[owner].stray_stage;
        self.story.clients.push(Vec::new());
        self.actors.push(Actor {
            client,
            life: Life::Dead,
            next_call: 0,
            record: None,
            verbs: 0,
            refuse_memory: false,
            stray: 0,
            stray_stage,
            tried_at: 0,
        });
    }

    fn late(&mut self, me: usize, footprint: &mut Footprint) {
        let Some(actor) = self.actors.get(me) else { return };
        let id = actor.client.queue_pair();
        let stage = actor.stray_stage;
        if let Some(step) = self.region.node.whole_step(id)
            && let Some(touch) = self.observe(me, step)
        {
            footprint.touch(&touch);
            self.coverage.hit(stage, Befall::LateEffect);
        }
    }

    fn befall(&mut self, me: usize, befall: Befall, footprint: &mut Footprint) {
        if self.befalls_left == 0 || !self.actors.get(me).is_some_and(|actor| actor.life == Life::Alive) {
            return;
        }
        let mut possible = Vec::new();
        self.befalling(&mut possible);
        if !possible.contains(&Choice::Befalls(me as u8, befall)) {
            return;
        }
        self.befalls_left -= 1;
        self.counts.befalls += 1;
        let stage = self.actors[me].client.stage();
        let id = self.actors[me].client.queue_pair();
        if befall != Befall::NoMemory {
            self.coverage.hit(stage, befall);
        }
        self.actors[me].stray_stage = stage;
        match befall {
            Befall::Death => {
                self.counts.kills += 1;
                self.actors[me].life = Life::Dead;
                self.book.excuse(me);
                self.region.node.lose(id, Loss::Death);
            }
            Befall::LossBefore | Befall::LossAfter | Befall::Flush => {
                self.book.excuse(me);
                if befall == Befall::LossAfter {
                    // Of fine steps, the oldest that has not executed.
                    let mut steps = Vec::new();
                    while let Some(step) = self.first_execution(id, &mut steps) {
                        if let Some(touch) = self.observe(me, step) {
                            footprint.touch(&touch);
                        }
                        if matches!(step, NetStep::Execute(..)) {
                            break;
                        }
                    }
                }
                let loss = if befall == Befall::Flush { Loss::Flush } else { Loss::Silence };
                self.region.node.lose(id, loss);
                let event = self.actors[me].client.go_on(self.region, self.now_ms);
                self.after(me, event, footprint);
                self.lose_idle(me);
            }
            Befall::Timeout => {
                self.book.excuse(me);
                let actor = &mut self.actors[me];
                actor.stray = self.region.node.pending(id);
                let end = actor.client.time_out(self.region, self.now_ms);
                self.ended(me, end, footprint);
            }
            Befall::Restart => {
                footprint.is_global = true;
                self.restart();
            }
            Befall::Standstill => {
                footprint.is_global = true;
                self.now_ms += GRACE_MS + 1;
            }
            Befall::ClockJump => self.actors[me].client.ahead_ms += GRACE_MS / 2 + 1,
            Befall::NoMemory => self.actors[me].refuse_memory = true,
            Befall::ReadAgain => {
                if let Some(at) = self.region.node.reads_to_repeat(id).first() {
                    self.region.node.step(NetStep::ReadAgain(id, *at));
                }
            }
            Befall::Tear | Befall::LateEffect => {}
        }
    }

    /// The next step towards the execution of the oldest verb that has not executed.
    fn first_execution(&self, id: QueuePairId, steps: &mut Vec<NetStep>) -> Option<NetStep> {
        steps.clear();
        self.region.node.fine_steps(id, steps, |_| 0);
        let execution = steps.iter().find(|step| matches!(step, NetStep::Execute(..)));
        execution.or_else(|| steps.iter().find(|step| matches!(step, NetStep::Arrive(_)))).copied()
    }

    /// A connection that was lost while nobody waited shows with the next call.
    fn lose_idle(&mut self, me: usize) {
        self.actors[me].client.connection_lost();
    }

    /// The server restarts: its region is empty, and all connections are lost.
    fn restart(&mut self) {
        self.lives += 1;
        self.region.node.go_back(&self.way_back);
        self.changes += 1;
        self.book = Book::default();
        for me in 0..self.actors.len() {
            let id = self.actors[me].client.queue_pair();
            self.region.node.lose(id, Loss::Silence);
            self.region.node.fence(id);
            self.fenced.push(id);
            self.book.excuse(me);
            if self.actors[me].life == Life::Alive {
                let event = self.actors[me].client.go_on(self.region, self.now_ms);
                let mut footprint = Footprint::default();
                self.after(me, event, &mut footprint);
                self.lose_idle(me);
            } else {
                self.actors[me].life = Life::Fenced;
            }
        }
    }

    /// The run is over: everybody is done, or dead. Reads every key once more and checks all that can be checked now.
    ///
    /// # Errors
    /// The first promise that was broken.
    pub fn finish(&mut self) -> Result<(), Violation> {
        if let Some(violation) = self.violation.take() {
            return Err(violation);
        }
        let waits = |actor: &Actor| actor.life == Life::Alive && actor.client.is_busy();
        if let Some(me) = self.actors.iter().position(waits) {
            let detail = format!("client {me} waits for something that does not come");
            return Err(Violation::new(Promise::Progress, detail));
        }
        let mut observer = Client::new(self.region, 200);
        for at in 0..self.keys.len() {
            let call = Call { ask: Ask::Get, key: self.keys[at].0 };
            let invoked = 2 * u64::from(self.steps) + 2 + 2 * at as u64;
            let answer = match self.alone(&mut observer, FOUNDER, call, 0) {
                Some(End::Answered(answer)) => answer,
                other => {
                    let violation = self.violation.take();
                    let detail = format!("the last {call} gives {other:?}");
                    return Err(violation.unwrap_or_else(|| Violation::new(Promise::Progress, detail)));
                }
            };
            let fate = Fate::Returned(invoked + 1, answer);
            let (life, value) = (self.lives - 1, 0);
            self.history.records.push(Record { client: FOUNDER, call, value, life, invoked, fate });
        }
        if let Some(violation) = self.violation.take() {
            return Err(violation);
        }
        self.history.check(&mut self.checker, &self.keys, self.lives, &mut self.events)?;
        self.book.balance()?;
        self.unpublished()
    }

    /// Blocks that a client wrote and never published are the next that it is given, unless it may not know their fate.
    fn unpublished(&mut self) -> Result<(), Violation> {
        if self.story.reuse != Reuse::Never {
            return Ok(());
        }
        for (me, actor) in self.actors.iter_mut().enumerate() {
            if actor.life != Life::Alive {
                continue;
            }
            let unpublished = self.book.unpublished(me);
            for (block, class, purpose) in &unpublished {
                let next = actor.client.allocator().allocate(*class, *purpose);
                let is_one = next.is_some_and(|next| unpublished.iter().any(|entry| entry.0 == next.offset));
                if !is_one {
                    let detail = format!("client {me} neither published nor took back block {block}");
                    return Err(Violation::new(Promise::Accounts, detail));
                }
            }
        }
        Ok(())
    }

    /// What everybody could tell of the run: answers, and which call was over before which began.
    #[cfg(test)]
    pub(super) fn outcome(&self) -> String {
        let mut records: Vec<&Record> = self.history.records.iter().collect();
        records.sort_by_key(|record| (record.client, record.value));
        let mut text = String::new();
        for record in &records {
            match record.fate {
                Fate::Returned(_, answer) => text += &format!("{answer:?} "),
                other => text += &format!("{other:?} "),
            }
            for other in &records {
                let is_before = matches!(other.fate, Fate::Returned(at, _) if at < record.invoked);
                text.push(if is_before { '1' } else { '0' });
            }
            text.push(';');
        }
        text
    }

    /// The history as a person can read it.
    pub fn tell(&self) -> String {
        let mut text = String::new();
        for record in &self.history.records {
            let who = match record.client {
                FOUNDER => "the end".to_owned(),
                number => format!("client {number}"),
            };
            let fate = match record.fate {
                Fate::Open => "open".to_owned(),
                Fate::Nothing => "did nothing".to_owned(),
                Fate::Returned(at, answer) => format!("{answer:?} at {at}"),
            };
            let value =
                if record.call.ask == Ask::Put { format!(" = {}", record.value) } else { String::new() };
            text += &format!("  {who}: {}{value}, from {}: {fate}\n", record.call, record.invoked);
        }
        text
    }
}

impl Drop for World<'_> {
    /// The region is as it was before this world.
    fn drop(&mut self) {
        self.actors.clear();
        self.region.node.reset();
        self.region.node.go_back(&self.way_back);
        self.region.node.mark();
    }
}

/// A number below `below`.
pub(super) fn draw(random: &mut u64, below: usize) -> usize {
    // SplitMix64 (Steele, Lea, Flood 2014).
    *random = random.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut word = *random;
    word = (word ^ word >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    ((word ^ word >> 31) % below.max(1) as u64) as usize
}
