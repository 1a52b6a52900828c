//! The memory node's thread that executes commits.
//!
//! Always true: a connection's queue pair, receives and sequence belong to its place in one table, under one lock; the
//! thread executes only while it holds that lock, and a [`Seat`] that is dropped takes the place out under it. So once a
//! seat is gone, nothing of that connection executes any more. The thread sleeps until a card says that a message came.
//!
//! A request's receive is posted again before it is answered, and it is answered only when there is a free place in the
//! send queue; until then it waits in its receive. What a client can make this side hold is therefore `DEPTH` messages.

use std::collections::{HashMap, VecDeque};
use std::os::fd::RawFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use mio::unix::SourceFd;
use mio::{Events, Interest, Poll, Registry, Token, Waker};
use rdma_sys::ibv_sge;
use smallvec::SmallVec;

use super::super::error::VerbsError;
use super::super::queue_pair::{Capacity, QueuePair};
use super::super::region::{LocalMemory, ProtectionDomain};
use super::super::work::WorkList;
use super::inbox::{Inbox, SEND};
use super::message::{Executor, REPLY_BYTES, REQUEST_BYTES, Reply};
use super::{DEPTH, SLOT_BYTES};
use crate::fabric::Rights;
use crate::layout::Offset;
use crate::memory::Mapping;

/// Events taken at once; more wait for the next turn.
const EVENTS: usize = 64;
/// The waker's token; seats count from 1.
const WAKE: Token = Token(0);

/// See the module. Dropping it ends the thread; seats must be gone then.
pub(in super::super) struct CommitServer {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    places: Mutex<Places>,
    registry: Registry,
    waker: Waker,
    mapping: Arc<Mapping>,
}

#[derive(Default)]
struct Places {
    stopping: bool,
    last: usize,
    places: HashMap<usize, Place>,
}

/// A connection's part of the server; nothing of it executes any more once this is dropped.
pub(in super::super) struct Seat {
    shared: Arc<Shared>,
    number: usize,
}

/// What a connection's queue pair needs before it is made.
pub(in super::super) struct Seating {
    inbox: Inbox,
    replies: LocalMemory,
}

struct Place {
    // Fields are dropped in this order: the queue pair before what its card touches.
    queue_pair: QueuePair,
    inbox: Inbox,
    replies: LocalMemory,
    executor: Executor,
    /// Slots of `replies` that are not on their way.
    free: Vec<usize>,
    /// Messages in the order of their arrival: the receive's slot, and their length if they are a Send.
    waiting: VecDeque<(usize, Option<u32>)>,
    work: WorkList,
    /// A refusal is on its way; the queue pair ends behind it.
    refusing: bool,
}

impl CommitServer {
    /// What a connection's queue pair must hold.
    pub(in super::super) const CAPACITY: Capacity =
        Capacity { work_requests: DEPTH as u32, receives: DEPTH as u32, inline_bytes: SLOT_BYTES as u32 };

    /// Starts the thread.
    pub(in super::super) fn start(mapping: Arc<Mapping>) -> Result<Self, VerbsError> {
        let failed = |error: std::io::Error| VerbsError::Call {
            call: "starting the thread for commits".to_owned(),
            reason: error.to_string(),
            errno: error.raw_os_error().unwrap_or(0),
        };
        let poll = Poll::new().map_err(failed)?;
        let registry = poll.registry().try_clone().map_err(failed)?;
        let waker = Waker::new(poll.registry(), WAKE).map_err(failed)?;
        let shared = Arc::new(Shared { places: Mutex::default(), registry, waker, mapping });
        let thread = std::thread::Builder::new().name("verbs-commits".to_owned());
        let thread = thread.spawn({
            let shared = Arc::clone(&shared);
            move || shared.run(poll)
        });
        Ok(Self { shared, thread: Some(thread.map_err(failed)?) })
    }

    /// What a connection's queue pair needs.
    pub(in super::super) fn seating(domain: &Arc<ProtectionDomain>) -> Result<Seating, VerbsError> {
        let depth = usize::from(DEPTH);
        let inbox = Inbox::new(domain, depth, depth)?;
        Ok(Seating { inbox, replies: LocalMemory::new(domain, depth * SLOT_BYTES)? })
    }

    /// Serves a connection from now on. Its receives are posted; its Sends and receives complete in the seating's inbox.
    pub(in super::super) fn seat(
        &self,
        seating: Seating,
        queue_pair: QueuePair,
        rkey: u32,
        rights: Rights,
    ) -> Result<Seat, VerbsError> {
        let Seating { inbox, replies } = seating;
        inbox.post_all(&queue_pair)?;
        inbox.completions().ask_solicited_event()?;
        let fd = inbox.completions().fd();
        let place = Place {
            executor: Executor::new(self.shared.mapping.words(), rkey, rights),
            free: (0..inbox.slot_count()).collect(),
            waiting: VecDeque::new(),
            work: WorkList::default(),
            refusing: false,
            queue_pair,
            inbox,
            replies,
        };
        let mut places = self.shared.places();
        places.last += 1;
        let number = places.last;
        self.shared
            .registry
            .register(&mut SourceFd(&fd), Token(number), Interest::READABLE)
            .map_err(|error| VerbsError::number("epoll_ctl", error.raw_os_error().unwrap_or(0)))?;
        places.places.insert(number, place);
        drop(places);
        Ok(Seat { shared: Arc::clone(&self.shared), number })
    }
}

impl Seat {
    /// Runs `each` on its queue pair.
    pub(in super::super) fn with_queue_pair<T>(&self, each: impl FnOnce(&QueuePair) -> T) -> T {
        let places = self.shared.places();
        match places.places.get(&self.number) {
            Some(place) => each(&place.queue_pair),
            None => unreachable!("seat {} has no place", self.number),
        }
    }
}

impl Seating {
    /// Where the connection's completions arrive.
    pub(in super::super) fn inbox(&self) -> &Inbox {
        &self.inbox
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        // Taken out under the lock, under which the thread executes.
        let place = self.shared.places().places.remove(&self.number);
        if let Some(place) = place {
            let fd: RawFd = place.inbox.completions().fd();
            if let Err(error) = self.shared.registry.deregister(&mut SourceFd(&fd)) {
                tracing::debug!(%error, "a connection's file was not watched");
            }
        }
    }
}

impl Drop for CommitServer {
    fn drop(&mut self) {
        self.shared.places().stopping = true;
        if let Err(error) = self.shared.waker.wake() {
            tracing::error!(%error, "the thread for commits can't be woken");
            return;
        }
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the thread for commits panicked");
        }
    }
}

impl Shared {
    fn places(&self) -> MutexGuard<'_, Places> {
        self.places.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self, mut poll: Poll) {
        let mut events = Events::with_capacity(EVENTS);
        loop {
            if let Err(error) = poll.poll(&mut events, None)
                && error.kind() != std::io::ErrorKind::Interrupted
            {
                tracing::error!(%error, "no more commits are executed");
                return;
            }
            // Taken for each one: a fence waits for one connection's messages at most.
            for event in &events {
                if let Some(place) = self.places().places.get_mut(&event.token().0)
                    && let Err(error) = place.serve()
                {
                    tracing::warn!(%error, "a connection's commits are not executed any more");
                    place.end();
                }
            }
            if self.places().stopping {
                return;
            }
        }
    }
}

impl Place {
    /// Executes and answers what has arrived; what arrives later brings an event of its own.
    fn serve(&mut self) -> Result<(), VerbsError> {
        self.inbox.take_events();
        // Asked for first and polled after, so that nothing falls between the two.
        self.inbox.completions().ask_solicited_event()?;
        self.poll()?;
        self.answer_waiting()?;
        // Completed Sends wake nobody, except where something depends on them.
        if self.refusing || !self.waiting.is_empty() {
            self.inbox.ask_event()?;
            self.poll()?;
            self.answer_waiting()?;
        }
        Ok(())
    }

    /// Takes note of what the card has completed.
    fn poll(&mut self) -> Result<(), VerbsError> {
        let mut failed = false;
        let (free, waiting) = (&mut self.free, &mut self.waiting);
        self.inbox.poll(|arrival| {
            let slot = (arrival.number & !SEND) as usize;
            match arrival.failed {
                Some(_) => failed = true,
                None if arrival.number & SEND != 0 => free.push(slot),
                None => waiting.push_back((slot, arrival.received_bytes)),
            }
        })?;
        if failed || (self.refusing && self.free.len() == self.inbox.slot_count()) {
            self.end();
        }
        Ok(())
    }

    fn answer_waiting(&mut self) -> Result<(), VerbsError> {
        while let Some((slot, bytes)) = self.waiting.front().copied()
            && let Some(reply_slot) = self.free.last().copied()
            && !self.executor.has_ended()
        {
            let mut message: SmallVec<[u8; REQUEST_BYTES]> = SmallVec::new();
            // What is longer than a request, or no Send at all, is as good as empty.
            let length = bytes.map_or(0, |bytes| bytes as usize);
            message.resize(if length > REQUEST_BYTES { 0 } else { length }, 0);
            self.inbox.read(slot, &mut message);
            let Some(reply) = self.executor.execute(&message) else { break };
            self.waiting.pop_front();
            self.free.pop();
            if reply.result.is_ok() {
                self.inbox.post(&self.queue_pair, slot)?;
            } else {
                self.refusing = true;
            }
            self.send(reply_slot, &reply)?;
        }
        if self.executor.has_ended() {
            self.waiting.clear();
        }
        Ok(())
    }

    fn send(&mut self, slot: usize, reply: &Reply) -> Result<(), VerbsError> {
        let at = (slot * SLOT_BYTES) as u64;
        if let Err(error) = self.replies.words().write(Offset(at), &reply.encode()) {
            unreachable!("reply slot {slot} is outside the replies' memory: {error}");
        }
        let addr = self.replies.start().as_ptr().addr() as u64 + at;
        let entry = ibv_sge { addr, length: REPLY_BYTES as u32, lkey: self.replies.lkey() };
        self.work.clear();
        let inline = self.queue_pair.inline_bytes() >= REPLY_BYTES;
        self.work.send(slot as u64 | SEND, entry, inline, false);
        self.work.signal_last();
        // SAFETY: the entry is registered memory of this place's, which lives as long as the queue pair; the slot was free,
        // so the queue has room.
        unsafe { self.work.post(&self.queue_pair) }.map_err(|failure| failure.error)
    }

    /// Nothing is executed any more; the client is told by the connection's end.
    fn end(&mut self) {
        self.executor.end();
        self.waiting.clear();
        self.refusing = false;
        if let Err(error) = self.queue_pair.make_error() {
            tracing::debug!(%error, "a failed queue pair could not be stopped");
        }
    }
}
