//! One data connection at the memory node, without its socket.
//!
//! Always true: input is executed only whole frame by whole frame, after the ticket was accepted and before the
//! first refused or malformed byte; output is bounded, and while it is not read nothing more is executed. Memory
//! follows the bytes that came, not the lengths that were announced.

use std::time::{Duration, Instant};

use super::connect::encode_answer;
use super::execute::{Execution, Grant, Progress};
use super::frame::{FrameError, FrameHeader, RequestFrame};
use super::queue::ByteQueue;
use crate::fabric::{Rights, SessionId, Ticket};

/// Room that input and output start with, and go back to when long frames have become rare.
const QUEUE_BYTES: usize = 64 << 10;
/// The least room that the socket is read into.
const RECEIVE_BYTES_MIN: usize = 16 << 10;
/// After so many frames that fit [`QUEUE_BYTES`], memory for longer ones is given back.
const SHORT_FRAMES_MAX: u32 = 256;
/// A peer that has connected shows its ticket within this time.
const TICKET_TIMEOUT: Duration = Duration::from_secs(5);
/// After a refusal the peer has this time to read it and close.
const LINGER: Duration = Duration::from_secs(2);

/// Where a connection is in its life.
#[derive(Debug)]
enum State {
    /// The ticket is to come.
    Ticket,
    /// It is a session's.
    Joined { session: SessionId, grant: Grant },
    /// It was refused something, and is told so; what it sends is thrown away.
    Refused,
}

/// What a connection wants next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Wants {
    /// More bytes from the peer.
    Input,
    /// The peer must read replies first.
    Room,
    /// To be closed towards the peer once the output is sent; input is to be read and thrown away.
    End,
}

/// See the module.
pub(super) struct Connection {
    state: State,
    pub(super) input: ByteQueue,
    pub(super) output: ByteQueue,
    execution: Option<Execution>,
    short_frames: u32,
    /// When it is closed, whatever happens.
    pub(super) deadline: Option<Instant>,
    /// Verbs executed or refused since the last [`Connection::take_verbs`].
    verbs: u64,
}

impl Connection {
    /// A connection whose ticket is to come.
    pub(super) fn new(now: Instant) -> Self {
        Self {
            state: State::Ticket,
            input: ByteQueue::with_capacity(QUEUE_BYTES),
            output: ByteQueue::with_capacity(QUEUE_BYTES),
            execution: None,
            short_frames: 0,
            deadline: Some(now + TICKET_TIMEOUT),
            verbs: 0,
        }
    }

    /// Whose it is, once that is known.
    pub(super) fn session(&self) -> Option<SessionId> {
        match self.state {
            State::Joined { session, .. } => Some(session),
            State::Ticket | State::Refused => None,
        }
    }

    /// Verbs since the last call.
    pub(super) fn take_verbs(&mut self) -> u64 {
        std::mem::take(&mut self.verbs)
    }

    /// Whether it is the time to receive: not while earlier frames wait to be executed or replies to be sent.
    pub(super) fn takes_input(&self) -> bool {
        self.execution.is_none() && self.output.is_empty()
    }

    /// Room to receive into; what was received is said by `input.commit`.
    pub(super) fn receive_space(&mut self) -> &mut [u8] {
        self.input.space(RECEIVE_BYTES_MIN)
    }

    /// Works on the input as far as it goes. `redeem` takes a ticket and says whose it is.
    ///
    /// # Errors
    /// If the input is malformed: the connection is to be closed at once.
    pub(super) fn advance(
        &mut self,
        now: Instant,
        redeem: impl FnOnce(Ticket) -> Result<(SessionId, Grant), &'static str>,
    ) -> Result<Wants, FrameError> {
        if matches!(self.state, State::Ticket) {
            self.greet(now, redeem);
        }
        loop {
            match &self.state {
                State::Ticket => return Ok(Wants::Input),
                State::Refused => {
                    self.input.consume(self.input.len());
                    return Ok(Wants::End);
                }
                State::Joined { grant, .. } => {
                    let grant = *grant;
                    match self.step(&grant)? {
                        None => return Ok(Wants::Input),
                        Some(Progress::Done) => {}
                        Some(Progress::OutputFull) => return Ok(Wants::Room),
                        Some(Progress::Refused) => self.refuse(now),
                    }
                }
            }
        }
    }

    fn greet(
        &mut self,
        now: Instant,
        redeem: impl FnOnce(Ticket) -> Result<(SessionId, Grant), &'static str>,
    ) {
        let mut ticket = Ticket([0; size_of::<Ticket>()]);
        let Some(shown) = self.input.filled().get(..ticket.0.len()) else { return };
        ticket.0.copy_from_slice(shown);
        self.input.consume(ticket.0.len());
        match redeem(ticket) {
            Ok((session, grant)) => {
                self.output.push(&encode_answer(None));
                self.state = State::Joined { session, grant };
                self.deadline = None;
            }
            Err(reason) => {
                self.output.push(&encode_answer(Some(reason)));
                self.refuse(now);
            }
        }
    }

    /// Works on one frame; `None` if it isn't there yet.
    fn step(&mut self, grant: &Grant) -> Result<Option<Progress>, FrameError> {
        let bytes = self.input.filled();
        let (frame, execution) = match &mut self.execution {
            Some(execution) => (RequestFrame::checked_before(*execution.header(), bytes), execution),
            None => {
                let Some(header) = FrameHeader::parse(bytes)? else { return Ok(None) };
                if bytes.len() < header.bytes {
                    return Ok(None);
                }
                let frame = RequestFrame::parse(header, bytes)?;
                (frame, self.execution.insert(Execution::new(&frame)))
            }
        };
        let progress = execution.advance(&frame, grant, &mut self.output);
        if progress != Progress::OutputFull {
            let header = *execution.header();
            self.verbs += header.verb_count as u64;
            self.execution = None;
            self.input.consume(header.bytes);
            self.tidy(header.bytes);
        }
        Ok(Some(progress))
    }

    /// Gives memory back that only long frames need.
    fn tidy(&mut self, frame_bytes: usize) {
        self.short_frames = if frame_bytes > QUEUE_BYTES { 0 } else { self.short_frames.saturating_add(1) };
        if self.short_frames > SHORT_FRAMES_MAX {
            self.input.shrink(QUEUE_BYTES);
        }
    }

    fn refuse(&mut self, now: Instant) {
        self.state = State::Refused;
        self.deadline = Some(now + LINGER);
    }
}

impl Grant {
    /// What a session with these rights may touch.
    pub(super) fn with_rights(self, rights: Rights) -> Self {
        Self { rights, ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fabric::tcp::frame::FRAME_BYTES_MAX;
    use crate::memory::WordMemory;
    use std::ptr::NonNull;

    fn redeem(words: &mut [u64]) -> impl Fn(Ticket) -> Result<(SessionId, Grant), &'static str> {
        let base = NonNull::new(words.as_mut_ptr().cast()).unwrap();
        // SAFETY: the words outlive the connection in these tests.
        let memory = unsafe { WordMemory::new(base, 8 * words.len() as u64) };
        let grant = Grant { memory, rkey: 5, rights: Rights::ReadWrite };
        move |ticket| if ticket == Ticket([9; 16]) { Ok((SessionId(3), grant)) } else { Err("no") }
    }

    /// A peer announces the longest frame and sends little of it.
    #[test]
    fn memory_follows_what_came_and_not_what_was_announced() {
        let mut words = vec![0; 64];
        let redeem = redeem(&mut words);
        let now = Instant::now();
        let mut connection = Connection::new(now);
        connection.input.push(&[9; 16]);
        connection
            .input
            .push(&FrameHeader { bytes: FRAME_BYTES_MAX, rkey: 5, batch_count: 1, verb_count: 1 }.encode());
        for _ in 0..10 {
            connection.receive_space()[..1_000].fill(0);
            connection.input.commit(1_000);
            assert_eq!(connection.advance(now, &redeem), Ok(Wants::Input));
        }
        assert_eq!(connection.input.capacity(), QUEUE_BYTES);
    }

    #[test]
    fn a_ticket_has_a_deadline_and_a_session_has_none() {
        let mut words = vec![0; 64];
        let redeem = redeem(&mut words);
        let now = Instant::now();
        let mut connection = Connection::new(now);
        connection.input.push(&[9; 15]);
        assert_eq!(connection.advance(now, &redeem), Ok(Wants::Input));
        assert_eq!(connection.deadline, Some(now + TICKET_TIMEOUT));
        connection.input.push(&[9]);
        assert_eq!(connection.advance(now, &redeem), Ok(Wants::Input));
        assert_eq!((connection.deadline, connection.session()), (None, Some(SessionId(3))));
        assert_eq!(connection.output.filled(), encode_answer(None));

        let mut refused = Connection::new(now);
        refused.input.push(&[8; 16]);
        refused.input.push(&[1; 5_000]);
        assert_eq!(refused.advance(now, &redeem), Ok(Wants::End));
        assert_eq!((refused.deadline, refused.session()), (Some(now + LINGER), None));
        assert!(refused.input.is_empty(), "what follows is thrown away");
    }

    /// Long frames take memory; once they are rare it is given back.
    #[test]
    fn memory_of_long_frames_is_given_back() {
        let mut words = vec![0; 64];
        let redeem = redeem(&mut words);
        let now = Instant::now();
        let mut connection = Connection::new(now);
        connection.input.push(&[9; 16]);
        let empty = FrameHeader { bytes: 16, rkey: 5, batch_count: 0, verb_count: 0 }.encode();
        connection.receive_space();
        connection.input.space(1 << 20);
        for _ in 0..=SHORT_FRAMES_MAX {
            assert!(connection.input.capacity() > QUEUE_BYTES);
            connection.input.push(&empty);
            assert_eq!(connection.advance(now, &redeem), Ok(Wants::Input));
        }
        assert_eq!(connection.input.capacity(), QUEUE_BYTES);
    }
}
