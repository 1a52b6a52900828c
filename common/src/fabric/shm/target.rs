//! The memory node's side: hands the memory file to sessions, and knows which processes still have it.
//!
//! Always true:
//! - a ticket opens one connection, once, and none after its session was fenced;
//! - a connection is forgotten only when its mapping is certainly gone: its process is dead, or the client's last word was
//!   that it has unmapped. Until then [`Target::fence`] says `false`.

use std::collections::HashMap;
use std::io;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::{RecvFlags, Shutdown};

use super::handshake;
use super::peer::PeerProcess;
use crate::fabric::{FabricKind, Join, Rights, SessionId, Target, Ticket};
use crate::memory::Mapping;

/// A client sends its ticket together with the preamble, so this long is long; see [`ShmTarget::attach`].
const TICKET_TIMEOUT: Duration = Duration::from_secs(1);

/// A killed process closes its sockets a moment before it counts as dead; fencing waits this long for the rest.
const DYING_PATIENCE: Duration = Duration::from_millis(100);

/// Tickets not yet used. A client that asks for joins and never comes can't fill the server's memory.
const TICKETS_MAX: usize = 65_536;

/// Serves a region to clients of the same host.
pub struct ShmTarget {
    mapping: Arc<Mapping>,
    socket: String,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    tickets: HashMap<Ticket, (SessionId, Rights)>,
    connections: Vec<Connection>,
}

/// A process that may have the region mapped for a session.
struct Connection {
    session: SessionId,
    stream: Arc<UnixStream>,
    process: Arc<PeerProcess>,
    /// What the stream last said.
    phase: Phase,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    /// In use.
    Open,
    /// The client's end is closed, without a last word.
    Closed,
    /// The client has unmapped the region.
    Unmapped,
}

/// A connection could not be joined to a session. The client has been told, if it still listens.
#[derive(Debug, thiserror::Error)]
pub enum AttachError {
    /// It was too slow or is gone.
    #[error("shm client: {doing}: {source}")]
    Io {
        /// What was tried.
        doing: &'static str,
        /// The cause.
        source: io::Error,
    },
    /// No session gave out that ticket, or it was used, or the session was fenced.
    #[error("shm client: its ticket is unknown, used or void")]
    Ticket,
    /// Its process can't be named, so its death could never be noticed.
    #[error("shm client: its process can't be watched: {0}")]
    Process(io::Error),
}

impl ShmTarget {
    /// Serves `mapping`. The caller listens at `socket_path`, reads each connection's preamble, and gives those of kind data
    /// to [`ShmTarget::attach`].
    pub fn new(mapping: Arc<Mapping>, socket_path: impl Into<String>) -> Self {
        Self { mapping, socket: socket_path.into(), state: Mutex::default() }
    }

    /// Joins a connection whose preamble was read (and not yet answered: the answer begins with one). Blocks until the
    /// ticket has come, a second at the most, so call it where that disturbs nobody.
    ///
    /// # Errors
    /// [`AttachError`], for the log.
    pub fn attach(&self, stream: UnixStream) -> Result<SessionId, AttachError> {
        let io = |doing| move |source| AttachError::Io { doing, source };
        stream.set_nonblocking(false).map_err(io("making its socket wait"))?;
        stream.set_write_timeout(Some(TICKET_TIMEOUT)).map_err(io("limiting its time"))?;
        let ticket = handshake::receive_ticket(&stream, Instant::now() + TICKET_TIMEOUT)
            .map_err(io("waiting for its ticket"))?;
        let process = match PeerProcess::of(&stream) {
            Ok(process) => process,
            Err(error) => {
                let error = AttachError::Process(error);
                let _ = handshake::send_answer(&stream, Err(&error.to_string()));
                return Err(error);
            }
        };
        let stream = Arc::new(stream);
        let Some((session, rights)) = self.redeem(ticket, &stream, process) else {
            let _ = handshake::send_answer(&stream, Err(&AttachError::Ticket.to_string()));
            return Err(AttachError::Ticket);
        };
        let file = if rights.can_write() { self.mapping.fd() } else { self.mapping.read_only_fd() };
        match handshake::send_answer(&stream, Ok(file)) {
            Ok(()) => Ok(session),
            Err(source) => {
                // The file goes with the first byte, which may have left: the connection stays on the books, and goes
                // with its process.
                let _ = rustix::net::shutdown(&stream, Shutdown::Write);
                Err(AttachError::Io { doing: "sending the memory file", source })
            }
        }
    }

    /// Exchanges a ticket for an entry in the books, in one step: fencing finds either the one or the other.
    fn redeem(
        &self,
        ticket: Ticket,
        stream: &Arc<UnixStream>,
        process: PeerProcess,
    ) -> Option<(SessionId, Rights)> {
        let mut state = self.state();
        let (session, rights) = state.tickets.remove(&ticket)?;
        let (stream, process) = (Arc::clone(stream), Arc::new(process));
        state.connections.push(Connection { session, stream, process, phase: Phase::Open });
        Some((session, rights))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Each step leaves the books whole, so a panic elsewhere in a holder doesn't matter.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Connection {
    /// Listens for a last word or the end.
    fn refresh(&mut self) {
        while self.phase == Phase::Open {
            let mut byte = [0];
            self.phase = match rustix::net::recv(&self.stream, &mut byte, RecvFlags::DONTWAIT) {
                Ok((_, 0)) => Phase::Closed,
                Ok(_) if byte[0] == handshake::UNMAPPED => Phase::Unmapped,
                // Anything else is not in the protocol and means nothing.
                Ok(_) | Err(Errno::INTR) => Phase::Open,
                Err(Errno::AGAIN) => return,
                Err(_) => Phase::Closed,
            };
        }
    }

    /// Whether the mapping is certainly gone.
    fn is_gone(&self) -> bool {
        self.phase == Phase::Unmapped || self.process.is_dead(Duration::ZERO)
    }
}

impl State {
    /// Brings the books up to date.
    fn refresh(&mut self) {
        self.connections.retain_mut(|connection| {
            connection.refresh();
            !connection.is_gone()
        });
    }
}

impl Target for ShmTarget {
    fn kind(&self) -> FabricKind {
        FabricKind::Shm
    }

    fn admit(&self, session: SessionId, rights: Rights) -> Result<Join, String> {
        let mut state = self.state();
        state.refresh();
        if state.tickets.len() >= TICKETS_MAX {
            return Err(format!("{TICKETS_MAX} tickets for the shm fabric are out and unused"));
        }
        let ticket = Ticket::random();
        state.tickets.insert(ticket, (session, rights));
        Ok(Join::Shm { socket: self.socket.clone(), ticket })
    }

    fn fence(&self, session: SessionId) -> bool {
        let mut state = self.state();
        state.tickets.retain(|_, (owner, _)| *owner != session);
        let mut waiting = Vec::new();
        for connection in state.connections.iter_mut().filter(|connection| connection.session == session) {
            connection.refresh();
            // Only the sending half: an honest client sees it, and can still say when it has unmapped.
            let _ = rustix::net::shutdown(&connection.stream, Shutdown::Write);
            if connection.phase == Phase::Closed {
                waiting.push(Arc::clone(&connection.process));
            }
        }
        // The books are not locked while processes are given time to die, and that time is given once, not to each.
        drop(state);
        let deadline = Instant::now() + DYING_PATIENCE;
        for process in waiting {
            process.is_dead(deadline.saturating_duration_since(Instant::now()));
        }
        let mut state = self.state();
        state.refresh();
        !state.connections.iter().any(|connection| connection.session == session)
    }

    fn connection_count(&self) -> usize {
        let mut state = self.state();
        state.refresh();
        state.connections.iter().filter(|connection| connection.phase == Phase::Open).count()
    }

    fn describe(&self) -> String {
        format!("Unix socket {}, {}", self.socket, self.mapping.describe())
    }
}

impl std::fmt::Debug for ShmTarget {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ShmTarget({})", self.describe())
    }
}
