//! The address that is published to clients.
//!
//! Always true: it names a concrete host and the real port. A wildcard to listen at is never published, nor a
//! link-local address, which means nothing without a scope.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};

/// No address can be published.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "listening at {listen}, but no address of this host is known to publish; name one with --advertise HOST"
)]
pub struct EndpointError {
    listen: SocketAddr,
}

/// The endpoint of a server that listens at `listen` (its real port): `sidestep://HOST:PORT`.
///
/// # Errors
/// If `listen` is a wildcard, nothing was advertised, and this host has no address.
pub fn endpoint(listen: SocketAddr, advertise: Option<&str>) -> Result<String, EndpointError> {
    endpoint_of(listen, advertise, &own_addresses(listen.ip()))
}

fn endpoint_of(listen: SocketAddr, advertise: Option<&str>, own: &[IpAddr]) -> Result<String, EndpointError> {
    let host = match advertise {
        Some(host) => match host.parse::<IpAddr>() {
            Ok(address) => bracketed(address),
            Err(_) => host.to_owned(),
        },
        None if !listen.ip().is_unspecified() => bracketed(listen.ip()),
        None => bracketed(pick(listen.is_ipv4(), own).ok_or(EndpointError { listen })?),
    };
    Ok(format!("sidestep://{host}:{}", listen.port()))
}

fn bracketed(address: IpAddr) -> String {
    match address {
        IpAddr::V4(address) => address.to_string(),
        IpAddr::V6(address) => format!("[{address}]"),
    }
}

/// The first address that others can reach, else loopback: a host without a network has only local clients.
/// A server at `0.0.0.0` isn't reached by IPv6; one at `[::]` is by both.
fn pick(only_v4: bool, own: &[IpAddr]) -> Option<IpAddr> {
    let is_usable = |address: &&IpAddr| match address {
        IpAddr::V4(address) => !address.is_unspecified() && !address.is_link_local(),
        IpAddr::V6(address) => !only_v4 && !address.is_unspecified() && !address.is_unicast_link_local(),
    };
    let mut usable = own.iter().filter(is_usable);
    usable.clone().find(|address| !address.is_loopback()).or_else(|| usable.next()).copied()
}

/// This host's addresses, the one that it would use to reach the world first.
fn own_addresses(listen: IpAddr) -> Vec<IpAddr> {
    if !listen.is_unspecified() {
        return Vec::new();
    }
    let mut addresses = Vec::new();
    // Connecting a datagram socket sends nothing; it only asks the routing table. The targets are addresses
    // kept for documentation (RFC 5737, RFC 3849).
    let targets = [
        (SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)), SocketAddr::from(([192, 0, 2, 1], 9))),
        (
            SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0)),
            SocketAddr::from((Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1), 9)),
        ),
    ];
    for (from, to) in targets {
        let routed = UdpSocket::bind(from).and_then(|socket| {
            socket.connect(to)?;
            socket.local_addr()
        });
        addresses.extend(routed.ok().map(|address| address.ip()));
    }
    let interfaces = if_addrs::get_if_addrs().unwrap_or_default();
    addresses.extend(interfaces.iter().map(|interface| interface.ip()));
    addresses
}

#[cfg(test)]
mod tests {
    use super::*;

    fn published(listen: &str, advertise: Option<&str>, own: &[&str]) -> Result<String, EndpointError> {
        let own: Vec<IpAddr> = own.iter().map(|address| address.parse().unwrap()).collect();
        endpoint_of(listen.parse().unwrap(), advertise, &own)
    }

    #[test]
    fn a_concrete_host_is_published() {
        let own = ["127.0.0.1", "169.254.3.3", "::1", "fe80::1", "10.0.0.5", "fd00::5"];
        for (listen, advertise, endpoint) in [
            ("127.0.0.1:7480", None, "sidestep://127.0.0.1:7480"),
            ("[::1]:7480", None, "sidestep://[::1]:7480"),
            ("0.0.0.0:41000", None, "sidestep://10.0.0.5:41000"),
            ("[::]:41000", None, "sidestep://10.0.0.5:41000"),
            ("0.0.0.0:7480", Some("node-1"), "sidestep://node-1:7480"),
            ("0.0.0.0:7480", Some("fd00::9"), "sidestep://[fd00::9]:7480"),
            ("0.0.0.0:7480", Some("[fd00::9]"), "sidestep://[fd00::9]:7480"),
        ] {
            assert_eq!(published(listen, advertise, &own).as_deref(), Ok(endpoint), "{listen}");
        }
        assert_eq!(published("[::]:1", None, &["fe80::1", "fd00::5"]).unwrap(), "sidestep://[fd00::5]:1");
        assert_eq!(published("0.0.0.0:1", None, &["127.0.0.1"]).unwrap(), "sidestep://127.0.0.1:1");
    }

    #[test]
    fn without_any_address_the_operator_is_asked() {
        for own in [&[][..], &["fe80::1"], &["169.254.1.1", "0.0.0.0"]] {
            let error = published("0.0.0.0:7480", None, own).unwrap_err().to_string();
            assert!(error.contains("--advertise"), "{error}");
        }
    }

    /// On whatever host this test runs: never a wildcard.
    #[test]
    fn this_host_publishes_no_wildcard() {
        for listen in ["0.0.0.0:1234", "[::]:1234"] {
            if let Ok(endpoint) = endpoint(listen.parse().unwrap(), None) {
                assert!(endpoint.ends_with(":1234"), "{endpoint}");
                assert!(!endpoint.contains("0.0.0.0") && !endpoint.contains("[::]"), "{endpoint}");
            }
        }
    }
}
