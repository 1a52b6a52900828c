//! Verbs as an operation plans them, before they have buffers.
//!
//! Always true: a plan's verbs execute in its order and share one doorbell. `pieces` are the key and value of the block
//! that [`Action::WriteBlock`] means; the operation that planned it has them.

use sidestep_common::fabric::{BufferError, BufferPool, Verb};
use sidestep_common::layout::{BlockHeader, Offset};
use smallvec::SmallVec;

/// Verbs to be posted together, in this order.
pub type Plan = SmallVec<[PlannedVerb; 4]>;

/// One verb, before it has buffers.
#[derive(Clone, Copy, Debug)]
pub struct PlannedVerb {
    /// What of the region it touches, for people who look at a trace.
    pub subject: &'static str,
    /// Where.
    pub remote: Offset,
    /// What it does.
    pub action: Action,
}

/// What a planned verb does.
#[derive(Clone, Copy, Debug)]
pub enum Action {
    /// READ so many bytes.
    Read(usize),
    /// WRITE the block that the operation makes: this header, then its key and value.
    WriteBlock(BlockHeader),
    /// WRITE one byte.
    WriteByte(u8),
    /// CAS.
    CompareSwap {
        /// The word that must be there.
        expected: u64,
        /// The word to put there.
        desired: u64,
    },
}

impl PlannedVerb {
    /// The verb's name, as traces spell it.
    pub const fn name(&self) -> &'static str {
        match self.action {
            Action::Read(_) => "READ",
            Action::WriteBlock(_) | Action::WriteByte(_) => "WRITE",
            Action::CompareSwap { .. } => "CAS",
        }
    }

    /// The verb itself, with a buffer out of `pool` if it needs one. `pieces` are the key and value of the block.
    ///
    /// # Errors
    /// [`BufferError`] if there is no buffer.
    pub fn verb<'v>(
        &'v self,
        pool: &mut BufferPool,
        pieces: (&'v [u8], &'v [u8]),
    ) -> Result<Verb<'v>, BufferError> {
        let remote = self.remote;
        Ok(match &self.action {
            Action::Read(bytes) => Verb::Read { remote, into: pool.take(*bytes)? },
            Action::WriteBlock(header) => {
                Verb::Write { remote, from: [header.as_bytes(), pieces.0, pieces.1] }
            }
            Action::WriteByte(byte) => Verb::Write { remote, from: [std::slice::from_ref(byte), &[], &[]] },
            Action::CompareSwap { expected, desired } => {
                Verb::CompareSwap { remote, expected: *expected, desired: *desired }
            }
        })
    }

    /// Bytes that it brings.
    pub const fn read_bytes(&self) -> u64 {
        match self.action {
            Action::Read(bytes) => bytes as u64,
            Action::CompareSwap { .. } => 8,
            Action::WriteBlock(_) | Action::WriteByte(_) => 0,
        }
    }

    /// Bytes that it stores.
    pub fn written_bytes(&self, pieces: (&[u8], &[u8])) -> u64 {
        match &self.action {
            Action::WriteBlock(header) => (header.as_bytes().len() + pieces.0.len() + pieces.1.len()) as u64,
            Action::WriteByte(_) => 1,
            Action::CompareSwap { .. } => 8,
            Action::Read(_) => 0,
        }
    }

    /// Bytes that it is about.
    pub fn bytes(&self, pieces: (&[u8], &[u8])) -> u64 {
        self.read_bytes().max(self.written_bytes(pieces))
    }
}

#[cfg(test)]
mod tests {
    use sidestep_common::layout::{BlockMeta, BlockRef, SizeClass, Version, WriteId};

    use super::*;

    /// The bytes that statistics add up and traces show: of a block no more than is written of it.
    #[test]
    fn a_verb_says_how_many_bytes_it_brings_and_stores() {
        let pieces: (&[u8], &[u8]) = (b"key", b"value");
        let place =
            BlockRef { offset: Offset(64), class: SizeClass::holding(64).unwrap(), version: Version::FIRST };
        let meta = BlockMeta { write_id: WriteId::new(1, 1), expiry_tick: 0, user_flags: 0 };
        let header = BlockHeader::new(place, meta, pieces.0, pieces.1);
        for (action, brings, stores) in [
            (Action::Read(256), 256, 0),
            (Action::WriteBlock(header), 0, 40 + 3 + 5),
            (Action::WriteByte(7), 0, 1),
            (Action::CompareSwap { expected: 0, desired: 1 }, 8, 8),
        ] {
            let verb = PlannedVerb { subject: "anything", remote: Offset(64), action };
            assert_eq!((verb.read_bytes(), verb.written_bytes(pieces)), (brings, stores), "{action:?}");
            assert_eq!(verb.bytes(pieces), brings.max(stores), "{action:?}");
        }
    }
}
