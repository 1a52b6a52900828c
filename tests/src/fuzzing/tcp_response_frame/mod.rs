//! A hostile memory node on the data path of `tcp`: a client has batches in flight, and the node's bytes come in any
//! pieces. Each batch that is not silent completes exactly once, in order, with what a simple model makes of the bytes;
//! what can't be answered any more is said to be unknown, not to have failed.

mod model;

use std::io::Write;
use std::net::{Shutdown, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::time::Instant;

use arbitrary::Arbitrary;
use sidestep_common::fabric::tcp::frame::{Opcode, ReplyHeader};
use sidestep_common::fabric::tcp::{TcpFabric, fuzzing};
use sidestep_common::fabric::{
    Batch, BatchId, Completion, ConnectOptions, DeviceChoice, Fabric, FailureKind, PostError, Reply, Rights,
    Verb,
};
use sidestep_common::layout::Offset;

use super::pieces::pieces;
use model::{Kind, Outcome, expect};

const BATCHES_MAX: usize = 12;
const VERBS_MAX: usize = 8;

#[derive(Arbitrary, Debug)]
struct Input {
    batches: Vec<BatchSpec>,
    /// Batches of one call; all in one if 0.
    batches_per_post: u8,
    cuts: Vec<u8>,
    answers: Vec<Answer>,
}

#[derive(Arbitrary, Debug)]
struct BatchSpec {
    silent: bool,
    verbs: Vec<VerbSpec>,
}

#[derive(Arbitrary, Clone, Copy, Debug)]
enum VerbSpec {
    Read(u8),
    /// Longer than what is received into a buffer of its own.
    ReadLong(u16),
    Write(u8),
    Swap,
    Add,
}

/// What the node says next.
#[derive(Arbitrary, Debug)]
enum Answer {
    /// The right reply to the next batch.
    Right {
        fill: u8,
    },
    /// Its next batch is refused at some verb.
    Refused {
        status: u8,
        done: u8,
        fill: u8,
    },
    /// The right reply with one bit of its header changed.
    Patched {
        bit: u8,
        fill: u8,
    },
    /// Any header at all.
    Header {
        request: u32,
        body_bytes: u32,
        status: u8,
        verbs_done: u16,
        body: Vec<u8>,
    },
    Raw(Vec<u8>),
}

impl VerbSpec {
    /// What it does, and the bytes that a READ fetches.
    fn parts(self) -> (Opcode, usize) {
        match self {
            Self::Read(bytes) => (Opcode::Read, bytes.into()),
            Self::ReadLong(bytes) => (Opcode::Read, 8000 + usize::from(bytes)),
            Self::Write(bytes) => (Opcode::Write, bytes.into()),
            Self::Swap => (Opcode::CompareSwap, 8),
            Self::Add => (Opcode::FetchAdd, 8),
        }
    }
}

/// A batch as both the model and the node see it.
pub(super) struct Asked {
    silent: bool,
    verbs: Vec<(Opcode, usize)>,
}

impl Asked {
    /// Bytes of the reply's body if `done` verbs are done.
    fn body_bytes(&self, done: usize) -> usize {
        let reply_bytes =
            |(opcode, bytes): &(Opcode, usize)| if *opcode == Opcode::Write { 0 } else { *bytes };
        if self.silent { 0 } else { self.verbs[..done].iter().map(reply_bytes).sum() }
    }
}

impl Input {
    fn asked(&self) -> Vec<Asked> {
        let batches = self.batches.iter().take(BATCHES_MAX).map(|batch| Asked {
            silent: batch.silent,
            verbs: batch.verbs.iter().take(VERBS_MAX).map(|verb| verb.parts()).collect(),
        });
        batches.collect()
    }

    fn stream(&self, asked: &[Asked]) -> Vec<u8> {
        let mut stream = Vec::new();
        let mut next = 0;
        for answer in &self.answers {
            let batch = asked.get(next);
            let all = batch.map_or(0, |batch| batch.verbs.len());
            let right = |done: usize, status: u8| ReplyHeader {
                request: next as u32 + 1,
                body_bytes: batch.map_or(0, |batch| batch.body_bytes(done)),
                status,
                verbs_done: done,
            };
            let mut patched_bit = None;
            let (header, fill) = match answer {
                Answer::Right { fill } => (right(all, 0), *fill),
                Answer::Refused { status, done, fill } => (right(all.min((*done).into()), *status), *fill),
                Answer::Patched { bit, fill } => {
                    patched_bit = Some(usize::from(*bit));
                    (right(all, 0), *fill)
                }
                Answer::Header { request, body_bytes, status, verbs_done, body } => {
                    let header = ReplyHeader {
                        request: *request,
                        body_bytes: *body_bytes as usize,
                        status: *status,
                        verbs_done: (*verbs_done).into(),
                    };
                    stream.extend(header.encode());
                    stream.extend_from_slice(body);
                    continue;
                }
                Answer::Raw(bytes) => {
                    stream.extend_from_slice(bytes);
                    continue;
                }
            };
            let mut bytes = header.encode();
            if let Some(bit) = patched_bit {
                bytes[bit / 8 % bytes.len()] ^= 1 << (bit % 8);
            }
            stream.extend(bytes);
            stream.extend((0..header.body_bytes).map(|at| fill.wrapping_add(at as u8)));
            next += 1;
        }
        stream
    }
}

/// See the module.
pub fn run(bytes: &[u8]) {
    if let Ok(Some(header)) = ReplyHeader::parse(bytes) {
        assert_eq!(header.encode()[..], bytes[..header.encode().len()], "a header has one encoding");
    }
    let Some(input) = super::input::<Input>(bytes) else { return };
    let asked = input.asked();
    let stream = input.stream(&asked);
    // The node has no more than a socket holds, and nobody reads what the client sends.
    if stream.len() > 128 << 10 {
        return;
    }
    let expected = expect(&asked, &stream);
    let found = answers(&asked, input.batches_per_post, &stream, &input.cuts);
    assert_eq!(found, expected);
}

/// Lets a real client post the batches and hear the stream; gives what it was told of the batches that are not silent.
fn answers(asked: &[Asked], batches_per_post: u8, stream: &[u8], cuts: &[u8]) -> Vec<Outcome> {
    let (mut node, client) = UnixStream::pair().expect("a pair of sockets");
    client.set_nonblocking(true).expect("a socket that doesn't wait");
    // Only sent to and received from, which is the same for both kinds of socket.
    let client = TcpStream::from(OwnedFd::from(client));
    let options = ConnectOptions {
        peer: None,
        region_bytes: 1 << 20,
        rights: Rights::ReadWrite,
        verbs_in_flight_max: BATCHES_MAX * VERBS_MAX,
        buffer_limit_bytes: 32 << 20,
        device: DeviceChoice::default(),
        deadline: Instant::now(),
    };
    let mut fabric = fuzzing::client(client, 1, &options);
    let mut completions = Vec::new();
    let per_post = if batches_per_post == 0 { usize::MAX } else { batches_per_post.into() };
    let ids: Vec<usize> = (0..asked.len()).collect();
    for some in ids.chunks(per_post) {
        post(&mut fabric, asked, some).expect("as many as fit");
    }
    for piece in pieces(stream, cuts) {
        // Fails once the client has hung up.
        let _ = node.write_all(piece);
        fabric.poll(&mut completions);
    }
    let _ = node.shutdown(Shutdown::Write);
    while fabric.poll(&mut completions) > 0 {}
    let after = post(&mut fabric, asked, &[]);
    assert!(matches!(after, Err(PostError::Broken(_))), "the node has hung up: {after:?}");
    completions.into_iter().map(outcome).collect()
}

fn post(fabric: &mut TcpFabric, asked: &[Asked], which: &[usize]) -> Result<(), PostError> {
    let written = [0xa5; 256];
    let mut batches: Vec<Batch<'_>> = which
        .iter()
        .map(|&id| Batch {
            id: BatchId(id as u64),
            verbs: asked[id].verbs.iter().map(|verb| make(fabric, *verb, &written)).collect(),
            silent: asked[id].silent,
        })
        .collect();
    fabric.post(&mut batches)
}

fn make<'a>(fabric: &mut TcpFabric, (opcode, bytes): (Opcode, usize), written: &'a [u8]) -> Verb<'a> {
    let remote = Offset(64);
    match opcode {
        Opcode::Read => Verb::Read { remote, into: fabric.buffers().take(bytes).expect("room") },
        Opcode::Write => Verb::Write { remote, from: [&written[..bytes], &[], &[]] },
        Opcode::CompareSwap => Verb::CompareSwap { remote, expected: 0, desired: 1 },
        Opcode::FetchAdd => Verb::FetchAdd { remote, add: 1 },
    }
}

fn outcome(completion: Completion) -> Outcome {
    let result = match completion.result {
        Ok(replies) => Ok(replies
            .iter()
            .map(|reply| match reply {
                Reply::Read(buffer) => buffer.as_slice().to_vec(),
                Reply::Written => Vec::new(),
                Reply::Old(word) => word.to_le_bytes().to_vec(),
            })
            .collect()),
        Err(failure) => {
            let kind = match failure.kind {
                FailureKind::Access(_) => Kind::Access,
                FailureKind::Flushed => Kind::Flushed,
                FailureKind::Disconnected(_) => Kind::Disconnected,
                other @ FailureKind::Card { .. } => panic!("there is no card: {other}"),
            };
            Err((kind, failure.verb_index, failure.effect))
        }
    };
    Outcome { batch: completion.batch.0, result }
}
