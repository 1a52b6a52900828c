//! What must never happen.

/// A promise that was broken.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Violation {
    /// Which promise.
    pub promise: Promise,
    /// What was seen.
    pub detail: String,
}

/// The promises that are watched.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Promise {
    /// Answers are those of a map, in an order that keeps theirs in time.
    Linearizable,
    /// A get returns bytes that one put stored, whole.
    WholeValues,
    /// A slot belongs to one key, and a key to one slot.
    Binding,
    /// A slot leaves EMPTY only behind slots that have.
    Order,
    /// Slot words change as the diagram of states says.
    Transition,
    /// A published block fits the word that names it, and is written by nobody.
    Blocks,
    /// Verbs touch what their session was granted.
    Grant,
    /// A new slot is open only when all of the directory names its segment.
    Rebuild,
    /// Nothing takes effect behind a fence.
    Fence,
    /// What was unlinked is marked free once, by whoever unlinked it, with its version.
    Marks,
    /// A put that won no CAS lost its last to a blind word.
    Claims,
    /// A client's copy of the directory gets newer words only.
    Directory,
    /// A block is published, given back, or of unknown fate.
    Accounts,
    /// A call ends within so many verbs when nothing goes wrong any more.
    Progress,
    /// No error is given that the situation does not justify.
    Errors,
}

impl Violation {
    pub(super) fn new(promise: Promise, detail: impl Into<String>) -> Self {
        Self { promise, detail: detail.into() }
    }
}

impl std::fmt::Display for Violation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?}: {}", self.promise, self.detail)
    }
}
