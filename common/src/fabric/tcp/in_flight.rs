//! What a client has asked and not yet been answered.
//!
//! Always true: batches are answered in the order asked; a READ's buffer is here from `post` to its completion,
//! and nowhere else; a batch whose frame was not handed to the socket whole has not taken effect and never will,
//! since the memory node executes whole frames only.
//!
//! Replies are taken as byte slices of whatever length the socket gave; nothing here does I/O.

use std::collections::VecDeque;

use super::frame::{FrameError, Opcode, REPLY_HEADER_BYTES, Refused, ReplyHeader};
use crate::fabric::{
    BatchId, Buffer, BufferPool, Completion, Effect, Failure, FailureKind, Replies, Reply, Verb,
};
use crate::layout::{Offset, word_at};

/// A batch without its verbs.
#[derive(Clone, Copy, Debug)]
pub(super) struct PendingBatch {
    pub(super) id: BatchId,
    pub(super) request: u32,
    pub(super) verb_count: usize,
    pub(super) silent: bool,
    /// Where its frame ends in the stream of all bytes that this connection sends.
    pub(super) frame_end: u64,
}

impl PendingBatch {
    /// What it takes of the limit on verbs in flight: a batch without verbs is not free.
    fn credits(&self) -> usize {
        self.verb_count.max(1)
    }
}

/// What is needed of a verb once it was sent.
#[derive(Debug)]
struct PendingVerb {
    opcode: Opcode,
    bytes: usize,
    remote: Offset,
    into: Option<Buffer>,
}

/// The reply that is coming in.
#[derive(Debug)]
struct Incoming {
    header: ReplyHeader,
    /// Verbs whose replies are complete.
    taken: usize,
    /// Bytes of the next verb's READ that are there.
    read_bytes: usize,
}

/// See the module.
pub(super) struct InFlight {
    batches: VecDeque<PendingBatch>,
    verbs: VecDeque<PendingVerb>,
    credits: usize,
    incoming: Option<Incoming>,
    replies: Replies,
    region_bytes: u64,
}

/// How far [`InFlight::take`] came.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Taken {
    /// Bytes used up.
    pub(super) bytes: usize,
    /// The memory node refused a verb: this was the last reply, and the rest was flushed.
    pub(super) refused: bool,
}

impl InFlight {
    /// Nothing in flight, to a region of `region_bytes`.
    pub(super) fn new(region_bytes: u64) -> Self {
        Self {
            batches: VecDeque::new(),
            verbs: VecDeque::new(),
            credits: 0,
            incoming: None,
            replies: Replies::new(),
            region_bytes,
        }
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.batches.is_empty()
    }

    /// Verbs in flight; a batch without verbs counts as one.
    pub(super) fn credits(&self) -> usize {
        self.credits
    }

    /// Adds a batch; its verbs follow by [`InFlight::push_verb`].
    pub(super) fn push_batch(&mut self, batch: PendingBatch) {
        self.credits += batch.credits();
        self.batches.push_back(batch);
    }

    /// Adds a verb of the newest batch.
    pub(super) fn push_verb(&mut self, verb: Verb<'_>) {
        let (bytes, remote) = (verb.bytes(), verb.remote());
        let (opcode, into) = match verb {
            Verb::Read { into, .. } => (Opcode::Read, Some(into)),
            Verb::Write { .. } => (Opcode::Write, None),
            Verb::CompareSwap { .. } => (Opcode::CompareSwap, None),
            Verb::FetchAdd { .. } => (Opcode::FetchAdd, None),
        };
        self.verbs.push_back(PendingVerb { opcode, bytes, remote, into });
    }

    /// Takes replies off the start of `bytes`, as far as they go. What it leaves is to be shown again, with more
    /// behind it.
    ///
    /// # Errors
    /// If the bytes are no replies to what is in flight; the connection is of no use then.
    pub(super) fn take(
        &mut self,
        bytes: &[u8],
        completions: &mut Vec<Completion>,
        pool: &mut BufferPool,
    ) -> Result<Taken, FrameError> {
        let mut at = 0;
        loop {
            if self.incoming.is_none() {
                let Some(header) = ReplyHeader::parse(&bytes[at..])? else { break };
                self.begin(header)?;
                at += REPLY_HEADER_BYTES;
            }
            at += self.take_body(&bytes[at..]);
            match &self.incoming {
                Some(incoming) if incoming.taken == incoming.header.verbs_done || self.is_silent() => {
                    if self.finish(completions, pool) {
                        return Ok(Taken { bytes: at, refused: true });
                    }
                }
                _ => break,
            }
        }
        Ok(Taken { bytes: at, refused: false })
    }

    /// The rest of the READ that is coming in, so that its bytes can be received where they belong. Only right
    /// when [`InFlight::take`] has used up all bytes received.
    pub(super) fn direct(&mut self) -> Option<&mut [u8]> {
        let incoming = self.incoming.as_ref()?;
        if incoming.taken == incoming.header.verbs_done {
            return None;
        }
        let buffer = self.verbs.front_mut()?.into.as_mut()?;
        Some(&mut buffer.as_mut_slice()[incoming.read_bytes..])
    }

    /// Says that the first `bytes` of [`InFlight::direct`] were received.
    pub(super) fn received_direct(&mut self, bytes: usize) {
        if let Some(incoming) = &mut self.incoming {
            incoming.read_bytes += bytes;
        }
    }

    /// Ends everything in flight after the connection was lost, when `sent` bytes of its stream had been handed
    /// to the socket.
    pub(super) fn lose(
        &mut self,
        sent: u64,
        reason: &str,
        completions: &mut Vec<Completion>,
        pool: &mut BufferPool,
    ) {
        let taken = self.incoming.as_ref().map_or(0, |incoming| incoming.taken);
        let mut verb_index = taken;
        self.drain(completions, pool, |batch| {
            let effect = if batch.frame_end <= sent { Effect::Unknown } else { Effect::No };
            let verb_index = std::mem::take(&mut verb_index);
            Failure { verb_index, kind: FailureKind::Disconnected(reason.to_owned()), effect }
        });
    }

    fn begin(&mut self, header: ReplyHeader) -> Result<(), FrameError> {
        let Some(batch) = self.batches.front() else { return Err(FrameError::Unasked) };
        if header.request != batch.request {
            return Err(FrameError::Request { found: header.request, expected: batch.request });
        }
        let complete = header.verbs_done == batch.verb_count;
        let mut body_bytes = 0;
        if header.verbs_done <= batch.verb_count && !batch.silent {
            body_bytes = self.verbs.range(..header.verbs_done).map(PendingVerb::reply_bytes).sum();
        }
        if header.verbs_done > batch.verb_count
            || complete != (header.status == 0)
            || body_bytes != header.body_bytes
        {
            return Err(FrameError::Reply {
                status: header.status,
                done: header.verbs_done,
                bytes: header.body_bytes,
                verbs: batch.verb_count,
            });
        }
        self.incoming = Some(Incoming { header, taken: 0, read_bytes: 0 });
        Ok(())
    }

    fn is_silent(&self) -> bool {
        self.batches.front().is_some_and(|batch| batch.silent)
    }

    /// Takes the bytes of as many verbs as there are bytes for; returns how many bytes.
    fn take_body(&mut self, bytes: &[u8]) -> usize {
        let mut at = 0;
        if self.is_silent() {
            return at;
        }
        let Some(incoming) = &mut self.incoming else { return at };
        while incoming.taken < incoming.header.verbs_done {
            let Some(verb) = self.verbs.front_mut() else { unreachable!("a batch has more verbs than pend") };
            let reply = match (verb.opcode, verb.into.take()) {
                (Opcode::Read, Some(mut buffer)) => {
                    let rest = &mut buffer.as_mut_slice()[incoming.read_bytes..];
                    let count = rest.len().min(bytes.len() - at);
                    rest[..count].copy_from_slice(&bytes[at..at + count]);
                    at += count;
                    if count < rest.len() {
                        incoming.read_bytes += count;
                        verb.into = Some(buffer);
                        break;
                    }
                    Reply::Read(buffer)
                }
                // The node executes a WRITE before it sends the bytes in front of its place in the reply's order.
                (Opcode::Write, _) => Reply::Written,
                _ if bytes.len() - at < 8 => break,
                _ => {
                    at += 8;
                    Reply::Old(word_at(bytes, at - 8))
                }
            };
            self.verbs.pop_front();
            self.replies.push(reply);
            incoming.taken += 1;
            incoming.read_bytes = 0;
        }
        at
    }

    /// Completes the oldest batch; true if it was refused, and then all others are flushed.
    fn finish(&mut self, completions: &mut Vec<Completion>, pool: &mut BufferPool) -> bool {
        let (Some(incoming), Some(batch)) = (self.incoming.take(), self.batches.front().copied()) else {
            unreachable!("only a reply that came in for a batch can finish it")
        };
        if incoming.header.status == 0 {
            self.batches.pop_front();
            self.credits -= batch.credits();
            let replies = std::mem::take(&mut self.replies);
            if batch.silent {
                self.drop_verbs(batch.verb_count, pool);
            } else {
                completions.push(Completion { batch: batch.id, result: Ok(replies) });
            }
            return false;
        }
        let verb_index = incoming.header.verbs_done;
        let refused = self.verbs.get(verb_index - incoming.taken).map(|verb| self.refusal(&incoming, verb));
        let mut refused = refused;
        self.drain(completions, pool, |_| match refused.take() {
            Some(kind) => Failure { verb_index, kind, effect: Effect::No },
            None => Failure { verb_index: 0, kind: FailureKind::Flushed, effect: Effect::No },
        });
        true
    }

    fn refusal(&self, incoming: &Incoming, verb: &PendingVerb) -> FailureKind {
        let PendingVerb { opcode, bytes, remote, .. } = verb;
        let region_bytes = self.region_bytes;
        let why = match incoming.header.status {
            status if status == Refused::Bounds as u8 => {
                format!("it leaves the region of {region_bytes} bytes")
            }
            status if status == Refused::Key as u8 => "the key does not name the region".to_owned(),
            status if status == Refused::Rights as u8 => "the session may only read".to_owned(),
            status if status == Refused::Alignment as u8 => "the word is not aligned to 8 bytes".to_owned(),
            status => format!("status {status}"),
        };
        FailureKind::Access(format!("{opcode:?} of {bytes} bytes at {remote}: {why}"))
    }

    /// Ends all batches, the oldest first, with the failure that `failure` makes of each.
    fn drain(
        &mut self,
        completions: &mut Vec<Completion>,
        pool: &mut BufferPool,
        mut failure: impl FnMut(&PendingBatch) -> Failure,
    ) {
        while let Some(batch) = self.batches.pop_front() {
            let failure = failure(&batch);
            if !batch.silent {
                completions.push(Completion { batch: batch.id, result: Err(failure) });
            }
        }
        self.drop_verbs(self.verbs.len(), pool);
        for reply in self.replies.drain(..) {
            if let Reply::Read(buffer) = reply {
                pool.recycle(buffer);
            }
        }
        self.incoming = None;
        self.credits = 0;
    }

    /// Forgets the oldest `count` verbs.
    fn drop_verbs(&mut self, count: usize, pool: &mut BufferPool) {
        for verb in self.verbs.drain(..count) {
            if let Some(buffer) = verb.into {
                pool.recycle(buffer);
            }
        }
    }
}

impl PendingVerb {
    fn reply_bytes(&self) -> usize {
        match self.opcode {
            Opcode::Read => self.bytes,
            Opcode::Write => 0,
            Opcode::CompareSwap | Opcode::FetchAdd => 8,
        }
    }
}
