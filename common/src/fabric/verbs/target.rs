//! The memory node's side: a region that a card serves.
//!
//! Always true:
//! - the card serves READ, WRITE and, where it can, atomics by itself: no thread of ours runs for a verb. Without remote
//!   atomics CAS and FAA are messages to a thread of ours, and it is said so ([`super::two_sided`]);
//! - a queue pair is made only for a ticket that this target gave, that was not used before, and whose session was not
//!   fenced since; what it may do is set in the queue pair and again in the key that its client was given;
//! - identifiers are made, used and destroyed by the listener's thread alone; [`VerbsTarget::fence`] only destroys queue
//!   pairs, under the same lock under which requests are answered and connections leave the books, so none can slip in
//!   behind it and none that is not in the books any more is still at work;
//! - a connection that is never finished is taken down by librdmacm's own timeout, which comes as an event.

use std::collections::{HashMap, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use rdma_sys::rdma_cm_event_type::*;

use super::choice::{Chosen, choose};
use super::cm::{Event, EventChannel, Identifier, Parameters, wait_readable};
use super::completion_queue::CompletionQueue;
use super::context::Context;
use super::device::{self, active_mtu};
use super::error::VerbsError;
use super::memlock::Memlock;
use super::negotiate::{self, Mtu};
use super::private_data::{Accepted, Refusal, Request};
use super::queue_pair::{Capacity, QueuePair};
use super::region::{Access, MemoryRegion, ProtectionDomain};
use super::two_sided::{CommitServer, DEPTH, MESSAGE_VERSION, Seat};
use crate::fabric::{Commits, DeviceChoice, FabricKind, Join, Rights, SessionId, Target, Ticket};
use crate::memory::Mapping;

/// Tickets of one session that may wait to be used. A client uses one a connection; the oldest give way.
const TICKETS_MAX: usize = 16;

/// How to serve a region over verbs.
#[derive(Clone, Debug, Default)]
pub struct VerbsOptions {
    /// Which device, port and GID; what is left open is found.
    pub device: DeviceChoice,
    /// The card's address; none takes that of the chosen GID.
    pub address: Option<IpAddr>,
    /// The port in librdmacm's TCP port space; 0 lets the kernel find one.
    pub port: u16,
    /// At most this many outstanding READs and atomics a connection; none is as many as the card can.
    pub responder_depth_max: Option<u8>,
    /// Who is to execute CAS and FAA.
    pub commits: CommitChoice,
}

/// Who is to execute CAS and FAA.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum CommitChoice {
    /// The card if it has remote atomics, else the CPU.
    #[default]
    Auto,
    /// The card; one without remote atomics is refused.
    Atomics,
    /// The CPU, whatever the card can do.
    TwoSided,
}

impl CommitChoice {
    /// Whether the CPU executes them, with a card that has remote atomics or doesn't.
    pub const fn is_two_sided(self, has_atomics: bool) -> bool {
        match self {
            Self::Auto => !has_atomics,
            Self::Atomics => false,
            Self::TwoSided => true,
        }
    }
}

/// See the module. Dropping it ends all connections.
pub struct VerbsTarget {
    shared: Arc<Shared>,
    listener: Option<JoinHandle<()>>,
}

/// What the listener's thread and the target's users share.
struct Shared {
    // Fields are dropped in this order: queue pairs, what they use, and the memory last.
    state: Mutex<State>,
    region: MemoryRegion,
    region_read_only: MemoryRegion,
    /// Executes commits, if the card doesn't. Behind the state, whose connections have their seats in it.
    commits: Option<CommitServer>,
    /// No one-sided verb completes here, but a queue pair must have a queue.
    completions: CompletionQueue,
    domain: Arc<ProtectionDomain>,
    mapping: Arc<Mapping>,
    chosen: Chosen,
    /// The GID index, if it was not left to us.
    gid_index_by_hand: Option<u32>,
    port: u16,
    mtu: Mtu,
    responder_depth: u8,
    wake: OwnedFd,
}

// SAFETY: the completion queue is never polled, and otherwise only handed to the card; all else is shared by its own
// means.
unsafe impl Sync for Shared {}

#[derive(Default)]
struct State {
    stopping: bool,
    tickets: HashMap<Ticket, (SessionId, Rights)>,
    /// Unused tickets by session, oldest first.
    sessions: HashMap<SessionId, VecDeque<Ticket>>,
    /// By the identifier's address.
    connections: HashMap<usize, Connection>,
}

struct Connection {
    session: SessionId,
    /// None once it was fenced: the listener's thread then takes the identifier down.
    link: Option<Link>,
    id: Identifier,
}

/// A connection's queue pair. When it is dropped, nothing takes effect through it any more.
enum Link {
    OneSided(#[expect(dead_code, reason = "held for the card, which works with it alone")] QueuePair),
    TwoSided(#[expect(dead_code, reason = "held for the thread that executes commits")] Seat),
}

impl VerbsTarget {
    /// Serves `mapping` with the card that `options` choose.
    ///
    /// # Errors
    /// [`VerbsError`]: no library, no device, no atomics, too low a limit on locked memory, and whatever else stands in
    /// the way. Nothing is left behind.
    pub fn start(mapping: Arc<Mapping>, options: &VerbsOptions) -> Result<Self, VerbsError> {
        let chosen = choose(&device::list()?, &options.device, options.address)?;
        let context = Context::open(&chosen.device)?;
        let limits = device::limits(&context.attributes()?);
        let two_sided = options.commits.is_two_sided(limits.atomics.has_atomics());
        if !two_sided {
            limits.require_atomics(&chosen.device)?;
        }
        let events = EventChannel::new()?;
        let id = Identifier::new(&events)?;
        id.bind(SocketAddr::new(chosen.address, options.port))?;
        let found = (id.device_name().unwrap_or_default(), id.port());
        if found.0 != chosen.device || found.1 != chosen.port {
            return Err(VerbsError::OtherDevice {
                address: chosen.address.to_string(),
                wanted: format!("{} port {}", chosen.device, chosen.port),
                found: format!("{} port {}", found.0, found.1),
            });
        }

        // The kernel counts both registrations, so both are judged before the first is made.
        Memlock::current().check(mapping.bytes().saturating_mul(2))?;
        let domain = ProtectionDomain::new(&context)?;
        let register = |rights| {
            let (base, bytes) = (mapping.base(), mapping.bytes());
            // SAFETY: the mapping is kept for as long as the registration, and shared as atomic words only.
            unsafe { MemoryRegion::register(&domain, base, bytes, access(two_sided, rights)) }
        };
        let region = register(Rights::ReadWrite)?;
        let region_read_only = register(Rights::ReadOnly)?;
        let depth_max = options.responder_depth_max.map_or(0, u32::from);
        let mtu = active_mtu(&context.port_attributes(chosen.port)?);
        let completions = CompletionQueue::new(&context, 16)?;
        let commits = two_sided.then(|| CommitServer::start(Arc::clone(&mapping))).transpose()?;
        id.listen()?;
        let shared = Arc::new(Shared {
            region,
            region_read_only,
            domain,
            commits,
            completions,
            port: id.source_port(),
            chosen,
            gid_index_by_hand: options.device.gid_index.map(u32::from),
            mtu,
            responder_depth: negotiate::depth(limits.responder_depth, depth_max),
            wake: event_file()?,
            state: Mutex::default(),
            mapping,
        });
        let listener = Listener { shared: Arc::clone(&shared), events, _listening: id };
        let listener = std::thread::Builder::new()
            .name("verbs-listener".to_owned())
            .spawn(move || listener.run())
            .map_err(|error| VerbsError::Call {
                call: "starting the listener's thread".to_owned(),
                reason: error.to_string(),
                errno: error.raw_os_error().unwrap_or(0),
            })?;
        Ok(Self { shared, listener: Some(listener) })
    }

    /// Where clients connect to.
    pub fn address(&self) -> SocketAddr {
        SocketAddr::new(self.shared.chosen.address, self.shared.port)
    }

    /// Who executes CAS and FAA.
    pub fn commits(&self) -> Commits {
        self.shared.commits()
    }

    /// The device, port and GID that were chosen.
    pub fn chosen(&self) -> &Chosen {
        &self.shared.chosen
    }
}

impl Target for VerbsTarget {
    fn kind(&self) -> FabricKind {
        FabricKind::Verbs
    }

    fn admit(&self, session: SessionId, rights: Rights) -> Result<Join, String> {
        let ticket = Ticket::random();
        let shared = &*self.shared;
        let mut state = shared.state();
        if state.stopping {
            return Err("the memory node is stopping".to_owned());
        }
        let tickets = state.sessions.entry(session).or_default();
        tickets.push_back(ticket);
        let oldest = if tickets.len() > TICKETS_MAX { tickets.pop_front() } else { None };
        if let Some(oldest) = oldest {
            state.tickets.remove(&oldest);
        }
        state.tickets.insert(ticket, (session, rights));
        let region = if rights.can_write() { &shared.region } else { &shared.region_read_only };
        Ok(Join::Verbs {
            host: Some(shared.chosen.address.to_string()),
            port: shared.port,
            ticket,
            rkey: region.rkey(),
            base: shared.mapping.base().as_ptr().addr() as u64,
            responder_depth: shared.responder_depth,
            mtu_bytes: shared.mtu.bytes(),
            commits: shared.commits(),
        })
    }

    fn fence(&self, session: SessionId) -> bool {
        let mut state = self.shared.state();
        for ticket in state.sessions.remove(&session).unwrap_or_default() {
            state.tickets.remove(&ticket);
        }
        for connection in state.connections.values_mut().filter(|connection| connection.session == session) {
            // When this is dropped, the card has forgotten the queue pair.
            connection.link = None;
        }
        drop(state);
        self.shared.wake();
        true
    }

    fn connection_count(&self) -> usize {
        self.shared.state().connections.values().filter(|connection| connection.link.is_some()).count()
    }

    fn describe(&self) -> String {
        let Shared { chosen, mtu, responder_depth, mapping, .. } = &*self.shared;
        let gid = chosen.gid_index.map_or("-".to_owned(), |index| index.to_string());
        format!(
            "verbs: {} ({} port {}, GID index {gid}), MTU {}, answers {responder_depth} READs a connection, {} bytes \
             registered, commits: {}",
            self.address(),
            chosen.device,
            chosen.port,
            mtu.bytes(),
            mapping.bytes(),
            self.commits().describe(),
        )
    }
}

impl std::fmt::Debug for VerbsTarget {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.describe())
    }
}

impl Drop for VerbsTarget {
    fn drop(&mut self) {
        self.shared.state().stopping = true;
        self.shared.wake();
        if let Some(listener) = self.listener.take()
            && listener.join().is_err()
        {
            tracing::error!("the verbs listener's thread panicked");
        }
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wake(&self) {
        let one = 1_u64.to_ne_bytes();
        // Fails only if the counter is full, and then the thread is woken already.
        // SAFETY: an open file of ours and 8 bytes.
        let _ = unsafe { libc::write(self.wake.as_raw_fd(), one.as_ptr().cast(), one.len()) };
    }

    fn calm(&self) {
        let mut count = [0; 8];
        // SAFETY: an open file of ours, which does not block, and room for 8 bytes.
        let _ = unsafe { libc::read(self.wake.as_raw_fd(), count.as_mut_ptr().cast(), count.len()) };
    }
}

/// The thread that answers connection requests; asleep otherwise.
struct Listener {
    shared: Arc<Shared>,
    events: Arc<EventChannel>,
    /// Listens for as long as it lives.
    _listening: Identifier,
}

impl Listener {
    fn run(self) {
        // Nothing is missed by a wake-up in between: the files stay readable.
        const SLEEP: Duration = Duration::from_secs(3600);
        loop {
            let (events, wake): (RawFd, RawFd) = (self.events.fd(), self.shared.wake.as_raw_fd());
            wait_readable(&mut [events, wake], SLEEP);
            self.shared.calm();
            loop {
                match self.events.next() {
                    Ok(Some(event)) => self.handle(&event),
                    Ok(None) => break,
                    Err(error) => {
                        tracing::error!(%error, "the verbs listener takes no connections any more");
                        return self.stop();
                    }
                }
            }
            self.take_down_fenced();
            if self.shared.state().stopping {
                return self.stop();
            }
        }
    }

    fn stop(&self) {
        let mut state = self.shared.state();
        state.stopping = true;
        let mut connections = std::mem::take(&mut state.connections);
        connections.values_mut().for_each(|connection| connection.link = None);
        drop(state);
        for connection in connections.into_values() {
            connection.end();
        }
    }

    fn take_down_fenced(&self) {
        let fenced: Vec<Connection> =
            self.shared.state().connections.extract_if(|_, it| it.link.is_none()).map(|(_, it)| it).collect();
        for connection in fenced {
            connection.end();
        }
    }

    fn handle(&self, event: &Event) {
        match event.kind {
            RDMA_CM_EVENT_CONNECT_REQUEST => {
                // SAFETY: a connection request of this channel, adopted once.
                if let Some(id) = unsafe { Identifier::adopt(&self.events, event) } {
                    self.answer(id, event);
                }
            }
            RDMA_CM_EVENT_ESTABLISHED => {}
            RDMA_CM_EVENT_DISCONNECTED
            | RDMA_CM_EVENT_CONNECT_ERROR
            | RDMA_CM_EVENT_UNREACHABLE
            | RDMA_CM_EVENT_REJECTED
            | RDMA_CM_EVENT_DEVICE_REMOVAL => {
                let mut state = self.shared.state();
                let mut connection = state.connections.remove(&event.id.addr());
                if let Some(connection) = &mut connection {
                    connection.link = None;
                }
                drop(state);
                if let Some(connection) = connection {
                    tracing::debug!(session = %connection.session, event = event.name(), "a data connection ended");
                    connection.end();
                } else if event.kind == RDMA_CM_EVENT_DEVICE_REMOVAL {
                    tracing::error!(
                        device = self.shared.chosen.device,
                        "the device of the region was removed"
                    );
                }
            }
            _ => tracing::debug!(event = event.name(), status = event.status, "on the verbs listener"),
        }
    }

    fn answer(&self, id: Identifier, event: &Event) {
        let mut state = self.shared.state();
        match self.shared.accept(&mut state, id, event) {
            Ok(()) => {}
            Err((id, refusal)) => {
                drop(state);
                tracing::warn!(reason = refusal.text(), "a verbs connection was refused");
                if let Err(error) = id.reject(&refusal.encode()) {
                    tracing::debug!(%error, "the refusal could not be sent");
                }
            }
        }
    }
}

impl Connection {
    /// Tells the client. Its queue pair is gone by then, so that nothing takes effect behind the end that it is told of.
    fn end(self) {
        debug_assert!(self.link.is_none(), "a queue pair goes while the books are locked");
        if let Err(error) = self.id.disconnect() {
            tracing::debug!(%error, "the client was not told of the connection's end");
        }
    }
}

impl Shared {
    /// Answers a request, or gives the identifier back with the reason.
    fn accept(&self, state: &mut State, id: Identifier, event: &Event) -> Result<(), (Identifier, Refusal)> {
        let request = match Request::decode(&event.private_data) {
            Ok(request) => request,
            Err(refusal) => return Err((id, refusal)),
        };
        if state.stopping {
            return Err((id, Refusal::Ticket));
        }
        if id.device_name().as_deref() != Some(self.chosen.device.as_str()) || id.port() != self.chosen.port {
            return Err((id, Refusal::Device));
        }
        // From here on the ticket is used, whatever comes of it.
        let Some((session, rights)) = state.tickets.remove(&request.ticket) else {
            return Err((id, Refusal::Ticket));
        };
        if let Some(tickets) = state.sessions.get_mut(&session) {
            tickets.retain(|ticket| *ticket != request.ticket);
            if tickets.is_empty() {
                state.sessions.remove(&session);
            }
        }
        // As it is now: somebody may have set the interface to shorter packets since the start.
        let own_mtu = self.domain.context().port_attributes(self.chosen.port);
        let own_mtu = own_mtu.map_or(self.mtu, |attributes| active_mtu(&attributes));
        let mtu = negotiate::mtu(own_mtu, request.mtu);
        let depth = negotiate::depth(u32::from(self.responder_depth), u32::from(event.responder_depth));
        match self.ready_link(&id, rights, mtu, depth) {
            Ok(link) => {
                let connection = Connection { session, link: Some(link), id };
                state.connections.insert(connection.id.raw().addr(), connection);
                Ok(())
            }
            Err(error) => {
                tracing::warn!(%error, %session, "no queue pair for a client");
                Err((id, Refusal::Resources))
            }
        }
    }

    /// Makes the queue pair, ready before the client learns that it was accepted.
    fn ready_link(&self, id: &Identifier, rights: Rights, mtu: Mtu, depth: u8) -> Result<Link, VerbsError> {
        let Some(commits) = &self.commits else {
            let capacity = Capacity { work_requests: 1, receives: 0, inline_bytes: 0 };
            let cq = self.completions.raw();
            // SAFETY: the queue is of the same device; it is part of what all connections are dropped before.
            let queue_pair = unsafe { QueuePair::new(&self.domain, cq, cq, capacity) }?;
            queue_pair.initialise(id, Some(access(false, rights)))?;
            self.accept_with(&queue_pair, id, mtu, depth)?;
            return Ok(Link::OneSided(queue_pair));
        };
        let seating = CommitServer::seating(&self.domain)?;
        let cq = seating.inbox().completions().raw();
        // SAFETY: the queue is of the same device; the seat drops the queue pair before it.
        let queue_pair = unsafe { QueuePair::new(&self.domain, cq, cq, CommitServer::CAPACITY) }?;
        queue_pair.initialise(id, Some(access(true, rights)))?;
        let region = if rights.can_write() { &self.region } else { &self.region_read_only };
        // Receives are there before the client knows that it may send.
        let seat = commits.seat(seating, queue_pair, region.rkey(), rights)?;
        seat.with_queue_pair(|queue_pair| self.accept_with(queue_pair, id, mtu, depth))?;
        Ok(Link::TwoSided(seat))
    }

    fn accept_with(
        &self,
        queue_pair: &QueuePair,
        id: &Identifier,
        mtu: Mtu,
        depth: u8,
    ) -> Result<(), VerbsError> {
        queue_pair.make_ready_to_receive(id, mtu, depth, self.gid_index_by_hand)?;
        queue_pair.make_ready_to_send(id, 1)?;
        id.accept(&Parameters {
            private_data: &Accepted { mtu, depth }.encode(),
            responder_depth: depth,
            initiator_depth: 1,
            qp_number: queue_pair.number(),
        })
    }

    fn commits(&self) -> Commits {
        match &self.commits {
            None => Commits::Atomics,
            Some(_) => Commits::TwoSided { version: MESSAGE_VERSION, depth: DEPTH },
        }
    }
}

/// What peers may do to the region by verbs of their own.
const fn access(two_sided: bool, rights: Rights) -> Access {
    if two_sided { Access::RemoteData(rights) } else { Access::Remote(rights) }
}

fn event_file() -> Result<OwnedFd, VerbsError> {
    // SAFETY: no pointers.
    let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
    if fd < 0 {
        return Err(VerbsError::last_os("eventfd"));
    }
    // SAFETY: just opened, and owned by nobody else.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}
