//! What of a session's verbs may be sent, and what must wait for the memory node's CPU.
//!
//! Always true: a READ or WRITE is sent only when every CAS and FAA before it was answered, since the card would not
//! wait for the CPU; a CAS or FAA is sent when all before it was, because the card keeps messages behind WRITEs and the
//! CPU keeps messages in order, as long as there is credit: the memory node has posted so many receives, and this side
//! as many for the answers. So no message ever finds nobody to receive it.
//!
//! Verbs thus leave in *runs*: any READs and WRITEs, then any CAS and FAA. What a run has of one batch is a *part*, which
//! completes at the card as one.
//!
//! Pure: no card is needed to test it.

use std::collections::VecDeque;

use smallvec::SmallVec;

use super::super::flight::Cause;
use crate::fabric::{
    BatchId, Buffer, Completion, Effect, Failure, FailureKind, PostError, Replies, Reply, Verb,
};
use crate::layout::Offset;

/// A verb that waits, with its own copy of a WRITE's bytes.
#[derive(Debug)]
pub(super) struct HeldVerb {
    remote: Offset,
    kind: HeldKind,
    bytes: Vec<u8>,
}

#[derive(Debug)]
enum HeldKind {
    /// None while the card's list has it.
    Read(Option<Buffer>),
    Write,
    CompareSwap {
        expected: u64,
        desired: u64,
    },
    FetchAdd {
        add: u64,
    },
}

impl HeldVerb {
    /// Takes a verb over.
    pub(super) fn new(verb: Verb<'_>) -> Self {
        let remote = verb.remote();
        let (kind, bytes) = match verb {
            Verb::Read { into, .. } => (HeldKind::Read(Some(into)), Vec::new()),
            Verb::Write { from, .. } => (HeldKind::Write, from.concat()),
            Verb::CompareSwap { expected, desired, .. } => {
                (HeldKind::CompareSwap { expected, desired }, Vec::new())
            }
            Verb::FetchAdd { add, .. } => (HeldKind::FetchAdd { add }, Vec::new()),
        };
        Self { remote, kind, bytes }
    }

    fn is_atomic(&self) -> bool {
        matches!(self.kind, HeldKind::CompareSwap { .. } | HeldKind::FetchAdd { .. })
    }

    /// The verb to post. A READ's buffer goes with it: [`HeldVerb::give_back`] if it was not posted.
    pub(super) fn verb(&mut self) -> Option<Verb<'_>> {
        let remote = self.remote;
        Some(match &mut self.kind {
            HeldKind::Read(buffer) => Verb::Read { remote, into: buffer.take()? },
            HeldKind::Write => Verb::Write { remote, from: [&self.bytes, &[], &[]] },
            HeldKind::CompareSwap { expected, desired } => {
                Verb::CompareSwap { remote, expected: *expected, desired: *desired }
            }
            HeldKind::FetchAdd { add } => Verb::FetchAdd { remote, add: *add },
        })
    }

    /// Takes the buffer of a READ back.
    pub(super) fn give_back(&mut self, buffer: Buffer) {
        if let HeldKind::Read(place) = &mut self.kind {
            *place = Some(buffer);
        }
    }
}

/// Whether a verb is one that the memory node's CPU executes.
pub(super) const fn is_atomic(verb: &Verb<'_>) -> bool {
    matches!(verb, Verb::CompareSwap { .. } | Verb::FetchAdd { .. })
}

/// Says which of the next verbs may be sent now.
#[derive(Clone, Copy, Debug)]
pub(super) struct Gate {
    unanswered: usize,
    credit: usize,
    closed: bool,
}

impl Gate {
    /// Whether the next verb may go; once one may not, none behind it may.
    pub(super) fn admit(&mut self, atomic: bool) -> bool {
        let open = if atomic { self.unanswered < self.credit } else { self.unanswered == 0 };
        self.closed |= !open;
        self.unanswered += usize::from(atomic && !self.closed);
        !self.closed
    }
}

#[derive(Debug)]
enum Slot {
    /// Not sent.
    Held(HeldVerb),
    /// A READ or WRITE that was sent.
    Sent,
    /// A CAS or FAA that was sent and not answered.
    Unanswered,
    /// It took effect, and its reply was lost with the connection.
    Lost,
    /// It took effect.
    Done(Reply),
}

#[derive(Debug)]
struct Entry {
    id: BatchId,
    silent: bool,
    slots: SmallVec<[Slot; 4]>,
    /// Parts that the card has not completed.
    parts: usize,
}

impl Entry {
    fn is_done(&self) -> bool {
        self.slots.iter().all(|slot| matches!(slot, Slot::Done(_)))
    }
}

/// Verbs of one batch that go together.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Part {
    /// Number of the batch, counted over the connection's life.
    pub(super) batch: u64,
    /// Its first verb's place in the batch.
    pub(super) start: usize,
    /// How many.
    pub(super) count: usize,
}

/// See the module.
#[derive(Debug)]
pub(super) struct HoldBack {
    limit: usize,
    credit: usize,
    batches: VecDeque<Entry>,
    /// Number of the first batch in `batches`.
    first: u64,
    /// At the card, in its order.
    parts: VecDeque<Part>,
    /// Place of each commit that was sent, in order; the first one has the sequence `answered`.
    unanswered: VecDeque<(u64, usize)>,
    answered: u64,
    verbs: usize,
    held_bytes: usize,
    held: usize,
    refused: Option<(u64, usize, String)>,
    /// The connection has failed, and this is why.
    failed: Option<Cause>,
    /// Whether the failure's own kind was told.
    told: bool,
}

impl HoldBack {
    /// Room for `limit` verbs, of which `credit` may be commits under way.
    pub(super) fn new(limit: usize, credit: usize) -> Self {
        assert!(limit > 0 && credit > 0, "{limit} {credit}");
        Self {
            limit,
            credit,
            batches: VecDeque::new(),
            first: 0,
            parts: VecDeque::new(),
            unanswered: VecDeque::new(),
            answered: 0,
            verbs: 0,
            held_bytes: 0,
            held: 0,
            refused: None,
            failed: None,
            told: false,
        }
    }

    /// How many verbs may be in flight.
    pub(super) fn limit(&self) -> usize {
        self.limit
    }

    /// Copies of WRITEs that wait.
    pub(super) fn held_bytes(&self) -> usize {
        self.held_bytes
    }

    /// The answer to a call that fits when something in flight is done.
    pub(super) fn full(&self, asked: usize) -> PostError {
        PostError::Full { asked, in_flight: self.verbs, limit: self.limit }
    }

    /// Whether `asked` more verbs fit.
    pub(super) fn check(&self, asked: usize) -> Result<(), PostError> {
        if asked > self.limit {
            return Err(PostError::TooLarge { what: "verbs of one call", asked, limit: self.limit });
        }
        if self.verbs + asked > self.limit { Err(self.full(asked)) } else { Ok(()) }
    }

    /// Why nothing is taken any more, if so.
    pub(super) fn ended(&self) -> Option<String> {
        match (&self.refused, &self.failed) {
            (Some((.., reason)), _) => Some(reason.clone()),
            (None, Some(cause)) => Some(cause.kind.to_string()),
            (None, None) => None,
        }
    }

    /// For the verbs of a new call.
    pub(super) fn gate(&self) -> Gate {
        Gate { unanswered: self.unanswered.len(), credit: self.credit, closed: self.held > 0 }
    }

    /// Takes note of a batch: of its first verbs, which were sent, whether each is a commit; and of the others.
    pub(super) fn push(
        &mut self,
        id: BatchId,
        silent: bool,
        sent: &[bool],
        held: impl Iterator<Item = HeldVerb>,
    ) {
        let number = self.first + self.batches.len() as u64;
        let slots = sent.iter().map(|atomic| if *atomic { Slot::Unanswered } else { Slot::Sent });
        let slots: SmallVec<[Slot; 4]> = slots.chain(held.map(Slot::Held)).collect();
        self.verbs += slots.len();
        for slot in &slots[sent.len()..] {
            if let Slot::Held(verb) = slot {
                self.held += 1;
                self.held_bytes += verb.bytes.len();
            }
        }
        self.batches.push_back(Entry { id, silent, slots, parts: 0 });
        self.sent(Part { batch: number, start: 0, count: sent.len() });
    }

    /// A part is at the card.
    fn sent(&mut self, part: Part) {
        if part.count == 0 {
            return;
        }
        let Some(entry) = self.entry(part.batch) else { unreachable!("{part:?} of no batch") };
        entry.parts += 1;
        let commits: SmallVec<[usize; 4]> = (part.start..part.start + part.count)
            .filter(|place| matches!(entry.slots[*place], Slot::Unanswered))
            .collect();
        self.unanswered.extend(commits.into_iter().map(|place| (part.batch, place)));
        self.parts.push_back(part);
    }

    fn entry(&mut self, batch: u64) -> Option<&mut Entry> {
        self.batches.get_mut(usize::try_from(batch.checked_sub(self.first)?).ok()?)
    }

    /// Held verbs that may go now, in order; to be taken by [`HoldBack::lend`].
    pub(super) fn next_run(&self) -> SmallVec<[Part; 4]> {
        let mut run = SmallVec::new();
        if self.held == 0 || self.ended().is_some() {
            return run;
        }
        let mut gate = Gate { closed: false, ..self.gate() };
        for (batch, entry) in (self.first..).zip(&self.batches) {
            let held = |slot: &Slot| matches!(slot, Slot::Held(_));
            let Some(start) = entry.slots.iter().position(held) else { continue };
            let may_go = |slot: &&Slot| matches!(slot, Slot::Held(verb) if gate.admit(verb.is_atomic()));
            let count = entry.slots[start..].iter().take_while(may_go).count();
            if count > 0 {
                run.push(Part { batch, start, count });
            }
            if start + count < entry.slots.len() {
                break;
            }
        }
        run
    }

    /// Hands out the verbs of a part that is about to be sent.
    pub(super) fn lend(&mut self, part: Part) -> Vec<HeldVerb> {
        let Some(entry) = self.entry(part.batch) else { unreachable!("{part:?} of no batch") };
        let mut verbs = Vec::with_capacity(part.count);
        for slot in &mut entry.slots[part.start..part.start + part.count] {
            let atomic = matches!(slot, Slot::Held(verb) if verb.is_atomic());
            let taken = std::mem::replace(slot, if atomic { Slot::Unanswered } else { Slot::Sent });
            let Slot::Held(verb) = taken else { unreachable!("{part:?} has {taken:?}") };
            verbs.push(verb);
        }
        verbs
    }

    /// The verbs that were lent were sent.
    pub(super) fn lent_were_sent(&mut self, part: Part, verbs: &[HeldVerb]) {
        self.held -= verbs.len();
        self.held_bytes -= verbs.iter().map(|verb| verb.bytes.len()).sum::<usize>();
        self.sent(part);
    }

    /// The verbs that were lent were not sent.
    pub(super) fn take_back(&mut self, part: Part, verbs: Vec<HeldVerb>) {
        let Some(entry) = self.entry(part.batch) else { unreachable!("{part:?} of no batch") };
        for (slot, verb) in entry.slots[part.start..].iter_mut().zip(verbs) {
            *slot = Slot::Held(verb);
        }
    }

    /// The card is done with the oldest part.
    pub(super) fn part_done(&mut self, result: Result<Replies, Failure>) {
        let Some(part) = self.parts.pop_front() else { unreachable!("the card completed what it never got") };
        let Some(entry) = self.entry(part.batch) else { return };
        entry.parts -= 1;
        let slots = &mut entry.slots[part.start..part.start + part.count];
        match result {
            Ok(replies) => {
                for (slot, reply) in slots.iter_mut().zip(replies) {
                    if matches!(slot, Slot::Sent) {
                        *slot = Slot::Done(reply);
                    }
                }
            }
            Err(failure) => {
                let effective = slots.iter_mut().take(failure.verb_index);
                for slot in effective.filter(|slot| matches!(slot, Slot::Sent)) {
                    *slot = Slot::Lost;
                }
            }
        }
    }

    /// An answer came; its sequence must be the next one. `result` is the word before, or why it was refused.
    pub(super) fn answer(&mut self, sequence: u64, result: Result<u64, &str>) -> Result<(), String> {
        if self.unanswered.is_empty() || sequence != self.answered {
            let waiting = self.unanswered.len();
            return Err(format!(
                "an answer to commit {sequence} came, {waiting} wait from {}",
                self.answered
            ));
        }
        let Some((batch, place)) = self.unanswered.pop_front() else { return Ok(()) };
        self.answered += 1;
        match result {
            Ok(old) => {
                if let Some(entry) = self.entry(batch) {
                    entry.slots[place] = Slot::Done(Reply::Old(old));
                }
            }
            Err(reason) => self.refused = Some((batch, place, reason.to_owned())),
        }
        Ok(())
    }

    /// Whether polling would take or send something, or end the connection.
    pub(super) fn wants_poll(&self) -> bool {
        let complete = self.batches.front().is_some_and(|entry| entry.is_done() && entry.parts == 0);
        complete || self.is_over() || !self.next_run().is_empty()
    }

    /// A commit was refused, and all batches before its own are complete: the connection can be ended.
    pub(super) fn is_over(&self) -> bool {
        let Some((batch, ..)) = self.refused else { return false };
        self.failed.is_none() && (self.first..batch).zip(&self.batches).all(|(_, entry)| entry.parts == 0)
    }

    /// The connection has failed; the card has said all that it knows.
    pub(super) fn fail(&mut self, cause: Cause) {
        self.failed.get_or_insert(cause);
    }

    /// Appends the completions of all batches that are over. Buffers that were never sent come to `unused`.
    pub(super) fn take(
        &mut self,
        completions: &mut Vec<Completion>,
        mut unused: impl FnMut(Buffer),
    ) -> usize {
        let before = completions.len();
        while let Some(entry) = self.batches.front() {
            let complete = entry.is_done() && (entry.parts == 0 || self.failed.is_some());
            if !complete && self.failed.is_none() {
                break;
            }
            let number = self.first;
            let Some(entry) = self.batches.pop_front() else { break };
            self.first += 1;
            self.verbs -= entry.slots.len();
            let (batch, silent) = (entry.id, entry.silent);
            let result = if complete {
                Ok(entry.slots.into_iter().filter_map(reply).collect())
            } else {
                let failure = self.failure_of(number, &entry);
                entry.slots.into_iter().filter_map(held_buffer).for_each(&mut unused);
                Err(failure)
            };
            if !silent {
                completions.push(Completion { batch, result });
            }
        }
        completions.len() - before
    }

    fn failure_of(&mut self, number: u64, entry: &Entry) -> Failure {
        let cause = match &self.failed {
            Some(cause) => cause.clone(),
            None => unreachable!("batch {:?} is neither done nor failed", entry.id),
        };
        if let Some((batch, place, reason)) = &self.refused
            && number >= *batch
        {
            let (verb_index, kind) = if number == *batch {
                (*place, FailureKind::Access(reason.clone()))
            } else {
                (0, FailureKind::Flushed)
            };
            return Failure { verb_index, kind, effect: Effect::No };
        }
        let open = |slot: &Slot| !matches!(slot, Slot::Done(_) | Slot::Lost);
        let lost = |slot: &Slot| matches!(slot, Slot::Lost);
        let slots = &entry.slots;
        let verb_index =
            slots.iter().position(open).or_else(|| slots.iter().position(lost)).unwrap_or_default();
        let under_way = slots.iter().any(|slot| !matches!(slot, Slot::Done(_) | Slot::Held(_)));
        let first = !std::mem::replace(&mut self.told, true);
        if cause.effect == Effect::No {
            let kind = if first { cause.kind } else { FailureKind::Flushed };
            return Failure { verb_index, kind, effect: Effect::No };
        }
        let kind = match cause.kind {
            kind if first => kind,
            kind @ FailureKind::Disconnected(_) => kind,
            other => FailureKind::Disconnected(format!("behind a failed verb: {other}")),
        };
        // What was never sent certainly did nothing.
        let effect = if under_way { cause.effect } else { Effect::No };
        Failure { verb_index, kind, effect }
    }
}

fn reply(slot: Slot) -> Option<Reply> {
    match slot {
        Slot::Done(reply) => Some(reply),
        Slot::Held(_) | Slot::Sent | Slot::Unanswered | Slot::Lost => None,
    }
}

fn held_buffer(slot: Slot) -> Option<Buffer> {
    match slot {
        Slot::Held(HeldVerb { kind: HeldKind::Read(buffer), .. }) => buffer,
        _ => None,
    }
}

#[cfg(test)]
mod tests;
