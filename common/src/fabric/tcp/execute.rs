//! What a card does with a request frame: check, execute, answer.
//!
//! Always true: a batch's verbs are checked before the first of them executes, so the reply's header is right
//! whatever follows; nothing behind a refused verb executes. Bytes of a reply leave only when every WRITE and
//! atomic in front of the next READ has executed: only a READ waits for room, so a client that has the last byte
//! of a reply knows that the whole batch took effect.

use super::frame::{FrameHeader, Opcode, Refused, ReplyHeader, RequestFrame, VerbDescriptor};
use super::queue::ByteQueue;
use crate::fabric::Rights;
use crate::layout::word_at;
use crate::memory::{StoreBuffer, WordMemory};

/// No more replies are made while so many bytes of them wait: what a peer that doesn't read can make us hold is
/// this, one piece and the words of one batch.
pub(super) const OUTPUT_BYTES_MAX: usize = 256 << 10;
/// A READ is copied in pieces of this size, so that sending and copying take turns.
const PIECE_BYTES: usize = 64 << 10;

/// What a connection may touch.
#[derive(Clone, Copy, Debug)]
pub(super) struct Grant {
    pub(super) memory: WordMemory,
    pub(super) rkey: u32,
    pub(super) rights: Rights,
}

/// A frame that is being executed; the place where to go on.
#[derive(Debug)]
pub(super) struct Execution {
    header: FrameHeader,
    /// The next batch to begin.
    batch: usize,
    /// The next verb to execute, counted over all batches.
    verb: usize,
    /// Verbs of the batch that execute end here.
    verbs_end: usize,
    /// Where the next verb's operands lie.
    operands_at: usize,
    /// Bytes of the next verb's READ that are copied.
    read_bytes: usize,
    silent: bool,
    refused: bool,
    store_buffer: StoreBuffer,
}

/// How far an execution came.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Progress {
    /// The frame is done.
    Done,
    /// Waits until the peer has read replies.
    OutputFull,
    /// A verb was refused, and the peer is told so; the connection executes no more.
    Refused,
}

impl Execution {
    /// Begins with a frame that was parsed.
    pub(super) fn new(frame: &RequestFrame<'_>) -> Self {
        let header = *frame.header();
        Self {
            header,
            batch: 0,
            verb: 0,
            verbs_end: 0,
            operands_at: header.operands_at(),
            read_bytes: 0,
            silent: false,
            refused: false,
            // The frame before, of the same connection, may have stored something.
            store_buffer: StoreBuffer::unknown(),
        }
    }

    /// The frame's header.
    pub(super) fn header(&self) -> &FrameHeader {
        &self.header
    }

    /// Executes as far as there is room for replies.
    pub(super) fn advance(
        &mut self,
        frame: &RequestFrame<'_>,
        grant: &Grant,
        output: &mut ByteQueue,
    ) -> Progress {
        loop {
            if self.verb == self.verbs_end {
                if self.refused {
                    return Progress::Refused;
                }
                if self.batch == self.header.batch_count {
                    return Progress::Done;
                }
                if output.len() >= OUTPUT_BYTES_MAX {
                    return Progress::OutputFull;
                }
                self.begin_batch(frame, grant, output);
                continue;
            }
            let verb = frame.verb(self.verb);
            if !self.execute(&verb, frame, grant, output) {
                return Progress::OutputFull;
            }
            self.operands_at += verb.operand_bytes();
            self.verb += 1;
            self.read_bytes = 0;
        }
    }

    /// Checks the next batch and puts its reply's header out.
    fn begin_batch(&mut self, frame: &RequestFrame<'_>, grant: &Grant, output: &mut ByteQueue) {
        let batch = frame.batch(self.batch);
        let mut reply = ReplyHeader { request: batch.request, body_bytes: 0, status: 0, verbs_done: 0 };
        for index in self.verb..self.verb + batch.verb_count {
            let verb = frame.verb(index);
            if let Err(refused) = check(&verb, self.header.rkey, grant) {
                reply.status = refused as u8;
                self.refused = true;
                break;
            }
            reply.verbs_done += 1;
            if !batch.silent {
                reply.body_bytes += verb.reply_bytes();
            }
        }
        self.silent = batch.silent;
        self.batch += 1;
        self.verbs_end = self.verb + reply.verbs_done;
        output.push(&reply.encode());
    }

    /// Executes one verb; false if it waits for room.
    fn execute(
        &mut self,
        verb: &VerbDescriptor,
        frame: &RequestFrame<'_>,
        grant: &Grant,
        output: &mut ByteQueue,
    ) -> bool {
        let memory = &grant.memory;
        let operands = frame.operands(self.operands_at, verb.operand_bytes());
        match verb.opcode {
            Opcode::Read => self.store_buffer.before_read(),
            Opcode::Write => self.store_buffer.before_write(),
            Opcode::CompareSwap | Opcode::FetchAdd => self.store_buffer.before_atomic(),
        }
        let old = match verb.opcode {
            Opcode::Read if self.silent => return true,
            Opcode::Read => return self.read(verb, memory, output),
            Opcode::Write => memory.write(verb.remote, operands).map(|()| None),
            Opcode::CompareSwap => {
                memory.compare_swap(verb.remote, word_at(operands, 0), word_at(operands, 8)).map(Some)
            }
            Opcode::FetchAdd => memory.fetch_add(verb.remote, word_at(operands, 0)).map(Some),
        };
        match old {
            Ok(Some(old)) if !self.silent => output.push(&old.to_le_bytes()),
            Ok(_) => {}
            Err(error) => unreachable!("{verb:?} was checked: {error}"),
        }
        true
    }

    fn read(&mut self, verb: &VerbDescriptor, memory: &WordMemory, output: &mut ByteQueue) -> bool {
        while self.read_bytes < verb.bytes {
            if output.len() >= OUTPUT_BYTES_MAX {
                return false;
            }
            let from = verb.remote.plus(self.read_bytes as u64);
            // Pieces end at word boundaries: no word may be copied in two halves at two moments.
            let count = (PIECE_BYTES - (from.0 % 8) as usize).min(verb.bytes - self.read_bytes);
            if let Err(error) = memory.read(from, &mut output.space(count)[..count]) {
                unreachable!("{verb:?} was checked: {error}");
            }
            output.commit(count);
            self.read_bytes += count;
        }
        true
    }
}

fn check(verb: &VerbDescriptor, rkey: u32, grant: &Grant) -> Result<(), Refused> {
    if rkey != grant.rkey {
        return Err(Refused::Key);
    }
    if verb.opcode != Opcode::Read && !grant.rights.can_write() {
        return Err(Refused::Rights);
    }
    if verb.opcode.is_atomic() && !verb.remote.0.is_multiple_of(8) {
        return Err(Refused::Alignment);
    }
    grant.memory.check(verb.remote, verb.bytes as u64).map_err(|_| Refused::Bounds)
}

#[cfg(test)]
mod tests {
    use std::ptr::NonNull;

    use super::*;
    use crate::fabric::tcp::frame::{BatchDescriptor, REPLY_HEADER_BYTES};
    use crate::layout::Offset;

    /// A frame of one batch: a READ of `read_bytes` at `at`, then a WRITE of 1 to the byte at 0.
    fn read_then_write(at: u64, read_bytes: usize) -> Vec<u8> {
        let header = FrameHeader { bytes: 16 + 8 + 2 * 16 + 1, rkey: 5, batch_count: 1, verb_count: 2 };
        let mut frame = header.encode().to_vec();
        frame.extend(BatchDescriptor { request: 1, verb_count: 2, silent: false }.encode());
        for (opcode, bytes, remote) in [(Opcode::Read, read_bytes, at), (Opcode::Write, 1, 0)] {
            frame.extend(VerbDescriptor { opcode, bytes, remote: Offset(remote) }.encode());
        }
        frame.push(1);
        frame
    }

    /// A long READ from an odd place waits for room several times. Each time all words change: none may be copied
    /// half before and half after. And the WRITE behind the READ has executed before its last byte can leave.
    #[test]
    fn a_read_in_pieces_tears_no_word_and_ends_after_the_write_behind_it() {
        let mut words = vec![0_u64; (2 << 20) / 8];
        let base = NonNull::new(words.as_mut_ptr().cast()).unwrap();
        // SAFETY: the words outlive the value.
        let memory = unsafe { WordMemory::new(base, 8 * words.len() as u64) };
        let grant = Grant { memory, rkey: 5, rights: Rights::ReadWrite };
        let read_bytes = 1_500_000;
        for at in 8..24 {
            memory.write(Offset(0), &[0]).unwrap();
            let bytes = read_then_write(at, read_bytes);
            let header = FrameHeader::parse(&bytes).unwrap().unwrap();
            let frame = RequestFrame::parse(header, &bytes).unwrap();
            let mut execution = Execution::new(&frame);
            let (mut output, mut sent) = (ByteQueue::with_capacity(0), Vec::new());
            let mut rounds = 0_u8;
            loop {
                rounds += 1;
                memory.write(Offset(8), &vec![rounds; (2 << 20) - 8]).unwrap();
                let progress = execution.advance(&frame, &grant, &mut output);
                assert!(output.len() <= OUTPUT_BYTES_MAX + PIECE_BYTES);
                sent.extend_from_slice(output.filled());
                output.consume(output.len());
                let is_complete = sent.len() == REPLY_HEADER_BYTES + read_bytes;
                assert_eq!(memory.load(Offset(0)).unwrap() == 1, is_complete, "at {at}, round {rounds}");
                if progress == Progress::Done {
                    break;
                }
                assert_eq!(progress, Progress::OutputFull);
            }
            assert!(rounds > 4);
            let read = &sent[REPLY_HEADER_BYTES..];
            let to_boundary = (8 - at as usize % 8) % 8;
            for word in read[to_boundary..].chunks_exact(8) {
                assert!(word.iter().all(|byte| *byte == word[0]), "at {at}: {word:?}");
            }
        }
    }
}
