//! A session's connection: joining, joining again, leaving.
//!
//! Always true: a [`Link`] that is handed out has a data path that was checked to reach the region that the control
//! channel described. A new data path is joined only after the old one is given up, so the server's fence
//! finds nothing that it can't revoke. Attempts follow each other after longer and longer, random waits.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use sidestep_common::fabric::{ConnectOptions, Effect, FabricKind, Join, SessionId, connect};
use sidestep_common::layout::{BlockRef, SizeClass, Superblock, VALUE_BYTES_MAX};
use sidestep_common::wire::{BucketReport, ChunkPurpose, Hello, RefusalCode, Request, Response, Welcome};

use crate::allocator::Allocator;
use crate::backoff::Backoff;
use crate::bootstrap::{check_region, learn_directory, read_directory};
use crate::clock::{Deadline, now_ms};
use crate::control::Control;
use crate::driver::{Driver, Ground};
use crate::endpoint::{Endpoint, Place};
use crate::error::Error;
use crate::operation::{Context, Hints, WriteIds};
use crate::pacemaker::Pacemaker;
use crate::region_view::{RegionView, SharedView};
use crate::seat::Seat;
use crate::settings::Settings;
use crate::statistics::SharedCounters;
use crate::upkeep::{UPKEEP_TIME, attend, attend_on, relinquish};

/// What the sessions of a client share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) endpoint: Endpoint,
    pub(crate) settings: Settings,
    view: SharedView,
    pacemaker: Pacemaker,
}

impl Shared {
    pub(crate) fn new(endpoint: Endpoint, settings: Settings) -> Result<Self, Error> {
        let pacemaker = Pacemaker::start().map_err(|error| Error::Unreachable {
            endpoint: endpoint.to_string(),
            reason: format!("no thread for heartbeats: {error}"),
        })?;
        Ok(Self { endpoint, settings, view: SharedView::empty(), pacemaker })
    }
}

/// The connection while it stands.
#[derive(Debug)]
pub(crate) struct Link {
    pub(crate) driver: Driver,
    pub(crate) member: Member,
}

/// A session that the server knows, with or without a data path.
#[derive(Debug)]
pub(crate) struct Member {
    pub(crate) control: Arc<Control>,
    pub(crate) ground: SessionGround,
    pub(crate) value_bytes_max: usize,
}

/// A session, for as long as anything that it did may matter. A number alone is not enough: a server that was
/// restarted begins with the same ones.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Identity {
    session: SessionId,
    pub(crate) incarnation: u64,
}

impl Link {
    /// Neither its data path nor its control channel has failed, as far as is known.
    pub(crate) fn is_good(&self) -> bool {
        !self.driver.is_broken() && !self.member.control.is_lost()
    }
}

/// What operations of this session stand on.
#[derive(Debug)]
pub(crate) struct SessionGround {
    endpoint: String,
    control: Arc<Control>,
    pub(crate) view: Arc<RegionView>,
    pub(crate) allocator: Allocator,
    write_ids: WriteIds,
    hints: Hints,
    /// Reported as filling up, the last ones: once is enough.
    hinted: VecDeque<BucketReport>,
    /// The newest audit that was asked about.
    pub(crate) audit_asked: u64,
    /// Classes that were looked through for memory that can go back.
    pub(crate) tidied: usize,
    /// When memory went back last.
    pub(crate) gave_ms: Option<u64>,
    /// When the server said last that memory is coming back to it.
    returning_ms: Option<u64>,
    /// The server is short of memory, as far as is known.
    pub(crate) is_memory_wanted: bool,
    counters: SharedCounters,
}

impl SessionGround {
    /// A new session's: no block memory yet, write ids from a random place.
    pub(crate) fn new(
        endpoint: String,
        control: &Arc<Control>,
        view: Arc<RegionView>,
        session: SessionId,
        counters: &SharedCounters,
    ) -> Self {
        Self {
            endpoint,
            control: Arc::clone(control),
            view,
            allocator: Allocator::new(),
            write_ids: WriteIds::new(session.0, random()),
            hints: Hints::default(),
            hinted: VecDeque::new(),
            audit_asked: 0,
            tidied: 0,
            gave_ms: None,
            returning_ms: None,
            is_memory_wanted: false,
            counters: SharedCounters::clone(counters),
        }
    }

    /// The session's control channel.
    pub(crate) const fn control(&self) -> &Arc<Control> {
        &self.control
    }

    /// Buckets that fill up and were not reported lately.
    pub(crate) fn take_hints(&mut self) -> Vec<BucketReport> {
        let mut new = Vec::new();
        for hint in self.hints.take() {
            if self.hinted.contains(&hint) {
                continue;
            }
            if self.hinted.len() == HINTED_MAX {
                self.hinted.pop_front();
            }
            self.hinted.push_back(hint);
            new.push(hint);
        }
        new
    }

    /// Whether the server is to hear that an epoch is wished for.
    #[inline]
    fn has_wish(&self) -> bool {
        self.control.set_wants_epoch(self.allocator.wants_epoch());
        self.control.has_wish()
    }

    /// Whether there is a bucket to report.
    #[inline]
    pub(crate) fn has_hints(&self) -> bool {
        !self.hints.is_empty()
    }
}

/// Reports that are remembered, not to be made twice.
const HINTED_MAX: usize = 64;

impl Ground for SessionGround {
    fn context(&mut self, now_ms: u64) -> Context<'_> {
        Context {
            superblock: &self.view.superblock,
            directory: &self.view.directory,
            allocator: &mut self.allocator,
            write_ids: &mut self.write_ids,
            hints: &mut self.hints,
            now_ms,
        }
    }

    fn ask_memory(
        &mut self,
        class: SizeClass,
        purpose: ChunkPurpose,
        deadline: Deadline,
    ) -> Result<(), Error> {
        self.counters.count_chunk_request();
        let count = self.allocator.ask_chunks(&self.view.superblock.geometry, class, purpose);
        let request = Request::Chunks { class: class.index(), count, purpose };
        match self.control.request(&request, deadline) {
            Ok(Response::Chunks(grants)) => self
                .allocator
                .add_asked(&self.view.superblock.geometry, (class, count, purpose), &grants)
                .map_err(|error| Error::from_grant(&self.endpoint, error)),
            Ok(other) => Err(unexpected(&self.endpoint, &other)),
            Err(Error::Refused { refusal, .. }) if refusal.code == RefusalCode::MemoryReturning => {
                self.returning_ms = Some(now_ms());
                Err(Error::OutOfMemory(refusal.message))
            }
            Err(error) => {
                self.returning_ms = None;
                Err(error)
            }
        }
    }

    fn report_bucket(&mut self, report: BucketReport, deadline: Deadline) -> Result<bool, Error> {
        match self.control.request(&Request::ReportBucket(report), deadline) {
            Ok(Response::BucketReported) => Ok(true),
            Ok(other) => Err(unexpected(&self.endpoint, &other)),
            Err(Error::Refused { refusal, .. }) if refusal.code == RefusalCode::IndexFull => Ok(false),
            Err(error) => Err(error),
        }
    }

    fn attend(&mut self, driver: &mut Driver, held: Option<BlockRef>, deadline: Deadline) {
        if self.has_wish() {
            self.control.ring();
        }
        if self.control.news.are_there() {
            self.allocator.hold(held);
            // What did not get through is done at another time.
            let _ = attend_on(driver, self, deadline);
            self.allocator.hold(None);
        }
    }

    fn relinquish(&mut self, driver: &mut Driver, deadline: Deadline) {
        relinquish(driver, self, deadline);
    }

    fn gave_since(&self, since_ms: u64) -> bool {
        self.gave_ms.max(self.returning_ms).is_some_and(|at_ms| at_ms >= since_ms)
    }
}

/// Attempts to join again start this far apart, and end that far apart.
const RECONNECT_FIRST: Duration = Duration::from_millis(20);
const RECONNECT_LIMIT: Duration = Duration::from_secs(2);

/// Joins, and joins again.
#[derive(Debug)]
pub(crate) struct Joiner {
    pub(crate) shared: Arc<Shared>,
    pub(crate) counters: SharedCounters,
    /// Where the link is between calls.
    seat: Arc<Seat>,
    /// What the server said when the session was opened, and which session it is.
    welcome: Option<(Box<Welcome>, Identity)>,
    /// The session whose data path was given up and not joined again yet.
    member: Option<Member>,
    backoff: Backoff,
    /// No attempt before this: the wait after the last one outlives the call that made it.
    not_before: Option<std::time::Instant>,
}

impl Joiner {
    /// Opens a new session.
    pub(crate) fn open(shared: Arc<Shared>, counters: SharedCounters) -> Result<Self, Error> {
        let backoff = Backoff::new(RECONNECT_FIRST, RECONNECT_LIMIT, random());
        let seat = Arc::default();
        let mut joiner =
            Self { shared, counters, seat, welcome: None, member: None, backoff, not_before: None };
        let deadline = Deadline::after(joiner.shared.settings.connect_timeout);
        let link = joiner.join_new(deadline)?;
        joiner.seat.put(Some(link));
        Ok(joiner)
    }

    /// The link, joined again if it was lost, by the deadline. It is to be put back. What the session owes the server
    /// is done first.
    #[inline]
    pub(crate) fn take(&mut self, deadline: Deadline) -> Result<Box<Link>, Error> {
        let taken = self.seat.take(deadline).map_err(|_| Error::Timeout {
            endpoint: self.shared.endpoint.to_string(),
            after_ms: deadline.whole_ms(),
            doing: "waiting for the session's upkeep",
            effect: Effect::No,
        })?;
        match taken {
            Some(mut link) if link.is_good() => {
                if link.member.control.news.are_there() {
                    attend(&mut link, Deadline::after(UPKEEP_TIME.min(deadline.left())));
                    if !link.is_good() {
                        return self.join_again(Some(link), deadline);
                    }
                }
                Ok(link)
            }
            link => self.join_again(link, deadline),
        }
    }

    /// Puts the link back.
    #[inline]
    pub(crate) fn put(&mut self, link: Box<Link>) {
        let Member { control, ground, .. } = &link.member;
        if ground.has_hints() {
            control.news.have_work();
        }
        // They came, or were found, during the call.
        let rung = (ground.has_wish() || control.news.are_there()).then(|| Arc::clone(control));
        self.seat.put(Some(link));
        // Only now: who is woken while the link is not back goes to sleep again.
        if let Some(control) = rung {
            control.ring();
        }
    }

    /// Something with the link.
    pub(crate) fn with<T>(
        &mut self,
        deadline: Deadline,
        act: impl FnOnce(&mut Link) -> T,
    ) -> Result<T, Error> {
        let mut link = self.take(deadline)?;
        let result = act(&mut link);
        self.put(link);
        Ok(result)
    }

    /// The session for the last time, with its data path if it has one.
    pub(crate) fn leave(&mut self, deadline: Deadline) -> Option<(Option<Driver>, Member)> {
        let taken = self.seat.take(deadline).ok()?;
        self.seat.put(None);
        match taken.map(|link| *link) {
            Some(Link { driver, member }) => Some((Some(driver), member)),
            None => self.member.take().map(|member| (None, member)),
        }
    }

    /// Something with the link as it is, if there is one.
    pub(crate) fn peek<T>(&mut self, deadline: Deadline, look: impl FnOnce(&mut Link) -> T) -> Option<T> {
        let mut link = self.seat.take(deadline).ok()?;
        let result = link.as_mut().map(|link| look(link));
        self.seat.put(link);
        result
    }

    /// Which session this is, if there is one.
    pub(crate) fn identity(&self) -> Option<Identity> {
        self.welcome.as_ref().map(|(_, identity)| *identity)
    }

    /// What the server said when the session was opened.
    pub(crate) fn welcome(&self) -> Option<&Welcome> {
        self.welcome.as_ref().map(|(welcome, _)| &**welcome)
    }

    /// The link has proved good: the next loss is a new one, and the first attempt to mend it is made at once.
    #[inline]
    pub(crate) fn settle(&mut self) {
        if self.not_before.is_some() {
            self.not_before = None;
            self.backoff.reset();
        }
    }

    /// The seat is this call's, and has no link meanwhile.
    #[cold]
    fn join_again(&mut self, link: Option<Box<Link>>, deadline: Deadline) -> Result<Box<Link>, Error> {
        let joined = self.try_to_join_again(link.map(|link| *link), deadline);
        if joined.is_err() {
            self.seat.put(None);
        }
        joined
    }

    fn try_to_join_again(&mut self, link: Option<Link>, deadline: Deadline) -> Result<Box<Link>, Error> {
        if let Some(Link { driver, member }) = link {
            // Given up before anything is asked for: the server can't take a mapping away.
            drop(driver);
            self.member = Some(member);
        }
        let mut last = None;
        loop {
            if let Some(wait) =
                self.not_before.map(|when| when.saturating_duration_since(std::time::Instant::now()))
            {
                if deadline.left() <= wait {
                    std::thread::sleep(deadline.left());
                    return Err(last.unwrap_or_else(|| Error::Unreachable {
                        endpoint: self.shared.endpoint.to_string(),
                        reason: "the connection was lost, and the wait before the next attempt is not over"
                            .into(),
                    }));
                }
                std::thread::sleep(wait);
            }
            let joined = match self.member.take().filter(|member| !member.control.is_lost()) {
                Some(member) => self.rejoin(member, deadline),
                None => {
                    // It has forgotten everything.
                    self.welcome = None;
                    self.join_new(deadline)
                }
            };
            match joined {
                Ok(link) => {
                    // Joining proves little: if the verbs fail again, the next attempt is not made at once.
                    self.not_before = Some(std::time::Instant::now() + self.backoff.next_wait());
                    self.counters.count_reconnect();
                    return Ok(link);
                }
                Err(error) => {
                    self.not_before = Some(std::time::Instant::now() + self.backoff.next_wait());
                    if !may_pass(&error) {
                        return Err(error);
                    }
                    last = Some(error);
                }
            }
        }
    }

    /// Has the server fence the old queue pair, and joins a new one; the session and its chunks survive. If the
    /// server doesn't know the session any more, the next attempt begins a new one.
    fn rejoin(&mut self, member: Member, deadline: Deadline) -> Result<Box<Link>, Error> {
        let join = match member.control.request(&Request::Rejoin, deadline) {
            Ok(Response::Rejoined(join)) => join,
            Ok(other) => return Err(unexpected(&self.shared.endpoint.to_string(), &other)),
            Err(error) => {
                // Only what says that the session is gone, or won't ever be let in again, ends it: with it go its chunks.
                let may_rejoin = may_pass(&error) || matches!(error, Error::Timeout { .. });
                self.member = Some(member).filter(|member| may_rejoin && !member.control.is_lost());
                return Err(error);
            }
        };
        match self.join_data(&join, member.control.peer(), &member.ground.view.superblock, deadline) {
            Ok(driver) => Ok(Box::new(Link { driver, member })),
            Err(error) => {
                self.member = Some(member);
                Err(error)
            }
        }
    }

    /// Opens a new session: control channel, hello, data path, superblock check, directory.
    fn join_new(&mut self, deadline: Deadline) -> Result<Box<Link>, Error> {
        let endpoint = self.shared.endpoint.to_string();
        let settings = &self.shared.settings;
        let mut fabrics = fabrics_to_try(&self.shared.endpoint);
        // Why the fabric that the server liked best can't be had; worth more to people than that it has no other.
        let mut first_error = None;
        loop {
            let control = Arc::new(Control::open(&self.shared.endpoint, deadline)?);
            let welcome = match control.request(&self.hello(&fabrics), deadline) {
                Ok(Response::Welcome(welcome)) => *welcome,
                Ok(other) => return Err(unexpected(&endpoint, &other)),
                Err(error) => return Err(first_error.unwrap_or(error)),
            };
            let superblock = Superblock::parse(&welcome.superblock)
                .map_err(|error| Error::from_superblock(&endpoint, error))?;
            let value_bytes_max = VALUE_BYTES_MAX.min(welcome.value_bytes_max as usize);
            if let Some(wanted_bytes) = settings.value_bytes_wanted.filter(|wanted| *wanted > value_bytes_max)
            {
                return Err(Error::ValueLimit { wanted_bytes, limit_bytes: value_bytes_max, endpoint });
            }
            let mut driver = match self.join_data(&welcome.join, control.peer(), &superblock, deadline) {
                Ok(driver) => driver,
                Err(error) => {
                    // The server offered what can't be had from here, such as another host's shared memory.
                    let failed = welcome.join.kind();
                    fabrics.retain(|kind| *kind != failed);
                    tracing::info!(%error, "trying another fabric");
                    let error = first_error.take().unwrap_or(error);
                    if fabrics.is_empty() {
                        return Err(error);
                    }
                    first_error = Some(error);
                    let _ = control.request(&Request::Goodbye, deadline);
                    continue;
                }
            };
            if settings.check_region {
                check_region(&mut driver, &superblock, &endpoint, deadline)?;
            }
            // What was published before the session's first epoch is read after it.
            let view = match self.shared.view.of(&superblock) {
                Some(view) => {
                    learn_directory(&mut driver, &view, &endpoint, deadline)?;
                    view
                }
                None => {
                    let directory = read_directory(&mut driver, &superblock, &endpoint, deadline)?;
                    let view = Arc::new(RegionView { superblock, directory });
                    self.shared.view.set(&view);
                    view
                }
            };
            if deadline.has_passed() {
                let doing = "joining";
                return Err(Error::Timeout {
                    endpoint,
                    after_ms: deadline.whole_ms(),
                    doing,
                    effect: Effect::No,
                });
            }
            let lease = Duration::from_millis(welcome.lease_ms.max(1));
            control.begin_in(welcome.epoch);
            self.shared.pacemaker.watch(&control, &self.seat, lease);
            let ground = SessionGround::new(endpoint, &control, view, welcome.session, &self.counters);
            let member = Member { control, ground, value_bytes_max };
            let identity =
                Identity { session: welcome.session, incarnation: member.ground.view.superblock.incarnation };
            self.welcome = Some((Box::new(welcome), identity));
            return Ok(Box::new(Link { driver, member }));
        }
    }

    fn hello(&self, fabrics: &[FabricKind]) -> Request {
        let settings = &self.shared.settings;
        Request::Hello(Hello {
            client_version: env!("CARGO_PKG_VERSION").to_owned(),
            client_name: settings.name.clone(),
            token: settings.token.clone(),
            fabrics: fabrics.to_vec(),
            rights: settings.rights,
            boot_id: std::fs::read_to_string("/proc/sys/kernel/random/boot_id")
                .map(|id| id.trim().to_owned())
                .unwrap_or_default(),
            process_id: std::process::id(),
        })
    }

    fn join_data(
        &self,
        join: &Join,
        peer: Option<IpAddr>,
        superblock: &Superblock,
        deadline: Deadline,
    ) -> Result<Driver, Error> {
        let settings = &self.shared.settings;
        let options = ConnectOptions {
            peer,
            region_bytes: superblock.geometry.region_bytes,
            rights: settings.rights,
            verbs_in_flight_max: settings.verbs_in_flight_max,
            buffer_limit_bytes: settings.buffer_limit_bytes,
            device: settings.device.clone(),
            deadline: deadline.end(),
        };
        let fabric = connect(join, &options)
            .map_err(|source| Error::Connect { endpoint: self.shared.endpoint.to_string(), source })?;
        Ok(Driver::new(fabric, superblock.incarnation ^ u64::from(std::process::id())))
    }
}

/// A random number. Without randomness from the system all clients would be alike, which is bad but not wrong.
fn random() -> u64 {
    let mut bytes = [0; 8];
    let _ = getrandom::fill(&mut bytes);
    u64::from_le_bytes(bytes)
}

/// Fabrics in the order in which a client likes them.
fn fabrics_to_try(endpoint: &Endpoint) -> Vec<FabricKind> {
    match (endpoint.fabric, &endpoint.place) {
        (Some(fabric), _) => vec![fabric],
        (None, Place::Unix(_)) => vec![FabricKind::Shm],
        (None, Place::Tcp(..)) => vec![FabricKind::Verbs, FabricKind::Shm, FabricKind::Tcp],
    }
}

/// Whether the same attempt may go well later.
pub(crate) fn may_pass(error: &Error) -> bool {
    match error {
        Error::Refused { refusal, .. } => {
            matches!(refusal.code, RefusalCode::SessionLimit | RefusalCode::Draining | RefusalCode::Fenced)
        }
        Error::Unreachable { .. } | Error::Connect { .. } | Error::Failed { .. } => true,
        _ => false,
    }
}

/// A response that makes no sense.
pub(crate) fn unexpected(endpoint: &str, response: &Response) -> Error {
    let name = format!("{response:?}");
    let name = name.split(['(', ' ', '{']).next().unwrap_or_default();
    Error::Protocol { endpoint: endpoint.to_owned(), reason: format!("unexpected response {name}") }
}

#[cfg(test)]
mod tests;
