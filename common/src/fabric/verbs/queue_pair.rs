//! A queue pair, from its making to its end.
//!
//! Always true: it is destroyed before its completion queue and its protection domain; once destroyed, no verb that
//! came through it takes effect any more, at either end. What the two sides agreed on is set here, in the states'
//! attributes, and nowhere left to a library's default.

use std::ptr::{NonNull, null_mut};
use std::sync::Arc;

use rdma_sys::{
    ibv_access_flags, ibv_qp, ibv_qp_attr, ibv_qp_attr_mask, ibv_qp_cap, ibv_qp_init_attr, ibv_qp_state,
    ibv_qp_type,
};

use super::cm::Identifier;
use super::error::VerbsError;
use super::negotiate::Mtu;
use super::region::{Access, ProtectionDomain};
use crate::fabric::GATHER_MAX;

/// The time after which a packet is sent again is 4.096 µs · 2^14 = 67 ms: a lost acknowledgement stalls a session for
/// that long. With 18, the usual default, it would be a second.
const TIMEOUT: u8 = 14;
/// How often it is sent again before the connection counts as lost: after half a second, or two on cards that stretch
/// the timeout fourfold. Not 7, the most there is: rxe takes that for ever.
pub(super) const RETRIES: u8 = 6;

/// What a queue pair is to hold.
#[derive(Clone, Copy, Debug)]
pub(super) struct Capacity {
    /// Work requests to send.
    pub(super) work_requests: u32,
    /// Receives; nobody sends to a queue pair whose commits are one-sided.
    pub(super) receives: u32,
    /// Bytes that travel inside a work request; less is taken if the card can't.
    pub(super) inline_bytes: u32,
}

/// See the module.
pub(super) struct QueuePair {
    raw: NonNull<ibv_qp>,
    domain: Arc<ProtectionDomain>,
    inline_bytes: u32,
}

// SAFETY: libibverbs' functions on a queue pair are safe to call from any thread.
unsafe impl Send for QueuePair {}

impl QueuePair {
    /// A reliable one, in its first state.
    ///
    /// # Safety
    /// `send_cq` and `receive_cq` must be completion queues of the same device that live until this is dropped.
    pub(super) unsafe fn new(
        domain: &Arc<ProtectionDomain>,
        send_cq: *mut rdma_sys::ibv_cq,
        receive_cq: *mut rdma_sys::ibv_cq,
        capacity: Capacity,
    ) -> Result<Self, VerbsError> {
        // Drivers refuse what they can't do instead of lowering it, so the inline size is found by trying.
        let sizes = [capacity.inline_bytes, capacity.inline_bytes / 2, 64, 0];
        let mut refused = None;
        for inline_bytes in sizes.into_iter().filter(|bytes| *bytes <= capacity.inline_bytes) {
            let mut attributes = ibv_qp_init_attr {
                qp_context: null_mut(),
                send_cq,
                recv_cq: receive_cq,
                srq: null_mut(),
                cap: ibv_qp_cap {
                    max_send_wr: capacity.work_requests,
                    max_recv_wr: capacity.receives.max(1),
                    max_send_sge: GATHER_MAX as u32,
                    max_recv_sge: 1,
                    max_inline_data: inline_bytes,
                },
                qp_type: ibv_qp_type::IBV_QPT_RC,
                sq_sig_all: 0,
            };
            let symbols = domain.context().symbols();
            // SAFETY: a live domain, and live queues as the caller promised.
            let raw = unsafe { (symbols.ibv_create_qp)(domain.raw(), &mut attributes) };
            match NonNull::new(raw) {
                Some(raw) => {
                    let inline_bytes = attributes.cap.max_inline_data;
                    return Ok(Self { raw, domain: Arc::clone(domain), inline_bytes });
                }
                None => {
                    refused =
                        refused.or(Some(VerbsError::last_os(format!("ibv_create_qp with {capacity:?}"))))
                }
            }
        }
        Err(refused.unwrap_or_else(|| VerbsError::last_os("ibv_create_qp")))
    }

    /// libibverbs' own.
    pub(super) fn raw(&self) -> *mut ibv_qp {
        self.raw.as_ptr()
    }

    /// Its number at its card.
    pub(super) fn number(&self) -> u32 {
        // SAFETY: a live queue pair, whose number does not change.
        unsafe { self.raw.as_ref() }.qp_num
    }

    /// Bytes that may travel inside a work request.
    pub(super) fn inline_bytes(&self) -> usize {
        self.inline_bytes as usize
    }

    /// Binds it to the identifier's port. `peer` is what the other side may do through it; none is nothing.
    pub(super) fn initialise(&self, id: &Identifier, peer: Option<Access>) -> Result<(), VerbsError> {
        let (mut attributes, mask) = id.qp_attributes(ibv_qp_state::IBV_QPS_INIT)?;
        attributes.qp_access_flags =
            peer.map_or(0, |access| access.flags() & !ibv_access_flags::IBV_ACCESS_LOCAL_WRITE.0);
        self.modify(&mut attributes, mask | ibv_qp_attr_mask::IBV_QP_ACCESS_FLAGS.0 as i32, "INIT")
    }

    /// Makes it ready to answer: with that MTU, and so many outstanding READs and atomics. A GID index that was
    /// chosen by hand must be the one that librdmacm takes: it goes by address, and RoCE v1 and v2 share those.
    pub(super) fn make_ready_to_receive(
        &self,
        id: &Identifier,
        mtu: Mtu,
        depth: u8,
        gid_index: Option<u32>,
    ) -> Result<(), VerbsError> {
        let (mut attributes, mask) = id.qp_attributes(ibv_qp_state::IBV_QPS_RTR)?;
        let taken = u32::from(attributes.ah_attr.grh.sgid_index);
        if let Some(wanted) = gid_index.filter(|wanted| *wanted != taken) {
            return Err(VerbsError::OtherDevice {
                address: "the connection".to_owned(),
                wanted: format!("GID index {wanted}"),
                found: format!("index {taken}; see default_roce_mode in /sys/kernel/config/rdma_cm"),
            });
        }
        attributes.path_mtu = mtu.code();
        attributes.max_dest_rd_atomic = depth;
        let ours = ibv_qp_attr_mask::IBV_QP_PATH_MTU.0 | ibv_qp_attr_mask::IBV_QP_MAX_DEST_RD_ATOMIC.0;
        self.modify(&mut attributes, mask | ours as i32, "RTR")
    }

    /// Makes it ready to ask, with so many outstanding READs and atomics.
    pub(super) fn make_ready_to_send(&self, id: &Identifier, depth: u8) -> Result<(), VerbsError> {
        let (mut attributes, mask) = id.qp_attributes(ibv_qp_state::IBV_QPS_RTS)?;
        attributes.timeout = TIMEOUT;
        attributes.retry_cnt = RETRIES;
        attributes.rnr_retry = RETRIES;
        attributes.max_rd_atomic = depth;
        let ours = ibv_qp_attr_mask::IBV_QP_TIMEOUT.0
            | ibv_qp_attr_mask::IBV_QP_RETRY_CNT.0
            | ibv_qp_attr_mask::IBV_QP_RNR_RETRY.0
            | ibv_qp_attr_mask::IBV_QP_MAX_QP_RD_ATOMIC.0;
        self.modify(&mut attributes, mask | ours as i32, "RTS")
    }

    /// Ends its work: nothing more is sent, what is queued is flushed.
    pub(super) fn make_error(&self) -> Result<(), VerbsError> {
        // SAFETY: a structure of numbers, for which zero is a value.
        let mut attributes: ibv_qp_attr = unsafe { std::mem::zeroed() };
        attributes.qp_state = ibv_qp_state::IBV_QPS_ERR;
        self.modify(&mut attributes, ibv_qp_attr_mask::IBV_QP_STATE.0 as i32, "ERR")
    }

    fn modify(&self, attributes: &mut ibv_qp_attr, mask: i32, state: &str) -> Result<(), VerbsError> {
        let symbols = self.domain.context().symbols();
        // SAFETY: a live queue pair and attributes that are filled in as far as the mask says.
        let status = unsafe { (symbols.ibv_modify_qp)(self.raw(), attributes, mask) };
        if status == 0 {
            Ok(())
        } else {
            Err(VerbsError::number(format!("moving a queue pair to {state}"), status))
        }
    }
}

impl Drop for QueuePair {
    fn drop(&mut self) {
        // SAFETY: made by `new`, destroyed once. When this returns, the card has forgotten it.
        let status = unsafe { (self.domain.context().symbols().ibv_destroy_qp)(self.raw()) };
        if status != 0 {
            tracing::warn!(status, "ibv_destroy_qp failed");
        }
    }
}
