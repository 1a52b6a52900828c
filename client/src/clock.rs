//! The client's clock.
//!
//! Always true: it never goes back, and it counts time during which the machine was suspended; the grace rule
//! of the protocol depends on that, so it is `CLOCK_BOOTTIME` and not `Instant`.

use std::time::{Duration, Instant};

/// Milliseconds since the machine started.
#[inline]
pub(crate) fn now_ms() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the pointer is to a valid timespec that outlives the call.
    let result = unsafe { libc::clock_gettime(libc::CLOCK_BOOTTIME, &raw mut time) };
    assert_eq!(result, 0, "CLOCK_BOOTTIME exists on every Linux that runs this");
    time.tv_sec as u64 * 1000 + time.tv_nsec as u64 / 1_000_000
}

/// The time that a call has.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Deadline {
    start: Instant,
    end: Instant,
}

impl Deadline {
    /// `timeout` from now.
    pub(crate) fn after(timeout: Duration) -> Self {
        let start = Instant::now();
        // Far enough for "never" where the sum can't be represented.
        let end = start.checked_add(timeout).unwrap_or_else(|| start + Duration::from_secs(1 << 30));
        Self { start, end }
    }

    /// When it ends.
    pub(crate) const fn end(self) -> Instant {
        self.end
    }

    /// What is left; zero when it has passed.
    pub(crate) fn left(self) -> Duration {
        self.end.saturating_duration_since(Instant::now())
    }

    /// Whether it has passed.
    pub(crate) fn has_passed(self) -> bool {
        Instant::now() >= self.end
    }

    /// The whole time, in milliseconds.
    pub(crate) fn whole_ms(self) -> u64 {
        self.end.duration_since(self.start).as_millis() as u64
    }
}
