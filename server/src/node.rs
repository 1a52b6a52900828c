//! The memory node: what the control channel, the admin endpoint and the housekeeping share.
//!
//! Always true: a session that ends is first fenced, and only then leaves the table and the pool's books; one
//! that can't be fenced (a mapping of a living process) lingers with its number and its chunks until it can.
//! No lock is held while a fabric is asked to do something.

use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use sidestep_common::fabric::{FabricKind, Join, Rights, SessionId};
use sidestep_common::layout::KEY_BYTES_MAX;
use sidestep_common::memory::Mapping;
use sidestep_common::wire::{
    ChunkGrant, ChunkPurpose, ChunkTail, Hello, Refusal, RefusalCode, ServerStatistics, Welcome,
};
use tokio::sync::watch;

use crate::config::{Config, Secret};
use crate::pool::{BlockPool, GrantError};
use crate::region::Region;
use crate::sessions::{Renewal, Session, SessionTable, lease_deadline};
use crate::targets::Targets;
use crate::transport::Plan;
use crate::usage::Usage;

/// The epoch. It is raised when the last directory word of a rebuild is published, so until there are rebuilds it
/// stays.
const EPOCH: u64 = 1;
/// Characters of a client's name that are kept.
const NAME_CHARS_MAX: usize = 64;

/// How far the node is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum State {
    /// The region is being made.
    Starting,
    /// Clients are served.
    Ready,
    /// Clients should leave; none is let in.
    Draining,
    /// Connections are closed.
    Stopped,
}

/// Why a session ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum End {
    /// It said so.
    Goodbye,
    /// Its control connection is gone, or sent nonsense.
    Disconnected,
    /// Its lease ran out.
    LeaseExpired,
    /// The server stops.
    Shutdown,
}

/// Who is at the other end of a control connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Peer {
    /// Over TCP.
    Tcp(SocketAddr),
    /// Over the Unix socket.
    Unix,
}

impl std::fmt::Display for Peer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Tcp(address) => address.fmt(f),
            Self::Unix => f.write_str("the Unix socket"),
        }
    }
}

/// Counters since the start.
#[derive(Debug, Default)]
pub struct Counters {
    /// Control messages, each with its answer.
    pub control_messages: AtomicU64,
    /// Refused requests.
    pub refusals: AtomicU64,
    /// Connections that never became a session or a data path: too slow, or not of this protocol.
    pub failed_handshakes: AtomicU64,
}

/// What is there once the region is.
#[derive(Debug)]
pub struct Serving {
    /// The region.
    pub region: Region,
    /// Which fabrics, and why.
    pub plan: Plan,
    /// The fabrics.
    pub targets: Targets,
    /// The region's memory; whoever uses the region's words holds this.
    pub mapping: Arc<Mapping>,
    pool: Mutex<BlockPool>,
    sessions: Mutex<SessionTable>,
    /// Told whenever a session has ended.
    session_ended: Condvar,
}

impl Serving {
    /// Fresh books for a region.
    pub fn new(region: Region, plan: Plan, targets: Targets, mapping: Arc<Mapping>, config: &Config) -> Self {
        let quota_bytes = config.chunk_quota.map(|quota| quota.0);
        Self {
            pool: Mutex::new(BlockPool::new(&region.superblock.geometry, quota_bytes)),
            sessions: Mutex::new(SessionTable::new(config.max_sessions as usize)),
            session_ended: Condvar::new(),
            mapping,
            region,
            plan,
            targets,
        }
    }

    /// The block pool.
    pub fn pool(&self) -> MutexGuard<'_, BlockPool> {
        locked(&self.pool)
    }

    /// The sessions.
    pub fn sessions(&self) -> MutexGuard<'_, SessionTable> {
        locked(&self.sessions)
    }
}

/// Each holder leaves the books whole, so a panic in one doesn't matter to the next.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// One memory node.
#[derive(Debug)]
pub struct Node {
    /// What it was told.
    pub config: Config,
    /// What it publishes: `sidestep://HOST:PORT`.
    pub endpoint: String,
    /// Where it listens for clients.
    pub control: SocketAddr,
    /// Where its admin endpoint listens.
    pub admin: Option<SocketAddr>,
    /// Counters.
    pub counters: Counters,
    /// When it started, for people.
    pub started_at: SystemTime,
    started: Instant,
    boot_id: String,
    state: watch::Sender<State>,
    serving: OnceLock<Serving>,
}

impl Node {
    /// A node that starts.
    pub fn new(config: Config, endpoint: String, control: SocketAddr, admin: Option<SocketAddr>) -> Self {
        let boot_id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        Self {
            config,
            endpoint,
            control,
            admin,
            counters: Counters::default(),
            started_at: SystemTime::now(),
            started: Instant::now(),
            boot_id: boot_id.trim().to_owned(),
            state: watch::Sender::new(State::Starting),
            serving: OnceLock::new(),
        }
    }

    /// How far it is.
    pub fn state(&self) -> State {
        *self.state.borrow()
    }

    /// To wait for states.
    pub fn watch_state(&self) -> watch::Receiver<State> {
        self.state.subscribe()
    }

    /// States only go forward.
    pub fn advance_state(&self, to: State) {
        self.state.send_if_modified(|state| {
            let forward = (to as u8) > (*state as u8);
            if forward {
                *state = to;
            }
            forward
        });
    }

    /// The region is there.
    ///
    /// # Panics
    /// If it was there before.
    pub fn serve(&self, serving: Serving) {
        assert!(self.serving.set(serving).is_ok(), "a node has one region");
        self.advance_state(State::Ready);
    }

    /// What is served, once it is.
    pub fn serving(&self) -> Option<&Serving> {
        self.serving.get()
    }

    /// Opens a session. Blocks for as long as the fabric takes.
    ///
    /// # Errors
    /// The refusal to send.
    pub fn admit(&self, hello: &Hello, peer: Peer) -> Result<(SessionId, Welcome), Refusal> {
        let serving = self.serving_or_refuse()?;
        if self.state() != State::Ready {
            return Err(refusal(RefusalCode::Draining, "the server is shutting down".into()));
        }
        self.check_token(hello.token.as_deref())?;
        let fabric = self.choose_fabric(serving, hello)?;
        let name: String = hello.client_name.chars().take(NAME_CHARS_MAX).collect();
        let deadline = lease_deadline(self.config.lease_ms);
        let session = serving
            .sessions()
            .open(hello.rights, fabric, name.clone(), EPOCH, deadline)
            .map_err(|error| refusal(RefusalCode::SessionLimit, error.to_string()))?;
        let join = match self.join(serving, session.id, fabric, hello.rights, peer) {
            Ok(join) => join,
            Err(refusal) => {
                self.end_session(session.id, End::Goodbye);
                return Err(refusal);
            }
        };
        tracing::info!(session = session.id.0, %fabric, %peer, client = ?name, version = ?hello.client_version,
            process = hello.process_id, rights = ?hello.rights, "session opened");
        let welcome = Welcome {
            server_version: env!("CARGO_PKG_VERSION").into(),
            session: session.id,
            lease_ms: self.config.lease_ms,
            epoch: EPOCH,
            superblock: serving.region.superblock.encode().to_vec(),
            key_bytes_max: KEY_BYTES_MAX as u32,
            value_bytes_max: self.config.max_value.0 as u32,
            admin: self.admin_for(peer),
            join,
        };
        Ok((session.id, welcome))
    }

    fn serving_or_refuse(&self) -> Result<&Serving, Refusal> {
        self.serving().ok_or_else(|| refusal(RefusalCode::Draining, "the server is still starting".into()))
    }

    fn check_token(&self, given: Option<&str>) -> Result<(), Refusal> {
        let wrong = |message: &str| Err(refusal(RefusalCode::Credentials, message.into()));
        match (&self.config.token, given) {
            (None, _) => Ok(()),
            (Some(token), Some(given)) if Secret::matches(token, given) => Ok(()),
            (Some(_), Some(_)) => wrong("the token is wrong"),
            (Some(_), None) => wrong("this server wants a token"),
        }
    }

    /// The first fabric of the client's list that can work.
    fn choose_fabric(&self, serving: &Serving, hello: &Hello) -> Result<FabricKind, Refusal> {
        if hello.fabrics.is_empty() {
            return Err(refusal(RefusalCode::Invalid, "the client names no fabric".into()));
        }
        let same_host = !self.boot_id.is_empty() && hello.boot_id.trim() == self.boot_id;
        let works = |fabric: &&FabricKind| {
            serving.targets.get(**fabric).is_some() && (**fabric != FabricKind::Shm || same_host)
        };
        hello.fabrics.iter().find(works).copied().ok_or_else(|| {
            let wanted: Vec<_> = hello.fabrics.iter().map(|fabric| fabric.name()).collect();
            let mut message = format!(
                "the client takes {}, this server serves {}",
                wanted.join(", "),
                serving.plan.describe()
            );
            if !same_host && hello.fabrics.contains(&FabricKind::Shm) {
                message.push_str(" (shm only to processes of its own host, and the client is on another)");
            }
            refusal(RefusalCode::Fabric, message)
        })
    }

    fn join(
        &self,
        serving: &Serving,
        session: SessionId,
        fabric: FabricKind,
        rights: Rights,
        peer: Peer,
    ) -> Result<Join, Refusal> {
        let Some(target) = serving.targets.get(fabric) else {
            return Err(refusal(RefusalCode::Fabric, format!("{fabric} is not served here")));
        };
        let mut join =
            target.admit(session, rights).map_err(|reason| refusal(RefusalCode::Fabric, reason))?;
        // A client at the Unix socket has no address of ours to go by.
        if let (Join::Tcp { host: host @ None, .. }, Peer::Unix) = (&mut join, peer) {
            *host = Some(self.host().to_owned());
        }
        Ok(join)
    }

    /// The published host, as it would be written in front of a port, without brackets.
    fn host(&self) -> &str {
        let address = self.endpoint.strip_prefix("sidestep://").unwrap_or(&self.endpoint);
        let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
        host.trim_start_matches('[').trim_end_matches(']')
    }

    /// Where `peer` can reach the admin endpoint, if it can.
    fn admin_for(&self, peer: Peer) -> Option<String> {
        let admin = self.admin?;
        let is_local = match peer {
            Peer::Unix => true,
            Peer::Tcp(address) => address.ip().to_canonical().is_loopback(),
        };
        let host = match admin.ip() {
            address if address.is_loopback() => return is_local.then(|| admin.to_string()),
            address if !address.is_unspecified() => return Some(admin.to_string()),
            IpAddr::V4(_) | IpAddr::V6(_) => self.host(),
        };
        let bracketed = if host.contains(':') { format!("[{host}]") } else { host.to_owned() };
        Some(format!("{bracketed}:{}", admin.port()))
    }

    /// Renews a session's lease; returns the newest epoch and whether the server is shutting down.
    ///
    /// # Errors
    /// The refusal to send.
    pub fn heartbeat(&self, session: SessionId, epoch: Option<u64>) -> Result<(u64, bool), Refusal> {
        let serving = self.serving_or_refuse()?;
        if let Some(epoch) = epoch
            && epoch > EPOCH
        {
            let message = format!("epoch {epoch} is acknowledged, the newest is {EPOCH}");
            return Err(refusal(RefusalCode::Invalid, message));
        }
        match serving.sessions().renew(session, epoch, lease_deadline(self.config.lease_ms)) {
            Renewal::Renewed => Ok((EPOCH, self.state() != State::Ready)),
            Renewal::Ended => Err(fenced(session)),
            Renewal::EpochBackwards { acknowledged } => {
                let message = format!("epoch {epoch:?} is older than {acknowledged}, acknowledged earlier");
                Err(refusal(RefusalCode::Invalid, message))
            }
        }
    }

    /// Grants block memory.
    ///
    /// # Errors
    /// The refusal to send.
    pub fn grant_chunks(
        &self,
        session: SessionId,
        rights: Rights,
        class: u8,
        count: u16,
        purpose: ChunkPurpose,
    ) -> Result<Vec<ChunkGrant>, Refusal> {
        let serving = self.serving_or_refuse()?;
        if !rights.can_write() {
            let message = "a read-only session has no use for block memory".into();
            return Err(refusal(RefusalCode::Invalid, message));
        }
        // Both locks, so that a session can't end between the look and the grant, and its chunks be lost.
        let sessions = serving.sessions();
        if !sessions.is_living(session) {
            return Err(fenced(session));
        }
        let granted = serving.pool().grant(session, class, count, purpose);
        granted.map_err(|error| {
            let code = match error {
                GrantError::OutOfMemory { .. } => RefusalCode::OutOfMemory,
                GrantError::Quota { .. } => RefusalCode::Quota,
                _ => RefusalCode::Invalid,
            };
            refusal(code, error.to_string())
        })
    }

    /// Takes unused tails of chunks back.
    ///
    /// # Errors
    /// The refusal to send; then nothing was taken.
    pub fn return_chunks(&self, session: SessionId, tails: &[ChunkTail]) -> Result<(), Refusal> {
        let serving = self.serving_or_refuse()?;
        let returned = serving.pool().return_tails(session, tails);
        returned.map_err(|error| refusal(RefusalCode::Invalid, error.to_string()))
    }

    /// Fences a session's data path and lets it join anew. Blocks for as long as the fabric takes.
    ///
    /// # Errors
    /// The refusal to send.
    pub fn rejoin(&self, session: SessionId, rights: Rights, peer: Peer) -> Result<Join, Refusal> {
        let serving = self.serving_or_refuse()?;
        let fabric = serving.sessions().living_fabric(session).ok_or_else(|| fenced(session))?;
        let fenced = serving.targets.get(fabric).is_none_or(|target| target.fence(session));
        if !fenced {
            let message = format!(
                "the old {fabric} data path can't be revoked while its process has it: close it there first"
            );
            return Err(refusal(RefusalCode::Invalid, message));
        }
        tracing::info!(session = session.0, %fabric, "session joins anew");
        self.join(serving, session, fabric, rights, peer)
    }

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
        let fenced = serving.targets.get(session.fabric).is_none_or(|target| target.fence(session.id));
        if !fenced {
            tracing::debug!(session = session.id.0, fabric = %session.fabric, "can't be fenced yet");
            serving.sessions().linger(session.id);
        } else {
            // The books first: while the number is in the table nobody else can get it.
            serving.pool().end_session(session.id, session.was_clean);
            serving.sessions().forget(session.id);
            tracing::info!(session = session.id.0, client = ?session.client_name, ?end, "session ended");
        }
        serving.session_ended.notify_all();
    }

    /// Ends sessions whose leases ran out. Blocks for as long as the fabrics take.
    pub fn end_expired(&self) {
        let Some(serving) = self.serving() else { return };
        let expired = serving.sessions().expired(Instant::now());
        for session in expired {
            self.end_session(session, End::LeaseExpired);
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

    /// The figures.
    pub fn statistics(&self) -> ServerStatistics {
        let usage = Usage::now();
        let mut statistics = ServerStatistics {
            version: env!("CARGO_PKG_VERSION").into(),
            uptime_ms: self.started.elapsed().as_millis() as u64,
            control_messages_total: self.counters.control_messages.load(Ordering::Relaxed),
            cpu_user_us: usage.user.as_micros() as u64,
            cpu_system_us: usage.system.as_micros() as u64,
            resident_bytes: usage.resident_bytes,
            ..ServerStatistics::default()
        };
        if let Some(serving) = self.serving() {
            let geometry = serving.region.superblock.geometry;
            let accounts = serving.pool().accounts();
            let sessions = serving.sessions();
            statistics.incarnation = serving.region.superblock.incarnation;
            statistics.fabrics =
                serving.targets.all().map(|target| (target.kind(), target.describe())).collect();
            statistics.region_bytes = geometry.region_bytes;
            statistics.segment_count = geometry.segment_count;
            statistics.block_pool_bytes = accounts.pool_bytes;
            statistics.granted_bytes = accounts.granted_bytes;
            statistics.reserve_bytes = accounts.reserve_bytes;
            statistics.session_count = sessions.living_count() as u64;
            statistics.sessions_total = sessions.opened_total();
            statistics.sessions_fenced_total = sessions.fenced_total();
        }
        statistics
    }
}

/// A refusal of that kind.
pub fn refusal(code: RefusalCode, message: String) -> Refusal {
    Refusal { code, message }
}

fn fenced(session: SessionId) -> Refusal {
    let message = format!("session {session} is over: its lease ran out and it was fenced; open a new one");
    refusal(RefusalCode::Fenced, message)
}
