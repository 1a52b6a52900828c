//! A hostile client on the control channel: its bytes, cut into any pieces, go to a memory node's conversation, while the
//! janitor does its rounds between them. Each request gets at most one response, in order, and what is said unasked comes
//! in between; block memory is granted to one owner at a time, only out of the pool, and what was given back only after the
//! epoch that it waits for; when the conversation is over so is its session, the pool's books add up, and nothing waits
//! for ever.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, LazyLock};
use std::time::Instant;

use arbitrary::Arbitrary;
use sidestep_client::allocator::Allocator;
use sidestep_common::fabric::shm::ShmTarget;
use sidestep_common::fabric::tcp::TcpTarget;
use sidestep_common::fabric::{FabricKind, Rights, SessionId};
use sidestep_common::layout::{AtomicityDomain, Geometry, SizeClass, Superblock, chunk_shape};
use sidestep_common::memory::{HugePages, Mapping, MappingOptions};
use sidestep_common::wire::{
    AuditedChunk, BucketReport, ChunkGrant, ChunkPurpose, DirectoryChanges, GrantHolder, GrantPage, Hello,
    Preamble, PreambleKind, Pulse, Request, Response, ReturnedChunk, decode, encode, read_frame,
};
use sidestep_server::Config;
use sidestep_server::config::{ByteSize, Secret};
use sidestep_server::control::fuzzing::converse;
use sidestep_server::janitor::Death;
use sidestep_server::janitor::fuzzing::Rounds;
use sidestep_server::node::{Node, Peer, Serving};
use sidestep_server::region::Region;
use sidestep_server::targets::Targets;
use sidestep_server::transport::Plan;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::pieces::pieces;
use super::versions::VersionsSpec;

const REGION_BYTES: u64 = 8 << 20;
/// What a connection takes before it is read.
const SOCKET_BYTES: usize = 16 << 10;
/// A run comes to fewer epochs and audits, or hardly to more.
const NEAR_EPOCHS: u8 = 16;
const NEAR_AUDITS: u64 = 4;
/// Rounds in which the janitor is done with all that a conversation left, and a few more.
const LAST_ROUNDS: usize = 16;

#[derive(Arbitrary, Debug)]
struct Input {
    options: Options,
    cuts: Vec<u8>,
    opening: Opening,
    /// What the janitor does behind the pieces, over and over.
    chores: Vec<Chore>,
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
    Heartbeat {
        epoch: EpochSpec,
        wants_epoch: bool,
    },
    Chunks {
        class: u8,
        count: u16,
        delete: bool,
    },
    Return(Vec<ReturnSpec>),
    Rejoin,
    Statistics,
    Goodbye,
    Grants {
        from: PlaceSpec,
        count: u16,
    },
    Report {
        entry: u32,
        is_in_directory: bool,
        generation: u8,
        full: bool,
    },
    Audit {
        number: u64,
        is_small: bool,
        chunks: Vec<PlaceSpec>,
    },
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
enum EpochSpec {
    /// Of those that a run comes to.
    Near(u8),
    Any(u64),
}

/// Where a chunk may be.
#[derive(Arbitrary, Clone, Copy, Debug)]
enum PlaceSpec {
    /// Units of 16 KiB from the pool's start.
    InPool(u16),
    /// Whole chunks from the pool's start.
    Chunk(u8),
    Anywhere(u64),
}

#[derive(Arbitrary, Debug)]
struct ReturnSpec {
    place: PlaceSpec,
    versions: VersionsSpec,
    empty: bool,
}

#[derive(Arbitrary, Clone, Copy, Debug)]
enum Chore {
    Rest,
    Round,
    /// A round after some session died: there is an audit.
    Death,
}

/// What all runs share: memory, which each makes anew as far as it is used, and the threads that play the card.
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

impl EpochSpec {
    fn epoch(self) -> u64 {
        match self {
            Self::Near(number) => u64::from(number % NEAR_EPOCHS),
            Self::Any(epoch) => epoch,
        }
    }
}

impl PlaceSpec {
    fn offset(self, geometry: &Geometry) -> u64 {
        let start = geometry.block_pool_offset.0;
        match self {
            Self::InPool(unit) => start + (u64::from(unit) << 14),
            Self::Chunk(number) => start + (u64::from(number % 16) << 20),
            Self::Anywhere(offset) => offset,
        }
    }
}

impl ReturnSpec {
    fn chunk(&self, geometry: &Geometry) -> ReturnedChunk {
        let versions = self.versions.versions(u32::MAX);
        ReturnedChunk { offset: self.place.offset(geometry), versions, empty: self.empty }
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
                Message::Heartbeat { epoch, wants_epoch } => {
                    Request::Heartbeat { epoch: epoch.epoch(), wants_epoch: *wants_epoch }
                }
                Message::Chunks { class, count, delete } => {
                    let purpose = if *delete { ChunkPurpose::Delete } else { ChunkPurpose::General };
                    Request::Chunks { class: *class, count: *count, purpose }
                }
                Message::Return(chunks) => {
                    Request::ReturnChunks(chunks.iter().map(|chunk| chunk.chunk(geometry)).collect())
                }
                Message::Grants { from, count } => {
                    Request::Grants { from: from.offset(geometry), count: *count }
                }
                Message::Report { entry, is_in_directory, generation, full } => {
                    let entries = geometry.directory_entries() as u32;
                    let entry = if *is_in_directory { entry % entries } else { *entry };
                    Request::ReportBucket(BucketReport {
                        entry,
                        generation: (*generation).into(),
                        full: *full,
                    })
                }
                Message::Audit { number, is_small, chunks } => Request::Audit {
                    number: if *is_small { number % NEAR_AUDITS } else { *number },
                    chunks: chunks.iter().map(|place| place.offset(geometry)).collect(),
                },
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
    let mut janitor = Janitor { serving, chores: &input.chores, next: 0, rounds: Rounds::default() };
    let pieces = pieces(&stream, &input.cuts);
    let answers = BED.runtime.block_on(talk(&node, peer, &pieces, &mut janitor));
    check_answers(&stream, &answers, &serving.region.superblock);

    assert_eq!(serving.sessions().living_count(), 0, "the conversation is over, and so is its session");
    assert!(!serving.sessions().some_linger(), "nobody has the region mapped");
    for _ in 0..LAST_ROUNDS {
        janitor.rounds.round(serving);
    }
    check_pool(serving);
}

/// The sums are right, and so is the list; no memory belongs to a session that is over, or waits for something.
fn check_pool(serving: &Serving) {
    let pool = serving.pool();
    let accounts = pool.accounts();
    let sum = accounts.free_bytes + accounts.reserve_bytes + accounts.granted_bytes();
    assert_eq!(sum, accounts.pool_bytes, "{accounts:?}");
    let waiting = [accounts.session, accounts.returned, accounts.orphan];
    assert!(waiting.iter().all(|share| share.chunks == 0 && share.bytes == 0), "{accounts:?}");
    let page = pool.page(0, u16::MAX);
    assert!(!page.more, "a small pool's grants are one page");
    let mut end = 0;
    let mut bytes = 0;
    for grant in &page.grants {
        assert!(grant.offset >= end && grant.holder == GrantHolder::Nobody, "{grant:?}");
        end = grant.offset + chunk_bytes(grant.class);
        bytes += chunk_bytes(grant.class);
    }
    assert_eq!(bytes, accounts.granted_bytes(), "{accounts:?}");
}

fn chunk_bytes(class: u8) -> u64 {
    chunk_shape(SizeClass::from_index(class).expect("a class")).bytes
}

/// The node's janitor, a round at a time.
struct Janitor<'a> {
    serving: &'a Serving,
    chores: &'a [Chore],
    next: usize,
    rounds: Rounds,
}

impl Janitor<'_> {
    /// Does the next chore.
    fn work(&mut self) {
        let Some(chore) = self.chores.get(self.next % self.chores.len().max(1)) else { return };
        self.next += 1;
        match chore {
            Chore::Rest => return,
            Chore::Round => {}
            Chore::Death => {
                let death = Death { session: SessionId(u32::MAX), noticed: Instant::now(), chunks: 0 };
                self.serving.sweeps().note_death(death);
            }
        }
        self.rounds.round(self.serving);
    }
}

/// Says all pieces, and hears all that is answered.
async fn talk(node: &Arc<Node>, peer: Peer, pieces: &[&[u8]], janitor: &mut Janitor<'_>) -> Vec<u8> {
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
            janitor.work();
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
    let mut books = Books::new(superblock);
    while !rest.is_empty() {
        let response: Response = read_frame(&mut rest).expect("whole responses");
        if let Response::Notice(pulse) = &response {
            books.hear(pulse);
            continue;
        }
        let request: Request = read_frame(&mut requests).expect("a request for each response");
        books.enter(&request, &response);
    }
}

/// What the session knows by the answers alone. It is the only one.
struct Books<'a> {
    superblock: &'a Superblock,
    /// Its chunks, and how many bytes they have.
    held: BTreeMap<u64, u64>,
    /// Where there was one that it gave back, how many bytes that had, and the epoch that it had acknowledged then.
    returned: Vec<(u64, u64, u64)>,
    /// The epoch that it has acknowledged; none before the welcome.
    acknowledged: Option<u64>,
    last: Pulse,
}

impl<'a> Books<'a> {
    fn new(superblock: &'a Superblock) -> Self {
        let (held, returned) = (BTreeMap::new(), Vec::new());
        Self { superblock, held, returned, acknowledged: None, last: Pulse::default() }
    }

    fn enter(&mut self, request: &Request, response: &Response) {
        match (request, response) {
            (_, Response::Refused(refusal)) => assert!(!refusal.message.is_empty()),
            (Request::Hello(hello), Response::Welcome(welcome)) => {
                assert_eq!(Superblock::parse(&welcome.superblock), Ok(*self.superblock));
                assert!(hello.fabrics.contains(&welcome.join.kind()), "a fabric that was asked for");
                assert!(self.acknowledged.replace(welcome.epoch).is_none(), "a second welcome");
            }
            (Request::Chunks { class, count, .. }, Response::Chunks(grants)) => {
                assert!(!grants.is_empty() && grants.len() <= usize::from(*count));
                for grant in grants {
                    assert_eq!(grant.class, *class);
                    self.grant(grant);
                }
            }
            (Request::ReturnChunks(chunks), Response::ChunksReturned) => {
                assert!(chunks.len() <= ReturnedChunk::COUNT_MAX);
                for chunk in chunks {
                    let bytes = self.held.remove(&chunk.offset);
                    let bytes = bytes.unwrap_or_else(|| panic!("{:#x} is not held", chunk.offset));
                    self.returned.push((chunk.offset, bytes, self.acknowledged.expect("a session")));
                }
            }
            (Request::Heartbeat { epoch, .. }, Response::Heartbeat(pulse)) => {
                let before = self.acknowledged.replace(*epoch).expect("a session");
                assert!(before <= *epoch && *epoch <= pulse.epoch, "{epoch} after {before}: {pulse:?}");
                self.hear(pulse);
            }
            (Request::Audit { chunks, .. }, Response::Audited(audited)) => self.check_audit(chunks, audited),
            (Request::Grants { from, count }, Response::Grants(page)) => self.check_page(*from, *count, page),
            (Request::ReportBucket(report), Response::BucketReported) => {
                assert!(u64::from(report.entry) < self.superblock.geometry.directory_entries());
            }
            (Request::Rejoin, Response::Rejoined(_))
            | (Request::Statistics, Response::Statistics(_))
            | (Request::Goodbye, Response::Goodbye) => {}
            (request, response) => panic!("{response:?} is no response to {request:?}"),
        }
    }

    /// Nothing goes back, nothing is quiesced that the session did not acknowledge, and the directory's entries are some of
    /// its own.
    fn hear(&mut self, pulse: &Pulse) {
        let acknowledged = self.acknowledged.expect("nothing is said unasked before the welcome");
        assert!(pulse.epoch >= self.last.epoch && pulse.quiesced == acknowledged, "{pulse:?}");
        assert!(pulse.audit_begun >= self.last.audit_begun && pulse.audit_done >= self.last.audit_done);
        assert!(pulse.quiesced <= pulse.epoch && pulse.audit_done <= pulse.audit_begun, "{pulse:?}");
        if let DirectoryChanges::Runs(runs) = &pulse.changes {
            let entries = self.superblock.geometry.directory_entries();
            let is_right =
                |first: u32, count: u32| count > 0 && u64::from(first) + u64::from(count) <= entries;
            assert!(runs.iter().all(|run| is_right(run.first, run.count)), "{runs:?}");
            assert!(runs.len() <= DirectoryChanges::RUNS_MAX);
        }
        self.last = pulse.clone();
    }

    /// The index is empty: whatever was asked about, it reaches nothing.
    fn check_audit(&self, asked: &[u64], audited: &[AuditedChunk]) {
        assert!(asked.len() <= AuditedChunk::COUNT_MAX);
        let mut asked = asked.iter();
        for chunk in audited {
            assert!(asked.any(|offset| *offset == chunk.offset), "{chunk:?} was not asked about, or before");
            assert!(self.held.contains_key(&chunk.offset), "{chunk:?} is not held");
            assert!(chunk.reached.iter().all(|bits| *bits == 0), "{chunk:?}");
        }
    }

    /// What the session holds is in the list, and nobody else's is.
    fn check_page(&self, from: u64, count: u16, page: &GrantPage) {
        let grants = &page.grants;
        assert!(grants.len() <= usize::from(count.max(1)) && grants.is_sorted_by_key(|grant| grant.offset));
        let sessions: Vec<u64> = grants
            .iter()
            .filter(|grant| grant.holder == GrantHolder::Session)
            .map(|grant| grant.offset)
            .collect();
        let end = if page.more { grants.last().map_or(from, |last| last.offset + 1) } else { u64::MAX };
        let held: Vec<u64> = self.held.range(from..end.max(from)).map(|(offset, _)| *offset).collect();
        assert_eq!(sessions, held, "{page:?}");
    }

    fn grant(&mut self, grant: &ChunkGrant) {
        // A client takes any two grants that do not overlap.
        let geometry = &self.superblock.geometry;
        Allocator::new().add(geometry, grant, ChunkPurpose::General).expect("a chunk in the pool");
        let bytes = chunk_bytes(grant.class);
        let is_apart = |offset: u64, bytes_there: u64| {
            offset + bytes_there <= grant.offset || grant.offset + bytes <= offset
        };
        for (offset, bytes) in &self.held {
            assert!(is_apart(*offset, *bytes), "{grant:?} overlaps the chunk at {offset:#x}");
        }
        let acknowledged = self.acknowledged.expect("a session");
        self.returned.retain(|(offset, bytes, before)| {
            let is_apart = is_apart(*offset, *bytes);
            assert!(is_apart || acknowledged > *before, "{grant:?} was given back in epoch {before}");
            is_apart
        });
        self.held.insert(grant.offset, bytes);
    }
}
