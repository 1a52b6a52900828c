//! Framing and coding. The only place that knows of bincode.
//!
//! Always true: whatever bytes arrive, decoding ends with a message or a [`WireError`], and never panics. A frame is not
//! given room before its length is checked; a list that it announces is given room for a megabyte at the most before
//! its entries come.

use std::io::{self, Read, Write};

use serde::{Serialize, de::DeserializeOwned};

use super::PROTOCOL_VERSION;

/// The longest message. A grant of some hundred chunks or a page of statistics is far below. Where a message is read,
/// each number counts with its full width, so a list of numbers must stay below that too.
pub const FRAME_BYTES_MAX: usize = 64 << 10;

const CONFIGURATION: bincode::config::Configuration<
    bincode::config::LittleEndian,
    bincode::config::Varint,
    bincode::config::Limit<FRAME_BYTES_MAX>,
> = bincode::config::standard().with_limit::<FRAME_BYTES_MAX>();

/// Why a peer's bytes are not a message.
#[derive(Debug, thiserror::Error)]
pub enum WireError {
    /// The connection failed or ended.
    #[error("control connection: {0}")]
    Io(#[from] io::Error),
    /// The frame is too long, or has no bytes.
    #[error("a control frame of {bytes} bytes is outside 1 to {FRAME_BYTES_MAX}")]
    FrameLength {
        /// As announced.
        bytes: usize,
    },
    /// The bytes are no message.
    #[error("not a control message: {0}")]
    Malformed(String),
    /// There are bytes behind the message.
    #[error("{bytes} bytes behind a control message")]
    Trailing {
        /// How many.
        bytes: usize,
    },
    /// The peer doesn't speak this protocol at all.
    #[error("the peer does not speak Sidestep's protocol (it began with {found:02x?})")]
    NotSidestep {
        /// As received.
        found: [u8; 8],
    },
    /// The peer speaks another version.
    #[error("the peer speaks protocol version {found}, this build {PROTOCOL_VERSION}")]
    Version {
        /// As received.
        found: u8,
    },
}

/// What a connection is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PreambleKind {
    /// Control messages.
    Control,
    /// Verbs of the `tcp` fabric, or handing out the region of `shm`.
    Data,
}

/// The first eight bytes of a connection, each way.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Preamble(pub PreambleKind);

impl Preamble {
    /// Its length.
    pub const BYTES: usize = 8;
    const MAGIC: [u8; 6] = *b"SDSTEP";

    /// Its bytes.
    pub const fn encode(self) -> [u8; Self::BYTES] {
        let kind = match self.0 {
            PreambleKind::Control => b'C',
            PreambleKind::Data => b'D',
        };
        let [s, d, t, u, e, p] = Self::MAGIC;
        [s, d, t, u, e, p, kind, PROTOCOL_VERSION]
    }

    /// Parses a peer's.
    ///
    /// # Errors
    /// If it is none, or of another version.
    pub fn parse(bytes: [u8; Self::BYTES]) -> Result<Self, WireError> {
        let kind = match bytes[6] {
            _ if bytes[..6] != Self::MAGIC => return Err(WireError::NotSidestep { found: bytes }),
            b'C' => PreambleKind::Control,
            b'D' => PreambleKind::Data,
            _ => return Err(WireError::NotSidestep { found: bytes }),
        };
        if bytes[7] != PROTOCOL_VERSION {
            return Err(WireError::Version { found: bytes[7] });
        }
        Ok(Self(kind))
    }
}

/// Encodes a message, without its frame.
///
/// # Errors
/// If it would be longer than a frame may be.
pub fn encode<T: Serialize>(message: &T) -> Result<Vec<u8>, WireError> {
    let bytes = bincode::serde::encode_to_vec(message, CONFIGURATION)
        .map_err(|error| WireError::Malformed(error.to_string()))?;
    if bytes.is_empty() || bytes.len() > FRAME_BYTES_MAX {
        return Err(WireError::FrameLength { bytes: bytes.len() });
    }
    Ok(bytes)
}

/// Decodes a message from the whole of `bytes`.
///
/// # Errors
/// [`WireError`] if they are no message, or more than one.
pub fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, WireError> {
    if bytes.is_empty() || bytes.len() > FRAME_BYTES_MAX {
        return Err(WireError::FrameLength { bytes: bytes.len() });
    }
    let (message, used) = bincode::serde::decode_from_slice(bytes, CONFIGURATION)
        .map_err(|error| WireError::Malformed(error.to_string()))?;
    if used != bytes.len() {
        return Err(WireError::Trailing { bytes: bytes.len() - used });
    }
    Ok(message)
}

/// Writes one message with its frame.
///
/// # Errors
/// [`WireError`] if the message is too long or the connection fails.
pub fn write_frame<T: Serialize>(stream: &mut impl Write, message: &T) -> Result<(), WireError> {
    let bytes = encode(message)?;
    let mut frame = Vec::with_capacity(4 + bytes.len());
    frame.extend_from_slice(&(bytes.len() as u32).to_le_bytes());
    frame.extend_from_slice(&bytes);
    stream.write_all(&frame)?;
    stream.flush()?;
    Ok(())
}

/// Reads one message with its frame.
///
/// # Errors
/// [`WireError`]; the connection is of no use afterwards.
pub fn read_frame<T: DeserializeOwned>(stream: &mut impl Read) -> Result<T, WireError> {
    let mut length = [0; 4];
    stream.read_exact(&mut length)?;
    let bytes = u32::from_le_bytes(length) as usize;
    if bytes == 0 || bytes > FRAME_BYTES_MAX {
        return Err(WireError::FrameLength { bytes });
    }
    let mut frame = vec![0; bytes];
    stream.read_exact(&mut frame)?;
    decode(&frame)
}

#[cfg(test)]
mod tests {
    use super::super::{
        ChunkPurpose, ChunkTail, GrantHolder, GrantPage, GrantRecord, Refusal, RefusalCode, Request, Response,
    };
    use super::*;
    use crate::fabric::{Commits, Join, Ticket};

    /// Bytes that a released peer sends. A change here is a change of the protocol's version.
    #[test]
    fn golden_bytes() {
        let cases: [(Request, &[u8]); 5] = [
            (Request::Heartbeat { epoch: 5 }, &[1, 5]),
            (Request::Chunks { class: 9, count: 300, purpose: ChunkPurpose::Delete }, &[2, 9, 251, 44, 1, 1]),
            (
                Request::ReturnChunks(vec![ChunkTail { offset: 1 << 20, first_index: 7 }]),
                &[3, 1, 252, 0, 0, 16, 0, 7],
            ),
            (Request::Goodbye, &[6]),
            (Request::Grants { from: 1 << 20, count: 300 }, &[7, 252, 0, 0, 16, 0, 251, 44, 1]),
        ];
        for (request, bytes) in cases {
            assert_eq!(encode(&request).unwrap(), bytes, "{request:?}");
            assert_eq!(decode::<Request>(bytes).unwrap(), request);
        }
        let join = Join::Verbs {
            host: None,
            port: 7,
            ticket: Ticket([9; 16]),
            rkey: 1,
            base: 2,
            responder_depth: 3,
            mtu_bytes: 4,
            commits: Commits::TwoSided { version: 1, depth: 16 },
        };
        let mut bytes = vec![5, 2, 0, 7];
        bytes.extend([9; 16]);
        bytes.extend([1, 2, 3, 4, 1, 1, 16]);
        assert_eq!(encode(&Response::Rejoined(join.clone())).unwrap(), bytes);
        assert_eq!(decode::<Response>(&bytes).unwrap(), Response::Rejoined(join));
        assert_eq!(encode(&Response::Heartbeat { epoch: 1, draining: true }).unwrap(), [2, 1, 1]);
        let grant =
            GrantRecord { offset: 1 << 20, class: 9, first_index: 7, holder: GrantHolder::LeftBehind };
        let page = GrantPage {
            grants: vec![grant],
            more: true,
            revision: 3,
            free_bytes: 1 << 21,
            reserve_bytes: 1 << 20,
        };
        let bytes = [8, 1, 252, 0, 0, 16, 0, 9, 7, 2, 1, 3, 252, 0, 0, 32, 0, 252, 0, 0, 16, 0];
        assert_eq!(encode(&Response::Grants(page.clone())).unwrap(), bytes);
        assert_eq!(decode::<Response>(&bytes).unwrap(), Response::Grants(page));
        assert_eq!(Preamble(PreambleKind::Control).encode(), *b"SDSTEPC\x02");
    }

    #[test]
    fn every_byte_must_be_consumed() {
        let mut bytes = encode(&Request::Goodbye).unwrap();
        bytes.push(0);
        assert!(matches!(decode::<Request>(&bytes), Err(WireError::Trailing { bytes: 1 })));
    }

    /// A peer that announces gigabytes gets an error, not our memory.
    #[test]
    fn lengths_are_checked_before_anything_is_allocated() {
        for length in [0_u32, FRAME_BYTES_MAX as u32 + 1, 1 << 31, u32::MAX] {
            let mut stream = &length.to_le_bytes()[..];
            assert!(
                matches!(read_frame::<Request>(&mut stream), Err(WireError::FrameLength { .. })),
                "{length}"
            );
        }
        // A vector of 2^60 entries within a short frame.
        assert!(decode::<Request>(&[3, 253, 0, 0, 0, 0, 0, 0, 0, 16]).is_err());
    }

    /// Numbers count with their full width when they are read, however short they were sent. So a list may fit a frame and
    /// still be too long; whoever sends long lists sends them in parts. Texts have the bound of the frame.
    #[test]
    fn what_is_within_the_limit_is_understood() {
        let tails = |count| Request::ReturnChunks(vec![ChunkTail { offset: 1, first_index: 2 }; count]);
        let most = FRAME_BYTES_MAX / (size_of::<u64>() + size_of::<u32>());
        for count in [0, 1, 1024, most - 2] {
            let bytes = encode(&tails(count)).unwrap();
            assert_eq!(decode::<Request>(&bytes).unwrap(), tails(count), "{count}");
        }
        let bytes = encode(&tails(most + 1)).unwrap();
        assert!(matches!(decode::<Request>(&bytes), Err(WireError::Malformed(_))));
        let refused =
            |count| Response::Refused(Refusal { code: RefusalCode::Invalid, message: "x".repeat(count) });
        for count in [0, 250, 251, 60_000, FRAME_BYTES_MAX - 20] {
            let bytes = encode(&refused(count)).unwrap();
            assert_eq!(decode::<Response>(&bytes).unwrap(), refused(count), "{count}");
        }
        assert!(encode(&refused(FRAME_BYTES_MAX)).is_err());
    }

    #[test]
    fn random_bytes_never_panic() {
        let mut state = 1_u64;
        for length in (0..200).cycle().take(20_000) {
            let bytes: Vec<u8> = (0..length)
                .map(|_| {
                    state = state.wrapping_mul(0xd134_2543_de82_ef95).wrapping_add(1);
                    (state >> 56) as u8
                })
                .collect();
            let _ = decode::<Request>(&bytes);
            let _ = decode::<Response>(&bytes);
        }
    }

    #[test]
    fn other_protocols_and_versions_are_named() {
        assert!(matches!(Preamble::parse(*b"GET / HT"), Err(WireError::NotSidestep { .. })));
        assert!(matches!(Preamble::parse(*b"SDSTEPC\x09"), Err(WireError::Version { found: 9 })));
        assert!(matches!(Preamble::parse(*b"SDSTEPX\x01"), Err(WireError::NotSidestep { .. })));
    }
}
