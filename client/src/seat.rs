//! Where a session's link sits between calls.
//!
//! Always true: whoever posts a session's verbs has taken its link out of the seat, and nobody else has it: a call, or
//! between calls the client's own thread that keeps sessions up ([`crate::pacemaker`]). So an epoch is acknowledged by whoever
//! posts verbs. Calls wait for the link no longer than they have time, the other thread not at all.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use crate::clock::Deadline;
use crate::link::Link;

#[derive(Default, Debug)]
struct Place {
    /// Not there while somebody has it, or before the session is joined.
    link: Option<Box<Link>>,
    is_lent: bool,
    /// A call waits for it. Telling costs a system call, so nobody is told in vain.
    is_awaited: bool,
}

/// The seat.
#[derive(Default, Debug)]
pub(crate) struct Seat {
    place: Mutex<Place>,
    /// Told when the link is back.
    back: Condvar,
    /// A call was made since this was asked last.
    is_used: AtomicBool,
}

impl Seat {
    fn lock(&self) -> MutexGuard<'_, Place> {
        self.place.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// For a call: the link, `Ok(None)` if there is none, or an error if it did not come back in time.
    #[inline]
    pub(crate) fn take(&self, deadline: Deadline) -> Result<Option<Box<Link>>, OutOfTime> {
        // Pairs with nothing: a use that is seen late only lets the session seem idle a little longer.
        self.is_used.store(true, Ordering::Relaxed);
        let mut place = self.lock();
        if place.is_lent {
            place.is_awaited = true;
            let waited = self.back.wait_timeout_while(place, deadline.left(), |place| place.is_lent);
            place = waited.unwrap_or_else(PoisonError::into_inner).0;
            place.is_awaited = false;
            if place.is_lent {
                return Err(OutOfTime);
            }
        }
        place.is_lent = true;
        Ok(place.link.take())
    }

    /// The same for who keeps the session up, which does not wait.
    pub(crate) fn try_take(&self) -> Option<Box<Link>> {
        let mut place = self.lock();
        if place.is_lent {
            return None;
        }
        let link = place.link.take()?;
        place.is_lent = true;
        Some(link)
    }

    /// Puts the link back, or says that there is none any more.
    #[inline]
    pub(crate) fn put(&self, link: Option<Box<Link>>) {
        let mut place = self.lock();
        place.link = link;
        place.is_lent = false;
        if place.is_awaited {
            self.back.notify_one();
        }
    }

    /// Keeps everybody from the seat until the guard is dropped.
    #[cfg(test)]
    pub(crate) fn hold(&self) -> impl Drop + '_ {
        self.lock()
    }

    /// Whether a call was made since this was asked last.
    pub(crate) fn was_used(&self) -> bool {
        self.is_used.swap(false, Ordering::Relaxed)
    }
}

/// The link did not come back in time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct OutOfTime;
