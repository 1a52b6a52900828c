//! Replies: the header alone. Whether it fits the batch that it answers is for whoever knows the batch.

use super::{FrameError, REPLY_HEADER_BYTES, half_at, quarter_at};

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
