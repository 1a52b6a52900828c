//! What a bucket's slots mean for one key, and what a block proves.
//!
//! Always true: only a *fitting* block with another key rules a slot out; one that does not fit proves nothing.
//! No READ is ever planned for a place where no block can be: a corrupt word costs a typed error, not the
//! connection.

use sidestep_common::fabric::Reply;
use sidestep_common::layout::{
    Block, BlockPlace, BlockRef, Bucket, Offset, SlotState, SlotWord, Superblock, Tag, free_map_offset,
};
use sidestep_common::planted::{Fault, is_planted};
use smallvec::SmallVec;

use super::{Action, OperationError, Plan, PlannedVerb};

/// A slot that may hold the key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Candidate {
    /// Which slot.
    pub(super) slot: usize,
    /// Its word.
    pub(super) word: SlotWord,
    /// The block that it names.
    pub(super) block: BlockRef,
}

/// What a bucket's slots mean for a key with a given tag.
#[derive(Clone, Default, Debug)]
pub(super) struct Scan {
    /// LIVE slots with the tag.
    pub(super) live: SmallVec<[Candidate; 2]>,
    /// DELETED slots with the tag.
    pub(super) deleted: SmallVec<[Candidate; 2]>,
    /// MOVED slots with the tag.
    pub(super) moved: SmallVec<[Candidate; 2]>,
    /// EMPTY slots, as bits.
    pub(super) empty: u32,
    /// Some word was CLOSED.
    pub(super) saw_closed: bool,
    /// A slot that may be the key's but has no valid word.
    pub(super) malformed: Option<usize>,
}

impl Scan {
    pub(super) fn of(bucket: &Bucket, tag: Tag) -> Self {
        let mut scan = Self::default();
        for (slot, &word) in bucket.slots.iter().enumerate() {
            let list = match word.state() {
                SlotState::Empty => {
                    scan.empty |= 1 << slot;
                    continue;
                }
                SlotState::Closed => {
                    scan.saw_closed = true;
                    continue;
                }
                SlotState::Malformed => {
                    scan.malformed = Some(slot);
                    continue;
                }
                SlotState::Live(block) if word.tag() == tag => (&mut scan.live, block),
                SlotState::Deleted(block) if word.tag() == tag => (&mut scan.deleted, block),
                SlotState::Moved(block) if word.tag() == tag => (&mut scan.moved, block),
                _ => continue,
            };
            if list.0.is_empty() || !is_planted(Fault::SecondTwinIgnored) {
                list.0.push(Candidate { slot, word, block: list.1 });
            }
        }
        scan
    }

    /// ⚑ Takes the first EMPTY slot in slot order out of those seen; an insert may use no other.
    pub(super) fn take_first_empty(&mut self) -> Option<usize> {
        if self.empty == 0 {
            return None;
        }
        let slot = self.empty.trailing_zeros() as usize;
        self.empty &= if is_planted(Fault::OnlyOneEmptySlot) { 0 } else { self.empty - 1 };
        Some(slot)
    }
}

/// Whether a block can be where a slot at `slot` says.
pub(super) fn check_place(
    superblock: &Superblock,
    slot: Offset,
    block: BlockRef,
) -> Result<(), OperationError> {
    let inside = superblock.geometry.block_pool_holds(block.offset, block.class.bytes());
    if !inside || BlockPlace::of(block.offset, block.class).is_none() {
        return Err(OperationError::Corrupt {
            offset: slot,
            what: "a slot names a place where no block can be",
        });
    }
    Ok(())
}

/// The READ of the block that a slot at `slot` names, if a block can be there.
pub(super) fn read_block(
    superblock: &Superblock,
    slot: Offset,
    block: BlockRef,
) -> Result<PlannedVerb, OperationError> {
    check_place(superblock, slot, block)?;
    Ok(PlannedVerb {
        subject: "block",
        remote: block.offset,
        action: Action::Read(block.class.bytes() as usize),
    })
}

/// The WRITE that frees the block which a CAS unlinked with `replaced`; none for an EMPTY slot. Exactly one wins that
/// CAS, so there is exactly one such WRITE.
pub(super) fn mark_free(replaced: SlotWord) -> Option<Plan> {
    let (SlotState::Live(block) | SlotState::Deleted(block)) = replaced.state() else { return None };
    if is_planted(Fault::NeverMarked) {
        return None;
    }
    // The map's place can't be missing: the word was followed, or came from a slot that was checked.
    let remote = free_map_offset(block)?.plus(u64::from(is_planted(Fault::NeighbourMarked)));
    let byte = block.version.0.wrapping_add(u8::from(is_planted(Fault::NextVersionMarked)));
    let mark = PlannedVerb { subject: "free map", remote, action: Action::WriteByte(byte) };
    let count = if is_planted(Fault::MarkedTwice) { 2 } else { 1 };
    Some(Plan::from_elem(mark, count))
}

/// What the block that a candidate names says of the key.
#[derive(Clone, Copy, Debug)]
pub(super) enum Proof<'a> {
    /// The slot is this key's.
    Own(Block<'a>),
    /// The slot is another key's, for as long as its segment lives.
    Other,
    /// Nothing: read the slot again.
    Nothing,
}

/// Judges the block that `reply` brought for `block`.
pub(super) fn prove<'a>(reply: &'a Reply, block: BlockRef, key: &[u8]) -> Proof<'a> {
    let Reply::Read(buffer) = reply else { unreachable!("a block READ brings bytes, not {reply:?}") };
    match Block::parse(buffer.as_slice(), block) {
        Ok(block) if block.key == key || is_planted(Fault::KeyNotCompared) => Proof::Own(block),
        Ok(_) => Proof::Other,
        Err(_) if is_planted(Fault::UnfitTakenForOther) => Proof::Other,
        Err(_) => Proof::Nothing,
    }
}

/// Notices a block that never fits although its slot's word stays: corruption, not a race. A correct writer's
/// block fits from before its word is published until after the word has changed.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct UnfitWatch {
    word: Option<SlotWord>,
    times: u32,
}

/// The word must be seen this often with a block that doesn't fit; once more than two READs of a race can give.
const UNFIT_TIMES_MAX: u32 = 4;

impl UnfitWatch {
    /// Counts one more time that `candidate`'s block did not fit.
    pub(super) fn see(&mut self, candidate: Candidate) -> Result<(), OperationError> {
        if self.word == Some(candidate.word) {
            self.times += 1;
        } else {
            *self = Self { word: Some(candidate.word), times: 1 };
        }
        if self.times >= UNFIT_TIMES_MAX || is_planted(Fault::UnfitTakenForCorrupt) {
            return Err(OperationError::Corrupt {
                offset: candidate.block.offset,
                what: "a block does not fit its slot's word, which stays",
            });
        }
        Ok(())
    }
}
