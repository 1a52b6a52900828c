//! What tests of several modules share: a fabric that is only memory, and a control channel to a peer that a test plays.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

use sidestep_common::fabric::{
    Batch, BufferPool, Completion, Effect, Fabric, FabricKind, Failure, FailureKind, Limits, PostError,
    Reply, Unregistered, Verb,
};
use sidestep_common::layout::Offset;
use sidestep_common::memory::WordMemory;
use sidestep_common::wire::{Preamble, PreambleKind};

use crate::clock::Deadline;
use crate::control::Control;
use crate::endpoint::Endpoint;

pub(crate) const LONG: Duration = Duration::from_secs(30);

/// Executes verbs in a region of this process: a batch that somebody waits for at once, and before it, in order, the silent
/// ones, which stay under way until then.
pub(crate) struct InMemory {
    memory: WordMemory,
    /// WRITEs under way.
    under_way: Vec<(Offset, Vec<u8>)>,
    completed: Vec<Completion>,
    buffers: BufferPool,
    /// The connection is lost: nothing completes but with a failure.
    pub(crate) is_lost: bool,
    /// Verbs that it takes at once.
    pub(crate) verbs_max: usize,
}

impl InMemory {
    /// Over `memory`, which outlives it.
    pub(crate) fn new(memory: WordMemory) -> Self {
        let buffers = BufferPool::new(Box::new(Unregistered), 4 << 20);
        Self { memory, under_way: Vec::new(), completed: Vec::new(), buffers, is_lost: false, verbs_max: 64 }
    }

    fn execute(&self, verb: Verb<'_>) -> Reply {
        match verb {
            Verb::Read { remote, mut into } => {
                self.memory.read(remote, into.as_mut_slice()).unwrap();
                Reply::Read(into)
            }
            Verb::Write { remote, from } => {
                self.memory.write(remote, &from.concat()).unwrap();
                Reply::Written
            }
            Verb::CompareSwap { remote, expected, desired } => {
                Reply::Old(self.memory.compare_swap(remote, expected, desired).unwrap())
            }
            other => panic!("no operation posts {other:?}"),
        }
    }
}

impl Fabric for InMemory {
    fn kind(&self) -> FabricKind {
        FabricKind::Sim
    }

    fn limits(&self) -> Limits {
        Limits { verbs_in_flight_max: self.verbs_max, verb_bytes_max: 1 << 21 }
    }

    fn describe(&self) -> String {
        "in memory".into()
    }

    fn buffers(&mut self) -> &mut BufferPool {
        &mut self.buffers
    }

    fn post(&mut self, batches: &mut [Batch<'_>]) -> Result<(), PostError> {
        let asked: usize = batches.iter().map(|batch| batch.verbs.len()).sum();
        if asked > self.verbs_max {
            return Err(PostError::Full { asked, in_flight: 0, limit: self.verbs_max });
        }
        for batch in batches {
            if self.is_lost {
                let kind = FailureKind::Disconnected("lost".into());
                let failure = Failure { verb_index: 0, kind, effect: Effect::Unknown };
                batch.verbs.clear();
                self.completed.push(Completion { batch: batch.id, result: Err(failure) });
            } else if batch.silent {
                for verb in batch.verbs.drain(..) {
                    let Verb::Write { remote, from } = verb else { panic!("{verb:?} is silent") };
                    self.under_way.push((remote, from.concat()));
                }
            } else {
                for (remote, bytes) in std::mem::take(&mut self.under_way) {
                    self.memory.write(remote, &bytes).unwrap();
                }
                let replies = batch.verbs.drain(..).map(|verb| self.execute(verb)).collect();
                self.completed.push(Completion { batch: batch.id, result: Ok(replies) });
            }
        }
        Ok(())
    }

    fn poll(&mut self, completions: &mut Vec<Completion>) -> usize {
        let count = self.completed.len();
        completions.append(&mut self.completed);
        count
    }

    fn wait(&mut self, timeout: Duration) {
        std::thread::park_timeout(timeout);
    }
}

/// A channel to a peer that exchanged preambles; the peer's end comes with it.
pub(crate) fn channel_to_peer() -> (Control, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint: Endpoint = listener.local_addr().unwrap().to_string().parse().unwrap();
    let peer = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream.read_exact(&mut [0; Preamble::BYTES]).unwrap();
        stream.write_all(&Preamble(PreambleKind::Control).encode()).unwrap();
        stream
    });
    let control = Control::open(&endpoint, Deadline::after(LONG)).unwrap();
    (control, peer.join().unwrap())
}
