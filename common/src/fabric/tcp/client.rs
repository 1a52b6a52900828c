//! The client's side: one socket, frames out, replies in.
//!
//! Always true: the socket never blocks; what it didn't take is kept in `outgoing`, so WRITE bytes are taken when
//! `post` returns; a frame is either wholly in the stream's order or not at all. After a failure nothing is sent
//! any more, and everything in flight has ended.
//!
//! A small frame is copied into `outgoing` and leaves with one `send`. A frame with long WRITEs goes out gathered
//! from where the bytes lie; long READs are received where they belong.

use std::io::{ErrorKind, IoSlice, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::Duration;

use smallvec::SmallVec;

use super::encode::{batch_bytes, descriptor, push_operands, word_operands};
use super::frame::{
    BatchDescriptor, FRAME_BYTES_MAX, FRAME_HEADER_BYTES, FRAME_VERBS_MAX, FrameHeader, REPLY_BODY_BYTES_MAX,
    VERB_BYTES_MAX,
};
use super::in_flight::{InFlight, PendingBatch};
use super::queue::ByteQueue;
use super::socket;
use crate::fabric::{
    Batch, BufferPool, Completion, ConnectOptions, Fabric, FabricKind, Limits, PostError, Unregistered, Verb,
};

/// `post` answers `Full` rather than keep more unsent bytes than this: two long frames.
const BACKLOG_BYTES_MAX: usize = 2 * FRAME_BYTES_MAX;
/// Replies are received in pieces of up to this many bytes.
const INCOMING_BYTES: usize = 64 << 10;
/// The rest of a READ is received in place if it is as long as this; below, copying is cheaper.
const DIRECT_BYTES_MIN: usize = 8 << 10;
/// A frame with so many WRITE bytes is sent gathered.
const GATHER_BYTES_MIN: usize = 16 << 10;
/// What a kernel takes in one call (`IOV_MAX`).
const PIECES_MAX: usize = 1024;

/// A session's connection to a region over TCP.
pub struct TcpFabric {
    stream: TcpStream,
    description: String,
    rkey: u32,
    verbs_in_flight_max: usize,
    buffers: BufferPool,
    in_flight: InFlight,
    next_request: u32,
    /// What the socket didn't take yet.
    outgoing: ByteQueue,
    /// The descriptors of a frame that is sent gathered; empty otherwise.
    head: ByteQueue,
    incoming: ByteQueue,
    /// Bytes of all frames so far, and of those that the socket took.
    framed_bytes: u64,
    sent_bytes: u64,
    /// Sending failed; replies that the peer sent before may still come in.
    send_error: Option<String>,
    broken: Option<String>,
}

impl TcpFabric {
    /// On a stream that doesn't block and whose ticket was accepted.
    pub(super) fn new(stream: TcpStream, description: String, rkey: u32, options: &ConnectOptions) -> Self {
        Self {
            stream,
            description,
            rkey,
            verbs_in_flight_max: options.verbs_in_flight_max.clamp(1, FRAME_VERBS_MAX),
            buffers: BufferPool::new(Box::new(Unregistered), options.buffer_limit_bytes),
            in_flight: InFlight::new(options.region_bytes),
            next_request: 1,
            outgoing: ByteQueue::with_capacity(INCOMING_BYTES),
            head: ByteQueue::with_capacity(1 << 10),
            incoming: ByteQueue::with_capacity(INCOMING_BYTES),
            framed_bytes: 0,
            sent_bytes: 0,
            send_error: None,
            broken: None,
        }
    }

    /// Refuses what doesn't fit, before anything of the call is touched.
    fn check(&self, batches: &[Batch<'_>]) -> Result<(), PostError> {
        if let Some(reason) = &self.broken {
            return Err(PostError::Broken(reason.clone()));
        }
        let limit = self.verbs_in_flight_max;
        let (mut asked, mut call_bytes) = (0, 0);
        for batch in batches {
            asked += batch.verbs.len().max(1);
            let mut reply_bytes = 0;
            for verb in &batch.verbs {
                let bytes = verb.bytes();
                if bytes > VERB_BYTES_MAX {
                    return Err(too_large("bytes of a verb", bytes, VERB_BYTES_MAX));
                }
                reply_bytes += if matches!(verb, Verb::Read { .. }) { bytes } else { 8 };
            }
            let frame_bytes = FRAME_HEADER_BYTES + batch_bytes(batch);
            if frame_bytes > FRAME_BYTES_MAX {
                return Err(too_large("bytes to send of a batch", frame_bytes, FRAME_BYTES_MAX));
            }
            if reply_bytes > REPLY_BODY_BYTES_MAX {
                return Err(too_large("bytes to fetch of a batch", reply_bytes, REPLY_BODY_BYTES_MAX));
            }
            call_bytes += frame_bytes;
        }
        if asked > limit {
            return Err(too_large("verbs of a call", asked, limit));
        }
        let in_flight = self.in_flight.credits();
        let backlog_full = !self.outgoing.is_empty() && self.outgoing.len() + call_bytes > BACKLOG_BYTES_MAX;
        if asked > limit - in_flight || backlog_full {
            return Err(PostError::Full { asked, in_flight, limit });
        }
        Ok(())
    }

    /// Frames `batches`, which fit one frame of `frame_bytes`, and takes their verbs out.
    fn post_frame(&mut self, batches: &mut [Batch<'_>], frame_bytes: usize) {
        let verb_count = batches.iter().map(|batch| batch.verbs.len()).sum();
        let header =
            FrameHeader { bytes: frame_bytes, rkey: self.rkey, batch_count: batches.len(), verb_count };
        self.framed_bytes += frame_bytes as u64;
        let gathered = self.outgoing.is_empty()
            && frame_bytes - header.operands_at() >= GATHER_BYTES_MIN
            && self.send_error.is_none();

        let head = if gathered { &mut self.head } else { &mut self.outgoing };
        head.push(&header.encode());
        let first_request = self.next_request;
        for batch in &*batches {
            let request = self.next_request;
            self.next_request = request.wrapping_add(1);
            let descriptor = BatchDescriptor { request, verb_count: batch.verbs.len(), silent: batch.silent };
            head.push(&descriptor.encode());
        }
        for verb in batches.iter().flat_map(|batch| &batch.verbs) {
            head.push(&descriptor(verb).encode());
        }
        if gathered {
            self.send_gathered(batches);
        } else {
            for verb in batches.iter().flat_map(|batch| &batch.verbs) {
                push_operands(verb, &mut self.outgoing);
            }
        }
        for (batch, offset) in batches.iter_mut().zip(0_u32..) {
            self.in_flight.push_batch(PendingBatch {
                id: batch.id,
                request: first_request.wrapping_add(offset),
                verb_count: batch.verbs.len(),
                silent: batch.silent,
                frame_end: self.framed_bytes,
            });
            for verb in batch.verbs.drain(..) {
                self.in_flight.push_verb(verb);
            }
        }
    }

    /// Sends a frame whose descriptors are in `head`, and queues what the socket doesn't take.
    fn send_gathered(&mut self, batches: &[Batch<'_>]) {
        let verbs = || batches.iter().flat_map(|batch| &batch.verbs);
        let words: SmallVec<[[u8; 16]; 32]> = verbs().filter_map(word_operands).collect();
        let mut words = words.iter();
        let mut pieces = SmallVec::<[IoSlice<'_>; 64]>::new();
        pieces.push(IoSlice::new(self.head.filled()));
        for verb in verbs() {
            match verb {
                Verb::Read { .. } => {}
                Verb::Write { from, .. } => {
                    pieces.extend(
                        from.iter().filter(|piece| !piece.is_empty()).map(|piece| IoSlice::new(piece)),
                    );
                }
                Verb::CompareSwap { .. } => pieces.extend(words.next().map(|word| IoSlice::new(word))),
                Verb::FetchAdd { .. } => pieces.extend(words.next().map(|word| IoSlice::new(&word[..8]))),
            }
        }
        let mut sent = match socket::send_gathered(&self.stream, &pieces[..pieces.len().min(PIECES_MAX)]) {
            Ok(sent) => sent,
            Err(error) => {
                self.send_error = send_error(&error);
                0
            }
        };
        self.sent_bytes += sent as u64;
        for piece in &pieces {
            let skipped = sent.min(piece.len());
            sent -= skipped;
            self.outgoing.push(&piece[skipped..]);
        }
        drop(pieces);
        self.head.consume(self.head.len());
    }

    /// Sends what the socket takes.
    fn flush(&mut self) {
        while !self.outgoing.is_empty() && self.send_error.is_none() {
            match self.stream.write(self.outgoing.filled()) {
                Ok(sent) => {
                    self.outgoing.consume(sent);
                    self.sent_bytes += sent as u64;
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(error) => self.send_error = send_error(&error),
            }
        }
    }

    /// Receives once; returns whether it is worth trying again at once, or why the connection is lost.
    fn receive(&mut self) -> Result<bool, String> {
        let direct = self.in_flight.direct().filter(|rest| rest.len() >= DIRECT_BYTES_MIN);
        let (result, direct_bytes, asked) = match direct {
            // Only part of a reply's header or of a word can lie unused in `incoming`, and then no READ is next.
            Some(rest) if self.incoming.is_empty() => {
                let space = self.incoming.space(INCOMING_BYTES);
                let (direct_bytes, asked) = (rest.len(), rest.len() + space.len());
                let mut pieces = [std::io::IoSliceMut::new(rest), std::io::IoSliceMut::new(space)];
                (self.stream.read_vectored(&mut pieces), direct_bytes, asked)
            }
            _ => {
                let space = self.incoming.space(INCOMING_BYTES / 2);
                let asked = space.len();
                (self.stream.read(space), 0, asked)
            }
        };
        match result {
            Ok(0) => Err("the memory node closed it".to_owned()),
            Ok(count) => {
                let direct_count = count.min(direct_bytes);
                self.in_flight.received_direct(direct_count);
                self.incoming.commit(count - direct_count);
                // Less than asked for: the socket is empty, and another call would only say so.
                Ok(count == asked)
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => Ok(true),
            Err(error) if error.kind() == ErrorKind::WouldBlock => match &self.send_error {
                Some(reason) => Err(reason.clone()),
                None => Ok(false),
            },
            Err(error) => Err(error.to_string()),
        }
    }

    /// Takes no more verbs, and lets the memory node know at once.
    fn end(&mut self, reason: String) {
        self.broken = Some(reason);
        // It may be closed already, which is all that is wanted.
        let _ = self.stream.shutdown(Shutdown::Both);
    }

    fn take_replies(&mut self, completions: &mut Vec<Completion>) -> Result<(), String> {
        let taken = self
            .in_flight
            .take(self.incoming.filled(), completions, &mut self.buffers)
            .map_err(|error| format!("the memory node sent nonsense: {error}"))?;
        self.incoming.consume(taken.bytes);
        if taken.refused {
            self.end("a verb was refused".to_owned());
        }
        Ok(())
    }
}

impl Fabric for TcpFabric {
    fn kind(&self) -> FabricKind {
        FabricKind::Tcp
    }

    fn limits(&self) -> Limits {
        Limits { verbs_in_flight_max: self.verbs_in_flight_max, verb_bytes_max: VERB_BYTES_MAX }
    }

    fn describe(&self) -> String {
        self.description.clone()
    }

    fn buffers(&mut self) -> &mut BufferPool {
        &mut self.buffers
    }

    fn post(&mut self, batches: &mut [Batch<'_>]) -> Result<(), PostError> {
        self.check(batches)?;
        let mut rest = batches;
        while !rest.is_empty() {
            let mut frame_bytes = FRAME_HEADER_BYTES;
            let mut count = 0;
            for batch in &*rest {
                let more_bytes = batch_bytes(batch);
                if count > 0 && frame_bytes + more_bytes > FRAME_BYTES_MAX {
                    break;
                }
                frame_bytes += more_bytes;
                count += 1;
            }
            let (now, later) = rest.split_at_mut(count);
            self.post_frame(now, frame_bytes);
            rest = later;
        }
        self.flush();
        Ok(())
    }

    fn poll(&mut self, completions: &mut Vec<Completion>) -> usize {
        let before = completions.len();
        self.flush();
        while self.broken.is_none() {
            let received = self.receive();
            let decoded = self.take_replies(completions);
            match decoded.and(received) {
                Ok(true) => {}
                Ok(false) => break,
                // Nothing is wrong with what was received before the connection was lost: it was taken above.
                Err(_) if self.broken.is_some() => break,
                Err(reason) => {
                    self.in_flight.lose(self.sent_bytes, &reason, completions, &mut self.buffers);
                    self.end(reason);
                }
            }
        }
        completions.len() - before
    }

    fn wait(&mut self, timeout: Duration) {
        if self.broken.is_none() {
            let unsent = !self.outgoing.is_empty() && self.send_error.is_none();
            let timeout = if self.send_error.is_some() { Duration::ZERO } else { timeout };
            socket::wait(&self.stream, unsent, timeout);
        }
    }
}

impl std::fmt::Debug for TcpFabric {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "TcpFabric({}, {} verbs in flight)", self.description, self.in_flight.credits())
    }
}

fn too_large(what: &'static str, asked: usize, limit: usize) -> PostError {
    PostError::TooLarge { what, asked, limit }
}

fn send_error(error: &std::io::Error) -> Option<String> {
    match error.kind() {
        ErrorKind::WouldBlock | ErrorKind::Interrupted => None,
        _ => Some(error.to_string()),
    }
}
