//! The table of sessions: who is there, with which rights, until when.
//!
//! Always true: a number is not given out again while anything of its session may still take effect; each
//! session is ended exactly once, whoever notices first (its goodbye, its closed connection, its lease).
//!
//! ```text
//!  open ──▶ living ── begin_end ──▶ ending ── forget ──▶ gone
//!                                     │ ▲
//!                         unrevocable ▼ │ fenced at last
//!                                  lingering   (a mapping of a living process, see `shm`; or its end panicked)
//! ```
//!
//! The table decides; fencing and the books of the block pool are its caller's part.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use sidestep_common::fabric::{FabricKind, Rights, SessionId};
use tokio::sync::Notify;

/// A session that exists.
#[derive(Clone, Debug)]
pub struct Session {
    /// Its number.
    pub id: SessionId,
    /// What it may do.
    pub rights: Rights,
    /// The fabric of its data path.
    pub fabric: FabricKind,
    /// The client's name for itself.
    pub client_name: String,
    /// When its lease runs out.
    pub lease_deadline: Instant,
    /// When it must have acknowledged the newest epoch.
    pub epoch_deadline: Instant,
    /// When its end was noticed, once it was.
    pub noticed: Option<Instant>,
    /// It said goodbye; known from the beginning of its end.
    pub was_clean: bool,
    /// Told when the session is ended by somebody else than its connection.
    pub ended: Arc<Notify>,
}

/// Why a session is ended though it did not say goodbye and its connection is open.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Expiry {
    /// It was silent for a lease.
    Lease,
    /// It renews its lease and acknowledges no epoch, so everybody's memory waits for it.
    Epoch,
}

impl Session {
    fn expiry(&self, now: Instant) -> Option<Expiry> {
        if now >= self.lease_deadline {
            return Some(Expiry::Lease);
        }
        (now >= self.epoch_deadline).then_some(Expiry::Epoch)
    }
}

/// Where a session is in its life.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    Living,
    Ending,
    Lingering,
}

/// What a heartbeat finds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Renewal {
    /// The lease runs again from now.
    Renewed,
    /// The session is over.
    Ended,
}

/// No session can be had.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum OpenError {
    /// As many as allowed are there.
    #[error("{limit} sessions are there, the most that are allowed (max-sessions)")]
    Limit {
        /// The limit.
        limit: usize,
    },
    /// As many as allowed could not be fenced.
    #[error("{count} sessions that ended cannot be fenced while their processes live")]
    Lingering {
        /// How many.
        count: usize,
    },
}

/// All sessions.
#[derive(Debug)]
pub struct SessionTable {
    sessions: BTreeMap<SessionId, (Phase, Session)>,
    limit: usize,
    last_id: u32,
    living_count: usize,
    opened_total: u64,
    fenced_total: u64,
}

impl SessionTable {
    /// An empty table for at most `limit` sessions at once.
    pub fn new(limit: usize) -> Self {
        Self {
            sessions: BTreeMap::new(),
            limit,
            last_id: 0,
            living_count: 0,
            opened_total: 0,
            fenced_total: 0,
        }
    }

    /// Opens a session with a lease until `lease_deadline`.
    ///
    /// # Errors
    /// If there is no room. Sessions that linger have a limit of their own, so they can't grow without bound.
    pub fn open(
        &mut self,
        rights: Rights,
        fabric: FabricKind,
        client_name: String,
        lease_deadline: Instant,
        epoch_deadline: Instant,
    ) -> Result<Session, OpenError> {
        if self.living_count >= self.limit {
            return Err(OpenError::Limit { limit: self.limit });
        }
        let others = self.sessions.len() - self.living_count;
        if others >= self.limit.max(16) {
            return Err(OpenError::Lingering { count: others });
        }
        let id = self.free_id();
        let session = Session {
            id,
            rights,
            fabric,
            client_name,
            lease_deadline,
            epoch_deadline,
            noticed: None,
            was_clean: false,
            ended: Arc::new(Notify::new()),
        };
        self.sessions.insert(id, (Phase::Living, session.clone()));
        self.living_count += 1;
        self.opened_total += 1;
        Ok(session)
    }

    /// The next number that nobody has; 0 is none. The table is far smaller than the numbers are many.
    fn free_id(&mut self) -> SessionId {
        loop {
            self.last_id = if self.last_id >= SessionId::MAX { 1 } else { self.last_id + 1 };
            let id = SessionId(self.last_id);
            if !self.sessions.contains_key(&id) {
                return id;
            }
        }
    }

    /// Renews a lease.
    pub fn renew(&mut self, id: SessionId, lease_deadline: Instant) -> Renewal {
        match self.sessions.get_mut(&id) {
            Some((Phase::Living, session)) => {
                session.lease_deadline = lease_deadline;
                Renewal::Renewed
            }
            _ => Renewal::Ended,
        }
    }

    /// The session has acknowledged the newest epoch.
    pub fn caught_up(&mut self, id: SessionId, epoch_deadline: Instant) {
        if let Some((Phase::Living, session)) = self.sessions.get_mut(&id) {
            session.epoch_deadline = epoch_deadline;
        }
    }

    /// The fabric of a session that lives.
    pub fn living_fabric(&self, id: SessionId) -> Option<FabricKind> {
        let (phase, session) = self.sessions.get(&id)?;
        (*phase == Phase::Living).then_some(session.fabric)
    }

    /// Whether the session lives.
    pub fn is_living(&self, id: SessionId) -> bool {
        matches!(self.sessions.get(&id), Some((Phase::Living, _)))
    }

    /// Living sessions whose leases ran out, or who acknowledge nothing any more.
    pub fn expired(&self, now: Instant) -> Vec<(SessionId, Expiry)> {
        let living = self.sessions.values().filter(|(phase, _)| *phase == Phase::Living);
        living.filter_map(|(_, session)| Some((session.id, session.expiry(now)?))).collect()
    }

    /// Whether there is any.
    pub fn some_expired(&self) -> bool {
        let now = Instant::now();
        let mut sessions = self.sessions.values();
        sessions.any(|(phase, session)| *phase == Phase::Living && session.expiry(now).is_some())
    }

    /// Whether any session waits to be fenced.
    pub fn some_linger(&self) -> bool {
        self.sessions.values().any(|(phase, _)| *phase == Phase::Lingering)
    }

    /// What is told when the session is ended by somebody else than its connection.
    pub fn ended(&self, id: SessionId) -> Option<Arc<Notify>> {
        self.sessions.get(&id).map(|(_, session)| Arc::clone(&session.ended))
    }

    /// Begins a session's end; `None` if somebody else did, or it never was.
    pub fn begin_end(&mut self, id: SessionId, was_clean: bool) -> Option<Session> {
        let (phase, session) = self.sessions.get_mut(&id)?;
        if *phase != Phase::Living {
            return None;
        }
        *phase = Phase::Ending;
        session.was_clean = was_clean;
        session.noticed = Some(Instant::now());
        self.living_count -= 1;
        Some(session.clone())
    }

    /// Ends a session's end: nothing of it can take effect any more. Its number is free.
    pub fn forget(&mut self, id: SessionId) {
        if self.sessions.remove(&id).is_some_and(|(_, session)| !session.was_clean) {
            self.fenced_total += 1;
        }
    }

    /// A session that can't be fenced yet: its number and chunks stay its own.
    pub fn linger(&mut self, id: SessionId) {
        if let Some((phase, _)) = self.sessions.get_mut(&id) {
            *phase = Phase::Lingering;
        }
    }

    /// Sessions that wait to be fenced.
    pub fn lingering(&self) -> Vec<Session> {
        let lingering = self.sessions.values().filter(|(phase, _)| *phase == Phase::Lingering);
        lingering.map(|(_, session)| session.clone()).collect()
    }

    /// Living sessions.
    pub fn living(&self) -> Vec<SessionId> {
        let living = self.sessions.values().filter(|(phase, _)| *phase == Phase::Living);
        living.map(|(_, session)| session.id).collect()
    }

    /// How many live.
    pub const fn living_count(&self) -> usize {
        self.living_count
    }

    /// How many were opened since the start.
    pub const fn opened_total(&self) -> u64 {
        self.opened_total
    }

    /// How many were fenced since the start.
    pub const fn fenced_total(&self) -> u64 {
        self.fenced_total
    }
}

/// Leases that a session may go on without having acknowledged the newest epoch. Each call is over long before, and else the
/// session acknowledges at once: whoever is so late never will, and nothing is recycled until it does.
const LEASES_UNACKNOWLEDGED_MAX: u32 = 30;
/// The same, however short a lease is.
const UNACKNOWLEDGED_MIN: Duration = Duration::from_secs(60);

/// When a session must have acknowledged the newest epoch that has acknowledged it now.
pub fn epoch_deadline(lease_ms: u64) -> Instant {
    let leases = Duration::from_millis(lease_ms).saturating_mul(LEASES_UNACKNOWLEDGED_MAX);
    Instant::now() + leases.max(UNACKNOWLEDGED_MIN)
}

/// When a lease that is renewed now runs out.
pub fn lease_deadline(lease_ms: u64) -> Instant {
    Instant::now() + Duration::from_millis(lease_ms)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open(table: &mut SessionTable, deadline: Instant) -> Result<SessionId, OpenError> {
        let session = table.open(
            Rights::ReadWrite,
            FabricKind::Tcp,
            "test".into(),
            deadline,
            deadline + Duration::from_secs(60),
        )?;
        Ok(session.id)
    }

    #[test]
    fn a_session_ends_once_whoever_notices_first() {
        let mut table = SessionTable::new(4);
        let id = open(&mut table, Instant::now()).unwrap();
        assert!(table.begin_end(id, false).is_some());
        assert!(table.begin_end(id, true).is_none());
        assert_eq!(table.renew(id, Instant::now()), Renewal::Ended);
        table.forget(id);
        table.forget(id);
        assert_eq!((table.fenced_total(), table.living_count()), (1, 0));
        assert!(table.begin_end(id, true).is_none());
    }

    #[test]
    fn leases_run_out_unless_renewed() {
        let mut table = SessionTable::new(4);
        let start = Instant::now();
        let later = start + Duration::from_secs(5);
        let quiet = open(&mut table, start).unwrap();
        let busy = open(&mut table, start).unwrap();
        assert_eq!(table.renew(busy, later), Renewal::Renewed);
        assert_eq!(table.expired(start), [(quiet, Expiry::Lease)]);
        assert_eq!(table.expired(later), [(quiet, Expiry::Lease), (busy, Expiry::Lease)]);
    }

    /// Heartbeats alone do not do: somebody who acknowledges nothing would hold up everybody's memory.
    #[test]
    fn whoever_acknowledges_nothing_is_ended_too() {
        let mut table = SessionTable::new(4);
        let start = Instant::now();
        let later = start + Duration::from_secs(60);
        let stuck = open(&mut table, start).unwrap();
        let good = open(&mut table, start).unwrap();
        for session in [stuck, good] {
            table.renew(session, later + Duration::from_secs(1));
        }
        table.caught_up(good, later + Duration::from_secs(60));
        assert_eq!(table.expired(later - Duration::from_millis(1)), []);
        assert_eq!(table.expired(later), [(stuck, Expiry::Epoch)]);
    }

    /// A number in use is skipped, also when all 24 bits were used up in between.
    #[test]
    fn numbers_in_use_are_skipped() {
        let mut table = SessionTable::new(8);
        let first = open(&mut table, Instant::now()).unwrap();
        let second = open(&mut table, Instant::now()).unwrap();
        table.begin_end(second, false);
        table.linger(second);
        table.last_id = SessionId::MAX - 1;
        let ids: Vec<u32> = (0..3).map(|_| open(&mut table, Instant::now()).unwrap().0).collect();
        assert_eq!((first.0, second.0), (1, 2));
        assert_eq!(ids, [SessionId::MAX, 3, 4]);
        assert_eq!(table.lingering().iter().map(|session| session.id).collect::<Vec<_>>(), [second]);
    }

    #[test]
    fn there_is_a_limit() {
        let mut table = SessionTable::new(1);
        let only = open(&mut table, Instant::now()).unwrap();
        assert_eq!(open(&mut table, Instant::now()), Err(OpenError::Limit { limit: 1 }));
        table.begin_end(only, true);
        table.forget(only);
        assert!(open(&mut table, Instant::now()).is_ok());
    }
}
