//! One world: its region, clients, janitor and clock, and what may happen in it next.
//!
//! Always true: everything that happens is a [`Choice`] that a scheduler makes, so a list of choices is a run and the same
//! list is the same run. Oracles look at every step; the history is checked at the end.
//!
//! A call begins with its first verb and ends with its last completion: later and earlier would only weaken the order in
//! time that the checker holds answers against.

mod calls;
mod choice;
mod choices;
mod connections;
mod ending;
mod founding;
mod mishaps;

use std::sync::Arc;

use sidestep_client::directory::Directory;
use sidestep_client::operation::OperationError;
use sidestep_common::fabric::sim::{Loss, QueuePairId, Step as NetStep, Touch, WayBack};
use sidestep_common::layout::{
    BlockPlace, CHUNK_BYTES, Offset, SLOTS_PER_BUCKET, SizeClass, Version, chunk_shape,
};
use sidestep_common::planted::{Fault, is_planted};
use sidestep_common::wire::{ChunkGrant, ChunkPurpose};

pub use choice::{Choice, Footprint};

use super::book::Book;
use super::client::{Client, End, Event};
use super::coverage::{Coverage, Stage};
use super::fault::Befall;
use super::history::{Fate, History, Record};
use super::janitor::Janitor;
use super::random::draw;
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

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Life {
    Alive,
    Dead,
    Fenced,
}

struct Actor {
    client: Client,
    /// Whose memory it works with: its own number, unless a planted mistake split it off.
    owner: usize,
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
    /// In which life of the server its session began.
    session_life: u32,
}

impl Actor {
    fn new(client: Client, owner: usize) -> Self {
        Self {
            client,
            owner,
            life: Life::Alive,
            next_call: 0,
            record: None,
            verbs: 0,
            refuse_memory: false,
            stray: 0,
            stray_stage: ("", ""),
            tried_at: 0,
            session_life: 0,
        }
    }
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
        self.book.now_ms = self.now_ms;
        self.book.grace_ms = self.grace_ms();
        if let Err(violation) = self.book.touched(owner, &touch, region) {
            self.violation.get_or_insert(violation);
        }
        Some(touch)
    }

    /// After how long blocks are used again.
    fn grace_ms(&self) -> Option<u64> {
        match self.story.reuse {
            Reuse::Never => None,
            Reuse::AtOnce => Some(0),
            _ => Some(GRACE_MS),
        }
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
        self.janitor = self.story.rebuild.map(|_| Janitor::new(self.region, &self.story));
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
            self.actors.push(Actor::new(client, number));
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
                    let seen = janitor.step(self.region, &mut self.book, &mut footprint);
                    // Whoever waits looks again when there is something else to see.
                    self.changes += u64::from(!janitor.is_building() && !footprint.writes.is_empty());
                    if let Err(violation) = seen {
                        self.violation.get_or_insert(violation);
                    }
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
