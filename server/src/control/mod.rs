//! The control channel: connections of clients, over TCP and the Unix socket.
//!
//! Always true:
//! - a connection has a deadline until its session is open, and there are at most [`HANDSHAKES_MAX`] such
//!   connections; behind that it costs a task, never a thread;
//! - a peer of another version is told ours before the connection is closed; a peer of another protocol is
//!   told nothing;
//! - one port serves control and `tcp` data connections, the Unix socket control and `shm` data connections. A
//!   connection's first eight bytes tell which; a data connection is handed over with these bytes read and
//!   nothing answered.

mod conversation;
mod frames;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
pub mod socket;

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::Sender;
use std::time::Duration;

use sidestep_common::fabric::FabricKind;
use sidestep_common::wire::{Preamble, PreambleKind, WireError};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::node::{Node, Peer, State};

/// Connections without a session or data path yet. When they are that many, others wait in the kernel's queue
/// until one of these is through or too late.
pub const HANDSHAKES_MAX: usize = 256;
/// After a failed accept (no more file descriptors, say) the acceptor rests, and doesn't spin.
const ACCEPT_REST: Duration = Duration::from_millis(100);
/// When the server stops, answers that are under way have this long.
const LAST_ANSWERS: Duration = Duration::from_millis(500);
/// A peer that is turned away has this long to read why.
const LAST_WORDS: Duration = Duration::from_secs(1);
/// Bytes of such a peer that are read and dropped meanwhile.
const LAST_WORDS_BYTES_MAX: u64 = 128 << 10;

/// Accepts at `listener` until the node is stopped, then waits a moment for the connections to end. `done` is dropped
/// when that is done.
pub async fn accept(node: Arc<Node>, listener: Listener, handshakes: Arc<Semaphore>, done: Sender<()>) {
    let mut state = node.watch_state();
    let mut connections = JoinSet::new();
    while let Some(permit) = permit(&handshakes, &mut state).await {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = stopped(&mut state) => break,
        };
        match accepted {
            Ok((stream, peer)) => {
                connections.spawn(serve(Arc::clone(&node), stream, peer, permit));
            }
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection");
                tokio::time::sleep(ACCEPT_REST).await;
            }
        }
        while connections.try_join_next().is_some() {}
    }
    drop(listener);
    let _ = timeout(LAST_ANSWERS, async { while connections.join_next().await.is_some() {} }).await;
    drop(done);
}

/// Where clients come in.
#[derive(Debug)]
pub enum Listener {
    /// A TCP port.
    Tcp(TcpListener),
    /// The Unix socket.
    Unix(UnixListener),
}

impl Listener {
    async fn accept(&self) -> io::Result<(Stream, Peer)> {
        match self {
            Self::Tcp(listener) => {
                let (stream, address) = listener.accept().await?;
                // Requests wait for their responses, so nothing is gained by waiting for more bytes.
                let _ = stream.set_nodelay(true);
                Ok((Stream::Tcp(stream), Peer::Tcp(address)))
            }
            Self::Unix(listener) => Ok((Stream::Unix(listener.accept().await?.0), Peer::Unix)),
        }
    }
}

async fn permit(
    handshakes: &Arc<Semaphore>,
    state: &mut watch::Receiver<State>,
) -> Option<OwnedSemaphorePermit> {
    tokio::select! {
        permit = Arc::clone(handshakes).acquire_owned() => permit.ok(),
        () = stopped(state) => None,
    }
}

/// Resolves when connections must end.
async fn stopped(state: &mut watch::Receiver<State>) {
    // The sender lives in the node, which outlives its tasks; an error would mean that it is gone.
    let _ = state.wait_for(|state| *state == State::Stopped).await;
}

enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

/// Why a connection came to nothing.
#[derive(Debug, thiserror::Error)]
enum HandshakeError {
    #[error("nothing useful within {0} ms")]
    TooSlow(u64),
    #[error(transparent)]
    Wire(#[from] WireError),
    #[error("a data connection for {0}, which is not served there")]
    NotServed(FabricKind),
    #[error("cannot hand the data connection over: {0}")]
    HandOver(String),
    #[error("the first message is not a hello")]
    NoHello,
}

impl From<io::Error> for HandshakeError {
    fn from(error: io::Error) -> Self {
        Self::Wire(error.into())
    }
}

async fn serve(node: Arc<Node>, stream: Stream, peer: Peer, permit: OwnedSemaphorePermit) {
    let result = match stream {
        Stream::Tcp(stream) => match converse(&node, stream, peer, permit).await {
            Ok(Some((stream, _permit))) => hand_over_tcp(&node, stream),
            result => result.map(drop),
        },
        Stream::Unix(stream) => match converse(&node, stream, peer, permit).await {
            Ok(Some((stream, _permit))) => hand_over_unix(&node, stream).await,
            result => result.map(drop),
        },
    };
    if let Err(error) = result {
        node.counters.failed_handshakes.fetch_add(1, Ordering::Relaxed);
        tracing::info!(%peer, %error, "connection turned away");
    }
}

/// Greets a connection. One of kind control is held to its end, one of kind data comes back.
async fn converse<S: AsyncRead + AsyncWrite + Unpin + Send>(
    node: &Arc<Node>,
    mut stream: S,
    peer: Peer,
    permit: OwnedSemaphorePermit,
) -> Result<Option<(S, OwnedSemaphorePermit)>, HandshakeError> {
    match greet(node, &mut stream).await {
        Ok(PreambleKind::Control) => {
            conversation::hold(node, stream, peer, permit).await?;
            Ok(None)
        }
        Ok(PreambleKind::Data) => Ok(Some((stream, permit))),
        Err(error) => Err(turn_away(stream, error).await),
    }
}

/// Reads the preamble, and answers one of kind control.
async fn greet<S: AsyncRead + AsyncWrite + Unpin>(
    node: &Node,
    stream: &mut S,
) -> Result<PreambleKind, HandshakeError> {
    let handshake_ms = node.config.handshake_ms;
    let exchange = async {
        let mut bytes = [0; Preamble::BYTES];
        stream.read_exact(&mut bytes).await?;
        let Preamble(kind) = Preamble::parse(bytes)?;
        if kind == PreambleKind::Control {
            stream.write_all(&Preamble(PreambleKind::Control).encode()).await?;
        }
        Ok(kind)
    };
    let exchanged = timeout(Duration::from_millis(handshake_ms), exchange).await;
    exchanged.unwrap_or(Err(HandshakeError::TooSlow(handshake_ms)))
}

/// Tells a peer of another version ours. Its next bytes are read and dropped: closing with bytes unread would
/// reset the connection and take our answer with it.
async fn turn_away<S: AsyncRead + AsyncWrite + Unpin>(
    mut stream: S,
    error: HandshakeError,
) -> HandshakeError {
    if let HandshakeError::Wire(WireError::Version { .. }) = error {
        let _ = timeout(LAST_WORDS, async {
            stream.write_all(&Preamble(PreambleKind::Control).encode()).await?;
            close(stream).await
        })
        .await;
    }
    error
}

/// Ends a connection so that the peer gets all that was sent.
async fn close<S: AsyncRead + AsyncWrite + Unpin>(mut stream: S) -> io::Result<()> {
    stream.shutdown().await?;
    tokio::io::copy(&mut stream.take(LAST_WORDS_BYTES_MAX), &mut tokio::io::sink()).await?;
    Ok(())
}

fn hand_over_tcp(node: &Node, stream: TcpStream) -> Result<(), HandshakeError> {
    let target = node.serving().and_then(|serving| serving.targets.tcp.as_ref());
    let target = target.ok_or(HandshakeError::NotServed(FabricKind::Tcp))?;
    target.attach(stream.into_std()?).map_err(|error| HandshakeError::HandOver(error.to_string()))
}

async fn hand_over_unix(node: &Node, stream: UnixStream) -> Result<(), HandshakeError> {
    let target = node.serving().and_then(|serving| serving.targets.shm.clone());
    let target = target.ok_or(HandshakeError::NotServed(FabricKind::Shm))?;
    let stream = stream.into_std()?;
    let attached =
        tokio::task::spawn_blocking(move || target.attach(stream).map_err(|error| error.to_string()));
    match attached.await {
        Ok(Ok(session)) => {
            tracing::debug!(session = session.0, "region handed out");
            Ok(())
        }
        Ok(Err(error)) => Err(HandshakeError::HandOver(error)),
        Err(error) => Err(HandshakeError::HandOver(error.to_string())),
    }
}
