//! Where a server is.
//!
//! Always true: an [`Endpoint`] names a host and port, or the path of a Unix socket; `FromStr` and `Display` are
//! inverse.
//!
//! ```text
//! sidestep://host[:port][?fabric=verbs|shm|tcp]      port 7480 if not given; [::1]:7480 for IPv6
//! host[:port]                                        the same
//! unix:/path/of/socket                               a server on this host
//! ```

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use sidestep_common::fabric::FabricKind;

/// The control port if none is given.
pub const DEFAULT_PORT: u16 = 7480;

/// Where a server is, and over which fabric to go there.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Endpoint {
    /// The place.
    pub place: Place,
    /// The only fabric to use; none leaves the choice to client and server.
    pub fabric: Option<FabricKind>,
}

/// The place of a server.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Place {
    /// A host's name or address, and the control port.
    Tcp(String, u16),
    /// A Unix socket.
    Unix(PathBuf),
}

/// The text is no endpoint.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "`{text}` is no endpoint: {reason} (expected sidestep://HOST[:PORT][?fabric=verbs|shm|tcp] or unix:PATH)"
)]
pub struct EndpointError {
    /// As given.
    pub text: String,
    /// What is wrong.
    pub reason: &'static str,
}

impl FromStr for Endpoint {
    type Err = EndpointError;

    fn from_str(text: &str) -> Result<Self, EndpointError> {
        let error = |reason| EndpointError { text: text.to_owned(), reason };
        let (place, query) = text.split_once('?').map_or((text, None), |(place, query)| (place, Some(query)));
        let fabric = match query {
            None => None,
            Some("fabric=verbs") => Some(FabricKind::Verbs),
            Some("fabric=shm") => Some(FabricKind::Shm),
            Some("fabric=tcp") => Some(FabricKind::Tcp),
            Some("fabric=auto") => None,
            Some(_) => return Err(error("only `fabric` can be set, to verbs, shm, tcp or auto")),
        };
        if let Some(path) = place.strip_prefix("unix:") {
            let path = path.strip_prefix("//").unwrap_or(path);
            if path.is_empty() {
                return Err(error("the path is missing"));
            }
            return Ok(Self { place: Place::Unix(path.into()), fabric });
        }
        let place = match place.split_once("://") {
            Some(("sidestep", rest)) => rest.strip_suffix('/').unwrap_or(rest),
            Some(_) => return Err(error("unknown scheme")),
            None => place,
        };
        let (host, port) = if let Some(rest) = place.strip_prefix('[') {
            let (host, rest) = rest.split_once(']').ok_or_else(|| error("`[` without `]`"))?;
            match rest.strip_prefix(':') {
                Some(port) => (host, Some(port)),
                None if rest.is_empty() => (host, None),
                None => return Err(error("something between `]` and the port")),
            }
        } else {
            match place.split_once(':') {
                Some((_, port)) if port.contains(':') => {
                    return Err(error("an IPv6 address needs brackets, as in [::1]:7480"));
                }
                Some((host, port)) => (host, Some(port)),
                None => (place, None),
            }
        };
        if host.is_empty() || host.contains(char::is_whitespace) {
            return Err(error("the host is missing"));
        }
        let port = match port {
            None => DEFAULT_PORT,
            Some(port) => match port.parse() {
                Ok(0) | Err(_) => return Err(error("the port must be 1 to 65535")),
                Ok(port) => port,
            },
        };
        Ok(Self { place: Place::Tcp(host.to_owned(), port), fabric })
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.place {
            Place::Tcp(host, port) if host.contains(':') => write!(f, "sidestep://[{host}]:{port}")?,
            Place::Tcp(host, port) => write!(f, "sidestep://{host}:{port}")?,
            Place::Unix(path) => write!(f, "unix:{}", path.display())?,
        }
        match self.fabric {
            None => Ok(()),
            Some(fabric) => write!(f, "?fabric={fabric}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_parse_and_print() {
        for (text, printed) in [
            ("sidestep://node1:7000", "sidestep://node1:7000"),
            ("node1", "sidestep://node1:7480"),
            ("127.0.0.1:1", "sidestep://127.0.0.1:1"),
            ("[::1]:7480", "sidestep://[::1]:7480"),
            ("sidestep://[fe80::1]/?fabric=tcp", "sidestep://[fe80::1]:7480?fabric=tcp"),
            ("unix:/run/s.sock", "unix:/run/s.sock"),
            ("unix:///run/s.sock?fabric=shm", "unix:/run/s.sock?fabric=shm"),
        ] {
            let endpoint: Endpoint = text.parse().unwrap();
            assert_eq!(endpoint.to_string(), printed);
            assert_eq!(printed.parse::<Endpoint>().unwrap(), endpoint);
        }
    }

    #[test]
    fn what_is_no_endpoint_is_refused() {
        for text in [
            "",
            "http://x",
            "::1:7480",
            "[::1",
            "[::1]x",
            "a:0",
            "a:65536",
            "a:b",
            ":7480",
            "unix:",
            "a?fabric=x",
            "a b",
        ] {
            assert!(text.parse::<Endpoint>().is_err(), "{text}");
        }
    }
}
