//! Replies as slices of bytes, without sockets.

use crate::fabric::tcp::frame::{FrameError, REPLY_HEADER_BYTES, Refused, ReplyHeader};
use crate::fabric::tcp::in_flight::{InFlight, PendingBatch};
use crate::fabric::{BatchId, BufferPool, Effect, Failure, FailureKind, Reply, Unregistered, Verb};
use crate::layout::Offset;

fn pool() -> BufferPool {
    BufferPool::new(Box::new(Unregistered), 8 << 20)
}

/// READ of 5 bytes, WRITE, CAS, in a batch whose frame ends at `frame_end`.
fn push(in_flight: &mut InFlight, pool: &mut BufferPool, request: u32, silent: bool, frame_end: u64) {
    let id = BatchId(100 + u64::from(request));
    in_flight.push_batch(PendingBatch { id, request, verb_count: 3, silent, frame_end });
    in_flight.push_verb(Verb::Read { remote: Offset(64), into: pool.take(5).unwrap() });
    in_flight.push_verb(Verb::Write { remote: Offset(8), from: [b"abc", b"", b""] });
    in_flight.push_verb(Verb::CompareSwap { remote: Offset(4), expected: 0, desired: 0 });
}

fn reply(request: u32, status: u8, verbs_done: usize, body: &[u8]) -> Vec<u8> {
    let mut bytes = ReplyHeader { request, body_bytes: body.len(), status, verbs_done }.encode().to_vec();
    bytes.extend(body);
    bytes
}

/// Replies come in pieces of every length.
#[test]
fn replies_are_the_same_however_they_are_cut() {
    let body = [b"hello".to_vec(), 77_u64.to_le_bytes().to_vec()].concat();
    let stream = [reply(1, 0, 3, &body), reply(2, 0, 3, &[]), reply(3, 0, 3, &body)].concat();
    for piece in 1..=stream.len() {
        let (mut pool, mut in_flight) = (pool(), InFlight::new(1 << 20));
        for request in 1..=3 {
            push(&mut in_flight, &mut pool, request, request == 2, 0);
        }
        assert_eq!(in_flight.credits(), 9);
        let (mut completions, mut waiting) = (Vec::new(), Vec::new());
        for bytes in stream.chunks(piece) {
            waiting.extend_from_slice(bytes);
            let taken = in_flight.take(&waiting, &mut completions, &mut pool).unwrap();
            assert!(!taken.refused);
            waiting.drain(..taken.bytes);
        }
        assert!(waiting.is_empty() && in_flight.is_empty() && in_flight.credits() == 0, "piece {piece}");
        let ids: Vec<u64> = completions.iter().map(|completion| completion.batch.0).collect();
        assert_eq!(ids, [101, 103]);
        for completion in completions {
            let replies = completion.result.unwrap();
            assert!(matches!(&replies[0], Reply::Read(buffer) if buffer.as_slice() == b"hello"));
            assert!(matches!(replies[1..], [Reply::Written, Reply::Old(77)]));
        }
    }
}

/// The second batch's third verb is refused; the third batch is behind it.
#[test]
fn a_refusal_ends_its_batch_and_flushes_the_rest() {
    let (mut pool, mut in_flight) = (pool(), InFlight::new(1 << 20));
    for request in 1..=3 {
        push(&mut in_flight, &mut pool, request, request == 1, 0);
    }
    let bytes = [reply(1, 0, 3, &[]), reply(2, Refused::Alignment as u8, 2, b"hello")].concat();
    let mut completions = Vec::new();
    assert!(in_flight.take(&bytes, &mut completions, &mut pool).unwrap().refused);
    assert!(in_flight.is_empty() && in_flight.credits() == 0);
    let failures: Vec<Failure> =
        completions.into_iter().map(|completion| completion.result.unwrap_err()).collect();
    let text = "CompareSwap of 8 bytes at 0x4: the word is not aligned to 8 bytes".to_owned();
    assert_eq!(
        failures,
        [
            Failure { verb_index: 2, kind: FailureKind::Access(text), effect: Effect::No },
            Failure { verb_index: 0, kind: FailureKind::Flushed, effect: Effect::No },
        ]
    );
}

/// The connection is lost when the first batch is half answered, the second one sent, the third one not.
#[test]
fn what_was_not_sent_did_not_happen_and_what_was_sent_is_unknown() {
    let (mut pool, mut in_flight) = (pool(), InFlight::new(1 << 20));
    for (request, frame_end) in [(1, 100), (2, 200), (3, 300)] {
        push(&mut in_flight, &mut pool, request, false, frame_end);
    }
    let mut completions = Vec::new();
    let bytes = reply(1, 0, 3, b"hello01234567");
    in_flight.take(&bytes[..REPLY_HEADER_BYTES + 7], &mut completions, &mut pool).unwrap();
    assert!(completions.is_empty());
    in_flight.lose(299, "cut", &mut completions, &mut pool);
    let ends: Vec<(usize, Effect)> = completions
        .into_iter()
        .map(|completion| completion.result.unwrap_err())
        .map(|failure| (failure.verb_index, failure.effect))
        .collect();
    assert_eq!(ends, [(2, Effect::Unknown), (0, Effect::Unknown), (0, Effect::No)]);
}

#[test]
fn replies_that_answer_nothing_are_refused() {
    let wrong = [
        (reply(2, 0, 3, b"hello01234567"), FrameError::Request { found: 2, expected: 1 }),
        (reply(1, 0, 2, b"hello"), FrameError::Reply { status: 0, done: 2, bytes: 5, verbs: 3 }),
        (reply(1, 1, 3, b"hello01234567"), FrameError::Reply { status: 1, done: 3, bytes: 13, verbs: 3 }),
        (reply(1, 0, 4, b""), FrameError::Reply { status: 0, done: 4, bytes: 0, verbs: 3 }),
        (reply(1, 0, 3, b"hello"), FrameError::Reply { status: 0, done: 3, bytes: 5, verbs: 3 }),
    ];
    for (bytes, error) in wrong {
        let (mut pool, mut in_flight) = (pool(), InFlight::new(1 << 20));
        push(&mut in_flight, &mut pool, 1, false, 0);
        assert_eq!(in_flight.take(&bytes, &mut Vec::new(), &mut pool), Err(error));
    }
    let unasked = InFlight::new(1 << 20).take(&reply(1, 0, 0, b""), &mut Vec::new(), &mut pool());
    assert_eq!(unasked, Err(FrameError::Unasked));
}

#[test]
fn random_replies_never_panic() {
    let mut state = 5_u64;
    let mut random = move || {
        state = state.wrapping_mul(0xd134_2543_de82_ef95).wrapping_add(1);
        (state >> 56) as u8
    };
    for round in 0..20_000_usize {
        let (mut pool, mut in_flight) = (pool(), InFlight::new(1 << 20));
        push(&mut in_flight, &mut pool, 1, round % 2 == 0, 0);
        let mut bytes = reply(1, 0, 3, b"hello01234567");
        for _ in 0..1 + random() % 3 {
            let at = usize::from(random()) % bytes.len();
            bytes[at] = random();
        }
        let _ = in_flight.take(&bytes, &mut Vec::new(), &mut pool);
        in_flight.lose(0, "end of the test", &mut Vec::new(), &mut pool);
    }
}
