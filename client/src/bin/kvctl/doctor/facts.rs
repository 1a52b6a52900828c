//! What doctor found out, as plain data.
//!
//! Always true: nothing here judges; see [`super::rules`] for that. So every host can be tried without having it.

use serde::Serialize;
use sidestep_client::{DeviceChoice, FabricKind};

/// All that is known of this host, and of the server if one was named.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub(crate) struct Facts {
    /// RDMA devices.
    pub(crate) cards: Cards,
    /// What the user wants of them.
    pub(crate) wanted: DeviceChoice,
    /// The limit on locked memory.
    pub(crate) memlock: Memlock,
    /// Huge pages, one entry a size.
    pub(crate) huge_pages: Vec<HugePages>,
    /// Memory that may be taken at the moment, and what sets the limit.
    pub(crate) memory: Option<(u64, String)>,
    /// Shared memory.
    pub(crate) shared_memory: SharedMemory,
    /// A READ and a CAS over each fabric to this host itself.
    pub(crate) loopbacks: Vec<Loopback>,
    /// The server.
    pub(crate) server: Option<Server>,
}

/// RDMA devices.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case", tag = "status")]
pub(crate) enum Cards {
    /// This kvctl was built without verbs.
    #[cfg_attr(all(feature = "verbs", not(test)), expect(dead_code, reason = "a build with verbs looks"))]
    NotBuilt,
    /// libibverbs or librdmacm is missing, or gives no list.
    #[cfg_attr(
        not(any(feature = "verbs", test)),
        expect(dead_code, reason = "a build without verbs does not look")
    )]
    Unlisted {
        /// Why.
        reason: String,
    },
    /// The devices.
    #[cfg_attr(
        not(any(feature = "verbs", test)),
        expect(dead_code, reason = "a build without verbs does not look")
    )]
    Listed {
        /// In the order of libibverbs.
        devices: Vec<Card>,
        /// What Sidestep would use.
        choice: Outcome<Choice>,
    },
}

/// How something ended.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Outcome<T> {
    /// Well.
    Ok(T),
    /// Not well, and why.
    Error(String),
}

/// One device.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub(crate) struct Card {
    /// Its name.
    pub(crate) name: String,
    /// What is known of it, or why it can't be opened.
    pub(crate) details: Outcome<CardDetails>,
}

/// What is known of a device.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub(crate) struct CardDetails {
    /// NONE, HCA or GLOB, or a code.
    pub(crate) atomics: String,
    /// Whether one-sided commits can be made with them.
    pub(crate) has_atomics: bool,
    /// READs and atomics that a queue pair answers at once; 0 if not said.
    pub(crate) responder_depth: u32,
    /// Its ports.
    pub(crate) ports: Vec<Port>,
}

/// One port.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub(crate) struct Port {
    /// From 1.
    pub(crate) number: u8,
    /// ACTIVE, DOWN or the like.
    pub(crate) state: String,
    /// Whether it carries traffic.
    pub(crate) active: bool,
    /// Whether addresses are in its GID table (RoCE), and not elsewhere (InfiniBand).
    pub(crate) ethernet: bool,
    /// The MTU in use.
    pub(crate) mtu_bytes: u32,
    /// Its GID table without the empty entries.
    pub(crate) gids: Vec<GidEntry>,
}

/// One entry of a GID table.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub(crate) struct GidEntry {
    /// Its place.
    pub(crate) index: u32,
    /// The GID, as an IPv6 address.
    pub(crate) gid: String,
    /// RoCE v2 or the like.
    pub(crate) kind: String,
    /// It reaches no further than its link.
    pub(crate) link_local: bool,
    /// The network interface.
    pub(crate) interface: Option<String>,
}

/// What Sidestep would use.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub(crate) struct Choice {
    /// The device.
    pub(crate) device: String,
    /// Its port.
    pub(crate) port: u8,
    /// The entry of its GID table.
    pub(crate) gid_index: Option<u32>,
    /// The address.
    pub(crate) address: String,
}

/// The limit on locked memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub(crate) struct Memlock {
    /// None if unlimited.
    pub(crate) limit_bytes: Option<u64>,
    /// The process may exceed it (`CAP_IPC_LOCK`).
    pub(crate) exempt: bool,
}

/// Huge pages of one size.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub(crate) struct HugePages {
    /// Of one page.
    pub(crate) page_bytes: u64,
    /// Reserved.
    pub(crate) total: u64,
    /// Not in use.
    pub(crate) free: u64,
}

/// Shared memory.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub(crate) struct SharedMemory {
    /// Size and free bytes of /dev/shm; none if it is not mounted.
    pub(crate) dev_shm: Option<(u64, u64)>,
    /// Whether a small region could be made the way the server makes its own; its description.
    pub(crate) region: Outcome<String>,
}

/// A READ and a CAS over a fabric to this host itself.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub(crate) struct Loopback {
    /// The fabric.
    pub(crate) fabric: FabricKind,
    /// How it went.
    pub(crate) outcome: Outcome<LoopbackTimes>,
}

/// How long the verbs took.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub(crate) struct LoopbackTimes {
    /// A READ of 64 bytes.
    pub(crate) read_ns: u64,
    /// A CAS.
    pub(crate) cas_ns: u64,
}

/// The server that was named.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub(crate) struct Server {
    /// Where.
    pub(crate) endpoint: String,
    /// What it said.
    pub(crate) outcome: Outcome<ServerAnswer>,
}

/// What a server said.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub(crate) struct ServerAnswer {
    /// Its version.
    pub(crate) version: String,
    /// The fabric that was joined.
    pub(crate) fabric: FabricKind,
    /// A line on the connection.
    pub(crate) connection: String,
    /// The control channel's round trip.
    pub(crate) ping_us: u64,
}
