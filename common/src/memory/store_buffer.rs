//! What a session's verbs may have left in the processor's store buffer.
//!
//! Always true: a READ, and the look that a CAS or FAA takes, never passes an earlier store of the same session.
//!
//! `WordMemory` orders all the rest: a WRITE before later WRITEs and atomics (release), a READ or an atomic before
//! whatever is later (acquire). What is left is the one order that processors break by themselves: a load that passes
//! an earlier store still in the store buffer. A full fence stands between the two, and pairs with the same fence of
//! the other session. Loads in a row need none.

use crate::sync::{Ordering, fence};

/// Locked instructions of these processors are full fences by themselves, also those that change nothing. Elsewhere, and
/// in the memory model of the language, a CAS that fails is only a load.
const ATOMICS_ARE_FENCES: bool = cfg!(all(any(target_arch = "x86", target_arch = "x86_64"), not(loom)));

/// One session's; told of each verb before it executes.
#[derive(Debug)]
pub(crate) struct StoreBuffer {
    /// Something may have been stored since the last full fence.
    stored: bool,
}

impl StoreBuffer {
    /// Of a session that has stored nothing yet.
    pub(crate) const fn empty() -> Self {
        Self { stored: false }
    }

    /// Of a session that may have stored something.
    pub(crate) const fn unknown() -> Self {
        Self { stored: true }
    }

    /// A READ comes.
    #[inline]
    pub(crate) fn before_read(&mut self) {
        if std::mem::take(&mut self.stored) {
            fence(Ordering::SeqCst);
        }
    }

    /// A WRITE comes.
    #[inline]
    pub(crate) const fn before_write(&mut self) {
        self.stored = true;
    }

    /// A CAS or FAA comes: a load and a store.
    #[inline]
    pub(crate) fn before_atomic(&mut self) {
        if !ATOMICS_ARE_FENCES {
            self.before_read();
        }
        self.stored = true;
    }
}
