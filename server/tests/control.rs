//! The control protocol, spoken by a client that speaks nothing else, against a server in this process.

mod bed;

use std::io::{Read, Write};
use std::time::{Duration, Instant};

use bed::{Control, Folder, config, eventually, hello, is_closed, join, read, start, tcp, try_join};
use sidestep_common::fabric::{FabricKind, Join, Rights, SessionId};
use sidestep_common::layout::{
    AtomicityDomain, BlockPlace, CHUNK_BYTES, DirectoryWord, Offset, SizeClass, SlotWord, Superblock,
    TICK_OFFSET, Tag, VALUE_BYTES_MAX, Version, chunk_shape,
};
use sidestep_common::wire::{
    BucketReport, ChunkGrant, ChunkPurpose, DirectoryChanges, DirectoryRun, GrantHolder, GrantRecord, Hello,
    Preamble, Pulse, Refusal, RefusalCode, Request, Response, ReturnedChunk, write_frame,
};
use sidestep_server::config::{ByteSize, Secret, Transport};
use sidestep_server::node::{End, Peer};
use sidestep_server::{Config, Running};

fn connected(server: &Running) -> Control {
    Control::tcp(server.control())
}

fn chunks(class: u8, count: u16) -> Request {
    Request::Chunks { class, count, purpose: ChunkPurpose::General }
}

fn heartbeat(epoch: u64) -> Request {
    Request::Heartbeat { epoch, wants_epoch: false }
}

/// Acknowledges an epoch and is told how things stand.
fn pulse(control: &mut Control, epoch: u64) -> Pulse {
    match control.ask(&heartbeat(epoch)) {
        Response::Heartbeat(pulse) => pulse,
        other => panic!("{other:?}"),
    }
}

/// Acknowledges whatever epoch is the newest, until `done`.
fn acknowledging(control: &mut Control, what: &str, mut done: impl FnMut(&Pulse) -> bool) -> Pulse {
    let mut last = pulse(control, 1.max(control.heard.epoch));
    eventually(what, || {
        last = pulse(control, last.epoch);
        done(&last)
    });
    last
}

fn returned(chunk: &ChunkGrant, versions: Vec<u8>, empty: bool) -> Request {
    Request::ReturnChunks(vec![ReturnedChunk { offset: chunk.offset, versions, empty }])
}

fn granted(control: &mut Control, class: u8, count: u16) -> Vec<ChunkGrant> {
    match control.ask(&chunks(class, count)) {
        Response::Chunks(granted) => granted,
        other => panic!("{other:?}"),
    }
}

fn is_out_of_memory(code: RefusalCode) -> bool {
    matches!(code, RefusalCode::OutOfMemory | RefusalCode::MemoryReturning)
}

fn class(bytes: u64) -> u8 {
    SizeClass::holding(bytes).unwrap().index()
}

/// A welcome has everything to reach the region with: the superblock read through the data path is the one of the
/// welcome, and the tick runs.
#[test]
fn a_session_reaches_the_region_over_tcp() {
    let server = start(config(Transport::Tcp));
    let mut control = connected(&server);
    let welcome = control.hello(hello(&[FabricKind::Verbs, FabricKind::Shm, FabricKind::Tcp]));
    assert_eq!(welcome.value_bytes_max as usize, VALUE_BYTES_MAX);
    assert_eq!(welcome.admin, server.admin().map(|admin| admin.to_string()));
    let superblock = Superblock::parse(&welcome.superblock).unwrap();
    assert_eq!(superblock.domain, AtomicityDomain::Cpu);
    assert_ne!(superblock.incarnation, 0);
    assert!(matches!(welcome.join, Join::Tcp { port, .. } if port == server.control().port()));
    let mut fabric = join(&welcome, &welcome.join);
    let bytes = read(&mut *fabric, Offset(0), 4096).unwrap();
    assert_eq!(Superblock::parse(&bytes), Ok(superblock));
    let mut tick = || read(&mut *fabric, TICK_OFFSET, 8).unwrap();
    let first = tick();
    eventually("the tick runs", || tick() != first);
    let Response::Statistics(statistics) = control.ask(&Request::Statistics) else { panic!() };
    assert_eq!((statistics.session_count, statistics.incarnation), (1, superblock.incarnation));
    assert!(statistics.cpu_user_us + statistics.cpu_system_us > 0);
    assert_eq!(control.ask(&Request::Goodbye), Response::Goodbye);
    assert!(control.is_closed());
    assert_eq!(read(&mut *fabric, Offset(0), 8), None, "the data path ends with its session");
    assert_eq!(server.statistics().session_count, 0);
}

/// Over the Unix socket, and from the TCP port to the same region: one region, two fabrics.
#[test]
fn shm_and_tcp_serve_one_region() {
    let folder = Folder::new("one-region");
    let socket = Some(folder.0.join("s.sock"));
    let server = start(Config { socket, ..config(Transport::Auto) });
    let mut control = Control::unix(server.socket().unwrap());
    let welcome = control.hello(hello(&[FabricKind::Shm, FabricKind::Tcp]));
    assert!(matches!(welcome.join, Join::Shm { .. }));
    let mut mapped = join(&welcome, &welcome.join);
    let mut over_tcp = connected(&server);
    let other = over_tcp.hello(hello(&[FabricKind::Tcp]));
    let mut framed = join(&other, &other.join);
    assert_eq!(other.superblock, welcome.superblock);
    let directory = Superblock::parse(&welcome.superblock).unwrap().geometry.directory_offset;
    let words = read(&mut *mapped, directory, 256).unwrap();
    assert_eq!(read(&mut *framed, directory, 256).unwrap(), words);
    assert!(words.iter().any(|byte| *byte != 0));
    // A client at the socket has no address to follow, so it is given one.
    let mut third = Control::unix(server.socket().unwrap());
    let third = third.hello(hello(&[FabricKind::Tcp]));
    assert!(matches!(third.join, Join::Tcp { host: Some(host), .. } if host == "127.0.0.1"));
}

/// A client on another host must not be sent to a socket that it can't reach; it is told what is served.
#[test]
fn shm_is_for_the_same_host() {
    let folder = Folder::new("same-host");
    let socket = Some(folder.0.join("s.sock"));
    let server = start(Config { socket, ..config(Transport::Shm) });
    let elsewhere = Hello { boot_id: "another".into(), ..hello(&[FabricKind::Shm, FabricKind::Tcp]) };
    let refusal = connected(&server).refused(&Request::Hello(elsewhere));
    assert_eq!(refusal.code, RefusalCode::Fabric);
    assert!(refusal.message.contains("serves shm") && refusal.message.contains("host"), "{refusal}");
    let refusal = connected(&server).refused(&Request::Hello(hello(&[FabricKind::Verbs])));
    assert!(refusal.message.contains("takes verbs"), "{refusal}");
    let refusal = connected(&server).refused(&Request::Hello(hello(&[])));
    assert_eq!(refusal.code, RefusalCode::Invalid);
}

/// Another version is told ours, whatever it sends behind; then the connection ends.
#[test]
fn another_version_is_told_ours() {
    let server = start(config(Transport::Tcp));
    let mut stream = tcp(server.control());
    stream.write_all(b"SDSTEPC\x63 and much that only version 99 understands").unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    assert_eq!(Preamble::parse(answer.try_into().unwrap()).unwrap().encode()[..6], *b"SDSTEP");
}

/// Browsers, port scanners and random bytes: closed without a word, and others are served.
#[test]
fn other_protocols_are_turned_away() {
    let server = start(config(Transport::Tcp));
    let mut random = vec![0; 1 << 20];
    getrandom::fill(&mut random).unwrap();
    for bytes in [&b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"[..], b"SSH-2.0-OpenSSH_9.2\r\n", &random] {
        let mut stream = tcp(server.control());
        let _ = stream.write_all(bytes);
        assert!(is_closed(&mut stream));
    }
    // Frames that lie about their length, in place of a hello and behind one.
    for length in [0, 64 * 1024 + 1, 1 << 31, u32::MAX] {
        let mut control = connected(&server);
        control.stream.write_all(&length.to_le_bytes()).unwrap();
        assert!(control.is_closed(), "{length}");
        let mut control = connected(&server);
        control.hello(hello(&[FabricKind::Tcp]));
        control.stream.write_all(&length.to_le_bytes()).unwrap();
        assert!(control.is_closed(), "{length}");
    }
    let mut control = connected(&server);
    let welcome = control.hello(hello(&[FabricKind::Tcp]));
    assert!(read(&mut *join(&welcome, &welcome.join), Offset(0), 8).is_some());
    eventually("sessions of lost connections end", || server.statistics().session_count == 1);
}

/// Connections that say nothing, or not enough, are closed when their time is over; meanwhile they keep nobody
/// else out for longer than that, however many they are.
#[test]
fn half_open_connections_end() {
    let server = start(Config { handshake_ms: 300, ..config(Transport::Tcp) });
    let before = Instant::now();
    // One that stops within its preamble, one that was greeted and says no hello, many that say nothing.
    let mut cut = tcp(server.control());
    cut.write_all(b"SDS").unwrap();
    let greeted = connected(&server);
    let mut silent: Vec<_> = (0..400).map(|_| tcp(server.control())).collect();
    let mut control = connected(&server);
    control.hello(hello(&[FabricKind::Tcp]));
    assert!(before.elapsed() < Duration::from_secs(10));
    for mut stream in silent.drain(..).chain([cut]) {
        assert!(is_closed(&mut stream));
    }
    let Control { mut stream, .. } = greeted;
    assert!(is_closed(&mut stream));
    assert!(matches!(control.ask(&heartbeat(0)), Response::Refused(_)));
    assert!(matches!(control.ask(&Request::Statistics), Response::Statistics(_)), "it goes on");
}

#[test]
fn the_first_message_is_a_hello_and_the_only_one() {
    let server = start(config(Transport::Tcp));
    let mut control = connected(&server);
    assert_eq!(control.refused(&Request::Statistics).code, RefusalCode::Invalid);
    assert!(control.is_closed());
    let mut control = connected(&server);
    control.hello(hello(&[FabricKind::Tcp]));
    assert_eq!(control.refused(&Request::Hello(hello(&[FabricKind::Tcp]))).code, RefusalCode::Invalid);
    let refusal = control.refused(&heartbeat(1000));
    assert!(refusal.message.contains("1000"), "{refusal}");
    assert_eq!(pulse(&mut control, 1), Pulse { epoch: 1, quiesced: 1, ..Pulse::default() });
}

#[test]
fn tokens_keep_strangers_out() {
    let server = start(Config { token: Some(Secret::new("s3cret")), ..config(Transport::Tcp) });
    for token in [None, Some(""), Some("s3cre"), Some("s3cret!")] {
        let stranger = Hello { token: token.map(Into::into), ..hello(&[FabricKind::Tcp]) };
        let refusal = connected(&server).refused(&Request::Hello(stranger));
        assert_eq!(refusal.code, RefusalCode::Credentials, "{token:?}");
        assert!(!refusal.message.contains("s3cret"));
    }
    let friend = Hello { token: Some("s3cret".into()), ..hello(&[FabricKind::Tcp]) };
    connected(&server).hello(friend);
}

#[test]
fn sessions_have_a_limit_that_ended_ones_do_not_count_for() {
    let server = start(Config { max_sessions: 2, ..config(Transport::Tcp) });
    let mut first = connected(&server);
    first.hello(hello(&[FabricKind::Tcp]));
    let mut second = connected(&server);
    second.hello(hello(&[FabricKind::Tcp]));
    let refusal = connected(&server).refused(&Request::Hello(hello(&[FabricKind::Tcp])));
    assert_eq!(refusal.code, RefusalCode::SessionLimit);
    assert!(refusal.message.contains('2'), "{refusal}");
    first.ask(&Request::Goodbye);
    connected(&server).hello(hello(&[FabricKind::Tcp]));
    drop(second);
    eventually("the closed connection's session ends", || {
        matches!(connected(&server).ask(&Request::Hello(hello(&[FabricKind::Tcp]))), Response::Welcome(_))
    });
}

/// A client that stops to send heartbeats is fenced though its connections are open: its verbs fail, it is told so
/// at its next word, and nobody fences it twice.
#[test]
fn a_lease_runs_out_once() {
    let server = start(Config { lease_ms: 300, ..config(Transport::Tcp) });
    let mut quiet = connected(&server);
    let welcome = quiet.hello(hello(&[FabricKind::Tcp]));
    let mut fabric = join(&welcome, &welcome.join);
    assert!(read(&mut *fabric, Offset(0), 8).is_some());
    let mut busy = connected(&server);
    let busy_welcome = busy.hello(hello(&[FabricKind::Tcp]));
    let mut busy_fabric = join(&busy_welcome, &busy_welcome.join);
    eventually("the quiet session is fenced", || {
        let epoch = busy.heard.epoch;
        pulse(&mut busy, epoch.max(1));
        server.statistics().sessions_fenced_total == 1
    });
    assert_eq!(read(&mut *fabric, Offset(0), 8), None);
    if let Some(answer) = quiet.try_ask(&heartbeat(1)) {
        assert!(
            matches!(&answer, Response::Refused(refusal) if refusal.code == RefusalCode::Fenced),
            "{answer:?}"
        );
    }
    assert!(quiet.is_closed());
    let node = server.node();
    node.end_session(welcome.session, End::Disconnected);
    node.end_session(welcome.session, End::LeaseExpired);
    node.end_session(SessionId(77), End::Shutdown);
    let statistics = server.statistics();
    assert_eq!((statistics.sessions_fenced_total, statistics.session_count), (1, 1));
    let epoch = busy.heard.epoch;
    pulse(&mut busy, epoch.max(1));
    assert!(read(&mut *busy_fabric, Offset(0), 8).is_some(), "others go on");
}

/// A client dies: its session is over when its control connection is, long before the lease. Its chunks are swept at once, and
/// as the index reaches no block of them they are anybody's.
#[test]
fn a_lost_connection_ends_its_session() {
    let server = start(config(Transport::Tcp));
    let free_bytes = server.statistics().free_bytes;
    let mut control = connected(&server);
    let welcome = control.hello(hello(&[FabricKind::Tcp]));
    let mut fabric = join(&welcome, &welcome.join);
    granted(&mut control, class(64), 2);
    drop(control);
    eventually("the session is fenced", || server.statistics().sessions_fenced_total == 1);
    assert_eq!(read(&mut *fabric, Offset(0), 8), None);
    eventually("the index is swept", || server.statistics().sweeps_total == 1);
    let statistics = server.statistics();
    assert_eq!((statistics.swept_chunks_total, statistics.free_bytes), (2, free_bytes));
    assert_eq!((statistics.orphan_chunks, statistics.ownerless_chunks), (0, 0));
}

/// Publishes a block the way a client does: a word in a slot of the segment of the first directory entry.
fn publish(server: &Running, slot: u64, chunk: &ChunkGrant, block: u32, version: u8) {
    let serving = server.node().serving().unwrap();
    let (geometry, words) = (serving.region.superblock.geometry, serving.mapping.words());
    let entry = DirectoryWord::from_bits(words.load(geometry.directory_word_offset(0)).unwrap());
    let class = SizeClass::from_index(chunk.class).unwrap();
    let block = BlockPlace { chunk: Offset(chunk.offset), index: block }.block(class, Version(version));
    let word = SlotWord::live(Tag::from_low_bits(0), block, false);
    let slot = geometry.segment_offset(entry).unwrap().plus(8 * (1 + slot));
    words.store(slot, word.bits()).unwrap();
}

/// A session dies with a block published. Nothing of its chunk is granted before everybody has acknowledged an epoch, and then
/// another one: the first from before the scan, the second from after it. Then the chunk goes on with the versions that the
/// scan found, and the survivor is told what the index reaches of its own.
#[test]
fn the_dead_are_swept_when_everybody_has_acknowledged() {
    let server = start(config(Transport::Tcp));
    let (mut survivor, mut dying) = (connected(&server), connected(&server));
    let welcome = survivor.hello(hello(&[FabricKind::Tcp]));
    dying.hello(hello(&[FabricKind::Tcp]));
    assert_eq!(welcome.epoch, 1);
    let own = granted(&mut survivor, class(64), 1).remove(0);
    let orphans = granted(&mut dying, class(64), 1).remove(0);
    publish(&server, 0, &own, 5, 1);
    publish(&server, 1, &orphans, 3, 9);
    drop(dying);
    // Told unasked, before its next heartbeat.
    let notice = survivor.notice();
    assert_eq!((notice.epoch, notice.quiesced, notice.audit_begun, notice.audit_done), (2, 1, 1, 0));
    let orphan_count = || server.statistics().orphan_chunks;
    assert_eq!((orphan_count(), server.statistics().sweeps_total), (1, 0));
    let refusal = survivor.refused(&Request::Audit { number: 1, chunks: vec![own.offset] });
    assert!(refusal.message.contains("audit 1") && refusal.message.contains("done is 0"), "{refusal}");
    pulse(&mut survivor, 2);
    let notice = survivor.notice();
    assert_eq!((notice.epoch, notice.quiesced, notice.audit_begun, notice.audit_done), (3, 2, 1, 0));
    assert_eq!(orphan_count(), 1, "a mark may be under way");
    pulse(&mut survivor, 3);
    eventually("the audit is done", || pulse(&mut survivor, 3).audit_done == 1);
    let statistics = server.statistics();
    assert_eq!((statistics.orphan_chunks, statistics.ownerless_chunks), (0, 1));
    assert_eq!((statistics.swept_chunks_total, statistics.sweeps_total), (1, 1));
    let Response::Audited(found) = survivor.ask(&Request::Audit { number: 1, chunks: vec![own.offset] })
    else {
        panic!()
    };
    assert_eq!((found.len(), found[0].offset, &found[0].reached[..]), (1, own.offset, &[1 << 5][..]));
    let adopted = granted(&mut survivor, class(64), 1).remove(0);
    assert_eq!((adopted.offset, adopted.versions[3]), (orphans.offset, 9));
    let request = Request::Audit { number: 1, chunks: vec![adopted.offset] };
    assert_eq!(survivor.ask(&request), Response::Audited(vec![]), "it was not the survivor's then");
}

/// A client that is silent holds up nobody for longer than its lease; one that renews its lease and acknowledges nothing
/// does, and memory waits for it.
#[test]
fn who_does_not_acknowledge_is_waited_for_until_its_lease_ends() {
    let server = start(Config { lease_ms: 2000, ..config(Transport::Tcp) });
    let (mut good, mut silent) = (connected(&server), connected(&server));
    good.hello(hello(&[FabricKind::Tcp]));
    silent.hello(hello(&[FabricKind::Tcp]));
    let chunk = granted(&mut good, class(64), 1).remove(0);
    let free_bytes = server.statistics().free_bytes;
    assert_eq!(good.ask(&returned(&chunk, vec![], true)), Response::ChunksReturned);
    let epoch = good.notice().epoch;
    assert_eq!(pulse(&mut good, epoch).quiesced, 1);
    // Its lease goes on, its epoch does not.
    assert_eq!(pulse(&mut silent, 1).epoch, epoch);
    assert_eq!((pulse(&mut good, epoch).quiesced, server.statistics().free_bytes), (1, free_bytes));
    let before = Instant::now();
    acknowledging(&mut good, "the silent one is fenced, and the chunk is free", |_| {
        server.statistics().free_bytes == free_bytes + CHUNK_BYTES
    });
    assert!(before.elapsed() >= Duration::from_millis(1000));
    assert_eq!(server.statistics().sessions_fenced_total, 1);
}

#[test]
fn returned_chunks_go_to_the_next_session() {
    let server = start(config(Transport::Tcp));
    let mut first = connected(&server);
    first.hello(hello(&[FabricKind::Tcp]));
    let chunks = granted(&mut first, class(300), 2);
    let blocks = chunk_shape(SizeClass::from_index(class(300)).unwrap()).block_count as usize;
    let good = ReturnedChunk { offset: chunks[0].offset, versions: vec![1], empty: false };
    for (lie, word) in [
        (vec![ReturnedChunk { offset: good.offset + CHUNK_BYTES / 2, ..good.clone() }], "no chunk at"),
        (vec![ReturnedChunk { versions: vec![0; blocks + 1], ..good.clone() }], "versions are said"),
        (vec![ReturnedChunk { empty: true, ..good.clone() }], "said to be empty"),
        (vec![good.clone(), good.clone()], "twice"),
        (vec![good.clone(); ReturnedChunk::COUNT_MAX + 1], "4 chunks are returned at once, want at most 3"),
    ] {
        let refusal = first.refused(&Request::ReturnChunks(lie));
        assert_eq!(refusal.code, RefusalCode::Invalid);
        assert!(refusal.message.contains(word), "{refusal}");
    }
    assert_eq!(first.ask(&Request::ReturnChunks(vec![good.clone()])), Response::ChunksReturned);
    let mut stranger = connected(&server);
    stranger.hello(hello(&[FabricKind::Tcp]));
    let other = ReturnedChunk { offset: chunks[1].offset, ..good.clone() };
    let refusal = stranger.refused(&Request::ReturnChunks(vec![other]));
    assert!(refusal.message.contains(&format!("{:#x}", chunks[1].offset)), "{refusal}");
    assert_eq!(stranger.ask(&Request::Goodbye), Response::Goodbye);
    assert_eq!(first.ask(&returned(&chunks[1], vec![], true)), Response::ChunksReturned);
    assert_eq!(first.ask(&Request::Goodbye), Response::Goodbye);
    eventually("both chunks came back", || {
        let statistics = server.statistics();
        (statistics.ownerless_chunks, statistics.granted_bytes) == (1, CHUNK_BYTES)
    });
    assert_eq!(server.statistics().sweeps_total, 0, "nothing was left to find");
    let mut second = connected(&server);
    second.hello(hello(&[FabricKind::Tcp]));
    // Its one block that was used is published, as far as anybody knows; the others are free.
    assert_eq!(granted(&mut second, class(300), 1), [ChunkGrant { versions: vec![1], ..chunks[0].clone() }]);
}

/// What a client asks about must be its own, exist, and be asked in messages of some length.
#[test]
fn audits_and_reports_of_what_cannot_be_are_refused() {
    let server = start(config(Transport::Tcp));
    let (mut control, mut other) = (connected(&server), connected(&server));
    control.hello(hello(&[FabricKind::Tcp]));
    other.hello(hello(&[FabricKind::Tcp]));
    let foreign = granted(&mut other, class(64), 1)[0].offset;
    for (number, chunks, words) in [
        (0, vec![foreign], [format!("{foreign:#x}"), "granted".into()]),
        (0, vec![u64::MAX], ["0xffffffffffffffff".into(), "granted".into()]),
        (0, vec![0; 25], ["25".into(), "24".into()]),
        (7, vec![], ["audit 7".into(), "done is 0".into()]),
    ] {
        let refusal = control.refused(&Request::Audit { number, chunks });
        assert_eq!(refusal.code, RefusalCode::Invalid);
        assert!(words.iter().all(|word| refusal.message.contains(word)), "{refusal}");
    }
    assert_eq!(control.ask(&Request::Audit { number: 0, chunks: vec![] }), Response::Audited(vec![]));
    let report = |entry| Request::ReportBucket(BucketReport { entry, generation: 1, full: false });
    let refusal = control.refused(&report(u32::MAX));
    assert!(refusal.message.contains("4294967295") && refusal.message.contains("directory has"), "{refusal}");
    let mut reader = connected(&server);
    reader.hello(Hello { rights: Rights::ReadOnly, ..hello(&[FabricKind::Tcp]) });
    assert_eq!(reader.refused(&report(0)).code, RefusalCode::Invalid);
}

/// A segment full of deleted keys is rebuilt when a writer says so. Everybody hears which entries changed, the deleted keys'
/// blocks are marked, and the old segment is free when everybody knows.
#[test]
fn a_full_bucket_is_rebuilt_and_everybody_hears_of_it() {
    let server = start(Config { initial_segments: 1, ..config(Transport::Tcp) });
    let (mut writer, mut other) = (connected(&server), connected(&server));
    writer.hello(hello(&[FabricKind::Tcp]));
    other.hello(hello(&[FabricKind::Tcp]));
    let chunk = granted(&mut writer, class(64), 1).remove(0);
    let serving = server.node().serving().unwrap();
    let (geometry, words) = (serving.region.superblock.geometry, serving.mapping.words());
    let entry = || DirectoryWord::from_bits(words.load(geometry.directory_word_offset(0)).unwrap());
    let old = entry();
    let class = SizeClass::from_index(chunk.class).unwrap();
    for slot in 0..31 {
        let place = BlockPlace { chunk: Offset(chunk.offset), index: slot };
        let word = SlotWord::deleted(Tag::from_low_bits(0), place.block(class, Version(3)), false);
        let at = geometry.segment_offset(old).unwrap().plus(8 * (1 + u64::from(slot)));
        words.store(at, word.bits()).unwrap();
    }
    let report = |generation, full| Request::ReportBucket(BucketReport { entry: 5, generation, full });
    assert_eq!(writer.ask(&report(old.generation + 1, true)), Response::BucketReported, "it is late");
    assert_eq!(writer.ask(&report(old.generation, true)), Response::BucketReported);
    let changes =
        DirectoryChanges::Runs(vec![DirectoryRun { first: 0, count: geometry.directory_entries() as u32 }]);
    for control in [&mut writer, &mut other] {
        let notice = control.notice();
        assert_eq!((notice.epoch, &notice.changes), (2, &changes));
    }
    let new = entry();
    assert_eq!((new.generation, new.depth), (old.generation + 1, 0));
    assert_ne!(new.segment, old.segment);
    let mut map = [0; 32];
    words.read(Offset(chunk.offset), &mut map).unwrap();
    assert_eq!((map[..31].iter().all(|mark| *mark == 3), map[31]), (true, 0));
    let figures = |server: &Running| {
        let statistics = server.statistics();
        (statistics.rebuilds_total, statistics.segments_serving, statistics.segments_retired)
    };
    assert_eq!(figures(&server), (1, 1, 1));
    pulse(&mut writer, 2);
    assert_eq!(pulse(&mut other, 2).changes, DirectoryChanges::Runs(vec![]));
    eventually("the old segment is free", || figures(&server) == (1, 1, 0));
}

/// Out of memory: everybody is asked for what he doesn't need. What is given back then serves the next that asks, in any
/// class.
#[test]
fn memory_that_is_short_is_asked_for() {
    let server = start(Config { memory: ByteSize::mebibytes(8), ..config(Transport::Tcp) });
    let (mut idle, mut busy) = (connected(&server), connected(&server));
    idle.hello(hello(&[FabricKind::Tcp]));
    busy.hello(hello(&[FabricKind::Tcp]));
    assert!(!pulse(&mut busy, 1).wants_memory);
    let chunk = granted(&mut idle, class(64), 1).remove(0);
    while matches!(busy.ask(&chunks(class(300), 64)), Response::Chunks(_)) {}
    assert!(idle.notice().wants_memory);
    assert!(pulse(&mut busy, 1).wants_memory);
    assert_eq!(idle.ask(&returned(&chunk, vec![], true)), Response::ChunksReturned);
    for control in [&mut idle, &mut busy] {
        let epoch = std::iter::repeat_with(|| control.notice().epoch).find(|epoch| *epoch > 1).unwrap();
        pulse(control, epoch);
    }
    eventually("it is granted to the other", || {
        matches!(busy.ask(&chunks(class(300), 1)), Response::Chunks(_))
    });
}

/// Sessions come, take memory, give some of it back, and leave or die, several at a time and all acknowledging. In the end
/// every byte is free again, of whatever class it was.
#[test]
fn all_memory_comes_back() {
    let server = start(Config { memory: ByteSize::mebibytes(64), ..config(Transport::Tcp) });
    let fresh = server.statistics();
    let address = server.control();
    let life = |seed: u64| {
        let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mut random = move |below: u64| {
            state = state.wrapping_mul(0xd134_2543_de82_ef95).wrapping_add(1);
            (state >> 33) % below
        };
        for _ in 0..25 {
            let mut control = Control::tcp(address);
            let mut epoch = control.hello(hello(&[FabricKind::Tcp])).epoch;
            let mut held: Vec<ChunkGrant> = Vec::new();
            for _ in 0..8 {
                let size_class = random(SizeClass::COUNT as u64) as u8;
                match control.ask(&chunks(size_class, 1 + random(3) as u16)) {
                    Response::Chunks(granted) => held.extend(granted),
                    Response::Refused(refusal) => assert!(is_out_of_memory(refusal.code), "{refusal}"),
                    other => panic!("{other:?}"),
                }
                if let Some(chunk) = held.pop().filter(|_| random(2) == 0) {
                    // Nothing of it was used, or it is as it was before.
                    let empty = random(2) == 0 && chunk.versions.is_empty();
                    let answer = control.ask(&returned(&chunk, chunk.versions.clone(), empty));
                    assert_eq!(answer, Response::ChunksReturned, "seed {seed}");
                }
                epoch = epoch.max(control.heard.epoch);
                epoch = pulse(&mut control, epoch).epoch;
            }
            if random(2) == 0 {
                assert_eq!(control.ask(&Request::Goodbye), Response::Goodbye);
            }
        }
    };
    std::thread::scope(|scope| {
        for seed in 1..=4 {
            let life = &life;
            scope.spawn(move || life(seed));
        }
    });
    eventually("nobody is there, and nothing is left to sweep", || {
        let now = server.statistics();
        now.session_count == 0 && now.orphan_chunks == 0 && now.quiesced_epoch == now.epoch
    });
    // What is in no class again, and empty chunks of a class that nobody asked for since: those come back when memory is short.
    let mut control = connected(&server);
    let mut epoch = control.hello(hello(&[FabricKind::Tcp])).epoch;
    let most = fresh.free_bytes / CHUNK_BYTES;
    let mut taken = 0;
    eventually("all of it can be had", || {
        if let Response::Chunks(granted) = control.ask(&chunks(class(100), 64)) {
            taken += granted.len() as u64;
        }
        epoch = pulse(&mut control, epoch).epoch;
        taken == most
    });
    assert!(server.statistics().sweeps_total > 0);
}

/// What it takes from a client's death until its chunks are swept, with others who acknowledge at once; run by hand, in a
/// release build.
#[test]
#[ignore = "a measurement"]
fn how_long_a_death_takes() {
    let memory = ByteSize::mebibytes(1024);
    for initial_segments in [16, 8192] {
        let server = start(Config { memory, initial_segments, ..config(Transport::Tcp) });
        let mut delays = Vec::new();
        let mut survivors: Vec<_> = (0..4).map(|_| connected(&server)).collect();
        for survivor in &mut survivors {
            survivor.hello(hello(&[FabricKind::Tcp]));
        }
        for round in 1..=20 {
            let mut dying = connected(&server);
            dying.hello(hello(&[FabricKind::Tcp]));
            granted(&mut dying, class(64), 16);
            drop(dying);
            while server.node().serving().unwrap().sweeps().done() < round {
                for survivor in &mut survivors {
                    let epoch = survivor.notice().epoch;
                    pulse(survivor, epoch);
                }
            }
            delays.push(server.node().serving().unwrap().sweeps().figures().last_delay);
        }
        delays.sort_unstable();
        let scan = server.node().serving().unwrap().sweeps().figures().scan_total / 20;
        println!(
            "{initial_segments} segments: noticed to swept {:?} median, {:?} worst of 20; the scan {scan:?}",
            delays[10], delays[19]
        );
    }
}

/// A session that used a block too often asks for an epoch, and has it as soon as the others have acknowledged the last.
#[test]
fn epochs_are_raised_for_who_wants_them() {
    let server = start(config(Transport::Tcp));
    let (mut control, mut other) = (connected(&server), connected(&server));
    control.hello(hello(&[FabricKind::Tcp]));
    other.hello(hello(&[FabricKind::Tcp]));
    for epoch in 1..5 {
        let wish = Request::Heartbeat { epoch, wants_epoch: true };
        assert!(matches!(control.ask(&wish), Response::Heartbeat(_)));
        assert_eq!(control.notice().epoch, epoch + 1);
        assert_eq!(other.notice().epoch, epoch + 1);
        pulse(&mut other, epoch + 1);
    }
    assert_eq!(pulse(&mut control, 5).quiesced, 5);
    let refusal = control.refused(&heartbeat(4));
    assert!(refusal.message.contains("epoch 4") && refusal.message.contains('5'), "{refusal}");
}

/// Nobody takes a mapping away from a living process: such a session lingers, holds up the epochs and keeps its chunks, until
/// it is known to be gone. Then it is swept.
#[test]
fn a_session_that_cannot_be_fenced_is_not_swept() {
    let folder = Folder::new("lingers");
    let socket = Some(folder.0.join("s.sock"));
    let server = start(Config { socket, ..config(Transport::Shm) });
    let (mut control, mut other) = (connected(&server), connected(&server));
    let welcome = control.hello(hello(&[FabricKind::Shm]));
    let mapped = join(&welcome, &welcome.join);
    other.hello(hello(&[FabricKind::Shm]));
    granted(&mut control, class(64), 1);
    drop(control);
    eventually("the session is over", || server.statistics().session_count == 1);
    other.ask(&Request::Heartbeat { epoch: 1, wants_epoch: true });
    assert_eq!(other.notice().epoch, 2);
    assert_eq!(pulse(&mut other, 2).quiesced, 1, "it may still act");
    let statistics = server.statistics();
    assert_eq!((statistics.orphan_chunks, statistics.granted_bytes), (0, CHUNK_BYTES));
    assert_eq!((statistics.sweeps_total, statistics.sessions_fenced_total), (0, 0));
    drop(mapped);
    acknowledging(&mut other, "it is swept", |_| server.statistics().swept_chunks_total == 1);
    assert_eq!(server.statistics().granted_bytes, 0);
}

/// A reader that dies owes no marks and held nothing, so nobody scans the index for it.
#[test]
fn nothing_is_swept_for_readers() {
    let server = start(config(Transport::Tcp));
    let mut reader = connected(&server);
    reader.hello(Hello { rights: Rights::ReadOnly, ..hello(&[FabricKind::Tcp]) });
    drop(reader);
    eventually("the session ends", || server.statistics().sessions_fenced_total == 1);
    let mut writer = connected(&server);
    let epoch = writer.hello(hello(&[FabricKind::Tcp])).epoch;
    writer.ask(&Request::Heartbeat { epoch, wants_epoch: true });
    let notice = writer.notice();
    assert_eq!((notice.audit_begun, server.statistics().sweeps_total), (0, 0));
}

#[test]
fn memory_runs_out_with_a_number() {
    let quota = Some(ByteSize::mebibytes(2));
    let server =
        start(Config { chunk_quota: quota, memory: ByteSize::mebibytes(8), ..config(Transport::Tcp) });
    let mut control = connected(&server);
    control.hello(hello(&[FabricKind::Tcp]));
    assert_eq!(granted(&mut control, class(64), 60).len(), 2);
    let refusal = control.refused(&chunks(class(64), 1));
    assert_eq!(refusal.code, RefusalCode::Quota);
    assert!(refusal.message.contains("2097152"), "{refusal}");
    let mut others = Vec::new();
    let refusal = loop {
        let mut other = connected(&server);
        other.hello(hello(&[FabricKind::Tcp]));
        let mut has_looked = false;
        let answer = loop {
            let answer = other.ask(&chunks(class(64), 2));
            // Before it says so for good, it looks for memory that nobody uses.
            let looks = |refusal: &Refusal| refusal.code == RefusalCode::MemoryReturning;
            if !matches!(&answer, Response::Refused(refusal) if looks(refusal)) {
                break answer;
            }
            has_looked = true;
            std::thread::yield_now();
        };
        match answer {
            Response::Chunks(_) => others.push(other),
            Response::Refused(refusal) => {
                assert!(has_looked);
                break refusal;
            }
            answer => panic!("{answer:?}"),
        }
        assert!(others.len() < 8);
    };
    assert_eq!(refusal.code, RefusalCode::OutOfMemory);
    assert!(refusal.message.contains("1048576") && refusal.message.contains("free"), "{refusal}");
    // Deletes still work.
    let mut other = connected(&server);
    other.hello(hello(&[FabricKind::Tcp]));
    let delete = Request::Chunks { class: class(64), count: 1, purpose: ChunkPurpose::Delete };
    assert!(matches!(other.ask(&delete), Response::Chunks(_)));
}

#[test]
fn readers_get_no_block_memory() {
    let server = start(config(Transport::Tcp));
    let mut control = connected(&server);
    control.hello(Hello { rights: Rights::ReadOnly, ..hello(&[FabricKind::Tcp]) });
    assert_eq!(control.refused(&chunks(class(64), 1)).code, RefusalCode::Invalid);
}

/// Whoever may read the region may know what of it was granted, to whomever, and who has it.
#[test]
fn readers_are_told_what_was_granted() {
    let server = start(config(Transport::Tcp));
    let mut reader = connected(&server);
    reader.hello(Hello { rights: Rights::ReadOnly, ..hello(&[FabricKind::Tcp]) });
    let mut listed = || match reader.ask(&Request::Grants { from: 0, count: u16::MAX }) {
        Response::Grants(page) => page,
        other => panic!("{other:?}"),
    };
    let (nothing, pool_bytes) = (listed(), server.statistics().block_pool_bytes);
    assert_eq!((nothing.grants.len(), nothing.free_bytes + nothing.reserve_bytes), (0, pool_bytes));
    let mut writer = connected(&server);
    writer.hello(hello(&[FabricKind::Tcp]));
    let chunk = granted(&mut writer, class(64), 1).remove(0);
    let record = GrantRecord { offset: chunk.offset, class: chunk.class, holder: GrantHolder::Session };
    let page = listed();
    assert_eq!((page.grants, page.more), (vec![record], false));
    assert_ne!(page.revision, nothing.revision);
    assert_eq!(writer.ask(&returned(&chunk, vec![1], false)), Response::ChunksReturned);
    assert_eq!(listed().grants, [GrantRecord { holder: GrantHolder::Orphan, ..record }]);
}

/// After a lost completion: the old data path is dead for good, the session and its chunks live on a new one.
#[test]
fn a_session_joins_anew() {
    let folder = Folder::new("rejoin");
    let socket = Some(folder.0.join("s.sock"));
    let server = start(Config { socket, ..config(Transport::Auto) });
    for kind in [FabricKind::Tcp, FabricKind::Shm] {
        let mut control = connected(&server);
        let welcome = control.hello(hello(&[kind]));
        let mut old = join(&welcome, &welcome.join);
        let chunk = granted(&mut control, class(64), 1).remove(0);
        if kind == FabricKind::Shm {
            // Nobody takes a mapping away from a living process.
            assert_eq!(control.refused(&Request::Rejoin).code, RefusalCode::Invalid);
            drop(old);
        }
        let Response::Rejoined(again) = control.ask(&Request::Rejoin) else { panic!() };
        if kind == FabricKind::Tcp {
            old = join(&welcome, &again);
            assert!(read(&mut *old, Offset(0), 8).is_some());
        } else {
            let mut new = join(&welcome, &again);
            assert!(read(&mut *new, Offset(0), 8).is_some());
        }
        assert_eq!(control.ask(&returned(&chunk, vec![1], false)), Response::ChunksReturned);
    }
}

/// The first join's ticket opens nothing after the session has joined anew.
#[test]
fn an_old_ticket_is_void() {
    let server = start(config(Transport::Tcp));
    let mut control = connected(&server);
    let welcome = control.hello(hello(&[FabricKind::Tcp]));
    let Response::Rejoined(again) = control.ask(&Request::Rejoin) else { panic!() };
    assert!(try_join(&welcome, &welcome.join).is_err(), "the first ticket still works");
    assert!(read(&mut *join(&welcome, &again), Offset(0), 8).is_some());
}

/// Shutting down: who is there is told, who comes is refused, and who leaves lets the server end at once.
#[test]
fn draining_lets_sessions_leave() {
    let server = start(Config { drain_ms: 60_000, ..config(Transport::Tcp) });
    let (address, admin) = (server.control(), server.admin().unwrap());
    let mut staying = Control::tcp(address);
    staying.hello(hello(&[FabricKind::Tcp]));
    assert_eq!(bed::http(admin, "/readyz").0, 200);
    let stopping = std::thread::spawn(move || server.shutdown());
    eventually("the server says that it drains", || pulse(&mut staying, 1).draining);
    assert_eq!(bed::http(admin, "/readyz"), (503, "draining\n".into()));
    assert_eq!(bed::http(admin, "/healthz").0, 200);
    let refusal = Control::tcp(address).refused(&Request::Hello(hello(&[FabricKind::Tcp])));
    assert_eq!(refusal.code, RefusalCode::Draining);
    assert_eq!(staying.ask(&Request::Goodbye), Response::Goodbye);
    assert_eq!(stopping.join().unwrap(), 0, "nobody had to be fenced");
    assert!(std::net::TcpStream::connect(address).is_err(), "nobody listens any more");
}

/// Those who don't leave are fenced when their time is over.
#[test]
fn shutting_down_ends_who_stays() {
    let server = start(config(Transport::Tcp));
    let mut staying = connected(&server);
    let welcome = staying.hello(hello(&[FabricKind::Tcp]));
    let mut fabric = join(&welcome, &welcome.join);
    assert_eq!(server.shutdown(), 1);
    assert_eq!(read(&mut *fabric, Offset(0), 8), None);
    assert!(write_frame(&mut staying.stream, &Request::Statistics).is_err() || staying.is_closed());
}

#[test]
fn the_admin_endpoint_answers() {
    let server = start(config(Transport::Tcp));
    let admin = server.admin().unwrap();
    let mut control = connected(&server);
    let welcome = control.hello(hello(&[FabricKind::Tcp]));
    let mut fabric = join(&welcome, &welcome.join);
    assert!(read(&mut *fabric, Offset(0), 8).is_some());
    let (status, metrics) = bed::http(admin, "/metrics");
    assert_eq!(status, 200);
    for line in [
        "sidestep_sessions 1",
        "sidestep_epoch 1",
        "sidestep_sweeps_total 0",
        "sidestep_janitor_up 1",
        "sidestep_connections{fabric=\"tcp\"} 1",
        "sidestep_ready 1",
    ] {
        assert!(metrics.lines().any(|found| found == line), "{line} is not in\n{metrics}");
    }
    for name in ["process_cpu_seconds_total", "sidestep_cpu_user_seconds_total", "sidestep_tcp_verbs_total"] {
        let sample = metrics.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        assert!(sample.trim().parse::<f64>().is_ok(), "{name} {sample}");
    }
    let (status, version) = bed::http(admin, "/version");
    assert_eq!(status, 200);
    let body = version.lines().find(|line| line.starts_with('{')).unwrap();
    let version: serde_json::Value = serde_json::from_str(body).unwrap();
    assert_eq!(version["endpoint"], server.endpoint());
    assert_eq!(version["protocol"], sidestep_common::wire::PROTOCOL_VERSION);
    assert_eq!(version["fabrics"].as_array().unwrap().len(), 3);
    assert_eq!(bed::http(admin, "/nothing").0, 404);
}

/// A session joins anew in the very moment in which its lease ends. Whatever the order, no ticket may outlive the
/// session: it would open a data path that nobody fences any more.
#[test]
fn no_ticket_outlives_its_session() {
    let server = start(config(Transport::Tcp));
    let node = server.node();
    let peer = Peer::Tcp(server.control());
    for round in 0..200 {
        let (session, welcome) = node.admit(&hello(&[FabricKind::Tcp]), peer).unwrap();
        let rejoined = std::thread::scope(|scope| {
            let rejoining = scope.spawn(|| node.rejoin(session, Rights::ReadWrite, peer));
            node.end_session(session, End::LeaseExpired);
            rejoining.join().unwrap()
        });
        let Ok(ticket) = rejoined else { continue };
        assert!(
            try_join(&welcome, &ticket).is_err(),
            "round {round}: a session that is over has a data path"
        );
    }
}
