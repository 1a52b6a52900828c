//! What the server said to a session and nobody has acted upon yet.
//!
//! Always true: of pulses only the newest is kept, which says all that earlier ones did; whoever takes the news acts upon
//! them, or puts them back.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use sidestep_common::wire::{AuditedChunk, Pulse};

/// A pulse, and when the heartbeat was sent that it answers; none if it came unasked.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct HeardPulse {
    pub(crate) pulse: Pulse,
    pub(crate) asked_ms: Option<u64>,
}

/// What was heard.
#[derive(Default, Debug)]
pub(crate) struct Heard {
    pub(crate) pulse: Option<HeardPulse>,
    /// What audits found, with their numbers.
    pub(crate) audited: Vec<(u64, Vec<AuditedChunk>)>,
}

/// The news of one session.
#[derive(Default, Debug)]
pub(crate) struct News {
    heard: Mutex<Heard>,
    /// There is something. A hint, which saves calls the lock: who sees it late acts upon it later.
    are_there: AtomicBool,
}

impl News {
    /// Whether there is anything to act upon.
    #[inline]
    pub(crate) fn are_there(&self) -> bool {
        // Pairs with nothing: what was heard is read under the lock.
        self.are_there.load(Ordering::Relaxed)
    }

    fn change(&self, change: impl FnOnce(&mut Heard)) {
        let mut heard = self.heard.lock().unwrap_or_else(PoisonError::into_inner);
        change(&mut heard);
        self.are_there.store(heard.pulse.is_some() || !heard.audited.is_empty(), Ordering::Relaxed);
    }

    /// A pulse came.
    pub(crate) fn hear(&self, pulse: Pulse, asked_ms: Option<u64>) {
        self.change(|heard| heard.pulse = Some(HeardPulse { pulse, asked_ms }));
    }

    /// There is something of the session's own to do: buckets to report, blocks to reclaim.
    pub(crate) fn have_work(&self) {
        self.are_there.store(true, Ordering::Relaxed);
    }

    /// What an audit found came.
    pub(crate) fn hear_audit(&self, number: u64, chunks: Vec<AuditedChunk>) {
        self.change(|heard| heard.audited.push((number, chunks)));
    }

    /// All of it.
    pub(crate) fn take(&self) -> Heard {
        let mut taken = Heard::default();
        self.change(|heard| taken = std::mem::take(heard));
        taken
    }

    /// A pulse that could not be acted upon, unless a newer one came.
    pub(crate) fn put_back(&self, pulse: HeardPulse) {
        self.change(|heard| {
            heard.pulse.get_or_insert(pulse);
        });
    }
}
