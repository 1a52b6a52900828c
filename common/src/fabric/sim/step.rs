//! What can happen on the simulated network, one step at a time.
//!
//! ```text
//! post ─▶ on its way ─ Arrive ─▶ at the node ─ Execute, per word ─▶ done ─ Acknowledge ─▶ known ─ Complete ─▶ polled
//!            │                       │                                │
//!            │ Break, Flush          │ Break: executes yet, or never  │ ReadAgain: a READ's words are read anew
//!            ▼                       ▼ (until fenced)                 ▼
//!          no effect              the poster is told "unknown"      as after Arrive
//! ```
//!
//! An arrival alone changes nothing that anybody can see, except what a later failure says of the verb.

use super::QueuePairId;

/// Which words of a verb take effect.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Part {
    /// All that are left.
    All,
    /// Those left among `count` from `first` on, in this order.
    Words {
        /// The first, counted from the verb's start.
        first: u32,
        /// How many.
        count: u32,
    },
}

/// A step of one queue pair. `verb` counts the verbs in flight, the oldest is 0.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Step {
    /// The next verb reaches the node.
    Arrive(QueuePairId),
    /// A verb, or a part of it, takes effect.
    Execute(QueuePairId, usize, Part),
    /// The oldest verb that was not acknowledged is.
    Acknowledge(QueuePairId),
    /// The oldest batch ends.
    Complete(QueuePairId),
    /// Everything from the oldest verb's arrival to its completion, and that of its batch if it was the last: what
    /// happens when nothing goes wrong and nobody looks closer.
    Whole(QueuePairId),
    /// A READ that was executed and not acknowledged is executed again: its answer was lost.
    ReadAgain(QueuePairId, usize),
}

impl Step {
    /// Whose step it is.
    pub const fn queue_pair(self) -> QueuePairId {
        match self {
            Self::Arrive(id)
            | Self::Execute(id, ..)
            | Self::Acknowledge(id)
            | Self::Complete(id)
            | Self::Whole(id)
            | Self::ReadAgain(id, _) => id,
        }
    }
}

/// The kinds of verbs, for those who watch.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum VerbKind {
    /// READ.
    Read,
    /// WRITE.
    Write,
    /// Compare-and-swap.
    CompareSwap,
    /// Fetch-and-add.
    FetchAdd,
}

/// What a step did to the memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Touch {
    /// Whose verb.
    pub queue_pair: QueuePairId,
    /// Its kind.
    pub kind: VerbKind,
    /// The first byte touched.
    pub offset: u64,
    /// How many.
    pub bytes: u64,
    /// Memory was changed. (A CAS that found another word changes nothing.)
    pub changed: bool,
    /// For atomics, the word before.
    pub old: u64,
    /// For atomics, the word after; for WRITEs of up to eight bytes, the bytes.
    pub new: u64,
    /// The verb has executed whole.
    pub whole: bool,
    /// The node refused the verb.
    pub refused: bool,
}
