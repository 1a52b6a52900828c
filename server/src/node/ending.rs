//! The end of sessions.
//!
//! Always true: a session that ends is first fenced, and only then leaves the pool's books and the table; one
//! that can't be fenced lingers, with its number and its chunks, and is tried again; so does one whose end panicked,
//! which keeps no other from its end.

use std::panic::{AssertUnwindSafe, catch_unwind};
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
        // Each holder of a lock leaves the books whole, so that what panicked can be tried again.
        let ended = catch_unwind(AssertUnwindSafe(|| Self::try_end(serving, session)));
        match ended {
            Ok(true) => {
                tracing::info!(session = session.id.0, client = ?session.client_name, ?end, "session ended");
            }
            Ok(false) => {
                tracing::debug!(session = session.id.0, fabric = %session.fabric, "can't be fenced yet");
                serving.sessions().linger(session.id);
            }
            // What was said is reported where it happened.
            Err(_) => {
                tracing::error!(session = session.id.0, fabric = %session.fabric, "its end panicked; tried again later");
                serving.sessions().linger(session.id);
            }
        }
        serving.session_ended.notify_all();
    }

    /// Fences a session and gives its chunks to the books; `false` if it can't be fenced yet.
    fn try_end(serving: &Serving, session: &Session) -> bool {
        let fenced = serving.targets.get(session.fabric).is_none_or(|target| target.fence(session.id));
        if fenced {
            // The books first: while the number is in the table nobody else can get it.
            serving.epochs().leave(session.id);
            let chunks = serving.pool().end_session(session.id);
            // Marks that it owed are missing only if it ended without a word.
            if chunks > 0 || (!session.was_clean && session.rights.can_write()) {
                let noticed = session.noticed.unwrap_or_else(Instant::now);
                serving.sweeps().note_death(Death { session: session.id, noticed, chunks });
            }
            serving.sessions().forget(session.id);
            // It may have been the one that others waited for.
            serving.bell.ring();
        }
        fenced
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

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};

    use sidestep_common::fabric::{FabricKind, Join, Rights, Target};
    use sidestep_common::layout::{AtomicityDomain, Geometry};
    use sidestep_common::memory::{HugePages, Mapping, MappingOptions};
    use sidestep_common::wire::ChunkPurpose;

    use super::*;
    use crate::config::{ByteSize, Config};
    use crate::region::Region;
    use crate::targets::Targets;
    use crate::transport::Plan;

    /// A card whose fence panics, then can't be had, then works.
    #[derive(Default)]
    struct Card {
        fences: AtomicU32,
    }

    impl Target for Card {
        fn kind(&self) -> FabricKind {
            FabricKind::Verbs
        }

        fn admit(&self, _: SessionId, _: Rights) -> Result<Join, String> {
            Err("nobody joins in this test".into())
        }

        fn fence(&self, _: SessionId) -> bool {
            match self.fences.fetch_add(1, Ordering::Relaxed) {
                0 => panic!("on purpose, by a test"),
                1 => false,
                _ => true,
            }
        }

        fn connection_count(&self) -> usize {
            0
        }

        fn describe(&self) -> String {
            "a test".into()
        }
    }

    fn node() -> Node {
        let config = Config { memory: ByteSize::mebibytes(4), ..Config::default() };
        let options = MappingOptions {
            bytes: config.region_bytes(),
            huge_pages: HugePages::Off,
            threads: 1,
            name: "ending".into(),
        };
        let mapping = Arc::new(Mapping::create(&options).unwrap());
        let geometry = Geometry::for_region(mapping.bytes()).unwrap();
        let region = Region::format(mapping.words(), geometry, AtomicityDomain::Cpu, 1000, 1, 1).unwrap();
        let targets = Targets::of_card(Arc::new(Card::default()));
        let serving = Serving::new(region, Plan::without_verbs("a test"), targets, mapping, &config);
        let node = Node::new(config, String::new(), ([127, 0, 0, 1], 1).into(), None);
        node.serve(serving);
        node
    }

    /// Whatever keeps a session from being fenced, a panic even: it is tried again, and until then nothing of it is let go: its
    /// number, its chunks, its epoch.
    #[test]
    fn an_end_that_fails_is_tried_again() {
        let node = node();
        let serving = node.serving().unwrap();
        let far = Instant::now() + Duration::from_secs(3600);
        let opened = serving.sessions().open(Rights::ReadWrite, FabricKind::Verbs, "test".into(), far, far);
        let session = opened.unwrap().id;
        serving.epochs().join(session);
        let grant = serving.pool().grant(session, 0, 1, ChunkPurpose::General);
        assert_eq!(grant.unwrap().len(), 1);
        node.end_session(session, End::Disconnected);
        for _ in 0..2 {
            assert!(serving.sessions().some_linger());
            assert_eq!(serving.epochs().acknowledged(session), Some(1));
            assert_eq!(serving.pool().accounts().orphan.chunks, 0);
            node.retry_lingering();
        }
        assert!(!serving.sessions().some_linger());
        assert_eq!(serving.sessions().fenced_total(), 1);
        assert_eq!(serving.epochs().acknowledged(session), None);
        assert_eq!(serving.pool().accounts().orphan.chunks, 1);
        assert_eq!(node.wait_until_empty(Duration::ZERO), 0);
    }
}
