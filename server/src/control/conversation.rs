//! One session's conversation: hello, then a response for each request, until goodbye.
//!
//! Always true: the first message is a hello; each request gets exactly one response, in order; whatever ends
//! the conversation ends the session. A client that doesn't read its responses is disconnected after a lease.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use sidestep_common::fabric::{Rights, SessionId};
use sidestep_common::wire::{Refusal, RefusalCode, Request, Response, WireError};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{Notify, OwnedSemaphorePermit, watch};
use tokio::time::timeout;

use super::frames::Frames;
use super::{HandshakeError, LAST_WORDS, close, stopped};
use crate::node::{End, Node, Peer, Serving, refusal};

/// Holds the conversation of a greeted connection.
pub(super) async fn hold<S: AsyncRead + AsyncWrite + Unpin + Send>(
    node: &Arc<Node>,
    stream: S,
    peer: Peer,
    permit: OwnedSemaphorePermit,
) -> Result<(), HandshakeError> {
    let mut frames = Frames::new(stream);
    let handshake_ms = node.config.handshake_ms;
    let opened = timeout(Duration::from_millis(handshake_ms), open(node, &mut frames, peer)).await;
    let mut talk = match opened {
        Ok(Ok(Some(talk))) => talk,
        Ok(Ok(None)) => return part(frames).await,
        Ok(Err(error)) => return Err(error),
        Err(_) => return Err(HandshakeError::TooSlow(handshake_ms)),
    };
    drop(permit);
    let (end, result) = match talk.listen(&mut frames).await {
        Ok(end) => (end, Ok(())),
        Err(error) => (End::Disconnected, Err(error)),
    };
    talk.end(end).await;
    match result {
        Ok(()) if end == End::Goodbye => {
            // The answer comes when the end is done: then its chunks are free for the next session.
            let _ = timeout(LAST_WORDS, frames.send(&Response::Goodbye)).await;
            part(frames).await
        }
        // Everything is over; nobody is waited for.
        Ok(()) if end == End::Shutdown => Ok(()),
        Ok(()) => part(frames).await,
        Err(error) => {
            tracing::info!(session = talk.session.0, %peer, %error, "control connection lost");
            Ok(())
        }
    }
}

async fn part<S: AsyncRead + AsyncWrite + Unpin>(frames: Frames<S>) -> Result<(), HandshakeError> {
    let _ = timeout(LAST_WORDS, close(frames.into_stream())).await;
    Ok(())
}

/// Waits for the hello and answers it; `None` if it was refused.
async fn open<S: AsyncRead + AsyncWrite + Unpin>(
    node: &Arc<Node>,
    frames: &mut Frames<S>,
    peer: Peer,
) -> Result<Option<Talk>, HandshakeError> {
    let first = frames.next::<Request>().await?;
    node.counters.control_messages.fetch_add(1, Ordering::Relaxed);
    let hello = match first {
        Some(Request::Hello(hello)) => hello,
        Some(_) => {
            let refused = refusal(RefusalCode::Invalid, "the first message must be a hello".into());
            frames.send(&Response::Refused(refused)).await?;
            return Err(HandshakeError::NoHello);
        }
        None => return Err(HandshakeError::NoHello),
    };
    let rights = hello.rights;
    // From before the session joins, so that no news from after it is missed.
    let news = node.serving().map_or_else(|| watch::channel(0).1, Serving::watch_news);
    // If this future is dropped by the deadline the task goes on, and its session would live until the lease ends:
    // an odd client's loss, bounded by the lease.
    let task_node = Arc::clone(node);
    let admitted = tokio::task::spawn_blocking(move || task_node.admit(&hello, peer)).await;
    match admitted {
        Ok(Ok((session, welcome))) => {
            let ended = node.serving().and_then(|serving| serving.sessions().ended(session));
            let ended = ended.unwrap_or_else(already_ended);
            let talk = Talk { node: Arc::clone(node), session, rights, peer, ended, news };
            if let Err(error) = frames.send(&Response::Welcome(Box::new(welcome))).await {
                talk.end(End::Disconnected).await;
                return Err(error.into());
            }
            Ok(Some(talk))
        }
        Ok(Err(refused)) => {
            node.counters.refusals.fetch_add(1, Ordering::Relaxed);
            tracing::info!(%peer, code = ?refused.code, reason = %refused, "session refused");
            frames.send(&Response::Refused(refused)).await?;
            Ok(None)
        }
        Err(panic) => Err(HandshakeError::HandOver(panic.to_string())),
    }
}

/// For a session whose lease was over before anybody could listen.
fn already_ended() -> Arc<Notify> {
    let ended = Arc::new(Notify::new());
    ended.notify_one();
    ended
}

/// Waits for news. If there can be none any more, forever.
async fn changed(news: &mut watch::Receiver<u64>) {
    if news.changed().await.is_err() {
        std::future::pending().await
    }
}

/// A request's name for the log; never its contents, which may be secret.
const fn name(request: &Request) -> &'static str {
    match request {
        Request::Hello(_) => "hello",
        Request::Heartbeat { .. } => "heartbeat",
        Request::Chunks { .. } => "chunks",
        Request::ReturnChunks(_) => "return chunks",
        Request::Rejoin => "rejoin",
        Request::Statistics => "statistics",
        Request::Goodbye => "goodbye",
        Request::Grants { .. } => "grants",
        Request::ReportBucket(_) => "report bucket",
        Request::Audit { .. } => "audit",
    }
}

/// An open session's side of the conversation.
struct Talk {
    node: Arc<Node>,
    session: SessionId,
    rights: Rights,
    peer: Peer,
    ended: Arc<Notify>,
    /// Changes when there is something to tell unasked.
    news: watch::Receiver<u64>,
}

impl Talk {
    /// Answers requests until somebody ends it.
    async fn listen<S: AsyncRead + AsyncWrite + Unpin>(
        &mut self,
        frames: &mut Frames<S>,
    ) -> Result<End, WireError> {
        let mut state = self.node.watch_state();
        let lease = Duration::from_millis(self.node.config.lease_ms);
        loop {
            let request = tokio::select! {
                request = frames.next::<Request>() => request?,
                () = self.ended.notified() => return self.tell_fenced(frames, lease).await,
                () = stopped(&mut state) => return Ok(End::Shutdown),
                () = changed(&mut self.news) => {
                    if !self.tell_news(frames, lease).await? {
                        return Ok(End::Disconnected);
                    }
                    continue;
                }
            };
            let Some(request) = request else { return Ok(End::Disconnected) };
            self.node.counters.control_messages.fetch_add(1, Ordering::Relaxed);
            tracing::debug!(session = self.session.0, request = name(&request), "request");
            if request == Request::Goodbye {
                return Ok(End::Goodbye);
            }
            let response = self.answer(request).await.unwrap_or_else(|refused| {
                self.node.counters.refusals.fetch_add(1, Ordering::Relaxed);
                // Not louder: a full store refuses at every put, and the metrics count it.
                tracing::debug!(session = self.session.0, code = ?refused.code, reason = %refused, "refused");
                Response::Refused(refused)
            });
            match timeout(lease, frames.send(&response)).await {
                Ok(sent) => sent?,
                Err(_) => return Ok(End::Disconnected),
            }
            if matches!(response, Response::Refused(Refusal { code: RefusalCode::Fenced, .. })) {
                return Ok(End::LeaseExpired);
            }
        }
    }

    /// Tells how things stand, unasked; returns whether the client took it within `patience`.
    async fn tell_news<S: AsyncRead + AsyncWrite + Unpin>(
        &self,
        frames: &mut Frames<S>,
        patience: Duration,
    ) -> Result<bool, WireError> {
        // If there is none the session is over, and will be told so.
        let Ok(pulse) = self.node.pulse(self.session) else { return Ok(true) };
        match timeout(patience, frames.send(&Response::Notice(pulse))).await {
            Ok(sent) => sent.map(|()| true),
            Err(_) => Ok(false),
        }
    }

    /// The session was ended by somebody else. Its next request, if there is one soon, is told so.
    async fn tell_fenced<S: AsyncRead + AsyncWrite + Unpin>(
        &self,
        frames: &mut Frames<S>,
        patience: Duration,
    ) -> Result<End, WireError> {
        if let Ok(Ok(Some(_))) = timeout(patience, frames.next::<Request>()).await {
            let message = format!("session {} is over: it was fenced; open a new one", self.session);
            let refused = Response::Refused(refusal(RefusalCode::Fenced, message));
            let _ = timeout(LAST_WORDS, frames.send(&refused)).await;
        }
        Ok(End::LeaseExpired)
    }

    async fn answer(&self, request: Request) -> Result<Response, Refusal> {
        let (node, session) = (&self.node, self.session);
        // Whatever a client says shows that it lives.
        node.renew(session)?;
        match request {
            Request::Heartbeat { epoch, wants_epoch } => {
                node.heartbeat(session, epoch, wants_epoch).map(Response::Heartbeat)
            }
            Request::Chunks { class, count, purpose } => {
                node.grant_chunks(session, self.rights, class, count, purpose).map(Response::Chunks)
            }
            Request::ReturnChunks(chunks) => {
                node.return_chunks(session, chunks).map(|()| Response::ChunksReturned)
            }
            Request::ReportBucket(report) => {
                node.report_bucket(self.rights, report).map(|()| Response::BucketReported)
            }
            Request::Audit { number, chunks } => {
                node.audited(session, number, &chunks).map(Response::Audited)
            }
            Request::Rejoin => {
                let (task_node, rights, peer) = (Arc::clone(node), self.rights, self.peer);
                let joined =
                    tokio::task::spawn_blocking(move || task_node.rejoin(session, rights, peer)).await;
                let failed = |panic: tokio::task::JoinError| refusal(RefusalCode::Invalid, panic.to_string());
                joined.map_err(failed)?.map(Response::Rejoined)
            }
            Request::Statistics => Ok(Response::Statistics(Box::new(node.statistics()))),
            Request::Grants { from, count } => node.list_grants(from, count).map(Response::Grants),
            Request::Hello(_) => {
                let message = format!("this connection has session {session} already");
                Err(refusal(RefusalCode::Invalid, message))
            }
            Request::Goodbye => unreachable!("answered by the caller"),
        }
    }

    /// Ends the session, where blocking disturbs nobody.
    async fn end(&self, end: End) {
        let (node, session) = (Arc::clone(&self.node), self.session);
        let _ = tokio::task::spawn_blocking(move || node.end_session(session, end)).await;
    }
}
