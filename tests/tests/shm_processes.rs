//! The `shm` fabric between processes: clients that come early, leave, crash or are killed, in every state, leave the
//! server's region alone, and the server knows when one can no longer touch it.
//!
//! The clients are this test binary run again, with `SIDESTEP_TEST_CHILD` naming what to do.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use sidestep_common::fabric::shm::ShmTarget;
use sidestep_common::fabric::{
    ConnectOptions, DeviceChoice, Join, Rights, SessionId, Target, Ticket, connect,
};
use sidestep_common::layout::Offset;
use sidestep_common::memory::{HugePages, Mapping, MappingOptions};
use sidestep_common::wire::Preamble;
use sidestep_tests::conformance::{DEADLINE, Driver, add, conformance_mapping};
use sidestep_tests::scaled;

const CHILD: &str = "SIDESTEP_TEST_CHILD";

struct Node {
    socket: PathBuf,
    target: Arc<ShmTarget>,
    mapping: Arc<Mapping>,
}

impl Node {
    /// A memory node in this process; its acceptor thread lives as long as the process.
    fn start(name: &str) -> Self {
        let socket = std::env::temp_dir().join(format!("sidestep-{name}-{}.sock", std::process::id()));
        let _ = std::fs::remove_file(&socket);
        let mapping = conformance_mapping();
        let target = Arc::new(ShmTarget::new(Arc::clone(&mapping), socket.to_str().expect("a plain path")));
        let listener = UnixListener::bind(&socket).expect("a socket");
        let acceptor = Arc::clone(&target);
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream: UnixStream = stream.expect("a connection");
                if stream.read_exact(&mut [0; Preamble::BYTES]).is_ok() {
                    let _ = acceptor.attach(stream);
                }
            }
        });
        Self { socket, target, mapping }
    }

    /// Starts a client process in `state` and waits until it says that it is there.
    fn client(&self, session: SessionId, state: &str) -> (Child, BufReader<std::process::ChildStdout>) {
        let Join::Shm { socket, ticket } = self.target.admit(session, Rights::ReadWrite).expect("a ticket")
        else {
            panic!("not shm")
        };
        let ticket = ticket.0.map(|byte| format!("{byte:02x}")).concat();
        let mut child = Command::new(std::env::current_exe().expect("this binary"))
            .args(["--exact", "child", "--nocapture"])
            .env(CHILD, format!("{state} {ticket} {socket}"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("a process");
        let mut lines = BufReader::new(child.stdout.take().expect("piped"));
        let mut line = String::new();
        while !line.contains("child is there") {
            line.clear();
            assert_ne!(
                lines.read_line(&mut line).expect("the child's output"),
                0,
                "the child in {state} failed"
            );
        }
        (child, lines)
    }

    /// The region has its length, its last word works, and a fresh session can use it.
    fn assert_well(&self) {
        let last = Offset(self.mapping.bytes() - 8);
        let before = self.mapping.words().fetch_add(last, 1).expect("the last word");
        let join = self.target.admit(SessionId(99), Rights::ReadWrite).expect("a ticket");
        let mut driver = Driver::new(connect(&join, &options()).expect("a fresh session"));
        assert_eq!(driver.atomic(add(last.0, 1)), before + 1);
    }

    /// Waits for the fence to hold, which it does once the process is dead.
    fn assert_fenced(&self, session: SessionId) {
        let deadline = Instant::now() + DEADLINE;
        while !self.target.fence(session) {
            assert!(Instant::now() < deadline, "its process is dead, but the session is not fenced");
            std::thread::yield_now();
        }
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.socket);
    }
}

fn options() -> ConnectOptions {
    ConnectOptions {
        peer: None,
        region_bytes: 8 << 20,
        rights: Rights::ReadWrite,
        verbs_in_flight_max: 16,
        buffer_limit_bytes: 1 << 20,
        device: DeviceChoice::default(),
        deadline: Instant::now() + DEADLINE,
    }
}

/// Not a test of its own: what the client processes do. Does nothing unless it was started as one.
#[test]
fn child() {
    let Ok(orders) = std::env::var(CHILD) else { return };
    let [state, ticket, socket] = orders.splitn(3, ' ').collect::<Vec<_>>()[..] else { panic!("{orders}") };
    let byte = |at: usize| u8::from_str_radix(&ticket[2 * at..2 * at + 2], 16).expect("hexadecimal");
    let ticket = Ticket(std::array::from_fn(byte));
    let join = Join::Shm { socket: socket.into(), ticket };
    let there = || {
        println!("\nchild is there");
        std::io::stdout().flush().expect("a parent");
    };
    // Until the parent closes our input or kills us.
    let linger = || std::io::stdin().read(&mut [0; 1]);
    match state {
        "connected" => {
            let _stream = UnixStream::connect(socket).expect("the socket");
            there();
            let _ = linger();
        }
        "joined" => {
            let _fabric = connect(&join, &options()).expect("a session");
            there();
            let _ = linger();
        }
        "exits" => {
            let _fabric = connect(&join, &options()).expect("a session");
            there();
            let _ = linger();
            // No destructor runs.
            std::process::exit(0);
        }
        "leaves" => {
            drop(connect(&join, &options()).expect("a session"));
            there();
            let _ = linger();
        }
        "busy" => {
            let mut driver = Driver::new(connect(&join, &options()).expect("a session"));
            driver.atomic(add(0, 1));
            there();
            loop {
                driver.atomic(add(0, 1));
            }
        }
        other => panic!("no such state: {other}"),
    }
}

/// Clients in every state are killed, or exit without tidying up: the region's length and the server are as before, and the
/// session counts as fenced once the process is dead, and (if it had the region mapped) not before.
#[test]
fn a_client_that_dies_leaves_the_server_alone() {
    let node = Node::start("dies");
    for (number, state) in ["connected", "joined", "busy", "leaves", "exits"].into_iter().enumerate() {
        let session = SessionId(1 + number as u32);
        let (mut child, _lines) = node.client(session, state);
        let mapped = matches!(state, "joined" | "busy" | "exits");
        if mapped {
            assert!(!node.target.fence(session), "{state}: the process lives and has the region mapped");
        }
        if state == "exits" {
            drop(child.stdin.take());
        } else {
            child.kill().expect("our own child");
        }
        let status = child.wait().expect("our own child");
        assert_eq!(status.success(), state == "exits", "{state}");
        node.assert_fenced(session);
        node.assert_well();
    }
    assert!(node.mapping.words().load(Offset(0)).expect("a word") > 0, "the busy one did something");
}

/// A busy client is killed in the middle of its verbs: when the fence holds, nothing of it moves any more.
#[test]
fn nothing_moves_once_a_dead_client_is_fenced() {
    let node = Node::start("moves");
    for round in 0..scaled(5) {
        let session = SessionId(1 + round as u32);
        let (mut child, _lines) = node.client(session, "busy");
        child.kill().expect("our own child");
        // Not waited for: the fence itself must find out, a zombie is dead enough.
        node.assert_fenced(session);
        let count = node.mapping.words().load(Offset(0));
        assert_eq!(child.wait().expect("our own child").code(), None);
        assert_eq!(node.mapping.words().load(Offset(0)), count);
    }
    assert_eq!(node.target.connection_count(), 0);
}

/// Servers and clients start at the same moment, over and over, the client with a deadline and no patience between tries: it
/// joins a finished region or gets an error that says why, and never a signal. (The region is sealed before it is handed
/// out, so there is no moment at which half of one can be had.)
#[test]
fn clients_that_start_with_the_server_join_or_are_told_why() {
    let rounds = scaled(500);
    let small =
        MappingOptions { bytes: 1 << 16, huge_pages: HugePages::Off, threads: 1, name: "race".into() };
    let mut joined = 0;
    for round in 0..rounds {
        let socket = std::env::temp_dir().join(format!("sidestep-race-{}-{round}.sock", std::process::id()));
        let ticket = std::sync::Mutex::new(None::<Join>);
        let early =
            Join::Shm { socket: socket.to_str().expect("a plain path").into(), ticket: Ticket([7; 16]) };
        std::thread::scope(|scope| {
            let client = scope.spawn(|| {
                let deadline = Instant::now() + DEADLINE;
                loop {
                    let join = ticket.lock().expect("no panic").clone().unwrap_or_else(|| early.clone());
                    match connect(&join, &ConnectOptions { region_bytes: small.bytes, ..options() }) {
                        Ok(fabric) => return Driver::new(fabric).atomic(add(small.bytes - 8, 1)),
                        Err(error) => assert!(!error.to_string().is_empty()),
                    }
                    assert!(Instant::now() < deadline, "the server never came");
                    std::thread::yield_now();
                }
            });
            let mapping = Mapping::create(&small).expect("some memory");
            let target = ShmTarget::new(Arc::new(mapping), socket.to_str().expect("a plain path"));
            let listener = UnixListener::bind(&socket).expect("a socket");
            *ticket.lock().expect("no panic") =
                Some(target.admit(SessionId(1), Rights::ReadWrite).expect("a ticket"));
            while !client.is_finished() {
                let (mut stream, _) = listener.accept().expect("a connection");
                stream.set_read_timeout(Some(Duration::from_secs(10))).expect("a time limit");
                stream.read_exact(&mut [0; Preamble::BYTES]).expect("a preamble");
                if target.attach(stream).is_ok() {
                    break;
                }
            }
            assert_eq!(client.join().expect("no panic and no signal"), 0);
            joined += 1;
        });
        let _ = std::fs::remove_file(&socket);
    }
    assert_eq!(joined, rounds);
}

/// A client that forks (to run some other program, say) leaves no process behind that still has the region: when the client
/// is dead the region is out of reach, whatever its children do. They neither have the mapping nor the memory file.
#[test]
fn a_clients_children_do_not_have_the_region() {
    let node = Node::start("children");
    let join = node.target.admit(SessionId(1), Rights::ReadWrite).expect("a ticket");
    let mut driver = Driver::new(connect(&join, &options()).expect("a session"));
    for round in 0..scaled(20) {
        let listing = Command::new("ls").args(["-l", "/proc/self/fd"]).output().expect("ls");
        let listing = String::from_utf8_lossy(&listing.stdout);
        assert!(!listing.contains("memfd:"), "{listing}");
        assert_eq!(driver.atomic(add(64, 1)), round);
    }
    let maps = std::fs::read_to_string("/proc/self/smaps").expect("this process's mappings");
    let ours: Vec<&str> =
        maps.split("\nVmFlags:").filter(|map| map.contains("memfd:sidestep-conformance")).collect();
    assert!(!ours.is_empty());
    // The client's mapping carries "dc": not copied on fork.
    assert!(
        maps.lines().any(|line| line.starts_with("VmFlags:") && line.split(' ').any(|flag| flag == "dc"))
    );
}
