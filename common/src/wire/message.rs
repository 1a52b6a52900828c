//! The messages.
//!
//! Always true: each request has exactly one response, in order. Changing anything here changes
//! [`super::PROTOCOL_VERSION`], the golden bytes below and the changelog together.

use serde::{Deserialize, Serialize};

use crate::fabric::{FabricKind, Join, Rights, SessionId};

/// From a client to the server.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Request {
    /// The first message: asks for a session.
    Hello(Hello),
    /// Renews the lease; acknowledges an epoch.
    Heartbeat {
        /// The newest epoch that the session has acknowledged.
        epoch: u64,
    },
    /// Asks for block memory.
    Chunks {
        /// The size class.
        class: u8,
        /// How many chunks at the most.
        count: u16,
        /// What for: deletes may use the reserve.
        purpose: ChunkPurpose,
    },
    /// Gives unused ends of chunks back, at a clean end.
    ReturnChunks(Vec<ChunkTail>),
    /// Fence the session's old data path, then let it join again.
    Rejoin,
    /// Asks for the server's figures.
    Statistics,
    /// Ends the session.
    Goodbye,
    /// Asks what of the block pool was granted: the one thing that a checker of the region can't see in it.
    Grants {
        /// Grants that start here or behind.
        from: u64,
        /// How many at the most; the server has a limit of its own.
        count: u16,
    },
}

/// From the server to a client.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum Response {
    /// The session exists.
    Welcome(Box<Welcome>),
    /// The request was refused; nothing was changed.
    Refused(Refusal),
    /// The lease was renewed.
    Heartbeat {
        /// The newest epoch.
        epoch: u64,
        /// The server is shutting down.
        draining: bool,
    },
    /// Block memory, at least one chunk.
    Chunks(Vec<ChunkGrant>),
    /// They were taken back.
    ChunksReturned,
    /// The old data path can do nothing any more; this joins a new one.
    Rejoined(Join),
    /// The server's figures.
    Statistics(Box<ServerStatistics>),
    /// The session is over.
    Goodbye,
    /// Some of the grants.
    Grants(GrantPage),
}

/// Asks for a session.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Hello {
    /// The client's version, for logs.
    pub client_version: String,
    /// The client's name for itself, for logs and metrics.
    pub client_name: String,
    /// The shared secret, if the server wants one.
    pub token: Option<String>,
    /// Acceptable fabrics, the preferred one first.
    pub fabrics: Vec<FabricKind>,
    /// What the session wants to do.
    pub rights: Rights,
    /// The kernel's boot id: equal on both sides means the same host, so `shm` can be tried.
    pub boot_id: String,
    /// The client's process id, in its own name space.
    pub process_id: u32,
}

/// A session exists.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Welcome {
    /// The server's version.
    pub server_version: String,
    /// The session's number.
    pub session: SessionId,
    /// Without a heartbeat for this long the session is fenced.
    pub lease_ms: u64,
    /// The epoch at this moment.
    pub epoch: u64,
    /// The region's superblock, encoded.
    pub superblock: Vec<u8>,
    /// The longest key that the server takes, in bytes.
    pub key_bytes_max: u32,
    /// The longest value that the server takes, in bytes.
    pub value_bytes_max: u32,
    /// Where the admin endpoint listens, `host:port`.
    pub admin: Option<String>,
    /// How to join the data path.
    pub join: Join,
}

/// What block memory is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum ChunkPurpose {
    /// Any block.
    General,
    /// Key-only blocks of deletes, which may use the reserve.
    Delete,
}

/// Block memory granted to a session: blocks `first_index` to `block_count - 1` of the chunk are its own.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ChunkGrant {
    /// Where the chunk (or extent) starts in the region.
    pub offset: u64,
    /// Its size class.
    pub class: u8,
    /// The first block that was never used.
    pub first_index: u32,
    /// Blocks in the chunk.
    pub block_count: u32,
    /// The version of each block's first use.
    pub version: u8,
}

/// The unused end of a chunk: blocks from `first_index` on were never published.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ChunkTail {
    /// Where the chunk starts.
    pub offset: u64,
    /// The first block that was never used.
    pub first_index: u32,
}

/// Some of the grants, in the order of their places, and the books of the pool at that moment.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct GrantPage {
    /// The grants.
    pub grants: Vec<GrantRecord>,
    /// There are others behind the last one.
    pub more: bool,
    /// Another number after every change of the books: pages with one number are of one moment.
    pub revision: u64,
    /// Bytes never granted and not held back.
    pub free_bytes: u64,
    /// Bytes held back for deletes.
    pub reserve_bytes: u64,
}

/// A chunk or extent that was granted, now or earlier.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct GrantRecord {
    /// Where it starts in the region.
    pub offset: u64,
    /// Its size class.
    pub class: u8,
    /// The first block that was never used, as far as the server was told.
    pub first_index: u32,
    /// Who has the blocks from there on.
    pub holder: GrantHolder,
}

/// Who has the blocks of a grant from its first index on.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub enum GrantHolder {
    /// A session: it may have used any of them.
    Session,
    /// Nobody: none was ever used.
    Nobody,
    /// A session that ended without a word: which it used is not known.
    LeftBehind,
}

/// Why a request was refused.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, thiserror::Error)]
#[error("{message}")]
pub struct Refusal {
    /// The kind.
    pub code: RefusalCode,
    /// For people: names the value and the limit.
    pub message: String,
}

/// Kinds of refusal.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum RefusalCode {
    /// The token is wrong or missing.
    Credentials,
    /// None of the wanted fabrics is served here.
    Fabric,
    /// No more sessions.
    SessionLimit,
    /// No block memory is left.
    OutOfMemory,
    /// The session's quota of chunks is used up.
    Quota,
    /// The message makes no sense here.
    Invalid,
    /// The server is shutting down.
    Draining,
    /// The session was fenced.
    Fenced,
}

/// The server's figures.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct ServerStatistics {
    /// The server's version.
    pub version: String,
    /// The region's incarnation.
    pub incarnation: u64,
    /// Milliseconds since the start.
    pub uptime_ms: u64,
    /// Fabrics served, with a line on each.
    pub fabrics: Vec<(FabricKind, String)>,
    /// Bytes of the region.
    pub region_bytes: u64,
    /// Segments of the index.
    pub segment_count: u64,
    /// Bytes of the block pool.
    pub block_pool_bytes: u64,
    /// Bytes of it granted to sessions, now or earlier.
    pub granted_bytes: u64,
    /// Bytes held back for deletes.
    pub reserve_bytes: u64,
    /// Sessions at the moment.
    pub session_count: u64,
    /// Sessions since the start.
    pub sessions_total: u64,
    /// Sessions fenced since the start.
    pub sessions_fenced_total: u64,
    /// Control messages since the start.
    pub control_messages_total: u64,
    /// CPU time of the server process in user mode, in microseconds.
    pub cpu_user_us: u64,
    /// CPU time of the server process in the kernel, in microseconds.
    pub cpu_system_us: u64,
    /// Resident memory of the server process, in bytes.
    pub resident_bytes: u64,
}
