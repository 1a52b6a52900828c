//! Messages of two-sided commits, as the fuzzer makes them.

use arbitrary::Arbitrary;

#[derive(Arbitrary, Debug)]
pub(super) enum CommitSpec {
    Swap { offset: CommitPlace, expected: u64, desired: u64 },
    Add { offset: CommitPlace, add: u64 },
    Patched { byte: u8, bit: u8 },
    Raw(Vec<u8>),
}

#[derive(Arbitrary, Clone, Copy, Debug)]
pub(super) enum CommitPlace {
    Word(u8),
    Near(u16),
    FromEnd(i8),
    Far(u64),
}

#[derive(Arbitrary, Debug)]
pub(super) enum CommitEvent {
    /// Letters from low bits: WRITE, CAS, FAA.
    Post {
        silent: bool,
        verbs: Vec<u8>,
    },
    CardCompletes,
    Pump,
    /// The next answer.
    Answer {
        old: u64,
    },
    Refuse {
        status: u8,
    },
    Message {
        sequence: u64,
        old: u64,
        status: u8,
    },
    Raw(Vec<u8>),
}
