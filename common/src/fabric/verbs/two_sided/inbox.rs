//! Where messages arrive: receives, their memory, and the queue that says so.
//!
//! Always true: a slot is the card's from [`Inbox::post`] until its number comes out of [`Inbox::poll`]. Its owner drops
//! the queue pair before this. The queue has room for every receive, and for as many Sends if they complete here too.

use std::ptr::null_mut;
use std::sync::Arc;

use rdma_sys::{ibv_post_recv, ibv_recv_wr, ibv_sge};

use super::super::completion_queue::{Arrival, CompletionQueue};
use super::super::error::VerbsError;
use super::super::queue_pair::QueuePair;
use super::super::region::{LocalMemory, ProtectionDomain};
use super::SLOT_BYTES;
use crate::layout::Offset;

/// Bit of a work request's number that tells a Send from a receive.
pub(super) const SEND: u64 = 1 << 63;

/// See the module.
pub(in super::super) struct Inbox {
    completions: CompletionQueue,
    memory: LocalMemory,
    slot_count: usize,
}

impl Inbox {
    /// With `slot_count` slots, and room in the queue for `sends` completions of another kind.
    pub(in super::super) fn new(
        domain: &Arc<ProtectionDomain>,
        slot_count: usize,
        sends: usize,
    ) -> Result<Self, VerbsError> {
        let completions = CompletionQueue::new(domain.context(), slot_count + sends)?;
        completions.make_nonblocking()?;
        let memory = LocalMemory::new(domain, slot_count * SLOT_BYTES)?;
        Ok(Self { completions, memory, slot_count })
    }

    /// How many messages can be on their way to here.
    pub(in super::super) fn slot_count(&self) -> usize {
        self.slot_count
    }

    /// Where its completions arrive.
    pub(in super::super) fn completions(&self) -> &CompletionQueue {
        &self.completions
    }

    /// Lets a message arrive in that slot, through `queue_pair`, whose receives must complete here.
    pub(in super::super) fn post(&self, queue_pair: &QueuePair, slot: usize) -> Result<(), VerbsError> {
        assert!(slot < self.slot_count, "slot {slot} of {}", self.slot_count);
        let addr = self.memory.start().as_ptr().addr() as u64 + (slot * SLOT_BYTES) as u64;
        let mut entry = ibv_sge { addr, length: SLOT_BYTES as u32, lkey: self.memory.lkey() };
        let mut request =
            ibv_recv_wr { wr_id: slot as u64, next: null_mut(), sg_list: &mut entry, num_sge: 1 };
        let mut refused = null_mut();
        // SAFETY: a live queue pair, and an entry of memory that outlives it as its owner promised.
        let status = unsafe { ibv_post_recv(queue_pair.raw(), &mut request, &mut refused) };
        if status == 0 { Ok(()) } else { Err(VerbsError::number("ibv_post_recv", status.abs())) }
    }

    /// Lets messages arrive in all slots.
    pub(in super::super) fn post_all(&self, queue_pair: &QueuePair) -> Result<(), VerbsError> {
        (0..self.slot_count).try_for_each(|slot| self.post(queue_pair, slot))
    }

    /// Copies what arrived in a slot that is not the card's.
    pub(super) fn read(&self, slot: usize, into: &mut [u8]) {
        let at = Offset((slot * SLOT_BYTES) as u64);
        let into = if into.len() > SLOT_BYTES { &mut into[..SLOT_BYTES] } else { into };
        if let Err(error) = self.memory.words().read(at, into) {
            unreachable!("slot {slot} is outside the messages' memory: {error}");
        }
    }

    /// Hands out what is there.
    pub(super) fn poll(&mut self, each: impl FnMut(Arrival)) -> Result<(), VerbsError> {
        self.completions.poll_arrivals(each)
    }

    /// Asks for an event at the next completion of any kind.
    pub(super) fn ask_event(&mut self) -> Result<(), VerbsError> {
        self.completions.ask_event()
    }

    /// Takes events off the queue's file, if there are any.
    pub(super) fn take_events(&mut self) {
        while self.completions.take_event() {}
    }
}
