//! What the integration tests share: a server in this process, and a client that speaks the control protocol and
//! nothing else.

#![allow(dead_code, reason = "each test binary uses a part")]

use std::collections::VecDeque;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use sidestep_common::fabric::{
    self, Batch, BatchId, ConnectError, ConnectOptions, DeviceChoice, Fabric, FabricKind, Join, Reply,
    Rights, Verb,
};
use sidestep_common::layout::{Offset, Superblock};
use sidestep_common::wire::{
    Hello, Preamble, PreambleKind, Pulse, Refusal, Request, Response, Welcome, WireError, read_frame,
    write_frame,
};
use sidestep_server::config::{AdminListen, ByteSize, HugePageChoice, Transport};
use sidestep_server::{Config, Running, Server};

/// Longer than anything here takes on a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// A small server at ports of its own.
pub(crate) fn config(transport: Transport) -> Config {
    Config {
        listen: SocketAddr::from(([127, 0, 0, 1], 0)),
        admin_listen: AdminListen::At(SocketAddr::from(([127, 0, 0, 1], 0))),
        memory: ByteSize::mebibytes(16),
        hugepages: HugePageChoice::Off,
        threads: 1,
        transport,
        drain_ms: 100,
        ..Config::default()
    }
}

/// Starts it.
pub(crate) fn start(config: Config) -> Running {
    Server::start(config).unwrap()
}

/// A folder for one test's files, removed when dropped.
pub(crate) struct Folder(pub(crate) PathBuf);

impl Folder {
    pub(crate) fn new(test: &str) -> Self {
        let path = std::env::temp_dir().join(format!("sidestep-{}-{test}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

pub(crate) trait Stream: Read + Write + Send {}
impl<T: Read + Write + Send> Stream for T {}

/// A client's side of the control channel.
pub(crate) struct Control {
    pub(crate) stream: Box<dyn Stream>,
    /// The newest that it was told unasked.
    pub(crate) heard: Pulse,
    /// What was told unasked while something else was waited for.
    notices: VecDeque<Pulse>,
}

impl Control {
    /// Connects over TCP and exchanges preambles.
    pub(crate) fn tcp(address: SocketAddr) -> Self {
        let stream = tcp(address);
        Self::greet(Box::new(stream))
    }

    /// Connects over the Unix socket and exchanges preambles.
    pub(crate) fn unix(path: &std::path::Path) -> Self {
        let stream = UnixStream::connect(path).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        Self::greet(Box::new(stream))
    }

    fn greet(mut stream: Box<dyn Stream>) -> Self {
        stream.write_all(&Preamble(PreambleKind::Control).encode()).unwrap();
        let mut answer = [0; Preamble::BYTES];
        stream.read_exact(&mut answer).unwrap();
        assert_eq!(Preamble::parse(answer).unwrap(), Preamble(PreambleKind::Control));
        Self { stream, heard: Pulse::default(), notices: VecDeque::new() }
    }

    /// One request and its response.
    pub(crate) fn ask(&mut self, request: &Request) -> Response {
        self.try_ask(request).unwrap()
    }

    /// The same, if the connection may be gone.
    pub(crate) fn try_ask(&mut self, request: &Request) -> Option<Response> {
        write_frame(&mut self.stream, request).ok()?;
        loop {
            match read_frame(&mut self.stream).ok()? {
                Response::Notice(pulse) => self.hear(pulse),
                response => return Some(response),
            }
        }
    }

    fn hear(&mut self, pulse: Pulse) {
        self.heard = pulse.clone();
        self.notices.push_back(pulse);
    }

    /// The next thing that it is told unasked.
    pub(crate) fn notice(&mut self) -> Pulse {
        if self.notices.is_empty() {
            match read_frame(&mut self.stream).unwrap() {
                Response::Notice(pulse) => self.hear(pulse),
                other => panic!("nobody asked: {other:?}"),
            }
        }
        self.notices.pop_front().unwrap()
    }

    /// Says hello and is welcome.
    pub(crate) fn hello(&mut self, hello: Hello) -> Welcome {
        match self.ask(&Request::Hello(hello)) {
            Response::Welcome(welcome) => *welcome,
            other => panic!("not welcome: {other:?}"),
        }
    }

    /// Asks for something that is refused.
    pub(crate) fn refused(&mut self, request: &Request) -> Refusal {
        match self.ask(request) {
            Response::Refused(refusal) => refusal,
            other => panic!("{request:?} was not refused: {other:?}"),
        }
    }

    /// Whether the server has closed the connection, with nothing more to say.
    pub(crate) fn is_closed(&mut self) -> bool {
        loop {
            match read_frame::<Response>(&mut self.stream) {
                Ok(Response::Notice(pulse)) => self.hear(pulse),
                Ok(_) => return false,
                Err(WireError::Io(error)) => {
                    let ends = [std::io::ErrorKind::UnexpectedEof, std::io::ErrorKind::ConnectionReset];
                    return ends.contains(&error.kind());
                }
                Err(_) => return false,
            }
        }
    }
}

/// Waits for the end of a stream; a reset is an end too.
pub(crate) fn is_closed(stream: &mut impl Read) -> bool {
    let mut byte = [0];
    match stream.read(&mut byte) {
        Ok(count) => count == 0,
        Err(error) => error.kind() == std::io::ErrorKind::ConnectionReset,
    }
}

/// A raw connection with a limit to waiting.
pub(crate) fn tcp(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}

/// A hello that wants these fabrics.
pub(crate) fn hello(fabrics: &[FabricKind]) -> Hello {
    Hello {
        client_version: "0.0.0".into(),
        client_name: "test".into(),
        token: None,
        fabrics: fabrics.to_vec(),
        rights: Rights::ReadWrite,
        boot_id: std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap(),
        process_id: std::process::id(),
    }
}

/// Joins the data path that a welcome offers.
pub(crate) fn join(welcome: &Welcome, join: &Join) -> Box<dyn Fabric> {
    try_join(welcome, join).unwrap()
}

/// The same, if it may be refused.
pub(crate) fn try_join(welcome: &Welcome, join: &Join) -> Result<Box<dyn Fabric>, ConnectError> {
    let superblock = Superblock::parse(&welcome.superblock).unwrap();
    let options = ConnectOptions {
        peer: Some([127, 0, 0, 1].into()),
        region_bytes: superblock.geometry.region_bytes,
        rights: Rights::ReadWrite,
        verbs_in_flight_max: 16,
        buffer_limit_bytes: 1 << 20,
        device: DeviceChoice::default(),
        deadline: Instant::now() + PATIENCE,
    };
    fabric::connect(join, &options)
}

/// READs with the fabric; `None` if the connection has failed.
pub(crate) fn read(fabric: &mut dyn Fabric, offset: Offset, bytes: usize) -> Option<Vec<u8>> {
    let into = fabric.buffers().take(bytes).unwrap();
    let verbs = [Verb::Read { remote: offset, into }].into_iter().collect();
    fabric.post(&mut [Batch { id: BatchId(1), verbs, silent: false }]).ok()?;
    let deadline = Instant::now() + PATIENCE;
    let mut completions = Vec::new();
    while fabric.poll(&mut completions) == 0 {
        assert!(Instant::now() < deadline, "no completion");
        fabric.wait(Duration::from_millis(100));
    }
    match completions.pop()?.result.ok()?.pop()? {
        Reply::Read(buffer) => Some(buffer.as_slice().to_vec()),
        other => panic!("a READ brought {other:?}"),
    }
}

/// Waits until `done`, and fails with `what` if it takes too long.
pub(crate) fn eventually(what: &str, mut done: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !done() {
        assert!(Instant::now() < deadline, "not in time: {what}");
        std::thread::park_timeout(Duration::from_millis(5));
    }
}

/// GETs a path of the admin endpoint: status and body.
pub(crate) fn http(address: SocketAddr, path: &str) -> (u16, String) {
    let mut stream = tcp(address);
    write!(stream, "GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let status = answer.split(' ').nth(1).unwrap().parse().unwrap();
    let body = answer.split_once("\r\n\r\n").map_or("", |(_, body)| body);
    (status, body.to_owned())
}
