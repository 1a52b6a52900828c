//! The memory node's side: tickets, and the threads that play the network card.
//!
//! Always true: a ticket is in the table from `admit` until it is shown or its session is fenced; whoever removes
//! it first wins. The region stays mapped as long as a thread runs.

use std::collections::HashMap;
use std::io;
use std::net::TcpStream;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, mpsc};

use super::execute::Grant;
use super::socket;
use super::worker::{CONNECTIONS_MAX, Command, Counters, Shared, Worker};
use crate::fabric::{FabricKind, Join, Rights, SessionId, Target, Ticket};
use crate::memory::Mapping;

/// Tickets that were given and not shown yet; as many as connections of a thread.
const TICKETS_MAX: usize = CONNECTIONS_MAX;

/// Figures of a [`TcpTarget`] since its start.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct TcpCounters {
    /// Verbs executed, refused ones included.
    pub verbs: u64,
    /// Bytes received on data connections.
    pub bytes_received: u64,
    /// Bytes sent on them.
    pub bytes_sent: u64,
    /// Connections that joined.
    pub connections: u64,
    /// Connections closed because of malformed frames.
    pub malformed: u64,
    /// Connections ended because of a wrong ticket or a refused verb.
    pub refused: u64,
}

/// Serves a region over TCP.
pub struct TcpTarget {
    workers: Vec<Worker>,
    next_worker: AtomicUsize,
    shared: Arc<Shared>,
    advertised: Mutex<Option<(Option<String>, u16)>>,
}

impl TcpTarget {
    /// Starts `threads` threads (at least one) that serve `mapping`.
    ///
    /// # Errors
    /// If the system has no thread, descriptor or randomness left.
    pub fn start(mapping: Arc<Mapping>, threads: usize) -> io::Result<Self> {
        let mut rkey = [0; 4];
        getrandom::fill(&mut rkey).map_err(io::Error::other)?;
        let shared = Arc::new(Shared {
            grant: Grant {
                memory: mapping.words(),
                rkey: u32::from_le_bytes(rkey),
                rights: Rights::ReadWrite,
            },
            tickets: Mutex::new(HashMap::new()),
            joined: AtomicUsize::new(0),
            counters: Counters::default(),
        });
        let start =
            |index| Worker::start(format!("tcp-card-{index}"), Arc::clone(&shared), Arc::clone(&mapping));
        let workers = (0..threads.max(1)).map(start).collect::<io::Result<_>>()?;
        Ok(Self { workers, next_worker: AtomicUsize::new(0), shared, advertised: Mutex::new(None) })
    }

    /// Says where clients find the listener whose connections come to [`TcpTarget::attach`]: at `port` of `host`, or
    /// of the host that their control channel reached. Must precede [`Target::admit`].
    pub fn advertise(&self, host: Option<String>, port: u16) {
        *self.advertised.lock().unwrap_or_else(PoisonError::into_inner) = Some((host, port));
    }

    /// Takes over a connection whose preamble (of kind data) was read and not answered. Returns at once; the
    /// ticket is awaited, and answered, by the thread that gets the connection.
    ///
    /// # Errors
    /// If the socket can't be set up; it is closed then.
    pub fn attach(&self, stream: TcpStream) -> io::Result<()> {
        let address = stream.peer_addr()?;
        socket::set_options(&stream)?;
        stream.set_nonblocking(true)?;
        // A spread, no more: which thread gets it doesn't matter.
        let index = self.next_worker.fetch_add(1, Ordering::Relaxed) % self.workers.len();
        if self.workers[index].ask(Command::Attach(mio::net::TcpStream::from_std(stream), address)) {
            Ok(())
        } else {
            Err(io::Error::other("the tcp thread has ended"))
        }
    }

    /// Figures since the start.
    pub fn counters(&self) -> TcpCounters {
        let counters = &self.shared.counters;
        TcpCounters {
            verbs: counters.verbs.load(Ordering::Relaxed),
            bytes_received: counters.bytes_received.load(Ordering::Relaxed),
            bytes_sent: counters.bytes_sent.load(Ordering::Relaxed),
            connections: counters.connections.load(Ordering::Relaxed),
            malformed: counters.malformed.load(Ordering::Relaxed),
            refused: counters.refused.load(Ordering::Relaxed),
        }
    }
}

impl Target for TcpTarget {
    fn kind(&self) -> FabricKind {
        FabricKind::Tcp
    }

    fn admit(&self, session: SessionId, rights: Rights) -> Result<Join, String> {
        let Some((host, port)) = self.advertised.lock().unwrap_or_else(PoisonError::into_inner).clone()
        else {
            return Err("tcp: nobody listens yet".into());
        };
        let ticket = Ticket::random();
        let mut tickets = self.shared.tickets.lock().unwrap_or_else(PoisonError::into_inner);
        if tickets.len() >= TICKETS_MAX {
            return Err(format!("tcp: {TICKETS_MAX} sessions were admitted and have not joined yet"));
        }
        tickets.insert(ticket, (session, rights));
        Ok(Join::Tcp { host, port, ticket, rkey: self.shared.grant.rkey })
    }

    fn fence(&self, session: SessionId) -> bool {
        // First the tickets: a connection joined with one before this is in its thread's hands already, which
        // looks for the session's connections only after that.
        let mut tickets = self.shared.tickets.lock().unwrap_or_else(PoisonError::into_inner);
        tickets.retain(|_, (owner, _)| *owner != session);
        drop(tickets);
        let (fenced, answers) = mpsc::channel();
        for worker in &self.workers {
            worker.ask(Command::Fence(session, fenced.clone()));
        }
        drop(fenced);
        // Ends when each thread has answered, or has ended and dropped its end: either way its connections are gone.
        answers.iter().for_each(drop);
        true
    }

    fn connection_count(&self) -> usize {
        self.shared.joined.load(Ordering::Relaxed)
    }

    fn describe(&self) -> String {
        let place = match &*self.advertised.lock().unwrap_or_else(PoisonError::into_inner) {
            None => "not listening".to_owned(),
            Some((None, port)) => format!("port {port}"),
            Some((Some(host), port)) => format!("{host} port {port}"),
        };
        let bytes = self.shared.grant.memory.bytes();
        format!("tcp: {place}, {} threads play the card, region of {bytes} bytes", self.workers.len())
    }
}

impl std::fmt::Debug for TcpTarget {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "TcpTarget({}, {} connections)", self.describe(), self.connection_count())
    }
}
