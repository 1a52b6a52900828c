//! librdmacm: finding a device by its address, and making connections.
//!
//! Always true: an event is copied and acknowledged before anybody acts on it, so destroying an identifier never
//! waits for an acknowledgement; an identifier holds its channel. An identifier carries no queue pair:
//! queue pairs are moved through their states by us ([`super::queue_pair`]), because only so can the MTU, the
//! timeout and the depths be what both sides agreed on.

use std::ffi::CStr;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::RawFd;
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rdma_sys::{
    ibv_qp_attr, ibv_qp_state, rdma_cm_event, rdma_cm_event_type, rdma_cm_id, rdma_conn_param,
    rdma_event_channel, rdma_port_space,
};

use super::error::VerbsError;
use super::symbols::{Symbols, symbols};

/// Requests that may wait for the listener's thread. It answers within microseconds; this is for bursts.
const BACKLOG: i32 = 256;
/// A connection request may carry this much.
const PRIVATE_BYTES_MAX: usize = 256;

/// Where events of identifiers arrive.
pub(super) struct EventChannel {
    symbols: &'static Symbols,
    raw: NonNull<rdma_event_channel>,
}

// SAFETY: librdmacm's functions are safe to call from any thread.
unsafe impl Send for EventChannel {}
// SAFETY: as above.
unsafe impl Sync for EventChannel {}

impl EventChannel {
    /// A new one, which never blocks.
    pub(super) fn new() -> Result<Arc<Self>, VerbsError> {
        let symbols = symbols()?;
        // SAFETY: no arguments.
        let raw = unsafe { (symbols.rdma_create_event_channel)() };
        let Some(raw) = NonNull::new(raw) else {
            return Err(VerbsError::last_os(
                "rdma_create_event_channel (is the kernel module rdma_ucm loaded, and /dev/infiniband/rdma_cm allowed?)",
            ));
        };
        let channel = Self { symbols, raw };
        // SAFETY: an open file of ours.
        let status = unsafe { libc::fcntl(channel.fd(), libc::F_SETFL, libc::O_NONBLOCK) };
        if status != 0 {
            return Err(VerbsError::last_os("fcntl of the event channel"));
        }
        Ok(Arc::new(channel))
    }

    /// Readable when an event is there.
    pub(super) fn fd(&self) -> RawFd {
        // SAFETY: a live channel, whose file does not change.
        unsafe { self.raw.as_ref() }.fd
    }

    /// The next event, if there is one.
    pub(super) fn next(&self) -> Result<Option<Event>, VerbsError> {
        let mut raw: *mut rdma_cm_event = null_mut();
        // SAFETY: a live channel and a pointer to be filled in.
        let status = unsafe { (self.symbols.rdma_get_cm_event)(self.raw.as_ptr(), &mut raw) };
        if status != 0 {
            let error = io::Error::last_os_error();
            return match error.kind() {
                io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => Ok(None),
                _ => Err(VerbsError::last_os("rdma_get_cm_event")),
            };
        }
        let Some(raw) = NonNull::new(raw) else { return Ok(None) };
        // SAFETY: an event that was just handed to us and is not acknowledged yet.
        let event = Event::copy(unsafe { raw.as_ref() });
        // SAFETY: acknowledged once.
        let status = unsafe { (self.symbols.rdma_ack_cm_event)(raw.as_ptr()) };
        if status != 0 {
            tracing::warn!(status, "rdma_ack_cm_event failed");
        }
        Ok(Some(event))
    }

    /// The next event, waited for.
    pub(super) fn wait(&self, deadline: Instant, doing: &'static str) -> Result<Event, VerbsError> {
        loop {
            if let Some(event) = self.next()? {
                return Ok(event);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(VerbsError::Timeout { doing });
            }
            wait_readable(&mut [self.fd()], left);
        }
    }
}

impl Drop for EventChannel {
    fn drop(&mut self) {
        // SAFETY: made by `new`; identifiers hold the channel, so none is left.
        unsafe { (self.symbols.rdma_destroy_event_channel)(self.raw.as_ptr()) };
    }
}

/// Waits until one of `files` is readable or broken, a signal comes, or the time is over. Files that are not, are
/// set to -1.
pub(super) fn wait_readable(files: &mut [RawFd], timeout: Duration) {
    let mut polled: smallvec::SmallVec<[libc::pollfd; 4]> =
        files.iter().map(|fd| libc::pollfd { fd: *fd, events: libc::POLLIN, revents: 0 }).collect();
    let timeout = libc::timespec {
        tv_sec: libc::time_t::try_from(timeout.as_secs()).unwrap_or(libc::time_t::MAX),
        tv_nsec: timeout.subsec_nanos().into(),
    };
    let count = polled.len() as libc::nfds_t;
    // SAFETY: a list of `count` entries and a time; no signal mask.
    let ready = unsafe { libc::ppoll(polled.as_mut_ptr(), count, &timeout, std::ptr::null()) };
    for (file, polled) in files.iter_mut().zip(&polled) {
        if ready <= 0 || polled.revents == 0 {
            *file = -1;
        }
    }
}

/// Something happened to an identifier. The raw identifier is only a name, except in a connection request, where
/// it becomes the receiver's to destroy.
#[derive(Clone, Debug)]
pub(super) struct Event {
    /// What.
    pub(super) kind: rdma_cm_event_type::Type,
    /// An error number or a reason; 0 if all is well.
    pub(super) status: i32,
    /// To which identifier.
    pub(super) id: *mut rdma_cm_id,
    /// READs and atomics that the receiver of this event is asked to answer at once.
    pub(super) responder_depth: u8,
    /// The other side's queue pair.
    pub(super) qp_number: u32,
    /// What the other side sent along.
    pub(super) private_data: Vec<u8>,
}

impl Event {
    fn copy(event: &rdma_cm_event) -> Self {
        use rdma_cm_event_type::*;
        let connection = matches!(
            event.event,
            RDMA_CM_EVENT_CONNECT_REQUEST
                | RDMA_CM_EVENT_CONNECT_RESPONSE
                | RDMA_CM_EVENT_REJECTED
                | RDMA_CM_EVENT_ESTABLISHED
        );
        let mut copy = Self {
            kind: event.event,
            status: event.status,
            id: event.id,
            responder_depth: 0,
            qp_number: 0,
            private_data: Vec::new(),
        };
        if connection {
            // SAFETY: for these events of a connected port space, librdmacm fills in this member.
            let param = unsafe { &event.param.conn };
            copy.responder_depth = param.responder_resources;
            copy.qp_number = param.qp_num;
            let bytes = usize::from(param.private_data_len).min(PRIVATE_BYTES_MAX);
            if !param.private_data.is_null() && bytes > 0 {
                // SAFETY: librdmacm gave so many bytes, which live until the event is acknowledged.
                copy.private_data =
                    unsafe { std::slice::from_raw_parts(param.private_data.cast(), bytes) }.to_vec();
            }
        }
        copy
    }

    /// librdmacm's name for the kind.
    pub(super) fn name(&self) -> &'static str {
        const NAMES: [&str; 16] = [
            "ADDR_RESOLVED",
            "ADDR_ERROR",
            "ROUTE_RESOLVED",
            "ROUTE_ERROR",
            "CONNECT_REQUEST",
            "CONNECT_RESPONSE",
            "CONNECT_ERROR",
            "UNREACHABLE",
            "REJECTED",
            "ESTABLISHED",
            "DISCONNECTED",
            "DEVICE_REMOVAL",
            "MULTICAST_JOIN",
            "MULTICAST_ERROR",
            "ADDR_CHANGE",
            "TIMEWAIT_EXIT",
        ];
        NAMES.get(self.kind as usize).copied().unwrap_or("unknown event")
    }
}

/// What goes with a connection request or its acceptance.
pub(super) struct Parameters<'a> {
    /// For the other side.
    pub(super) private_data: &'a [u8],
    /// READs and atomics that this side answers at once.
    pub(super) responder_depth: u8,
    /// READs and atomics that this side has outstanding at once.
    pub(super) initiator_depth: u8,
    /// This side's queue pair.
    pub(super) qp_number: u32,
}

impl Parameters<'_> {
    fn raw(&self) -> rdma_conn_param {
        rdma_conn_param {
            private_data: self.private_data.as_ptr().cast(),
            // Ours are 24 bytes at most.
            private_data_len: self.private_data.len() as u8,
            responder_resources: self.responder_depth,
            initiator_depth: self.initiator_depth,
            flow_control: 1,
            retry_count: super::queue_pair::RETRIES,
            rnr_retry_count: super::queue_pair::RETRIES,
            srq: 0,
            qp_num: self.qp_number,
        }
    }
}

/// A connection, or a listener, or one on its way to be either. Destroyed when dropped, which ends the connection.
pub(super) struct Identifier {
    channel: Arc<EventChannel>,
    raw: NonNull<rdma_cm_id>,
}

// SAFETY: librdmacm's functions are safe to call from any thread; whoever owns the identifier calls them.
unsafe impl Send for Identifier {}

impl Identifier {
    /// A new one, of the TCP port space.
    pub(super) fn new(channel: &Arc<EventChannel>) -> Result<Self, VerbsError> {
        let mut raw = null_mut();
        let space = rdma_port_space::RDMA_PS_TCP;
        // SAFETY: a live channel and a pointer to be filled in.
        let status =
            unsafe { (channel.symbols.rdma_create_id)(channel.raw.as_ptr(), &mut raw, null_mut(), space) };
        match NonNull::new(raw) {
            Some(raw) if status == 0 => Ok(Self { channel: Arc::clone(channel), raw }),
            _ => Err(VerbsError::last_os("rdma_create_id")),
        }
    }

    /// The identifier that a connection request brought.
    ///
    /// # Safety
    /// `event` must be a connection request of `channel` that nobody has adopted yet.
    pub(super) unsafe fn adopt(channel: &Arc<EventChannel>, event: &Event) -> Option<Self> {
        NonNull::new(event.id).map(|raw| Self { channel: Arc::clone(channel), raw })
    }

    /// Its name in events.
    pub(super) fn raw(&self) -> *mut rdma_cm_id {
        self.raw.as_ptr()
    }

    fn symbols(&self) -> &'static Symbols {
        self.channel.symbols
    }

    fn get(&self) -> &rdma_cm_id {
        // SAFETY: a live identifier; librdmacm changes it only within calls on it and on its channel, which its owner
        // makes.
        unsafe { self.raw.as_ref() }
    }

    fn check(&self, status: i32, call: impl FnOnce() -> String) -> Result<(), VerbsError> {
        if status == 0 { Ok(()) } else { Err(VerbsError::last_os(call())) }
    }

    /// Binds it to a local address, and so to a device.
    pub(super) fn bind(&self, address: SocketAddr) -> Result<(), VerbsError> {
        let mut raw = RawAddress::new(address);
        // SAFETY: a live identifier and an address.
        let status = unsafe { (self.symbols().rdma_bind_addr)(self.raw(), raw.pointer()) };
        self.check(status, || format!("rdma_bind_addr {address}"))
    }

    /// Takes connection requests.
    pub(super) fn listen(&self) -> Result<(), VerbsError> {
        // SAFETY: a live identifier.
        let status = unsafe { (self.symbols().rdma_listen)(self.raw(), BACKLOG) };
        self.check(status, || "rdma_listen".to_owned())
    }

    /// The local port.
    pub(super) fn source_port(&self) -> u16 {
        // SAFETY: a live identifier.
        u16::from_be(unsafe { (self.symbols().rdma_get_src_port)(self.raw()) })
    }

    /// Starts to look for the device that reaches `to`; ends with an event.
    pub(super) fn resolve_address(
        &self,
        from: Option<IpAddr>,
        to: SocketAddr,
        timeout: Duration,
    ) -> Result<(), VerbsError> {
        let mut from = from.map(|address| RawAddress::new(SocketAddr::new(address, 0)));
        let from = from.as_mut().map_or(null_mut(), RawAddress::pointer);
        let mut raw = RawAddress::new(to);
        let timeout = milliseconds(timeout);
        // SAFETY: a live identifier, one address, and another or null.
        let status = unsafe { (self.symbols().rdma_resolve_addr)(self.raw(), from, raw.pointer(), timeout) };
        self.check(status, || format!("rdma_resolve_addr {to}"))
    }

    /// Starts to look for the way; ends with an event.
    pub(super) fn resolve_route(&self, timeout: Duration) -> Result<(), VerbsError> {
        // SAFETY: a live identifier.
        let status = unsafe { (self.symbols().rdma_resolve_route)(self.raw(), milliseconds(timeout)) };
        self.check(status, || "rdma_resolve_route".to_owned())
    }

    /// The device it is bound to, by name; none before it is bound.
    pub(super) fn device_name(&self) -> Option<String> {
        let context = NonNull::new(self.get().verbs)?;
        // SAFETY: librdmacm's own open context, which lives as long as the identifier.
        let device = unsafe { context.as_ref() }.device;
        // SAFETY: the context's device.
        let name = unsafe { (self.symbols().ibv_get_device_name)(device) };
        let name = NonNull::new(name.cast_mut())?;
        // SAFETY: libibverbs' names end with a zero byte.
        Some(unsafe { CStr::from_ptr(name.as_ptr()) }.to_string_lossy().into_owned())
    }

    /// The device's port it is bound to.
    pub(super) fn port(&self) -> u8 {
        self.get().port_num
    }

    /// What a queue pair needs for a state, and the mask of what that is.
    pub(super) fn qp_attributes(&self, state: ibv_qp_state::Type) -> Result<(ibv_qp_attr, i32), VerbsError> {
        // SAFETY: a structure of numbers, for which zero is a value.
        let mut attributes: ibv_qp_attr = unsafe { std::mem::zeroed() };
        attributes.qp_state = state;
        let mut mask = 0;
        // SAFETY: a live identifier and two places to be filled in.
        let status = unsafe { (self.symbols().rdma_init_qp_attr)(self.raw(), &mut attributes, &mut mask) };
        self.check(status, || format!("rdma_init_qp_attr for state {state}"))?;
        Ok((attributes, mask))
    }

    /// Sends a connection request; ends with an event.
    pub(super) fn connect(&self, parameters: &Parameters<'_>) -> Result<(), VerbsError> {
        // SAFETY: a live identifier; the parameters point to bytes that live on.
        let status = unsafe { (self.symbols().rdma_connect)(self.raw(), &mut parameters.raw()) };
        self.check(status, || "rdma_connect".to_owned())
    }

    /// Says that the own queue pair is ready, after the other side accepted.
    pub(super) fn establish(&self) -> Result<(), VerbsError> {
        // SAFETY: a live identifier.
        let status = unsafe { (self.symbols().rdma_establish)(self.raw()) };
        self.check(status, || "rdma_establish".to_owned())
    }

    /// Accepts a connection request.
    pub(super) fn accept(&self, parameters: &Parameters<'_>) -> Result<(), VerbsError> {
        // SAFETY: a live identifier; the parameters point to bytes that live on.
        let status = unsafe { (self.symbols().rdma_accept)(self.raw(), &mut parameters.raw()) };
        self.check(status, || "rdma_accept".to_owned())
    }

    /// Refuses a connection request.
    pub(super) fn reject(&self, private_data: &[u8]) -> Result<(), VerbsError> {
        let (data, bytes) = (private_data.as_ptr().cast(), private_data.len() as u8);
        // SAFETY: a live identifier, and so many bytes.
        let status = unsafe { (self.symbols().rdma_reject)(self.raw(), data, bytes) };
        self.check(status, || "rdma_reject".to_owned())
    }

    /// Tells the other side that this is the end.
    pub(super) fn disconnect(&self) -> Result<(), VerbsError> {
        // SAFETY: a live identifier.
        let status = unsafe { (self.symbols().rdma_disconnect)(self.raw()) };
        self.check(status, || "rdma_disconnect".to_owned())
    }
}

impl Drop for Identifier {
    fn drop(&mut self) {
        // SAFETY: owned, and destroyed once.
        let status = unsafe { (self.symbols().rdma_destroy_id)(self.raw()) };
        if status != 0 {
            tracing::warn!(error = %io::Error::last_os_error(), "rdma_destroy_id failed");
        }
    }
}

fn milliseconds(time: Duration) -> i32 {
    i32::try_from(time.as_millis()).unwrap_or(i32::MAX).max(1)
}

/// An address as the C library has it.
enum RawAddress {
    V4(libc::sockaddr_in),
    V6(libc::sockaddr_in6),
}

impl RawAddress {
    fn new(address: SocketAddr) -> Self {
        match address {
            SocketAddr::V4(address) => Self::V4(libc::sockaddr_in {
                sin_family: libc::AF_INET as libc::sa_family_t,
                sin_port: address.port().to_be(),
                sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes(address.ip().octets()) },
                sin_zero: [0; 8],
            }),
            SocketAddr::V6(address) => Self::V6(libc::sockaddr_in6 {
                sin6_family: libc::AF_INET6 as libc::sa_family_t,
                sin6_port: address.port().to_be(),
                sin6_flowinfo: address.flowinfo(),
                sin6_addr: libc::in6_addr { s6_addr: address.ip().octets() },
                sin6_scope_id: address.scope_id(),
            }),
        }
    }

    fn pointer(&mut self) -> *mut libc::sockaddr {
        match self {
            Self::V4(address) => (&raw mut *address).cast(),
            Self::V6(address) => (&raw mut *address).cast(),
        }
    }
}
