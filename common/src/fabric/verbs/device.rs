//! What RDMA devices this host has: their ports, GID tables and limits, as plain data.
//!
//! Always true: looking changes nothing, and one device that can't be opened hides none of the others: it is listed
//! with the reason. Whoever wants to choose among them goes on to [`super::choice`].

use std::fmt;
use std::fs;
use std::net::{IpAddr, Ipv6Addr};
use std::path::{Path, PathBuf};

use rdma_sys::{ibv_atomic_cap, ibv_device_attr, ibv_port_attr, ibv_port_state};

use super::context::{Context, DeviceList};
use super::error::VerbsError;
use super::negotiate::Mtu;

/// A device's remote atomics.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AtomicCapability {
    /// None at all.
    None,
    /// Atomic among this card's atomics: what the domain `nic` needs.
    Hca,
    /// Atomic with everything in the machine.
    Global,
    /// A code that this build does not know; taken for none.
    Unknown(u32),
}

impl AtomicCapability {
    /// Whether one-sided commits can be made with it.
    pub const fn has_atomics(self) -> bool {
        matches!(self, Self::Hca | Self::Global)
    }

    const fn from_code(code: u32) -> Self {
        match code {
            ibv_atomic_cap::IBV_ATOMIC_NONE => Self::None,
            ibv_atomic_cap::IBV_ATOMIC_HCA => Self::Hca,
            ibv_atomic_cap::IBV_ATOMIC_GLOB => Self::Global,
            other => Self::Unknown(other),
        }
    }
}

impl fmt::Display for AtomicCapability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => f.write_str("NONE"),
            Self::Hca => f.write_str("HCA"),
            Self::Global => f.write_str("GLOB"),
            Self::Unknown(code) => write!(f, "unknown ({code})"),
        }
    }
}

/// A device's limits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DeviceLimits {
    /// Its atomics.
    pub atomics: AtomicCapability,
    /// READs and atomics that a queue pair answers at once; 0 if the device does not say.
    pub responder_depth: u32,
    /// READs and atomics that a queue pair has outstanding at once; 0 if the device does not say.
    pub initiator_depth: u32,
    /// Work requests of a queue.
    pub work_requests: u32,
    /// Entries of a completion queue.
    pub completions: u32,
    /// Scatter/gather entries of a work request.
    pub gather: u32,
    /// Bytes of one registration.
    pub registration_bytes: u64,
}

impl DeviceLimits {
    /// Whether the device can serve one-sided commits.
    ///
    /// # Errors
    /// [`VerbsError::NoAtomics`] if not.
    pub fn require_atomics(&self, device: &str) -> Result<(), VerbsError> {
        if self.atomics.has_atomics() {
            return Ok(());
        }
        Err(VerbsError::NoAtomics { device: device.to_owned(), capability: self.atomics })
    }
}

/// State of a port.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PortState {
    /// It carries traffic.
    Active,
    /// It does not; the name says why.
    Inactive(&'static str),
}

impl fmt::Display for PortState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Active => "ACTIVE",
            Self::Inactive(name) => name,
        })
    }
}

/// What a port runs over.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LinkLayer {
    /// InfiniBand.
    InfiniBand,
    /// Ethernet: RoCE or iWARP.
    Ethernet,
    /// Something else.
    Other,
}

/// How packets of a GID travel.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum GidKind {
    /// InfiniBand, or RoCE v1: Linux has one name for both.
    InfiniBandOrRoceV1,
    /// RoCE v2: over UDP.
    RoceV2,
    /// Another name.
    Other(String),
}

impl fmt::Display for GidKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::InfiniBandOrRoceV1 => "IB/RoCE v1",
            Self::RoceV2 => "RoCE v2",
            Self::Other(name) => name,
        })
    }
}

/// A GID: 16 bytes, which on RoCE are an IPv6 address, or an IPv4 one mapped into it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Gid(pub [u8; 16]);

impl Gid {
    /// Whether nothing is there.
    pub fn is_zero(self) -> bool {
        self.0 == [0; 16]
    }

    /// Whether it reaches no further than its link (`fe80::/10`).
    pub fn is_link_local(self) -> bool {
        self.0[0] == 0xfe && self.0[1] & 0xc0 == 0x80
    }

    /// The address that it is.
    pub fn address(self) -> IpAddr {
        let address = Ipv6Addr::from(self.0);
        address.to_ipv4_mapped().map_or(IpAddr::V6(address), IpAddr::V4)
    }
}

impl fmt::Display for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Ipv6Addr::from(self.0).fmt(f)
    }
}

/// One entry of a port's GID table.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct GidEntry {
    /// Its place in the table.
    pub index: u32,
    /// The GID.
    pub gid: Gid,
    /// How its packets travel.
    pub kind: GidKind,
    /// The network interface it belongs to.
    pub interface: Option<String>,
}

/// One port of a device.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PortInfo {
    /// Its number, from 1.
    pub number: u8,
    /// Its state.
    pub state: PortState,
    /// What it runs over.
    pub link_layer: LinkLayer,
    /// The MTU in use.
    pub active_mtu: Mtu,
    /// How long its GID table is.
    pub gid_count: u32,
    /// The entries that are not zero.
    pub gids: Vec<GidEntry>,
}

/// One device.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DeviceInfo {
    /// Its name, such as `mlx5_0`.
    pub name: String,
    /// Its limits and ports, or why it can't be used.
    pub details: Result<DeviceDetails, String>,
}

/// What is known of a device that could be opened.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DeviceDetails {
    /// Its limits.
    pub limits: DeviceLimits,
    /// Its ports.
    pub ports: Vec<PortInfo>,
}

/// All devices of this host, in the order in which libibverbs lists them. None is no error.
///
/// # Errors
/// [`VerbsError`] if the libraries are missing or the list can't be had.
pub fn list() -> Result<Vec<DeviceInfo>, VerbsError> {
    let names = DeviceList::open()?.names();
    Ok(names
        .into_iter()
        .map(|name| {
            let details = Context::open(&name).and_then(|context| details(&context));
            DeviceInfo { name, details: details.map_err(|error| error.to_string()) }
        })
        .collect())
}

fn details(context: &Context) -> Result<DeviceDetails, VerbsError> {
    let attributes = context.attributes()?;
    let ports =
        (1..=attributes.phys_port_cnt).map(|number| port(context, number)).collect::<Result<_, _>>()?;
    Ok(DeviceDetails { limits: limits(&attributes), ports })
}

/// Limits out of libibverbs' structure. A negative number is a driver's way to say nothing.
pub(super) fn limits(attributes: &ibv_device_attr) -> DeviceLimits {
    let count = |value: libc::c_int| u32::try_from(value).unwrap_or(0);
    DeviceLimits {
        atomics: AtomicCapability::from_code(attributes.atomic_cap),
        responder_depth: count(attributes.max_qp_rd_atom),
        initiator_depth: count(attributes.max_qp_init_rd_atom),
        work_requests: count(attributes.max_qp_wr),
        completions: count(attributes.max_cqe),
        gather: count(attributes.max_sge),
        registration_bytes: attributes.max_mr_size,
    }
}

fn port(context: &Context, number: u8) -> Result<PortInfo, VerbsError> {
    let attributes = context.port_attributes(number)?;
    let folder = PathBuf::from("/sys/class/infiniband").join(context.name()).join(format!("ports/{number}"));
    let gid_count = u32::try_from(attributes.gid_tbl_len).unwrap_or(0);
    Ok(PortInfo {
        number,
        state: port_state(attributes.state),
        link_layer: link_layer(&attributes),
        active_mtu: active_mtu(&attributes),
        gid_count,
        gids: (0..gid_count).filter_map(|index| gid_entry(&folder, index)).collect(),
    })
}

/// A port's MTU. A code that means nothing is taken for the smallest, which every card can do.
pub(super) fn active_mtu(attributes: &ibv_port_attr) -> Mtu {
    Mtu::from_code(attributes.active_mtu).unwrap_or(Mtu::B256)
}

fn port_state(state: ibv_port_state::Type) -> PortState {
    match state {
        ibv_port_state::IBV_PORT_ACTIVE => PortState::Active,
        ibv_port_state::IBV_PORT_ACTIVE_DEFER => PortState::Inactive("ACTIVE_DEFER"),
        ibv_port_state::IBV_PORT_DOWN => PortState::Inactive("DOWN"),
        ibv_port_state::IBV_PORT_INIT => PortState::Inactive("INIT"),
        ibv_port_state::IBV_PORT_ARMED => PortState::Inactive("ARMED"),
        _ => PortState::Inactive("UNKNOWN"),
    }
}

fn link_layer(attributes: &ibv_port_attr) -> LinkLayer {
    match attributes.link_layer {
        // Unspecified means InfiniBand: drivers older than the field leave it zero.
        0 | 1 => LinkLayer::InfiniBand,
        2 => LinkLayer::Ethernet,
        _ => LinkLayer::Other,
    }
}

/// The kernel shows the table in files. An entry that is zero or can't be read is empty.
fn gid_entry(port: &Path, index: u32) -> Option<GidEntry> {
    let read = |name: &str| fs::read_to_string(port.join(name).join(index.to_string())).ok();
    let gid = Gid(read("gids")?.trim().parse::<Ipv6Addr>().ok()?.octets());
    if gid.is_zero() {
        return None;
    }
    let kind = match read("gid_attrs/types").unwrap_or_default().trim() {
        "RoCE v2" => GidKind::RoceV2,
        "" | "IB/RoCE v1" => GidKind::InfiniBandOrRoceV1,
        other => GidKind::Other(other.to_owned()),
    };
    let interface =
        read("gid_attrs/ndevs").map(|name| name.trim().to_owned()).filter(|name| !name.is_empty());
    Some(GidEntry { index, gid, kind, interface })
}

/// The devices as a table for people: one line a port, one a GID.
pub fn table(devices: &[DeviceInfo]) -> String {
    use fmt::Write;
    if devices.is_empty() {
        return "no RDMA device: none".to_owned();
    }
    let mut text = String::new();
    for device in devices {
        let details = match &device.details {
            Ok(details) => details,
            Err(problem) => {
                let _ = writeln!(text, "{}: unusable: {problem}", device.name);
                continue;
            }
        };
        for port in &details.ports {
            let _ = writeln!(
                text,
                "{} port {}: {}, {:?}, MTU {}, atomics {}, {} GIDs:",
                device.name,
                port.number,
                port.state,
                port.link_layer,
                port.active_mtu.bytes(),
                details.limits.atomics,
                port.gid_count
            );
            for entry in &port.gids {
                let interface = entry.interface.as_deref().unwrap_or("-");
                let _ = writeln!(text, "  {:>3}  {}  {}  {interface}", entry.index, entry.gid, entry.kind);
            }
        }
    }
    text.truncate(text.trim_end().len());
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attributes(atomic_cap: u32) -> ibv_device_attr {
        // SAFETY: a structure of numbers, for which zero is a value.
        let mut attributes: ibv_device_attr = unsafe { std::mem::zeroed() };
        attributes.atomic_cap = atomic_cap;
        attributes
    }

    /// Both kinds of atomics will do; none, and what nobody knows, will not.
    #[test]
    fn cards_with_any_atomics_are_taken_and_others_refused_with_a_reason() {
        use ibv_atomic_cap::*;
        for code in [IBV_ATOMIC_HCA, IBV_ATOMIC_GLOB] {
            limits(&attributes(code)).require_atomics("mlx5_0").unwrap();
        }
        for code in [IBV_ATOMIC_NONE, 77] {
            let text = limits(&attributes(code)).require_atomics("mlx5_0").unwrap_err().to_string();
            assert!(text.contains("mlx5_0") && text.contains("two-sided") && text.contains("tcp"), "{text}");
        }
    }

    #[test]
    fn negative_limits_are_taken_as_not_said() {
        let mut attributes = attributes(0);
        attributes.max_qp_rd_atom = -1;
        attributes.max_qp_init_rd_atom = 16;
        let limits = limits(&attributes);
        assert_eq!((limits.responder_depth, limits.initiator_depth), (0, 16));
    }

    #[test]
    fn gids_know_what_they_are() {
        let gid = |text: &str| Gid(text.parse::<Ipv6Addr>().unwrap().octets());
        assert!(gid("::").is_zero() && gid("fe80::1").is_link_local() && gid("febf::1").is_link_local());
        assert!(!gid("fec0::1").is_link_local() && !gid("::ffff:10.0.0.1").is_link_local());
        assert_eq!(gid("::ffff:10.0.0.1").address(), IpAddr::from([10, 0, 0, 1]));
        assert!(gid("2001:db8::1").address().is_ipv6());
    }

    /// A host may have no device, no kernel module and no library; each is told in words, none ends the process.
    #[test]
    fn looking_is_safe_on_any_host() {
        match list() {
            Ok(devices) => println!("{}", table(&devices)),
            Err(error) => assert!(error.to_string().contains("apt-get install"), "{error}"),
        }
        assert!(table(&[]).contains("none"));
        let bad = DeviceInfo { name: "bad0".into(), details: Err("permission denied".into()) };
        assert!(table(&[bad]).contains("bad0: unusable: permission denied"));
    }
}
