//! A hostile client on the control channel: its bytes, cut into any pieces, go to a memory node's conversation. Each
//! request gets at most one response, in order; block memory is granted to one owner at a time and only out of the pool;
//! when the conversation is over so is its session, and the pool's books add up.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, LazyLock};

use arbitrary::Arbitrary;
use sidestep_client::allocator::Allocator;
use sidestep_common::fabric::shm::ShmTarget;
use sidestep_common::fabric::tcp::TcpTarget;
use sidestep_common::fabric::{FabricKind, Rights};
use sidestep_common::layout::{AtomicityDomain, Geometry, Superblock};
use sidestep_common::memory::{HugePages, Mapping, MappingOptions};
use sidestep_common::wire::{
    ChunkGrant, ChunkPurpose, Hello, Preamble, PreambleKind, Request, Response, ReturnedChunk, decode,
    encode, read_frame,
};
use sidestep_server::Config;
use sidestep_server::config::{ByteSize, Secret};
use sidestep_server::control::fuzzing::converse;
use sidestep_server::node::{Node, Peer, Serving};
use sidestep_server::region::Region;
use sidestep_server::targets::Targets;
use sidestep_server::transport::Plan;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::pieces::pieces;

const REGION_BYTES: u64 = 8 << 20;
/// What a connection takes before it is read.
const SOCKET_BYTES: usize = 16 << 10;

#[derive(Arbitrary, Debug)]
struct Input {
    options: Options,
    cuts: Vec<u8>,
    opening: Opening,
    messages: Vec<Message>,
}

#[derive(Arbitrary, Debug)]
struct Options {
    token: bool,
    quota_mebibytes: Option<u8>,
    no_sessions: bool,
    over_unix: bool,
}

#[derive(Arbitrary, Debug)]
enum Opening {
    /// A preamble, and a hello that is welcome if the options allow it.
    Hello {
        read_only: bool,
        over_shm: bool,
    },
    Preamble,
    Raw([u8; 8]),
    Nothing,
}

#[derive(Arbitrary, Debug)]
enum Message {
    Hello(HelloSpec),
    Heartbeat(u64),
    Chunks {
        class: u8,
        count: u16,
        delete: bool,
    },
    Return(Vec<ReturnSpec>),
    Rejoin,
    Statistics,
    Goodbye,
    /// Bytes with the right length in front of them.
    Framed(Vec<u8>),
    Raw(Vec<u8>),
}

#[derive(Arbitrary, Debug)]
struct HelloSpec {
    name: String,
    token: Option<String>,
    fabrics: Vec<u8>,
    read_only: bool,
    elsewhere: bool,
}

#[derive(Arbitrary, Clone, Copy, Debug)]
enum ReturnSpec {
    /// Units of 16 KiB from the pool's start.
    InPool {
        unit: u16,
        versions: u16,
        empty: bool,
    },
    /// Whole chunks from the pool's start.
    Chunk {
        number: u8,
        versions: u16,
        empty: bool,
    },
    Anywhere {
        offset: u64,
        versions: u16,
        empty: bool,
    },
}

/// What all runs share: memory, which nobody writes to, and the threads that play the card.
struct Bed {
    mapping: Arc<Mapping>,
    tcp: Arc<TcpTarget>,
    runtime: tokio::runtime::Runtime,
    boot_id: String,
}

static BED: LazyLock<Bed> = LazyLock::new(|| {
    let options =
        MappingOptions { bytes: REGION_BYTES, huge_pages: HugePages::Off, threads: 1, name: "fuzz".into() };
    let mapping = Arc::new(Mapping::create(&options).expect("a little memory"));
    let tcp = Arc::new(TcpTarget::start(Arc::clone(&mapping), 1).expect("a thread"));
    tcp.advertise(None, 7480);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
    let boot_id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    Bed { mapping, tcp, runtime, boot_id: boot_id.trim().to_owned() }
});

fn node(options: &Options) -> Arc<Node> {
    let config = Config {
        memory: ByteSize(REGION_BYTES),
        token: options.token.then(|| Secret::new("sesame")),
        chunk_quota: options.quota_mebibytes.map(|count| ByteSize::mebibytes(u64::from(count).max(1))),
        max_sessions: u32::from(!options.no_sessions),
        ..Config::default()
    };
    let mut targets = Targets::default();
    targets.tcp = Some(Arc::clone(&BED.tcp));
    targets.shm = Some(Arc::new(ShmTarget::new(Arc::clone(&BED.mapping), "/nowhere")));
    let plan = Plan::without_verbs("fuzzing");
    let geometry = Geometry::for_region(BED.mapping.bytes()).expect("a region's size");
    let region =
        Region::format(BED.mapping.words(), geometry, AtomicityDomain::Cpu, 1000, 16, 1).expect("room");
    let serving = Serving::new(region, plan, targets, Arc::clone(&BED.mapping), &config);
    let address = SocketAddr::from(([127, 0, 0, 1], 7480));
    let node = Node::new(config, "sidestep://127.0.0.1:7480".into(), address, None);
    node.serve(serving);
    Arc::new(node)
}

impl HelloSpec {
    fn hello(&self) -> Hello {
        let kinds = [FabricKind::Tcp, FabricKind::Shm, FabricKind::Verbs, FabricKind::Sim];
        Hello {
            client_version: "1".into(),
            client_name: self.name.clone(),
            token: self.token.clone(),
            fabrics: self.fabrics.iter().map(|kind| kinds[usize::from(*kind) % kinds.len()]).collect(),
            rights: if self.read_only { Rights::ReadOnly } else { Rights::ReadWrite },
            boot_id: if self.elsewhere { "elsewhere".into() } else { BED.boot_id.clone() },
            process_id: 1,
        }
    }
}

impl ReturnSpec {
    fn chunk(self, geometry: &Geometry) -> ReturnedChunk {
        let start = geometry.block_pool_offset.0;
        let (offset, versions, empty) = match self {
            Self::InPool { unit, versions, empty } => (start + (u64::from(unit) << 14), versions, empty),
            Self::Chunk { number, versions, empty } => (start + (u64::from(number) << 20), versions, empty),
            Self::Anywhere { offset, versions, empty } => (offset, versions, empty),
        };
        ReturnedChunk { offset, versions: vec![1; versions.into()], empty }
    }
}

fn frame(bytes: &[u8]) -> Vec<u8> {
    [&(bytes.len() as u32).to_le_bytes(), bytes].concat()
}

/// What is encoded within a frame's limit is decoded to the same.
fn encoded(request: &Request) -> Vec<u8> {
    let Ok(bytes) = encode(request) else { return Vec::new() };
    assert_eq!(decode::<Request>(&bytes).expect("what we encode, we decode"), *request);
    frame(&bytes)
}

impl Input {
    fn stream(&self, geometry: &Geometry) -> Vec<u8> {
        let mut stream = Vec::new();
        match self.opening {
            Opening::Hello { read_only, over_shm } => {
                stream.extend(Preamble(PreambleKind::Control).encode());
                let token = self.options.token.then(|| "sesame".into());
                let fabrics = vec![u8::from(over_shm)];
                let hello = HelloSpec { name: "fuzz".into(), token, fabrics, read_only, elsewhere: false };
                stream.extend(encoded(&Request::Hello(hello.hello())));
            }
            Opening::Preamble => stream.extend(Preamble(PreambleKind::Control).encode()),
            Opening::Raw(bytes) => stream.extend(bytes),
            Opening::Nothing => {}
        }
        for message in &self.messages {
            let request = match message {
                Message::Hello(hello) => Request::Hello(hello.hello()),
                Message::Heartbeat(epoch) => Request::Heartbeat { epoch: *epoch, wants_epoch: false },
                Message::Chunks { class, count, delete } => {
                    let purpose = if *delete { ChunkPurpose::Delete } else { ChunkPurpose::General };
                    Request::Chunks { class: *class, count: *count, purpose }
                }
                Message::Return(chunks) => {
                    Request::ReturnChunks(chunks.iter().map(|chunk| chunk.chunk(geometry)).collect())
                }
                Message::Rejoin => Request::Rejoin,
                Message::Statistics => Request::Statistics,
                Message::Goodbye => Request::Goodbye,
                Message::Framed(bytes) => {
                    check_message(bytes);
                    stream.extend(frame(bytes));
                    continue;
                }
                Message::Raw(bytes) => {
                    stream.extend_from_slice(bytes);
                    continue;
                }
            };
            stream.extend(encoded(&request));
        }
        stream
    }
}

/// What decodes encodes to something that decodes to the same.
fn check_message(bytes: &[u8]) {
    if let Ok(request) = decode::<Request>(bytes) {
        let again = encode(&request).expect("a message that came in a frame fits a frame");
        assert!(again.len() <= bytes.len(), "our encoding is the shortest");
        assert_eq!(decode::<Request>(&again).expect("what we encode, we decode"), request);
    }
    let _ = read_frame::<Request>(&mut &*bytes);
    if let Some(first) = bytes.first_chunk()
        && let Ok(preamble) = Preamble::parse(*first)
    {
        assert_eq!(preamble.encode(), *first);
    }
}

/// See the module.
pub fn run(bytes: &[u8]) {
    check_message(bytes);
    let Some(input) = super::input::<Input>(bytes) else { return };
    let node = node(&input.options);
    let serving = node.serving().expect("a node that serves");
    let stream = input.stream(&serving.region.superblock.geometry);
    let peer = if input.options.over_unix { Peer::Unix } else { Peer::Tcp(([127, 0, 0, 1], 9).into()) };
    let answers = BED.runtime.block_on(talk(&node, peer, &pieces(&stream, &input.cuts)));
    check_answers(&stream, &answers, &serving.region.superblock);

    assert_eq!(serving.sessions().living_count(), 0, "the conversation is over, and so is its session");
    assert!(!serving.sessions().some_linger(), "nobody has the region mapped");
    let accounts = serving.pool().accounts();
    let sum = accounts.free_bytes + accounts.reserve_bytes + accounts.granted_bytes();
    assert_eq!(sum, accounts.pool_bytes, "{accounts:?}");
}

/// Says all pieces, and hears all that is answered.
async fn talk(node: &Arc<Node>, peer: Peer, pieces: &[&[u8]]) -> Vec<u8> {
    let (ours, theirs) = tokio::io::duplex(SOCKET_BYTES);
    let (mut hear, mut say) = tokio::io::split(ours);
    let mut answers = Vec::new();
    let say = async move {
        for piece in pieces {
            // Fails when the node has hung up.
            if say.write_all(piece).await.is_err() {
                return;
            }
            tokio::task::yield_now().await;
        }
        let _ = say.shutdown().await;
    };
    let (_, heard, ()) = tokio::join!(converse(node, theirs, peer), hear.read_to_end(&mut answers), say);
    heard.expect("a pipe of this process");
    answers
}

/// Looks at the answers beside the requests.
fn check_answers(stream: &[u8], answers: &[u8], superblock: &Superblock) {
    let Some((preamble, mut rest)) = answers.split_at_checked(Preamble::BYTES) else {
        assert!(answers.is_empty(), "half a preamble");
        return;
    };
    assert_eq!(preamble, Preamble(PreambleKind::Control).encode());
    let mut requests = stream.get(Preamble::BYTES..).unwrap_or_default();
    let mut books = Books { superblock, held: HashMap::new() };
    while !rest.is_empty() {
        let response: Response = read_frame(&mut rest).expect("whole responses");
        let request: Request = read_frame(&mut requests).expect("a request for each response");
        books.enter(&request, &response);
    }
}

/// What the session holds, by the answers alone: its chunks, each with the first block that it did not use.
struct Books<'a> {
    superblock: &'a Superblock,
    held: HashMap<u64, ChunkGrant>,
}

impl Books<'_> {
    fn enter(&mut self, request: &Request, response: &Response) {
        match (request, response) {
            (_, Response::Refused(refusal)) => assert!(!refusal.message.is_empty()),
            (Request::Hello(hello), Response::Welcome(welcome)) => {
                assert_eq!(Superblock::parse(&welcome.superblock), Ok(*self.superblock));
                assert!(hello.fabrics.contains(&welcome.join.kind()), "a fabric that was asked for");
            }
            (Request::Chunks { class, count, .. }, Response::Chunks(grants)) => {
                assert!(!grants.is_empty() && grants.len() <= usize::from(*count));
                for grant in grants {
                    assert_eq!(grant.class, *class);
                    self.grant(grant.clone());
                }
            }
            (Request::ReturnChunks(chunks), Response::ChunksReturned) => {
                for chunk in chunks {
                    let was_held = self.held.remove(&chunk.offset).is_some();
                    assert!(was_held, "{chunk:?} was never granted");
                }
            }
            (Request::Heartbeat { .. }, Response::Heartbeat(_))
            | (Request::Rejoin, Response::Rejoined(_))
            | (Request::Statistics, Response::Statistics(_))
            | (Request::Goodbye, Response::Goodbye) => {}
            (request, response) => panic!("{response:?} is no response to {request:?}"),
        }
    }

    fn grant(&mut self, grant: ChunkGrant) {
        let geometry = &self.superblock.geometry;
        // A client takes any two grants that do not overlap.
        Allocator::new().add(geometry, &grant, ChunkPurpose::General).expect("a chunk in the pool");
        let end = |grant: &ChunkGrant| {
            let class = sidestep_common::layout::SizeClass::from_index(grant.class).expect("a class");
            grant.offset + sidestep_common::layout::chunk_shape(class).bytes
        };
        for held in self.held.values() {
            let apart = end(held) <= grant.offset || end(&grant) <= held.offset;
            assert!(apart, "{grant:?} overlaps {held:?}");
        }
        self.held.insert(grant.offset, grant);
    }
}
