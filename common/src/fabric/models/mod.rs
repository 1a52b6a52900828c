//! The contract of fabrics under loom: what `shm` and `tcp` do to words that several threads share.
//!
//! Always true: the models run the fabrics' own executors, over words that are loom's atomics; each runs between two
//! sessions of `shm`, two of `tcp`, and one of each, since the two may share a region. They pass under every order of
//! threads, and with every old value that a load may still see. Where no full fence is needed they pass without one too:
//! on x86 there is none around CAS and FAA, whose own orderings must then do.
//!
//! What loom doesn't know: a load never sees a store that comes later in the run (a WRITE that overtakes an earlier READ,
//! which the contract allows); its full fences are a little stronger than the language's (one fence passes on all that
//! the one before had seen). Cards are not modelled: what holds here says nothing of `verbs`.

mod bare_card;
mod order;
mod words;

use loom::thread::JoinHandle;

use crate::layout::Offset;
use crate::memory::WordMemory;
use crate::sync::AtomicU64;

/// A verb, as models write it.
pub(in crate::fabric) enum Do {
    /// So many bytes from there.
    Read(u64, usize),
    /// These pieces to there.
    Write(u64, Vec<Vec<u8>>),
    /// Where, what is expected, what is put there.
    Swap(u64, u64, u64),
    /// Where, and how much more.
    Add(u64, u64),
}

/// What executes a session's verbs.
pub(in crate::fabric) trait Card {
    /// Executes the verbs of one batch; gives what each brought back: a READ its bytes, an atomic the old word.
    fn run(&mut self, batch: &[Do]) -> Vec<Vec<u8>>;
}

/// Makes a card for a session with all rights.
type MakeCard = fn(WordMemory) -> Box<dyn Card>;

const BARE: MakeCard = bare_card::bare_card;
const SHM: MakeCard = super::shm::model_card;
const TCP: MakeCard = super::tcp::model_card;

/// Zeroed memory of one execution of a model.
struct Region(Vec<AtomicU64>);

impl Region {
    fn zeroed(words: usize) -> Self {
        Self((0..words).map(|_| AtomicU64::new(0)).collect())
    }

    /// For threads that are joined before the region goes.
    fn memory(&self) -> WordMemory {
        // SAFETY: as above; loom ends a failed execution without running its threads any further.
        unsafe { WordMemory::of_model(&self.0) }
    }

    /// A session on a thread of its own.
    fn play<T: 'static>(
        &self,
        make: MakeCard,
        part: impl FnOnce(&mut Session) -> T + 'static,
    ) -> JoinHandle<T> {
        let memory = self.memory();
        loom::thread::spawn(move || part(&mut Session(make(memory))))
    }

    /// A session on the present thread.
    fn session(&self, make: MakeCard) -> Session {
        Session(make(self.memory()))
    }

    fn word(&self, at: u64) -> u64 {
        self.memory().load(Offset(at)).unwrap()
    }
}

/// A card with a hand for single words.
struct Session(Box<dyn Card>);

impl Session {
    fn run(&mut self, batch: &[Do]) -> Vec<Vec<u8>> {
        self.0.run(batch)
    }

    fn write(&mut self, at: u64, word: u64) {
        self.run(&[write(at, word)]);
    }

    fn read(&mut self, at: u64) -> u64 {
        word_of(&self.run(&[Do::Read(at, 8)])[0])
    }

    fn read_words(&mut self, at: u64, words: usize) -> Vec<u64> {
        words_of(&self.run(&[Do::Read(at, 8 * words)])[0])
    }

    fn swap(&mut self, at: u64, expected: u64, desired: u64) -> u64 {
        word_of(&self.run(&[Do::Swap(at, expected, desired)])[0])
    }
}

fn write(at: u64, word: u64) -> Do {
    Do::Write(at, vec![word.to_le_bytes().to_vec()])
}

fn word_of(bytes: &[u8]) -> u64 {
    crate::layout::word_at(bytes, 0)
}

fn words_of(bytes: &[u8]) -> Vec<u64> {
    bytes.chunks_exact(8).map(word_of).collect()
}

/// Makes tests of models that are played by two sessions; of those in the first list also by sessions without full fences.
macro_rules! between_two {
    (bare too: $($bare:ident),*; fenced: $($fenced:ident),* $(,)?) => {
        mod bare {
            $(#[test] fn $bare() { super::$bare([crate::fabric::models::BARE; 2]); })*
        }
        mod shm {
            $(#[test] fn $bare() { super::$bare([crate::fabric::models::SHM; 2]); })*
            $(#[test] fn $fenced() { super::$fenced([crate::fabric::models::SHM; 2]); })*
        }
        mod tcp {
            $(#[test] fn $bare() { super::$bare([crate::fabric::models::TCP; 2]); })*
            $(#[test] fn $fenced() { super::$fenced([crate::fabric::models::TCP; 2]); })*
        }
        mod shm_and_tcp {
            use crate::fabric::models::{SHM, TCP};
            $(#[test] fn $bare() { super::$bare([SHM, TCP]); })*
            $(#[test] fn $fenced() { super::$fenced([SHM, TCP]); })*
        }
        mod tcp_and_shm {
            use crate::fabric::models::{SHM, TCP};
            $(#[test] fn $bare() { super::$bare([TCP, SHM]); })*
            $(#[test] fn $fenced() { super::$fenced([TCP, SHM]); })*
        }
    };
}
use between_two;
