//! How a client's data path is joined to the memory node: tickets, and the memory node's side of a fabric.
//!
//! Always true: a ticket is random, opens one connection once, and is void once its session is fenced. What a
//! client must know to join is a [`Join`], sent over the control channel; how it joins is [`ConnectOptions`].

use std::net::IpAddr;
use std::time::Instant;

use serde::{Deserialize, Serialize};

use super::{Fabric, FabricKind};

/// A session's number, unique within a life of the server; 24 bits, so that write ids can carry it. Never 0.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct SessionId(pub u32);

impl SessionId {
    /// The largest number.
    pub const MAX: u32 = (1 << 24) - 1;
}

impl std::fmt::Display for SessionId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// What a session may do to the region.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Rights {
    /// READ only.
    ReadOnly,
    /// READ, WRITE, CAS and FAA.
    ReadWrite,
}

impl Rights {
    /// Whether WRITE, CAS and FAA are allowed.
    pub const fn can_write(self) -> bool {
        matches!(self, Self::ReadWrite)
    }
}

/// A secret that joins one data connection to a session, once.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Ticket(pub [u8; 16]);

impl Ticket {
    /// A new random ticket.
    ///
    /// # Panics
    /// If the operating system has no randomness to give: nothing secret can be made then.
    pub fn random() -> Self {
        let mut bytes = [0; 16];
        if let Err(error) = getrandom::fill(&mut bytes) {
            panic!("no randomness from the operating system: {error}");
        }
        Self(bytes)
    }
}

impl std::fmt::Debug for Ticket {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Ticket(secret)")
    }
}

/// Who executes a session's CAS and FAA on the region's words.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub enum Commits {
    /// The memory node's card: they are one-sided like everything else.
    Atomics,
    /// The memory node's CPU, asked by messages: for cards without remote atomics.
    TwoSided {
        /// Version of the messages.
        version: u8,
        /// Commits of one connection that may be under way; at least 1.
        depth: u8,
    },
}

impl Commits {
    /// What is to be said of them wherever a fabric is named: a server whose CPU is in the path of writes must not look
    /// like one whose CPU isn't.
    pub const fn describe(self) -> &'static str {
        match self {
            Self::Atomics => "the card's atomics",
            Self::TwoSided { .. } => "two-sided, the server's CPU executes each CAS",
        }
    }
}

/// What a client must know to join its data path.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Join {
    /// Map the region that this Unix socket hands out.
    Shm {
        /// Path of the socket on the common host.
        socket: String,
        /// To be shown there.
        ticket: Ticket,
    },
    /// Open another connection and show the ticket.
    Tcp {
        /// The host; none means the one that the control channel reached.
        host: Option<String>,
        /// The port.
        port: u16,
        /// To be shown there.
        ticket: Ticket,
        /// Names the region in every verb.
        rkey: u32,
    },
    /// Connect a queue pair through librdmacm with the ticket as private data.
    Verbs {
        /// The card's address; none means the host that the control channel reached.
        host: Option<String>,
        /// The port in librdmacm's TCP port space.
        port: u16,
        /// To be shown as private data.
        ticket: Ticket,
        /// The region's key at the memory node's card.
        rkey: u32,
        /// The region's virtual address there.
        base: u64,
        /// Outstanding READs and atomics that the memory node's card answers per queue pair; 0 if not known.
        responder_depth: u8,
        /// The active MTU of the memory node's port, in bytes.
        mtu_bytes: u32,
        /// Who executes CAS and FAA.
        commits: Commits,
    },
}

impl Join {
    /// Which kind of fabric it joins.
    pub const fn kind(&self) -> FabricKind {
        match self {
            Self::Shm { .. } => FabricKind::Shm,
            Self::Tcp { .. } => FabricKind::Tcp,
            Self::Verbs { .. } => FabricKind::Verbs,
        }
    }
}

/// Which device, port and GID to use; what is not given is found from addresses.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct DeviceChoice {
    /// An RDMA device's name, such as `mlx5_0`.
    pub device: Option<String>,
    /// Its port, from 1.
    pub port: Option<u8>,
    /// The entry of the port's GID table.
    pub gid_index: Option<u8>,
}

/// The client's side of joining.
#[derive(Clone, Debug)]
pub struct ConnectOptions {
    /// The address that the control channel reached; none over a Unix socket.
    pub peer: Option<IpAddr>,
    /// Bytes of the region, as the superblock says.
    pub region_bytes: u64,
    /// What the session may do.
    pub rights: Rights,
    /// Verbs that may be in flight at once.
    pub verbs_in_flight_max: usize,
    /// Local buffers' limit, in bytes.
    pub buffer_limit_bytes: usize,
    /// Which device, for `verbs`.
    pub device: DeviceChoice,
    /// When to give up.
    pub deadline: Instant,
}

/// A data path could not be joined. Nothing is left behind.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// This build or host can't do that fabric.
    #[error("{kind} is not available here: {reason}")]
    Unavailable {
        /// Which fabric.
        kind: FabricKind,
        /// Why, and the remedy if there is one.
        reason: String,
    },
    /// The memory node said no.
    #[error("the memory node refused the {kind} connection: {reason}")]
    Refused {
        /// Which fabric.
        kind: FabricKind,
        /// Why.
        reason: String,
    },
    /// It did not answer in time.
    #[error("joining over {kind} timed out while {doing}")]
    Timeout {
        /// Which fabric.
        kind: FabricKind,
        /// What was waited for.
        doing: &'static str,
    },
    /// The operating system or a library failed.
    #[error("{kind}: {doing}: {source}")]
    Io {
        /// Which fabric.
        kind: FabricKind,
        /// What was tried.
        doing: &'static str,
        /// The cause.
        source: std::io::Error,
    },
}

/// Joins a data path over whatever fabric `join` names.
///
/// # Errors
/// [`ConnectError`]; nothing is left behind.
pub fn connect(join: &Join, options: &ConnectOptions) -> Result<Box<dyn Fabric>, ConnectError> {
    match join {
        Join::Shm { socket, ticket } => Ok(Box::new(super::shm::connect(socket, *ticket, options)?)),
        Join::Tcp { host, port, ticket, rkey } => {
            let fabric = super::tcp::connect(host.as_deref(), *port, *ticket, *rkey, options)?;
            Ok(Box::new(fabric))
        }
        #[cfg(feature = "verbs")]
        Join::Verbs { .. } => super::verbs::connect(join, options),
        #[cfg(not(feature = "verbs"))]
        Join::Verbs { .. } => {
            let reason = "this program was built without the feature `verbs`".into();
            Err(ConnectError::Unavailable { kind: join.kind(), reason })
        }
    }
}

/// The memory node's side of a fabric.
pub trait Target: Send + Sync {
    /// Which kind.
    fn kind(&self) -> FabricKind;

    /// Lets `session` join once more with `rights`; gives what its client must know.
    ///
    /// # Errors
    /// A message if the fabric can take no more.
    fn admit(&self, session: SessionId, rights: Rights) -> Result<Join, String>;

    /// Fences the session's data path: voids its tickets and ends its connections. When this returns `true`, no
    /// verb of theirs takes effect any more; `false` says that it can't be revoked (a mapping of a living
    /// process).
    fn fence(&self, session: SessionId) -> bool;

    /// Data connections at the moment.
    fn connection_count(&self) -> usize;

    /// A line for people: addresses, device, MTU.
    fn describe(&self) -> String;
}
