//! The bytes, right and wrong.

use super::*;
use crate::layout::Offset;

/// READ 64 at 0x1000, WRITE "hello" at 0x2003, CAS at 8; then, silently, FAA at 16.
fn example() -> Vec<u8> {
    let verb = |opcode, bytes, remote| VerbDescriptor { opcode, bytes, remote: Offset(remote) }.encode();
    let header = FrameHeader { bytes: 125, rkey: 0xa1b2_c3d4, batch_count: 2, verb_count: 4 };
    let mut frame = header.encode().to_vec();
    frame.extend(BatchDescriptor { request: 7, verb_count: 3, silent: false }.encode());
    frame.extend(BatchDescriptor { request: 8, verb_count: 1, silent: true }.encode());
    frame.extend(verb(Opcode::Read, 64, 0x1000));
    frame.extend(verb(Opcode::Write, 5, 0x2003));
    frame.extend(verb(Opcode::CompareSwap, 8, 8));
    frame.extend(verb(Opcode::FetchAdd, 8, 16));
    frame.extend(b"hello");
    frame.extend(3_u64.to_le_bytes());
    frame.extend(4_u64.to_le_bytes());
    frame.extend(u64::MAX.to_le_bytes());
    frame
}

fn parse(bytes: &[u8]) -> Result<Option<RequestFrame<'_>>, FrameError> {
    match FrameHeader::parse(bytes)? {
        Some(header) if header.bytes <= bytes.len() => RequestFrame::parse(header, bytes).map(Some),
        _ => Ok(None),
    }
}

/// Bytes that a released peer sends. A change here is a change of the protocol's version.
#[test]
fn golden_bytes() {
    #[rustfmt::skip]
    let golden: &[u8] = &[
        125, 0, 0, 0,  0xd4, 0xc3, 0xb2, 0xa1,   2, 0, 4, 0,  0, 0, 0, 0,
        7, 0, 0, 0,  3, 0, 0, 0,                 8, 0, 0, 0,  1, 0, 1, 0,
        1, 0, 0, 0,  64, 0, 0, 0,                0x00, 0x10, 0, 0, 0, 0, 0, 0,
        2, 0, 0, 0,  5, 0, 0, 0,                 0x03, 0x20, 0, 0, 0, 0, 0, 0,
        3, 0, 0, 0,  8, 0, 0, 0,                 8, 0, 0, 0, 0, 0, 0, 0,
        4, 0, 0, 0,  8, 0, 0, 0,                 16, 0, 0, 0, 0, 0, 0, 0,
        b'h', b'e', b'l', b'l', b'o',
        3, 0, 0, 0, 0, 0, 0, 0,
        4, 0, 0, 0, 0, 0, 0, 0,
        255, 255, 255, 255, 255, 255, 255, 255,
    ];
    let frame = example();
    assert_eq!(frame, golden);
    let parsed = parse(golden).unwrap().unwrap();
    assert_eq!(parsed.batch(1), BatchDescriptor { request: 8, verb_count: 1, silent: true });
    assert_eq!(parsed.verb(1), VerbDescriptor { opcode: Opcode::Write, bytes: 5, remote: Offset(0x2003) });
    assert_eq!(parsed.operands(parsed.header().operands_at(), 5), b"hello");

    let reply = ReplyHeader { request: 7, body_bytes: 72, status: Refused::Rights as u8, verbs_done: 0x102 };
    assert_eq!(reply.encode(), [7, 0, 0, 0, 72, 0, 0, 0, 3, 0, 2, 1, 0, 0, 0, 0]);
    assert_eq!(ReplyHeader::parse(&reply.encode()), Ok(Some(reply)));
}

#[test]
fn a_cut_frame_is_never_a_frame_and_never_an_error() {
    let frame = example();
    for bytes in 0..frame.len() {
        assert!(parse(&frame[..bytes]).unwrap().is_none(), "{bytes} bytes");
    }
}

#[test]
fn impossible_lengths_are_refused_from_four_bytes_on() {
    for length in [0_u32, 1, 15, FRAME_BYTES_MAX as u32 + 1, 1 << 31, u32::MAX] {
        let refused = Err(FrameError::Length { bytes: length as usize });
        assert_eq!(FrameHeader::parse(&length.to_le_bytes()), refused);
    }
    assert_eq!(
        FrameHeader::parse(b"GET / HTTP/1.1\r\n").unwrap_err(),
        FrameError::Length { bytes: 0x2054_4547 }
    );
}

/// Each case sets some bytes of a right frame wrong.
#[test]
fn each_wrong_part_is_named() {
    let is = |place| move |error: &FrameError| *error == FrameError::Reserved { place };
    let counts = |error: &FrameError| matches!(error, FrameError::Counts { .. });
    type Check<'a> = &'a dyn Fn(&FrameError) -> bool;
    let cases: [(usize, &[u8], Check<'_>); 14] = [
        (15, &[1], &is("frame header")),
        (8, &[255, 255], &counts),
        (10, &[255, 255], &counts),
        (8, &[1], &|error| *error == FrameError::Opcode { index: 0, opcode: 8 }),
        (10, &[3], &counts),
        (0, &[124], &counts),
        (22, &[2], &is("batch")),
        (23, &[1], &is("batch")),
        (28, &[2], &counts),
        (20, &[2], &counts),
        (32, &[9], &|error| *error == FrameError::Opcode { index: 0, opcode: 9 }),
        (33, &[1], &is("verb")),
        (52, &[255; 4], &|error| *error == FrameError::VerbLength { index: 1, bytes: u32::MAX as usize }),
        (68, &[7], &|error| *error == FrameError::VerbLength { index: 2, bytes: 7 }),
    ];
    for (at, wrong, check) in cases {
        let mut frame = example();
        frame[at..at + wrong.len()].copy_from_slice(wrong);
        let error = parse(&frame).expect_err(&format!("{wrong:?} at {at}"));
        assert!(check(&error), "{wrong:?} at {at}: {error}");
    }
}

/// 4,096 READs of 2 MiB in one batch: the sum doesn't fit 32 bits.
#[test]
fn a_batch_that_asks_for_gigabytes_is_refused() {
    let count = FRAME_VERBS_MAX;
    let bytes = FRAME_HEADER_BYTES + BATCH_BYTES + count * VERB_BYTES;
    let header = FrameHeader { bytes, rkey: 0, batch_count: 1, verb_count: count };
    let mut frame = header.encode().to_vec();
    frame.extend(BatchDescriptor { request: 0, verb_count: count, silent: false }.encode());
    for _ in 0..count {
        let verb = VerbDescriptor { opcode: Opcode::Read, bytes: VERB_BYTES_MAX, remote: Offset(0) };
        frame.extend(verb.encode());
    }
    assert_eq!(parse(&frame).unwrap_err(), FrameError::ReplyLength { bytes: 8 << 30 });
}

#[test]
fn random_bytes_never_panic() {
    let mut state = 3_u64;
    let mut random = move || {
        state = state.wrapping_mul(0xd134_2543_de82_ef95).wrapping_add(1);
        (state >> 33) as usize
    };
    let example = example();
    let mut right = 0;
    for round in 0..50_000 {
        // Half of them are the example with a few bytes changed, so that they get further.
        let mut bytes = example.clone();
        if round % 2 == 0 {
            for _ in 0..1 + random() % 3 {
                let at = random() % bytes.len();
                bytes[at] = random() as u8;
            }
        } else {
            bytes = (0..random() % 300).map(|_| random() as u8).collect();
            if bytes.len() > 16 {
                let length = bytes.len() as u32;
                bytes[..4].copy_from_slice(&length.to_le_bytes());
                bytes[8..16].copy_from_slice(&[random() as u8 % 4, 0, random() as u8 % 4, 0, 0, 0, 0, 0]);
            }
        }
        if let Ok(Some(frame)) = parse(&bytes) {
            right += 1;
            for index in 0..frame.header().verb_count {
                let _ = frame.verb(index);
            }
        }
        let _ = ReplyHeader::parse(&bytes);
    }
    assert!(right > 1_000, "the test must reach right frames too: {right}");
}
