//! What became of a CAS whose completion was lost.
//!
//! Always true: it is asked only after the old queue pair was fenced, so that the CAS can't take effect later
//! any more. It answers "yes" or "no" only when the slot's word proves it.
//!
//! | the slot holds | the CAS |
//! | --- | --- |
//! | the word that it puts in (or its MOVED form) | happened |
//! | the word that it expected (or its MOVED form) | did not happen |
//! | anything else | may have happened, and been overwritten: unknown |
//!
//! The block's version and place are in both words, and while the session is unfinished for quiescence no block
//! is reused so often that a word comes again.

use sidestep_common::fabric::{Effect, Reply};
use sidestep_common::layout::{SlotState, SlotWord};
use sidestep_common::planted::{Fault, is_planted};

use super::scan::mark_free;
use super::{Action, Context, Operation, PendingCas, Plan, PlannedVerb, Step};

/// The reading of the slot.
#[derive(Debug)]
pub struct Resolve {
    cas: PendingCas,
    posted: bool,
}

impl Resolve {
    /// Asks for the fate of `cas`.
    pub const fn new(cas: PendingCas) -> Self {
        Self { cas, posted: false }
    }
}

/// What the word found in the slot proves of the CAS.
fn judge(cas: PendingCas, found: SlotWord) -> Effect {
    let is = |bits: u64| {
        let word = SlotWord::from_bits(bits);
        found == word || matches!(word.state(), SlotState::Live(_)) && found == word.to_moved()
    };
    if is(cas.desired) || is_planted(Fault::ExpectedWordMeansYes) && is(cas.expected) {
        Effect::Yes
    } else if is(cas.expected) || is_planted(Fault::OtherWordMeansNo) {
        Effect::No
    } else if is_planted(Fault::OtherWordMeansYes) {
        Effect::Yes
    } else {
        Effect::Unknown
    }
}

impl Operation for Resolve {
    type Output = Effect;

    fn step(&mut self, context: &mut Context<'_>, replies: &[Reply]) -> Step<Effect> {
        if !std::mem::replace(&mut self.posted, true) {
            let verb = PlannedVerb { subject: "slot", remote: self.cas.slot, action: Action::Read(8) };
            return Step::Post(Plan::from_iter([verb]));
        }
        let Some(Reply::Read(buffer)) = replies.first() else {
            unreachable!("a READ brings bytes: {replies:?}")
        };
        let mut bits = [0; 8];
        bits.copy_from_slice(&buffer.as_slice()[..8]);
        let effect = judge(self.cas, SlotWord::from_bits(u64::from_le_bytes(bits)));
        let published = SlotWord::from_bits(self.cas.desired);
        if let SlotState::Live(block) | SlotState::Deleted(block) = published.state() {
            match effect {
                Effect::Yes => context.allocator.published(block),
                // Behind the fence neither the CAS nor the block's WRITE takes effect any more.
                Effect::No => context.allocator.give_back(block),
                // It stays in limbo.
                Effect::Unknown => {}
            }
        }
        // Whoever wins frees what it unlinked, also if it learns late that it won.
        let marks = match effect {
            Effect::Yes => !is_planted(Fault::ResolvedNotMarked),
            Effect::No => is_planted(Fault::FailedSwapMarked),
            Effect::Unknown => false,
        };
        let mark = marks.then(|| mark_free(SlotWord::from_bits(self.cas.expected))).flatten();
        Step::Done(Ok(effect), mark)
    }

    fn block_pieces(&self) -> (&[u8], &[u8]) {
        (&[], &[])
    }

    fn restarts(&self) -> u32 {
        0
    }

    fn stage(&self) -> &'static str {
        if self.posted { "slot" } else { "start" }
    }
}

#[cfg(test)]
mod tests {
    use sidestep_common::layout::{BlockRef, Offset, SizeClass, Tag, Version};

    use super::*;

    fn word(offset: u64, version: u8) -> SlotWord {
        let class = SizeClass::holding(64).unwrap();
        let block = BlockRef { offset: Offset(offset), class, version: Version(version) };
        SlotWord::live(Tag::from_low_bits(5), block, true)
    }

    #[test]
    fn only_proof_counts() {
        let (expected, desired) = (word(64, 1), word(128, 1));
        let cas = PendingCas { slot: Offset(8), expected: expected.bits(), desired: desired.bits() };
        assert_eq!(judge(cas, desired), Effect::Yes);
        assert_eq!(judge(cas, desired.to_moved()), Effect::Yes);
        assert_eq!(judge(cas, expected), Effect::No);
        assert_eq!(judge(cas, expected.to_moved()), Effect::No);
        assert_eq!(judge(cas, word(128, 2)), Effect::Unknown, "overwritten, or never there");
        assert_eq!(judge(cas, SlotWord::EMPTY), Effect::Unknown);
        let insert = PendingCas { expected: 0, ..cas };
        assert_eq!(judge(insert, SlotWord::EMPTY), Effect::No);
        assert_eq!(judge(insert, SlotWord::CLOSED), Effect::Unknown);
    }
}
