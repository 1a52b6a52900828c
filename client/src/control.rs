//! The control channel: one connection a session, for what is rare.
//!
//! Always true: one request is under way at a time, and its response is read before the next is sent. After any
//! failure (also a deadline that passed with a response outstanding) the channel is lost for good: its bytes
//! could be out of step.

use std::io::{self, Read, Write};
use std::net::{IpAddr, TcpStream, ToSocketAddrs};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use sidestep_common::wire::{
    Preamble, PreambleKind, RefusalCode, Request, Response, WireError, read_frame, write_frame,
};

use crate::clock::Deadline;
use crate::endpoint::{Endpoint, Place};
use crate::error::{Error, io_reason};

/// A TCP or Unix stream.
#[derive(Debug)]
enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Stream {
    fn set_timeouts(&self, timeout: Duration) -> io::Result<()> {
        // Zero would mean "for ever".
        let timeout = Some(timeout.max(Duration::from_millis(1)));
        match self {
            Self::Tcp(stream) => {
                stream.set_read_timeout(timeout).and_then(|()| stream.set_write_timeout(timeout))
            }
            Self::Unix(stream) => {
                stream.set_read_timeout(timeout).and_then(|()| stream.set_write_timeout(timeout))
            }
        }
    }
}

impl Read for Stream {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.read(bytes),
            Self::Unix(stream) => stream.read(bytes),
        }
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.write(bytes),
            Self::Unix(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The control channel of one session.
#[derive(Debug)]
pub(crate) struct Control {
    endpoint: String,
    peer: Option<IpAddr>,
    stream: Mutex<Stream>,
    lost: AtomicBool,
}

impl Control {
    /// Connects and exchanges preambles.
    pub(crate) fn open(endpoint: &Endpoint, deadline: Deadline) -> Result<Self, Error> {
        let name = endpoint.to_string();
        let unreachable =
            |error: io::Error| Error::Unreachable { endpoint: name.clone(), reason: io_reason(&error) };
        let (mut stream, peer) = match &endpoint.place {
            Place::Unix(path) => (Stream::Unix(UnixStream::connect(path).map_err(unreachable)?), None),
            Place::Tcp(host, port) => {
                let stream = connect_tcp(host, *port, deadline).map_err(unreachable)?;
                let peer = stream.peer_addr().map_err(unreachable)?.ip();
                (Stream::Tcp(stream), Some(peer))
            }
        };
        stream.set_timeouts(deadline.left()).map_err(unreachable)?;
        stream.write_all(&Preamble(PreambleKind::Control).encode()).map_err(unreachable)?;
        let mut bytes = [0; Preamble::BYTES];
        stream.read_exact(&mut bytes).map_err(unreachable)?;
        Preamble::parse(bytes).map_err(|error| Error::from_wire(&name, error))?;
        Ok(Self { endpoint: name, peer, stream: Mutex::new(stream), lost: AtomicBool::new(false) })
    }

    /// The server's address; none over a Unix socket.
    pub(crate) const fn peer(&self) -> Option<IpAddr> {
        self.peer
    }

    /// Whether the channel has failed.
    pub(crate) fn is_lost(&self) -> bool {
        // Pairs with nothing: a late answer only delays the reconnect to the next call.
        self.lost.load(Ordering::Relaxed)
    }

    /// Sends a request and reads its response. A [`Response::Refused`] comes back as an error.
    pub(crate) fn request(&self, request: &Request, deadline: Deadline) -> Result<Response, Error> {
        let mut stream = self.stream.lock().unwrap_or_else(PoisonError::into_inner);
        if self.is_lost() {
            let reason = "the control connection was lost".to_owned();
            return Err(Error::Unreachable { endpoint: self.endpoint.clone(), reason });
        }
        let exchanged = exchange(&mut stream, request, deadline);
        if exchanged.is_err() {
            self.lost.store(true, Ordering::Relaxed);
        }
        match exchanged {
            Ok(Response::Refused(refusal)) => {
                if refusal.code == RefusalCode::Fenced {
                    // The session is over; only a new one can go on.
                    self.lost.store(true, Ordering::Relaxed);
                }
                Err(Error::from_refusal(&self.endpoint, refusal))
            }
            Ok(response) => Ok(response),
            Err(error) => Err(Error::from_wire(&self.endpoint, error)),
        }
    }
}

fn exchange(stream: &mut Stream, request: &Request, deadline: Deadline) -> Result<Response, WireError> {
    stream.set_timeouts(deadline.left())?;
    write_frame(stream, request)?;
    read_frame(stream)
}

fn connect_tcp(host: &str, port: u16, deadline: Deadline) -> io::Result<TcpStream> {
    let mut last = io::Error::new(io::ErrorKind::NotFound, format!("`{host}` has no address"));
    for address in (host, port).to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, deadline.left().max(Duration::from_millis(1))) {
            Ok(stream) => {
                stream.set_nodelay(true)?;
                return Ok(stream);
            }
            Err(error) => last = error,
        }
    }
    Err(last)
}
