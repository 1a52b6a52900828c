//! A hostile client on the data path of `tcp`: its bytes, cut into any pieces, go to the memory node's side of a
//! connection. Replies and memory must be those of a simple model, nothing outside the region may change, and nothing
//! at all without the right to write. What the node holds in memory follows the bytes that came.

mod model;

use arbitrary::Arbitrary;
use sidestep_common::fabric::tcp::frame::{
    BatchDescriptor, FRAME_HEADER_BYTES, FrameHeader, Opcode, RequestFrame, VerbDescriptor,
};
use sidestep_common::fabric::tcp::fuzzing::{Card, Next};
use sidestep_common::fabric::{Rights, Ticket};
use sidestep_common::layout::Offset;

use super::local_memory::LocalMemory;
use super::pieces::pieces;
use model::{End, Model};

/// Longer than the pieces in which a READ is copied, so that one is interrupted.
const REGION_BYTES: u64 = 80 << 10;
const RKEY: u32 = 0x5eed;
const TICKET: Ticket = Ticket([7; 16]);
/// Inputs whose answers would be longer are left out: they cost time and show nothing new.
const ANSWER_BYTES_MAX: usize = 2 << 20;
/// What both queues start with, what waits in the output at the most, and rounding up to powers of two.
const HELD_BYTES_MAX: usize = 1 << 20;

#[derive(Arbitrary, Debug)]
struct Input {
    read_only: bool,
    /// How long the pieces are in which bytes arrive.
    cuts: Vec<u8>,
    /// How much of its output is taken at a time; all if 0.
    taken_kibibytes: u8,
    opening: Opening,
    parts: Vec<Part>,
}

#[derive(Arbitrary, Debug)]
enum Opening {
    Ticket,
    Wrong([u8; 16]),
    Nothing,
}

#[derive(Arbitrary, Debug)]
enum Part {
    /// A frame whose counts and lengths are right.
    Frame(Frame),
    /// The same, with one bit changed.
    Patched(Frame, u16, u8),
    Raw(Vec<u8>),
}

#[derive(Arbitrary, Debug)]
struct Frame {
    wrong_key: bool,
    batches: Vec<(u32, bool, Vec<VerbSpec>)>,
}

#[derive(Arbitrary, Debug)]
enum VerbSpec {
    Read(Place, Length),
    Write(Place, Vec<u8>),
    WriteLong(Place, u16, u8),
    Swap(Place, u64, u64),
    Add(Place, u64),
}

#[derive(Arbitrary, Clone, Copy, Debug)]
enum Place {
    Word(u8),
    Near(u16),
    FromEnd(i8),
    Far(u64),
}

#[derive(Arbitrary, Clone, Copy, Debug)]
enum Length {
    Word,
    Short(u8),
    Any(u32),
}

impl Place {
    fn offset(self) -> Offset {
        Offset(match self {
            Self::Word(index) => 8 * u64::from(index),
            Self::Near(offset) => offset.into(),
            Self::FromEnd(bytes) => REGION_BYTES.wrapping_add_signed(bytes.into()),
            Self::Far(offset) => offset,
        })
    }
}

impl VerbSpec {
    fn parts(&self) -> (VerbDescriptor, Vec<u8>) {
        let verb = |opcode, bytes, place: Place| VerbDescriptor { opcode, bytes, remote: place.offset() };
        match self {
            Self::Read(place, length) => {
                let bytes = match *length {
                    Length::Word => 8,
                    Length::Short(bytes) => bytes.into(),
                    Length::Any(bytes) => bytes as usize % (3 << 20),
                };
                (verb(Opcode::Read, bytes, *place), Vec::new())
            }
            Self::Write(place, bytes) => (verb(Opcode::Write, bytes.len(), *place), bytes.clone()),
            Self::WriteLong(place, bytes, fill) => {
                (verb(Opcode::Write, (*bytes).into(), *place), vec![*fill; (*bytes).into()])
            }
            Self::Swap(place, expected, desired) => {
                let operands = [expected.to_le_bytes(), desired.to_le_bytes()].concat();
                (verb(Opcode::CompareSwap, 8, *place), operands)
            }
            Self::Add(place, add) => (verb(Opcode::FetchAdd, 8, *place), add.to_le_bytes().to_vec()),
        }
    }
}

impl Frame {
    fn encode(&self) -> Vec<u8> {
        let verbs: Vec<_> = self.batches.iter().flat_map(|(.., verbs)| verbs).map(VerbSpec::parts).collect();
        let mut header = FrameHeader {
            bytes: 0,
            rkey: RKEY ^ u32::from(self.wrong_key),
            batch_count: self.batches.len(),
            verb_count: verbs.len(),
        };
        let operand_bytes: usize = verbs.iter().map(|(_, operands)| operands.len()).sum();
        header.bytes = header.operands_at() + operand_bytes;
        let mut bytes = header.encode().to_vec();
        for (request, silent, verbs) in &self.batches {
            let batch = BatchDescriptor { request: *request, verb_count: verbs.len(), silent: *silent };
            bytes.extend(batch.encode());
        }
        verbs.iter().for_each(|(verb, _)| bytes.extend(verb.encode()));
        verbs.iter().for_each(|(_, operands)| bytes.extend(operands));
        bytes
    }
}

impl Input {
    fn stream(&self) -> Vec<u8> {
        let mut stream = match self.opening {
            Opening::Ticket => TICKET.0.to_vec(),
            Opening::Wrong(ticket) => ticket.to_vec(),
            Opening::Nothing => Vec::new(),
        };
        for part in &self.parts {
            match part {
                Part::Frame(frame) => stream.extend(frame.encode()),
                Part::Patched(frame, at, bit) => {
                    let mut bytes = frame.encode();
                    let at = usize::from(*at) % bytes.len();
                    bytes[at] ^= 1 << (bit % 8);
                    stream.extend(bytes);
                }
                Part::Raw(bytes) => stream.extend(bytes),
            }
        }
        stream
    }
}

/// A frame's own promises: its parts are inside it, and its counts add up.
fn check_frame(bytes: &[u8]) {
    let Ok(Some(header)) = FrameHeader::parse(bytes) else { return };
    assert_eq!(header.encode()[..], bytes[..FRAME_HEADER_BYTES], "a header has one encoding");
    if header.bytes > bytes.len() {
        return;
    }
    let Ok(frame) = RequestFrame::parse(header, &bytes[..header.bytes]) else { return };
    let batches: Vec<_> = (0..header.batch_count).map(|index| frame.batch(index)).collect();
    assert_eq!(batches.iter().map(|batch| batch.verb_count).sum::<usize>(), header.verb_count);
    let mut again = header.encode().to_vec();
    batches.iter().for_each(|batch| again.extend(batch.encode()));
    let mut operand_bytes = 0;
    for index in 0..header.verb_count {
        again.extend(frame.verb(index).encode());
        operand_bytes += frame.verb(index).operand_bytes();
    }
    again.extend(frame.operands(header.operands_at(), operand_bytes));
    assert_eq!(again, bytes[..header.bytes], "a frame has one encoding");
}

/// See the module.
pub fn run(bytes: &[u8]) {
    check_frame(bytes);
    let Some(input) = super::input::<Input>(bytes) else { return };
    let rights = if input.read_only { Rights::ReadOnly } else { Rights::ReadWrite };
    let stream = input.stream();

    let before: Vec<u8> = (0..REGION_BYTES).map(|at| (at / 8 + at) as u8).collect();
    let mut model = Model::new(before.clone(), RKEY, rights);
    let Some(expected) = model.answer(&stream, TICKET, ANSWER_BYTES_MAX) else { return };

    let mut memory = LocalMemory::new(REGION_BYTES);
    let words = memory.words();
    words.write(Offset(0), &before).expect("the whole region");
    let mut card = Card::new(words, RKEY, rights, TICKET);
    let taken =
        if input.taken_kibibytes == 0 { usize::MAX } else { usize::from(input.taken_kibibytes) << 10 };
    let (output, end) = hold(&mut card, &stream, &input.cuts, taken);

    let mut after = vec![0; REGION_BYTES as usize];
    words.read(Offset(0), &mut after).expect("the whole region");
    memory.check();
    assert!(rights.can_write() || after == before, "a session that may only read has changed something");
    assert_eq!(end, model.end);
    assert_eq!(output.len(), expected.len(), "bytes of the answer");
    assert!(output == expected, "the answer differs from byte {:?}", first_difference(&output, &expected));
    assert!(
        after == model.memory,
        "the region differs from byte {:?}",
        first_difference(&after, &model.memory)
    );
}

fn first_difference(one: &[u8], other: &[u8]) -> Option<usize> {
    one.iter().zip(other).position(|(one, other)| one != other)
}

/// Plays the socket: hands the stream over in pieces, and takes the output.
fn hold(card: &mut Card, stream: &[u8], cuts: &[u8], taken: usize) -> (Vec<u8>, End) {
    let mut waiting = pieces(stream, cuts).into_iter().peekable();
    let mut output = Vec::new();
    loop {
        let fed = card.takes_input();
        if fed && let Some(piece) = waiting.next() {
            let mut rest = piece;
            while !rest.is_empty() {
                let count = card.receive(rest);
                rest = &rest[count..];
            }
        }
        let next = match card.advance() {
            Ok(next) => next,
            Err(_) => {
                output.extend(card.take_output(usize::MAX));
                return (output, End::Malformed);
            }
        };
        let held = card.held_bytes();
        assert!(held <= HELD_BYTES_MAX + 4 * stream.len(), "{held} bytes held for {} sent", stream.len());
        let sent = card.take_output(taken);
        output.extend(sent);
        match next {
            Next::End if card.takes_input() && waiting.peek().is_none() => return (output, End::Refused),
            Next::Input if card.takes_input() && waiting.peek().is_none() => return (output, End::Open),
            _ => {}
        }
    }
}
