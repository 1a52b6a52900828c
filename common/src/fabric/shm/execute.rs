//! Executing verbs on mapped memory.
//!
//! Always true: verbs take effect in the order of the calls, also as other processors see it, except that a WRITE may
//! overtake an earlier READ; a verb that is refused changes nothing. [`WordMemory`] and [`StoreBuffer`] see to the order.

use crate::fabric::{Reply, Rights, Verb};
use crate::layout::Offset;
use crate::memory::{AccessError, StoreBuffer, WordMemory};

/// Plays the card for one session.
#[derive(Debug)]
pub(super) struct Executor {
    words: WordMemory,
    rights: Rights,
    store_buffer: StoreBuffer,
}

/// Why a verb was refused.
#[derive(Debug, thiserror::Error)]
pub(super) enum Refused {
    #[error(transparent)]
    Access(#[from] AccessError),
    #[error("{verb} of {bytes} bytes at {offset}, but the session may only read")]
    ReadOnly { verb: &'static str, bytes: usize, offset: Offset },
}

impl Executor {
    /// The caller keeps the mapping of `words` alive, which allows at least `rights`.
    pub(super) const fn new(words: WordMemory, rights: Rights) -> Self {
        Self { words, rights, store_buffer: StoreBuffer::empty() }
    }

    /// Executes one verb; gives it back if it is refused.
    #[inline]
    pub(super) fn execute<'a>(&mut self, mut verb: Verb<'a>) -> Result<Reply, (Refused, Verb<'a>)> {
        match self.run(&mut verb) {
            Err(refused) => Err((refused, verb)),
            Ok(old) => Ok(match verb {
                Verb::Read { into, .. } => Reply::Read(into),
                Verb::Write { .. } => Reply::Written,
                Verb::CompareSwap { .. } | Verb::FetchAdd { .. } => Reply::Old(old),
            }),
        }
    }

    /// Gives the old word of an atomic, 0 for the others.
    #[inline]
    fn run(&mut self, verb: &mut Verb<'_>) -> Result<u64, Refused> {
        if let Verb::Read { remote, into } = verb {
            self.store_buffer.before_read();
            self.words.read(*remote, into.as_mut_slice())?;
            return Ok(0);
        }
        if !self.rights.can_write() {
            return Err(Refused::ReadOnly { verb: verb.name(), bytes: verb.bytes(), offset: verb.remote() });
        }
        match verb {
            Verb::Read { .. } => Ok(0),
            Verb::Write { remote, from } => {
                self.store_buffer.before_write();
                self.words.write_gathered(*remote, &from[..])?;
                Ok(0)
            }
            Verb::CompareSwap { remote, expected, desired } => {
                self.store_buffer.before_atomic();
                Ok(self.words.compare_swap(*remote, *expected, *desired)?)
            }
            Verb::FetchAdd { remote, add } => {
                self.store_buffer.before_atomic();
                Ok(self.words.fetch_add(*remote, *add)?)
            }
        }
    }
}
