//! The few bytes that join a session's data path; see the module above for the picture.
//!
//! Always true: whatever a peer sends, or doesn't, reading ends by the deadline with what was expected or an error, and
//! takes no more than [`REASON_BYTES_MAX`] of memory.

use std::io::{self, IoSlice, IoSliceMut, Read};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags,
};

use crate::fabric::Ticket;
use crate::wire::{Preamble, PreambleKind, WireError};

/// A client's last word: it has unmapped the region.
pub(super) const UNMAPPED: u8 = b'U';

/// Longer reasons are cut: they are for people.
const REASON_BYTES_MAX: usize = 1024;
const JOINED: u8 = 0;
const REFUSED: u8 = 1;
/// Preamble, status, length of the reason.
const HEAD_BYTES: usize = Preamble::BYTES + 3;

/// Sends a client's opening.
pub(super) fn send_opening(stream: &UnixStream, ticket: Ticket) -> io::Result<()> {
    let mut opening = [0; Preamble::BYTES + 16];
    opening[..Preamble::BYTES].copy_from_slice(&Preamble(PreambleKind::Data).encode());
    opening[Preamble::BYTES..].copy_from_slice(&ticket.0);
    send(stream, &opening, None)
}

/// Receives a client's ticket, behind its preamble.
pub(super) fn receive_ticket(stream: &UnixStream, deadline: Instant) -> io::Result<Ticket> {
    let mut ticket = [0; 16];
    receive_exact(stream, &mut ticket, deadline)?;
    Ok(Ticket(ticket))
}

/// Sends a server's answer: the memory file, or why not.
pub(super) fn send_answer(stream: &UnixStream, answer: Result<BorrowedFd<'_>, &str>) -> io::Result<()> {
    let (status, reason) = match answer {
        Ok(_) => (JOINED, &[][..]),
        Err(reason) => (REFUSED, &reason.as_bytes()[..reason.len().min(REASON_BYTES_MAX)]),
    };
    let mut bytes = Vec::with_capacity(HEAD_BYTES + reason.len());
    bytes.extend_from_slice(&Preamble(PreambleKind::Data).encode());
    bytes.push(status);
    bytes.extend_from_slice(&(reason.len() as u16).to_le_bytes());
    bytes.extend_from_slice(reason);
    send(stream, &bytes, answer.ok())
}

/// Why the server's answer brought no memory file.
#[derive(Debug, thiserror::Error)]
pub(super) enum AnswerError {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error(transparent)]
    Wire(#[from] WireError),
    #[error("{0}")]
    Refused(String),
    #[error("{0}")]
    Malformed(&'static str),
}

/// Receives a server's answer.
pub(super) fn receive_answer(stream: &UnixStream, deadline: Instant) -> Result<OwnedFd, AnswerError> {
    let mut head = [0; HEAD_BYTES];
    let file = receive_with_file(stream, &mut head, deadline)?;
    let (preamble, rest) = head.split_at(Preamble::BYTES);
    let mut bytes = [0; Preamble::BYTES];
    bytes.copy_from_slice(preamble);
    if Preamble::parse(bytes)?.0 != PreambleKind::Data {
        return Err(AnswerError::Malformed("the socket answers for control, not for data"));
    }
    let reason_bytes = usize::from(u16::from_le_bytes([rest[1], rest[2]]));
    match (rest[0], file) {
        (JOINED, Some(file)) if reason_bytes == 0 => Ok(file),
        (JOINED, _) => Err(AnswerError::Malformed("the answer says joined but brings no memory file")),
        (REFUSED, _) if reason_bytes <= REASON_BYTES_MAX => {
            let mut reason = vec![0; reason_bytes];
            receive_exact(stream, &mut reason, deadline)?;
            Err(AnswerError::Refused(String::from_utf8_lossy(&reason).into_owned()))
        }
        _ => Err(AnswerError::Malformed("the answer is neither joined nor refused")),
    }
}

/// Sends all of `bytes`, the file with the first of them. Never raises SIGPIPE.
pub(super) fn send(stream: &UnixStream, bytes: &[u8], file: Option<BorrowedFd<'_>>) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let files = file.map(|file| [file]);
    let mut sent = 0;
    while sent < bytes.len() {
        let mut control = SendAncillaryBuffer::new(&mut space);
        if let (0, Some(files)) = (sent, &files) {
            let fits = control.push(SendAncillaryMessage::ScmRights(files));
            debug_assert!(fits, "the space is for one file");
        }
        match rustix::net::sendmsg(stream, &[IoSlice::new(&bytes[sent..])], &mut control, SendFlags::NOSIGNAL)
        {
            Ok(more) => sent += more,
            Err(rustix::io::Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(())
}

/// Fills `into`; gives the file that came with it.
fn receive_with_file(stream: &UnixStream, into: &mut [u8], deadline: Instant) -> io::Result<Option<OwnedFd>> {
    let mut file = None;
    let mut received = 0;
    while received < into.len() {
        stream.set_read_timeout(Some(left(deadline)?))?;
        // Room for more files than one, so that what a confused peer sends is closed and doesn't leak.
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let message = match rustix::net::recvmsg(
            stream,
            &mut [IoSliceMut::new(&mut into[received..])],
            &mut control,
            RecvFlags::CMSG_CLOEXEC,
        ) {
            Err(rustix::io::Errno::INTR) => continue,
            message => message?,
        };
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(files) = message {
                file = files.last().or(file);
            }
        }
        if message.bytes == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        received += message.bytes;
    }
    Ok(file)
}

fn receive_exact(mut stream: &UnixStream, into: &mut [u8], deadline: Instant) -> io::Result<()> {
    let mut received = 0;
    while received < into.len() {
        stream.set_read_timeout(Some(left(deadline)?))?;
        match stream.read(&mut into[received..]) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(more) => received += more,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// What is left until the deadline; never zero, which would mean for ever.
pub(super) fn left(deadline: Instant) -> io::Result<Duration> {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(left.max(Duration::from_micros(1))) }
}

/// Whether the error says that time ran out.
pub(super) fn is_timeout(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)
}
