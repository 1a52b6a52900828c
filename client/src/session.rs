//! One thread's connection to a memory node.
//!
//! Always true: a session is driven by one thread at a time; it has one queue pair, its own buffers and its own
//! block memory, so nothing is shared on the path of an operation. After a failure it joins again by itself at
//! the next call (waiting longer each time), with the same session and chunks if the server still knows them,
//! else as a new session that has forgotten everything.

use std::sync::Arc;
use std::time::Duration;

use sidestep_common::fabric::{ConnectOptions, Effect, FabricKind, FailureKind, Join, Reply, connect};
use sidestep_common::layout::{KEY_BYTES_MAX, SUPERBLOCK_BYTES, SizeClass, Superblock, VALUE_BYTES_MAX};
use sidestep_common::wire::{ChunkPurpose, Hello, RefusalCode, Request, Response, ServerStatistics, Welcome};

use crate::allocator::Allocator;
use crate::backoff::Backoff;
use crate::bootstrap::{ReadPiece, check_region, read_directory};
use crate::clock::Deadline;
use crate::control::Control;
use crate::driver::{Driver, Finished, Ground, Stop};
use crate::endpoint::{Endpoint, Place};
use crate::error::Error;
use crate::operation::change::{Change, Changed};
use crate::operation::get::{Found, Get};
use crate::operation::resolve::Resolve;
use crate::operation::{Context, Operation, PendingCas, WriteIds};
use crate::pacemaker::Pacemaker;
use crate::region_view::{RegionView, SharedView};
use crate::settings::Settings;
use crate::statistics::{Counters, Ending, Kind, Statistics, Tally};
use crate::trace::Trace;

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
struct Link {
    control: Arc<Control>,
    driver: Driver,
    ground: SessionGround,
    welcome: Welcome,
    value_bytes_max: usize,
}

/// What operations of this session stand on.
#[derive(Debug)]
struct SessionGround {
    endpoint: String,
    control: Arc<Control>,
    view: Arc<RegionView>,
    allocator: Allocator,
    write_ids: WriteIds,
    counters: Arc<Counters>,
}

impl Ground for SessionGround {
    fn context(&mut self, now_ms: u64) -> Context<'_> {
        Context {
            superblock: &self.view.superblock,
            directory: &self.view.directory,
            allocator: &mut self.allocator,
            write_ids: &mut self.write_ids,
            now_ms,
        }
    }

    fn get_memory(
        &mut self,
        class: SizeClass,
        purpose: ChunkPurpose,
        deadline: Deadline,
    ) -> Result<(), Error> {
        self.counters.count_chunk_request();
        let count = self.allocator.ask_chunks(class);
        let request = Request::Chunks { class: class.index(), count, purpose };
        match self.control.request(&request, deadline)? {
            Response::Chunks(grants) if !grants.is_empty() => {
                for grant in grants {
                    self.allocator
                        .add(&self.view.superblock.geometry, grant)
                        .map_err(|error| Error::from_grant(&self.endpoint, error))?;
                }
                Ok(())
            }
            other => Err(unexpected(&self.endpoint, &other)),
        }
    }
}

/// One thread's connection to a memory node. Not shared: see [`crate::Client`] for that.
#[derive(Debug)]
pub struct Session {
    shared: Arc<Shared>,
    counters: Arc<Counters>,
    link: Option<Link>,
    backoff: Backoff,
    timeout: Duration,
}

/// Attempts to join again start this far apart, and end that far apart.
const RECONNECT_FIRST: Duration = Duration::from_millis(20);
const RECONNECT_LIMIT: Duration = Duration::from_secs(2);

impl Session {
    pub(crate) fn open(shared: Arc<Shared>, counters: Arc<Counters>) -> Result<Self, Error> {
        let mut seed = [0; 8];
        // Without randomness all clients would wait alike, which is bad but not wrong.
        let _ = getrandom::fill(&mut seed);
        let backoff = Backoff::new(RECONNECT_FIRST, RECONNECT_LIMIT, u64::from_le_bytes(seed));
        let timeout = shared.settings.operation_timeout;
        let mut session = Self { shared, counters, link: None, backoff, timeout };
        session.link = Some(session.join_new(Deadline::after(session.shared.settings.connect_timeout))?);
        Ok(session)
    }

    /// The time that each call has from now on.
    pub fn set_timeout(&mut self, timeout: Duration) {
        self.timeout = timeout;
    }

    /// The value of `key`, or `None` if there is none.
    ///
    /// # Errors
    /// [`Error`]; see there.
    pub fn get(&mut self, key: &[u8]) -> Result<Option<Vec<u8>>, Error> {
        self.get_with(key, <[u8]>::to_vec)
    }

    /// Puts the value of `key` into `value`, replacing what is in there; `false` if there is none (then `value`
    /// is empty).
    ///
    /// # Errors
    /// [`Error`]; see there.
    pub fn get_into(&mut self, key: &[u8], value: &mut Vec<u8>) -> Result<bool, Error> {
        value.clear();
        let found = self.get_with(key, |bytes| value.extend_from_slice(bytes))?;
        Ok(found.is_some())
    }

    /// Calls `read` with the value of `key`, where the fabric put it; `None` if there is none.
    ///
    /// # Errors
    /// [`Error`]; see there.
    pub fn get_with<T>(&mut self, key: &[u8], read: impl FnOnce(&[u8]) -> T) -> Result<Option<T>, Error> {
        check_key(key)?;
        let mut read = Some(read);
        let mut value = None;
        self.perform(Kind::Get, &mut |session, link, deadline| {
            let mut operation = [Get::new(key, link.ground.view.superblock.hash_seed)];
            session.run(Kind::Get, link, &mut operation, deadline, |finished: Finished<'_, Option<Found>>| {
                Ok(match finished.result? {
                    None => Ending::Miss,
                    Some(found) => {
                        let bytes = found_value(&found, finished.replies);
                        value = read.take().map(|read| read(bytes));
                        Ending::Hit
                    }
                })
            })
        })?;
        Ok(value)
    }

    /// The values of `keys`, in their order, with the round trips of one get.
    ///
    /// # Errors
    /// The first [`Error`] of any of them; see there.
    pub fn get_many<K: AsRef<[u8]>>(&mut self, keys: &[K]) -> Result<Vec<Option<Vec<u8>>>, Error> {
        for key in keys {
            check_key(key.as_ref())?;
        }
        let mut values: Vec<Option<Vec<u8>>> = vec![None; keys.len()];
        let mut from = 0;
        while from < keys.len() {
            let mut until = from;
            self.perform(Kind::Get, &mut |session, link, deadline| {
                until = keys.len().min(from + link.driver.width());
                let seed = link.ground.view.superblock.hash_seed;
                let mut operations: Vec<Get<'_>> =
                    keys[from..until].iter().map(|key| Get::new(key.as_ref(), seed)).collect();
                let values = &mut values[from..until];
                session.run(Kind::Get, link, &mut operations, deadline, |finished| {
                    let found = finished.result?;
                    values[finished.index] =
                        found.map(|found| found_value(&found, finished.replies).to_vec());
                    Ok(if values[finished.index].is_some() { Ending::Hit } else { Ending::Miss })
                })
            })?;
            from = until;
        }
        Ok(values)
    }

    /// Stores `value` at `key`, whatever was there. Says nothing of what was there, and so needs not know.
    ///
    /// # Errors
    /// [`Error`]; [`Error::effect`] says whether it may have happened.
    pub fn put(&mut self, key: &[u8], value: &[u8]) -> Result<(), Error> {
        check_key(key)?;
        self.check_write()?;
        if value.len() > VALUE_BYTES_MAX {
            return Err(Error::ValueLength { bytes: value.len(), limit_bytes: VALUE_BYTES_MAX });
        }
        self.perform(Kind::Put, &mut |session, link, deadline| {
            if value.len() > link.value_bytes_max {
                let limit_bytes = link.value_bytes_max;
                return Err(Stop::Error(Error::ValueLength { bytes: value.len(), limit_bytes }));
            }
            let seed = link.ground.view.superblock.hash_seed;
            let Some(operation) = Change::put(key, value, seed) else { unreachable!("lengths were checked") };
            session.run(Kind::Put, link, &mut [operation], deadline, |finished: Finished<'_, Changed>| {
                finished.result.map(|_| Ending::Hit)
            })
        })
    }

    /// Removes `key`; says whether it was there.
    ///
    /// # Errors
    /// [`Error`]; [`Error::effect`] says whether it may have happened.
    pub fn delete(&mut self, key: &[u8]) -> Result<bool, Error> {
        check_key(key)?;
        self.check_write()?;
        let mut existed = true;
        self.perform(Kind::Delete, &mut |session, link, deadline| {
            let seed = link.ground.view.superblock.hash_seed;
            let Some(operation) = Change::delete(key, seed) else { unreachable!("the length was checked") };
            session.run(Kind::Delete, link, &mut [operation], deadline, |finished: Finished<'_, Changed>| {
                existed = finished.result? == Changed::Deleted;
                Ok(if existed { Ending::Hit } else { Ending::Miss })
            })
        })?;
        Ok(existed)
    }

    /// Runs `call` on this session and writes down every verb of it.
    ///
    /// # Errors
    /// Those of `call`; the trace comes in either case.
    pub fn explain<T>(
        &mut self,
        call: impl FnOnce(&mut Self) -> Result<T, Error>,
    ) -> (Result<T, Error>, Trace) {
        if let Err(error) = self.ensure_link(Deadline::after(self.timeout)) {
            return (Err(error), Trace::default());
        }
        if let Some(link) = &mut self.link {
            link.driver.start_trace();
        }
        let result = call(self);
        let tracer = self.link.as_mut().and_then(|link| link.driver.take_trace());
        (result, tracer.map(|tracer| tracer.finish()).unwrap_or_default())
    }

    /// Asks the server to answer on the control channel; how long that took.
    ///
    /// # Errors
    /// [`Error`] if it does not.
    pub fn ping(&mut self) -> Result<Duration, Error> {
        let deadline = Deadline::after(self.timeout);
        let link = self.ensure_link(deadline)?;
        let (control, epoch) = (Arc::clone(&link.control), link.welcome.epoch);
        let began = std::time::Instant::now();
        match control.request(&Request::Heartbeat { epoch }, deadline)? {
            Response::Heartbeat { .. } => Ok(began.elapsed()),
            other => Err(self.unexpected(&other)),
        }
    }

    /// One READ of the first `bytes` (at most 4096) of the region over the data path: what a round trip of this
    /// connection costs, to compare operations with.
    ///
    /// # Errors
    /// [`Error`] if it fails.
    pub fn probe(&mut self, bytes: usize) -> Result<(), Error> {
        let bytes = bytes.clamp(1, SUPERBLOCK_BYTES as usize);
        let deadline = Deadline::after(self.timeout);
        let mut link = self.take_link(deadline)?;
        let mut result = Ok(());
        link.driver.run(&mut link.ground, &mut [ReadPiece::probe(bytes)], deadline, |finished| {
            result = finished.result;
        });
        let kind = link.driver.fabric().kind();
        self.link = Some(link);
        result.map_err(|stop| match stop {
            Stop::Error(error) => error,
            Stop::Timeout(_) => self.timed_out(deadline, "waiting for a READ", Effect::No),
            Stop::Failed(failure, _, effect) => {
                Error::Failed { endpoint: self.shared.endpoint.to_string(), kind, failure, effect }
            }
        })
    }

    /// The server's figures.
    ///
    /// # Errors
    /// [`Error`] if it gives none.
    pub fn server_statistics(&mut self) -> Result<ServerStatistics, Error> {
        let deadline = Deadline::after(self.timeout);
        let control = Arc::clone(&self.ensure_link(deadline)?.control);
        match control.request(&Request::Statistics, deadline)? {
            Response::Statistics(statistics) => Ok(*statistics),
            other => Err(self.unexpected(&other)),
        }
    }

    /// What this session did.
    pub fn statistics(&self) -> Statistics {
        self.counters.snapshot()
    }

    /// Over which fabric, with a line for people.
    ///
    /// # Errors
    /// [`Error`] if the session can't be joined.
    pub fn fabric(&mut self) -> Result<(FabricKind, String), Error> {
        let link = self.ensure_link(Deadline::after(self.timeout))?;
        Ok((link.driver.fabric().kind(), link.driver.fabric().describe()))
    }

    /// What the server said when the session was opened.
    ///
    /// # Errors
    /// [`Error`] if the session can't be joined.
    pub fn welcome(&mut self) -> Result<&Welcome, Error> {
        Ok(&self.ensure_link(Deadline::after(self.timeout))?.welcome)
    }

    /// The region's superblock.
    ///
    /// # Errors
    /// [`Error`] if the session can't be joined.
    pub fn superblock(&mut self) -> Result<Superblock, Error> {
        Ok(self.ensure_link(Deadline::after(self.timeout))?.ground.view.superblock)
    }

    /// Ends the session cleanly: unused block memory goes back to the server.
    pub fn close(mut self) {
        self.say_goodbye();
    }

    fn say_goodbye(&mut self) {
        let Some(mut link) = self.link.take() else { return };
        if link.control.is_lost() {
            return;
        }
        // The server takes tails of a session whose verbs are all done; dropping the fabric sees to that. What
        // fails here only leaves the memory to the server's own clean-up.
        let tails = link.ground.allocator.take_tails();
        drop(link.driver);
        let deadline = Deadline::after(self.timeout.min(Duration::from_secs(1)));
        for part in tails.chunks(TAILS_PER_MESSAGE) {
            if link.control.request(&Request::ReturnChunks(part.to_vec()), deadline).is_err() {
                return;
            }
        }
        let _ = link.control.request(&Request::Goodbye, deadline);
    }

    fn check_write(&self) -> Result<(), Error> {
        if self.shared.settings.rights.can_write() { Ok(()) } else { Err(Error::ReadOnly) }
    }

    fn unexpected(&self, response: &Response) -> Error {
        unexpected(&self.shared.endpoint.to_string(), response)
    }

    /// Performs one call: joins if need be, and tries again after a failure that is known to have changed nothing.
    fn perform(
        &mut self,
        kind: Kind,
        attempt: &mut dyn FnMut(&mut Self, &mut Link, Deadline) -> Result<(), Stop>,
    ) -> Result<(), Error> {
        let deadline = Deadline::after(self.timeout);
        loop {
            let mut link = match self.take_link(deadline) {
                Ok(link) => link,
                Err(error) => {
                    self.counters.count(kind, Ending::Error, Tally::default(), 0);
                    return Err(error);
                }
            };
            let result = attempt(self, &mut link, deadline);
            self.link = Some(link);
            let (failure, cas, effect) = match result {
                Ok(()) => return Ok(()),
                Err(Stop::Error(error)) => return Err(error),
                Err(Stop::Timeout(cas)) => {
                    let effect = if cas.is_some() { Effect::Unknown } else { Effect::No };
                    return Err(self.timed_out(deadline, "waiting for the memory node", effect));
                }
                Err(Stop::Failed(failure, cas, effect)) => (failure, cas, effect),
            };
            let effect = match cas.filter(|_| effect == Effect::Unknown) {
                Some(cas) => self.resolve(cas, deadline),
                None => effect,
            };
            let kind_name = self.link.as_ref().map_or(FabricKind::Tcp, |link| link.driver.fabric().kind());
            let refused = matches!(failure.kind, FailureKind::Access(_));
            match effect {
                Effect::Yes => return Ok(()),
                // A refused verb would be refused again; a lost connection may be back.
                Effect::No if !refused && !deadline.has_passed() => {}
                effect => {
                    let endpoint = self.shared.endpoint.to_string();
                    return Err(Error::Failed { endpoint, kind: kind_name, failure, effect });
                }
            }
        }
    }

    /// Runs operations of one kind on the link and counts them.
    fn run<O: Operation>(
        &self,
        kind: Kind,
        link: &mut Link,
        operations: &mut [O],
        deadline: Deadline,
        mut finish: impl FnMut(Finished<'_, O::Output>) -> Result<Ending, Stop>,
    ) -> Result<(), Stop> {
        let mut first_error = None;
        link.driver.run(&mut link.ground, operations, deadline, |finished| {
            let (tally, restarts) = (finished.tally, finished.restarts);
            let ending = finish(finished).unwrap_or_else(|stop| {
                first_error.get_or_insert(stop);
                Ending::Error
            });
            self.counters.count(kind, ending, tally, restarts);
        });
        first_error.map_or(Ok(()), Err)
    }

    /// What became of a CAS whose completion was lost: fence the old queue pair, then read the slot.
    fn resolve(&mut self, cas: PendingCas, deadline: Deadline) -> Effect {
        let session = self.link.as_ref().map(|link| link.welcome.session);
        let Ok(mut link) = self.take_link(deadline) else { return Effect::Unknown };
        let mut effect = Effect::Unknown;
        // Another session, or another life of the server: the old one's fate can't be read from this region.
        if Some(link.welcome.session) == session {
            link.driver.run(&mut link.ground, &mut [Resolve::new(cas)], deadline, |finished| {
                effect = finished.result.unwrap_or(Effect::Unknown);
            });
        }
        self.link = Some(link);
        effect
    }

    fn timed_out(&self, deadline: Deadline, doing: &'static str, effect: Effect) -> Error {
        Error::Timeout {
            endpoint: self.shared.endpoint.to_string(),
            after_ms: deadline.whole_ms(),
            doing,
            effect,
        }
    }

    fn ensure_link(&mut self, deadline: Deadline) -> Result<&mut Link, Error> {
        let link = self.take_link(deadline)?;
        Ok(self.link.insert(link))
    }

    /// The link, joined again if it was lost, by the deadline.
    #[inline]
    fn take_link(&mut self, deadline: Deadline) -> Result<Link, Error> {
        match self.link.take() {
            Some(link) if !link.driver.is_broken() && !link.control.is_lost() => Ok(link),
            link => self.join_again(link, deadline),
        }
    }

    #[cold]
    fn join_again(&mut self, mut link: Option<Link>, deadline: Deadline) -> Result<Link, Error> {
        loop {
            let error = match link.take() {
                Some(old) if !old.control.is_lost() => match self.rejoin(old, deadline) {
                    Ok(link) => return Ok(link),
                    Err((old, error)) => {
                        link = old;
                        error
                    }
                },
                _ => match self.join_new(deadline) {
                    Ok(link) => {
                        self.backoff.reset();
                        self.counters.count_reconnect();
                        return Ok(link);
                    }
                    Err(error) => error,
                },
            };
            let wait = self.backoff.next_wait();
            if !may_pass(&error) || deadline.left() <= wait {
                // The next call goes on from here, and waits as long first.
                return Err(error);
            }
            std::thread::sleep(wait);
        }
    }

    /// Has the server fence the old queue pair, and joins a new one; the session and its chunks survive.
    #[expect(clippy::result_large_err, reason = "once in a failure, and the link goes back whole")]
    fn rejoin(&mut self, mut link: Link, deadline: Deadline) -> Result<Link, (Option<Link>, Error)> {
        let join = match link.control.request(&Request::Rejoin, deadline) {
            Ok(Response::Rejoined(join)) => join,
            Ok(other) => return Err((None, self.unexpected(&other))),
            // The session is gone: begin a new one.
            Err(error) => return Err((None, error)),
        };
        match self.join_data(&join, link.control.peer(), &link.ground.view.superblock, deadline) {
            Ok(driver) => {
                link.driver = driver;
                self.backoff.reset();
                self.counters.count_reconnect();
                Ok(link)
            }
            Err(error) => Err((Some(link), error)),
        }
    }

    /// Opens a new session: control channel, hello, data path, superblock check, directory.
    fn join_new(&self, deadline: Deadline) -> Result<Link, Error> {
        let endpoint = self.shared.endpoint.to_string();
        let settings = &self.shared.settings;
        let mut fabrics = fabrics_to_try(&self.shared.endpoint);
        loop {
            let control = Arc::new(Control::open(&self.shared.endpoint, deadline)?);
            let welcome = match control.request(&self.hello(&fabrics), deadline)? {
                Response::Welcome(welcome) => *welcome,
                other => return Err(unexpected(&endpoint, &other)),
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
                    if fabrics.is_empty() {
                        return Err(error);
                    }
                    tracing::info!(%error, "trying another fabric");
                    let _ = control.request(&Request::Goodbye, deadline);
                    continue;
                }
            };
            let timed_out = || self.timed_out(deadline, "reading the directory", Effect::No);
            check_region(&mut driver, &superblock, &endpoint, deadline)?;
            let view = match self.shared.view.of(&superblock) {
                Some(view) => view,
                None => {
                    let directory = read_directory(&mut driver, &superblock, &endpoint, deadline)?;
                    let view = Arc::new(RegionView { superblock, directory });
                    self.shared.view.set(&view);
                    view
                }
            };
            if deadline.has_passed() {
                return Err(timed_out());
            }
            let lease = Duration::from_millis(welcome.lease_ms.max(1));
            self.shared.pacemaker.watch(&control, lease, welcome.epoch);
            let ground = SessionGround {
                endpoint,
                control: Arc::clone(&control),
                view,
                allocator: Allocator::new(),
                write_ids: WriteIds::new(welcome.session.0),
                counters: Arc::clone(&self.counters),
            };
            return Ok(Link { control, driver, ground, welcome, value_bytes_max });
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
        peer: Option<std::net::IpAddr>,
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

impl Drop for Session {
    fn drop(&mut self) {
        self.say_goodbye();
    }
}

/// Tails in one message: far below the limit of a control frame.
const TAILS_PER_MESSAGE: usize = 1024;

fn check_key(key: &[u8]) -> Result<(), Error> {
    if key.is_empty() || key.len() > KEY_BYTES_MAX {
        return Err(Error::KeyLength { bytes: key.len() });
    }
    Ok(())
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
fn may_pass(error: &Error) -> bool {
    match error {
        Error::Refused { refusal, .. } => {
            matches!(refusal.code, RefusalCode::SessionLimit | RefusalCode::Draining | RefusalCode::Fenced)
        }
        Error::Unreachable { .. } | Error::Connect { .. } | Error::Failed { .. } => true,
        _ => false,
    }
}

fn found_value<'r>(found: &Found, replies: &'r [Reply]) -> &'r [u8] {
    match &replies[found.reply] {
        Reply::Read(buffer) => &buffer.as_slice()[found.value.clone()],
        other => unreachable!("a value is in a READ's buffer, not in {other:?}"),
    }
}

fn unexpected(endpoint: &str, response: &Response) -> Error {
    let name = format!("{response:?}");
    let name = name.split(['(', ' ', '{']).next().unwrap_or_default();
    Error::Protocol { endpoint: endpoint.to_owned(), reason: format!("unexpected response {name}") }
}
