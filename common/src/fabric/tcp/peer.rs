//! A connection with its socket.
//!
//! Always true: the socket never blocks; a turn ends after a bounded number of rounds; nothing is received while
//! replies wait to be sent.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr};
use std::sync::atomic::Ordering;
use std::time::Instant;

use mio::event::Event;
use mio::net::TcpStream;

use super::connection::{Connection, Wants};
use super::worker::Shared;

/// Rounds of receive, execute, send that a connection gets before the others have theirs.
const ROUNDS_PER_TURN: usize = 8;
/// A connection with its socket.
pub(super) struct Peer {
    pub(super) stream: TcpStream,
    pub(super) address: SocketAddr,
    pub(super) connection: Connection,
    /// The socket may have bytes for us. Cleared when it said that it hasn't.
    readable: bool,
    /// The peer has closed its side, so a short read is not the end of what is there.
    read_closed: bool,
    /// The end was sent to the peer.
    pub(super) shut_down: bool,
    /// It was counted as joined.
    pub(super) counted: bool,
    /// It is in the list of those that wait for a turn.
    pub(super) has_turn: bool,
}

/// What a turn ended with.
pub(super) enum Turn {
    /// Waits for the socket.
    Wait,
    /// Has more to do at once.
    More,
    Close,
}

impl Peer {
    /// A peer that is to have a turn: its ticket may be there already.
    pub(super) fn new(stream: TcpStream, address: SocketAddr) -> Self {
        Self {
            stream,
            address,
            connection: Connection::new(Instant::now()),
            readable: true,
            read_closed: false,
            shut_down: false,
            counted: false,
            has_turn: true,
        }
    }

    /// Takes note of what the kernel says.
    pub(super) fn notice(&mut self, event: &Event) {
        let closed = event.is_read_closed() || event.is_error();
        self.readable |= event.is_readable() || closed;
        self.read_closed |= closed;
    }

    /// Receives, executes and sends, as far as the socket goes and fairness allows.
    pub(super) fn turn(&mut self, shared: &Shared) -> Turn {
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
