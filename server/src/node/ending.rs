//! The end of sessions.
//!
//! Always true: a session that ends is first fenced, and only then leaves the pool's books and the table; one
//! that can't be fenced lingers, with its number and its chunks, and is tried again.

use std::sync::PoisonError;
use std::time::{Duration, Instant};

use sidestep_common::fabric::SessionId;

use super::{Node, Serving};
use crate::janitor::Death;
use crate::sessions::{Expiry, Session};

/// Why a session ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum End {
    /// It said so.
    Goodbye,
    /// Its control connection is gone, or sent nonsense.
    Disconnected,
    /// Its lease ran out.
    LeaseExpired,
    /// It acknowledged no epoch for too long.
    Unacknowledging,
    /// The server stops.
    Shutdown,
}

/// A session whose end panics is not left ending for good: it lingers, and is tried again.
struct RetriedAfterPanic<'a> {
    serving: &'a Serving,
    session: SessionId,
}

impl Drop for RetriedAfterPanic<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.serving.sessions().linger(self.session);
        }
    }
}

impl Node {
    /// Ends a session, whoever noticed: fences it, then gives its chunks to the books. Blocks for as long as the
    /// fabric takes. Ending it again does nothing.
    pub fn end_session(&self, session: SessionId, end: End) {
        let Some(serving) = self.serving() else { return };
        let begun = serving.sessions().begin_end(session, end == End::Goodbye);
        let Some(ending) = begun else { return };
        if end == End::LeaseExpired {
            tracing::warn!(session = session.0, client = ?ending.client_name, lease_ms = self.config.lease_ms,
                "lease ran out without a heartbeat; fencing the session");
        }
        if end == End::Unacknowledging {
            tracing::warn!(session = session.0, client = ?ending.client_name,
                "the session renews its lease and acknowledges no epoch, so no memory is recycled; fencing it");
        }
        ending.ended.notify_one();
        self.finish_end(serving, &ending, end);
    }

    /// Tries again to fence those who couldn't be. Blocks for as long as the fabrics take.
    pub fn retry_lingering(&self) {
        let Some(serving) = self.serving() else { return };
        let lingering = serving.sessions().lingering();
        for session in lingering {
            let end = if session.was_clean { End::Goodbye } else { End::Disconnected };
            self.finish_end(serving, &session, end);
        }
    }

    fn finish_end(&self, serving: &Serving, session: &Session, end: End) {
        let retried = RetriedAfterPanic { serving, session: session.id };
        let fenced = serving.targets.get(session.fabric).is_none_or(|target| target.fence(session.id));
        if !fenced {
            tracing::debug!(session = session.id.0, fabric = %session.fabric, "can't be fenced yet");
            serving.sessions().linger(session.id);
        } else {
            // The books first: while the number is in the table nobody else can get it.
            serving.epochs().leave(session.id);
            let chunks = serving.pool().end_session(session.id);
            // Marks that it owed are missing only if it ended without a word.
            if chunks > 0 || (!session.was_clean && session.rights.can_write()) {
                let noticed = session.noticed.unwrap_or_else(Instant::now);
                serving.sweeps().note_death(Death { session: session.id, noticed, chunks });
            }
            serving.sessions().forget(session.id);
            tracing::info!(session = session.id.0, client = ?session.client_name, ?end, chunks, "session ended");
            // It may have been the one that others waited for.
            serving.bell.ring();
        }
        drop(retried);
        serving.session_ended.notify_all();
    }

    /// Ends sessions whose leases ran out, or that acknowledge nothing. Blocks for as long as the fabrics take.
    pub fn end_expired(&self) {
        let Some(serving) = self.serving() else { return };
        let expired = serving.sessions().expired(Instant::now());
        for (session, expiry) in expired {
            let end = match expiry {
                Expiry::Lease => End::LeaseExpired,
                Expiry::Epoch => End::Unacknowledging,
            };
            self.end_session(session, end);
        }
    }

    /// Waits until no session lives, or `patience` is over; returns how many live.
    pub fn wait_until_empty(&self, patience: Duration) -> usize {
        let Some(serving) = self.serving() else { return 0 };
        let sessions = serving.sessions();
        let waited = serving
            .session_ended
            .wait_timeout_while(sessions, patience, |sessions| sessions.living_count() > 0);
        waited.unwrap_or_else(PoisonError::into_inner).0.living_count()
    }

    /// Ends all sessions that live.
    pub fn end_all(&self) {
        let Some(serving) = self.serving() else { return };
        let living = serving.sessions().living();
        for session in living {
            self.end_session(session, End::Shutdown);
        }
    }
}
