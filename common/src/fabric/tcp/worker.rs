//! A thread that plays the network card for the connections it owns.
//!
//! Always true: a connection belongs to one thread from its ticket to its end; the thread never blocks on a peer;
//! one peer's flood or silence doesn't keep the others waiting for longer than a turn. A fence is answered between
//! two turns, when the session's connections are gone: no verb of theirs executes any more.

use std::collections::HashMap;
use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::time::{Duration, Instant};

use mio::net::TcpStream;
use mio::{Events, Interest, Poll, Token, Waker};

use super::connection::Connection;
use super::execute::Grant;
use super::peer::{Peer, Turn};
use crate::fabric::{Rights, SessionId, Ticket};
use crate::memory::Mapping;

/// Events taken from the kernel at once.
const EVENTS_MAX: usize = 256;
/// How often deadlines are looked at while there are any.
const DEADLINE_INTERVAL: Duration = Duration::from_millis(100);
/// Connections of one thread, those without a ticket included: more are closed at once.
pub(super) const CONNECTIONS_MAX: usize = 1 << 14;

const WAKE: Token = Token(usize::MAX);

/// Figures since the start; only ever growing.
#[derive(Debug, Default)]
pub(super) struct Counters {
    pub(super) verbs: AtomicU64,
    pub(super) bytes_received: AtomicU64,
    pub(super) bytes_sent: AtomicU64,
    pub(super) connections: AtomicU64,
    pub(super) malformed: AtomicU64,
    pub(super) refused: AtomicU64,
}

/// What all threads of a target share.
pub(super) struct Shared {
    /// What a session with all rights may touch.
    pub(super) grant: Grant,
    pub(super) tickets: Mutex<HashMap<Ticket, (SessionId, Rights)>>,
    /// Joined connections at the moment.
    pub(super) joined: AtomicUsize,
    pub(super) counters: Counters,
}

impl Shared {
    /// Takes a ticket out: it opens one connection.
    pub(super) fn redeem(&self, ticket: Ticket) -> Result<(SessionId, Grant), &'static str> {
        let taken = self.tickets.lock().unwrap_or_else(PoisonError::into_inner).remove(&ticket);
        let (session, rights) = taken.ok_or("the ticket is not valid, or was used before")?;
        Ok((session, self.grant.with_rights(rights)))
    }
}

/// What a thread is asked to do.
pub(super) enum Command {
    /// Serve another connection.
    Attach(TcpStream, SocketAddr),
    /// End the session's connections, then say so.
    Fence(SessionId, mpsc::Sender<()>),
    /// End.
    Stop,
}

/// The handle of a thread.
pub(super) struct Worker {
    commands: mpsc::Sender<Command>,
    waker: Waker,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Worker {
    /// Starts a thread. The region stays mapped as long as it runs.
    pub(super) fn start(name: String, shared: Arc<Shared>, mapping: Arc<Mapping>) -> io::Result<Self> {
        let poll = Poll::new()?;
        let waker = Waker::new(poll.registry(), WAKE)?;
        let (commands, receiver) = mpsc::channel();
        let card = Card {
            poll,
            commands: receiver,
            shared,
            peers: Vec::new(),
            free: Vec::new(),
            turns: Vec::new(),
            timed: 0,
        };
        let run = move || {
            card.run();
            drop(mapping);
        };
        let thread = std::thread::Builder::new().name(name).spawn(run)?;
        Ok(Self { commands, waker, thread: Some(thread) })
    }

    /// Asks for something; false if the thread has ended, and its connections with it.
    pub(super) fn ask(&self, command: Command) -> bool {
        let sent = self.commands.send(command).is_ok();
        if let Err(error) = self.waker.wake() {
            tracing::error!(%error, "cannot wake a tcp thread");
        }
        sent
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.ask(Command::Stop);
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("a tcp thread had panicked");
        }
    }
}

/// The thread itself.
struct Card {
    poll: Poll,
    commands: mpsc::Receiver<Command>,
    shared: Arc<Shared>,
    /// By token.
    peers: Vec<Option<Peer>>,
    free: Vec<usize>,
    /// Tokens that have something to do without the kernel saying so.
    turns: Vec<usize>,
    /// Connections with a deadline.
    timed: usize,
}

impl Card {
    fn run(mut self) {
        let mut events = Events::with_capacity(EVENTS_MAX);
        let mut turns = Vec::new();
        let mut deadlines_at = Instant::now();
        loop {
            let timeout = match self.turns.is_empty() {
                false => Some(Duration::ZERO),
                true => (self.timed > 0).then_some(DEADLINE_INTERVAL),
            };
            match self.poll.poll(&mut events, timeout) {
                Ok(()) => {}
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => {
                    tracing::error!(%error, "a tcp thread cannot wait for its sockets any more and ends");
                    return;
                }
            }
            let mut woken = false;
            for event in &events {
                if event.token() == WAKE {
                    woken = true;
                    continue;
                }
                let token = event.token().0;
                let Some(Some(peer)) = self.peers.get_mut(token) else { continue };
                peer.notice(event);
                if !peer.has_turn {
                    peer.has_turn = true;
                    self.turns.push(token);
                }
            }
            std::mem::swap(&mut self.turns, &mut turns);
            for token in turns.drain(..) {
                self.turn(token);
            }
            if woken && !self.obey() {
                return;
            }
            if deadlines_at.elapsed() >= DEADLINE_INTERVAL {
                deadlines_at = Instant::now();
                self.close_overdue(deadlines_at);
            }
        }
    }

    /// Does what was asked; false if that is to end.
    fn obey(&mut self) -> bool {
        loop {
            match self.commands.try_recv() {
                Ok(Command::Attach(stream, address)) => self.attach(stream, address),
                Ok(Command::Fence(session, fenced)) => {
                    for token in 0..self.peers.len() {
                        let connection = self.peers[token].as_ref().map(|peer| &peer.connection);
                        if connection.and_then(Connection::session) == Some(session) {
                            self.close(token);
                        }
                    }
                    // Whoever asked may have gone away.
                    let _ = fenced.send(());
                }
                Err(mpsc::TryRecvError::Empty) => return true,
                Ok(Command::Stop) | Err(mpsc::TryRecvError::Disconnected) => return false,
            }
        }
    }

    fn attach(&mut self, mut stream: TcpStream, address: SocketAddr) {
        let token = self.free.pop().unwrap_or(self.peers.len());
        if token >= CONNECTIONS_MAX {
            tracing::warn!(%address, limit = CONNECTIONS_MAX, "closing a tcp data connection: too many");
            return;
        }
        let interest = Interest::READABLE | Interest::WRITABLE;
        if let Err(error) = self.poll.registry().register(&mut stream, Token(token), interest) {
            tracing::warn!(%address, %error, "closing a tcp data connection: it can't be watched");
            self.free.push(token);
            return;
        }
        let peer = Peer::new(stream, address);
        if token == self.peers.len() {
            self.peers.push(Some(peer));
        } else {
            self.peers[token] = Some(peer);
        }
        self.turns.push(token);
        self.timed += 1;
    }

    fn turn(&mut self, token: usize) {
        let Some(Some(peer)) = self.peers.get_mut(token) else { return };
        peer.has_turn = false;
        let timed_before = usize::from(peer.connection.deadline.is_some());
        let turn = peer.turn(&self.shared);
        self.timed = self.timed - timed_before + usize::from(peer.connection.deadline.is_some());
        match turn {
            Turn::Wait => {}
            Turn::More => {
                peer.has_turn = true;
                self.turns.push(token);
            }
            Turn::Close => self.close(token),
        }
    }

    fn close(&mut self, token: usize) {
        if let Some(mut peer) = self.peers[token].take() {
            // Closing the socket ends the watching anyway.
            let _ = self.poll.registry().deregister(&mut peer.stream);
            self.timed -= usize::from(peer.connection.deadline.is_some());
            if peer.counted {
                self.shared.joined.fetch_sub(1, Ordering::Relaxed);
            }
            self.free.push(token);
        }
    }

    fn close_overdue(&mut self, now: Instant) {
        for token in 0..self.peers.len() {
            let Some(peer) = &self.peers[token] else { continue };
            if peer.connection.deadline.is_some_and(|deadline| deadline <= now) {
                if !peer.shut_down {
                    tracing::warn!(address = %peer.address, "closing a tcp data connection: too slow");
                }
                self.close(token);
            }
        }
    }
}

impl Drop for Card {
    fn drop(&mut self) {
        for token in 0..self.peers.len() {
            self.close(token);
        }
    }
}
