//! The messages.
//!
//! Always true: each request has exactly one response, in order; the server says one thing unasked, a
//! [`Response::Notice`], between two responses and never before the welcome. Changing anything here changes
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
        /// The session would like the epoch to be raised: blocks of its were used again so often that their versions must
        /// not go on before everybody has acknowledged a new one.
        wants_epoch: bool,
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
    /// Gives chunks back: no block of them is in hand any more. Not more than [`ReturnedChunk::COUNT_MAX`] at once.
    ReturnChunks(Vec<ReturnedChunk>),
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
    /// Says that a bucket is full, or soon will be, so that its segment is rebuilt.
    ReportBucket(BucketReport),
    /// Asks which blocks of these chunks of the session's the index reached in the newest audit that is done. Not more than
    /// [`AuditedChunk::COUNT_MAX`] at once.
    Audit {
        /// That audit: [`Pulse::audit_done`].
        number: u64,
        /// Where the chunks start.
        chunks: Vec<u64>,
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
    Heartbeat(Pulse),
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
    /// The segment will be rebuilt, or was since the client read it: try again in a while.
    BucketReported,
    /// What the audit found, chunk by chunk, in the order asked. A chunk that the audit did not see is left out.
    Audited(Vec<AuditedChunk>),
    /// Unasked: something changed that the session should know before its next heartbeat.
    Notice(Pulse),
}

/// How things stand at the server: the answer to each heartbeat, and sent unasked when the epoch is raised.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Pulse {
    /// The newest epoch. Whoever acknowledges it has, in this order: learned it; read the directory's changed words
    /// again; finished every operation and mark begun before that; dropped cached locations in retired segments.
    pub epoch: u64,
    /// The newest epoch that every session has acknowledged, or was fenced.
    pub quiesced: u64,
    /// The server is shutting down.
    pub draining: bool,
    /// Memory is short: empty chunks are wanted back.
    pub wants_memory: bool,
    /// The newest audit that was announced. It begins when everybody has acknowledged an epoch raised after that, so what is
    /// in hand when this epoch is acknowledged was so at its beginning.
    pub audit_begun: u64,
    /// The newest audit that is done, and after which everybody has acknowledged an epoch.
    pub audit_done: u64,
    /// Directory entries changed since the epoch that the session acknowledged last.
    pub changes: DirectoryChanges,
}

/// Which entries of the directory are to be read again.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum DirectoryChanges {
    /// These; at most [`DirectoryChanges::RUNS_MAX`] runs.
    Runs(Vec<DirectoryRun>),
    /// All.
    All,
}

impl DirectoryChanges {
    /// More than this and it is [`DirectoryChanges::All`].
    pub const RUNS_MAX: usize = 128;
}

impl Default for DirectoryChanges {
    fn default() -> Self {
        Self::Runs(Vec::new())
    }
}

/// Entries of the directory that lie together.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct DirectoryRun {
    /// The first.
    pub first: u32,
    /// How many.
    pub count: u32,
}

/// A bucket that is full or soon will be.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct BucketReport {
    /// The directory entry by which it was found.
    pub entry: u32,
    /// The generation of its segment. If another one is there by now, the report is late.
    pub generation: u32,
    /// It is full, so an insert waits; else it is only filling up.
    pub full: bool,
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

/// A chunk (or extent) granted to a session: all its blocks are the session's own.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ChunkGrant {
    /// Where it starts in the region.
    pub offset: u64,
    /// Its size class.
    pub class: u8,
    /// The version of each block's last use, from the first block on; those behind the end are 0. A block is free if its
    /// byte of the free map equals it. Empty: nothing of the chunk was ever used in this class, and its map is zero.
    pub versions: Vec<u8>,
}

/// A chunk that a session gives back: each block is published or free, none is in hand.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ReturnedChunk {
    /// Where it starts in the region.
    pub offset: u64,
    /// As in [`ChunkGrant::versions`].
    pub versions: Vec<u8>,
    /// No block of it is published: each one's byte of the free map equals its version, and was so for the grace period.
    pub empty: bool,
}

impl ReturnedChunk {
    /// As many as fit a frame, however long their versions are.
    pub const COUNT_MAX: usize = 3;
}

/// What an audit found of a chunk.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct AuditedChunk {
    /// Where it starts in the region.
    pub offset: u64,
    /// Bit `i % 8` of byte `i / 8` is 1 if the index reached block `i`; those behind the end are 0.
    pub reached: Vec<u8>,
}

impl AuditedChunk {
    /// As many as fit a frame, however many blocks they have.
    pub const COUNT_MAX: usize = 24;
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
    /// Bytes of no class, and not held back.
    pub free_bytes: u64,
    /// Bytes held back for deletes.
    pub reserve_bytes: u64,
}

/// A chunk or extent that is cut up for a size class.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct GrantRecord {
    /// Where it starts in the region.
    pub offset: u64,
    /// Its size class.
    pub class: u8,
    /// Who has its blocks.
    pub holder: GrantHolder,
}

/// Who has the blocks of a grant.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub enum GrantHolder {
    /// A session: it may use any of them.
    Session,
    /// Nobody: which are free is known, and the next session that asks for the class gets it.
    Nobody,
    /// A session that ended without a word, or gave it back a moment ago: which are free will be known after a sweep.
    Orphan,
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
    /// The index can't grow any more where it would have to.
    IndexFull,
    /// No block memory is left at this moment, and some is coming back or is being looked for: ask again.
    MemoryReturning,
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
    /// Milliseconds for which there was a server for the region, this one or one before it: the tick is never ahead of it.
    pub region_age_ms: u64,
    /// Fabrics served, with a line on each.
    pub fabrics: Vec<(FabricKind, String)>,
    /// Bytes of the region.
    pub region_bytes: u64,
    /// Segments of the index.
    pub segment_count: u64,
    /// Bytes of the block pool.
    pub block_pool_bytes: u64,
    /// Bytes of it cut up for size classes, with or without an owner.
    pub granted_bytes: u64,
    /// Bytes of it that have no class.
    pub free_bytes: u64,
    /// Chunks of sessions that ended, which wait for a sweep.
    pub orphan_chunks: u64,
    /// Chunks of nobody, which the next session gets that asks for their class.
    pub ownerless_chunks: u64,
    /// Chunks of sessions that ended and were swept, since the start.
    pub swept_chunks_total: u64,
    /// Sweeps and audits of the whole index since the start.
    pub sweeps_total: u64,
    /// The newest epoch.
    pub epoch: u64,
    /// The newest epoch that every session has acknowledged, or was fenced.
    pub quiesced_epoch: u64,
    /// Segments that the directory names.
    pub segments_serving: u64,
    /// Segments that were replaced and wait until nobody can use them any more.
    pub segments_retired: u64,
    /// The most segments that the directory can name.
    pub segments_serving_max: u64,
    /// Rebuilds of segments since the start.
    pub rebuilds_total: u64,
    /// Those of them that made two out of one.
    pub splits_total: u64,
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
