//! Doors for fuzz targets: the memory node's side of a connection without its socket and thread, and the client's
//! side on a socket that somebody else opened.

use std::net::TcpStream;
use std::time::Instant;

use super::TcpFabric;
use super::connect::show_ticket;
use super::connection::{Connection, Wants};
use super::execute::Grant;
use super::frame::FrameError;
use crate::fabric::{ConnectError, ConnectOptions, Rights, SessionId, Ticket};
use crate::memory::WordMemory;

/// What a connection wants next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Next {
    /// More bytes from the peer.
    Input,
    /// Its output to be taken.
    Room,
    /// Nothing any more: the peer was refused something.
    End,
}

/// A memory node's end of one connection.
pub struct Card {
    connection: Connection,
    grant: Grant,
    ticket: Ticket,
}

impl Card {
    /// A connection to `memory`, for whoever shows `ticket`.
    pub fn new(memory: WordMemory, rkey: u32, rights: Rights, ticket: Ticket) -> Self {
        let grant = Grant { memory, rkey, rights };
        Self { connection: Connection::new(Instant::now()), grant, ticket }
    }

    /// Whether it would receive now.
    pub fn takes_input(&self) -> bool {
        self.connection.takes_input()
    }

    /// Receives as much of `bytes` as it has room for; says how much.
    pub fn receive(&mut self, bytes: &[u8]) -> usize {
        let space = self.connection.receive_space();
        let count = bytes.len().min(space.len());
        space[..count].copy_from_slice(&bytes[..count]);
        self.connection.input.commit(count);
        count
    }

    /// Works on what was received.
    ///
    /// # Errors
    /// If that is malformed; the socket would be closed.
    pub fn advance(&mut self) -> Result<Next, FrameError> {
        let Self { connection, grant, ticket } = self;
        let redeem = |shown: Ticket| match shown == *ticket {
            true => Ok((SessionId(1), *grant)),
            false => Err("the ticket is not valid"),
        };
        Ok(match connection.advance(Instant::now(), redeem)? {
            Wants::Input => Next::Input,
            Wants::Room => Next::Room,
            Wants::End => Next::End,
        })
    }

    /// Takes up to `bytes` bytes of its output.
    pub fn take_output(&mut self, bytes: usize) -> Vec<u8> {
        let filled = self.connection.output.filled();
        let output = filled[..bytes.min(filled.len())].to_vec();
        self.connection.output.consume(output.len());
        output
    }

    /// Bytes of memory that the peer makes it hold.
    pub fn held_bytes(&self) -> usize {
        self.connection.input.capacity() + self.connection.output.capacity()
    }
}

/// A client on a stream that doesn't block and whose ticket was accepted.
pub fn client(stream: TcpStream, rkey: u32, options: &ConnectOptions) -> TcpFabric {
    TcpFabric::new(stream, "fuzzing".into(), rkey, options)
}

/// A client's first words on a fresh stream, and what it makes of the answer.
///
/// # Errors
/// [`ConnectError`], as `connect`'s.
pub fn join(stream: &mut TcpStream, ticket: Ticket, deadline: Instant) -> Result<(), ConnectError> {
    show_ticket(stream, ticket, deadline)
}
