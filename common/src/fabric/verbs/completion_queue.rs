//! A completion queue and the file that says when something is in it.
//!
//! Always true: the queue has an entry for every work request that may complete before it is polled, so it never
//! overruns; whoever makes it says how many. Events that were fetched are acknowledged before it is destroyed.

use std::ffi::CStr;
use std::mem::MaybeUninit;
use std::os::fd::RawFd;
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;

use rdma_sys::{
    ibv_comp_channel, ibv_cq, ibv_poll_cq, ibv_req_notify_cq, ibv_wc, ibv_wc_opcode, ibv_wc_status,
};

use super::context::Context;
use super::error::VerbsError;
use super::flight::Cause;
use crate::fabric::{Effect, FailureKind};

/// Entries fetched with one call: a cache line or two of the driver's, and little of the stack.
const POLL_ENTRIES: usize = 16;

struct Channel {
    raw: NonNull<ibv_comp_channel>,
    context: Arc<Context>,
}

impl Drop for Channel {
    fn drop(&mut self) {
        // SAFETY: made by `CompletionQueue::new`; the queue that used it is destroyed before.
        let status = unsafe { (self.context.symbols().ibv_destroy_comp_channel)(self.raw.as_ptr()) };
        if status != 0 {
            tracing::warn!(status, "ibv_destroy_comp_channel failed");
        }
    }
}

/// See the module.
pub(super) struct CompletionQueue {
    raw: NonNull<ibv_cq>,
    /// Declared behind `raw` and dropped after `drop` destroyed the queue.
    channel: Channel,
    unacknowledged: u32,
    /// An event was asked for, and not fetched yet.
    asked: bool,
}

// SAFETY: libibverbs' functions on a completion queue are safe to call from any thread.
unsafe impl Send for CompletionQueue {}

/// The end of a work request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Done {
    /// It and all before it are done.
    Well(u64),
    /// It failed.
    Failed(u64, Cause),
}

/// A work request that is over, where some of them are receives.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Arrival {
    /// Its number.
    pub(super) number: u64,
    /// Bytes of the message, if it is a receive that a Send used up.
    pub(super) received_bytes: Option<u32>,
    /// Why it failed, if it did.
    pub(super) failed: Option<Cause>,
}

impl CompletionQueue {
    /// A queue of at least `entries`.
    pub(super) fn new(context: &Arc<Context>, entries: usize) -> Result<Self, VerbsError> {
        let symbols = context.symbols();
        // SAFETY: an open context.
        let raw = unsafe { (symbols.ibv_create_comp_channel)(context.raw()) };
        let Some(raw) = NonNull::new(raw) else { return Err(VerbsError::last_os("ibv_create_comp_channel")) };
        let channel = Channel { raw, context: Arc::clone(context) };
        let count = i32::try_from(entries).unwrap_or(i32::MAX);
        // SAFETY: an open context and a channel of it; interrupt vector 0 always exists.
        let raw =
            unsafe { (symbols.ibv_create_cq)(context.raw(), count, null_mut(), channel.raw.as_ptr(), 0) };
        let Some(raw) = NonNull::new(raw) else {
            return Err(VerbsError::last_os(format!("ibv_create_cq of {entries} entries")));
        };
        Ok(Self { raw, channel, unacknowledged: 0, asked: false })
    }

    /// libibverbs' own.
    pub(super) fn raw(&self) -> *mut ibv_cq {
        self.raw.as_ptr()
    }

    /// Readable when an event was asked for and is there.
    pub(super) fn fd(&self) -> RawFd {
        // SAFETY: a live channel, whose file does not change.
        unsafe { self.channel.raw.as_ref() }.fd
    }

    /// Asks for an event at the next entry. One that was asked for earlier and not fetched will do, or is there already;
    /// asking anew would leave one more in the file each time that a caller finds its entry without waiting.
    pub(super) fn ask_event(&mut self) -> Result<(), VerbsError> {
        if self.asked {
            return Ok(());
        }
        // SAFETY: a live queue; the call goes through its driver's table.
        let status = unsafe { ibv_req_notify_cq(self.raw(), 0) };
        if status != 0 {
            return Err(VerbsError::number("ibv_req_notify_cq", status));
        }
        self.asked = true;
        Ok(())
    }

    /// Makes [`Self::take_event`] return where there is none.
    pub(super) fn make_nonblocking(&self) -> Result<(), VerbsError> {
        // SAFETY: an open file of ours.
        let status = unsafe { libc::fcntl(self.fd(), libc::F_SETFL, libc::O_NONBLOCK) };
        if status == 0 { Ok(()) } else { Err(VerbsError::last_os("fcntl of a completion channel")) }
    }

    /// Asks for an event at the next receive of a solicited message.
    pub(super) fn ask_solicited_event(&self) -> Result<(), VerbsError> {
        // SAFETY: a live queue; the call goes through its driver's table.
        let status = unsafe { ibv_req_notify_cq(self.raw(), 1) };
        if status == 0 { Ok(()) } else { Err(VerbsError::number("ibv_req_notify_cq", status)) }
    }

    /// Takes an event off the file, which must be readable; tells whether there was one.
    pub(super) fn take_event(&mut self) -> bool {
        let (mut cq, mut cookie) = (null_mut(), null_mut());
        let symbols = self.channel.context.symbols();
        // SAFETY: a live channel and two places to be filled in.
        let status = unsafe { (symbols.ibv_get_cq_event)(self.channel.raw.as_ptr(), &mut cq, &mut cookie) };
        if status == 0 {
            self.unacknowledged += 1;
            self.asked = false;
        }
        // Acknowledging takes a lock, so not each one; and the count must not wrap.
        if self.unacknowledged >= 1 << 10 {
            self.acknowledge();
        }
        status == 0
    }

    fn acknowledge(&mut self) {
        let count = std::mem::take(&mut self.unacknowledged);
        // SAFETY: a live queue, and as many events as were fetched.
        unsafe { (self.channel.context.symbols().ibv_ack_cq_events)(self.raw(), count) };
    }

    /// Hands all entries that are there to `each`, in order.
    pub(super) fn poll(&mut self, mut each: impl FnMut(Done)) -> Result<(), VerbsError> {
        self.poll_entries(|queue, entry| each(queue.done(entry)))
    }

    /// The same for a queue of receives.
    pub(super) fn poll_arrivals(&mut self, mut each: impl FnMut(Arrival)) -> Result<(), VerbsError> {
        self.poll_entries(|queue, entry| {
            let failed = match queue.done(entry) {
                Done::Well(_) => None,
                Done::Failed(_, cause) => Some(cause),
            };
            // Of a failed entry, only the number and the status mean anything.
            let received = failed.is_none() && entry.opcode == ibv_wc_opcode::IBV_WC_RECV;
            each(Arrival { number: entry.wr_id, received_bytes: received.then_some(entry.byte_len), failed });
        })
    }

    #[inline]
    fn poll_entries(&self, mut each: impl FnMut(&Self, &ibv_wc)) -> Result<(), VerbsError> {
        let mut entries = [const { MaybeUninit::<ibv_wc>::uninit() }; POLL_ENTRIES];
        loop {
            // SAFETY: a live queue and room for so many entries; the call goes through its driver's table.
            let count = unsafe { ibv_poll_cq(self.raw(), POLL_ENTRIES as i32, entries.as_mut_ptr().cast()) };
            let Ok(count) = usize::try_from(count) else {
                return Err(VerbsError::number("ibv_poll_cq", -count));
            };
            for entry in &entries[..count] {
                // SAFETY: the driver filled in the first `count` entries.
                each(self, unsafe { entry.assume_init_ref() });
            }
            if count < POLL_ENTRIES {
                return Ok(());
            }
        }
    }

    fn done(&self, entry: &ibv_wc) -> Done {
        if entry.status == ibv_wc_status::IBV_WC_SUCCESS {
            return Done::Well(entry.wr_id);
        }
        // SAFETY: any number may be asked for; the text is the library's and lives on.
        let text = unsafe { (self.channel.context.symbols().ibv_wc_status_str)(entry.status) };
        let name = if text.is_null() {
            "unknown status".to_owned()
        } else {
            // SAFETY: the library's texts end with a zero byte.
            unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
        };
        Done::Failed(entry.wr_id, cause(entry.status, entry.vendor_err, name))
    }
}

/// What a status means. The memory node refuses before it changes anything; after any other error nobody knows how
/// far it came.
fn cause(status: ibv_wc_status::Type, vendor: u32, name: String) -> Cause {
    match status {
        ibv_wc_status::IBV_WC_REM_ACCESS_ERR
        | ibv_wc_status::IBV_WC_REM_INV_REQ_ERR
        | ibv_wc_status::IBV_WC_REM_INV_RD_REQ_ERR => {
            Cause { kind: FailureKind::Access(name), effect: Effect::No }
        }
        ibv_wc_status::IBV_WC_RETRY_EXC_ERR
        | ibv_wc_status::IBV_WC_RNR_RETRY_EXC_ERR
        | ibv_wc_status::IBV_WC_RESP_TIMEOUT_ERR
        | ibv_wc_status::IBV_WC_REM_ABORT_ERR
        | ibv_wc_status::IBV_WC_WR_FLUSH_ERR => {
            Cause { kind: FailureKind::Disconnected(name), effect: Effect::Unknown }
        }
        status => Cause { kind: FailureKind::Card { status, name, vendor }, effect: Effect::Unknown },
    }
}

impl Drop for CompletionQueue {
    fn drop(&mut self) {
        self.acknowledge();
        // SAFETY: made by `new`, destroyed once; the queue pairs that used it held it.
        let status = unsafe { (self.channel.context.symbols().ibv_destroy_cq)(self.raw()) };
        if status != 0 {
            tracing::warn!(status, "ibv_destroy_cq failed");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_says_whether_something_happened() {
        let of = |status| cause(status, 7, "name".into());
        for status in [ibv_wc_status::IBV_WC_REM_ACCESS_ERR, ibv_wc_status::IBV_WC_REM_INV_REQ_ERR] {
            assert_eq!(of(status), Cause { kind: FailureKind::Access("name".into()), effect: Effect::No });
        }
        for status in [ibv_wc_status::IBV_WC_RETRY_EXC_ERR, ibv_wc_status::IBV_WC_WR_FLUSH_ERR] {
            assert!(matches!(
                of(status),
                Cause { kind: FailureKind::Disconnected(_), effect: Effect::Unknown }
            ));
        }
    }

    /// A status that no header has is passed on as it came.
    #[test]
    fn an_unknown_status_is_data() {
        for status in [ibv_wc_status::IBV_WC_GENERAL_ERR, 4711, u32::MAX] {
            let Cause { kind, effect } = cause(status, 0xbeef, "name".into());
            assert_eq!(kind, FailureKind::Card { status, name: "name".into(), vendor: 0xbeef });
            assert_eq!(effect, Effect::Unknown);
        }
    }
}
