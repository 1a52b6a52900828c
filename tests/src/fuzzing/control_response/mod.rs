//! A hostile server on the control channel: a client asks, and hears whatever the fuzzer says. Each call ends with what
//! was asked for or an error with a type; after an error that leaves the channel out of step it is given up; block memory
//! that the client then uses lies in the pool of the region that it was told of, and is of the class that it wanted.

mod answer;

use std::collections::HashSet;
use std::io::Write;
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use arbitrary::Arbitrary;
use sidestep_client::Error;
use sidestep_client::allocator::Give;
use sidestep_client::directory::Directory;
use sidestep_client::fuzzing::Channel;
use sidestep_client::operation::acknowledge::Acknowledge;
use sidestep_client::operation::{Action, Context, Hints, Operation, PlannedVerb, Step, WriteIds};
use sidestep_common::fabric::{BufferPool, FabricKind, Reply, Rights, Unregistered};
use sidestep_common::layout::{BlockPlace, BlockRef, Offset, SizeClass, Superblock, free_map_offset};
use sidestep_common::wire::{
    BucketReport, ChunkPurpose, Hello, Preamble, PreambleKind, Request, Response, ReturnedChunk,
};

use answer::{Answer, REGION_BYTES, check_message, encoded, superblock, welcome};

/// All that the server says is there before the client asks, so nobody waits; this is for what is then missing.
const PATIENCE: Duration = Duration::from_secs(60);
/// More than a server says lies in the socket until it is read; longer inputs would only fill it.
const STREAM_BYTES_MAX: usize = 96 << 10;
/// Blocks that are taken to look at them; enough to come to the second chunk of most classes.
const BLOCKS_MAX: usize = 64;
/// A longer directory is not read: it only costs time.
const ENTRIES_MAX: u64 = 1 << 14;
/// No upkeep of so little memory and so short a directory takes more round trips.
const STEPS_MAX: usize = 1 << 10;

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
    Memory {
        class: u8,
        delete: bool,
    },
    Heartbeat,
    Statistics,
    Rejoin,
    /// Gives chunks back: the empty ones, or all.
    Return {
        empty: bool,
    },
    Goodbye,
    Report {
        entry: u32,
    },
    Audit {
        number: u8,
    },
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
    let mut client = Client { channel, superblock, taken: HashSet::new() };
    for ask in input.asks {
        client.perform(ask);
        client.attend();
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

/// A session, and what it has taken.
struct Client {
    channel: Channel,
    superblock: Superblock,
    /// Blocks that were handed out, in that use, and of which nothing was heard since.
    taken: HashSet<BlockRef>,
}

impl Client {
    fn perform(&mut self, ask: Ask) {
        let was_lost = self.channel.is_lost();
        let result = match ask {
            Ask::Memory { class, delete } => {
                let purpose = if delete { ChunkPurpose::Delete } else { ChunkPurpose::General };
                let got = self.channel.get_memory(wanted(class), purpose);
                if got.is_ok() {
                    self.check_memory(wanted(class), purpose);
                }
                got
            }
            Ask::Heartbeat => self.request(&Request::Heartbeat { epoch: 1, wants_epoch: false }),
            Ask::Statistics => self.request(&Request::Statistics),
            Ask::Rejoin => self.request(&Request::Rejoin),
            Ask::Return { empty } => {
                let give = if empty { Give::Empty } else { Give::All };
                let returned = self.channel.allocator().take_returns(give, ReturnedChunk::COUNT_MAX);
                self.check_returned(&returned, give);
                self.request(&Request::ReturnChunks(returned))
            }
            Ask::Goodbye => self.request(&Request::Goodbye),
            Ask::Report { entry } => {
                self.channel.report_bucket(BucketReport { entry, generation: 1, full: true }).map(drop)
            }
            Ask::Audit { number } => self.audit(number.into()),
        };
        match result {
            Ok(()) => assert!(!was_lost, "a channel that was given up still answers"),
            Err(error) => check_error(&error, &self.channel),
        }
    }

    fn request(&self, request: &Request) -> Result<(), Error> {
        self.channel.request(request).map(drop)
    }

    /// The memory that was got is of the class that was wanted, and in the pool; no block of it is in hand already.
    fn check_memory(&mut self, class: SizeClass, purpose: ChunkPurpose) {
        for number in 0..BLOCKS_MAX {
            let Some(block) = self.channel.allocator().allocate(class, purpose) else {
                // Of an adopted chunk only a harvest tells what is free.
                break;
            };
            assert_eq!(block.class, class, "block {number}");
            let holds = self.superblock.geometry.block_pool_holds(block.offset, class.bytes());
            assert!(holds && BlockPlace::of(block.offset, class).is_some(), "no block can be at {block:?}");
            assert!(self.taken.insert(block), "{block:?} is in hand already");
            match (number % 2, purpose) {
                (0, _) => self.channel.allocator().published(block),
                (_, ChunkPurpose::General) => {
                    self.channel.allocator().give_back(block);
                    self.taken.remove(&block);
                }
                // Nobody knows of its CAS.
                (_, ChunkPurpose::Delete) => {}
            }
        }
    }

    /// Nothing that a slot may name goes back as free, and what goes back can be said in a message.
    fn check_returned(&mut self, returned: &[ReturnedChunk], give: Give) {
        for chunk in returned {
            assert!(give == Give::All || chunk.empty, "{chunk:?} has blocks that a slot names");
            let of_chunk = |block: &BlockRef| {
                BlockPlace::of(block.offset, block.class).is_some_and(|place| place.chunk.0 == chunk.offset)
            };
            assert!(!chunk.empty || !self.taken.iter().any(of_chunk), "{chunk:?} is not empty");
            // A hostile server may grant it again.
            self.taken.retain(|block| !of_chunk(block));
        }
    }

    /// Whatever the server says of an audit, only blocks that were published when it began are reclaimed, each by its own
    /// byte.
    fn audit(&mut self, number: u64) -> Result<(), Error> {
        self.channel.allocator().note_audit(number);
        let chunks = self.channel.allocator().audited_chunks(number);
        let request = Request::Audit { number, chunks };
        let Response::Audited(audited) = self.channel.request(&request)? else { return Ok(()) };
        self.channel.allocator().learn_audit(number, &audited);
        let Some(reclaim) = self.channel.allocator().reclaim() else { return Ok(()) };
        let mut marks = 0;
        let reclaimed = self.run(reclaim, |client, verb| {
            let Action::WriteByte(version) = verb.action else { panic!("{verb:?} is no mark") };
            let is_of_block = |block: &&BlockRef| {
                block.version.0 == version && free_map_offset(**block) == Some(verb.remote)
            };
            let block = client.taken.iter().find(is_of_block).copied();
            let block = block.unwrap_or_else(|| panic!("{verb:?} is of no block in use"));
            client.taken.remove(&block);
            marks += 1;
            Reply::Written
        });
        assert_eq!(reclaimed, marks, "each mark that is written lets its block ripen");
        Ok(())
    }

    /// Does what a session owes for what it heard: reads changed entries of the directory, within it.
    fn attend(&mut self) {
        let Some(pulse) = self.channel.take_notice() else { return };
        let geometry = self.superblock.geometry;
        if geometry.directory_entries() > ENTRIES_MAX {
            return;
        }
        let (start, end) =
            (geometry.directory_offset.0, geometry.directory_word_offset(geometry.directory_entries()).0);
        let mut read_bytes = 0;
        let mut buffers = BufferPool::new(Box::new(Unregistered), 1 << 20);
        let epoch = pulse.epoch;
        let learned = self.run(Acknowledge::new(epoch, pulse.changes), |_, verb| {
            let Action::Read(bytes) = verb.action else { panic!("{verb:?} is no READ") };
            let is_within = start <= verb.remote.0 && verb.remote.0 + bytes as u64 <= end;
            assert!(is_within || (verb.remote, bytes) == (Offset(0), 8), "{verb:?}");
            read_bytes += bytes as u64;
            Reply::Read(buffers.take(bytes).expect("room for a piece of the directory"))
        });
        assert_eq!(learned, epoch);
        assert!(read_bytes <= (end - start).max(8), "{read_bytes} bytes of a directory of {}", end - start);
    }

    /// Runs an operation to its end.
    fn run<O: Operation>(
        &mut self,
        mut operation: O,
        mut execute: impl FnMut(&mut Self, &PlannedVerb) -> Reply,
    ) -> O::Output {
        let superblock = self.superblock;
        let entries = superblock.geometry.directory_entries().min(ENTRIES_MAX);
        let directory = Directory::from_bytes(&vec![0; 8 * entries as usize]);
        let (mut write_ids, mut hints) = (WriteIds::new(1, 0), Hints::default());
        let mut replies = Vec::new();
        for _ in 0..STEPS_MAX {
            let step = operation.step(
                &mut Context {
                    superblock: &superblock,
                    directory: &directory,
                    allocator: self.channel.allocator(),
                    write_ids: &mut write_ids,
                    hints: &mut hints,
                    now_ms: 1,
                },
                &replies,
            );
            match step {
                Step::Post(plan) => replies = plan.iter().map(|verb| execute(self, verb)).collect(),
                Step::Done(Ok(output), None) => return output,
                _ => panic!("{} wants more than verbs", operation.stage()),
            }
        }
        panic!("there is no end of {}", operation.stage())
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
