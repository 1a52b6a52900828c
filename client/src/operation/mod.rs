//! The operations on keys, as the protocol knows them: pure, over no fabric in particular.
//!
//! Always true: an operation does no I/O, reads no clock and draws no random number. It is asked for its next
//! [`Step`] with the replies to its last one, and everything else it may know is in the [`Context`]. So the same
//! code runs over `verbs`, `shm`, `tcp` and a simulator that stops it between any two verbs.
//!
//! | operation | module | steps, when nobody interferes |
//! | --- | --- | --- |
//! | get | [`get`] | READ bucket; READ block |
//! | put of a new key | [`change`] | READ bucket + WRITE block; CAS empty slot |
//! | put over a key | [`change`] | READ bucket + WRITE block; READ old block; CAS slot (+ 1-byte WRITE, not waited for) |
//! | delete | [`change`] | READ bucket; READ block + WRITE key-only block; CAS slot (+ 1-byte WRITE, not waited for) |
//!
//! What a slot's words mean together is decided in `scan`, once for all operations.
//!
//! **Linearization**: a read at its slot's READ (of a bucket being sealed: at the sealing), a change at its CAS.

pub mod acknowledge;
pub mod change;
pub mod get;
mod hints;
pub mod outcome;
mod plan;
pub mod resolve;
mod route;
mod scan;
#[cfg(test)]
pub(crate) mod tests;

use sidestep_common::fabric::Reply;
use sidestep_common::layout::{BlockRef, Offset, SLOTS_PER_BUCKET, SizeClass, Superblock, WriteId};
use sidestep_common::planted::{Fault, is_planted};
use sidestep_common::wire::{BucketReport, ChunkPurpose};

pub use hints::Hints;
pub use plan::{Action, Plan, PlannedVerb};

use crate::allocator::Allocator;
use crate::directory::Directory;

/// What an operation wants next.
#[derive(Debug)]
pub enum Step<T> {
    /// Post these verbs with one doorbell and come back with their replies: one round trip.
    Post(Plan),
    /// Get block memory of this class, from free maps or from the server, and come back with no replies. None of the
    /// operation's verbs is out.
    Memory(SizeClass, ChunkPurpose),
    /// Report the bucket, in which there is no room, to the server. If its segment will be rebuilt, wait a little, longer each
    /// time, and come back with no replies; if the index can't grow, end the operation with
    /// [`OperationError::BucketFull`].
    Grow(BucketReport),
    /// Somebody else must make progress first (a rebuild): wait a little, longer each time, and come back with
    /// no replies.
    Pause,
    /// The operation is over. The verbs in `Plan`, if any, go out silently: nobody waits for them.
    Done(Result<T, OperationError>, Option<Plan>),
}

/// What an operation may know and use.
#[derive(Debug)]
pub struct Context<'a> {
    /// The region's facts.
    pub superblock: &'a Superblock,
    /// This client's copy of the directory.
    pub directory: &'a Directory,
    /// This session's block memory.
    pub allocator: &'a mut Allocator,
    /// This session's write ids.
    pub write_ids: &'a mut WriteIds,
    /// What the server should hear of, some time.
    pub hints: &'a mut Hints,
    /// The client's clock in milliseconds, one that counts suspended time.
    pub now_ms: u64,
}

impl Context<'_> {
    /// The error of an operation whose bucket is full, in an index that can't grow.
    pub const BUCKET_FULL: OperationError = OperationError::BucketFull { slots: SLOTS_PER_BUCKET };

    /// ⚑ Whether what was concluded from a slot READ posted at `posted_ms` is too old to be used: more than half
    /// of the grace period has passed, so the blocks seen may have been reused. `omission` is the mistake of not asking.
    fn is_stale(&self, posted_ms: u64, omission: Fault) -> bool {
        self.now_ms.saturating_sub(posted_ms) > self.superblock.grace_ms / 2 && !is_planted(omission)
    }
}

/// Hands out write ids. Session numbers come round after 2^24 sessions, so each session counts from a random place of
/// the lower half of its sequence numbers: two sessions of one number hardly ever give out the same id.
#[derive(Debug)]
pub struct WriteIds {
    session: u32,
    sequence: u64,
}

impl WriteIds {
    /// The ids of `session`, from a place that `random` chooses.
    pub const fn new(session: u32, random: u64) -> Self {
        Self { session, sequence: random >> (u64::BITS + 1 - WriteId::SEQUENCE_BITS) }
    }

    /// The next one.
    pub fn next_id(&mut self) -> WriteId {
        self.sequence += u64::from(!is_planted(Fault::WriteIdRepeated));
        WriteId::new(self.session, self.sequence)
    }
}

/// Why an operation ended without doing what it was asked. Nothing was changed by it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum OperationError {
    /// Every slot of the key's bucket is taken by other keys.
    #[error("the index has no room for this key: all {slots} slots of its bucket are taken")]
    BucketFull {
        /// Slots of a bucket.
        slots: usize,
    },
    /// The region holds what no correct client or server writes.
    #[error("the region is corrupt at {offset}: {what}")]
    Corrupt {
        /// Where.
        offset: Offset,
        /// What is wrong.
        what: &'static str,
    },
}

/// An operation under way.
pub trait Operation {
    /// What it brings.
    type Output;

    /// Goes on with the replies to the verbs of the last [`Step::Post`] (none at first, and after other steps).
    fn step(&mut self, context: &mut Context<'_>, replies: &[Reply]) -> Step<Self::Output>;

    /// The key and value of the block that [`Action::WriteBlock`] means.
    fn block_pieces(&self) -> (&[u8], &[u8]);

    /// The CAS that is under way, if any: with its completion lost, only the slot tells whether it happened.
    fn pending_cas(&self) -> Option<PendingCas> {
        None
    }

    /// Whether it can begin again from here, with nothing of what it read. ⚑ Who waits in this state may acknowledge an epoch
    /// meanwhile, and must then [`rewind`](Self::rewind) it; one that goes on with what it read may not.
    fn may_rewind(&self) -> bool {
        false
    }

    /// Forgets what it read: an epoch may have been acknowledged while it waited.
    fn rewind(&mut self) {}

    /// Posts no more than so many verbs with one doorbell from now on, if it can spread what it has to post: told at the
    /// beginning.
    fn spread(&mut self, _verbs_max: usize) {}

    /// The block that it has in hand and may yet publish.
    fn held_block(&self) -> Option<BlockRef> {
        None
    }

    /// Ends the operation from outside, while none of its verbs is out: what it holds goes back.
    fn release(&mut self, _context: &mut Context<'_>) {}

    /// How often it had to start over.
    fn restarts(&self) -> u32;

    /// What it waits for, by name: the step that tests and traces say it was in when something befell it.
    fn stage(&self) -> &'static str;
}

/// A CAS whose outcome isn't known yet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PendingCas {
    /// The slot.
    pub slot: Offset,
    /// The word it expects.
    pub expected: u64,
    /// The word it puts there.
    pub desired: u64,
}
