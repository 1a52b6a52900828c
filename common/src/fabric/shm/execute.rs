//! Executing verbs on mapped memory.
//!
//! Always true: verbs take effect in the order of the calls, also as other processors see it, except that a WRITE may
//! overtake an earlier READ; a verb that is refused changes nothing.
//!
//! # Orderings
//! `WordMemory` orders a WRITE before later WRITEs and atomics, and a READ before later READs. What is left is the one
//! order that processors break by themselves: a READ that passes an earlier WRITE still in the store buffer. A full
//! fence stands between the two; it pairs with the same fence of the other session. READs in a row need none.

use std::sync::atomic::{Ordering, fence};

use crate::fabric::{Reply, Rights, Verb};
use crate::layout::Offset;
use crate::memory::{AccessError, WordMemory};

/// Plays the card for one session.
#[derive(Debug)]
pub(super) struct Executor {
    words: WordMemory,
    rights: Rights,
    /// Something was stored since the last full fence.
    stored: bool,
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
        Self { words, rights, stored: false }
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
            if self.stored {
                fence(Ordering::SeqCst);
                self.stored = false;
            }
            self.words.read(*remote, into.as_mut_slice())?;
            return Ok(0);
        }
        if !self.rights.can_write() {
            return Err(Refused::ReadOnly { verb: verb.name(), bytes: verb.bytes(), offset: verb.remote() });
        }
        self.stored = true;
        match verb {
            Verb::Read { .. } => Ok(0),
            Verb::Write { remote, from } => {
                self.words.write_gathered(*remote, &from[..])?;
                Ok(0)
            }
            Verb::CompareSwap { remote, expected, desired } => {
                Ok(self.words.compare_swap(*remote, *expected, *desired)?)
            }
            Verb::FetchAdd { remote, add } => Ok(self.words.fetch_add(*remote, *add)?),
        }
    }
}
