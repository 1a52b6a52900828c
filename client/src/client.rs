//! The client: one object for a whole program.
//!
//! Always true: threads never share a session; each thread that calls gets one of its own (kept for it, and
//! reused by a later thread once it has ended), so there is no lock on the path of an operation.

use std::cell::RefCell;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use sidestep_common::fabric::{DeviceChoice, FabricKind, Rights};
use sidestep_common::wire::ServerStatistics;
use thread_local::ThreadLocal;

use crate::endpoint::Endpoint;
use crate::error::Error;
use crate::link::Shared;
use crate::session::Session;
use crate::settings::Settings;
use crate::statistics::{AllCounters, Statistics};
use crate::trace::Trace;

struct Inner {
    shared: Arc<Shared>,
    sessions: ThreadLocal<RefCell<Session>>,
    counters: Mutex<AllCounters>,
}

/// A client of one memory node: `Send`, `Sync`, cheap to clone.
///
/// ```no_run
/// use sidestep_client::Client;
///
/// let client = Client::connect("sidestep://127.0.0.1:7480")?;
/// client.put(b"greeting", b"hello")?;
/// assert_eq!(client.get(b"greeting")?.as_deref(), Some(&b"hello"[..]));
/// assert!(client.delete(b"greeting")?);
/// # Ok::<(), sidestep_client::Error>(())
/// ```
#[derive(Clone)]
pub struct Client {
    inner: Arc<Inner>,
    timeout: Duration,
}

impl Client {
    /// Connects to `endpoint`, such as `sidestep://host:7480`, with default settings.
    ///
    /// # Errors
    /// [`Error`] if the server can't be reached or refuses.
    pub fn connect(endpoint: &str) -> Result<Self, Error> {
        Self::builder(endpoint)?.connect()
    }

    /// A client to be configured first.
    ///
    /// # Errors
    /// If `endpoint` is none.
    pub fn builder(endpoint: &str) -> Result<ClientBuilder, Error> {
        Ok(ClientBuilder { endpoint: endpoint.parse()?, settings: Settings::default() })
    }

    /// The same client with another time for each call.
    #[must_use]
    pub fn with_timeout(&self, timeout: Duration) -> Self {
        Self { inner: Arc::clone(&self.inner), timeout }
    }

    /// The value of `key` (1 to 1024 bytes of anything), or `None` if there is none.
    ///
    /// # Errors
    /// [`Error`]; see there.
    pub fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, Error> {
        self.with_session(|session| session.get(key))
    }

    /// Puts the value of `key` into `value`, replacing what is in there; `false` if there is none.
    ///
    /// # Errors
    /// [`Error`]; see there.
    pub fn get_into(&self, key: &[u8], value: &mut Vec<u8>) -> Result<bool, Error> {
        self.with_session(|session| session.get_into(key, value))
    }

    /// The values of `keys`, in their order, with the round trips of one get.
    ///
    /// # Errors
    /// The first [`Error`] of any of them; see there.
    pub fn get_many<K: AsRef<[u8]>>(&self, keys: &[K]) -> Result<Vec<Option<Vec<u8>>>, Error> {
        self.with_session(|session| session.get_many(keys))
    }

    /// Stores `value` (up to 1 MiB) at `key`, whatever was there.
    ///
    /// # Errors
    /// [`Error`]; [`Error::effect`] says whether it may have happened.
    pub fn put(&self, key: &[u8], value: &[u8]) -> Result<(), Error> {
        self.with_session(|session| session.put(key, value))
    }

    /// Removes `key`; says whether it was there.
    ///
    /// # Errors
    /// [`Error`]; [`Error::effect`] says whether it may have happened.
    pub fn delete(&self, key: &[u8]) -> Result<bool, Error> {
        self.with_session(|session| session.delete(key))
    }

    /// Runs `call` on this thread's session and writes down every verb of it.
    ///
    /// # Errors
    /// Those of `call`, or of opening the session.
    pub fn explain<T>(
        &self,
        call: impl FnOnce(&mut Session) -> Result<T, Error>,
    ) -> (Result<T, Error>, Trace) {
        match self.with_session(|session| Ok(session.explain(call))) {
            Ok(explained) => explained,
            Err(error) => (Err(error), Trace::default()),
        }
    }

    /// Asks the server to answer; how long that took.
    ///
    /// # Errors
    /// [`Error`] if it does not.
    pub fn ping(&self) -> Result<Duration, Error> {
        self.with_session(Session::ping)
    }

    /// The server's figures.
    ///
    /// # Errors
    /// [`Error`] if it gives none.
    pub fn server_statistics(&self) -> Result<ServerStatistics, Error> {
        self.with_session(Session::server_statistics)
    }

    /// What this client did, all threads together.
    pub fn statistics(&self) -> Statistics {
        self.inner.counters.lock().unwrap_or_else(PoisonError::into_inner).sum()
    }

    /// Over which fabric this thread's session runs, with a line for people.
    ///
    /// # Errors
    /// [`Error`] if the session can't be joined.
    pub fn fabric(&self) -> Result<(FabricKind, String), Error> {
        self.with_session(Session::fabric)
    }

    /// A session of the caller's own, for people who want no sharing at all. Its figures count here too.
    ///
    /// # Errors
    /// [`Error`] if the server can't be reached or refuses.
    pub fn session(&self) -> Result<Session, Error> {
        let mut session = self.inner.open()?;
        session.set_timeout(self.timeout);
        Ok(session)
    }

    /// Runs `call` on this thread's session. At a thread's first call the session is opened, which has its own time:
    /// [`ClientBuilder::connect_timeout`].
    ///
    /// # Errors
    /// Those of `call`, or of opening the session.
    ///
    /// # Panics
    /// If `call` calls this client: the session is taken. It has the session for that.
    pub fn with_session<T>(&self, call: impl FnOnce(&mut Session) -> Result<T, Error>) -> Result<T, Error> {
        let session = self.inner.sessions.get_or_try(|| self.inner.open().map(RefCell::new))?;
        let mut session = session.borrow_mut();
        session.set_timeout(self.timeout);
        call(&mut session)
    }
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Client({})", self.inner.shared.endpoint)
    }
}

impl Inner {
    fn open(&self) -> Result<Session, Error> {
        let counters = self.counters.lock().unwrap_or_else(PoisonError::into_inner).add();
        Session::open(Arc::clone(&self.shared), counters)
    }
}

/// Settings for a client, from [`Client::builder`].
#[derive(Clone, Debug)]
pub struct ClientBuilder {
    endpoint: Endpoint,
    settings: Settings,
}

impl ClientBuilder {
    /// Use this fabric only.
    #[must_use]
    pub fn fabric(mut self, fabric: FabricKind) -> Self {
        self.endpoint.fabric = Some(fabric);
        self
    }

    /// The time for opening a session, 10 s if not set.
    #[must_use]
    pub const fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.settings.connect_timeout = timeout;
        self
    }

    /// The time for each call, 5 s if not set.
    #[must_use]
    pub const fn timeout(mut self, timeout: Duration) -> Self {
        self.settings.operation_timeout = timeout;
        self
    }

    /// Only read. The memory node's card (or the mapping) keeps writes out.
    #[must_use]
    pub const fn read_only(mut self) -> Self {
        self.settings.rights = Rights::ReadOnly;
        self
    }

    /// The secret that the server asks for.
    #[must_use]
    pub fn token(mut self, token: impl Into<String>) -> Self {
        self.settings.token = Some(token.into());
        self
    }

    /// The client's name in the server's logs; the program's name if not set.
    #[must_use]
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.settings.name = name.into();
        self
    }

    /// The RDMA device, port and GID to use; found from addresses if not set.
    #[must_use]
    pub fn device(mut self, device: DeviceChoice) -> Self {
        self.settings.device = device;
        self
    }

    /// Fail to connect unless values of `bytes` can be stored.
    #[must_use]
    pub const fn require_value_bytes(mut self, bytes: usize) -> Self {
        self.settings.value_bytes_wanted = Some(bytes);
        self
    }

    /// Verbs that a session may have in flight, 256 if not set. Below 64 an operation may not fit: one step has up to
    /// a READ for each slot of a bucket.
    #[must_use]
    pub const fn verbs_in_flight_max(mut self, verbs: usize) -> Self {
        self.settings.verbs_in_flight_max = verbs;
        self
    }

    /// Local buffers of a session, 32 MiB at the most if not set.
    #[must_use]
    pub const fn buffer_limit_bytes(mut self, bytes: usize) -> Self {
        self.settings.buffer_limit_bytes = bytes;
        self
    }

    /// Go on though the superblock in the region is not the one that the server described, and read only: for those who
    /// look at damage, as [`crate::fsck`] does.
    #[must_use]
    pub const fn damaged_region(mut self) -> Self {
        self.settings.check_region = false;
        self.read_only()
    }

    /// Connects.
    ///
    /// # Errors
    /// [`Error`] if the server can't be reached or refuses.
    pub fn connect(self) -> Result<Client, Error> {
        let timeout = self.settings.operation_timeout;
        let shared = Arc::new(Shared::new(self.endpoint, self.settings)?);
        let inner = Inner { shared, sessions: ThreadLocal::new(), counters: Mutex::default() };
        let client = Client { inner: Arc::new(inner), timeout };
        client.with_session(|_| Ok(()))?;
        Ok(client)
    }
}
