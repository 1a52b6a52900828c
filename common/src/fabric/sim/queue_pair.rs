//! One simulated queue pair: its verbs between post and completion.
//!
//! Always true: verbs execute in the order posted, except that a WRITE may overtake READs; a verb behind one that was
//! refused never executes; completions come in the order posted; what was fenced executes no more. A WRITE, CAS or FAA
//! executes at most once, as on every real fabric; a READ may execute again until it is acknowledged.

use std::collections::VecDeque;

use smallvec::SmallVec;

use super::memory::{Memory, Span, WordSet};
use super::step::{Part, Step, Touch, VerbKind};
use super::{Loss, QueuePairId};
use crate::fabric::{
    Batch, BatchId, Buffer, Completion, Effect, Failure, FailureKind, Replies, Reply, Rights, Verb,
};

/// A verb on its way.
#[derive(Debug)]
enum Work {
    Read(Span, Option<Buffer>),
    Write(Span, SmallVec<[u8; 128]>),
    CompareSwap(u64, u64, u64),
    FetchAdd(u64, u64),
    /// Of a batch without verbs.
    Nothing,
}

#[derive(Debug)]
struct Flight {
    work: Work,
    batch: BatchId,
    /// Its place in the batch.
    index: usize,
    last: bool,
    silent: bool,
    arrived: bool,
    /// It has executed to its end at least once.
    executed: bool,
    /// Words still to be done, since it began.
    left: Option<WordSet>,
    acknowledged: bool,
    old: u64,
    /// Why the node will refuse it.
    refusal: Option<String>,
}

/// Where a queue pair is in its life.
#[derive(Clone, PartialEq, Eq, Debug)]
enum State {
    Open,
    /// Its poster has been told, or is gone; verbs that have left may execute yet.
    Lost(String),
    /// Nothing executes any more.
    Dead(String),
}

#[derive(Debug)]
pub(super) struct QueuePair {
    id: QueuePairId,
    rights: Rights,
    key_is_right: bool,
    region_bytes: u64,
    state: State,
    flights: VecDeque<Flight>,
    completed: Vec<Completion>,
    /// Verbs, or empty batches, that have been posted and whose end was not polled.
    pub(super) in_flight: usize,
    /// Of those, the ones in `completed`.
    unpolled: usize,
    /// Buffers of silent READs, to go back to the pool.
    pub(super) idle_buffers: Vec<Buffer>,
}

impl QueuePair {
    pub(super) fn new(id: QueuePairId, rights: Rights, key_is_right: bool, region_bytes: u64) -> Self {
        Self {
            id,
            rights,
            key_is_right,
            region_bytes,
            state: State::Open,
            flights: VecDeque::new(),
            completed: Vec::new(),
            in_flight: 0,
            unpolled: 0,
            idle_buffers: Vec::new(),
        }
    }

    pub(super) const fn id(&self) -> QueuePairId {
        self.id
    }

    /// Why it takes no verbs any more.
    pub(super) fn broken(&self) -> Option<&str> {
        match &self.state {
            State::Open => None,
            State::Lost(reason) | State::Dead(reason) => Some(reason),
        }
    }

    /// Verbs that have not executed, and may.
    pub(super) fn pending(&self) -> usize {
        match self.state {
            State::Dead(_) => 0,
            State::Open | State::Lost(_) => self.flights.iter().filter(|flight| !flight.executed).count(),
        }
    }

    pub(super) fn has_completions(&self) -> bool {
        !self.completed.is_empty()
    }

    /// Takes the batch's verbs. Callers have checked that it is open and has room.
    pub(super) fn post(&mut self, batch: &mut Batch<'_>) {
        let count = batch.verbs.len();
        self.in_flight += count.max(1);
        if count == 0 {
            self.push(batch, Work::Nothing, 0, true);
        }
        for (index, verb) in std::mem::take(&mut batch.verbs).into_iter().enumerate() {
            let work = match verb {
                Verb::Read { remote, into } => {
                    Work::Read(Span { remote: remote.0, bytes: into.len() }, Some(into))
                }
                Verb::Write { remote, from } => {
                    let bytes: SmallVec<[u8; 128]> = from.into_iter().flatten().copied().collect();
                    Work::Write(Span { remote: remote.0, bytes: bytes.len() }, bytes)
                }
                Verb::CompareSwap { remote, expected, desired } => {
                    Work::CompareSwap(remote.0, expected, desired)
                }
                Verb::FetchAdd { remote, add } => Work::FetchAdd(remote.0, add),
            };
            self.push(batch, work, index, index + 1 == count);
        }
    }

    fn push(&mut self, batch: &Batch<'_>, work: Work, index: usize, last: bool) {
        let refusal = work.refusal(self.rights, self.key_is_right, self.region_bytes);
        self.flights.push_back(Flight {
            refusal,
            work,
            batch: batch.id,
            index,
            last,
            silent: batch.silent,
            arrived: false,
            executed: false,
            left: None,
            acknowledged: false,
            old: 0,
        });
    }

    pub(super) fn take_completions(&mut self, completions: &mut Vec<Completion>) -> usize {
        self.in_flight -= self.unpolled;
        self.unpolled = 0;
        let count = self.completed.len();
        completions.append(&mut self.completed);
        count
    }

    /// The single step that nobody who wants speed would split: the oldest verb, whole.
    pub(super) fn whole_step(&self) -> Option<Step> {
        (self.pending() > 0).then_some(Step::Whole(self.id))
    }

    /// Every step that is possible now, words taken in runs: `draw(n)` picks below n.
    pub(super) fn fine_steps(&self, steps: &mut Vec<Step>, mut draw: impl FnMut(usize) -> usize) {
        if matches!(self.state, State::Dead(_)) {
            return;
        }
        let is_open = self.state == State::Open;
        if self.flights.iter().any(|flight| !flight.arrived) && is_open {
            steps.push(Step::Arrive(self.id));
        }
        for (at, flight) in self.flights.iter().enumerate() {
            if self.may_execute(at) {
                let part = match flight.work.span() {
                    Some(span) if span.words() > 1 => {
                        let words = span.words();
                        match draw(4) {
                            0 => Part::All,
                            1 => Part::Words { first: draw(words) as u32, count: 1 },
                            _ => {
                                let first = draw(words);
                                let count = 1 + draw(words - first);
                                Part::Words { first: first as u32, count: count as u32 }
                            }
                        }
                    }
                    _ => Part::All,
                };
                steps.push(Step::Execute(self.id, at, part));
            }
        }
        if is_open {
            let unknown = self.flights.iter().find(|flight| !flight.acknowledged);
            if unknown.is_some_and(|flight| flight.executed && flight.is_whole()) {
                steps.push(Step::Acknowledge(self.id));
            }
            if self.batch_is_known() {
                steps.push(Step::Complete(self.id));
            }
        }
    }

    /// READs that could be executed again.
    pub(super) fn reads_to_repeat(&self) -> impl Iterator<Item = usize> {
        let is_open = self.state == State::Open;
        self.flights
            .iter()
            .enumerate()
            .filter(move |(_, flight)| {
                is_open && flight.executed && !flight.acknowledged && matches!(flight.work, Work::Read(..))
            })
            .map(|(at, _)| at)
    }

    fn may_execute(&self, at: usize) -> bool {
        let Some(flight) = self.flights.get(at) else { return false };
        if !flight.arrived || flight.executed && flight.is_whole() || matches!(self.state, State::Dead(_)) {
            return false;
        }
        let mut earlier = self.flights.iter().take(at);
        if flight.executed {
            // A READ that is executed again comes behind the earlier ones that are.
            return earlier.all(Flight::is_whole);
        }
        let overtakes = matches!(flight.work, Work::Write(..));
        // What a READ brings before an earlier one that is sent again is discarded: answers come in order.
        let waits = matches!(flight.work, Work::Read(..));
        earlier.all(|earlier| {
            let is_passed =
                matches!(earlier.work, Work::Read(..)) && earlier.arrived && earlier.refusal.is_none();
            earlier.executed && (earlier.is_whole() || !waits) || overtakes && is_passed
        })
    }

    fn batch_is_known(&self) -> bool {
        for flight in &self.flights {
            if !flight.acknowledged {
                return false;
            }
            if flight.last {
                return true;
            }
        }
        false
    }

    /// Takes one step; what it did to the memory. `None` if the step is not possible, or touches nothing.
    pub(super) fn step(&mut self, step: Step, memory: &mut Memory) -> Option<Touch> {
        match step {
            Step::Arrive(_) => {
                if self.state == State::Open
                    && let Some(flight) = self.flights.iter_mut().find(|flight| !flight.arrived)
                {
                    flight.arrived = true;
                }
                None
            }
            Step::Execute(_, at, part) => {
                if !self.may_execute(at) {
                    return None;
                }
                self.execute(at, part, memory)
            }
            Step::Acknowledge(_) => {
                if self.state == State::Open
                    && let Some(flight) = self.flights.iter_mut().find(|flight| !flight.acknowledged)
                    && flight.executed
                    && flight.is_whole()
                {
                    flight.acknowledged = true;
                }
                None
            }
            Step::Complete(_) => {
                if self.state == State::Open && self.batch_is_known() {
                    self.complete();
                }
                None
            }
            Step::Whole(_) => {
                let at = self.flights.iter().position(|flight| !flight.executed)?;
                for flight in self.flights.iter_mut().take(at + 1) {
                    flight.arrived = true;
                }
                let touch = self.execute(at, Part::All, memory);
                if self.state == State::Open {
                    for flight in self.flights.iter_mut().take(at + 1) {
                        flight.acknowledged = true;
                    }
                    while self.batch_is_known() {
                        self.complete();
                    }
                } else if matches!(self.state, State::Lost(_)) {
                    self.forget_executed();
                }
                touch
            }
            Step::ReadAgain(_, at) => {
                // The poster sends everything again from the lost answer on. The node answers for WRITEs and atomics
                // without executing them, and executes READs, those that it was in the middle of from their start.
                if self.reads_to_repeat().any(|read| read == at) {
                    for flight in self.flights.iter_mut().skip(at) {
                        if matches!(flight.work, Work::Read(..)) && !flight.acknowledged {
                            flight.left = None;
                        }
                    }
                }
                None
            }
        }
    }

    /// Nobody asks any more what became of verbs of a lost queue pair.
    fn forget_executed(&mut self) {
        while self.flights.front().is_some_and(|flight| flight.executed) {
            self.flights.pop_front();
        }
    }

    fn execute(&mut self, at: usize, part: Part, memory: &mut Memory) -> Option<Touch> {
        let flight = &mut self.flights[at];
        if let Some(reason) = flight.refusal.take() {
            let touch = flight.work.touch(self.id).map(|touch| Touch { refused: true, ..touch });
            self.refuse(at, reason);
            return touch;
        }
        let mut touch = flight.work.touch(self.id);
        flight.execute(part, memory, touch.as_mut());
        touch
    }

    /// The node refuses a verb: it and all behind it have no effect, and the queue pair is done for.
    fn refuse(&mut self, at: usize, reason: String) {
        let was_open = self.state == State::Open;
        // All before it have executed, so they are known.
        for flight in self.flights.iter_mut().take(at) {
            flight.acknowledged = true;
        }
        while was_open && self.batch_is_known() {
            self.complete();
        }
        self.state = State::Dead(format!("access refused: {reason}"));
        if was_open {
            self.fail(FailureKind::Access(reason), |_| Effect::No);
        }
        self.flights.clear();
    }

    /// The oldest batch ends well.
    fn complete(&mut self) {
        let mut replies = Replies::new();
        let mut credit = 0;
        while let Some(mut flight) = self.flights.pop_front() {
            credit += 1;
            let reply = match std::mem::replace(&mut flight.work, Work::Nothing) {
                Work::Read(_, Some(buffer)) => Some(Reply::Read(buffer)),
                Work::Write(..) => Some(Reply::Written),
                Work::CompareSwap(..) | Work::FetchAdd(..) => Some(Reply::Old(flight.old)),
                Work::Read(_, None) | Work::Nothing => None,
            };
            match reply {
                Some(Reply::Read(buffer)) if flight.silent => self.idle_buffers.push(buffer),
                Some(reply) if !flight.silent => replies.push(reply),
                _ => {}
            }
            if flight.last {
                if flight.silent {
                    self.in_flight -= credit;
                } else {
                    self.unpolled += credit;
                    self.completed.push(Completion { batch: flight.batch, result: Ok(replies) });
                }
                return;
            }
        }
    }

    /// Every loud batch that has not ended fails, the first with `kind`, those behind it flushed. `effect` says what is
    /// known of a verb that was not acknowledged.
    fn fail(&mut self, kind: FailureKind, effect: impl Fn(bool) -> Effect) {
        let mut kind = Some(kind);
        let mut at = 0;
        while at < self.flights.len() {
            let length = self.flights.iter().skip(at).take_while(|flight| !flight.last).count() + 1;
            let batch: SmallVec<[&Flight; 4]> = self.flights.iter().skip(at).take(length).collect();
            let unknown: SmallVec<[&&Flight; 4]> =
                batch.iter().filter(|flight| !flight.acknowledged).collect();
            let verb_index = unknown.first().map_or(0, |flight| flight.index);
            let any_arrived = unknown.iter().any(|flight| flight.arrived);
            let kind = kind.take().unwrap_or(FailureKind::Flushed);
            if !batch[0].silent {
                let failure = Failure { verb_index, kind, effect: effect(any_arrived) };
                self.completed.push(Completion { batch: batch[0].batch, result: Err(failure) });
                self.unpolled += length;
            } else {
                self.in_flight -= length;
            }
            at += length;
        }
    }

    /// The connection is lost between poster and node.
    pub(super) fn lose(&mut self, loss: Loss) {
        if self.state != State::Open {
            return;
        }
        let reason = "the peer no longer answers";
        self.state = State::Lost(reason.into());
        let kind = || FailureKind::Disconnected(reason.into());
        match loss {
            // What has not arrived was not sent, and never will be.
            Loss::Flush => {
                self.fail(kind(), |arrived| if arrived { Effect::Unknown } else { Effect::No });
                self.flights.retain(|flight| flight.arrived);
            }
            Loss::Silence => {
                self.fail(kind(), |_| Effect::Unknown);
                self.flights.iter_mut().for_each(|flight| flight.arrived = true);
            }
            Loss::Death => {
                self.flights.iter_mut().for_each(|flight| flight.arrived = true);
                self.completed.clear();
            }
        }
        self.forget_executed();
    }

    /// Nothing of this queue pair takes effect any more; what its poster has not been told, it is told now.
    pub(super) fn fence(&mut self, reason: &str) {
        if self.state == State::Open {
            self.fail(FailureKind::Disconnected(reason.into()), |_| Effect::Unknown);
        }
        self.state = State::Dead(reason.into());
        self.flights.clear();
    }
}

impl Work {
    const fn span(&self) -> Option<Span> {
        match self {
            Self::Read(span, _) | Self::Write(span, _) => Some(*span),
            Self::CompareSwap(remote, ..) | Self::FetchAdd(remote, _) => {
                Some(Span { remote: *remote, bytes: 8 })
            }
            Self::Nothing => None,
        }
    }

    fn refusal(&self, rights: Rights, key_is_right: bool, region_bytes: u64) -> Option<String> {
        let span = self.span()?;
        let is_atomic = matches!(self, Self::CompareSwap(..) | Self::FetchAdd(..));
        if !key_is_right {
            return Some("wrong key".into());
        }
        if !matches!(self, Self::Read(..)) && !rights.can_write() {
            return Some("the session may only read".into());
        }
        let bytes = span.bytes as u64;
        if bytes > region_bytes || span.remote > region_bytes - bytes {
            return Some(format!("{bytes} bytes at {:#x} leave a region of {region_bytes}", span.remote));
        }
        (is_atomic && !span.remote.is_multiple_of(8))
            .then(|| format!("{:#x} is no aligned word", span.remote))
    }

    fn touch(&self, queue_pair: QueuePairId) -> Option<Touch> {
        let span = self.span()?;
        let kind = match self {
            Self::Read(..) => VerbKind::Read,
            Self::Write(..) => VerbKind::Write,
            Self::CompareSwap(..) => VerbKind::CompareSwap,
            Self::FetchAdd(..) | Self::Nothing => VerbKind::FetchAdd,
        };
        let (offset, bytes) = (span.remote, span.bytes as u64);
        let (changed, whole, refused) = (false, false, false);
        Some(Touch { queue_pair, kind, offset, bytes, changed, old: 0, new: 0, whole, refused })
    }
}

impl Flight {
    /// No word is left to be done, of its last execution.
    fn is_whole(&self) -> bool {
        self.left.as_ref().is_some_and(|left| left.count() == 0)
    }

    fn execute(&mut self, part: Part, memory: &mut Memory, touch: Option<&mut Touch>) {
        let words = self.work.span().map_or(0, Span::words);
        let left = self.left.get_or_insert_with(|| WordSet::all(words));
        let range = match part {
            Part::All => 0..words,
            Part::Words { first, count } => first as usize..words.min(first as usize + count as usize),
        };
        match &mut self.work {
            Work::Read(span, into) => {
                for word in range {
                    if left.take(word)
                        && let Some(into) = into
                    {
                        let share = span.share(word);
                        let bytes = memory.word(share.index).to_le_bytes();
                        into.as_mut_slice()[share.at..share.at + share.len]
                            .copy_from_slice(&bytes[share.skip..share.skip + share.len]);
                    }
                }
            }
            Work::Write(span, bytes) => {
                for word in range {
                    if left.take(word) {
                        let share = span.share(word);
                        memory.set_part(share.index, share.skip, &bytes[share.at..share.at + share.len]);
                    }
                }
            }
            Work::CompareSwap(remote, expected, desired) => {
                left.take(0);
                let index = (*remote / 8) as usize;
                self.old = memory.word(index);
                if self.old == *expected {
                    memory.set(index, *desired);
                }
            }
            Work::FetchAdd(remote, add) => {
                left.take(0);
                let index = (*remote / 8) as usize;
                self.old = memory.word(index);
                memory.set(index, self.old.wrapping_add(*add));
            }
            Work::Nothing => {}
        }
        let whole = left.count() == 0;
        self.executed |= whole;
        if let Some(touch) = touch {
            touch.whole = whole;
            touch.old = self.old;
            match &self.work {
                Work::Read(..) | Work::Nothing => {}
                Work::Write(_, bytes) => {
                    touch.changed = true;
                    let mut word = [0; 8];
                    let known = bytes.len().min(8);
                    word[..known].copy_from_slice(&bytes[..known]);
                    touch.new = u64::from_le_bytes(word);
                }
                Work::CompareSwap(_, expected, desired) => {
                    touch.changed = self.old == *expected;
                    touch.new = if touch.changed { *desired } else { self.old };
                }
                Work::FetchAdd(_, add) => {
                    touch.changed = *add != 0;
                    touch.new = self.old.wrapping_add(*add);
                }
            }
        }
    }
}
