//! A session's upkeep over a fabric that is only memory, with what the server says put into its news by hand.

use sidestep_common::fabric::SessionId;
use sidestep_common::layout::{BlockRef, DirectoryWord, SlotState, SlotWord, free_map_offset};
use sidestep_common::memory::WordMemory;
use sidestep_common::wire::{
    BucketReport, ChunkGrant, ChunkPurpose, DirectoryChanges, DirectoryRun, Pulse, RefusalCode, Response,
    read_frame, write_frame,
};

use super::*;
use crate::bootstrap::{ReadPiece, read_directory};
use crate::control::{Control, Errand};
use crate::driver::Stop;
use crate::error::Error;
use crate::link::Member;
use crate::operation::change::{Change, Changed};
use crate::operation::tests::world::{SEED, World};
use crate::region_view::RegionView;
use crate::statistics::{Counters, SharedCounters};
use crate::testing::{InMemory, LONG, channel_to_peer};

const GRACE_MS: u64 = 30;

/// A region and a session that has joined it, whose control channel ends in the test.
pub(crate) struct Bed {
    pub(crate) world: World,
    pub(crate) link: Link,
    pub(crate) peer: std::net::TcpStream,
}

fn deadline() -> Deadline {
    Deadline::after(LONG)
}

impl Bed {
    pub(crate) fn new() -> Self {
        let mut world = World::new();
        world.superblock.grace_ms = GRACE_MS;
        let mut driver = Driver::new(Box::new(InMemory::new(world.memory)), 1);
        let directory = read_directory(&mut driver, &world.superblock, "test", deadline()).unwrap();
        let view = Arc::new(RegionView { superblock: world.superblock, directory });
        let (control, peer) = channel_to_peer();
        control.begin_in(1);
        let control = Arc::new(control);
        let counters = SharedCounters::new(Counters::default());
        let ground = SessionGround::new("test".into(), &control, view, SessionId(1), &counters);
        let member = Member { control, ground, value_bytes_max: 1 << 20 };
        Self { world, link: Link { driver, member }, peer }
    }

    fn control(&self) -> &Control {
        &self.link.member.control
    }

    fn memory(&self) -> WordMemory {
        self.world.memory
    }

    /// The session gets a chunk of the pool; `number` of them were granted before.
    pub(crate) fn grant(&mut self, class: sidestep_common::layout::SizeClass, number: u64) {
        let geometry = self.world.superblock.geometry;
        let offset = geometry.block_pool_offset.0 + (number << 20);
        let grant = ChunkGrant { offset, class: class.index(), versions: Vec::new() };
        self.link.member.ground.allocator.add(&geometry, &grant, ChunkPurpose::General).unwrap();
    }

    pub(crate) fn put(&mut self, key: &[u8], value: &[u8], deadline: Deadline) -> Result<Changed, Stop> {
        let Link { driver, member } = &mut self.link;
        driver.aside(&mut member.ground, Change::put(key, value, SEED).unwrap(), deadline)
    }

    fn pulse(&self, pulse: Pulse) {
        self.control().news.hear(pulse, None);
    }

    fn attend(&mut self) -> bool {
        attend(&mut self.link, deadline())
    }

    /// What would be sent.
    fn errands(&self) -> Vec<Request> {
        let next = || match self.control().next_errand(false) {
            Some(Errand::Request(request)) => Some(request),
            Some(Errand::Heartbeat) => panic!("not before it is due"),
            None => None,
        };
        std::iter::from_fn(next).collect()
    }

    fn block_of(&self, key: &[u8]) -> BlockRef {
        let word = SlotWord::from_bits(self.memory().load(self.world.slot(key, 0)).unwrap());
        let SlotState::Live(block) = word.state() else { panic!("{word:?}") };
        block
    }

    fn mark_of(&self, block: BlockRef) -> u8 {
        let mut mark = [0];
        self.memory().read(free_map_offset(block).unwrap(), &mut mark).unwrap();
        mark[0]
    }
}

static VALUE: [u8; 100 << 10] = [7; 100 << 10];

fn class() -> sidestep_common::layout::SizeClass {
    sidestep_common::layout::SizeClass::holding(VALUE.len() as u64 + 64).unwrap()
}

/// An epoch with a directory word that has changed, and a mark that is still under way: when the epoch is acknowledged, the
/// word is known and the mark is made.
#[test]
pub(crate) fn an_epoch_is_acknowledged_when_all_before_it_is_done() {
    let mut bed = Bed::new();
    bed.grant(class(), 0);
    bed.put(b"k", &VALUE, deadline()).unwrap();
    let old = bed.block_of(b"k");
    bed.put(b"k", &VALUE, deadline()).unwrap();
    assert_eq!(bed.mark_of(old), 0, "it is under way");
    let geometry = bed.world.superblock.geometry;
    let newer = DirectoryWord { segment: 33, generation: 9, depth: geometry.directory_bits };
    bed.memory().store(geometry.directory_word_offset(5), newer.to_bits()).unwrap();
    for (epoch, changes) in [
        (2, DirectoryChanges::Runs(Vec::new())),
        (3, DirectoryChanges::Runs(vec![DirectoryRun { first: 5, count: 1 }])),
        (4, DirectoryChanges::All),
        // What can't be read is left out.
        (5, DirectoryChanges::Runs(vec![DirectoryRun { first: u32::MAX, count: u32::MAX }])),
    ] {
        bed.pulse(Pulse { epoch, changes, ..Pulse::default() });
        assert_eq!(bed.control().acknowledged(), epoch - 1);
        assert!(bed.attend());
        assert_eq!(bed.control().acknowledged(), epoch);
        assert_eq!(bed.mark_of(old), old.version.0);
        let known = bed.link.member.ground.view.directory.word(5);
        assert_eq!(known == newer, epoch >= 3, "{epoch}");
    }
    assert!(bed.control().has_errands(), "a heartbeat");
}

/// While the connection is broken nobody knows what became of the last CAS: the epoch waits until it is resolved over another.
#[test]
fn a_broken_connection_acknowledges_nothing() {
    let mut bed = Bed::new();
    let mut lost = InMemory::new(bed.memory());
    lost.is_lost = true;
    bed.link.driver = Driver::new(Box::new(lost), 1);
    bed.pulse(Pulse { epoch: 2, ..Pulse::default() });
    assert!(!bed.attend(), "the READ fails");
    assert!(bed.link.driver.is_broken());
    assert!(!bed.attend());
    assert_eq!(bed.control().acknowledged(), 1);
    bed.link.driver = Driver::new(Box::new(InMemory::new(bed.memory())), 1);
    assert!(bed.attend(), "the pulse was kept");
    assert_eq!(bed.control().acknowledged(), 2);
}

/// The whole of an audit: announced with an epoch, done, asked about, and what it did not reach is reclaimed.
#[test]
fn an_audit_gives_back_what_nobody_marked() {
    let mut bed = Bed::new();
    bed.grant(class(), 0);
    bed.put(b"k", &VALUE, deadline()).unwrap();
    let lost = bed.block_of(b"k");
    bed.put(b"k", &VALUE, deadline()).unwrap();
    bed.pulse(Pulse { epoch: 2, audit_begun: 1, ..Pulse::default() });
    assert!(bed.attend());
    // The mark went out with the acknowledgement's READ; as if its sender had died instead.
    bed.memory().write(free_map_offset(lost).unwrap(), &[0]).unwrap();
    bed.control().begin_in(2);
    assert_eq!(bed.errands(), []);
    for _ in 0..2 {
        bed.pulse(Pulse { epoch: 2, audit_begun: 1, audit_done: 1, ..Pulse::default() });
        assert!(bed.attend());
    }
    let chunk = bed.world.superblock.geometry.block_pool_offset.0;
    assert_eq!(bed.errands(), [Request::Audit { number: 1, chunks: vec![chunk] }], "asked once");
    bed.control().news.hear_audit(1, vec![AuditedChunk { offset: chunk, reached: vec![0b10] }]);
    assert!(bed.attend());
    assert_eq!(bed.mark_of(lost), lost.version.0);
    let allocator = &mut bed.link.member.ground.allocator;
    assert!(allocator.ripe_ms(class(), ChunkPurpose::General, GRACE_MS).is_some());
}

/// A server may grant few verbs in flight: what upkeep has to post then goes with several doorbells.
#[test]
fn upkeep_keeps_to_the_verbs_that_were_granted() {
    let mut bed = Bed::new();
    let mut narrow = InMemory::new(bed.memory());
    narrow.verbs_max = 2;
    bed.link.driver = Driver::new(Box::new(narrow), 1);
    for number in 0..3 {
        bed.grant(class(), number);
    }
    let blocks = 3 * sidestep_common::layout::chunk_shape(class()).block_count;
    for _ in 0..blocks {
        let allocator = &mut bed.link.member.ground.allocator;
        let block = allocator.allocate(class(), ChunkPurpose::General).unwrap();
        allocator.published(block);
    }
    let changes =
        DirectoryChanges::Runs((0..5).map(|entry| DirectoryRun { first: entry, count: 1 }).collect());
    bed.pulse(Pulse { epoch: 2, audit_begun: 1, changes, ..Pulse::default() });
    assert!(attend(&mut bed.link, Deadline::after(UPKEEP_TIME)));
    assert_eq!(bed.control().acknowledged(), 2);
    // Three maps, none of which says that a block is free.
    assert!(tidy(
        &mut bed.link.driver,
        &mut bed.link.member.ground,
        Give::Empty,
        Deadline::after(UPKEEP_TIME)
    ));
    let pool = bed.world.superblock.geometry.block_pool_offset.0;
    let audited = |number: u64| AuditedChunk { offset: pool + (number << 20), reached: Vec::new() };
    bed.control().news.hear_audit(1, (0..3).map(audited).collect());
    assert!(attend(&mut bed.link, Deadline::after(UPKEEP_TIME)));
    assert!(bed.link.member.ground.allocator.ripe_ms(class(), ChunkPurpose::General, GRACE_MS).is_some());
}

/// An audit is done, and the next one announced, in one pulse: the one that is done is asked about before the next is noted,
/// and its result counts.
#[test]
fn audits_that_follow_each_other_are_all_asked_about() {
    let mut bed = Bed::new();
    bed.grant(class(), 0);
    bed.put(b"k", &VALUE, deadline()).unwrap();
    let lost = bed.block_of(b"k");
    bed.put(b"k", &VALUE, deadline()).unwrap();
    bed.pulse(Pulse { epoch: 2, audit_begun: 1, ..Pulse::default() });
    assert!(bed.attend());
    bed.memory().write(free_map_offset(lost).unwrap(), &[0]).unwrap();
    bed.pulse(Pulse { epoch: 3, audit_begun: 2, audit_done: 1, ..Pulse::default() });
    assert!(bed.attend());
    bed.control().begin_in(3);
    let offset = bed.world.superblock.geometry.block_pool_offset.0;
    assert_eq!(bed.errands(), [Request::Audit { number: 1, chunks: vec![offset] }]);
    bed.control().news.hear_audit(1, vec![AuditedChunk { offset, reached: vec![0b10] }]);
    assert!(bed.attend());
    assert_eq!(bed.mark_of(lost), lost.version.0);
}

/// The server is short of memory: a session whose values are all deleted gives its chunk back, after the grace period.
#[test]
fn memory_that_is_wanted_goes_back() {
    let mut bed = Bed::new();
    bed.grant(class(), 0);
    bed.put(b"k", &VALUE, deadline()).unwrap();
    let wants = || Pulse { epoch: 1, wants_memory: true, ..Pulse::default() };
    bed.pulse(wants());
    assert!(bed.attend());
    assert_eq!(bed.errands(), [], "a slot names a block of it");
    let small = sidestep_common::layout::SizeClass::holding(64).unwrap();
    bed.grant(small, 1);
    bed.put(b"k", b"short", deadline()).unwrap();
    let began = std::time::Instant::now();
    let offset = bed.world.superblock.geometry.block_pool_offset.0;
    loop {
        assert!(began.elapsed() < LONG);
        bed.pulse(wants());
        assert!(bed.attend());
        let sent = bed.errands();
        if !sent.is_empty() {
            let returned = ReturnedChunk { offset, versions: vec![1], empty: true };
            assert_eq!(sent, [Request::ReturnChunks(vec![returned])]);
            break;
        }
        std::thread::yield_now();
    }
    assert!(began.elapsed() >= Duration::from_millis(GRACE_MS));
}

/// An idle session gives back all it has if memory is short: chunks with values in them too, but none with a block in limbo.
#[test]
fn idle_sessions_keep_no_memory_that_is_wanted() {
    let mut bed = Bed::new();
    bed.grant(class(), 0);
    bed.put(b"k", &VALUE, deadline()).unwrap();
    assert!(tidy_idle(&mut bed.link, deadline()));
    assert_eq!(bed.errands(), [], "nobody wants it");
    bed.pulse(Pulse { epoch: 1, wants_memory: true, ..Pulse::default() });
    assert!(bed.attend());
    assert_eq!(bed.errands(), [], "a slot names a block of it");
    let limbo = bed.link.member.ground.allocator.allocate(class(), ChunkPurpose::General).unwrap();
    assert!(tidy_idle(&mut bed.link, deadline()));
    assert_eq!(bed.errands(), []);
    bed.link.member.ground.allocator.give_back(limbo);
    assert!(tidy_idle(&mut bed.link, deadline()));
    let offset = bed.world.superblock.geometry.block_pool_offset.0;
    let returned = ReturnedChunk { offset, versions: vec![1], empty: false };
    assert_eq!(bed.errands(), [Request::ReturnChunks(vec![returned])]);
}

/// Inserts into late slots leave a hint, which is sent once.
#[test]
fn buckets_that_fill_up_are_reported_once() {
    let mut bed = Bed::new();
    bed.grant(sidestep_common::layout::SizeClass::holding(64).unwrap(), 0);
    let keys = crate::operation::tests::world::colliding(&bed.world, b"full", 31, false);
    for key in &keys {
        bed.put(key, b"v", deadline()).unwrap();
    }
    assert!(bed.link.member.ground.has_hints());
    bed.attend();
    let hash = sidestep_common::hash::KeyHash::of(&keys[0], SEED);
    let entry = hash.directory_index(bed.world.superblock.geometry.directory_bits) as u32;
    let report = BucketReport { entry, generation: 1, full: false };
    assert_eq!(bed.errands(), [Request::ReportBucket(report)]);
    // The next session's view of the same bucket.
    assert!(!bed.link.member.ground.has_hints());
}

/// The server has no memory left, but a value was overwritten a moment ago: its block ripens, and the put waits for it. With
/// less time than that it is told at once.
#[test]
fn out_of_memory_waits_for_what_ripens() {
    let mut bed = Bed::new();
    bed.grant(class(), 0);
    let mut peer = bed.peer.try_clone().unwrap();
    let server = std::thread::spawn(move || {
        let mut refused = 0;
        while let Ok(request) = read_frame::<Request>(&mut peer) {
            assert!(matches!(request, Request::Chunks { .. }));
            let code = RefusalCode::OutOfMemory;
            let refusal = sidestep_common::wire::Refusal { code, message: "none left".into() };
            write_frame(&mut peer, &Response::Refused(refusal)).unwrap();
            refused += 1;
        }
        refused
    });
    let blocks = sidestep_common::layout::chunk_shape(class()).block_count;
    for number in 0..blocks {
        bed.put(&[b'a' + number as u8], &VALUE, deadline()).unwrap();
    }
    let stop = bed.put(b"z", &VALUE, deadline()).unwrap_err();
    assert!(matches!(stop, Stop::Error(Error::OutOfMemory(_))), "{stop:?}");
    // A mark, as another client's put would leave it.
    let block = bed.block_of(b"a");
    bed.memory().write(free_map_offset(block).unwrap(), &[block.version.0]).unwrap();
    // In the millisecond of the last look nobody looks again.
    let looked_ms = crate::clock::now_ms();
    while crate::clock::now_ms() == looked_ms {
        std::thread::yield_now();
    }
    let began = std::time::Instant::now();
    let stop = bed.put(b"z", &VALUE, Deadline::after(Duration::from_millis(5))).unwrap_err();
    assert!(matches!(stop, Stop::Error(Error::OutOfMemory(_)) | Stop::Timeout(_)), "{stop:?}");
    assert_eq!(bed.put(b"z", &VALUE, deadline()).unwrap(), Changed::Stored);
    assert!(began.elapsed() >= Duration::from_millis(GRACE_MS), "{:?}", began.elapsed());
    assert_eq!(bed.block_of(b"z").offset, block.offset);
    assert_eq!(bed.block_of(b"z").version, block.version.next());
    drop(bed);
    assert!(server.join().unwrap() >= 2);
}

/// A bucket without room: the server says that it will be rebuilt, and the put waits for that; or that the index can't grow,
/// and the put fails without having changed anything.
#[test]
fn a_full_bucket_is_reported_and_waited_for() {
    let mut bed = Bed::new();
    bed.grant(sidestep_common::layout::SizeClass::holding(64).unwrap(), 0);
    let keys = crate::operation::tests::world::colliding(&bed.world, b"full", 32, false);
    for key in &keys[..31] {
        bed.put(key, b"v", deadline()).unwrap();
    }
    let mut peer = bed.peer.try_clone().unwrap();
    let (memory, room) = (bed.memory(), bed.world.slot(&keys[0], 30));
    let server = std::thread::spawn(move || {
        let full: Request = read_frame(&mut peer).unwrap();
        let Request::ReportBucket(report) = full else { panic!("{full:?}") };
        assert!(report.full);
        let code = RefusalCode::IndexFull;
        let refusal = sidestep_common::wire::Refusal { code, message: "no segment left".into() };
        write_frame(&mut peer, &Response::Refused(refusal)).unwrap();
        assert_eq!(read_frame::<Request>(&mut peer).unwrap(), full);
        write_frame(&mut peer, &Response::BucketReported).unwrap();
        // As good as a rebuild: there is a slot now. It may be reported once more before that is seen.
        memory.store(room, 0).unwrap();
        while let Ok(again) = read_frame::<Request>(&mut peer) {
            assert_eq!(again, full);
            write_frame(&mut peer, &Response::BucketReported).unwrap();
        }
    });
    let stop = bed.put(&keys[31], b"v", deadline()).unwrap_err();
    let is_full = |stop: &Stop| {
        matches!(stop, Stop::Error(Error::Operation(crate::operation::OperationError::BucketFull { .. })))
    };
    assert!(is_full(&stop), "{stop:?}");
    assert_eq!(bed.put(&keys[31], b"v", deadline()).unwrap(), Changed::Stored);
    drop(bed);
    server.join().unwrap();
}

/// A READ over the link, for those who want to see that it is good.
#[test]
fn upkeep_leaves_the_link_as_it_was() {
    let mut bed = Bed::new();
    bed.link.driver.start_trace();
    bed.pulse(Pulse { epoch: 2, ..Pulse::default() });
    assert!(bed.attend());
    let Link { driver, member } = &mut bed.link;
    let mut result = Err(Stop::Timeout(None));
    driver
        .run(&mut member.ground, &mut [ReadPiece::probe(8)], deadline(), |finished| result = finished.result);
    assert!(result.is_ok());
    let trace = driver.take_trace().unwrap().finish();
    assert_eq!(trace.verbs.len(), 1, "its verbs are in no trace: {trace:?}");
}
