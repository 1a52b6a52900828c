//! Watches every verb for what no history of answers would show.
//!
//! Always true: it takes the region's words for what they say and knows nothing of any client's state.

use std::collections::HashSet;
use std::ops::Range;

use sidestep_common::layout::{Block, BlockPlace, BlockRef, Offset, SlotState, SlotWord, free_map_offset};
use sidestep_common::memory::WordMemory;

use super::super::{Action, PlannedVerb};

#[derive(Default)]
pub(super) struct Auditor {
    /// Slots that a CAS ever changed.
    slots: HashSet<u64>,
    write_ids: HashSet<[u8; 8]>,
    /// Unlinked by a CAS and not yet marked: the byte's place, and what it is to be.
    unmarked: HashSet<(Offset, u8)>,
    /// It looks at nothing.
    pub(super) is_off: bool,
}

impl Auditor {
    /// Looks at a verb that is about to execute.
    ///
    /// # Panics
    /// If it breaks a rule.
    pub(super) fn see(&mut self, memory: &WordMemory, verb: &PlannedVerb, pieces: (&[u8], &[u8])) {
        if self.is_off {
            return;
        }
        match verb.action {
            Action::Read(_) => {}
            Action::WriteBlock(header) => {
                let id = header.as_bytes()[8..16].try_into().unwrap();
                assert!(self.write_ids.insert(id), "write id {id:x?} twice");
                let bytes = (header.as_bytes().len() + pieces.0.len() + pieces.1.len()) as u64;
                self.written(memory, verb.remote, bytes);
            }
            Action::WriteByte(byte) => {
                let unmarked = self.unmarked.remove(&(verb.remote, byte));
                assert!(unmarked, "a mark {byte} at {} of what nobody unlinked", verb.remote);
            }
            Action::CompareSwap { expected, desired } => {
                if memory.load(verb.remote).unwrap() == expected {
                    self.swapped(memory, verb.remote, expected, desired);
                }
            }
        }
    }

    /// Nothing that was unlinked is unmarked.
    ///
    /// # Panics
    /// If something is.
    pub(super) fn check_marks(&self) {
        assert!(self.unmarked.is_empty(), "unlinked and not marked: {:?}", self.unmarked);
    }

    /// A rebuild has sealed the slots in `range`: what they name is others' business from now on.
    pub(super) fn forget(&mut self, range: &Range<u64>) {
        self.slots.retain(|slot| !range.contains(slot));
    }

    /// No slot names the place that is written, and a block can be there.
    fn written(&self, memory: &WordMemory, at: Offset, bytes: u64) {
        for slot in &self.slots {
            let Some(block) = named_by(memory.load(Offset(*slot)).unwrap()) else { continue };
            let apart = block.offset.0 >= at.0 + bytes || at.0 >= block.offset.0 + block.class.bytes();
            assert!(apart, "a WRITE of {bytes} bytes at {at} into the published {block:?}");
        }
    }

    fn swapped(&mut self, memory: &WordMemory, slot: Offset, expected: u64, desired: u64) {
        self.slots.insert(slot.0);
        let published = named_by(desired).expect("a client publishes a block");
        assert!(BlockPlace::of(published.offset, published.class).is_some(), "no block can be {published:?}");
        let mut bytes = vec![0; published.class.bytes() as usize];
        memory.read(published.offset, &mut bytes).unwrap();
        let parsed = Block::parse(&bytes, published).map(|_| ());
        assert_eq!(parsed, Ok(()), "{published:?} is published");
        if let Some(unlinked) = named_by(expected) {
            let place = free_map_offset(unlinked).expect("it was published");
            assert!(self.unmarked.insert((place, unlinked.version.0)), "{unlinked:?} unlinked twice");
        }
    }
}

fn named_by(bits: u64) -> Option<BlockRef> {
    match SlotWord::from_bits(bits).state() {
        SlotState::Live(block) | SlotState::Deleted(block) | SlotState::Moved(block) => Some(block),
        SlotState::Empty | SlotState::Closed | SlotState::Malformed => None,
    }
}
