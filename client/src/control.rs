//! The control channel: one connection a session, for what is rare.
//!
//! Always true: one request is under way at a time, and its response is read before the next is sent. Nobody waits
//! beyond its own deadline, neither for the peer nor for its turn. After any failure (also a deadline that passed
//! with a response outstanding) the channel is lost for good: its bytes could be out of step.

use std::io::{self, Read, Write};
use std::net::{IpAddr, TcpStream, ToSocketAddrs};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, sockopt};
use sidestep_common::fabric::Effect;
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

/// A stream while somebody has until a deadline. Each call gets what is left, so a peer that sends byte by byte gains
/// no time.
struct Timed<'a> {
    stream: &'a mut Stream,
    deadline: Deadline,
}

impl Timed<'_> {
    fn arm(&self) -> io::Result<()> {
        let left = self.deadline.left();
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        self.stream.set_timeouts(left)
    }
}

impl Read for Timed<'_> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        self.arm()?;
        match self.stream {
            Stream::Tcp(stream) => stream.read(bytes),
            Stream::Unix(stream) => stream.read(bytes),
        }
    }
}

impl Write for Timed<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.arm()?;
        match self.stream {
            Stream::Tcp(stream) => stream.write(bytes),
            Stream::Unix(stream) => stream.write(bytes),
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
    /// None while a request is under way.
    stream: Mutex<Option<Stream>>,
    /// Told when it is back.
    back: Condvar,
    lost: AtomicBool,
}

impl Control {
    /// Connects and exchanges preambles.
    pub(crate) fn open(endpoint: &Endpoint, deadline: Deadline) -> Result<Self, Error> {
        let name = endpoint.to_string();
        let unreachable =
            |error: io::Error| Error::Unreachable { endpoint: name.clone(), reason: io_reason(&error) };
        let (stream, peer) = match &endpoint.place {
            Place::Unix(path) => (Stream::Unix(connect_unix(path, deadline).map_err(unreachable)?), None),
            Place::Tcp(host, port) => {
                let stream = connect_tcp(host, *port, deadline).map_err(unreachable)?;
                let peer = stream.peer_addr().map_err(unreachable)?.ip();
                (Stream::Tcp(stream), Some(peer))
            }
        };
        Self::greet(name, stream, peer, deadline)
    }

    /// Over a Unix socket that somebody else connected.
    #[cfg(feature = "fuzzing")]
    pub(crate) fn over(stream: UnixStream, deadline: Deadline) -> Result<Self, Error> {
        Self::greet("unix:fuzzing".into(), Stream::Unix(stream), None, deadline)
    }

    /// Exchanges preambles.
    fn greet(
        endpoint: String,
        mut stream: Stream,
        peer: Option<IpAddr>,
        deadline: Deadline,
    ) -> Result<Self, Error> {
        let unreachable =
            |error: io::Error| Error::Unreachable { endpoint: endpoint.clone(), reason: io_reason(&error) };
        let mut timed = Timed { stream: &mut stream, deadline };
        timed.write_all(&Preamble(PreambleKind::Control).encode()).map_err(unreachable)?;
        let mut bytes = [0; Preamble::BYTES];
        timed.read_exact(&mut bytes).map_err(unreachable)?;
        Preamble::parse(bytes).map_err(|error| Error::from_wire(&endpoint, error))?;
        Ok(Self {
            endpoint,
            peer,
            stream: Mutex::new(Some(stream)),
            back: Condvar::new(),
            lost: AtomicBool::new(false),
        })
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
        let mut stream = self.turn(deadline)?;
        if self.is_lost() {
            self.give_back(stream);
            let reason = "the control connection was lost".to_owned();
            return Err(Error::Unreachable { endpoint: self.endpoint.clone(), reason });
        }
        let exchanged = exchange(&mut Timed { stream: &mut stream, deadline }, request);
        if exchanged.is_err() {
            self.lost.store(true, Ordering::Relaxed);
        }
        self.give_back(stream);
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

    /// Waits until no other request is under way, and takes the stream if there is time left to use it: a request
    /// that can't even be sent is no reason to lose the channel.
    fn turn(&self, deadline: Deadline) -> Result<Stream, Error> {
        let stream = self.stream.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.back.wait_timeout_while(stream, deadline.left(), |stream| stream.is_none());
        let mut stream = waited.unwrap_or_else(PoisonError::into_inner).0;
        let taken = if deadline.has_passed() { None } else { stream.take() };
        taken.ok_or_else(|| Error::Timeout {
            endpoint: self.endpoint.clone(),
            after_ms: deadline.whole_ms(),
            doing: "waiting for the control connection",
            effect: Effect::No,
        })
    }

    fn give_back(&self, stream: Stream) {
        *self.stream.lock().unwrap_or_else(PoisonError::into_inner) = Some(stream);
        // All: one of those that wait may have no time left, and would wake nobody else.
        self.back.notify_all();
    }
}

fn exchange(stream: &mut Timed<'_>, request: &Request) -> Result<Response, WireError> {
    write_frame(stream, request)?;
    loop {
        match read_frame(stream)? {
            // Said unasked; the next heartbeat's answer says it again.
            Response::Notice(_) => {}
            response => return Ok(response),
        }
    }
}

/// A server that was stopped accepts nobody, and a full queue of its socket would make connecting wait for ever.
fn connect_unix(path: &Path, deadline: Deadline) -> io::Result<UnixStream> {
    let address = SocketAddrUnix::new(path)?;
    let socket =
        rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    let left = deadline.left().max(Duration::from_millis(1));
    sockopt::set_socket_timeout(&socket, sockopt::Timeout::Send, Some(left))?;
    rustix::net::connect(&socket, &address)?;
    Ok(UnixStream::from(socket))
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

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::os::unix::net::UnixListener;
    use std::sync::mpsc::channel;
    use std::time::Instant;

    use sidestep_common::wire::Pulse;

    use super::*;

    const SHORT: Duration = Duration::from_millis(100);
    const LONG: Duration = Duration::from_secs(30);

    /// A channel to a peer that exchanged preambles; the peer's end comes with it.
    fn channel_to_peer() -> (Control, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let endpoint: Endpoint = listener.local_addr().unwrap().to_string().parse().unwrap();
        let peer = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            stream.read_exact(&mut [0; Preamble::BYTES]).unwrap();
            stream.write_all(&Preamble(PreambleKind::Control).encode()).unwrap();
            stream
        });
        let control = Control::open(&endpoint, Deadline::after(LONG)).unwrap();
        (control, peer.join().unwrap())
    }

    /// A heartbeat waits for a server that has stopped. Another request, with a deadline of its own, does not wait
    /// for the heartbeat's.
    #[test]
    fn a_request_does_not_outwait_its_deadline_for_another() {
        let (control, mut peer) = channel_to_peer();
        std::thread::scope(|scope| {
            let beat = scope.spawn(|| {
                control.request(&Request::Heartbeat { epoch: 1, wants_epoch: false }, Deadline::after(LONG))
            });
            peer.read_exact(&mut [0; 6]).unwrap();
            let began = Instant::now();
            let error = control.request(&Request::Statistics, Deadline::after(SHORT)).unwrap_err();
            assert!(began.elapsed() < LONG / 2, "{:?}: {error}", began.elapsed());
            assert!(!control.is_lost(), "nothing is wrong with the channel");
            write_frame(&mut peer, &Response::Heartbeat(Pulse::default())).unwrap();
            beat.join().unwrap().unwrap();
        });
    }

    /// No time is left to ask: nothing was sent, so nothing is lost.
    #[test]
    fn a_request_without_time_does_no_harm() {
        let (control, mut peer) = channel_to_peer();
        let error = control.request(&Request::Statistics, Deadline::after(Duration::ZERO)).unwrap_err();
        assert!(matches!(error, Error::Timeout { effect: Effect::No, .. }), "{error}");
        assert!(!control.is_lost());
        write_frame(&mut peer, &Response::Heartbeat(Pulse::default())).unwrap();
        control.request(&Request::Heartbeat { epoch: 1, wants_epoch: false }, Deadline::after(LONG)).unwrap();
    }

    /// A peer that sends a byte now and then keeps nobody beyond the deadline.
    #[test]
    fn a_trickle_is_no_answer() {
        let (control, mut peer) = channel_to_peer();
        let (stop, stopped) = channel::<()>();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                peer.write_all(&1000_u32.to_le_bytes()).unwrap();
                while stopped.recv_timeout(SHORT / 5).is_err() && peer.write_all(&[0]).is_ok() {}
            });
            let began = Instant::now();
            control.request(&Request::Statistics, Deadline::after(SHORT)).unwrap_err();
            assert!(began.elapsed() < SHORT * 30, "{:?}", began.elapsed());
            stop.send(()).unwrap();
        });
        assert!(control.is_lost());
    }

    /// A server that was stopped accepts nobody; when its queue is full, connecting would wait for ever.
    #[test]
    fn a_full_queue_costs_the_deadline() {
        let path = std::env::temp_dir().join(format!("sidestep-control-{}.sock", std::process::id()));
        let listener = UnixListener::bind(&path).unwrap();
        rustix::net::listen(&listener, 0).unwrap();
        let endpoint: Endpoint = format!("unix:{}", path.display()).parse().unwrap();
        let (tell, told) = channel();
        std::thread::spawn(move || {
            for _ in 0..3 {
                let _ = tell.send(Control::open(&endpoint, Deadline::after(SHORT)).is_err());
            }
        });
        for _ in 0..3 {
            assert_eq!(told.recv_timeout(LONG), Ok(true));
        }
        drop(listener);
        std::fs::remove_file(path).unwrap();
    }
}
