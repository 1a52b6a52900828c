//! What a memory node should answer to a stream, in the plainest words: one frame after the other, one verb after the
//! other, on a vector of bytes.

use sidestep_common::fabric::tcp::frame::{
    BatchDescriptor, FrameHeader, Opcode, Refused, ReplyHeader, RequestFrame, VerbDescriptor,
};
use sidestep_common::fabric::{Rights, Ticket};
use sidestep_common::wire::{Preamble, PreambleKind};

/// How a connection stands when the whole stream has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum End {
    /// It would take more.
    Open,
    /// It is to be closed: what came is malformed.
    Malformed,
    /// The peer was refused its ticket or a verb.
    Refused,
}

/// A memory node.
pub(super) struct Model {
    pub(super) memory: Vec<u8>,
    pub(super) end: End,
    rkey: u32,
    rights: Rights,
}

impl Model {
    pub(super) fn new(memory: Vec<u8>, rkey: u32, rights: Rights) -> Self {
        Self { memory, end: End::Open, rkey, rights }
    }

    /// Works on the whole stream; none if the answer would be longer than `bytes_max`.
    pub(super) fn answer(&mut self, stream: &[u8], ticket: Ticket, bytes_max: usize) -> Option<Vec<u8>> {
        let mut answer = Vec::new();
        let Some((shown, mut rest)) = stream.split_at_checked(ticket.0.len()) else { return Some(answer) };
        answer.extend(Preamble(PreambleKind::Data).encode());
        if shown != ticket.0 {
            let reason = b"the ticket is not valid";
            answer.extend([1, reason.len() as u8]);
            answer.extend(reason);
            self.end = End::Refused;
            return Some(answer);
        }
        answer.extend([0, 0]);
        while self.end == End::Open {
            let header = match FrameHeader::parse(rest) {
                Ok(Some(header)) if header.bytes <= rest.len() => header,
                Ok(_) => break,
                Err(_) => {
                    self.end = End::Malformed;
                    break;
                }
            };
            match RequestFrame::parse(header, rest) {
                Ok(frame) => self.frame(&frame, &mut answer, bytes_max)?,
                Err(_) => self.end = End::Malformed,
            }
            rest = &rest[header.bytes..];
        }
        Some(answer)
    }

    fn frame(&mut self, frame: &RequestFrame<'_>, answer: &mut Vec<u8>, bytes_max: usize) -> Option<()> {
        let header = *frame.header();
        let (mut verb, mut operands_at) = (0, header.operands_at());
        for batch in (0..header.batch_count).map(|index| frame.batch(index)) {
            let verbs: Vec<_> = (verb..verb + batch.verb_count).map(|index| frame.verb(index)).collect();
            verb += batch.verb_count;
            let (reply, body) = self.batch(&batch, &verbs, frame, &mut operands_at, bytes_max)?;
            answer.extend(reply.encode());
            answer.extend(body);
            if answer.len() > bytes_max {
                return None;
            }
            if reply.status != 0 {
                self.end = End::Refused;
                break;
            }
        }
        Some(())
    }

    fn batch(
        &mut self,
        batch: &BatchDescriptor,
        verbs: &[VerbDescriptor],
        frame: &RequestFrame<'_>,
        operands_at: &mut usize,
        bytes_max: usize,
    ) -> Option<(ReplyHeader, Vec<u8>)> {
        let (mut status, mut verbs_done, mut body) = (0, 0, Vec::new());
        for verb in verbs {
            if let Some(refused) = self.refusal(verb, frame.header().rkey) {
                status = refused as u8;
                break;
            }
            let operands = frame.operands(*operands_at, verb.operand_bytes());
            *operands_at += verb.operand_bytes();
            let brought = self.execute(verb, operands);
            if !batch.silent {
                body.extend(brought);
            }
            verbs_done += 1;
            if body.len() > bytes_max {
                return None;
            }
        }
        Some((ReplyHeader { request: batch.request, body_bytes: body.len(), status, verbs_done }, body))
    }

    fn refusal(&self, verb: &VerbDescriptor, rkey: u32) -> Option<Refused> {
        let end = u128::from(verb.remote.0) + verb.bytes as u128;
        if rkey != self.rkey {
            Some(Refused::Key)
        } else if verb.opcode != Opcode::Read && self.rights == Rights::ReadOnly {
            Some(Refused::Rights)
        } else if matches!(verb.opcode, Opcode::CompareSwap | Opcode::FetchAdd)
            && !verb.remote.0.is_multiple_of(8)
        {
            Some(Refused::Alignment)
        } else if end > self.memory.len() as u128 {
            Some(Refused::Bounds)
        } else {
            None
        }
    }

    /// Executes a verb that is allowed; gives what it brings.
    fn execute(&mut self, verb: &VerbDescriptor, operands: &[u8]) -> Vec<u8> {
        let place = verb.remote.0 as usize..verb.remote.0 as usize + verb.bytes;
        let word = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().expect("eight bytes"));
        let before = self.memory[place.clone()].to_vec();
        let after = match verb.opcode {
            Opcode::Read => return before,
            Opcode::Write => {
                self.memory[place].copy_from_slice(operands);
                return Vec::new();
            }
            Opcode::CompareSwap if before == operands[..8] => word(&operands[8..]),
            Opcode::CompareSwap => word(&before),
            Opcode::FetchAdd => word(&before).wrapping_add(word(operands)),
        };
        self.memory[place].copy_from_slice(&after.to_le_bytes());
        before
    }
}
