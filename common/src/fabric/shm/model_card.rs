//! `shm` as models under loom play it: the executor behind [`super::ShmFabric`], without its socket.

use super::execute::Executor;
use crate::fabric::models::{Card, Do};
use crate::fabric::{BufferPool, Reply, Rights, Unregistered, Verb};
use crate::layout::Offset;
use crate::memory::WordMemory;

struct ShmCard {
    executor: Executor,
    buffers: BufferPool,
}

/// For a session with all rights.
pub(in crate::fabric) fn model_card(words: WordMemory) -> Box<dyn Card> {
    let buffers = BufferPool::new(Box::new(Unregistered), 1 << 20);
    Box::new(ShmCard { executor: Executor::new(words, Rights::ReadWrite), buffers })
}

impl Card for ShmCard {
    fn run(&mut self, batch: &[Do]) -> Vec<Vec<u8>> {
        batch.iter().map(|verb| self.execute(verb)).collect()
    }
}

impl ShmCard {
    fn execute(&mut self, verb: &Do) -> Vec<u8> {
        let verb = match verb {
            Do::Read(at, bytes) => {
                Verb::Read { remote: Offset(*at), into: self.buffers.take(*bytes).unwrap() }
            }
            Do::Write(at, pieces) => {
                let mut from = [&[][..]; 3];
                from.iter_mut().zip(pieces).for_each(|(place, piece)| *place = piece);
                Verb::Write { remote: Offset(*at), from }
            }
            Do::Swap(at, expected, desired) => {
                Verb::CompareSwap { remote: Offset(*at), expected: *expected, desired: *desired }
            }
            Do::Add(at, add) => Verb::FetchAdd { remote: Offset(*at), add: *add },
        };
        match self.executor.execute(verb).map_err(|(refused, _)| refused).unwrap() {
            Reply::Read(buffer) => buffer.as_slice().to_vec(),
            Reply::Written => Vec::new(),
            Reply::Old(old) => old.to_le_bytes().to_vec(),
        }
    }
}
