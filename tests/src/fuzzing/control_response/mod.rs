//! A hostile server on the control channel: a client asks, and hears whatever the fuzzer says. Each call ends with what
//! was asked for or an error with a type; after an error that leaves the channel out of step it is given up; block memory
//! that the client then uses lies in the pool of the region that it was told of, and is of the class that it wanted.

mod answer;

use std::io::Write;
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use arbitrary::Arbitrary;
use sidestep_client::Error;
use sidestep_client::allocator::Give;
use sidestep_client::fuzzing::Channel;
use sidestep_common::fabric::{FabricKind, Rights};
use sidestep_common::layout::{BlockPlace, SizeClass, Superblock};
use sidestep_common::wire::{ChunkPurpose, Hello, Preamble, PreambleKind, Request, Response, ReturnedChunk};

use answer::{Answer, REGION_BYTES, check_message, encoded, superblock, welcome};

/// All that the server says is there before the client asks, so nobody waits; this is for what is then missing.
const PATIENCE: Duration = Duration::from_secs(60);
/// More than a server says lies in the socket until it is read; longer inputs would only fill it.
const STREAM_BYTES_MAX: usize = 96 << 10;
/// Blocks that are taken to look at them; enough to come to the second chunk of most classes.
const BLOCKS_MAX: usize = 64;

#[derive(Arbitrary, Debug)]
struct Input {
    opening: Opening,
    answers: Vec<Answer>,
    asks: Vec<Ask>,
}

#[derive(Arbitrary, Debug)]
enum Opening {
    /// A preamble, and a welcome to a region of 64 MiB.
    Welcome,
    Preamble,
    Raw([u8; 8]),
}

#[derive(Arbitrary, Clone, Copy, Debug)]
enum Ask {
    Memory { class: u8, delete: bool },
    Heartbeat,
    Statistics,
    Rejoin,
    Return,
    Goodbye,
}

/// See the module.
pub fn run(bytes: &[u8]) {
    check_message(bytes);
    let Some(input) = super::input::<Input>(bytes) else { return };
    let stream = input.stream();
    if stream.len() > STREAM_BYTES_MAX {
        return;
    }
    let (mut server, client) = UnixStream::pair().expect("a pair of sockets");
    server.write_all(&stream).expect("room for what it says");
    server.shutdown(Shutdown::Write).expect("a socket");

    let Ok(mut channel) = Channel::open(client, PATIENCE) else { return };
    let hello = Request::Hello(hello());
    let welcome = match channel.request(&hello) {
        Ok(Response::Welcome(welcome)) => welcome,
        Ok(_) => return,
        Err(error) => return check_error(&error, &channel),
    };
    let superblock = match channel.enter(&welcome) {
        Ok(superblock) => superblock,
        Err(error) => return assert!(matches!(error, Error::Protocol { .. }), "{error}"),
    };
    for ask in input.asks {
        perform(ask, &mut channel, &superblock);
    }
}

impl Input {
    fn stream(&self) -> Vec<u8> {
        let preamble = Preamble(PreambleKind::Control).encode();
        let mut stream = match self.opening {
            Opening::Welcome => {
                let welcome = welcome(superblock(REGION_BYTES).encode().to_vec(), 1, 1000, 1 << 20);
                [preamble.to_vec(), encoded(&welcome)].concat()
            }
            Opening::Preamble => preamble.to_vec(),
            Opening::Raw(bytes) => bytes.to_vec(),
        };
        // Grants answer the requests for memory in their order.
        let mut classes = self.asks.iter().filter_map(|ask| match ask {
            Ask::Memory { class, .. } => Some(wanted(*class)),
            _ => None,
        });
        for answer in &self.answers {
            let asked = if matches!(answer, Answer::Chunks(_)) { classes.next() } else { None };
            stream.extend(answer.bytes(asked.unwrap_or(wanted(0))));
        }
        stream
    }
}

fn hello() -> Hello {
    Hello {
        client_version: "1".into(),
        client_name: "fuzz".into(),
        token: None,
        fabrics: vec![FabricKind::Tcp],
        rights: Rights::ReadWrite,
        boot_id: String::new(),
        process_id: 1,
    }
}

fn wanted(class: u8) -> SizeClass {
    SizeClass::from_index(class % SizeClass::COUNT as u8).expect("a class in use")
}

fn perform(ask: Ask, channel: &mut Channel, superblock: &Superblock) {
    let was_lost = channel.is_lost();
    let result = match ask {
        Ask::Memory { class, delete } => {
            let purpose = if delete { ChunkPurpose::Delete } else { ChunkPurpose::General };
            let got = channel.get_memory(wanted(class), purpose);
            if got.is_ok() {
                check_memory(wanted(class), purpose, channel, superblock);
            }
            got
        }
        Ask::Heartbeat => channel.request(&Request::Heartbeat { epoch: 1, wants_epoch: false }).map(drop),
        Ask::Statistics => channel.request(&Request::Statistics).map(drop),
        Ask::Rejoin => channel.request(&Request::Rejoin).map(drop),
        Ask::Return => {
            let chunks = channel.allocator().take_returns(Give::All, ReturnedChunk::COUNT_MAX);
            channel.request(&Request::ReturnChunks(chunks)).map(drop)
        }
        Ask::Goodbye => channel.request(&Request::Goodbye).map(drop),
    };
    match result {
        Ok(()) => assert!(!was_lost, "a channel that was given up still answers"),
        Err(error) => check_error(&error, channel),
    }
}

/// An error names what is wrong. A channel that may be out of step is not used any more.
fn check_error(error: &Error, channel: &Channel) {
    assert!(!error.to_string().is_empty());
    match error {
        Error::Unreachable { .. } => assert!(channel.is_lost(), "{error}"),
        // Either the bytes made no sense, and then the channel is lost; or the message did not answer the request.
        Error::Protocol { .. } | Error::Refused { .. } | Error::OutOfMemory(_) => {}
        other => panic!("{other} says nothing of a control channel"),
    }
}

/// The memory that was got is of the class that was wanted, and in the pool.
fn check_memory(class: SizeClass, purpose: ChunkPurpose, channel: &mut Channel, superblock: &Superblock) {
    for number in 0..BLOCKS_MAX {
        let Some(block) = channel.allocator().allocate(class, purpose) else {
            assert!(number > 0, "memory was got, and no block of {class:?} is there");
            break;
        };
        assert_eq!(block.class, class);
        assert!(superblock.geometry.block_pool_holds(block.offset, class.bytes()), "{block:?}");
        assert!(BlockPlace::of(block.offset, class).is_some(), "no block can be at {block:?}");
    }
}
