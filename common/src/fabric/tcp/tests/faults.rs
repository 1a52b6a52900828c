//! Peers that break the rules, and tickets. G2: whatever comes, the connection is closed, nobody else notices.

use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use super::bed::*;
use crate::fabric::tcp::connect;
use crate::fabric::tcp::frame::{FRAME_BYTES_MAX, FrameHeader};
use crate::fabric::{ConnectError, Fabric, FailureKind, Join, Rights, Target, Ticket};
use crate::wire::{Preamble, PreambleKind};

/// A joined connection on which anything can be said.
fn raw(bed: &Bed) -> (TcpStream, u32) {
    let (_, join) = bed.admit(Rights::ReadWrite);
    let Join::Tcp { ticket, rkey, .. } = join else { unreachable!() };
    let mut stream = TcpStream::connect(bed.address).unwrap();
    stream.write_all(&Preamble(PreambleKind::Data).encode()).unwrap();
    stream.write_all(&ticket.0).unwrap();
    let mut answer = [0; 10];
    stream.read_exact(&mut answer).unwrap();
    assert_eq!(answer[8], 0);
    stream.set_read_timeout(Some(Duration::from_secs(1))).unwrap();
    (stream, rkey)
}

/// Says `bytes`; the connection must be closed, without a reply, within a second.
#[track_caller]
fn is_closed_by(bed: &Bed, what: &str, bytes: &[u8]) {
    let before = bed.target.counters().malformed;
    let (mut stream, _) = raw(bed);
    // The server may close before it has read all of it.
    let _ = stream.write_all(bytes);
    let mut answer = [0; 100];
    match stream.read(&mut answer) {
        Ok(0) => {}
        Err(error) if error.kind() == ErrorKind::ConnectionReset => {}
        other => panic!("{what}: {other:?}"),
    }
    assert_eq!(bed.target.counters().malformed, before + 1, "{what}");
}

#[test]
fn malformed_frames_close_their_connection_and_no_other() {
    let bed = Bed::new();
    let mut other = bed.client();
    for length in [0_u32, 1, 15, FRAME_BYTES_MAX as u32 + 1, 1 << 31, u32::MAX] {
        is_closed_by(&bed, &format!("length {length}"), &length.to_le_bytes());
        run(&mut other, [add(0, 1)]).unwrap();
    }
    let mut unknown = FrameHeader { bytes: 40, rkey: 0, batch_count: 1, verb_count: 1 }.encode().to_vec();
    unknown.extend([1, 0, 0, 0, 1, 0, 0, 0]);
    unknown.extend([77, 0, 0, 0, 8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    is_closed_by(&bed, "unknown opcode", &unknown);
    let counts = FrameHeader { bytes: 16, rkey: 0, batch_count: 4096, verb_count: 4096 };
    is_closed_by(&bed, "more verbs than bytes", &counts.encode());
    is_closed_by(&bed, "an HTTP request", b"GET /metrics HTTP/1.1\r\nHost: node\r\n\r\n");
    // The first four bytes of such a pattern are an impossible length unless they happen to be small.
    is_closed_by(&bed, "a megabyte of random bytes", &pattern(1 << 20, 77));
    run(&mut other, [add(0, 1)]).unwrap();
    assert_eq!(bed.word(0), 7);
    eventually("the others are closed", || bed.target.connection_count() == 1);
}

/// A right frame in front of a malformed one is executed, nothing behind it is.
#[test]
fn nothing_behind_a_malformed_frame_executes() {
    let bed = Bed::new();
    let (mut stream, rkey) = raw(&bed);
    let mut frame = FrameHeader { bytes: 48, rkey, batch_count: 1, verb_count: 1 }.encode().to_vec();
    frame.extend([1, 0, 0, 0, 1, 0, 0, 0]);
    frame.extend([4, 0, 0, 0, 8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    frame.extend(1_u64.to_le_bytes());
    let mut wrong = frame.clone();
    wrong[12] = 1;
    stream.write_all(&[frame.clone(), wrong, frame.clone(), frame].concat()).unwrap();
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    assert_eq!(bed.word(0), 1);
}

#[test]
fn a_ticket_opens_one_connection_once() {
    let bed = Bed::new();
    let (session, join) = bed.admit(Rights::ReadWrite);
    let mut fabric = join_at(bed.address, &join, 8).unwrap();
    let again = join_at(bed.address, &join, 8).unwrap_err();
    assert!(matches!(&again, ConnectError::Refused { reason, .. } if reason.contains("ticket")), "{again}");
    run(&mut fabric, [add(0, 1)]).unwrap();

    let unused = bed.target.admit(session, Rights::ReadWrite).unwrap();
    assert!(bed.target.fence(session));
    assert!(matches!(join_at(bed.address, &unused, 8), Err(ConnectError::Refused { .. })), "fenced");
    let failure = run(&mut fabric, [add(0, 1)]).unwrap_err();
    assert!(matches!(failure.kind, FailureKind::Disconnected(_)), "{failure}");

    let rejoined = bed.target.admit(session, Rights::ReadWrite).unwrap();
    let mut fabric = join_at(bed.address, &rejoined, 8).unwrap();
    run(&mut fabric, [add(0, 1)]).unwrap();
    assert_eq!(bed.word(0), 2);
}

/// Sessions add as fast as they can. When a fence of one returns, its sum stays; the other goes on.
#[test]
fn nothing_of_a_fenced_session_executes_any_more() {
    let bed = Bed::new();
    for round in 0..20 {
        let (session, join) = bed.admit(Rights::ReadWrite);
        let mut fenced = join_at(bed.address, &join, 64).unwrap();
        let mut other = bed.client();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut completions = Vec::new();
                let mut id = 0;
                let deadline = Instant::now() + PATIENCE;
                while Instant::now() < deadline
                    && !completions.iter().any(|end: &crate::fabric::Completion| end.result.is_err())
                {
                    id += 1;
                    let _ = fenced.post(&mut [batch(id, (0..8).map(|_| add(64, 1)))]);
                    fenced.poll(&mut completions);
                }
            });
            let before = bed.word(64);
            eventually("verbs execute", || bed.word(64) > before);
            assert!(bed.target.fence(session));
            let sum = bed.word(64);
            for _ in 0..50 {
                run(&mut other, [add(128, 1)]).unwrap();
                assert_eq!(bed.word(64), sum, "round {round}");
            }
        });
    }
    assert_eq!(bed.word(128), 20 * 50);
}

/// C5: what accepts and closes at once is an error of its own kind, at once; so is what never answers.
#[test]
fn servers_that_do_not_answer_are_typed_errors_in_time() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let attempt = |patience: Duration| {
        let mut options = options(Some(address.ip()), 8);
        options.deadline = Instant::now() + patience;
        let started = Instant::now();
        let error = connect(None, address.port(), Ticket([0; 16]), 0, &options).unwrap_err();
        (error, started.elapsed())
    };
    // Nobody accepts: the kernel takes the connection, but no answer comes.
    let (error, elapsed) = attempt(Duration::from_millis(200));
    assert!(matches!(error, ConnectError::Timeout { .. }), "{error}");
    assert!((Duration::from_millis(150)..Duration::from_secs(2)).contains(&elapsed), "{elapsed:?}");
    let (error, _) = attempt(Duration::ZERO);
    assert!(matches!(error, ConnectError::Timeout { .. }), "{error}");

    let closing = std::thread::spawn(move || {
        for _ in 0..5 {
            drop(listener.accept().unwrap());
        }
    });
    // Two in the queue are those above.
    for _ in 0..4 {
        let (error, elapsed) = attempt(PATIENCE);
        assert!(matches!(error, ConnectError::Io { .. }), "{error}");
        assert!(elapsed < Duration::from_secs(2), "{elapsed:?}");
    }
    closing.join().unwrap();
    let (error, _) = attempt(PATIENCE);
    assert!(matches!(&error, ConnectError::Io { source, .. } if source.to_string().contains("127.0.0.1")));

    let nowhere = connect(None, 1, Ticket([0; 16]), 0, &options(None, 8)).unwrap_err();
    assert!(matches!(nowhere, ConnectError::Unavailable { .. }), "{nowhere}");
}

/// Another protocol's server, and another version of ours.
#[test]
fn a_server_of_another_protocol_is_named() {
    for (answer, part) in
        [(&b"HTTP/1.1 400 Bad Request"[..], "does not speak"), (&b"SDSTEPD\xffxxxx"[..], "version 255")]
    {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let server = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut greeting = [0; 24];
            stream.read_exact(&mut greeting).unwrap();
            stream.write_all(answer).unwrap();
        });
        let options = options(Some(address.ip()), 8);
        let error = connect(None, address.port(), Ticket([0; 16]), 0, &options).unwrap_err();
        assert!(error.to_string().contains(part), "{error}");
        server.join().unwrap();
    }
}

/// C10: many clients die at the same moment, in the middle of their work; the next one is fine.
#[test]
fn many_clients_may_die_at_once() {
    let bed = Bed::new();
    for _ in 0..5 {
        let mut clients: Vec<_> = (0..50).map(|_| bed.client()).collect();
        let bytes = pattern(40_000, 4);
        for fabric in &mut clients {
            let reads: Vec<_> = (0..8).map(|_| read(fabric, 0, 100_000)).collect();
            fabric.post(&mut [batch(1, reads), batch(2, [write(1 << 20, &bytes)])]).unwrap();
        }
        drop(clients);
        run(&mut bed.client(), [add(64, 1)]).unwrap();
        eventually("all are closed", || bed.target.connection_count() == 0);
    }
    assert_eq!(bed.word(64), 5);
}

/// What was logged as a reason, by all tests of this process.
struct Reasons;

static REASONS: Mutex<Vec<String>> = Mutex::new(Vec::new());

impl tracing::Subscriber for Reasons {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        *metadata.level() <= tracing::Level::WARN
    }
    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }
    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}
    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}
    fn event(&self, event: &tracing::Event<'_>) {
        let visit = |field: &tracing::field::Field, value: &dyn std::fmt::Debug| {
            if field.name() == "reason" {
                REASONS.lock().unwrap().push(format!("{value:?}"));
            }
        };
        event.record(&mut { visit });
    }
    fn enter(&self, _: &tracing::span::Id) {}
    fn exit(&self, _: &tracing::span::Id) {}
}

#[test]
fn the_reason_of_a_closed_connection_is_logged() {
    // Another subscriber in this process would be a mistake in the tests.
    tracing::subscriber::set_global_default(Reasons).unwrap();
    let bed = Bed::new();
    // A length that no other test uses.
    let length = 0x8765_4321_u32;
    is_closed_by(&bed, "length", &length.to_le_bytes());
    let text = format!("a frame of {length} bytes");
    assert!(REASONS.lock().unwrap().iter().any(|reason| reason.contains(&text)));
}
