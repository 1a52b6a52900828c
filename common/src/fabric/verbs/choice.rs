//! Which device, port and GID to use.
//!
//! Always true: what is chosen can be reached by its address, because librdmacm finds devices by address and
//! nothing else. A GID that is zero, link-local or outside the table is never chosen, by default or by hand; whoever
//! asks for one gets the table to choose from.
//!
//! Pure: the tables come in as data, so every card can be tried without having it.

use std::net::IpAddr;

use super::device::{DeviceDetails, DeviceInfo, GidEntry, GidKind, LinkLayer, PortInfo, PortState, table};
use super::negotiate::Mtu;
use crate::fabric::DeviceChoice;

/// What to use.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Chosen {
    /// The device.
    pub device: String,
    /// Its port.
    pub port: u8,
    /// The entry of its GID table; none where addresses are not in the table (InfiniBand, iWARP).
    pub gid_index: Option<u32>,
    /// The address to bind to.
    pub address: IpAddr,
    /// The port's MTU.
    pub mtu: Mtu,
}

/// Nothing fits.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{problem}; found:\n{table}")]
pub struct ChoiceError {
    /// What is wrong.
    pub problem: String,
    /// What there is.
    pub table: String,
}

/// Chooses among `devices`. What `wanted` leaves open is found; with an `address`, only what carries that fits.
///
/// Best is a RoCE v2 GID that is an IPv4 address, then RoCE v2 with IPv6, then RoCE v1. The first of the best wins.
///
/// # Errors
/// [`ChoiceError`] with the table.
pub fn choose(
    devices: &[DeviceInfo],
    wanted: &DeviceChoice,
    address: Option<IpAddr>,
) -> Result<Chosen, ChoiceError> {
    let refuse = |problem: String| ChoiceError { problem, table: table(devices) };
    if devices.is_empty() {
        return Err(refuse(match &wanted.device {
            None => "this host has no RDMA device".to_owned(),
            Some(name) => format!("there is no RDMA device {name}"),
        }));
    }
    let ports = fitting_ports(devices, wanted).map_err(refuse)?;
    if let Some(index) = wanted.gid_index.map(u32::from) {
        // Indices differ from port to port, so the first port that has a usable entry there is meant.
        let mut problem = None;
        for (device, port) in &ports {
            match entry_by_hand(device, port, index, address) {
                Ok(entry) => return Ok(chosen(device, port, entry)),
                Err(reason) => problem = problem.or(Some(reason)),
            }
        }
        return Err(refuse(problem.unwrap_or_else(|| format!("no port has a GID {index}"))));
    }
    let best = ports
        .iter()
        .flat_map(|(device, port)| port.gids.iter().map(move |entry| (*device, *port, entry)))
        .filter(|(_, port, entry)| rank(port, entry).is_some())
        .filter(|(.., entry)| address.is_none_or(|address| entry.gid.address() == address))
        .min_by_key(|(_, port, entry)| rank(port, entry));
    if let Some((device, port, entry)) = best {
        return Ok(chosen(device, port, entry));
    }
    // InfiniBand and iWARP have addresses too, but not in the table: librdmacm then says which device it is.
    let off_table = ports.iter().find(|(_, port)| !has_addresses(port));
    match (off_table, address) {
        (Some((device, port)), Some(address)) => Ok(Chosen {
            device: (*device).to_owned(),
            port: port.number,
            gid_index: None,
            address,
            mtu: port.active_mtu,
        }),
        (Some((device, port)), None) => Err(refuse(format!(
            "{device} port {} has no address in its GID table, so the address to listen on or to connect from must \
             be given (for InfiniBand, that of its IPoIB interface)",
            port.number
        ))),
        (None, Some(address)) => Err(refuse(format!("no active port carries the address {address}"))),
        (None, None) => {
            Err(refuse("no active port has a GID that is an address beyond its own link".to_owned()))
        }
    }
}

/// Ports that `wanted` allows and that are active, with their devices' names.
fn fitting_ports<'a>(
    devices: &'a [DeviceInfo],
    wanted: &DeviceChoice,
) -> Result<Vec<(&'a str, &'a PortInfo)>, String> {
    let named: Vec<&DeviceInfo> = devices
        .iter()
        .filter(|device| wanted.device.as_ref().is_none_or(|name| *name == device.name))
        .collect();
    if let (Some(name), []) = (&wanted.device, named.as_slice()) {
        return Err(format!("there is no RDMA device {name}"));
    }
    let opened: Vec<(&str, &DeviceDetails)> = named
        .iter()
        .filter_map(|device| Some((device.name.as_str(), device.details.as_ref().ok()?)))
        .collect();
    if opened.is_empty() {
        return Err("no device can be opened".to_owned());
    }
    let mut ports = Vec::new();
    for (name, details) in opened {
        ports.extend(details.ports.iter().map(|port| (name, port)));
    }
    if let Some(number) = wanted.port {
        ports.retain(|(_, port)| port.number == number);
        if ports.is_empty() {
            return Err(format!("there is no port {number} (ports count from 1)"));
        }
    }
    let down = ports.first().map(|(name, port)| format!("{name} port {} is {}", port.number, port.state));
    ports.retain(|(_, port)| port.state == PortState::Active);
    match (ports.is_empty(), down) {
        (true, Some(down)) => Err(format!("no port is active: {down}")),
        (true, None) => Err("no device has a port".to_owned()),
        (false, _) => Ok(ports),
    }
}

/// The entry that was asked for, if it can be used.
fn entry_by_hand<'a>(
    device: &str,
    port: &'a PortInfo,
    index: u32,
    address: Option<IpAddr>,
) -> Result<&'a GidEntry, String> {
    let place = format!("GID {index} of {device} port {}", port.number);
    if index >= port.gid_count {
        return Err(format!("{place} is outside its table of {} entries", port.gid_count));
    }
    let Some(entry) = port.gids.iter().find(|entry| entry.index == index && !entry.gid.is_zero()) else {
        return Err(format!("{place} is zero: there is no address behind it"));
    };
    if entry.gid.is_link_local() {
        return Err(format!(
            "{place} is link-local ({}): it is no address that peers could reach",
            entry.gid
        ));
    }
    if rank(port, entry).is_none() {
        return Err(format!("{place} is not an IP address; librdmacm finds devices by IP address only"));
    }
    if let Some(address) = address.filter(|address| entry.gid.address() != *address) {
        return Err(format!("{place} is {}, not {address}", entry.gid.address()));
    }
    Ok(entry)
}

/// How good an entry is, smaller is better; none if it can't be used.
fn rank(port: &PortInfo, entry: &GidEntry) -> Option<u8> {
    if entry.gid.is_zero() || entry.gid.is_link_local() || !has_addresses(port) {
        return None;
    }
    let v6 = u8::from(entry.gid.address().is_ipv6());
    match entry.kind {
        GidKind::RoceV2 => Some(v6),
        GidKind::InfiniBandOrRoceV1 => Some(2 + v6),
        GidKind::Other(_) => None,
    }
}

/// Whether a port's GIDs are addresses: so it is on RoCE. InfiniBand has fabric-wide numbers there, iWARP a single
/// GID made of a MAC address, which is no mapped IPv4 address and starts with the MAC.
fn has_addresses(port: &PortInfo) -> bool {
    port.link_layer == LinkLayer::Ethernet && port.gid_count > 1
}

fn chosen(device: &str, port: &PortInfo, entry: &GidEntry) -> Chosen {
    Chosen {
        device: device.to_owned(),
        port: port.number,
        gid_index: Some(entry.index),
        address: entry.gid.address(),
        mtu: port.active_mtu,
    }
}

#[cfg(test)]
mod tests {
    use super::super::device::{AtomicCapability, DeviceLimits, Gid};
    use super::*;

    fn gid(text: &str) -> Gid {
        Gid(text.parse::<std::net::Ipv6Addr>().unwrap().octets())
    }

    fn port(number: u8, gids: &[(u32, &str, GidKind)]) -> PortInfo {
        let gids = gids.iter().map(|(index, text, kind)| GidEntry {
            index: *index,
            gid: gid(text),
            kind: kind.clone(),
            interface: Some("eth0".into()),
        });
        PortInfo {
            number,
            state: PortState::Active,
            link_layer: LinkLayer::Ethernet,
            active_mtu: Mtu::B1024,
            gid_count: 16,
            gids: gids.collect(),
        }
    }

    fn device(name: &str, ports: Vec<PortInfo>) -> DeviceInfo {
        let limits = DeviceLimits {
            atomics: AtomicCapability::Hca,
            responder_depth: 16,
            initiator_depth: 16,
            work_requests: 1024,
            completions: 4096,
            gather: 4,
            registration_bytes: u64::MAX,
        };
        DeviceInfo { name: name.into(), details: Ok(DeviceDetails { limits, ports }) }
    }

    /// Entry 0 and 1 link-local, 2 zero, 3 the address: the table on which others took entry 0 and timed out.
    fn usual() -> Vec<DeviceInfo> {
        let gids = [
            (0, "fe80::5054:ff:fe00:1", GidKind::InfiniBandOrRoceV1),
            (1, "fe80::5054:ff:fe00:1", GidKind::RoceV2),
            (2, "::", GidKind::RoceV2),
            (3, "::ffff:10.0.0.1", GidKind::RoceV2),
        ];
        vec![device("rxe0", vec![port(1, &gids)])]
    }

    fn by_hand(gid_index: u8) -> DeviceChoice {
        DeviceChoice { gid_index: Some(gid_index), ..DeviceChoice::default() }
    }

    #[test]
    fn the_address_is_chosen_and_not_entry_zero() {
        let chosen = choose(&usual(), &DeviceChoice::default(), None).unwrap();
        assert_eq!((chosen.gid_index, chosen.address), (Some(3), "10.0.0.1".parse().unwrap()));
        assert_eq!(choose(&usual(), &by_hand(3), None).unwrap(), chosen);
    }

    #[test]
    fn entries_that_reach_nobody_are_refused_with_the_table() {
        for (index, word) in [(0, "link-local"), (1, "link-local"), (2, "zero"), (99, "outside")] {
            let text = choose(&usual(), &by_hand(index), None).unwrap_err().to_string();
            assert!(text.contains(word) && text.contains("::ffff:10.0.0.1  RoCE v2"), "{index}: {text}");
        }
    }

    #[test]
    fn version_two_and_ipv4_are_preferred() {
        let gids = [
            (0, "::ffff:10.0.0.1", GidKind::InfiniBandOrRoceV1),
            (1, "2001:db8::1", GidKind::RoceV2),
            (2, "::ffff:10.0.0.1", GidKind::RoceV2),
        ];
        let devices = [device("mlx5_0", vec![port(1, &gids)])];
        let index = |take: usize| {
            let devices = [device("mlx5_0", vec![port(1, &gids[..take])])];
            choose(&devices, &DeviceChoice::default(), None).unwrap().gid_index
        };
        assert_eq!((index(3), index(2), index(1)), (Some(2), Some(1), Some(0)));
        let at = choose(&devices, &DeviceChoice::default(), Some("2001:db8::1".parse().unwrap())).unwrap();
        assert_eq!(at.gid_index, Some(1));
        let text = choose(&devices, &DeviceChoice::default(), Some("10.9.9.9".parse().unwrap()))
            .unwrap_err()
            .to_string();
        assert!(text.contains("10.9.9.9"), "{text}");
    }

    #[test]
    fn a_bad_device_hides_no_good_one_and_none_is_said_as_none() {
        let mut devices = usual();
        devices.insert(0, DeviceInfo { name: "bad0".into(), details: Err("permission denied".into()) });
        assert_eq!(choose(&devices, &DeviceChoice::default(), None).unwrap().device, "rxe0");
        let named = |name: &str| DeviceChoice { device: Some(name.into()), ..DeviceChoice::default() };
        let text = choose(&devices, &named("bad0"), None).unwrap_err().to_string();
        assert!(text.contains("permission denied"), "{text}");
        let text = choose(&devices, &named("nosuch"), None).unwrap_err().to_string();
        assert!(text.contains("nosuch") && text.contains("rxe0 port 1"), "{text}");
        let text = choose(&[], &named("nosuch"), None).unwrap_err().to_string();
        assert!(text.contains("none"), "{text}");
    }

    #[test]
    fn ports_that_are_down_are_passed_over() {
        let gids = [(1, "::ffff:10.0.0.1", GidKind::RoceV2)];
        let mut down = port(1, &gids);
        down.state = PortState::Inactive("DOWN");
        let second = port(2, &[(1, "::ffff:10.0.1.1", GidKind::RoceV2)]);
        let devices = [device("mlx5_0", vec![down, second])];
        assert_eq!(choose(&devices, &DeviceChoice::default(), None).unwrap().port, 2);
        let wanted = |port| DeviceChoice { port: Some(port), ..DeviceChoice::default() };
        let text = choose(&devices, &wanted(1), None).unwrap_err().to_string();
        assert!(text.contains("port 1 is DOWN"), "{text}");
        assert!(choose(&devices, &wanted(3), None).unwrap_err().to_string().contains("no port 3"));
    }

    #[test]
    fn infiniband_wants_its_address_told() {
        let mut infiniband = port(1, &[(0, "fe80::1", GidKind::InfiniBandOrRoceV1)]);
        infiniband.link_layer = LinkLayer::InfiniBand;
        let devices = [device("mlx5_0", vec![infiniband])];
        let text = choose(&devices, &DeviceChoice::default(), None).unwrap_err().to_string();
        assert!(text.contains("IPoIB"), "{text}");
        let address = "10.0.0.1".parse().unwrap();
        let chosen = choose(&devices, &DeviceChoice::default(), Some(address)).unwrap();
        assert_eq!((chosen.gid_index, chosen.address), (None, address));
    }
}
