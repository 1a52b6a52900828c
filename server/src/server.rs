//! A server in this process: what `kvserver` runs, and what tests start.
//!
//! Always true: when [`Server::start`] returns, the region is whole and clients are served; if it fails, nothing
//! is left behind. Ports and the socket are taken before memory is, so a server that is started twice fails at once
//! and not after it took gigabytes.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use sidestep_common::fabric::{Commits, FabricKind};
use sidestep_common::layout::{Geometry, GeometryError};
use sidestep_common::memory::{AccessError, HugePages, Mapping, MappingError, MappingOptions};
use sidestep_common::wire::ServerStatistics;
use tokio::runtime::{Handle, Runtime};
use tokio::sync::Semaphore;

use crate::admin::serve as serve_admin;
use crate::config::{AdminListen, Config, ConfigError, HugePageChoice, Transport};
use crate::control::socket::{self, SocketError, SocketFile};
use crate::control::{self, HANDSHAKES_MAX, Listener};
use crate::endpoint::{EndpointError, endpoint};
use crate::housekeeping::Housekeeping;
use crate::janitor::Janitor;
use crate::keep::{KeepStartError, Kept, KeptChunk};
use crate::node::{Node, Serving, State};
use crate::region::Region;
use crate::targets::{self, TargetError, Targets};
use crate::transport::{Plan, PlanError};

/// The server could not start. Nothing is left behind.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The configuration is wrong.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// An address can't be listened at.
    #[error("cannot listen at {address} ({purpose}): {source}")]
    Listen {
        /// Where.
        address: SocketAddr,
        /// What for.
        purpose: &'static str,
        /// Why not.
        source: io::Error,
    },
    /// The Unix socket can't be had.
    #[error(transparent)]
    Socket(#[from] SocketError),
    /// Nothing can be published.
    #[error(transparent)]
    Endpoint(#[from] EndpointError),
    /// The wanted fabrics can't be served.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// A fabric failed to start.
    #[error(transparent)]
    Target(#[from] TargetError),
    /// A kept region can't be had.
    #[error(transparent)]
    Keep(#[from] KeepStartError),
    /// The memory can't be had.
    #[error("region of {bytes} bytes: {source}")]
    Memory {
        /// As asked.
        bytes: u64,
        /// Why not.
        source: MappingError,
    },
    /// The memory that was had is no region's size.
    #[error(transparent)]
    Geometry(#[from] GeometryError),
    /// The memory that was had is too short.
    #[error(transparent)]
    Access(#[from] AccessError),
    /// Threads can't be had.
    #[error("cannot start threads: {0}")]
    Threads(io::Error),
}

/// What still runs after everything was told to end is left behind after this long.
const STOP_PATIENCE: Duration = Duration::from_secs(1);

/// Starts servers.
#[derive(Debug)]
pub struct Server;

/// A server that serves, until it is shut down or dropped (then without waiting for anybody).
#[derive(Debug)]
pub struct Running {
    node: Arc<Node>,
    socket: Option<SocketFile>,
    housekeeping: Option<Housekeeping>,
    janitor: Option<Janitor>,
    /// Ends when no acceptor is left.
    acceptors_done: Option<Receiver<()>>,
    runtime: Option<Runtime>,
    /// Keeps others out of the region's directory until nothing runs any more.
    kept: Option<Kept>,
}

impl Server {
    /// Starts a server and returns when it is ready.
    ///
    /// # Errors
    /// [`StartError`] says what couldn't be had.
    pub fn start(config: Config) -> Result<Running, StartError> {
        config.check()?;
        let plan = Plan::choose(config.transport, &config.device, &targets::devices(config.commits))?;
        let control = listen(config.listen, "for clients")?;
        let control_address = control.local_addr().map_err(StartError::Threads)?;
        let admin = match config.admin_listen {
            AdminListen::Off => None,
            AdminListen::At(address) => Some(listen(address, "admin")?),
        };
        let admin_address = admin.as_ref().and_then(|listener| listener.local_addr().ok());
        let endpoint = endpoint(control_address, config.advertise.as_deref())?;
        let runtime = runtime().map_err(StartError::Threads)?;
        let node = Arc::new(Node::new(config, endpoint, control_address, admin_address));
        // From here on `running` ends whatever has started.
        let mut running = Running {
            node: Arc::clone(&node),
            socket: None,
            housekeeping: None,
            janitor: None,
            acceptors_done: None,
            runtime: Some(runtime),
            kept: None,
        };
        let handle = running.handle();
        if let Some(listener) = admin {
            let listener = in_runtime(&handle, || tokio::net::TcpListener::from_std(listener))?;
            handle.spawn(serve_admin(Arc::clone(&node), listener));
        }
        let unix = running.make_region(plan)?;
        running.housekeeping =
            Some(Housekeeping::start(Arc::clone(&node), handle.clone()).map_err(StartError::Threads)?);
        running.janitor = Some(Janitor::start(Arc::clone(&node)).map_err(StartError::Threads)?);
        let handshakes = Arc::new(Semaphore::new(HANDSHAKES_MAX));
        let mut listeners =
            vec![Listener::Tcp(in_runtime(&handle, || tokio::net::TcpListener::from_std(control))?)];
        if let Some(unix) = unix {
            listeners.push(Listener::Unix(in_runtime(&handle, || tokio::net::UnixListener::from_std(unix))?));
        }
        let (done, acceptors_done) = channel();
        for listener in listeners {
            let (node, handshakes) = (Arc::clone(&node), Arc::clone(&handshakes));
            handle.spawn(control::accept(node, listener, handshakes, done.clone()));
        }
        running.acceptors_done = Some(acceptors_done);
        Ok(running)
    }
}

impl Running {
    /// Makes the region and starts the fabrics; returns the Unix socket's listener if `shm` is served.
    fn make_region(&mut self, plan: Plan) -> Result<Option<std::os::unix::net::UnixListener>, StartError> {
        let config = self.node.config.clone();
        let bytes = config.region_bytes();
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        let options = MappingOptions {
            bytes,
            huge_pages: huge_pages(config.hugepages),
            threads,
            name: format!("sidestep-{}", self.node.control.port()),
        };
        let mut kept = config.keep.as_deref().map(|path| Kept::open(path, bytes, threads)).transpose()?;
        let (plan, mapping) = match &kept {
            Some(kept) => (plan.of_kept_region(), Arc::clone(kept.mapping())),
            None => {
                let mapping = Mapping::create(&options);
                (plan, Arc::new(mapping.map_err(|source| StartError::Memory { bytes, source })?))
            }
        };
        let (plan, targets, listener) = self.start_targets(plan, &mapping)?;
        let geometry = Geometry::for_region(mapping.bytes())?;
        let (region, chunks) = match kept.as_ref().filter(|kept| !kept.is_new()) {
            Some(kept) => kept.take_over(plan.domain(), config.grace_ms)?,
            None => {
                let (words, domain) = (mapping.words(), plan.domain());
                let (grace_ms, segments) = (config.grace_ms, config.initial_segments);
                (Region::format(words, geometry, domain, grace_ms, segments, threads)?, Vec::new())
            }
        };
        if let Some(kept) = &mut kept {
            kept.finish().map_err(KeepStartError::from)?;
        }
        self.kept = kept;
        if let Some(tcp) = &targets.tcp {
            tcp.advertise(None, self.node.control.port());
        }
        let serving = Serving::new(region, plan, targets, mapping, &config);
        for KeptChunk { offset, class, versions } in chunks {
            let is_free = serving.pool().take_over(offset, class, versions);
            assert!(is_free, "chunks of a kept region were checked not to lap over each other: {offset:#x}");
        }
        self.node.serve(serving);
        Ok(listener)
    }

    /// Starts the plan's fabrics. A card that `auto` found and that then can't be used is not the end: the log, and
    /// `/version`, say why there is none.
    fn start_targets(
        &mut self,
        plan: Plan,
        mapping: &Arc<Mapping>,
    ) -> Result<(Plan, Targets, Option<std::os::unix::net::UnixListener>), StartError> {
        let mut plan = plan;
        if plan.serves(FabricKind::Verbs) {
            match Targets::start(&plan, mapping, &self.node.config, None) {
                Ok(targets) => {
                    let commits = targets.commits().unwrap_or(Commits::Atomics);
                    return Ok((plan.with_commits(commits), targets, None));
                }
                Err(error) if self.node.config.transport == Transport::Auto => {
                    tracing::warn!(%error, "there is an RDMA device, but it can't be used; serving shm and tcp");
                    plan = Plan::without_verbs(&error.to_string());
                    if self.node.config.keep.is_some() {
                        plan = plan.of_kept_region();
                    }
                }
                Err(error) => return Err(error.into()),
            }
        }
        let mut listener = None;
        if plan.serves(FabricKind::Shm) {
            let path = self.node.config.socket.clone();
            let path = path.unwrap_or_else(|| socket::default_path(self.node.control.port()));
            let (unix, file) = socket::listen(&path)?;
            unix.set_nonblocking(true).map_err(StartError::Threads)?;
            listener = Some(unix);
            self.socket = Some(file);
        }
        let targets = Targets::start(&plan, mapping, &self.node.config, self.socket())?;
        Ok((plan, targets, listener))
    }

    /// What clients connect to: `sidestep://HOST:PORT`.
    pub fn endpoint(&self) -> &str {
        &self.node.endpoint
    }

    /// Where it listens for clients; the real port.
    pub fn control(&self) -> SocketAddr {
        self.node.control
    }

    /// Where its admin endpoint listens.
    pub fn admin(&self) -> Option<SocketAddr> {
        self.node.admin
    }

    /// Its Unix socket, if `shm` is served.
    pub fn socket(&self) -> Option<&Path> {
        self.socket.as_ref().map(SocketFile::path)
    }

    /// The figures, as the control channel gives them.
    pub fn statistics(&self) -> ServerStatistics {
        self.node.statistics()
    }

    /// The node, for whoever must look inside.
    pub fn node(&self) -> &Arc<Node> {
        &self.node
    }

    /// To run things on the server's threads.
    ///
    /// # Panics
    /// Never: there is a runtime until the end.
    pub fn handle(&self) -> Handle {
        match &self.runtime {
            Some(runtime) => runtime.handle().clone(),
            None => unreachable!("the runtime is there until `stop`"),
        }
    }

    /// Shuts down in order: no new sessions, those that are there are told to leave and have the configured time
    /// for it; then all are fenced. Returns how many had to be.
    pub fn shutdown(mut self) -> usize {
        self.node.advance_state(State::Draining);
        let patience = Duration::from_millis(self.node.config.drain_ms);
        let left = self.node.wait_until_empty(patience);
        self.stop();
        left
    }

    /// Ends everything now.
    fn stop(&mut self) {
        self.node.advance_state(State::Draining);
        // Fences first: when their connections close clients must not be able to do anything any more.
        self.node.end_all();
        self.node.advance_state(State::Stopped);
        self.housekeeping = None;
        self.janitor = None;
        if let Some(acceptors_done) = self.acceptors_done.take() {
            // They end by themselves; the limit is for a runtime that is stuck.
            let _ = acceptors_done.recv_timeout(STOP_PATIENCE);
        }
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_timeout(STOP_PATIENCE);
        }
        self.socket = None;
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stop();
    }
}

fn listen(address: SocketAddr, purpose: &'static str) -> Result<TcpListener, StartError> {
    let listener = TcpListener::bind(address).and_then(|listener| {
        listener.set_nonblocking(true)?;
        Ok(listener)
    });
    listener.map_err(|source| StartError::Listen { address, purpose, source })
}

/// One thread: the control channel is rare, and what blocks has threads of its own that go when idle.
fn runtime() -> io::Result<Runtime> {
    tokio::runtime::Builder::new_multi_thread().worker_threads(1).thread_name("control").enable_all().build()
}

fn in_runtime<T>(handle: &Handle, make: impl FnOnce() -> io::Result<T>) -> Result<T, StartError> {
    let _entered = handle.enter();
    make().map_err(StartError::Threads)
}

const fn huge_pages(choice: HugePageChoice) -> HugePages {
    match choice {
        HugePageChoice::Auto => HugePages::Auto,
        HugePageChoice::TwoMebibytes => HugePages::Size2m,
        HugePageChoice::OneGibibyte => HugePages::Size1g,
        HugePageChoice::Off => HugePages::Off,
    }
}
