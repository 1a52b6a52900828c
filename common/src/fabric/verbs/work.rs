//! A list of work requests, built and posted with one doorbell.
//!
//! Always true: requests point to each other and to their scatter entries only while [`WorkList::post`] runs, so
//! growing the lists before leaves no pointer behind. Their numbers are consecutive.

use std::ptr::null_mut;

use rdma_sys::{
    atomic_t, bind_mw_tso_union_t, ibv_post_send, ibv_send_flags, ibv_send_wr, ibv_sge, ibv_wr_opcode,
    imm_data_invalidated_rkey_union_t, qp_type_t, rdma_t, tso_t, wr_t, xrc_t,
};

use super::error::VerbsError;
use super::queue_pair::QueuePair;

/// Where a verb goes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Remote {
    /// Virtual address at the memory node.
    pub(super) address: u64,
    /// The region's key there.
    pub(super) rkey: u32,
}

/// How far a list got.
#[derive(Debug)]
pub(super) struct PostFailure {
    /// Requests that were taken before the one that was not.
    pub(super) posted: usize,
    /// Why.
    pub(super) error: VerbsError,
}

struct Request {
    raw: ibv_send_wr,
    gather_count: usize,
}

/// See the module. Kept between posts, so that a steady state allocates nothing.
#[derive(Default)]
pub(super) struct WorkList {
    requests: Vec<Request>,
    gather: Vec<ibv_sge>,
}

// SAFETY: pointers in it are only valid, and only used, within `post`.
unsafe impl Send for WorkList {}

impl WorkList {
    /// Forgets what is in it.
    pub(super) fn clear(&mut self) {
        self.requests.clear();
        self.gather.clear();
    }

    /// A READ into that entry.
    pub(super) fn read(&mut self, number: u64, remote: Remote, into: ibv_sge) {
        self.push(number, ibv_wr_opcode::IBV_WR_RDMA_READ, rdma(remote), 0, &[into]);
    }

    /// A WRITE of registered bytes.
    pub(super) fn write(&mut self, number: u64, remote: Remote, from: ibv_sge) {
        self.push(number, ibv_wr_opcode::IBV_WR_RDMA_WRITE, rdma(remote), 0, &[from]);
    }

    /// A WRITE whose bytes travel inside the request; they are read while it is posted.
    pub(super) fn write_inline(&mut self, number: u64, remote: Remote, from: &[&[u8]]) {
        let entry = |piece: &&[u8]| ibv_sge {
            addr: piece.as_ptr().addr() as u64,
            length: piece.len() as u32,
            lkey: 0,
        };
        let entries: smallvec::SmallVec<[ibv_sge; 3]> = from.iter().map(entry).collect();
        let inline = ibv_send_flags::IBV_SEND_INLINE.0;
        self.push(number, ibv_wr_opcode::IBV_WR_RDMA_WRITE, rdma(remote), inline, &entries);
    }

    /// A CAS whose result lands in that entry.
    pub(super) fn compare_swap(&mut self, number: u64, remote: Remote, values: [u64; 2], old: ibv_sge) {
        let [compare_add, swap] = values;
        let atomic = atomic_t { remote_addr: remote.address, compare_add, swap, rkey: remote.rkey };
        self.push(number, ibv_wr_opcode::IBV_WR_ATOMIC_CMP_AND_SWP, wr_t { atomic }, 0, &[old]);
    }

    /// A FAA whose result lands in that entry.
    pub(super) fn fetch_add(&mut self, number: u64, remote: Remote, compare_add: u64, old: ibv_sge) {
        let atomic = atomic_t { remote_addr: remote.address, compare_add, swap: 0, rkey: remote.rkey };
        self.push(number, ibv_wr_opcode::IBV_WR_ATOMIC_FETCH_AND_ADD, wr_t { atomic }, 0, &[old]);
    }

    /// A Send of registered bytes, which the driver copies at once if they are to go `inline`; a `fenced` one waits for
    /// all READs before it.
    pub(super) fn send(&mut self, number: u64, from: ibv_sge, inline: bool, fenced: bool) {
        let flag = |on: bool, flag: ibv_send_flags| if on { flag.0 } else { 0 };
        let flags = ibv_send_flags::IBV_SEND_SOLICITED.0
            | flag(inline, ibv_send_flags::IBV_SEND_INLINE)
            | flag(fenced, ibv_send_flags::IBV_SEND_FENCE);
        let nowhere = rdma(Remote { address: 0, rkey: 0 });
        self.push(number, ibv_wr_opcode::IBV_WR_SEND, nowhere, flags, &[from]);
    }

    /// Whether a READ is among them.
    pub(super) fn has_reads(&self) -> bool {
        self.requests.iter().any(|request| request.raw.opcode == ibv_wr_opcode::IBV_WR_RDMA_READ)
    }

    /// Asks for a completion of the last one.
    pub(super) fn signal_last(&mut self) {
        if let Some(request) = self.requests.last_mut() {
            request.raw.send_flags |= ibv_send_flags::IBV_SEND_SIGNALED.0;
        }
    }

    fn push(
        &mut self,
        wr_id: u64,
        opcode: ibv_wr_opcode::Type,
        wr: wr_t,
        send_flags: u32,
        gather: &[ibv_sge],
    ) {
        // A length of 0 means 2^31 bytes to some cards, so empty pieces are left out.
        let before = self.gather.len();
        self.gather.extend(gather.iter().filter(|entry| entry.length > 0));
        let gather_count = self.gather.len() - before;
        let raw = ibv_send_wr {
            wr_id,
            next: null_mut(),
            sg_list: null_mut(),
            num_sge: gather_count as i32,
            opcode,
            send_flags,
            imm_data_invalidated_rkey_union: imm_data_invalidated_rkey_union_t { imm_data: 0 },
            wr,
            qp_type: qp_type_t { xrc: xrc_t { remote_srqn: 0 } },
            bind_mw_tso_union: bind_mw_tso_union_t { tso: tso_t { hdr: null_mut(), hdr_sz: 0, mss: 0 } },
        };
        self.requests.push(Request { raw, gather_count });
    }

    /// Posts all of them with one doorbell.
    ///
    /// # Safety
    /// All entries must name registered memory, or for inline ones readable memory, that is the card's until the
    /// request is done. The queue pair must have room for all of them.
    pub(super) unsafe fn post(&mut self, qp: &QueuePair) -> Result<(), PostFailure> {
        if self.requests.is_empty() {
            return Ok(());
        }
        let mut gather = self.gather.as_mut_ptr();
        for request in &mut self.requests {
            request.raw.sg_list = gather;
            // SAFETY: counts add up to the list's length.
            gather = unsafe { gather.add(request.gather_count) };
        }
        let mut next = null_mut();
        for request in self.requests.iter_mut().rev() {
            request.raw.next = next;
            next = &raw mut request.raw;
        }
        let mut refused = null_mut();
        // SAFETY: a live queue pair and a linked list; the caller promised the memory.
        let status = unsafe { ibv_post_send(qp.raw(), next, &mut refused) };
        if status == 0 {
            return Ok(());
        }
        let posted = self.posted_before(refused);
        // Drivers return the number, some of them negative.
        let error = VerbsError::number("ibv_post_send", status.abs());
        Err(PostFailure { posted, error })
    }

    /// How many requests were taken, if the driver names `refused` as the first that was not. Some name none when they had
    /// queued all and then failed to tell the card, which may find them all the same.
    fn posted_before(&self, refused: *const ibv_send_wr) -> usize {
        let named = self.requests.iter().position(|request| std::ptr::eq(&request.raw, refused));
        named.unwrap_or(self.requests.len())
    }
}

fn rdma(remote: Remote) -> wr_t {
    wr_t { rdma: rdma_t { remote_addr: remote.address, rkey: remote.rkey } }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Where lkeys and rkeys differ, as they do on some cards, mixing them up is an access error. On cards where they
    /// are equal nothing would show it, so the requests themselves are looked at.
    #[test]
    fn an_rkey_names_the_remote_place_and_an_lkey_the_local_one() {
        let mut list = WorkList::default();
        let remote = Remote { address: 0x1000, rkey: 0x7777 };
        let local = ibv_sge { addr: 0x2000, length: 8, lkey: 0x1111 };
        list.read(0, remote, local);
        list.write(1, remote, local);
        list.compare_swap(2, remote, [3, 4], local);
        list.fetch_add(3, remote, 5, local);
        assert!(list.gather.iter().all(|entry| entry.lkey == 0x1111 && entry.addr == 0x2000));
        for request in &list.requests[..2] {
            // SAFETY: a READ or WRITE has this member.
            let rdma = unsafe { request.raw.wr.rdma };
            assert_eq!((rdma.remote_addr, rdma.rkey), (0x1000, 0x7777));
        }
        for (request, values) in list.requests[2..].iter().zip([(3, 4), (5, 0)]) {
            // SAFETY: an atomic has this member.
            let atomic = unsafe { request.raw.wr.atomic };
            assert_eq!((atomic.remote_addr, atomic.rkey), (0x1000, 0x7777));
            assert_eq!((atomic.compare_add, atomic.swap), values);
        }
    }

    /// "Nothing was posted" gives buffers back to the caller, so it is said only if the driver says so.
    #[test]
    fn what_the_driver_does_not_name_counts_as_posted() {
        let mut list = WorkList::default();
        let remote = Remote { address: 0x1000, rkey: 1 };
        (0..3).for_each(|number| list.write_inline(number, remote, &[b"a"]));
        for at in 0..3 {
            assert_eq!(list.posted_before(&raw const list.requests[at].raw), at);
        }
        assert_eq!(list.posted_before(std::ptr::null()), 3);
    }

    /// A message wakes whoever sleeps at the other side; behind a READ it waits for it.
    #[test]
    fn a_send_is_solicited_and_fenced_where_a_read_is_before_it() {
        let mut list = WorkList::default();
        let entry = ibv_sge { addr: 0x2000, length: 40, lkey: 0x1111 };
        list.send(0, entry, true, list.has_reads());
        list.read(1, Remote { address: 0, rkey: 1 }, entry);
        list.send(2, entry, false, list.has_reads());
        let solicited = ibv_send_flags::IBV_SEND_SOLICITED.0;
        let flags: Vec<u32> = list.requests.iter().map(|request| request.raw.send_flags).collect();
        let (inline, fence) = (ibv_send_flags::IBV_SEND_INLINE.0, ibv_send_flags::IBV_SEND_FENCE.0);
        assert_eq!(flags, [solicited | inline, 0, solicited | fence]);
    }

    #[test]
    fn empty_pieces_take_no_entry_and_only_the_last_is_signalled() {
        let mut list = WorkList::default();
        let remote = Remote { address: 0, rkey: 1 };
        list.write_inline(7, remote, &[b"head", b"", b"value"]);
        list.read(8, remote, ibv_sge { addr: 0, length: 0, lkey: 0 });
        list.signal_last();
        let counts: Vec<i32> = list.requests.iter().map(|request| request.raw.num_sge).collect();
        assert_eq!((counts, list.gather.len()), (vec![2, 0], 2));
        let flags: Vec<u32> = list.requests.iter().map(|request| request.raw.send_flags).collect();
        assert_eq!(flags, [ibv_send_flags::IBV_SEND_INLINE.0, ibv_send_flags::IBV_SEND_SIGNALED.0]);
        list.clear();
        assert!(list.requests.is_empty() && list.gather.is_empty());
    }
}
