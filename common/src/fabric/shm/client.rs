//! The client's side: a mapped region.
//!
//! Always true: after the first refused verb, or once the connection is seen to have ended, nothing touches the
//! region any more. The region is unmapped before the server is told so.

use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use rustix::event::PollFlags;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, sockopt};
use rustix::time::{ClockId, clock_gettime};

use super::execute::Executor;
use super::handshake::{self, AnswerError};
use super::peer::has_event;
use crate::fabric::{
    Batch, BufferPool, Completion, ConnectError, ConnectOptions, Effect, Fabric, FabricKind, Failure,
    FailureKind, Limits, PostError, Replies, Reply, Ticket, Unregistered, Verb, VerbList,
};
use crate::memory::Mapping;

/// The longest verb: what cards allow is 2 GiB, and half of it is far beyond any block.
const VERB_BYTES_MAX: usize = 1 << 30;

/// How long a client may go on without looking whether it was fenced or the server is gone. Short against every lease;
/// long against the look, which is a system call.
const LOOK_EVERY_MS: i64 = 5;

/// One session's mapping of the region. See the module above.
pub struct ShmFabric {
    /// An option only so that `drop` can unmap before it speaks.
    mapping: Option<Arc<Mapping>>,
    executor: Executor,
    stream: UnixStream,
    /// When the stream was last looked at, in milliseconds of the coarse clock.
    looked_at_ms: i64,
    /// Why nothing works any more.
    broken: Option<String>,
    /// Ends of batches that nobody has polled yet. Polling takes them all, so it keeps its memory for the next ones.
    completed: Vec<Completion>,
    /// Verbs of those batches.
    in_flight: usize,
    limits: Limits,
    buffers: BufferPool,
    description: String,
}

/// Joins a session by its ticket, at the memory node's Unix socket.
pub(in crate::fabric) fn connect(
    socket: &str,
    ticket: Ticket,
    options: &ConnectOptions,
) -> Result<ShmFabric, ConnectError> {
    let stream = open(socket, options)?;
    match attach(&stream, ticket, options) {
        Ok(mapping) => Ok(ShmFabric::new(Arc::new(mapping), stream, socket, options)),
        Err(error) => {
            // Else the server, which may have sent the file, could not fence the session while this process lives.
            let _ = handshake::send(&stream, &[handshake::UNMAPPED], None);
            Err(error)
        }
    }
}

/// Shows the ticket and maps what comes. After an error nothing is mapped, nor will be.
pub(super) fn attach(
    stream: &UnixStream,
    ticket: Ticket,
    options: &ConnectOptions,
) -> Result<Mapping, ConnectError> {
    let io = |doing| move |source| io_error(doing, source);
    handshake::send_opening(stream, ticket).map_err(io("sending the ticket"))?;
    let file = handshake::receive_answer(stream, options.deadline).map_err(|error| match error {
        AnswerError::Io(source) => io_error("waiting for the memory file", source),
        other => ConnectError::Refused { kind: FabricKind::Shm, reason: other.to_string() },
    })?;
    stream.set_read_timeout(None).map_err(io("clearing the time limit"))?;
    Mapping::attach(file, options.region_bytes, options.rights)
        .map_err(|error| ConnectError::Unavailable { kind: FabricKind::Shm, reason: error.to_string() })
}

fn open(socket: &str, options: &ConnectOptions) -> Result<UnixStream, ConnectError> {
    let doing = "connecting to the region's Unix socket";
    let io = |errno: rustix::io::Errno| io_error(doing, errno.into());
    let left = handshake::left(options.deadline).map_err(|error| io_error(doing, error))?;
    let address = SocketAddrUnix::new(socket).map_err(io)?;
    let file = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)
        .map_err(io)?;
    // Holds for connecting too, when a stopped server's queue is full.
    sockopt::set_socket_timeout(&file, sockopt::Timeout::Send, Some(left)).map_err(io)?;
    rustix::net::connect(&file, &address).map_err(io)?;
    Ok(UnixStream::from(file))
}

fn io_error(doing: &'static str, source: std::io::Error) -> ConnectError {
    if handshake::is_timeout(&source) {
        return ConnectError::Timeout { kind: FabricKind::Shm, doing };
    }
    ConnectError::Io { kind: FabricKind::Shm, doing, source }
}

impl ShmFabric {
    fn new(mapping: Arc<Mapping>, stream: UnixStream, socket: &str, options: &ConnectOptions) -> Self {
        let rights = if options.rights.can_write() { "read-write" } else { "read-only" };
        Self {
            executor: Executor::new(mapping.words(), options.rights),
            description: format!("shm through {socket}: {}, {rights}", mapping.describe()),
            mapping: Some(mapping),
            stream,
            looked_at_ms: now_ms(),
            broken: None,
            completed: Vec::with_capacity(options.verbs_in_flight_max.min(1024)),
            in_flight: 0,
            limits: Limits {
                verbs_in_flight_max: options.verbs_in_flight_max.max(1),
                verb_bytes_max: VERB_BYTES_MAX,
            },
            buffers: BufferPool::new(Box::new(Unregistered), options.buffer_limit_bytes),
        }
    }

    /// Whether the call can be taken; gives its verbs' credit.
    #[inline]
    fn check(&self, batches: &[Batch<'_>]) -> Result<usize, PostError> {
        let mut asked = 0;
        for batch in batches {
            // A batch without verbs still takes a completion.
            asked += batch.verbs.len().max(1);
            for verb in &batch.verbs {
                let bytes = verb.bytes();
                if bytes > VERB_BYTES_MAX {
                    return Err(PostError::TooLarge {
                        what: "bytes of a verb",
                        asked: bytes,
                        limit: VERB_BYTES_MAX,
                    });
                }
            }
        }
        let limit = self.limits.verbs_in_flight_max;
        if asked > limit {
            return Err(PostError::TooLarge { what: "verbs of a call", asked, limit });
        }
        if asked > limit - self.in_flight {
            return Err(PostError::Full { asked, in_flight: self.in_flight, limit });
        }
        Ok(asked)
    }

    /// Looks whether the session was fenced or the server is gone, if it is time to.
    #[inline]
    fn look(&mut self) {
        let now_ms = now_ms();
        if now_ms - self.looked_at_ms >= LOOK_EVERY_MS {
            self.looked_at_ms = now_ms;
            self.look_now(Duration::ZERO);
        }
    }

    /// Waits for the end of the connection, `timeout` at the longest. The server sends nothing after its answer, so
    /// whatever comes is the end.
    #[cold]
    fn look_now(&mut self, timeout: Duration) {
        match has_event(
            &self.stream,
            PollFlags::IN | PollFlags::RDHUP | PollFlags::HUP | PollFlags::ERR,
            timeout,
        ) {
            Ok(false) => {}
            Ok(true) => {
                self.broken = Some("the server ended the session, or is gone".into());
            }
            Err(error) => self.broken = Some(format!("the session's socket failed: {error}")),
        }
    }

    /// Executes the verbs of one batch up to the first that is refused. A silent batch has no place for `replies`.
    #[inline]
    fn execute(
        executor: &mut Executor,
        buffers: &mut BufferPool,
        verbs: &mut VerbList<'_>,
        mut replies: Option<&mut Replies>,
    ) -> Result<(), Failure> {
        for (verb_index, verb) in verbs.drain(..).enumerate() {
            match (executor.execute(verb), &mut replies) {
                (Ok(reply), Some(replies)) => replies.push(reply),
                (Ok(Reply::Read(buffer)), None) => buffers.recycle(buffer),
                (Ok(_), None) => {}
                (Err((refused, verb)), _) => {
                    if let Verb::Read { into, .. } = verb {
                        buffers.recycle(into);
                    }
                    let kind = FailureKind::Access(refused.to_string());
                    return Err(Failure { verb_index, kind, effect: Effect::No });
                }
            }
        }
        Ok(())
    }

    /// Ends the connection with the batch that was executed last.
    #[cold]
    fn fail(&mut self, silent: bool, failure: Failure) {
        self.broken = Some(failure.to_string());
        if silent {
            return;
        }
        let Some(completion) = self.completed.last_mut() else {
            unreachable!("a loud batch has its completion")
        };
        // The verbs before did succeed, but nobody gets to see what they brought.
        if let Ok(replies) = std::mem::replace(&mut completion.result, Err(failure)) {
            for reply in replies {
                if let Reply::Read(buffer) = reply {
                    self.buffers.recycle(buffer);
                }
            }
        }
    }

    /// Takes the verbs of a batch behind a failure; none is executed.
    #[cold]
    fn flush(&mut self, batch: &mut Batch<'_>) -> Failure {
        for verb in batch.verbs.drain(..) {
            if let Verb::Read { into, .. } = verb {
                self.buffers.recycle(into);
            }
        }
        Failure { verb_index: 0, kind: FailureKind::Flushed, effect: Effect::No }
    }
}

impl Fabric for ShmFabric {
    fn kind(&self) -> FabricKind {
        FabricKind::Shm
    }

    fn limits(&self) -> Limits {
        self.limits
    }

    fn describe(&self) -> String {
        self.description.clone()
    }

    fn buffers(&mut self) -> &mut BufferPool {
        &mut self.buffers
    }

    fn post(&mut self, batches: &mut [Batch<'_>]) -> Result<(), PostError> {
        self.look();
        if let Some(reason) = &self.broken {
            return Err(PostError::Broken(reason.clone()));
        }
        self.check(batches)?;
        for batch in batches {
            let credit = batch.verbs.len().max(1);
            if self.broken.is_some() {
                let failure = self.flush(batch);
                if !batch.silent {
                    self.completed.push(Completion { batch: batch.id, result: Err(failure) });
                }
                continue;
            }
            let Self { executor, buffers, completed, .. } = self;
            let result = if batch.silent {
                Self::execute(executor, buffers, &mut batch.verbs, None)
            } else {
                self.in_flight += credit;
                // Replies are put where they stay: moving them would cost more than most verbs.
                completed.push(Completion { batch: batch.id, result: Ok(Replies::new()) });
                let replies = completed.last_mut().and_then(|completion| completion.result.as_mut().ok());
                Self::execute(executor, buffers, &mut batch.verbs, replies)
            };
            if let Err(failure) = result {
                self.fail(batch.silent, failure);
            }
        }
        Ok(())
    }

    fn poll(&mut self, completions: &mut Vec<Completion>) -> usize {
        let count = self.completed.len();
        completions.append(&mut self.completed);
        self.in_flight = 0;
        count
    }

    fn wait(&mut self, timeout: Duration) {
        if self.completed.is_empty() && self.broken.is_none() {
            self.look_now(timeout);
        }
    }
}

impl Drop for ShmFabric {
    fn drop(&mut self) {
        self.mapping = None;
        // If it can't be said, the server waits for this process's end.
        let _ = handshake::send(&self.stream, &[handshake::UNMAPPED], None);
    }
}

impl std::fmt::Debug for ShmFabric {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ShmFabric({})", self.description)
    }
}

/// Milliseconds of a clock that costs a few nanoseconds and ticks every few milliseconds.
#[inline]
fn now_ms() -> i64 {
    let now = clock_gettime(ClockId::MonotonicCoarse);
    now.tv_sec * 1000 + now.tv_nsec / 1_000_000
}
