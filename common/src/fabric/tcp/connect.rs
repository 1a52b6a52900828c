//! Joining the data path over TCP: the first bytes of a data connection.
//!
//! Always true: nothing is waited for beyond the deadline, and nothing is left behind by a failure.
//!
//! ```text
//!              0       1       2       3       4       5       6       7
//! client     │ preamble, kind 'D'                                            │
//!            │ ticket                                                        │
//!            │                                                               │
//! mem. node  │ preamble, kind 'D'                                            │
//!            │ status│ length│ reason, `length` bytes of UTF-8 ...
//! ```
//!
//! Status 0 accepts the ticket; any other refuses it, gives the reason and ends the connection.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

use super::client::TcpFabric;
use super::socket;
use crate::fabric::{ConnectError, ConnectOptions, FabricKind, Ticket};
use crate::wire::{Preamble, PreambleKind};

/// Bytes that a client sends first.
pub(super) const GREETING_BYTES: usize = Preamble::BYTES + size_of::<Ticket>();
/// Bytes of an answer without its reason.
pub(super) const ANSWER_BYTES: usize = Preamble::BYTES + 2;

/// The answer of a memory node: accepted, or a reason for people.
pub(super) fn encode_answer(refusal: Option<&str>) -> Vec<u8> {
    let mut bytes = Preamble(PreambleKind::Data).encode().to_vec();
    let reason = refusal.unwrap_or("").as_bytes();
    let reason = &reason[..reason.len().min(u8::MAX.into())];
    bytes.extend([u8::from(refusal.is_some()), reason.len() as u8]);
    bytes.extend_from_slice(reason);
    bytes
}

/// Joins a session's data path: connects to `host` (or `options.peer`) at `port` and shows the ticket.
///
/// # Errors
/// [`ConnectError`], also when `options.deadline` has passed.
pub fn connect(
    host: Option<&str>,
    port: u16,
    ticket: Ticket,
    rkey: u32,
    options: &ConnectOptions,
) -> Result<TcpFabric, ConnectError> {
    let mut stream = open(host, port, options)?;
    socket::set_options(&stream).map_err(failed("setting the socket's options"))?;
    let doing = "reading the socket's addresses";
    let (local, peer) =
        (stream.local_addr().map_err(failed(doing))?, stream.peer_addr().map_err(failed(doing))?);
    show_ticket(&mut stream, ticket, options.deadline)?;
    stream.set_nonblocking(true).map_err(failed("making the socket non-blocking"))?;
    let description =
        format!("tcp {local} to {peer}, at most {} verbs in flight", options.verbs_in_flight_max);
    Ok(TcpFabric::new(stream, description, rkey, options))
}

/// Shows the ticket on a fresh connection and waits for the answer to it.
pub(super) fn show_ticket(
    stream: &mut TcpStream,
    ticket: Ticket,
    deadline: Instant,
) -> Result<(), ConnectError> {
    let mut greeting = [0; GREETING_BYTES];
    greeting[..Preamble::BYTES].copy_from_slice(&Preamble(PreambleKind::Data).encode());
    greeting[Preamble::BYTES..].copy_from_slice(&ticket.0);
    let doing = "showing the ticket";
    stream.set_write_timeout(Some(time_left(deadline, doing)?)).map_err(failed(doing))?;
    stream.write_all(&greeting).map_err(failed(doing))?;

    let mut answer = [0; ANSWER_BYTES];
    read_until(stream, &mut answer, deadline)?;
    let mut preamble = [0; Preamble::BYTES];
    preamble.copy_from_slice(&answer[..Preamble::BYTES]);
    let reason = match Preamble::parse(preamble) {
        Ok(Preamble(PreambleKind::Data)) => None,
        Ok(Preamble(PreambleKind::Control)) => Some("the peer answers for control, not for data".into()),
        Err(error) => Some(error.to_string()),
    };
    if let Some(reason) = reason {
        return Err(ConnectError::Unavailable { kind: FabricKind::Tcp, reason });
    }
    if answer[Preamble::BYTES] != 0 {
        let mut reason = vec![0; answer[Preamble::BYTES + 1].into()];
        read_until(stream, &mut reason, deadline)?;
        let reason = String::from_utf8_lossy(&reason).into_owned();
        return Err(ConnectError::Refused { kind: FabricKind::Tcp, reason });
    }
    Ok(())
}

/// Connects to the first address that answers.
fn open(host: Option<&str>, port: u16, options: &ConnectOptions) -> Result<TcpStream, ConnectError> {
    let doing = "connecting to the memory node";
    let mut last = io::Error::new(ErrorKind::NotFound, "the host has no address");
    let mut addresses = addresses(host, port, options.peer)?;
    // One address that swallows packets must not use up the time of the others.
    while let Some(address) = addresses.next() {
        let left = time_left(options.deadline, doing)? / (1 + addresses.len() as u32);
        match TcpStream::connect_timeout(&address, left) {
            Ok(stream) => return Ok(stream),
            Err(error) => last = io::Error::new(error.kind(), format!("{address}: {error}")),
        }
    }
    Err(failed(doing)(last))
}

fn addresses(
    host: Option<&str>,
    port: u16,
    peer: Option<IpAddr>,
) -> Result<std::vec::IntoIter<SocketAddr>, ConnectError> {
    let Some(host) = host else {
        let Some(peer) = peer else {
            let reason =
                "the memory node names no host, and the control channel has no address to take instead";
            return Err(ConnectError::Unavailable { kind: FabricKind::Tcp, reason: reason.into() });
        };
        return Ok(vec![SocketAddr::new(peer, port)].into_iter());
    };
    let bare = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(host);
    let found = (bare, port).to_socket_addrs();
    let named = |error: io::Error| io::Error::new(error.kind(), format!("{host:?}: {error}"));
    found.map_err(|error| failed("finding the memory node's address")(named(error)))
}

/// Fills `into`, however slowly it comes, but not beyond the deadline.
fn read_until(stream: &mut TcpStream, into: &mut [u8], deadline: Instant) -> Result<(), ConnectError> {
    let doing = "waiting for the memory node's answer";
    let mut filled = 0;
    while filled < into.len() {
        stream.set_read_timeout(Some(time_left(deadline, doing)?)).map_err(failed(doing))?;
        match stream.read(&mut into[filled..]) {
            Ok(0) => {
                let closed =
                    io::Error::new(ErrorKind::UnexpectedEof, "the memory node closed the connection");
                return Err(failed(doing)(closed));
            }
            Ok(count) => filled += count,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(failed(doing)(error)),
        }
    }
    Ok(())
}

fn time_left(deadline: Instant, doing: &'static str) -> Result<Duration, ConnectError> {
    match deadline.saturating_duration_since(Instant::now()) {
        Duration::ZERO => Err(ConnectError::Timeout { kind: FabricKind::Tcp, doing }),
        left => Ok(left),
    }
}

fn failed(doing: &'static str) -> impl Fn(io::Error) -> ConnectError {
    move |source| match source.kind() {
        ErrorKind::WouldBlock | ErrorKind::TimedOut => ConnectError::Timeout { kind: FabricKind::Tcp, doing },
        _ => ConnectError::Io { kind: FabricKind::Tcp, doing, source },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes that a released peer sends. A change here is a change of the protocol's version.
    #[test]
    fn golden_bytes() {
        assert_eq!(encode_answer(None), b"SDSTEPD\x03\0\0");
        assert_eq!(encode_answer(Some("no")), b"SDSTEPD\x03\x01\x02no");
        assert_eq!(encode_answer(Some(&"n".repeat(300))).len(), ANSWER_BYTES + 255);
    }
}
