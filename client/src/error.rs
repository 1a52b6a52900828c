//! What can go wrong, and whether it happened all the same.
//!
//! Always true: an error that says [`Effect::No`] changed nothing; one that says [`Effect::Unknown`] may have
//! changed the key, and the client can't know; nothing is ever reported as failed that took effect.

use sidestep_common::fabric::{BufferError, ConnectError, Effect, FabricKind, Failure};
use sidestep_common::layout::{KEY_BYTES_MAX, SuperblockError};
use sidestep_common::wire::{Refusal, RefusalCode, WireError};

use crate::allocator::GrantError;
use crate::endpoint::EndpointError;
use crate::operation::OperationError;

/// An operation's or a connection's error.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The endpoint makes no sense.
    #[error(transparent)]
    Endpoint(#[from] EndpointError),
    /// A key must have at least one byte and at most the limit.
    #[error("a key of {bytes} bytes is outside 1 to {KEY_BYTES_MAX}")]
    KeyLength {
        /// The key's length.
        bytes: usize,
    },
    /// The value is longer than the server takes.
    #[error("a value of {bytes} bytes is over the server's limit of {limit_bytes}")]
    ValueLength {
        /// The value's length.
        bytes: usize,
        /// The server's limit.
        limit_bytes: usize,
    },
    /// The client wants longer values than the server takes.
    #[error("the client wants values of {wanted_bytes} bytes, the server at {endpoint} takes {limit_bytes}")]
    ValueLimit {
        /// As the client was configured.
        wanted_bytes: usize,
        /// The server's limit.
        limit_bytes: usize,
        /// The server.
        endpoint: String,
    },
    /// The session was opened for reading only.
    #[error("this session is read-only")]
    ReadOnly,
    /// The memory node has no block memory left. Nothing was changed; deletes still work.
    #[error("out of memory: {0}")]
    OutOfMemory(String),
    /// The index or the region can't do it; see there.
    #[error(transparent)]
    Operation(#[from] OperationError),
    /// The deadline passed.
    #[error("no answer from {endpoint} within {after_ms} ms while {doing} (did it happen: {effect})")]
    Timeout {
        /// The server.
        endpoint: String,
        /// How long the call had.
        after_ms: u64,
        /// What was waited for.
        doing: &'static str,
        /// Whether it happened.
        effect: Effect,
    },
    /// The connection was lost, or a verb failed.
    #[error("{kind} connection to {endpoint}: {failure} (did it happen: {effect})")]
    Failed {
        /// The server.
        endpoint: String,
        /// Over which fabric.
        kind: FabricKind,
        /// The verb's failure.
        failure: Failure,
        /// Whether the operation happened, as far as it can be known.
        effect: Effect,
    },
    /// The server can't be reached.
    #[error("cannot reach {endpoint}: {reason}")]
    Unreachable {
        /// The server.
        endpoint: String,
        /// The last attempt's failure.
        reason: String,
    },
    /// The server said no.
    #[error("{endpoint} refused: {refusal}")]
    Refused {
        /// The server.
        endpoint: String,
        /// Why.
        refusal: Refusal,
    },
    /// The data path could not be joined.
    #[error("{endpoint}: {source}")]
    Connect {
        /// The server.
        endpoint: String,
        /// Why.
        source: ConnectError,
    },
    /// The server doesn't keep to the protocol, or is of another version.
    #[error("{endpoint}: {reason}")]
    Protocol {
        /// The server.
        endpoint: String,
        /// What was wrong.
        reason: String,
    },
    /// A piece of the region was asked for that is not in it.
    #[error("{bytes} bytes at {offset:#x} are not in a region of {region_bytes} bytes")]
    Outside {
        /// Where it was to start.
        offset: u64,
        /// How many bytes.
        bytes: u64,
        /// Bytes of the region.
        region_bytes: u64,
    },
    /// Local buffers ran out.
    #[error(transparent)]
    Buffers(#[from] BufferError),
}

impl Error {
    /// Did it happen: no, or unknown. (What happened is no error.)
    pub fn effect(&self) -> Effect {
        match self {
            Self::Timeout { effect, .. } | Self::Failed { effect, .. } => *effect,
            _ => Effect::No,
        }
    }

    /// Whether the server could not be reached, or stopped answering.
    pub fn is_unreachable(&self) -> bool {
        matches!(
            self,
            Self::Unreachable { .. } | Self::Timeout { .. } | Self::Failed { .. } | Self::Connect { .. }
        )
    }

    pub(crate) fn from_wire(endpoint: &str, error: WireError) -> Self {
        match error {
            WireError::Io(error) => Self::Unreachable {
                endpoint: endpoint.to_owned(),
                reason: format!("control connection: {}", io_reason(&error)),
            },
            other => Self::Protocol { endpoint: endpoint.to_owned(), reason: other.to_string() },
        }
    }

    pub(crate) fn from_refusal(endpoint: &str, refusal: Refusal) -> Self {
        match refusal.code {
            RefusalCode::OutOfMemory | RefusalCode::Quota => Self::OutOfMemory(refusal.message),
            _ => Self::Refused { endpoint: endpoint.to_owned(), refusal },
        }
    }

    pub(crate) fn from_superblock(endpoint: &str, error: SuperblockError) -> Self {
        Self::Protocol { endpoint: endpoint.to_owned(), reason: error.to_string() }
    }

    pub(crate) fn from_grant(endpoint: &str, error: GrantError) -> Self {
        Self::Protocol { endpoint: endpoint.to_owned(), reason: error.to_string() }
    }
}

/// An I/O error in words. A socket's own timeout comes as "resource temporarily unavailable", which tells nobody.
pub(crate) fn io_reason(error: &std::io::Error) -> String {
    match error.kind() {
        std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut => "no answer in time".into(),
        _ => error.to_string(),
    }
}
