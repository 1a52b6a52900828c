//! A thread that plays the network card for the connections it owns.
//!
//! Always true: a connection belongs to one thread from its ticket to its end; the thread never blocks on a peer;
//! one peer's flood or silence doesn't keep the others waiting for longer than a turn. A fence is answered between
//! two turns, when the session's connections are gone: no verb of theirs executes any more.

use std::collections::HashMap;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::time::{Duration, Instant};

use mio::net::TcpStream;
use mio::{Events, Interest, Poll, Token, Waker};

use super::connection::{Connection, Wants};
use super::execute::Grant;
use crate::fabric::{Rights, SessionId, Ticket};

/// Rounds of receive, execute, send that a connection gets before the others have theirs.
const ROUNDS_PER_TURN: usize = 8;
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
    fn redeem(&self, ticket: Ticket) -> Result<(SessionId, Grant), &'static str> {
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
    /// Starts a thread. `owner` is kept as long as it runs.
    pub(super) fn start(name: String, shared: Arc<Shared>, owner: Arc<dyn Send + Sync>) -> io::Result<Self> {
        let poll = Poll::new()?;
        let waker = Waker::new(poll.registry(), WAKE)?;
        let (commands, receiver) = mpsc::channel();
        let card =
            Card { poll, commands: receiver, shared, peers: Vec::new(), free: Vec::new(), turns: Vec::new() };
        let run = move || {
            card.run();
            drop(owner);
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

/// A connection with its socket.
struct Peer {
    stream: TcpStream,
    address: SocketAddr,
    connection: Connection,
    /// The socket may have bytes for us. Cleared when it said that it hasn't.
    readable: bool,
    /// The peer has closed its side, so a short read is not the end of what is there.
    read_closed: bool,
    /// The end was sent to the peer.
    shut_down: bool,
    counted: bool,
    /// It is in the list of those that wait for a turn.
    has_turn: bool,
}

/// What a turn ended with.
enum Turn {
    /// Waits for the socket.
    Wait,
    /// Has more to do at once.
    More,
    Close,
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
                peer.readable |= event.is_readable() || event.is_read_closed() || event.is_error();
                peer.read_closed |= event.is_read_closed() || event.is_error();
                if !peer.has_turn {
                    peer.has_turn = true;
                    self.turns.push(token);
                }
            }
            for token in std::mem::take(&mut self.turns) {
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
        let peer = Peer {
            stream,
            address,
            connection: Connection::new(Instant::now()),
            readable: true,
            read_closed: false,
            shut_down: false,
            counted: false,
            has_turn: true,
        };
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

impl Peer {
    /// Receives, executes and sends, as far as the socket goes and fairness allows.
    fn turn(&mut self, shared: &Shared) -> Turn {
        for _ in 0..ROUNDS_PER_TURN {
            if self.readable && self.connection.takes_input() && !self.receive(shared) {
                return Turn::Close;
            }
            let wants = match self.connection.advance(Instant::now(), |ticket| shared.redeem(ticket)) {
                Ok(wants) => wants,
                Err(reason) => {
                    shared.counters.malformed.fetch_add(1, Ordering::Relaxed);
                    let session = self.connection.session();
                    tracing::warn!(address = %self.address, ?session, %reason, "closing a tcp data connection");
                    return Turn::Close;
                }
            };
            self.count(shared, wants);
            match self.send(shared) {
                Ok(true) => {}
                // The socket is full, and will say when it isn't.
                Ok(false) => return Turn::Wait,
                Err(error) => {
                    tracing::debug!(address = %self.address, %error, "a tcp data connection ended");
                    return Turn::Close;
                }
            }
            if wants == Wants::End && !self.shut_down {
                self.shut_down = true;
                if self.stream.shutdown(Shutdown::Write).is_err() {
                    return Turn::Close;
                }
            }
            if wants != Wants::Room && !self.readable {
                return Turn::Wait;
            }
        }
        Turn::More
    }

    /// Receives once; false if the peer is gone.
    fn receive(&mut self, shared: &Shared) -> bool {
        let space = self.connection.receive_space();
        let asked = space.len();
        match self.stream.read(space) {
            Ok(0) => return false,
            Ok(count) => {
                self.connection.input.commit(count);
                shared.counters.bytes_received.fetch_add(count as u64, Ordering::Relaxed);
                // Less than asked for: nothing is left, and the kernel will say when there is more.
                self.readable = count == asked || self.read_closed;
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => self.readable = false,
            Err(error) => {
                tracing::debug!(address = %self.address, %error, "a tcp data connection ended");
                return false;
            }
        }
        true
    }

    /// Sends what there is; false if the socket didn't take all.
    fn send(&mut self, shared: &Shared) -> io::Result<bool> {
        while !self.connection.output.is_empty() {
            match self.stream.write(self.connection.output.filled()) {
                Ok(count) => {
                    self.connection.output.consume(count);
                    shared.counters.bytes_sent.fetch_add(count as u64, Ordering::Relaxed);
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }

    fn count(&mut self, shared: &Shared, wants: Wants) {
        shared.counters.verbs.fetch_add(self.connection.take_verbs(), Ordering::Relaxed);
        if !self.counted && self.connection.session().is_some() {
            self.counted = true;
            shared.joined.fetch_add(1, Ordering::Relaxed);
            shared.counters.connections.fetch_add(1, Ordering::Relaxed);
        }
        if wants == Wants::End && !self.shut_down {
            shared.counters.refused.fetch_add(1, Ordering::Relaxed);
        }
    }
}
