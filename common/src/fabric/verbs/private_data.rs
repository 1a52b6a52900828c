//! The bytes that travel with a connection request, its acceptance and its refusal.
//!
//! Always true: a request is judged by its first bytes before anything is made for it, and what can't be read is
//! refused, never guessed at. Numbers are little-endian. librdmacm leaves 56 bytes to a request and pads what is
//! shorter with zeros, so bytes behind the fields are ignored.
//!
//! ```text
//!          0        4      6     7     8                       24
//! request  | "SDSV" | ver  | mtu | 0   | ticket                |
//! accepted | "SDSV" | ver  | mtu | depth |
//! refused  | "SDSV" | ver  | why | 0   |
//! ```

use super::negotiate::Mtu;
use crate::fabric::Ticket;

const MAGIC: [u8; 4] = *b"SDSV";
/// Raised with every change of these bytes.
const VERSION: u16 = 1;

/// Bytes of a request.
pub(super) const REQUEST_BYTES: usize = 24;
/// Bytes of an answer, either kind.
pub(super) const ANSWER_BYTES: usize = 8;

/// A client asks to join.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Request {
    /// The largest MTU that it can do on the way.
    pub(super) mtu: Mtu,
    /// Its ticket.
    pub(super) ticket: Ticket,
}

/// The memory node takes it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Accepted {
    /// The MTU of both.
    pub(super) mtu: Mtu,
    /// Outstanding READs and atomics that it answers.
    pub(super) depth: u8,
}

/// Why a request is refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Refusal {
    /// It is not one of ours, or cut short.
    Malformed = 1,
    /// It has another version.
    Version = 2,
    /// Its ticket was never given, was used, or is void.
    Ticket = 3,
    /// It came in over another device than the region is registered with.
    Device = 4,
    /// The memory node could not make a queue pair.
    Resources = 5,
}

impl Refusal {
    const ALL: [Self; 5] = [Self::Malformed, Self::Version, Self::Ticket, Self::Device, Self::Resources];

    /// For people.
    pub(super) fn text(self) -> &'static str {
        match self {
            Self::Malformed => "the request was not understood",
            Self::Version => "the two sides speak different versions of the connection request",
            Self::Ticket => "the ticket is not valid: it was used before, or its session was fenced",
            Self::Device => "the request came in over a device that the region is not registered with",
            Self::Resources => "the memory node could not make a queue pair",
        }
    }
}

fn head(kind: u8, last: u8) -> [u8; ANSWER_BYTES] {
    let mut bytes = [0; ANSWER_BYTES];
    bytes[..4].copy_from_slice(&MAGIC);
    bytes[4..6].copy_from_slice(&VERSION.to_le_bytes());
    bytes[6..].copy_from_slice(&[kind, last]);
    bytes
}

/// Magic, then the version, then the rest.
fn parse_head(bytes: &[u8]) -> Result<[u8; 2], Refusal> {
    let head = bytes.first_chunk::<ANSWER_BYTES>().ok_or(Refusal::Malformed)?;
    let [m0, m1, m2, m3, v0, v1, kind, last] = *head;
    if [m0, m1, m2, m3] != MAGIC {
        return Err(Refusal::Malformed);
    }
    if u16::from_le_bytes([v0, v1]) != VERSION {
        return Err(Refusal::Version);
    }
    Ok([kind, last])
}

impl Request {
    /// Its bytes.
    pub(super) fn encode(&self) -> [u8; REQUEST_BYTES] {
        let mut bytes = [0; REQUEST_BYTES];
        bytes[..ANSWER_BYTES].copy_from_slice(&head(self.mtu.code() as u8, 0));
        bytes[ANSWER_BYTES..].copy_from_slice(&self.ticket.0);
        bytes
    }

    /// Reads it.
    pub(super) fn decode(bytes: &[u8]) -> Result<Self, Refusal> {
        let [mtu, _] = parse_head(bytes)?;
        let bytes = bytes.first_chunk::<REQUEST_BYTES>().ok_or(Refusal::Malformed)?;
        let mtu = Mtu::from_code(u32::from(mtu)).ok_or(Refusal::Malformed)?;
        let ticket = bytes.last_chunk().ok_or(Refusal::Malformed)?;
        Ok(Self { mtu, ticket: Ticket(*ticket) })
    }
}

impl Accepted {
    /// Its bytes.
    pub(super) fn encode(&self) -> [u8; ANSWER_BYTES] {
        head(self.mtu.code() as u8, self.depth)
    }

    /// Reads it; none if it makes no sense.
    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let [mtu, depth] = parse_head(bytes).ok()?;
        let mtu = Mtu::from_code(u32::from(mtu))?;
        (depth > 0).then_some(Self { mtu, depth })
    }
}

impl Refusal {
    /// Its bytes.
    pub(super) fn encode(self) -> [u8; ANSWER_BYTES] {
        head(self as u8, 0)
    }

    /// Reads it; none if it is of somebody else, such as the kernel on a port where nobody listens.
    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        match parse_head(bytes) {
            Ok([why, _]) => Self::ALL.into_iter().find(|refusal| *refusal as u8 == why),
            Err(Self::Version) => Some(Self::Version),
            Err(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TICKET: Ticket = Ticket([7; 16]);

    #[test]
    fn golden_bytes() {
        let request = Request { mtu: Mtu::B4096, ticket: TICKET }.encode();
        assert_eq!(
            request,
            *b"SDSV\x01\0\x05\0\x07\x07\x07\x07\x07\x07\x07\x07\x07\x07\x07\x07\x07\x07\x07\x07"
        );
        assert_eq!(Accepted { mtu: Mtu::B1024, depth: 16 }.encode(), *b"SDSV\x01\0\x03\x10");
        assert_eq!(Refusal::Ticket.encode(), *b"SDSV\x01\0\x03\0");
    }

    #[test]
    fn what_is_written_is_read_and_padding_is_ignored() {
        let request = Request { mtu: Mtu::B256, ticket: TICKET };
        let mut padded = [0xee; 56];
        padded[..REQUEST_BYTES].copy_from_slice(&request.encode());
        assert_eq!(Request::decode(&padded), Ok(request));
        let accepted = Accepted { mtu: Mtu::B2048, depth: 255 };
        assert_eq!(Accepted::decode(&accepted.encode()), Some(accepted));
        for refusal in Refusal::ALL {
            assert_eq!(Refusal::decode(&refusal.encode()), Some(refusal));
        }
    }

    /// Every cut and every changed byte of the head is refused, by name where that is possible.
    #[test]
    fn what_is_not_a_request_is_refused() {
        let good = Request { mtu: Mtu::B1024, ticket: TICKET }.encode();
        for cut in 0..good.len() {
            assert_eq!(Request::decode(&good[..cut]), Err(Refusal::Malformed), "cut at {cut}");
        }
        for (at, refusal) in [(0, Refusal::Malformed), (4, Refusal::Version), (5, Refusal::Version)] {
            let mut bad = good;
            bad[at] ^= 0x80;
            assert_eq!(Request::decode(&bad), Err(refusal), "byte {at}");
        }
        for code in [0, 6, 255] {
            let mut bad = good;
            bad[6] = code;
            assert_eq!(Request::decode(&bad), Err(Refusal::Malformed), "mtu {code}");
        }
        assert_eq!(Accepted::decode(b"SDSV\x01\0\x03\0"), None, "a depth of 0 can do nothing");
        assert_eq!(Refusal::decode(b""), None);
    }
}
