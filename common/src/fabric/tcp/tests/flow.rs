//! Flow: peers that don't read, that flood, that stop in the middle.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use super::bed::*;
use crate::fabric::tcp::frame::{BatchDescriptor, FrameHeader, Opcode, VerbDescriptor};
use crate::fabric::{Join, Rights};
use crate::layout::Offset;
use crate::wire::{Preamble, PreambleKind};

/// Frames that ask for 16 MiB each, from a peer that doesn't read: the server executes only what its bounded
/// output and the sockets hold, and others are served meanwhile. When the peer reads at last, all of it comes.
#[test]
fn a_peer_that_does_not_read_is_not_worked_for() {
    let bed = Bed::new();
    let content = pattern(1 << 20, 6);
    bed.fill(0, &content);
    let (_, join) = bed.admit(Rights::ReadWrite);
    let Join::Tcp { ticket, rkey, .. } = join else { unreachable!() };
    let mut stream = TcpStream::connect(bed.address).unwrap();
    stream.write_all(&Preamble(PreambleKind::Data).encode()).unwrap();
    stream.write_all(&ticket.0).unwrap();
    let (frames, reads) = (4_u32, 16);
    for request in 0..frames {
        let bytes = 16 + 8 + 16 * reads;
        let mut frame = FrameHeader { bytes, rkey, batch_count: 1, verb_count: reads }.encode().to_vec();
        frame.extend(BatchDescriptor { request, verb_count: reads, silent: false }.encode());
        for _ in 0..reads {
            let verb = VerbDescriptor { opcode: Opcode::Read, bytes: 1 << 20, remote: Offset(0) };
            frame.extend(verb.encode());
        }
        stream.write_all(&frame).unwrap();
    }
    eventually("the first replies are sent", || bed.target.counters().bytes_sent > 50_000);
    // One of them shares its thread with the peer that doesn't read.
    let mut others = [bed.client(), bed.client()];
    for _ in 0..500 {
        for other in &mut others {
            run(other, [add(2 << 20, 1)]).unwrap();
        }
    }
    let total = 10 + u64::from(frames) * (16 + (reads as u64) * (1 << 20));
    let counters = bed.target.counters();
    assert!(counters.bytes_sent < total / 2, "{counters:?}: {total} bytes were asked for");
    // Verbs count when their frame is done: none of the last frames may have been executed into memory.
    assert!(counters.verbs < 1_000 + u64::from(frames - 1) * reads as u64, "{counters:?}");

    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut answer = [0; 10];
    stream.read_exact(&mut answer).unwrap();
    for request in 0..frames {
        let mut header = [0; 16];
        stream.read_exact(&mut header).unwrap();
        assert_eq!(header[..4], request.to_le_bytes());
        let mut body = vec![0; 1 << 20];
        for _ in 0..reads {
            stream.read_exact(&mut body).unwrap();
            assert!(body == content, "request {request}");
        }
    }
}

/// One client has the sockets full of long WRITEs both ways; nothing blocks, and all of it is placed.
#[test]
fn both_directions_full_is_no_deadlock() {
    use crate::fabric::{Fabric, PostError};
    let bed = Bed::new();
    let mut fabric = bed.client();
    let long = pattern(1 << 20, 8);
    let mut completions = Vec::new();
    let mut posted = 0;
    eventually("all is done", || {
        if posted < 60 {
            let verbs = [write(0, &long), read(&mut fabric, 0, 1 << 20)];
            match fabric.post(&mut [batch(posted, verbs)]) {
                Ok(()) => posted += 1,
                Err(PostError::Full { .. }) => fabric.wait(Duration::from_secs(1)),
                Err(error) => panic!("{error}"),
            }
        } else {
            fabric.wait(Duration::from_secs(1));
        }
        let from = completions.len();
        fabric.poll(&mut completions);
        for completion in &mut completions[from..] {
            let replies = std::mem::replace(&mut completion.result, Ok(Default::default())).unwrap();
            assert!(contents(&replies)[1] == long);
            for reply in replies {
                if let crate::fabric::Reply::Read(buffer) = reply {
                    fabric.buffers().recycle(buffer);
                }
            }
        }
        completions.len() == 60
    });
}

/// FAA and CAS from several sessions at once: no sum is lost.
#[test]
fn atomics_of_several_sessions_add_up() {
    let bed = Bed::new();
    std::thread::scope(|scope| {
        for lane in 0..4 {
            let bed = &bed;
            scope.spawn(move || {
                let mut fabric = bed.client();
                let mut swapped = 0;
                for _ in 0..500 {
                    let expected = bed.word(8);
                    let verbs = [add(0, 1), swap(8, expected, expected + 1), add(64 + 8 * lane, 1)];
                    let replies = run(&mut fabric, verbs).unwrap();
                    if contents(&replies)[1] == expected.to_le_bytes() {
                        swapped += 1;
                    }
                }
                run(&mut fabric, [add(16, swapped)]).unwrap();
            });
        }
    });
    assert_eq!(bed.word(0), 2_000);
    assert_eq!(bed.word(8), bed.word(16), "each swap that said yes happened, and no other");
    assert!((0..4).all(|lane| bed.word(64 + 8 * lane) == 500));
}
