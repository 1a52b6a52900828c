//! The memory node: what the control channel, the admin endpoint and the housekeeping share.
//!
//! Always true: no lock is held while a fabric is asked to do something; where both books are needed, the table
//! of sessions is locked before the pool, the pool before the epochs, and these before the book of sweeps.

mod admission;
mod ending;
mod shortage;

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use sidestep_common::fabric::{Rights, SessionId};
use sidestep_common::memory::Mapping;
use sidestep_common::wire::{
    AuditedChunk, BucketReport, ChunkGrant, ChunkPurpose, GrantPage, Pulse, Refusal, RefusalCode,
    ReturnedChunk, ServerStatistics,
};
use tokio::sync::watch;

use crate::config::Config;
use crate::epochs::Epochs;
use crate::janitor::slots::Slots;
use crate::janitor::{Bell, Books, Growth, SweepBook};
use crate::pool::{BlockPool, GrantError, PoolAccounts};
use crate::region::Region;
use crate::sessions::{Renewal, SessionTable, epoch_deadline, lease_deadline};
use crate::targets::Targets;
use crate::transport::Plan;
use crate::usage::Usage;

pub use admission::Peer;
pub use ending::End;
pub use shortage::Shortage;

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
    epochs: Mutex<Epochs>,
    sweeps: Mutex<SweepBook>,
    /// Whether memory is short.
    pub shortage: Shortage,
    /// Wakes the janitor.
    pub bell: Bell,
    /// What is known of the index's growth.
    pub growth: Growth,
    /// Whether the janitor's thread runs.
    pub janitor_is_up: AtomicBool,
    /// Counts what every session is to hear of at once.
    news: watch::Sender<u64>,
}

impl Serving {
    /// Fresh books for a region.
    pub fn new(region: Region, plan: Plan, targets: Targets, mapping: Arc<Mapping>, config: &Config) -> Self {
        let quota_bytes = config.chunk_quota.map(|quota| quota.0);
        let words = mapping.words();
        let slots = Slots::new(words, region.superblock.domain, targets.card(), config.device.clone());
        Self {
            pool: Mutex::new(BlockPool::new(&region.superblock.geometry, quota_bytes, words)),
            sessions: Mutex::new(SessionTable::new(config.max_sessions as usize)),
            session_ended: Condvar::new(),
            epochs: Mutex::new(Epochs::new()),
            sweeps: Mutex::default(),
            shortage: Shortage::default(),
            bell: Bell::default(),
            growth: Growth::new(&region.superblock, words, slots),
            janitor_is_up: AtomicBool::new(false),
            news: watch::Sender::new(0),
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

    /// Who has acknowledged which epoch.
    pub fn epochs(&self) -> MutexGuard<'_, Epochs> {
        locked(&self.epochs)
    }

    /// What is known of sweeps.
    pub fn sweeps(&self) -> MutexGuard<'_, SweepBook> {
        locked(&self.sweeps)
    }

    /// What a sweep works with.
    pub fn books(&self) -> Books<'_> {
        Books {
            epochs: &self.epochs,
            pool: &self.pool,
            sweeps: &self.sweeps,
            words: self.mapping.words(),
            geometry: self.region.superblock.geometry,
        }
    }

    /// Notes that somebody was refused memory, and sees to it that some is looked for. Returns what the refusal is to say: what
    /// is kept for deletes has nothing but deleted keys in it, and comes back when the index is tidied.
    fn refuse_memory(&self, purpose: ChunkPurpose) -> RefusalCode {
        if self.shortage.note_refusal() {
            self.tell_sessions();
        }
        self.bell.ring();
        let PoolAccounts { returned, orphan, .. } = self.pool().accounts();
        let grace = Duration::from_millis(self.region.superblock.grace_ms);
        let is_coming = purpose == ChunkPurpose::Delete || returned.chunks + orphan.chunks > 0;
        if is_coming || self.shortage.may_end(grace) {
            RefusalCode::MemoryReturning
        } else {
            RefusalCode::OutOfMemory
        }
    }

    /// Whether idle sessions should give back memory that they don't need.
    pub fn wants_memory(&self) -> bool {
        self.shortage.is_recent() || self.pool().is_short()
    }

    /// Sends a notice to every session.
    pub fn tell_sessions(&self) {
        self.news.send_modify(|count| *count += 1);
    }

    /// Changes whenever there is news for every session.
    pub fn watch_news(&self) -> watch::Receiver<u64> {
        self.news.subscribe()
    }
}

/// Each holder leaves the books whole, so a panic in one doesn't matter to the next.
pub(crate) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
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

    fn serving_or_refuse(&self) -> Result<&Serving, Refusal> {
        self.serving().ok_or_else(|| refusal(RefusalCode::Draining, "the server is still starting".into()))
    }

    /// A session shows that it lives: its lease runs again from now.
    ///
    /// # Errors
    /// The refusal to send.
    pub fn renew(&self, session: SessionId) -> Result<(), Refusal> {
        let serving = self.serving_or_refuse()?;
        match serving.sessions().renew(session, lease_deadline(self.config.lease_ms)) {
            Renewal::Renewed => Ok(()),
            Renewal::Ended => Err(fenced(session)),
        }
    }

    /// A session acknowledges `epoch`, and is told how things stand.
    ///
    /// # Errors
    /// The refusal to send.
    pub fn heartbeat(&self, session: SessionId, epoch: u64, wants_epoch: bool) -> Result<Pulse, Refusal> {
        let serving = self.serving_or_refuse()?;
        let (is_news, is_newest) = {
            let mut epochs = serving.epochs();
            let before = epochs.quiesced();
            epochs
                .acknowledge(session, epoch)
                .map_err(|error| refusal(RefusalCode::Invalid, error.to_string()))?;
            if wants_epoch {
                epochs.want();
            }
            (wants_epoch || epochs.quiesced() != before, epoch == epochs.newest())
        };
        if is_newest {
            serving.sessions().caught_up(session, epoch_deadline(self.config.lease_ms));
        }
        if is_news {
            serving.bell.ring();
        }
        self.pulse(session)
    }

    /// How things stand for a session.
    ///
    /// # Errors
    /// The refusal to send.
    pub fn pulse(&self, session: SessionId) -> Result<Pulse, Refusal> {
        let serving = self.serving_or_refuse()?;
        let wants_memory = serving.wants_memory();
        let epochs = serving.epochs();
        // Under the lock of the epochs: whoever hears of an epoch hears of the audits announced before it was raised.
        let (audit_begun, audit_done) = {
            let sweeps = serving.sweeps();
            (sweeps.begun(), sweeps.done())
        };
        Ok(Pulse {
            epoch: epochs.newest(),
            quiesced: epochs.quiesced(),
            draining: self.state() != State::Ready,
            wants_memory,
            audit_begun,
            audit_done,
            changes: epochs.changes_for(session),
        })
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
        drop(sessions);
        granted.map_err(|error| {
            let code = match error {
                GrantError::OutOfMemory { .. } => serving.refuse_memory(purpose),
                GrantError::Quota { .. } => RefusalCode::Quota,
                _ => RefusalCode::Invalid,
            };
            refusal(code, error.to_string())
        })
    }

    /// Takes chunks back from a session.
    ///
    /// # Errors
    /// The refusal to send; then nothing was taken.
    pub fn return_chunks(&self, session: SessionId, chunks: Vec<ReturnedChunk>) -> Result<(), Refusal> {
        let serving = self.serving_or_refuse()?;
        let with_blocks: Vec<u64> =
            chunks.iter().filter(|chunk| !chunk.empty).map(|chunk| chunk.offset).collect();
        let returned = serving.pool().return_chunks(session, chunks, || serving.epochs().target());
        returned.map_err(|error| refusal(RefusalCode::Invalid, error.to_string()))?;
        // What an audit is about to find, or found, for this owner must be found again for nobody.
        let mut sweeps = serving.sweeps();
        if with_blocks.into_iter().any(|offset| sweeps.concerns(offset)) {
            sweeps.want();
        }
        drop(sweeps);
        serving.bell.ring();
        Ok(())
    }

    /// Which blocks of a session's chunks the index reached in the audit of that number. Of an audit that another one has
    /// followed nothing is known any more.
    ///
    /// # Errors
    /// The refusal to send.
    pub fn audited(
        &self,
        session: SessionId,
        number: u64,
        chunks: &[u64],
    ) -> Result<Vec<AuditedChunk>, Refusal> {
        let serving = self.serving_or_refuse()?;
        let invalid = |message| Err(refusal(RefusalCode::Invalid, message));
        if chunks.len() > AuditedChunk::COUNT_MAX {
            let (count, limit) = (chunks.len(), AuditedChunk::COUNT_MAX);
            return invalid(format!("{count} chunks are asked about at once, want at most {limit}"));
        }
        let mut serials = Vec::with_capacity(chunks.len());
        {
            let pool = serving.pool();
            for &offset in chunks {
                let Some(serial) = pool.serial_of(session, offset) else {
                    return invalid(format!("no chunk at {offset:#x} is granted to the session"));
                };
                serials.push((offset, serial));
            }
        }
        let sweeps = serving.sweeps();
        match sweeps.done() {
            done if number > done => {
                invalid(format!("audit {number} is asked about, the newest done is {done}"))
            }
            done if number < done => Ok(Vec::new()),
            _ => Ok(serials
                .into_iter()
                .filter_map(|(offset, serial)| {
                    let reached = sweeps.audited(offset, serial)?.to_vec();
                    Some(AuditedChunk { offset, reached })
                })
                .collect()),
        }
    }

    /// Takes a writer's report of a full bucket.
    ///
    /// # Errors
    /// The refusal to send.
    pub fn report_bucket(&self, rights: Rights, report: BucketReport) -> Result<(), Refusal> {
        let serving = self.serving_or_refuse()?;
        if !rights.can_write() {
            let message = "a read-only session inserts nothing, so no bucket is full for it".into();
            return Err(refusal(RefusalCode::Invalid, message));
        }
        let entries = serving.region.superblock.geometry.directory_entries();
        if u64::from(report.entry) >= entries {
            let message = format!("entry {} is reported, the directory has {entries}", report.entry);
            return Err(refusal(RefusalCode::Invalid, message));
        }
        serving.report_bucket(report)
    }

    /// The grants from `from` on, at most `count`. Whoever has a session may ask: it reads the region anyway.
    ///
    /// # Errors
    /// The refusal to send.
    pub fn list_grants(&self, from: u64, count: u16) -> Result<GrantPage, Refusal> {
        Ok(self.serving_or_refuse()?.pool().page(from, count))
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
            statistics.incarnation = serving.region.superblock.incarnation;
            statistics.region_age_ms = serving.region.age_ms();
            statistics.fabrics =
                serving.targets.all().map(|target| (target.kind(), target.describe())).collect();
            statistics.region_bytes = geometry.region_bytes;
            statistics.segment_count = geometry.segment_count;
            statistics.block_pool_bytes = accounts.pool_bytes;
            statistics.granted_bytes = accounts.granted_bytes();
            statistics.orphan_chunks = accounts.orphan.chunks;
            statistics.ownerless_chunks = accounts.ownerless.chunks;
            statistics.swept_chunks_total = accounts.swept_total;
            statistics.sweeps_total = serving.sweeps().figures().sweeps_total;
            statistics.reserve_bytes = accounts.reserve_bytes;
            statistics.free_bytes = accounts.free_bytes;
            let growth = serving.growth.figures();
            statistics.segments_serving = growth.segments_serving;
            statistics.segments_retired = growth.segments_retired;
            statistics.segments_serving_max = geometry.directory_entries();
            statistics.rebuilds_total = growth.rebuilds_total;
            statistics.splits_total = growth.splits_total;
            (statistics.epoch, statistics.quiesced_epoch) = {
                let epochs = serving.epochs();
                (epochs.newest(), epochs.quiesced())
            };
            let sessions = serving.sessions();
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
