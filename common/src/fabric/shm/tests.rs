//! Joining: what honest, early, late and hostile peers get. (What verbs do is the conformance suite's business.)

use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::fs::{MemfdFlags, SealFlags};

use super::handshake::{send, send_answer};
use super::*;
use crate::fabric::{
    Batch, BatchId, ConnectError, ConnectOptions, DeviceChoice, Fabric, Join, PostError, Rights, SessionId,
    Target, Ticket, Verb,
};
use crate::layout::Offset;
use crate::memory::{HugePages, Mapping, MappingOptions};
use crate::wire::{Preamble, PreambleKind};

const REGION_BYTES: u64 = 1 << 20;
const SESSION: SessionId = SessionId(7);

fn options() -> ConnectOptions {
    ConnectOptions {
        peer: None,
        region_bytes: REGION_BYTES,
        rights: Rights::ReadWrite,
        verbs_in_flight_max: 16,
        buffer_limit_bytes: 1 << 20,
        device: DeviceChoice::default(),
        deadline: Instant::now() + Duration::from_secs(10),
    }
}

/// A socket in the file system, removed at the end.
struct Socket(PathBuf);

impl Socket {
    fn listen(name: &str) -> (Self, UnixListener) {
        let path = std::env::temp_dir().join(format!("sidestep-{name}-{}.sock", std::process::id()));
        let _ = std::fs::remove_file(&path);
        let listener = UnixListener::bind(&path).unwrap();
        (Self(path), listener)
    }

    fn path(&self) -> &str {
        self.0.to_str().unwrap()
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// A memory node in this process. Its acceptor thread ends with the test.
struct Node {
    socket: Socket,
    target: Arc<ShmTarget>,
}

impl Node {
    fn start(name: &str) -> Self {
        let (socket, listener) = Socket::listen(name);
        let mapping = Mapping::create(&MappingOptions {
            bytes: REGION_BYTES,
            huge_pages: HugePages::Off,
            threads: 1,
            name: "sidestep-test".into(),
        });
        let target = Arc::new(ShmTarget::new(Arc::new(mapping.unwrap()), socket.path()));
        let acceptor = Arc::clone(&target);
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                let mut preamble = [0; Preamble::BYTES];
                if stream.read_exact(&mut preamble).is_ok() {
                    let _ = acceptor.attach(stream);
                }
            }
        });
        Self { socket, target }
    }

    fn join(&self, join: &Join) -> Result<Box<dyn Fabric>, ConnectError> {
        crate::fabric::connect(join, &options())
    }
}

/// Joins a peer that answers a client's opening with whatever `answer` sends.
fn join_peer(name: &str, answer: impl Fn(&UnixStream) + Send + 'static) -> ConnectError {
    let (socket, listener) = Socket::listen(name);
    let peer = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream.read_exact(&mut [0; 24]).unwrap();
        answer(&stream);
        // Until the client hangs up.
        let _ = stream.read(&mut [0; 1]);
    });
    let error = connect(socket.path(), Ticket([1; 16]), &options()).unwrap_err();
    peer.join().unwrap();
    error
}

fn memory_file(bytes: u64) -> OwnedFd {
    let file = rustix::fs::memfd_create("test", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
    rustix::fs::ftruncate(&file, bytes).unwrap();
    rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL).unwrap();
    file
}

fn post(fabric: &mut dyn Fabric, verb: Verb<'_>) -> Result<(), PostError> {
    fabric.post(&mut [Batch { id: BatchId(0), verbs: [verb].into_iter().collect(), silent: true }])
}

const ADD: Verb<'_> = Verb::FetchAdd { remote: Offset(0), add: 1 };

/// A ticket opens one connection. Used again, invented, or void after fencing, it opens none, and the reason is told.
#[test]
fn a_ticket_opens_one_connection() {
    let node = Node::start("tickets");
    let join = node.target.admit(SESSION, Rights::ReadWrite).unwrap();
    let first = node.join(&join).unwrap();
    let invented = Join::Shm { socket: node.socket.path().into(), ticket: Ticket::random() };
    let void = node.target.admit(SESSION, Rights::ReadWrite).unwrap();
    assert_eq!(node.target.connection_count(), 1);
    drop(first);
    assert_eq!(node.target.connection_count(), 0);
    assert!(node.target.fence(SESSION));
    for join in [join, invented, void] {
        match node.join(&join) {
            Err(ConnectError::Refused { reason, .. }) => assert!(reason.contains("ticket"), "{reason}"),
            other => panic!("{:?}", other.map(|fabric| fabric.describe())),
        }
    }
}

/// A living process keeps its mapping, whatever the server does: fencing says so, until the client has noticed and
/// unmapped. After the fence an honest client posts nothing more.
#[test]
fn a_living_client_is_fenced_once_it_has_unmapped() {
    let node = Node::start("fence");
    let join = node.target.admit(SESSION, Rights::ReadWrite).unwrap();
    let mut fabric = node.join(&join).unwrap();
    post(&mut *fabric, ADD).unwrap();
    assert!(!node.target.fence(SESSION), "the process lives and has the region mapped");
    assert_eq!(node.target.connection_count(), 1);
    // The wait ends at once, with the news.
    let start = Instant::now();
    fabric.wait(Duration::from_secs(60));
    assert!(start.elapsed() < Duration::from_secs(30));
    assert!(matches!(post(&mut *fabric, ADD), Err(PostError::Broken(_))));
    assert!(!node.target.fence(SESSION));
    drop(fabric);
    assert!(node.target.fence(SESSION), "it said that it has unmapped");
    assert!(node.target.fence(SESSION), "and again");
}

/// Without waiting or polling, a client that only ever posts notices the fence too, soon.
#[test]
fn a_client_that_only_posts_notices_the_fence() {
    let node = Node::start("busy");
    let join = node.target.admit(SESSION, Rights::ReadWrite).unwrap();
    let mut fabric = node.join(&join).unwrap();
    assert!(!node.target.fence(SESSION));
    let deadline = Instant::now() + Duration::from_secs(30);
    while post(&mut *fabric, ADD).is_ok() {
        assert!(Instant::now() < deadline, "never noticed");
    }
}

/// A client killed with the region mapped: fenced, since its process is dead. One that closes its connection and says
/// nothing keeps its mapping as far as anybody knows.
#[test]
fn a_connection_that_ends_without_a_word_needs_the_process_dead() {
    let node = Node::start("silent");
    let Join::Shm { socket, ticket } = node.target.admit(SESSION, Rights::ReadWrite).unwrap() else {
        panic!("not shm")
    };
    let stream = UnixStream::connect(&socket).unwrap();
    handshake::send_opening(&stream, ticket).unwrap();
    let file = handshake::receive_answer(&stream, Instant::now() + Duration::from_secs(10)).unwrap();
    let mapping = Mapping::attach(file, REGION_BYTES, Rights::ReadWrite).unwrap();
    drop(stream);
    assert_eq!(node.target.connection_count(), 0);
    assert!(!node.target.fence(SESSION), "this process still has it mapped");
    assert_eq!(mapping.words().load(Offset(0)), Ok(0));
}

/// A client that got the memory file and could not map it, or gave up before it came: it has nothing mapped and says so,
/// so the session is fenced although the process lives, and the server keeps nothing of it.
#[test]
fn a_join_that_fails_leaves_nothing_to_fence() {
    let node = Node::start("fails");
    let join = node.target.admit(SESSION, Rights::ReadWrite).unwrap();
    let other_length = ConnectOptions { region_bytes: 2 * REGION_BYTES, ..options() };
    let error = crate::fabric::connect(&join, &other_length).map(drop).unwrap_err();
    assert!(matches!(error, ConnectError::Unavailable { .. }), "{error}");
    assert!(node.target.fence(SESSION), "nothing is mapped");

    // An acceptor that is slower than the client.
    let (socket, listener) = Socket::listen("slow");
    let Join::Shm { ticket, .. } = node.target.admit(SESSION, Rights::ReadWrite).unwrap() else {
        panic!("not shm")
    };
    let hasty = ConnectOptions { deadline: Instant::now() + Duration::from_millis(50), ..options() };
    let error = connect(socket.path(), ticket, &hasty).map(drop).unwrap_err();
    assert!(matches!(error, ConnectError::Timeout { .. }), "{error}");
    let (mut stream, _) = listener.accept().unwrap();
    stream.read_exact(&mut [0; Preamble::BYTES]).unwrap();
    node.target.attach(stream).unwrap_err();
    assert!(node.target.fence(SESSION), "nobody waits for the file any more");
}

/// A session that may only read gets a file that can't be mapped for writing, whatever it believes itself.
#[test]
fn a_read_only_session_cannot_map_for_writing() {
    let node = Node::start("read-only");
    let join = node.target.admit(SESSION, Rights::ReadOnly).unwrap();
    match node.join(&join) {
        Err(ConnectError::Unavailable { reason, .. }) => assert!(reason.contains("for writing"), "{reason}"),
        other => panic!("{:?}", other.map(|fabric| fabric.describe())),
    }
}

/// What comes over the socket while a server starts, or from something that is none: no file, an empty one, one of a
/// header's length, another program's greeting, the end. Always an error with a reason, and no signal.
#[test]
fn answers_that_are_no_region_are_refused() {
    let preamble = Preamble(PreambleKind::Data).encode();
    type Answer = Box<dyn Fn(&UnixStream) + Send>;
    let file = |bytes: u64| -> Answer {
        Box::new(move |stream| send_answer(stream, Ok(memory_file(bytes).as_fd())).unwrap())
    };
    let raw = |bytes: Vec<u8>| -> Answer { Box::new(move |stream| send(stream, &bytes, None).unwrap()) };
    let cases: [(Answer, &str); 9] = [
        (file(0), "0 bytes"),
        (file(104), "104 bytes"),
        (file(4096), "4096 bytes"),
        (file(REGION_BYTES + 4096), "the region should have"),
        (raw(b"HTTP/1.1 400 Bad Request".to_vec()), "does not speak"),
        (raw([&b"SDSTEPD\x63"[..], &[0; 3]].concat()), "version 99"),
        (raw([&preamble[..], &[0, 0, 0]].concat()), "no memory file"),
        (raw([&preamble[..], &[9, 0, 0]].concat()), "neither"),
        (raw([&preamble[..], &[1, 255, 255]].concat()), "neither"),
    ];
    for (at, (answer, says)) in cases.into_iter().enumerate() {
        let error = join_peer(&format!("answer-{at}"), answer).to_string();
        assert!(error.contains(says), "case {at}: {error}");
    }
    let disk: Answer = Box::new(|stream| {
        let file = std::fs::File::open("/proc/self/exe").unwrap();
        send_answer(stream, Ok(file.as_fd())).unwrap();
    });
    assert!(join_peer("answer-disk", disk).to_string().contains("not a memory file"));
    let end: Answer = Box::new(|stream| stream.shutdown(std::net::Shutdown::Both).unwrap());
    assert!(matches!(join_peer("answer-end", end), ConnectError::Io { .. }));
}

/// A server that accepts and then hangs, one that is stopped with its queue full, and none at all: a typed error, by
/// the deadline.
#[test]
fn a_silent_server_costs_no_more_than_the_deadline() {
    let (socket, listener) = Socket::listen("hang");
    let short = || ConnectOptions { deadline: Instant::now() + Duration::from_millis(50), ..options() };
    let mut timeouts = 0;
    // Far more than the queue of a listener holds.
    rustix::net::listen(&listener, 2).unwrap();
    for _ in 0..5 {
        let start = Instant::now();
        let result = connect(socket.path(), Ticket([1; 16]), &short());
        assert!(start.elapsed() < Duration::from_secs(10));
        timeouts += usize::from(matches!(result, Err(ConnectError::Timeout { .. })));
    }
    assert_eq!(timeouts, 5);
    let missing = connect("/nonexistent/sidestep.sock", Ticket([1; 16]), &options());
    assert!(matches!(missing, Err(ConnectError::Io { .. })), "{missing:?}");
    let long = "x".repeat(200);
    assert!(matches!(connect(&long, Ticket([1; 16]), &options()), Err(ConnectError::Io { .. })));
}

/// A client that connects and says nothing, half a ticket, or hangs up: the server gives up on it and serves the next.
#[test]
fn a_client_that_never_shows_its_ticket_disturbs_nobody() {
    let node = Node::start("mute");
    let preamble = Preamble(PreambleKind::Data).encode();
    let mut half = UnixStream::connect(node.socket.path()).unwrap();
    half.write_all(&[&preamble[..], &[1; 7]].concat()).unwrap();
    let mut gone = UnixStream::connect(node.socket.path()).unwrap();
    gone.write_all(&preamble).unwrap();
    drop(gone);
    let join = node.target.admit(SESSION, Rights::ReadWrite).unwrap();
    let mut fabric = node.join(&join).unwrap();
    post(&mut *fabric, ADD).unwrap();
    assert_eq!(node.target.connection_count(), 1);
}
