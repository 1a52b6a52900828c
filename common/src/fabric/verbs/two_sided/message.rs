//! The messages of two-sided commits, and what the memory node does with one.
//!
//! Always true: a message has one length and one layout, little-endian; what isn't exactly that is answered with a
//! refusal, never guessed at. Requests of a connection carry consecutive sequences from 0, so that a message that was
//! lost, doubled or made up is noticed. After a refusal nothing of that connection executes any more.
//!
//! ```text
//!          0          8        16         24        32       33      36     40
//! request  | sequence | offset | expected | desired | opcode | 0 0 0 | rkey |     opcode: 1 CAS, 2 FAA
//!                              | add      | 0       |
//!          0          8     16       17              24
//! reply    | sequence | old | status | 0 0 0 0 0 0 0 |     status: 0 done, else why it was refused; old is 0 then
//! ```

use crate::fabric::Rights;
use crate::layout::Offset;
use crate::memory::{AccessError, WordMemory};

/// Raised with every change of these bytes; the memory node says it when a session joins.
pub(in super::super) const MESSAGE_VERSION: u8 = 1;
/// Bytes of a request.
pub(super) const REQUEST_BYTES: usize = 40;
/// Bytes of a reply.
pub(super) const REPLY_BYTES: usize = 24;

const COMPARE_SWAP: u8 = 1;
const FETCH_ADD: u8 = 2;

/// What is asked of the memory node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in super::super) enum Operation {
    /// Compare-and-swap.
    CompareSwap {
        /// Swap if the word holds this.
        expected: u64,
        /// What to put there.
        desired: u64,
    },
    /// Fetch-and-add.
    FetchAdd {
        /// What to add.
        add: u64,
    },
}

/// One commit under way to the memory node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in super::super) struct Request {
    /// Its number in the connection, from 0.
    pub(in super::super) sequence: u64,
    /// Which word.
    pub(in super::super) remote: Offset,
    /// The region's key, as one-sided verbs carry it.
    pub(in super::super) rkey: u32,
    /// What to do.
    pub(in super::super) operation: Operation,
}

/// Why a request was refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Refused {
    /// The word isn't inside the region.
    Bounds = 1,
    /// The word isn't aligned.
    Unaligned = 2,
    /// The session may only read.
    Rights = 3,
    /// The key isn't the region's.
    Key = 4,
    /// The bytes are no request, or not the next one.
    Malformed = 5,
}

impl Refused {
    const ALL: [Self; 5] = [Self::Bounds, Self::Unaligned, Self::Rights, Self::Key, Self::Malformed];

    /// For people.
    pub(super) const fn text(self) -> &'static str {
        match self {
            Self::Bounds => "the word is outside the region",
            Self::Unaligned => "the word is not aligned",
            Self::Rights => "the session may only read",
            Self::Key => "the key is not the region's",
            Self::Malformed => "the request was not understood",
        }
    }
}

/// The answer to a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Reply {
    /// The request's.
    pub(super) sequence: u64,
    /// The word before, or why nothing was changed.
    pub(super) result: Result<u64, Refused>,
}

fn word(bytes: &[u8; REQUEST_BYTES], at: usize) -> u64 {
    crate::layout::word_at(bytes, at)
}

impl Request {
    /// Its bytes.
    pub(in super::super) fn encode(&self) -> [u8; REQUEST_BYTES] {
        let (opcode, values) = match self.operation {
            Operation::CompareSwap { expected, desired } => (COMPARE_SWAP, [expected, desired]),
            Operation::FetchAdd { add } => (FETCH_ADD, [add, 0]),
        };
        let mut bytes = [0; REQUEST_BYTES];
        bytes[..8].copy_from_slice(&self.sequence.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.remote.0.to_le_bytes());
        bytes[16..24].copy_from_slice(&values[0].to_le_bytes());
        bytes[24..32].copy_from_slice(&values[1].to_le_bytes());
        bytes[32] = opcode;
        bytes[36..].copy_from_slice(&self.rkey.to_le_bytes());
        bytes
    }

    /// Reads it; none if it is no request.
    fn decode(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; REQUEST_BYTES] = bytes.try_into().ok()?;
        let [.., opcode, 0, 0, 0, k0, k1, k2, k3] = *bytes else { return None };
        let (first, second) = (word(bytes, 16), word(bytes, 24));
        let operation = match (opcode, second) {
            (COMPARE_SWAP, desired) => Operation::CompareSwap { expected: first, desired },
            (FETCH_ADD, 0) => Operation::FetchAdd { add: first },
            _ => return None,
        };
        let rkey = u32::from_le_bytes([k0, k1, k2, k3]);
        Some(Self { sequence: word(bytes, 0), remote: Offset(word(bytes, 8)), rkey, operation })
    }
}

impl Reply {
    /// Its bytes.
    pub(super) fn encode(&self) -> [u8; REPLY_BYTES] {
        let (old, status) = match self.result {
            Ok(old) => (old, 0),
            Err(refused) => (0, refused as u8),
        };
        let mut bytes = [0; REPLY_BYTES];
        bytes[..8].copy_from_slice(&self.sequence.to_le_bytes());
        bytes[8..16].copy_from_slice(&old.to_le_bytes());
        bytes[16] = status;
        bytes
    }

    /// Reads it; none if it is no reply.
    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; REPLY_BYTES] = bytes.try_into().ok()?;
        let [.., status, 0, 0, 0, 0, 0, 0, 0] = *bytes else { return None };
        let (sequence, old) = (crate::layout::word_at(bytes, 0), crate::layout::word_at(bytes, 8));
        let result = match (status, old) {
            (0, old) => Ok(old),
            (status, 0) => Err(Refused::ALL.into_iter().find(|refused| *refused as u8 == status)?),
            _ => return None,
        };
        Some(Self { sequence, result })
    }
}

/// Executes the requests of one connection; needs no card.
#[derive(Debug)]
pub(super) struct Executor {
    memory: WordMemory,
    rkey: u32,
    rights: Rights,
    next_sequence: u64,
    ended: bool,
}

impl Executor {
    /// For a connection that names the region by `rkey` and may do what `rights` say.
    pub(super) fn new(memory: WordMemory, rkey: u32, rights: Rights) -> Self {
        Self { memory, rkey, rights, next_sequence: 0, ended: false }
    }

    /// Whether nothing is executed any more.
    pub(super) fn has_ended(&self) -> bool {
        self.ended
    }

    /// Nothing is executed any more.
    pub(super) fn end(&mut self) {
        self.ended = true;
    }

    /// Executes a message, whatever its bytes are; none once the connection has ended.
    pub(super) fn execute(&mut self, message: &[u8]) -> Option<Reply> {
        if self.ended {
            return None;
        }
        let sequence = self.next_sequence;
        let result = match Request::decode(message).filter(|request| request.sequence == sequence) {
            Some(request) => self.commit(&request),
            None => Err(Refused::Malformed),
        };
        self.next_sequence += 1;
        self.ended = result.is_err();
        Some(Reply { sequence, result })
    }

    fn commit(&self, request: &Request) -> Result<u64, Refused> {
        if request.rkey != self.rkey {
            return Err(Refused::Key);
        }
        if !self.rights.can_write() {
            return Err(Refused::Rights);
        }
        let done = match request.operation {
            Operation::CompareSwap { expected, desired } => {
                self.memory.compare_swap(request.remote, expected, desired)
            }
            Operation::FetchAdd { add } => self.memory.fetch_add(request.remote, add),
        };
        done.map_err(|error| match error {
            AccessError::Bounds { .. } => Refused::Bounds,
            AccessError::Unaligned { .. } => Refused::Unaligned,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::ptr::NonNull;

    use super::*;

    const RKEY: u32 = 0x0a0b_0c0d;

    fn swap(sequence: u64, remote: u64, expected: u64, desired: u64) -> Request {
        let operation = Operation::CompareSwap { expected, desired };
        Request { sequence, remote: Offset(remote), rkey: RKEY, operation }
    }

    fn with_memory(rights: Rights, test: impl FnOnce(&mut Executor, WordMemory)) {
        let mut words = vec![0_u64; 8];
        let base = NonNull::new(words.as_mut_ptr().cast()).expect("a vector's memory");
        // SAFETY: the vector outlives the test and is touched through these words only.
        let memory = unsafe { WordMemory::new(base, 64) };
        test(&mut Executor::new(memory, RKEY, rights), memory);
    }

    #[test]
    fn golden_bytes() {
        let request = swap(0x0102, 0x1122_3344_5566_7788, 7, u64::MAX - 1);
        assert_eq!(
            request.encode(),
            *b"\x02\x01\0\0\0\0\0\0\x88\x77\x66\x55\x44\x33\x22\x11\x07\0\0\0\0\0\0\0\xfe\xff\xff\xff\xff\xff\xff\xff\
               \x01\0\0\0\x0d\x0c\x0b\x0a"
        );
        let add = Request { operation: Operation::FetchAdd { add: 3 }, ..swap(1, 8, 0, 0) };
        assert_eq!(
            add.encode(),
            *b"\x01\0\0\0\0\0\0\0\x08\0\0\0\0\0\0\0\x03\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\x02\0\0\0\x0d\x0c\x0b\x0a"
        );
        let done = Reply { sequence: 5, result: Ok(0x99) };
        assert_eq!(done.encode(), *b"\x05\0\0\0\0\0\0\0\x99\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0");
        let refused = Reply { sequence: 6, result: Err(Refused::Rights) };
        assert_eq!(refused.encode(), *b"\x06\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\x03\0\0\0\0\0\0\0");
        for request in [request, add] {
            assert_eq!(Request::decode(&request.encode()), Some(request));
        }
        for result in Refused::ALL.into_iter().map(Err).chain([Ok(0), Ok(u64::MAX)]) {
            let reply = Reply { sequence: u64::MAX, result };
            assert_eq!(Reply::decode(&reply.encode()), Some(reply));
        }
    }

    /// Every cut, every byte too many, every opcode and every reserved byte that isn't ours: refused, nothing changed, and
    /// the next good request gets no answer at all.
    #[test]
    fn hostile_bytes_change_nothing_and_end_the_connection() {
        let good = swap(0, 0, 0, 1).encode();
        let mut bad: Vec<Vec<u8>> = (0..REQUEST_BYTES).map(|cut| good[..cut].to_vec()).collect();
        bad.push([&good[..], &[0]].concat());
        let changed = |at: usize, byte: u8| {
            let mut bytes = good.to_vec();
            bytes[at] = byte;
            bytes
        };
        bad.extend([0, 3, 255].map(|opcode| changed(32, opcode)));
        bad.extend([33, 34, 35].map(|reserved| changed(reserved, 1)));
        // Another sequence than the next; a FAA with an operand too many.
        bad.extend([changed(0, 1), changed(7, 0x80)]);
        let mut add = Request { operation: Operation::FetchAdd { add: 1 }, ..swap(0, 0, 0, 0) }.encode();
        add[24] = 1;
        bad.push(add.to_vec());
        for bytes in bad {
            with_memory(Rights::ReadWrite, |executor, memory| {
                let reply = Reply { sequence: 0, result: Err(Refused::Malformed) };
                assert_eq!(executor.execute(&bytes), Some(reply), "{bytes:?}");
                assert!(executor.has_ended());
                assert_eq!(executor.execute(&swap(1, 0, 0, 1).encode()), None);
                assert_eq!(memory.load(Offset(0)), Ok(0), "{bytes:?}");
            });
        }
    }

    #[test]
    fn what_is_not_granted_is_refused_by_name() {
        for (remote, refused) in [
            (64, Refused::Bounds),
            (u64::MAX - 7, Refused::Bounds),
            (1 << 63, Refused::Bounds),
            (4, Refused::Unaligned),
            (57, Refused::Unaligned),
        ] {
            with_memory(Rights::ReadWrite, |executor, _| {
                let reply = executor.execute(&swap(0, remote, 0, 1).encode()).expect("an answer");
                assert_eq!(reply.result, Err(refused), "{remote}");
            });
        }
        with_memory(Rights::ReadOnly, |executor, memory| {
            let reply = executor.execute(&swap(0, 0, 0, 1).encode()).expect("an answer");
            assert_eq!((reply.result, memory.load(Offset(0))), (Err(Refused::Rights), Ok(0)));
        });
        with_memory(Rights::ReadWrite, |executor, memory| {
            let request = Request { rkey: RKEY ^ 1, ..swap(0, 0, 0, 1) };
            let reply = executor.execute(&request.encode()).expect("an answer");
            assert_eq!((reply.result, memory.load(Offset(0))), (Err(Refused::Key), Ok(0)));
        });
    }

    #[test]
    fn commits_execute_in_sequence() {
        with_memory(Rights::ReadWrite, |executor, memory| {
            let mut run = |request: Request| executor.execute(&request.encode()).expect("an answer").result;
            assert_eq!(run(swap(0, 56, 0, 5)), Ok(0));
            assert_eq!(run(swap(1, 56, 0, 6)), Ok(5), "lost, and nothing changed");
            let add = |sequence, add| Request {
                operation: Operation::FetchAdd { add },
                ..swap(sequence, 56, 0, 0)
            };
            assert_eq!(run(add(2, u64::MAX)), Ok(5));
            assert_eq!(run(add(3, 0)), Ok(4));
            assert_eq!(memory.load(Offset(56)), Ok(4));
        });
    }

    #[test]
    fn what_is_no_reply_is_none() {
        let good = Reply { sequence: 1, result: Err(Refused::Key) }.encode();
        for cut in 0..REPLY_BYTES {
            assert_eq!(Reply::decode(&good[..cut]), None);
        }
        for (at, byte) in [(16, 6), (16, 255), (17, 1), (23, 1), (8, 1)] {
            let mut bad = good;
            bad[at] = byte;
            assert_eq!(Reply::decode(&bad), None, "byte {at}");
        }
    }
}
