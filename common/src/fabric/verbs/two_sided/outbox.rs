//! Where a client's commits wait to leave.
//!
//! Always true: a commit's bytes lie in the slot of its work request's number and stay until the card is done with the
//! request: there are as many slots as the send queue has entries.

use std::sync::Arc;

use rdma_sys::ibv_sge;

use super::super::error::VerbsError;
use super::super::region::{LocalMemory, ProtectionDomain};
use super::message::{REQUEST_BYTES, Request};
use super::{Operation, SLOT_BYTES};
use crate::layout::Offset;

/// See the module.
pub(in super::super) struct Outbox {
    memory: LocalMemory,
    slot_count: u64,
    /// Sequence of the next commit.
    next: u64,
}

impl Outbox {
    /// For a send queue of `entries`.
    pub(in super::super) fn new(domain: &Arc<ProtectionDomain>, entries: usize) -> Result<Self, VerbsError> {
        Ok(Self {
            memory: LocalMemory::new(domain, entries * SLOT_BYTES)?,
            slot_count: entries as u64,
            next: 0,
        })
    }

    /// Sequence of the next commit.
    pub(in super::super) fn next(&self) -> u64 {
        self.next
    }

    /// So many commits were posted.
    pub(in super::super) fn advance(&mut self, count: u64) {
        self.next += count;
    }

    /// Writes the message of the work request `number`.
    pub(in super::super) fn write(
        &self,
        number: u64,
        sequence: u64,
        remote: Offset,
        rkey: u32,
        operation: Operation,
    ) -> ibv_sge {
        let at = (number % self.slot_count) * SLOT_BYTES as u64;
        let bytes = Request { sequence, remote, rkey, operation }.encode();
        if let Err(error) = self.memory.words().write(Offset(at), &bytes) {
            unreachable!("a slot at {at} is outside the messages' memory: {error}");
        }
        let addr = self.memory.start().as_ptr().addr() as u64 + at;
        ibv_sge { addr, length: REQUEST_BYTES as u32, lkey: self.memory.lkey() }
    }

    /// Bytes that a card must take inside a work request, if it is to take messages so.
    pub(in super::super) const fn inline_bytes() -> usize {
        REQUEST_BYTES
    }
}
