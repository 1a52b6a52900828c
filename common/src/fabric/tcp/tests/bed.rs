//! A memory node with a listener, and what tests do with a client.

use std::io::Read;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::fabric::tcp::{TcpFabric, TcpTarget, connect};
use crate::fabric::{
    Batch, BatchId, Completion, ConnectError, ConnectOptions, DeviceChoice, Fabric, Failure, Join, Replies,
    Reply, Rights, SessionId, Target, Verb,
};
use crate::layout::Offset;
use crate::memory::{HugePages, Mapping, MappingOptions};
use crate::wire::Preamble;

pub(super) const REGION_BYTES: u64 = 8 << 20;
/// Everything in these tests ends well within this, or fails.
pub(super) const PATIENCE: Duration = Duration::from_secs(20);

pub(super) struct Bed {
    pub(super) target: Arc<TcpTarget>,
    pub(super) mapping: Arc<Mapping>,
    pub(super) address: SocketAddr,
    ended: Arc<AtomicBool>,
    listener: Option<JoinHandle<()>>,
    next_session: AtomicU32,
}

impl Bed {
    pub(super) fn new() -> Self {
        Self::on("127.0.0.1:0").unwrap()
    }

    pub(super) fn on(address: &str) -> std::io::Result<Self> {
        let listener = TcpListener::bind(address)?;
        let options = MappingOptions {
            bytes: REGION_BYTES,
            huge_pages: HugePages::Off,
            threads: 1,
            name: "tcp".into(),
        };
        let mapping = Arc::new(Mapping::create(&options).unwrap());
        let target = Arc::new(TcpTarget::start(Arc::clone(&mapping), 2).unwrap());
        let address = listener.local_addr()?;
        target.advertise(None, address.port());
        let ended = Arc::new(AtomicBool::new(false));
        let accept = {
            let (target, ended) = (Arc::clone(&target), Arc::clone(&ended));
            move || {
                for stream in listener.incoming() {
                    if ended.load(Ordering::Relaxed) {
                        return;
                    }
                    let mut stream = stream.unwrap();
                    let mut preamble = [0; Preamble::BYTES];
                    stream.set_read_timeout(Some(PATIENCE)).unwrap();
                    if stream.read_exact(&mut preamble).is_ok() && Preamble::parse(preamble).is_ok() {
                        // Fails if the client is gone already.
                        let _ = target.attach(stream);
                    }
                }
            }
        };
        let listener = Some(std::thread::spawn(accept));
        Ok(Self { target, mapping, address, ended, listener, next_session: AtomicU32::new(1) })
    }

    pub(super) fn admit(&self, rights: Rights) -> (SessionId, Join) {
        let session = SessionId(self.next_session.fetch_add(1, Ordering::Relaxed));
        (session, self.target.admit(session, rights).unwrap())
    }

    /// A connected client.
    pub(super) fn client(&self) -> TcpFabric {
        self.client_through(self.address)
    }

    /// A client that connects to another address, such as a proxy's.
    pub(super) fn client_through(&self, address: SocketAddr) -> TcpFabric {
        let (_, join) = self.admit(Rights::ReadWrite);
        join_at(address, &join, 64).unwrap()
    }

    pub(super) fn word(&self, offset: u64) -> u64 {
        self.mapping.words().load(Offset(offset)).unwrap()
    }

    pub(super) fn fill(&self, offset: u64, bytes: &[u8]) {
        self.mapping.words().write(Offset(offset), bytes).unwrap();
    }

    pub(super) fn bytes(&self, offset: u64, count: usize) -> Vec<u8> {
        let mut bytes = vec![0; count];
        self.mapping.words().read(Offset(offset), &mut bytes).unwrap();
        bytes
    }
}

impl Drop for Bed {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Relaxed);
        let _ = TcpStream::connect(self.address);
        if let Some(listener) = self.listener.take() {
            let _ = listener.join();
        }
    }
}

pub(super) fn options(peer: Option<IpAddr>, verbs_in_flight_max: usize) -> ConnectOptions {
    ConnectOptions {
        peer,
        region_bytes: REGION_BYTES,
        rights: Rights::ReadWrite,
        verbs_in_flight_max,
        buffer_limit_bytes: 256 << 20,
        device: DeviceChoice::default(),
        deadline: Instant::now() + PATIENCE,
    }
}

pub(super) fn join_at(
    address: SocketAddr,
    join: &Join,
    verbs_in_flight_max: usize,
) -> Result<TcpFabric, ConnectError> {
    let Join::Tcp { ticket, rkey, .. } = join else { panic!("{join:?}") };
    connect(None, address.port(), *ticket, *rkey, &options(Some(address.ip()), verbs_in_flight_max))
}

pub(super) fn batch<'a>(id: u64, verbs: impl IntoIterator<Item = Verb<'a>>) -> Batch<'a> {
    Batch { id: BatchId(id), verbs: verbs.into_iter().collect(), silent: false }
}

pub(super) fn read(fabric: &mut TcpFabric, offset: u64, bytes: usize) -> Verb<'static> {
    Verb::Read { remote: Offset(offset), into: fabric.buffers().take(bytes).unwrap() }
}

pub(super) fn write(offset: u64, bytes: &[u8]) -> Verb<'_> {
    let (head, rest) = bytes.split_at(bytes.len() / 3);
    let (middle, tail) = rest.split_at(rest.len() / 2);
    Verb::Write { remote: Offset(offset), from: [head, middle, tail] }
}

pub(super) fn swap(offset: u64, expected: u64, desired: u64) -> Verb<'static> {
    Verb::CompareSwap { remote: Offset(offset), expected, desired }
}

pub(super) fn add(offset: u64, add: u64) -> Verb<'static> {
    Verb::FetchAdd { remote: Offset(offset), add }
}

/// Polls until `count` completions are there.
#[track_caller]
pub(super) fn complete(fabric: &mut TcpFabric, count: usize) -> Vec<Completion> {
    let deadline = Instant::now() + PATIENCE;
    let mut completions = Vec::new();
    while completions.len() < count {
        if fabric.poll(&mut completions) == 0 {
            let left = deadline.saturating_duration_since(Instant::now());
            assert!(!left.is_zero(), "{} of {count} completions", completions.len());
            fabric.wait(left);
        }
    }
    assert_eq!(completions.len(), count);
    completions
}

/// Posts one batch and waits for its end.
#[track_caller]
pub(super) fn run<'a>(
    fabric: &mut TcpFabric,
    verbs: impl IntoIterator<Item = Verb<'a>>,
) -> Result<Replies, Failure> {
    fabric.post(&mut [batch(1, verbs)]).unwrap();
    complete(fabric, 1).remove(0).result
}

/// What replies hold, to be compared.
pub(super) fn contents(replies: &Replies) -> Vec<Vec<u8>> {
    let content = |reply: &Reply| match reply {
        Reply::Read(buffer) => buffer.as_slice().to_vec(),
        Reply::Written => b"written".to_vec(),
        Reply::Old(word) => word.to_le_bytes().to_vec(),
    };
    replies.iter().map(content).collect()
}

/// Bytes that differ from place to place.
pub(super) fn pattern(bytes: usize, seed: u64) -> Vec<u8> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(0xd134_2543_de82_ef95).wrapping_add(1);
        (state >> 56) as u8
    };
    (0..bytes).map(|_| next()).collect()
}

/// Waits until `condition` holds.
#[track_caller]
pub(super) fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !condition() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::yield_now();
    }
}
