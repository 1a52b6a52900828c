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
        AuditedChunk, BucketReport, ChunkGrant, ChunkPurpose, DirectoryChanges, DirectoryRun, GrantHolder,
        GrantPage, GrantRecord, Pulse, Refusal, RefusalCode, Request, Response, ReturnedChunk,
    };
    use super::*;
    use crate::fabric::{Commits, Join, Ticket};
    use crate::layout::{SizeClass, chunk_shape};

    /// Bytes that a released peer sends. A change here is a change of the protocol's version.
    #[test]
    fn golden_bytes() {
        let cases: [(Request, &[u8]); 7] = [
            (Request::Heartbeat { epoch: 5, wants_epoch: true }, &[1, 5, 1]),
            (Request::Chunks { class: 9, count: 300, purpose: ChunkPurpose::Delete }, &[2, 9, 251, 44, 1, 1]),
            (
                Request::ReturnChunks(vec![ReturnedChunk {
                    offset: 1 << 20,
                    versions: vec![7, 8],
                    empty: true,
                }]),
                &[3, 1, 252, 0, 0, 16, 0, 2, 7, 8, 1],
            ),
            (Request::Goodbye, &[6]),
            (Request::Grants { from: 1 << 20, count: 300 }, &[7, 252, 0, 0, 16, 0, 251, 44, 1]),
            (Request::ReportBucket(BucketReport { entry: 9, generation: 3, full: true }), &[8, 9, 3, 1]),
            (Request::Audit { number: 4, chunks: vec![1 << 20] }, &[9, 4, 1, 252, 0, 0, 16, 0]),
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
        let runs = DirectoryChanges::Runs(vec![DirectoryRun { first: 5, count: 2 }]);
        let pulse = Pulse {
            epoch: 9,
            quiesced: 8,
            draining: true,
            audit_begun: 4,
            audit_done: 3,
            changes: runs,
            ..Pulse::default()
        };
        let answers: [(Response, &[u8]); 6] = [
            (Response::Heartbeat(pulse.clone()), &[2, 9, 8, 1, 0, 4, 3, 0, 1, 5, 2]),
            (
                Response::Chunks(vec![ChunkGrant { offset: 1 << 20, class: 9, versions: vec![3] }]),
                &[3, 1, 252, 0, 0, 16, 0, 9, 1, 3],
            ),
            (Response::BucketReported, &[9]),
            (
                Response::Audited(vec![AuditedChunk { offset: 1 << 20, reached: vec![0x81] }]),
                &[10, 1, 252, 0, 0, 16, 0, 1, 0x81],
            ),
            (Response::Notice(pulse), &[11, 9, 8, 1, 0, 4, 3, 0, 1, 5, 2]),
            (
                Response::Refused(Refusal { code: RefusalCode::IndexFull, message: "x".into() }),
                &[1, 8, 1, b'x'],
            ),
        ];
        for (response, bytes) in answers {
            assert_eq!(encode(&response).unwrap(), bytes, "{response:?}");
            assert_eq!(decode::<Response>(bytes).unwrap(), response);
        }
        let grant = GrantRecord { offset: 1 << 20, class: 9, holder: GrantHolder::Orphan };
        let page = GrantPage {
            grants: vec![grant],
            more: true,
            revision: 3,
            free_bytes: 1 << 21,
            reserve_bytes: 1 << 20,
        };
        let bytes = [8, 1, 252, 0, 0, 16, 0, 9, 2, 1, 3, 252, 0, 0, 32, 0, 252, 0, 0, 16, 0];
        assert_eq!(encode(&Response::Grants(page.clone())).unwrap(), bytes);
        assert_eq!(decode::<Response>(&bytes).unwrap(), Response::Grants(page));
        assert_eq!(Preamble(PreambleKind::Control).encode(), *b"SDSTEPC\x03");
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
        let audit = |count| Request::Audit { number: 1, chunks: vec![1; count] };
        let most = FRAME_BYTES_MAX / size_of::<u64>();
        for count in [0, 1, 1024, most - 4] {
            let bytes = encode(&audit(count)).unwrap();
            assert_eq!(decode::<Request>(&bytes).unwrap(), audit(count), "{count}");
        }
        let bytes = encode(&audit(most + 1)).unwrap();
        assert!(matches!(decode::<Request>(&bytes), Err(WireError::Malformed(_))));
        // The largest chunks that there are.
        let blocks = chunk_shape(SizeClass::holding(1).unwrap()).block_count as usize;
        let chunk = ReturnedChunk { offset: u64::MAX, versions: vec![255; blocks], empty: false };
        let most = Request::ReturnChunks(vec![chunk; ReturnedChunk::COUNT_MAX]);
        assert_eq!(decode::<Request>(&encode(&most).unwrap()).unwrap(), most);
        let chunk = AuditedChunk { offset: u64::MAX, reached: vec![255; blocks.div_ceil(8)] };
        let most = Response::Audited(vec![chunk; AuditedChunk::COUNT_MAX]);
        assert_eq!(decode::<Response>(&encode(&most).unwrap()).unwrap(), most);
        let run = DirectoryRun { first: u32::MAX, count: u32::MAX };
        let changes = DirectoryChanges::Runs(vec![run; DirectoryChanges::RUNS_MAX]);
        let most = Response::Notice(Pulse { changes, ..Pulse::default() });
        assert_eq!(decode::<Response>(&encode(&most).unwrap()).unwrap(), most);
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
