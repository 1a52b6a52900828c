//! Request frames: parsed once into a checked form.
//!
//! Always true: a [`RequestFrame`] exists only after all of its counts, opcodes and lengths were found right, so
//! who holds one indexes it without checking again.

use super::{
    BATCH_BYTES, FRAME_BYTES_MAX, FRAME_HEADER_BYTES, FRAME_VERBS_MAX, FrameError, REPLY_BODY_BYTES_MAX,
    VERB_BYTES, VERB_BYTES_MAX, half_at, quarter_at,
};
use crate::layout::{Offset, word_at};

const FLAG_SILENT: u8 = 1;

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
    pub(in crate::fabric::tcp) fn checked_before(header: FrameHeader, bytes: &'a [u8]) -> Self {
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
