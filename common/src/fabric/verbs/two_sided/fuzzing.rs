//! Doors for fuzz targets: both ends of two-sided commits, without a card.

use std::collections::VecDeque;

use super::super::flight::Cause;
use super::hold_back::{HeldVerb, HoldBack, is_atomic};
use super::message::{Executor, Reply};
use crate::fabric::{BatchId, Completion, Effect, FailureKind, Reply as VerbReply, Rights, Verb};
use crate::memory::WordMemory;

/// The memory node's end of one connection.
pub struct CommitCard(Executor);

impl CommitCard {
    /// Executes on `memory`.
    pub fn new(memory: WordMemory, rkey: u32, rights: Rights) -> Self {
        Self(Executor::new(memory, rkey, rights))
    }

    /// What it answers to a message; none once a message was refused.
    pub fn execute(&mut self, message: &[u8]) -> Option<Vec<u8>> {
        self.0.execute(message).map(|reply| reply.encode().to_vec())
    }
}

/// A client's end, in front of a card that completes what it is told to.
pub struct CommitClient {
    hold_back: HoldBack,
    /// Parts that the card has: of each verb whether it is a commit.
    at_card: VecDeque<Vec<bool>>,
    failed: bool,
}

impl CommitClient {
    /// Room for `limit` verbs, of which `credit` may be commits under way.
    pub fn new(limit: usize, credit: usize) -> Self {
        Self { hold_back: HoldBack::new(limit, credit), at_card: VecDeque::new(), failed: false }
    }

    /// Posts a batch; false if it is not taken.
    pub fn post(&mut self, id: u64, silent: bool, mut verbs: Vec<Verb<'_>>) -> bool {
        if self.failed || self.hold_back.ended().is_some() || self.hold_back.check(verbs.len()).is_err() {
            return false;
        }
        let mut gate = self.hold_back.gate();
        let count = verbs.iter().take_while(|verb| gate.admit(is_atomic(verb))).count();
        let held: Vec<HeldVerb> = verbs.split_off(count).into_iter().map(HeldVerb::new).collect();
        let sent: Vec<bool> = verbs.iter().map(is_atomic).collect();
        self.hold_back.push(BatchId(id), silent, &sent, held.into_iter());
        if !sent.is_empty() {
            self.at_card.push_back(sent);
        }
        true
    }

    /// The card completes its oldest part.
    pub fn card_completes(&mut self) {
        let Some(part) = self.at_card.pop_front() else { return };
        let reply = |atomic| if atomic { VerbReply::Old(0) } else { VerbReply::Written };
        self.hold_back.part_done(Ok(part.into_iter().map(reply).collect()));
    }

    /// A message came from the memory node; false if the connection is to end for it.
    pub fn message(&mut self, bytes: &[u8]) -> bool {
        let Some(reply) = Reply::decode(bytes) else { return false };
        assert_eq!(reply.encode()[..], *bytes, "a reply has one encoding");
        self.hold_back.answer(reply.sequence, reply.result.map_err(|refused| refused.text())).is_ok()
    }

    /// Sends what may go now.
    pub fn pump(&mut self) {
        for part in self.hold_back.next_run() {
            let mut lent = self.hold_back.lend(part);
            let verbs: Vec<Verb<'_>> = lent.iter_mut().filter_map(HeldVerb::verb).collect();
            self.at_card.push_back(verbs.iter().map(is_atomic).collect());
            drop(verbs);
            self.hold_back.lent_were_sent(part, &lent);
        }
    }

    /// Whether a refusal is to end the connection now.
    pub fn is_over(&self) -> bool {
        self.hold_back.is_over()
    }

    /// The connection ends; what was under way has an unknown effect.
    pub fn end(&mut self) {
        self.failed = true;
        let kind = FailureKind::Disconnected("ended".into());
        self.hold_back.fail(Cause { kind, effect: Effect::Unknown });
    }

    /// Takes the completions that are there.
    pub fn poll(&mut self, completions: &mut Vec<Completion>) {
        self.hold_back.take(completions, |_| {});
    }
}
