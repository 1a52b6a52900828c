//! A session's connection whose commits are two-sided.
//!
//! Always true: the card's part is a [`VerbsFabric`] like any other; what is added is the hold-back in front of it and
//! the inbox behind it. A batch is complete when the card completed its verbs and the memory node answered its commits.

use std::time::Duration;

use smallvec::SmallVec;

use super::super::error::VerbsError;
use super::super::fabric::{STAGING_BYTES_MAX, VERB_BYTES_MAX, VerbsFabric};
use super::hold_back::{HeldVerb, HoldBack, Part, is_atomic};
use super::inbox::Inbox;
use super::message::{REPLY_BYTES, Reply};
use crate::fabric::{
    Batch, BatchId, BufferPool, Completion, Fabric, FabricKind, Limits, PostError, Verb, VerbList,
};

/// See the module.
pub(in super::super) struct TwoSidedFabric {
    // Fields are dropped in this order: the queue pair is in the first one, what it writes to in the second.
    card: VerbsFabric,
    inbox: Inbox,
    hold_back: HoldBack,
    scratch: Vec<Completion>,
}

impl TwoSidedFabric {
    /// Over a connection whose receives complete in `inbox` and were posted.
    pub(in super::super) fn new(card: VerbsFabric, inbox: Inbox) -> Self {
        let hold_back = HoldBack::new(card.limits().verbs_in_flight_max, inbox.slot_count());
        Self { card, inbox, hold_back, scratch: Vec::new() }
    }

    /// Refuses what the card would refuse later, when part of the call had already been taken.
    fn check(&self, batches: &[Batch<'_>]) -> Result<(), PostError> {
        self.hold_back.check(batches.iter().map(|batch| batch.verbs.len()).sum())?;
        let mut written = 0;
        for verb in batches.iter().flat_map(|batch| &batch.verbs) {
            let asked = verb.bytes();
            if asked > VERB_BYTES_MAX {
                return Err(PostError::TooLarge { what: "bytes of a verb", asked, limit: VERB_BYTES_MAX });
            }
            written += if matches!(verb, Verb::Write { .. }) { asked } else { 0 };
        }
        if written > STAGING_BYTES_MAX {
            let (what, limit) = ("bytes of WRITEs in one call", STAGING_BYTES_MAX);
            return Err(PostError::TooLarge { what, asked: written, limit });
        }
        // Copies that wait have the bound of those that are under way.
        if self.hold_back.held_bytes() + written > STAGING_BYTES_MAX {
            return Err(self.hold_back.full(1));
        }
        Ok(())
    }

    /// Takes note of all that is known, sends what may go, and ends what has failed.
    fn advance(&mut self) {
        self.drain();
        if self.hold_back.ended().is_none() && self.card.failure().is_none() {
            self.send_held();
        }
        if self.card.failure().is_none() && self.hold_back.is_over() {
            self.card.fail("the memory node refused a commit".to_owned());
        }
        if let Some(cause) = self.card.failure().cloned() {
            self.drain();
            self.hold_back.fail(cause);
        }
    }

    /// What the card completed, then what the memory node answered.
    fn drain(&mut self) {
        self.card.poll(&mut self.scratch);
        for completion in self.scratch.drain(..) {
            self.hold_back.part_done(completion.result);
        }
        let mut slots: SmallVec<[(usize, Option<u32>); 16]> = SmallVec::new();
        let mut failed = self
            .inbox
            .poll(|arrival| match arrival.failed {
                // Receives that are flushed with the queue pair say nothing of their own.
                Some(_) => {}
                None => slots.push((arrival.number as usize, arrival.received_bytes)),
            })
            .err()
            .map(|error| error.to_string());
        for (slot, bytes) in slots {
            failed = failed.or(self.answer(slot, bytes).err());
        }
        if let Some(reason) = failed
            && self.card.failure().is_none()
        {
            self.card.fail(reason);
        }
    }

    fn answer(&mut self, slot: usize, bytes: Option<u32>) -> Result<(), String> {
        let mut message = [0; REPLY_BYTES];
        self.inbox.read(slot, &mut message);
        let reply = if bytes == Some(REPLY_BYTES as u32) { Reply::decode(&message) } else { None };
        let Some(reply) = reply else { return Err("the memory node's answer was not understood".to_owned()) };
        self.hold_back.answer(reply.sequence, reply.result.map_err(|refused| refused.text()))?;
        // Before any commit that its credit is used for.
        self.inbox.post(self.card.queue_pair(), slot).map_err(|error: VerbsError| error.to_string())
    }

    /// Sends what was held back, as far as it may go.
    fn send_held(&mut self) {
        let run = self.hold_back.next_run();
        if run.is_empty() {
            return;
        }
        let mut lent: Vec<(Part, Vec<HeldVerb>)> =
            run.into_iter().map(|part| (part, self.hold_back.lend(part))).collect();
        let mut batches: Vec<Batch<'_>> = lent
            .iter_mut()
            .map(|(_, held)| loud(held.iter_mut().filter_map(HeldVerb::verb).collect()))
            .collect();
        let posted = self.card.post(&mut batches);
        let buffers: Vec<Vec<Option<crate::fabric::Buffer>>> = batches
            .into_iter()
            .map(|batch| {
                let buffer = |verb| match verb {
                    Verb::Read { into, .. } => Some(into),
                    _ => None,
                };
                batch.verbs.into_iter().map(buffer).collect()
            })
            .collect();
        if posted.is_ok() {
            for (part, held) in lent {
                self.hold_back.lent_were_sent(part, &held);
            }
            return;
        }
        for ((part, mut held), buffers) in lent.into_iter().zip(buffers) {
            for (verb, buffer) in held.iter_mut().zip(buffers) {
                if let Some(buffer) = buffer {
                    verb.give_back(buffer);
                }
            }
            self.hold_back.take_back(part, held);
        }
        match posted {
            // For want of staging memory, which comes back with what is under way.
            Ok(()) | Err(PostError::Full { .. } | PostError::Broken(_)) => {}
            Err(error @ PostError::TooLarge { .. }) => self.card.fail(error.to_string()),
        }
    }
}

/// For the card every part has a completion; the batch's own silence is the hold-back's business.
fn loud(verbs: VerbList<'_>) -> Batch<'_> {
    Batch { id: BatchId(0), verbs, silent: false }
}

impl Fabric for TwoSidedFabric {
    fn kind(&self) -> FabricKind {
        FabricKind::Verbs
    }

    fn limits(&self) -> Limits {
        Limits { verbs_in_flight_max: self.hold_back.limit(), verb_bytes_max: VERB_BYTES_MAX }
    }

    fn describe(&self) -> String {
        let depth = self.inbox.slot_count();
        format!(
            "{}, commits two-sided: the memory node's CPU executes each CAS, {depth} under way",
            self.card.describe()
        )
    }

    fn buffers(&mut self) -> &mut BufferPool {
        self.card.buffers()
    }

    fn post(&mut self, batches: &mut [Batch<'_>]) -> Result<(), PostError> {
        if let Some(reason) = self.hold_back.ended() {
            return Err(PostError::Broken(reason));
        }
        if let Some(cause) = self.card.failure() {
            return Err(PostError::Broken(cause.kind.to_string()));
        }
        self.check(batches)?;
        let mut gate = self.hold_back.gate();
        let mut ready: SmallVec<[(usize, Batch<'_>); 4]> = SmallVec::new();
        let mut sent: SmallVec<[SmallVec<[bool; 4]>; 4]> = SmallVec::new();
        for (at, batch) in batches.iter_mut().enumerate() {
            let count = batch.verbs.iter().take_while(|verb| gate.admit(is_atomic(verb))).count();
            sent.push(batch.verbs[..count].iter().map(is_atomic).collect());
            if count > 0 {
                ready.push((at, loud(batch.verbs.drain(..count).collect())));
            }
        }
        let (places, mut ready): (SmallVec<[usize; 4]>, SmallVec<[Batch<'_>; 4]>) = ready.into_iter().unzip();
        if !ready.is_empty()
            && let Err(error) = self.card.post(&mut ready)
        {
            for (place, mut back) in places.into_iter().zip(ready) {
                back.verbs.append(&mut batches[place].verbs);
                batches[place].verbs = back.verbs;
            }
            return Err(error);
        }
        for (batch, sent) in batches.iter_mut().zip(sent) {
            let held = batch.verbs.drain(..).map(HeldVerb::new);
            self.hold_back.push(batch.id, batch.silent, &sent, held);
        }
        Ok(())
    }

    fn poll(&mut self, completions: &mut Vec<Completion>) -> usize {
        self.advance();
        let buffers = self.card.buffers();
        self.hold_back.take(completions, |buffer| buffers.recycle(buffer))
    }

    fn wait(&mut self, timeout: Duration) {
        if self.card.failure().is_some() {
            return;
        }
        // Asked for first and looked at after, so that nothing falls between the two.
        if let Err(error) = self.inbox.ask_event() {
            return self.card.fail(error.to_string());
        }
        self.drain();
        if self.hold_back.wants_poll() || self.card.failure().is_some() {
            return;
        }
        if self.card.wait_also_for(timeout, self.inbox.completions().fd()) {
            self.inbox.take_events();
        }
    }
}
