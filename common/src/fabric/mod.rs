//! Fabrics: how verbs reach a region.
//!
//! # The contract
//!
//! A [`Fabric`] is one session's connection: a queue pair, its completion queue and its local buffers. What is
//! written here holds for every implementation; one conformance suite checks it on all.
//!
//! 1. **Batches.** [`Fabric::post`] takes batches of verbs, all of them or none. A batch has one completion, which
//!    comes after all of its verbs took effect; a *silent* batch has none. All batches of one call share a
//!    doorbell.
//! 2. **Order.** Verbs of one session execute at the memory node in the order posted, except that a WRITE may
//!    overtake an earlier READ. Completions come in the order posted.
//! 3. **Words.** Aligned 8-byte words are indivisible. Anything longer may tear, per word, in any order. A WRITE
//!    leaves the bytes beside it alone. CAS and FAA want an aligned word and return what was there.
//! 4. **Rights.** A verb outside the granted region, with a wrong key, against the granted rights, or an atomic on
//!    a word that isn't aligned, completes with [`FailureKind::Access`] and changes nothing.
//! 5. **Failure ends the connection.** After a failed verb none of the session's later verbs execute: a CAS must
//!    not publish a block whose WRITE failed. The failed batch says which verb failed and whether it and what
//!    follows it took effect ([`Effect`]); batches behind it complete with [`FailureKind::Flushed`] or
//!    [`FailureKind::Disconnected`]; from then on `post` answers [`PostError::Broken`]. A new connection is a new
//!    `Fabric`.
//! 6. **Memory.** Bytes of a WRITE are taken before `post` returns: the caller may change them at once. A READ's
//!    [`Buffer`] belongs to the fabric from `post` to the completion. Dropping a fabric makes sure that no card
//!    writes to a buffer any more before it is freed.
//! 7. **Limits.** `post` answers [`PostError::Full`] when the batches don't fit what is in flight; poll and try
//!    again. A single call that can never fit is [`PostError::TooLarge`]. Whatever was refused gives its credit
//!    back.
//! 8. **Waiting.** [`Fabric::poll`] never blocks. [`Fabric::wait`] returns when a completion may be there, or after
//!    the timeout.
//!
//! Cards without remote atomics, and the two-sided path that replaces them, are hidden behind `CompareSwap`.

mod buffer;
mod join;
#[cfg(all(test, loom))]
mod models;
pub mod shm;
#[cfg(feature = "sim")]
pub mod sim;
pub mod tcp;
#[cfg(feature = "verbs")]
pub mod verbs;

use std::time::Duration;

use smallvec::SmallVec;

pub use buffer::{Buffer, BufferError, BufferPool, Registrar, Registration, Unregistered};

pub use join::{
    Commits, ConnectError, ConnectOptions, DeviceChoice, Join, Rights, SessionId, Target, Ticket, connect,
};

use crate::layout::Offset;

/// The kinds of fabric.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FabricKind {
    /// RDMA verbs: InfiniBand, RoCE, iWARP.
    Verbs,
    /// Shared memory of one host.
    Shm,
    /// Verbs in frames over TCP; threads of the server play the card.
    Tcp,
    /// Simulated, for tests.
    Sim,
}

impl FabricKind {
    /// Its name, as flags and messages spell it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Verbs => "verbs",
            Self::Shm => "shm",
            Self::Tcp => "tcp",
            Self::Sim => "sim",
        }
    }
}

impl std::fmt::Display for FabricKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// The caller's name for a batch; comes back with its completion.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct BatchId(pub u64);

/// Pieces of one WRITE, gathered from up to this many places: header, key, value.
pub const GATHER_MAX: usize = 3;

/// One verb. Remote places are offsets into the region.
#[derive(Debug)]
pub enum Verb<'a> {
    /// RDMA READ: fetch as many bytes as the buffer has.
    Read {
        /// From where.
        remote: Offset,
        /// To where; the fabric owns it until the completion.
        into: Buffer,
    },
    /// RDMA WRITE: store the pieces one behind the other.
    Write {
        /// To where.
        remote: Offset,
        /// What; taken before `post` returns. Unused pieces are empty.
        from: [&'a [u8]; GATHER_MAX],
    },
    /// Atomic compare-and-swap of an aligned 8-byte word.
    CompareSwap {
        /// Which word.
        remote: Offset,
        /// Swap if it holds this.
        expected: u64,
        /// What to put there.
        desired: u64,
    },
    /// Atomic fetch-and-add of an aligned 8-byte word, wrapping.
    FetchAdd {
        /// Which word.
        remote: Offset,
        /// What to add.
        add: u64,
    },
}

impl Verb<'_> {
    /// The remote place.
    pub const fn remote(&self) -> Offset {
        match self {
            Self::Read { remote, .. }
            | Self::Write { remote, .. }
            | Self::CompareSwap { remote, .. }
            | Self::FetchAdd { remote, .. } => *remote,
        }
    }

    /// Bytes that the verb fetches, stores or changes.
    pub fn bytes(&self) -> usize {
        match self {
            Self::Read { into, .. } => into.len(),
            Self::Write { from, .. } => from.iter().map(|piece| piece.len()).sum(),
            Self::CompareSwap { .. } | Self::FetchAdd { .. } => 8,
        }
    }

    /// Its name, as traces spell it.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Read { .. } => "READ",
            Self::Write { .. } => "WRITE",
            Self::CompareSwap { .. } => "CAS",
            Self::FetchAdd { .. } => "FAA",
        }
    }
}

/// Verbs of one batch, in the order in which they are to execute.
pub type VerbList<'a> = SmallVec<[Verb<'a>; 4]>;

/// Verbs that go together.
#[derive(Debug)]
pub struct Batch<'a> {
    /// The caller's name for it.
    pub id: BatchId,
    /// The verbs; `post` takes them out.
    pub verbs: VerbList<'a>,
    /// No completion is wanted: nobody waits for the effect.
    pub silent: bool,
}

/// What a verb brought back.
#[derive(Debug)]
pub enum Reply {
    /// A READ's buffer, filled.
    Read(Buffer),
    /// A WRITE was placed.
    Written,
    /// The word before a CAS or FAA.
    Old(u64),
}

/// Replies of one batch, in the order of its verbs.
pub type Replies = SmallVec<[Reply; 4]>;

/// Whether something took effect.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Effect {
    /// It did not and will not.
    No,
    /// It did.
    Yes,
    /// It may have, or may yet until the queue pair is fenced.
    Unknown,
}

impl std::fmt::Display for Effect {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::No => "no",
            Self::Yes => "yes",
            Self::Unknown => "unknown",
        })
    }
}

/// Why a batch failed.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum FailureKind {
    /// The memory node refused the verb: bounds, key, rights or alignment.
    #[error("access refused: {0}")]
    Access(String),
    /// An earlier verb of this connection failed, so this one was not executed.
    #[error("flushed behind an earlier failure")]
    Flushed,
    /// The connection ended, or the peer no longer answers.
    #[error("connection lost: {0}")]
    Disconnected(String),
    /// The card reported a status that this build gives no meaning; it is passed on as it came.
    #[error("{name} (status {status}, vendor {vendor:#x})")]
    Card {
        /// The status code.
        status: u32,
        /// Its name.
        name: String,
        /// The vendor's own code.
        vendor: u32,
    },
}

/// A batch that failed. Verbs before `verb_index` took effect.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("verb {verb_index} of the batch failed: {kind} (effect: {effect})")]
pub struct Failure {
    /// The verb that failed.
    pub verb_index: usize,
    /// Why.
    pub kind: FailureKind,
    /// Whether it, or any verb behind it, took effect.
    pub effect: Effect,
}

/// The end of a batch.
#[derive(Debug)]
pub struct Completion {
    /// Which batch.
    pub batch: BatchId,
    /// Replies of all verbs, or the failure.
    pub result: Result<Replies, Failure>,
}

/// Nothing of the call was posted.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum PostError {
    /// Too much is in flight: poll, then try again.
    #[error("{asked} more verbs don't fit: {in_flight} of at most {limit} are in flight")]
    Full {
        /// Verbs in the call.
        asked: usize,
        /// Verbs in flight.
        in_flight: usize,
        /// The limit.
        limit: usize,
    },
    /// The call can never fit.
    #[error("{what} of {asked} is over the fabric's limit of {limit}")]
    TooLarge {
        /// Verbs of a call, or bytes of a verb.
        what: &'static str,
        /// As asked.
        asked: usize,
        /// The limit.
        limit: usize,
    },
    /// The connection has failed; it takes no verbs any more.
    #[error("the connection has failed: {0}")]
    Broken(String),
}

/// What a fabric can take.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Verbs in flight at once.
    pub verbs_in_flight_max: usize,
    /// Bytes of one verb.
    pub verb_bytes_max: usize,
}

/// One session's connection to a region. See the module for the contract.
pub trait Fabric: Send {
    /// Which kind it is.
    fn kind(&self) -> FabricKind;

    /// What it can take.
    fn limits(&self) -> Limits;

    /// A line on the connection for people: addresses, device, MTU, depths.
    fn describe(&self) -> String;

    /// Local memory for READs.
    fn buffers(&mut self) -> &mut BufferPool;

    /// Posts all `batches` with one doorbell and takes their verbs out; or none, and leaves them.
    ///
    /// # Errors
    /// [`PostError`]; then nothing was posted.
    fn post(&mut self, batches: &mut [Batch<'_>]) -> Result<(), PostError>;

    /// Appends the completions that are there to `completions`; returns how many. Never blocks.
    fn poll(&mut self, completions: &mut Vec<Completion>) -> usize;

    /// Waits until a completion may be there, the connection fails, or `timeout` passes.
    fn wait(&mut self, timeout: Duration);
}
