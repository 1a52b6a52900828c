//! Programs of this workspace as processes of their own.
//!
//! Always true: a process that a test started is dead when its [`Process`] is dropped.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use sidestep_client::{Client, FabricKind};

/// A kvserver in its own process.
#[derive(Debug)]
pub struct Process {
    child: Child,
    fabric: FabricKind,
    endpoint: String,
    _directory: tempfile::TempDir,
}

/// Where the workspace's program `name` was built: beside the tests, or where `SIDESTEP_BIN_DIR` says.
///
/// # Panics
/// If it wasn't built.
pub fn binary(name: &str) -> PathBuf {
    let directory = std::env::var_os("SIDESTEP_BIN_DIR").map_or_else(
        || {
            let own = std::env::current_exe().expect("a program knows where it is");
            own.parent().and_then(|deps| deps.parent()).expect("target/PROFILE/deps").to_owned()
        },
        PathBuf::from,
    );
    let path = directory.join(name);
    assert!(path.exists(), "{} is not built: cargo build --workspace", path.display());
    path
}

/// Waits until `done` holds; panics with `what` if it doesn't within a generous time.
///
/// # Panics
/// If it takes too long.
#[track_caller]
pub fn until(what: &str, mut done: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !done() {
        assert!(Instant::now() < deadline, "waited in vain until {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Whether no thread of the process `id`, which was sent SIGSTOP, runs any more.
///
/// # Panics
/// If it is gone.
pub fn is_stopped(id: u32) -> bool {
    let mut tasks = std::fs::read_dir(format!("/proc/{id}/task")).expect("its threads");
    tasks.all(|task| {
        let stat = task.and_then(|task| std::fs::read_to_string(task.path().join("stat")));
        // The state comes behind the name, which is in brackets and may hold anything.
        stat.is_ok_and(|stat| stat.rsplit(") ").next().is_some_and(|rest| rest.starts_with('T')))
    })
}

impl Process {
    /// Starts `kvserver` for `fabric` with `arguments` on a free port (or on `port`) and waits until it is ready.
    ///
    /// # Panics
    /// If it does not become ready.
    pub fn kvserver(fabric: FabricKind, port: u16, arguments: &[&str]) -> Self {
        Self::start(fabric, port, &[&["--log-level", "warn"], arguments].concat(), Stdio::inherit())
    }

    /// The same, but what it logs goes into a file, behind what is there.
    ///
    /// # Panics
    /// If it does not become ready.
    pub fn logging_kvserver(fabric: FabricKind, port: u16, arguments: &[&str], log: &Path) -> Self {
        let file = File::options().append(true).create(true).open(log).expect("the server's log");
        Self::start(fabric, port, arguments, file.into())
    }

    fn start(fabric: FabricKind, port: u16, arguments: &[&str], log: Stdio) -> Self {
        let host = match fabric {
            FabricKind::Verbs => std::env::var("SIDESTEP_RDMA_ADDR").expect("the RDMA device's address"),
            _ => "127.0.0.1".to_owned(),
        };
        let directory = tempfile::tempdir().expect("a temporary directory");
        let mut child = Command::new(binary("kvserver"))
            .args(["--listen", &format!("{host}:{port}"), "--admin-listen", "off"])
            .args(["--transport", fabric.name()])
            .arg("--socket")
            .arg(directory.path().join("node.sock"))
            .args(arguments)
            .stdout(Stdio::piped())
            .stderr(log)
            .spawn()
            .expect("kvserver starts");
        let mut lines = BufReader::new(child.stdout.take().expect("it was asked for")).lines();
        let endpoint = lines.find_map(|line| {
            let line = line.ok()?;
            line.split_whitespace().find(|word| word.starts_with("sidestep://")).map(str::to_owned)
        });
        let endpoint = endpoint.unwrap_or_else(|| panic!("kvserver ended: {:?}", child.wait()));
        // What it prints later must not block it.
        std::thread::spawn(move || lines.for_each(drop));
        Self { child, fabric, endpoint, _directory: directory }
    }

    /// A client of it, whose calls have `timeout`.
    ///
    /// # Panics
    /// If it can't connect.
    pub fn client(&self, timeout: Duration) -> Client {
        let builder = Client::builder(&self.endpoint).expect("the server's endpoint is one");
        // Connecting is never what a test is about, and an emulated machine's clock may jump.
        let client =
            builder.fabric(self.fabric).timeout(timeout).connect_timeout(Duration::from_secs(600)).connect();
        client.unwrap_or_else(|error| panic!("the client does not connect: {error}"))
    }

    /// Where it listens.
    pub fn endpoint(&self) -> &str {
        &self.endpoint
    }

    /// The port of the endpoint.
    ///
    /// # Panics
    /// If it has none.
    pub fn port(&self) -> u16 {
        let port = self.endpoint.rsplit(':').next().and_then(|port| port.parse().ok());
        port.expect("an endpoint ends with its port")
    }

    fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    /// Sends a signal.
    ///
    /// # Panics
    /// If the process is gone.
    pub fn signal(&self, signal: Signal) {
        kill_process(self.pid(), signal).expect("the process is there");
    }

    /// Ends it with SIGKILL, and waits for its end.
    ///
    /// # Panics
    /// If it can't be killed.
    pub fn kill(mut self) {
        self.child.kill().expect("it can be killed");
        self.child.wait().expect("it ends");
    }

    /// Waits for its end by itself; its exit code.
    ///
    /// # Panics
    /// If it can't be waited for.
    pub fn wait(mut self) -> Option<i32> {
        self.child.wait().expect("it ends").code()
    }

    /// Stops it with SIGSTOP, and waits until none of its threads runs any more.
    ///
    /// # Panics
    /// If it is gone.
    pub fn stop(&self) {
        self.signal(Signal::STOP);
        until("every thread has stopped", || is_stopped(self.child.id()));
    }

    /// CPU time so far, user and kernel, of all its threads, those that have ended too.
    ///
    /// # Panics
    /// If the kernel doesn't tell.
    pub fn cpu(&self) -> Duration {
        let mut clock = 0;
        // SAFETY: the pointer is to a valid clock id that outlives the call.
        let result = unsafe { libc::clock_getcpuclockid(self.child.id() as libc::pid_t, &raw mut clock) };
        assert_eq!(result, 0, "no CPU clock of the process");
        let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: the pointer is to a valid timespec that outlives the call.
        let result = unsafe { libc::clock_gettime(clock, &raw mut time) };
        assert_eq!(result, 0, "the process's CPU clock can't be read");
        Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // A stopped process can be killed too; both fail only if it is gone already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
