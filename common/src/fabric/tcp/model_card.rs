//! `tcp` as models under loom play it: a batch becomes a frame, and the frame is executed as the memory node's thread
//! does, without sockets.

use super::execute::{Execution, Grant, Progress};
use super::frame::{
    BATCH_BYTES, BatchDescriptor, FRAME_HEADER_BYTES, FrameHeader, Opcode, REPLY_HEADER_BYTES, RequestFrame,
    VERB_BYTES, VerbDescriptor,
};
use super::queue::ByteQueue;
use crate::fabric::Rights;
use crate::fabric::models::{Card, Do};
use crate::layout::Offset;
use crate::memory::WordMemory;

const RKEY: u32 = 5;

struct TcpCard(Grant);

/// For a session with all rights.
pub(in crate::fabric) fn model_card(memory: WordMemory) -> Box<dyn Card> {
    Box::new(TcpCard(Grant { memory, rkey: RKEY, rights: Rights::ReadWrite }))
}

impl Card for TcpCard {
    fn run(&mut self, batch: &[Do]) -> Vec<Vec<u8>> {
        let bytes = frame(batch);
        let header = FrameHeader::parse(&bytes).unwrap().unwrap();
        let frame = RequestFrame::parse(header, &bytes).unwrap();
        let mut output = ByteQueue::with_capacity(0);
        assert_eq!(Execution::new(&frame).advance(&frame, &self.0, &mut output), Progress::Done);
        let mut replies = &output.filled()[REPLY_HEADER_BYTES..];
        let mut take = |bytes: usize| replies.split_off(..bytes).unwrap().to_vec();
        let reply = |verb: &Do| match verb {
            Do::Read(_, bytes) => take(*bytes),
            Do::Write(..) => Vec::new(),
            Do::Swap(..) | Do::Add(..) => take(8),
        };
        batch.iter().map(reply).collect()
    }
}

fn frame(batch: &[Do]) -> Vec<u8> {
    let (mut descriptors, mut operands) = (Vec::new(), Vec::new());
    for verb in batch {
        let (opcode, remote, bytes, own) = match verb {
            Do::Read(at, bytes) => (Opcode::Read, *at, *bytes, Vec::new()),
            Do::Write(at, pieces) => (Opcode::Write, *at, pieces.iter().map(Vec::len).sum(), pieces.concat()),
            Do::Swap(at, expected, desired) => {
                (Opcode::CompareSwap, *at, 8, [expected.to_le_bytes(), desired.to_le_bytes()].concat())
            }
            Do::Add(at, add) => (Opcode::FetchAdd, *at, 8, add.to_le_bytes().to_vec()),
        };
        descriptors.extend(VerbDescriptor { opcode, bytes, remote: Offset(remote) }.encode());
        operands.extend(own);
    }
    let bytes = FRAME_HEADER_BYTES + BATCH_BYTES + batch.len() * VERB_BYTES + operands.len();
    let mut frame =
        FrameHeader { bytes, rkey: RKEY, batch_count: 1, verb_count: batch.len() }.encode().to_vec();
    frame.extend(BatchDescriptor { request: 1, verb_count: batch.len(), silent: false }.encode());
    frame.extend(descriptors);
    frame.extend(operands);
    frame
}
