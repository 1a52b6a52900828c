//! The bytes of the data connection. Pure functions over slices; nothing here does I/O or allocates.
//!
//! Always true: a length is checked against its named limit before anybody acts on it; sums can't wrap; whatever
//! the bytes are, parsing ends with a checked value or a [`FrameError`]. Reserved bytes are zero, so that a later
//! version can use them. All numbers are little-endian. [`crate::wire::PROTOCOL_VERSION`] covers every byte here.
//!
//! A *request frame* carries the batches of one `post`, several frames if they don't fit one. Descriptors come
//! first and operands last, so that a client can gather WRITE bytes from where they lie.
//!
//! ```text
//!          0       1       2       3       4       5       6       7
//! header │ length of the whole frame     │ rkey                          │
//!        │ batch count   │ verb count    │ zero                          │
//! batch  │ request id                    │ verb count    │ flags │ zero  │  × batch count
//! verb   │ opcode│ zero                  │ length                        │  × verb count
//!        │ remote offset                                                 │
//! operands, in the order of the verbs:
//!   WRITE│ `length` bytes ...
//!   CAS  │ expected                                                      │
//!        │ desired                                                       │
//!   FAA  │ add                                                           │
//! ```
//!
//! A *reply* answers one batch; replies come in the order of the batches. A refused batch's reply is the
//! connection's last one.
//!
//! ```text
//!          0       1       2       3       4       5       6       7
//! header │ request id                    │ length of the body            │
//!        │ status│ zero  │ verbs done    │ zero                          │
//! body   │ of each verb done: READ its bytes, CAS and FAA the old word, WRITE nothing; nothing if silent
//! ```

use crate::layout::{Offset, word_at};

/// Bytes of a request frame's header.
pub const FRAME_HEADER_BYTES: usize = 16;
/// Bytes of a batch's descriptor.
pub const BATCH_BYTES: usize = 8;
/// Bytes of a verb's descriptor.
pub const VERB_BYTES: usize = 16;
/// Bytes of a reply's header.
pub const REPLY_HEADER_BYTES: usize = 16;

/// Bytes that one verb moves: the largest local buffer.
pub const VERB_BYTES_MAX: usize = 2 << 20;
/// Verbs of one frame, and its batches: more than any session has in flight, and their descriptors fit 96 KiB.
pub const FRAME_VERBS_MAX: usize = 4096;
/// The longest request frame: one WRITE of full length beside all the descriptors there can be, with room for a
/// second one.
pub const FRAME_BYTES_MAX: usize = 4 << 20;
/// The longest body of a reply.
pub const REPLY_BODY_BYTES_MAX: usize = 1 << 30;

const DESCRIPTOR_BYTES_MAX: usize = FRAME_HEADER_BYTES + FRAME_VERBS_MAX * (BATCH_BYTES + VERB_BYTES);
const _: () = assert!(FRAME_BYTES_MAX >= DESCRIPTOR_BYTES_MAX + VERB_BYTES_MAX);
const _: () = assert!(FRAME_VERBS_MAX <= u16::MAX as usize && REPLY_BODY_BYTES_MAX <= u32::MAX as usize);

const FLAG_SILENT: u8 = 1;

/// Why bytes are no frame. The connection ends with it: behind such bytes nothing has a meaning.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum FrameError {
    /// The announced length is impossible.
    #[error("a frame of {bytes} bytes is outside {FRAME_HEADER_BYTES} to {FRAME_BYTES_MAX}")]
    Length {
        /// As announced.
        bytes: usize,
    },
    /// The counts and the length disagree.
    #[error("a frame of {bytes} bytes can't be one of {batches} batches and {verbs} verbs")]
    Counts {
        /// Its length.
        bytes: usize,
        /// As announced; at most [`FRAME_VERBS_MAX`].
        batches: usize,
        /// As announced; at most [`FRAME_VERBS_MAX`].
        verbs: usize,
    },
    /// Another opcode than the four.
    #[error("verb {index} has the unknown opcode {opcode:#04x}")]
    Opcode {
        /// The verb's place in the frame.
        index: usize,
        /// As received.
        opcode: u8,
    },
    /// A verb moves too much, or an atomic not eight bytes.
    #[error("verb {index} is of {bytes} bytes; the limit is {VERB_BYTES_MAX}, and 8 is right for an atomic")]
    VerbLength {
        /// The verb's place in the frame.
        index: usize,
        /// As announced.
        bytes: usize,
    },
    /// A batch would bring back too much.
    #[error("the reply to a batch would be of {bytes} bytes; the limit is {REPLY_BODY_BYTES_MAX}")]
    ReplyLength {
        /// What its READs and atomics add up to.
        bytes: usize,
    },
    /// A byte or flag without meaning is set.
    #[error("a reserved byte is not zero in the {place}")]
    Reserved {
        /// Where.
        place: &'static str,
    },
    /// A reply that doesn't answer the oldest batch.
    #[error("a reply to request {found} where one to {expected} is due")]
    Request {
        /// As received.
        found: u32,
        /// Of the oldest batch in flight.
        expected: u32,
    },
    /// A reply although nothing is in flight.
    #[error("a reply, but no request is in flight")]
    Unasked,
    /// A reply whose figures don't fit its batch.
    #[error(
        "a reply with status {status}, {done} verbs done and {bytes} bytes does not fit a batch of {verbs}"
    )]
    Reply {
        /// As received.
        status: u8,
        /// As received.
        done: usize,
        /// As received.
        bytes: usize,
        /// Verbs of the batch.
        verbs: usize,
    },
}

/// What a verb does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Opcode {
    /// Fetch bytes.
    Read = 1,
    /// Store bytes.
    Write = 2,
    /// Compare and swap a word.
    CompareSwap = 3,
    /// Add to a word.
    FetchAdd = 4,
}

impl Opcode {
    const fn parse(byte: u8) -> Option<Self> {
        match byte {
            1 => Some(Self::Read),
            2 => Some(Self::Write),
            3 => Some(Self::CompareSwap),
            4 => Some(Self::FetchAdd),
            _ => None,
        }
    }

    /// Whether it acts on one aligned word.
    pub const fn is_atomic(self) -> bool {
        matches!(self, Self::CompareSwap | Self::FetchAdd)
    }
}

/// A request frame's header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FrameHeader {
    /// Bytes of the whole frame.
    pub bytes: usize,
    /// Names the region.
    pub rkey: u32,
    /// Batches in it.
    pub batch_count: usize,
    /// Verbs of all batches together.
    pub verb_count: usize,
}

impl FrameHeader {
    /// Where the verbs' descriptors start.
    const fn verbs_at(&self) -> usize {
        FRAME_HEADER_BYTES + self.batch_count * BATCH_BYTES
    }

    /// Where the operands start.
    pub const fn operands_at(&self) -> usize {
        self.verbs_at() + self.verb_count * VERB_BYTES
    }

    /// Its bytes.
    pub fn encode(&self) -> [u8; FRAME_HEADER_BYTES] {
        let mut bytes = [0; FRAME_HEADER_BYTES];
        bytes[..4].copy_from_slice(&(self.bytes as u32).to_le_bytes());
        bytes[4..8].copy_from_slice(&self.rkey.to_le_bytes());
        bytes[8..10].copy_from_slice(&(self.batch_count as u16).to_le_bytes());
        bytes[10..12].copy_from_slice(&(self.verb_count as u16).to_le_bytes());
        bytes
    }

    /// Parses the header at the start of `bytes`; `None` if more bytes are needed to judge.
    ///
    /// # Errors
    /// As soon as the bytes that are there can't be the start of a frame.
    pub fn parse(bytes: &[u8]) -> Result<Option<Self>, FrameError> {
        if bytes.len() < 4 {
            return Ok(None);
        }
        let frame_bytes = half_at(bytes, 0) as usize;
        if !(FRAME_HEADER_BYTES..=FRAME_BYTES_MAX).contains(&frame_bytes) {
            return Err(FrameError::Length { bytes: frame_bytes });
        }
        if bytes.len() < FRAME_HEADER_BYTES {
            return Ok(None);
        }
        let header = Self {
            bytes: frame_bytes,
            rkey: half_at(bytes, 4),
            batch_count: quarter_at(bytes, 8) as usize,
            verb_count: quarter_at(bytes, 10) as usize,
        };
        if half_at(bytes, 12) != 0 {
            return Err(FrameError::Reserved { place: "frame header" });
        }
        if header.batch_count > FRAME_VERBS_MAX
            || header.verb_count > FRAME_VERBS_MAX
            || header.operands_at() > frame_bytes
        {
            return Err(header.wrong_counts());
        }
        Ok(Some(header))
    }

    const fn wrong_counts(&self) -> FrameError {
        FrameError::Counts { bytes: self.bytes, batches: self.batch_count, verbs: self.verb_count }
    }
}

/// A batch's descriptor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BatchDescriptor {
    /// Comes back with the reply.
    pub request: u32,
    /// Its verbs.
    pub verb_count: usize,
    /// The reply shall have no body.
    pub silent: bool,
}

impl BatchDescriptor {
    /// Its bytes.
    pub fn encode(&self) -> [u8; BATCH_BYTES] {
        let mut bytes = [0; BATCH_BYTES];
        bytes[..4].copy_from_slice(&self.request.to_le_bytes());
        bytes[4..6].copy_from_slice(&(self.verb_count as u16).to_le_bytes());
        bytes[6] = if self.silent { FLAG_SILENT } else { 0 };
        bytes
    }
}

/// A verb's descriptor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct VerbDescriptor {
    /// What it does.
    pub opcode: Opcode,
    /// How many bytes it moves; 8 for an atomic.
    pub bytes: usize,
    /// Where.
    pub remote: Offset,
}

impl VerbDescriptor {
    /// Its bytes.
    pub fn encode(&self) -> [u8; VERB_BYTES] {
        let mut bytes = [0; VERB_BYTES];
        bytes[0] = self.opcode as u8;
        bytes[4..8].copy_from_slice(&(self.bytes as u32).to_le_bytes());
        bytes[8..].copy_from_slice(&self.remote.0.to_le_bytes());
        bytes
    }

    fn parse(bytes: &[u8], index: usize) -> Result<Self, FrameError> {
        let Some(opcode) = Opcode::parse(bytes[0]) else {
            return Err(FrameError::Opcode { index, opcode: bytes[0] });
        };
        if bytes[1..4] != [0; 3] {
            return Err(FrameError::Reserved { place: "verb" });
        }
        let verb_bytes = half_at(bytes, 4) as usize;
        if verb_bytes > VERB_BYTES_MAX || (opcode.is_atomic() && verb_bytes != 8) {
            return Err(FrameError::VerbLength { index, bytes: verb_bytes });
        }
        Ok(Self { opcode, bytes: verb_bytes, remote: Offset(word_at(bytes, 8)) })
    }

    /// Bytes of its operands.
    pub const fn operand_bytes(&self) -> usize {
        match self.opcode {
            Opcode::Read => 0,
            Opcode::Write => self.bytes,
            Opcode::CompareSwap => 16,
            Opcode::FetchAdd => 8,
        }
    }

    /// Bytes that it adds to the reply of a batch that isn't silent.
    pub const fn reply_bytes(&self) -> usize {
        match self.opcode {
            Opcode::Read => self.bytes,
            Opcode::Write => 0,
            Opcode::CompareSwap | Opcode::FetchAdd => 8,
        }
    }
}

/// A whole request frame whose every part was checked.
#[derive(Clone, Copy, Debug)]
pub struct RequestFrame<'a> {
    header: FrameHeader,
    bytes: &'a [u8],
}

impl<'a> RequestFrame<'a> {
    /// Checks the whole frame that `header` announces; it is at the start of `bytes`.
    ///
    /// # Errors
    /// [`FrameError`] if any part of it is wrong. Nothing of it may be executed then.
    ///
    /// # Panics
    /// If `bytes` has fewer bytes than the header says.
    pub fn parse(header: FrameHeader, bytes: &'a [u8]) -> Result<Self, FrameError> {
        let frame = Self::checked_before(header, bytes);
        let mut verbs = 0_usize;
        let mut operands_end = header.operands_at();
        for index in 0..header.batch_count {
            let at = FRAME_HEADER_BYTES + index * BATCH_BYTES;
            if bytes[at + 6] & !FLAG_SILENT != 0 || bytes[at + 7] != 0 {
                return Err(FrameError::Reserved { place: "batch" });
            }
            let batch = frame.batch(index);
            if batch.verb_count > header.verb_count - verbs {
                return Err(header.wrong_counts());
            }
            // At most FRAME_VERBS_MAX times VERB_BYTES_MAX: the sums stay below 2^33 and can't wrap 64 bits.
            let mut reply_bytes = 0;
            for index in verbs..verbs + batch.verb_count {
                let at = header.verbs_at() + index * VERB_BYTES;
                let verb = VerbDescriptor::parse(&bytes[at..at + VERB_BYTES], index)?;
                operands_end += verb.operand_bytes();
                reply_bytes += verb.reply_bytes();
            }
            if reply_bytes > REPLY_BODY_BYTES_MAX {
                return Err(FrameError::ReplyLength { bytes: reply_bytes });
            }
            verbs += batch.verb_count;
        }
        if verbs != header.verb_count || operands_end != header.bytes {
            return Err(header.wrong_counts());
        }
        Ok(frame)
    }

    /// The frame again, after [`RequestFrame::parse`] found these bytes right.
    pub(super) fn checked_before(header: FrameHeader, bytes: &'a [u8]) -> Self {
        Self { header, bytes: &bytes[..header.bytes] }
    }

    /// Its header.
    pub const fn header(&self) -> &FrameHeader {
        &self.header
    }

    /// The descriptor of batch `index`.
    #[inline]
    pub fn batch(&self, index: usize) -> BatchDescriptor {
        let at = FRAME_HEADER_BYTES + index * BATCH_BYTES;
        let bytes = &self.bytes[at..at + BATCH_BYTES];
        BatchDescriptor {
            request: half_at(bytes, 0),
            verb_count: quarter_at(bytes, 4) as usize,
            silent: bytes[6] & FLAG_SILENT != 0,
        }
    }

    /// The descriptor of verb `index`, counted over all batches.
    #[inline]
    pub fn verb(&self, index: usize) -> VerbDescriptor {
        let at = self.header.verbs_at() + index * VERB_BYTES;
        match VerbDescriptor::parse(&self.bytes[at..at + VERB_BYTES], index) {
            Ok(verb) => verb,
            Err(error) => unreachable!("a checked frame has a wrong verb: {error}"),
        }
    }

    /// `bytes` bytes of operands, from `at` of the frame.
    #[inline]
    pub fn operands(&self, at: usize, bytes: usize) -> &'a [u8] {
        &self.bytes[at..at + bytes]
    }
}

/// Why the memory node refused a verb.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Refused {
    /// It leaves the region.
    Bounds = 1,
    /// The key names another region, or none.
    Key = 2,
    /// The session may only read.
    Rights = 3,
    /// An atomic on a word that isn't aligned.
    Alignment = 4,
}

/// A reply's header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ReplyHeader {
    /// Which request it answers.
    pub request: u32,
    /// Bytes of the body.
    pub body_bytes: usize,
    /// Zero if all verbs are done, else a [`Refused`]; other numbers are passed on.
    pub status: u8,
    /// Verbs that took effect: all, or those before the refused one.
    pub verbs_done: usize,
}

impl ReplyHeader {
    /// Its bytes.
    pub fn encode(&self) -> [u8; REPLY_HEADER_BYTES] {
        let mut bytes = [0; REPLY_HEADER_BYTES];
        bytes[..4].copy_from_slice(&self.request.to_le_bytes());
        bytes[4..8].copy_from_slice(&(self.body_bytes as u32).to_le_bytes());
        bytes[8] = self.status;
        bytes[10..12].copy_from_slice(&(self.verbs_done as u16).to_le_bytes());
        bytes
    }

    /// Parses the header at the start of `bytes`; `None` if they are too few.
    ///
    /// # Errors
    /// If it can't be a reply's header.
    pub fn parse(bytes: &[u8]) -> Result<Option<Self>, FrameError> {
        if bytes.len() < REPLY_HEADER_BYTES {
            return Ok(None);
        }
        if bytes[9] != 0 || half_at(bytes, 12) != 0 {
            return Err(FrameError::Reserved { place: "reply header" });
        }
        Ok(Some(Self {
            request: half_at(bytes, 0),
            body_bytes: half_at(bytes, 4) as usize,
            status: bytes[8],
            verbs_done: quarter_at(bytes, 10) as usize,
        }))
    }
}

fn half_at(bytes: &[u8], at: usize) -> u32 {
    let mut half = [0; 4];
    half.copy_from_slice(&bytes[at..at + 4]);
    u32::from_le_bytes(half)
}

fn quarter_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

#[cfg(test)]
mod tests {
    use super::*;

    /// READ 64 at 0x1000, WRITE "hello" at 0x2003, CAS at 8; then, silently, FAA at 16.
    fn example() -> Vec<u8> {
        let verb = |opcode, bytes, remote| VerbDescriptor { opcode, bytes, remote: Offset(remote) }.encode();
        let header = FrameHeader { bytes: 125, rkey: 0xa1b2_c3d4, batch_count: 2, verb_count: 4 };
        let mut frame = header.encode().to_vec();
        frame.extend(BatchDescriptor { request: 7, verb_count: 3, silent: false }.encode());
        frame.extend(BatchDescriptor { request: 8, verb_count: 1, silent: true }.encode());
        frame.extend(verb(Opcode::Read, 64, 0x1000));
        frame.extend(verb(Opcode::Write, 5, 0x2003));
        frame.extend(verb(Opcode::CompareSwap, 8, 8));
        frame.extend(verb(Opcode::FetchAdd, 8, 16));
        frame.extend(b"hello");
        frame.extend(3_u64.to_le_bytes());
        frame.extend(4_u64.to_le_bytes());
        frame.extend(u64::MAX.to_le_bytes());
        frame
    }

    fn parse(bytes: &[u8]) -> Result<Option<RequestFrame<'_>>, FrameError> {
        match FrameHeader::parse(bytes)? {
            Some(header) if header.bytes <= bytes.len() => RequestFrame::parse(header, bytes).map(Some),
            _ => Ok(None),
        }
    }

    /// Bytes that a released peer sends. A change here is a change of the protocol's version.
    #[test]
    fn golden_bytes() {
        #[rustfmt::skip]
        let golden: &[u8] = &[
            125, 0, 0, 0,  0xd4, 0xc3, 0xb2, 0xa1,   2, 0, 4, 0,  0, 0, 0, 0,
            7, 0, 0, 0,  3, 0, 0, 0,                 8, 0, 0, 0,  1, 0, 1, 0,
            1, 0, 0, 0,  64, 0, 0, 0,                0x00, 0x10, 0, 0, 0, 0, 0, 0,
            2, 0, 0, 0,  5, 0, 0, 0,                 0x03, 0x20, 0, 0, 0, 0, 0, 0,
            3, 0, 0, 0,  8, 0, 0, 0,                 8, 0, 0, 0, 0, 0, 0, 0,
            4, 0, 0, 0,  8, 0, 0, 0,                 16, 0, 0, 0, 0, 0, 0, 0,
            b'h', b'e', b'l', b'l', b'o',
            3, 0, 0, 0, 0, 0, 0, 0,
            4, 0, 0, 0, 0, 0, 0, 0,
            255, 255, 255, 255, 255, 255, 255, 255,
        ];
        let frame = example();
        assert_eq!(frame, golden);
        let parsed = parse(golden).unwrap().unwrap();
        assert_eq!(parsed.batch(1), BatchDescriptor { request: 8, verb_count: 1, silent: true });
        assert_eq!(
            parsed.verb(1),
            VerbDescriptor { opcode: Opcode::Write, bytes: 5, remote: Offset(0x2003) }
        );
        assert_eq!(parsed.operands(parsed.header().operands_at(), 5), b"hello");

        let reply =
            ReplyHeader { request: 7, body_bytes: 72, status: Refused::Rights as u8, verbs_done: 0x102 };
        assert_eq!(reply.encode(), [7, 0, 0, 0, 72, 0, 0, 0, 3, 0, 2, 1, 0, 0, 0, 0]);
        assert_eq!(ReplyHeader::parse(&reply.encode()), Ok(Some(reply)));
    }

    #[test]
    fn a_cut_frame_is_never_a_frame_and_never_an_error() {
        let frame = example();
        for bytes in 0..frame.len() {
            assert!(parse(&frame[..bytes]).unwrap().is_none(), "{bytes} bytes");
        }
    }

    #[test]
    fn impossible_lengths_are_refused_from_four_bytes_on() {
        for length in [0_u32, 1, 15, FRAME_BYTES_MAX as u32 + 1, 1 << 31, u32::MAX] {
            let refused = Err(FrameError::Length { bytes: length as usize });
            assert_eq!(FrameHeader::parse(&length.to_le_bytes()), refused);
        }
        assert_eq!(
            FrameHeader::parse(b"GET / HTTP/1.1\r\n").unwrap_err(),
            FrameError::Length { bytes: 0x2054_4547 }
        );
    }

    /// Each case sets some bytes of a right frame wrong.
    #[test]
    fn each_wrong_part_is_named() {
        let is = |place| move |error: &FrameError| *error == FrameError::Reserved { place };
        let counts = |error: &FrameError| matches!(error, FrameError::Counts { .. });
        type Check<'a> = &'a dyn Fn(&FrameError) -> bool;
        let cases: [(usize, &[u8], Check<'_>); 14] = [
            (15, &[1], &is("frame header")),
            (8, &[255, 255], &counts),
            (10, &[255, 255], &counts),
            (8, &[1], &counts),
            (10, &[3], &counts),
            (0, &[124], &counts),
            (22, &[2], &is("batch")),
            (23, &[1], &is("batch")),
            (28, &[2], &counts),
            (20, &[2], &counts),
            (32, &[9], &|error| *error == FrameError::Opcode { index: 0, opcode: 9 }),
            (33, &[1], &is("verb")),
            (52, &[255; 4], &|error| *error == FrameError::VerbLength { index: 1, bytes: u32::MAX as usize }),
            (68, &[7], &|error| *error == FrameError::VerbLength { index: 2, bytes: 7 }),
        ];
        for (at, wrong, check) in cases {
            let mut frame = example();
            frame[at..at + wrong.len()].copy_from_slice(wrong);
            let error = parse(&frame).expect_err(&format!("{wrong:?} at {at}"));
            assert!(check(&error), "{wrong:?} at {at}: {error}");
        }
    }

    /// 4,096 READs of 2 MiB in one batch: the sum doesn't fit 32 bits.
    #[test]
    fn a_batch_that_asks_for_gigabytes_is_refused() {
        let count = FRAME_VERBS_MAX;
        let bytes = FRAME_HEADER_BYTES + BATCH_BYTES + count * VERB_BYTES;
        let header = FrameHeader { bytes, rkey: 0, batch_count: 1, verb_count: count };
        let mut frame = header.encode().to_vec();
        frame.extend(BatchDescriptor { request: 0, verb_count: count, silent: false }.encode());
        for _ in 0..count {
            let verb = VerbDescriptor { opcode: Opcode::Read, bytes: VERB_BYTES_MAX, remote: Offset(0) };
            frame.extend(verb.encode());
        }
        assert_eq!(parse(&frame).unwrap_err(), FrameError::ReplyLength { bytes: 8 << 30 });
    }

    #[test]
    fn random_bytes_never_panic() {
        let mut state = 3_u64;
        let mut random = move || {
            state = state.wrapping_mul(0xd134_2543_de82_ef95).wrapping_add(1);
            (state >> 33) as usize
        };
        let example = example();
        let mut right = 0;
        for round in 0..50_000 {
            // Half of them are the example with a few bytes changed, so that they get further.
            let mut bytes = example.clone();
            if round % 2 == 0 {
                for _ in 0..1 + random() % 3 {
                    let at = random() % bytes.len();
                    bytes[at] = random() as u8;
                }
            } else {
                bytes = (0..random() % 300).map(|_| random() as u8).collect();
                if bytes.len() > 16 {
                    let length = bytes.len() as u32;
                    bytes[..4].copy_from_slice(&length.to_le_bytes());
                    bytes[8..16].copy_from_slice(&[random() as u8 % 4, 0, random() as u8 % 4, 0, 0, 0, 0, 0]);
                }
            }
            if let Ok(Some(frame)) = parse(&bytes) {
                right += 1;
                for index in 0..frame.header().verb_count {
                    let _ = frame.verb(index);
                }
            }
            let _ = ReplyHeader::parse(&bytes);
        }
        assert!(right > 1_000, "the test must reach right frames too: {right}");
    }
}
