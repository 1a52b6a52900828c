//! Joining a data path with a hostile other side, on every fabric: whatever it says, joining ends with a data path that
//! can be used or an error with a type, and a memory node that is shown nonsense gives nothing away.

#[cfg(feature = "verbs")]
mod commits;
#[cfg_attr(not(feature = "verbs"), allow(dead_code, reason = "so that inputs mean the same in every build"))]
mod commits_input;
mod shm;

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use arbitrary::Arbitrary;
use sidestep_common::fabric::{ConnectError, Rights, Ticket, tcp};
use sidestep_common::wire::{Preamble, PreambleKind};

use commits_input::{CommitEvent, CommitSpec};
use shm::{FileSpec, TicketSpec};

/// Of the regions that are joined here.
const REGION_BYTES: u64 = 64 << 10;
/// All that is said is there before anybody listens, so nobody waits; this is for what is then missing.
const PATIENCE: Duration = Duration::from_secs(60);

#[derive(Arbitrary, Debug)]
#[cfg_attr(not(feature = "verbs"), allow(dead_code, reason = "so that inputs mean the same in every build"))]
enum Input {
    /// What a memory node answers to a `tcp` client's ticket.
    Tcp(AnswerSpec),
    /// What a memory node answers to a `shm` client's ticket, and the file that it hands over.
    Shm { answer: AnswerSpec, file: Option<FileSpec>, read_only: bool },
    /// What a client shows to a `shm` memory node.
    ShmTicket(TicketSpec),
    /// Private data of `verbs`, of all three kinds.
    Verbs(Vec<u8>),
    /// What a client sends to a memory node that commits for it.
    Commits { read_only: bool, messages: Vec<CommitSpec> },
    /// What such a memory node answers.
    CommitAnswers { limit: u8, credit: u8, events: Vec<CommitEvent> },
}

#[derive(Arbitrary, Debug)]
enum AnswerSpec {
    Accepted,
    Refused(String),
    Parts { preamble: Option<[u8; 8]>, status: u8, length: u16, rest: Vec<u8> },
    Raw(Vec<u8>),
}

impl AnswerSpec {
    /// `length_bytes` is how many bytes the length of a reason has on this fabric.
    fn bytes(&self, length_bytes: usize) -> Vec<u8> {
        let preamble = Preamble(PreambleKind::Data).encode();
        let with = |preamble: [u8; 8], status: u8, length: u16, rest: &[u8]| {
            let mut bytes = preamble.to_vec();
            bytes.push(status);
            bytes.extend_from_slice(&length.to_le_bytes()[..length_bytes]);
            bytes.extend_from_slice(rest);
            bytes
        };
        match self {
            Self::Accepted => with(preamble, 0, 0, &[]),
            Self::Refused(reason) => with(preamble, 1, reason.len() as u16, reason.as_bytes()),
            Self::Parts { preamble: other, status, length, rest } => {
                with(other.unwrap_or(preamble), *status, *length, rest)
            }
            Self::Raw(bytes) => bytes.clone(),
        }
    }
}

/// See the module.
pub fn run(bytes: &[u8]) {
    if let Some(first) = bytes.first_chunk()
        && let Ok(preamble) = Preamble::parse(*first)
    {
        assert_eq!(preamble.encode(), *first, "a preamble has one encoding");
    }
    match super::input::<Input>(bytes) {
        None => {}
        Some(Input::Tcp(answer)) => join_tcp(&answer.bytes(1)),
        Some(Input::Shm { answer, file, read_only }) => {
            shm::join(&answer.bytes(2), file.as_ref(), rights(read_only));
        }
        Some(Input::ShmTicket(ticket)) => shm::show_ticket(&ticket),
        #[cfg(feature = "verbs")]
        Some(Input::Verbs(bytes)) => commits::private_data(&bytes),
        #[cfg(feature = "verbs")]
        Some(Input::Commits { read_only, messages }) => commits::requests(rights(read_only), &messages),
        #[cfg(feature = "verbs")]
        Some(Input::CommitAnswers { limit, credit, events }) => commits::answers(limit, credit, &events),
        #[cfg(not(feature = "verbs"))]
        Some(_) => {}
    }
}

fn rights(read_only: bool) -> Rights {
    if read_only { Rights::ReadOnly } else { Rights::ReadWrite }
}

/// An error of joining has words, and is not a lost deadline: all there was to hear was there.
fn check_error(error: &ConnectError) {
    assert!(!error.to_string().is_empty());
    assert!(!matches!(error, ConnectError::Timeout { .. }), "{error}");
}

fn join_tcp(answer: &[u8]) {
    let (mut node, client) = UnixStream::pair().expect("a pair of sockets");
    node.write_all(answer).expect("room for an answer");
    node.shutdown(Shutdown::Write).expect("a socket");
    // Only sent to and received from, which is the same for both kinds of socket.
    let mut client = TcpStream::from(OwnedFd::from(client));
    let joined = tcp::fuzzing::join(&mut client, Ticket([3; 16]), Instant::now() + PATIENCE);
    let accepted = answer.get(..8) == Some(&Preamble(PreambleKind::Data).encode()[..]);
    assert!(joined.is_err() || accepted && answer.len() >= 10 && answer[8] == 0, "{answer:?} was believed");
    if let Err(error) = joined {
        check_error(&error);
    }
    let mut greeting = [0; 24];
    node.read_exact(&mut greeting).expect("the client's opening");
    assert_eq!(greeting[..8], Preamble(PreambleKind::Data).encode());
    assert_eq!(greeting[8..], [3; 16]);
}
