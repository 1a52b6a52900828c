//! G1: a stream has no frames. However the bytes are cut or merged on their way, results are the same; cut off,
//! they are an error at once.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use super::bed::*;
use super::proxy::{self, Pieces};
use crate::fabric::tcp::TcpFabric;
use crate::fabric::tcp::connect::encode_answer;
use crate::fabric::tcp::frame::{BatchDescriptor, FrameHeader, Opcode, ReplyHeader, VerbDescriptor};
use crate::fabric::{ConnectError, Effect, Fabric, FailureKind, Join, Rights, Target};
use crate::layout::Offset;
use crate::wire::{Preamble, PreambleKind};

/// The same work on any client: all opcodes, several batches a frame, several frames in flight.
fn script(fabric: &mut TcpFabric, long_bytes: usize) -> Vec<Vec<u8>> {
    let long = pattern(long_bytes, 9);
    let mut results = Vec::new();
    for round in 0..3 {
        for id in 0..4 {
            let at = 64 * id;
            let verbs = [write(at, &long[..50]), swap(at + 56, round, round + 1), add(at + 48, 3)];
            let reads = [read(fabric, at, 64), read(fabric, 4096, long_bytes)];
            let mut batches =
                [batch(3 * id, verbs), batch(3 * id + 1, [write(4096, &long)]), batch(3 * id + 2, reads)];
            batches[1].silent = true;
            fabric.post(&mut batches).unwrap();
        }
        for completion in complete(fabric, 8) {
            results.extend(contents(&completion.result.unwrap()));
        }
    }
    results
}

#[test]
fn results_do_not_depend_on_how_the_stream_is_cut() {
    for (pieces, long_bytes) in [
        (Pieces::Of(1), 300),
        (Pieces::Of(7), 5_000),
        (Pieces::Of(1_000), 70_000),
        (Pieces::Merged, 300),
        (Pieces::Merged, 70_000),
    ] {
        let bed = Bed::new();
        let expected = script(&mut bed.client(), long_bytes);
        assert_eq!(expected.last().unwrap().len(), long_bytes);
        let fresh = Bed::new();
        let proxy = proxy::start(fresh.address, pieces);
        assert_eq!(script(&mut fresh.client_through(proxy), long_bytes), expected, "{pieces:?}");
        assert_eq!(fresh.target.counters().malformed, 0);
    }
}

/// A frame that adds 1 to the word at 64.
fn counting_frame(rkey: u32) -> Vec<u8> {
    let header = FrameHeader { bytes: 16 + 8 + 16 + 8, rkey, batch_count: 1, verb_count: 1 };
    let mut frame = header.encode().to_vec();
    frame.extend(BatchDescriptor { request: 1, verb_count: 1, silent: false }.encode());
    frame.extend(VerbDescriptor { opcode: Opcode::FetchAdd, bytes: 8, remote: Offset(64) }.encode());
    frame.extend(1_u64.to_le_bytes());
    frame
}

/// A client's bytes are cut off after every position, from the preamble to the end of a frame.
#[test]
fn a_client_cut_off_anywhere_has_no_effect_and_disturbs_nobody() {
    let bed = Bed::new();
    let mut other = bed.client();
    let mut positions = 0;
    loop {
        let (_, join) = bed.admit(Rights::ReadWrite);
        let Join::Tcp { ticket, rkey, .. } = join else { unreachable!() };
        let mut bytes = Preamble(PreambleKind::Data).encode().to_vec();
        bytes.extend(ticket.0);
        bytes.extend(counting_frame(rkey));
        let cut = positions.min(bytes.len());
        let mut stream = TcpStream::connect(bed.address).unwrap();
        stream.write_all(&bytes[..cut]).unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(1))).unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).expect("the server closes within a second");
        assert_eq!(bed.word(64), u64::from(cut == bytes.len()), "cut after {cut} bytes");
        run(&mut other, [add(0, 1)]).unwrap();
        if cut == bytes.len() {
            assert_eq!(answer.len(), 10 + 16 + 8, "the uncut one is answered");
            break;
        }
        positions += 1;
    }
    assert_eq!(bed.word(0), positions as u64 + 1);
    eventually("only one is left", || bed.target.connection_count() == 1);
}

/// A server that accepts any ticket and then says `bytes`, whatever it is asked, and closes.
fn impostor(bytes: Vec<u8>) -> (std::net::SocketAddr, std::thread::JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let thread = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut greeting = [0; 24];
        stream.read_exact(&mut greeting).unwrap();
        let answer_bytes = 10.min(bytes.len());
        stream.write_all(&bytes[..answer_bytes]).unwrap();
        if bytes.len() > answer_bytes {
            // The frame of `two_batches`.
            let mut frame = [0; 16 + 2 * 8 + 3 * 16 + 16];
            stream.read_exact(&mut frame).unwrap();
            stream.write_all(&bytes[answer_bytes..]).unwrap();
        }
    });
    (address, thread)
}

fn two_batches(fabric: &mut TcpFabric) {
    let reads = [read(fabric, 0, 20), add(64, 1)];
    fabric.post(&mut [batch(1, reads), batch(2, [add(72, 1)])]).unwrap();
}

/// A server's bytes end after every position: the client gets an error within a second, and knows how much of it
/// is certain.
#[test]
fn a_server_cut_off_anywhere_is_an_error_at_once() {
    let mut bytes = encode_answer(None);
    bytes.extend(ReplyHeader { request: 1, body_bytes: 28, status: 0, verbs_done: 2 }.encode());
    bytes.extend([5; 28]);
    bytes.extend(ReplyHeader { request: 2, body_bytes: 8, status: 0, verbs_done: 1 }.encode());
    bytes.extend([6; 8]);
    let bed = Bed::new();
    let (_, join) = bed.admit(Rights::ReadWrite);
    for cut in 0..bytes.len() {
        let (address, impostor) = impostor(bytes[..cut].to_vec());
        let started = Instant::now();
        let mut fabric = match join_at(address, &join, 64) {
            Ok(fabric) => fabric,
            Err(error) => {
                assert!(cut < 10 && matches!(error, ConnectError::Io { .. }), "{error}");
                assert!(started.elapsed() < Duration::from_secs(1), "{cut}");
                impostor.join().unwrap();
                continue;
            }
        };
        two_batches(&mut fabric);
        let completions = complete(&mut fabric, 2);
        assert!(started.elapsed() < Duration::from_secs(1), "cut after {cut}");
        let first_is_whole = cut >= 10 + 16 + 28;
        let first = &completions[0].result;
        assert_eq!(first.is_ok(), first_is_whole, "cut after {cut}: {first:?}");
        if let Err(failure) = first {
            let read_is_there = cut >= 10 + 16 + 20;
            assert_eq!(failure.verb_index, usize::from(read_is_there), "cut after {cut}");
        }
        for completion in &completions[usize::from(first_is_whole)..] {
            let failure = completion.result.as_ref().unwrap_err();
            assert!(matches!(failure.kind, FailureKind::Disconnected(_)), "{failure}");
            // An impostor that says no more than its answer may or may not have read the frame.
            assert!(failure.effect == Effect::Unknown || cut == 10, "cut after {cut}: {failure}");
        }
        assert!(fabric.post(&mut [batch(3, [add(0, 1)])]).is_err());
        impostor.join().unwrap();
    }
}

/// Who answers a data connection as if it were a control connection has not understood what was asked.
#[test]
fn an_answer_for_control_is_no_answer_for_data() {
    let bed = Bed::new();
    let (_, join) = bed.admit(Rights::ReadWrite);
    let mut bytes = encode_answer(None);
    bytes[..Preamble::BYTES].copy_from_slice(&Preamble(PreambleKind::Control).encode());
    let (address, impostor) = impostor(bytes);
    let error = join_at(address, &join, 64).unwrap_err();
    assert!(matches!(&error, ConnectError::Unavailable { .. }), "{error}");
    impostor.join().unwrap();
}

/// A server that answers nonsense is not believed.
#[test]
fn a_server_that_answers_nonsense_is_disconnected() {
    let bed = Bed::new();
    let (_, join) = bed.admit(Rights::ReadWrite);
    for seed in 0..50 {
        let mut bytes = encode_answer(None);
        bytes.extend(pattern(500, seed));
        let (address, impostor) = impostor(bytes);
        let mut fabric = join_at(address, &join, 64).unwrap();
        two_batches(&mut fabric);
        for completion in complete(&mut fabric, 2) {
            let failure = completion.result.unwrap_err();
            assert!(matches!(&failure.kind, FailureKind::Disconnected(text) if text.contains("nonsense")));
            assert_eq!(failure.effect, Effect::Unknown);
        }
        drop(fabric);
        impostor.join().unwrap();
    }
}

/// A server that reads nothing and goes away: what was sent whole may have happened, what waited here did not.
#[test]
fn frames_that_were_not_sent_whole_did_not_happen() {
    let bed = Bed::new();
    let (_, join) = bed.admit(Rights::ReadWrite);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let (gone, go) = std::sync::mpsc::channel();
    let server = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut greeting = [0; 24];
        stream.read_exact(&mut greeting).unwrap();
        stream.write_all(&encode_answer(None)).unwrap();
        go.recv().unwrap();
    });
    let mut fabric = join_at(address, &join, 64).unwrap();
    let long = pattern(2 << 20, 5);
    let mut posted = 0;
    while fabric.post(&mut [batch(posted, [write(0, &long)])]).is_ok() {
        posted += 1;
    }
    assert!((4..64).contains(&posted), "unsent bytes are bounded: {posted} frames of 2 MiB");
    gone.send(()).unwrap();
    let failures = complete(&mut fabric, posted as usize).into_iter();
    let effects: Vec<Effect> = failures.map(|end| end.result.unwrap_err().effect).collect();
    assert_eq!(effects[0], Effect::Unknown, "the first one was sent whole: sockets hold more than it");
    assert_eq!(effects.last(), Some(&Effect::No));
    assert!(effects.is_sorted_by_key(|effect| *effect == Effect::No), "{effects:?}");
    server.join().unwrap();
}
