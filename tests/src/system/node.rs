//! A memory node in this process.

use std::net::SocketAddr;

use sidestep_client::{Client, ClientBuilder, FabricKind};
use sidestep_server::config::{AdminListen, ByteSize, CommitsChoice, Transport};
use sidestep_server::{Config, Running, Server};

/// What a test wants of its node.
#[derive(Clone, Debug)]
pub struct NodeOptions {
    /// Mebibytes of the region.
    pub memory_mib: u64,
    /// Further settings.
    pub configure: fn(&mut Config),
}

impl Default for NodeOptions {
    fn default() -> Self {
        Self { memory_mib: 64, configure: |_| {} }
    }
}

/// A running node that serves one fabric.
#[derive(Debug)]
pub struct Node {
    running: Running,
    fabric: FabricKind,
    _directory: tempfile::TempDir,
}

impl Node {
    /// Starts one that serves `fabric`.
    ///
    /// # Panics
    /// If it can't be started: then the test has nothing to say.
    pub fn start(fabric: FabricKind, options: &NodeOptions) -> Self {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let host = match fabric {
            FabricKind::Verbs => std::env::var("SIDESTEP_RDMA_ADDR").expect("the RDMA device's address"),
            _ => "127.0.0.1".to_owned(),
        };
        let mut config = Config {
            listen: SocketAddr::new(host.parse().expect("an address"), 0),
            memory: ByteSize(options.memory_mib << 20),
            transport: match fabric {
                FabricKind::Verbs => Transport::Verbs,
                FabricKind::Tcp => Transport::Tcp,
                FabricKind::Shm | FabricKind::Sim => Transport::Shm,
            },
            commits: commits(fabric),
            admin_listen: AdminListen::At(SocketAddr::from(([127, 0, 0, 1], 0))),
            socket: Some(directory.path().join("node.sock")),
            threads: 2,
            drain_ms: 200,
            ..Config::default()
        };
        (options.configure)(&mut config);
        let running =
            Server::start(config).unwrap_or_else(|error| panic!("the node does not start: {error}"));
        Self { running, fabric, _directory: directory }
    }

    /// The fabric that it serves.
    pub const fn fabric(&self) -> FabricKind {
        self.fabric
    }

    /// The server itself.
    pub const fn running(&self) -> &Running {
        &self.running
    }

    /// A client to be configured.
    ///
    /// # Panics
    /// If the server's own endpoint is none.
    pub fn builder(&self) -> ClientBuilder {
        let builder = Client::builder(self.running.endpoint()).expect("the server's endpoint is one");
        builder.fabric(self.fabric).timeout(patience()).connect_timeout(patience())
    }

    /// A client.
    ///
    /// # Panics
    /// If it can't connect.
    pub fn client(&self) -> Client {
        self.builder().connect().unwrap_or_else(|error| panic!("the client does not connect: {error}"))
    }
}

/// Who executes commits over verbs: `SIDESTEP_TEST_COMMITS`, the server's own choice if not set.
fn commits(fabric: FabricKind) -> CommitsChoice {
    match std::env::var("SIDESTEP_TEST_COMMITS").as_deref() {
        Err(_) => CommitsChoice::Auto,
        Ok(_) if fabric != FabricKind::Verbs => CommitsChoice::Auto,
        Ok("two-sided") => CommitsChoice::TwoSided,
        Ok("atomics") => CommitsChoice::Atomics,
        Ok(other) => panic!("SIDESTEP_TEST_COMMITS is `{other}`"),
    }
}

/// How long a call may take before a test gives up: emulated machines are slow.
fn patience() -> std::time::Duration {
    std::time::Duration::from_secs(30)
}
