//! What the process has used of the machine.

use std::time::Duration;

/// Processor time and memory of this process.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Usage {
    /// Processor time in user mode.
    pub user: Duration,
    /// Processor time in the kernel.
    pub system: Duration,
    /// Resident memory, shared memory included.
    pub resident_bytes: u64,
}

impl Usage {
    /// As of now.
    pub fn now() -> Self {
        let mut usage = std::mem::MaybeUninit::<libc::rusage>::zeroed();
        // SAFETY: the pointer is to a `rusage` of our own, which the call fills.
        let failed = unsafe { libc::getrusage(libc::RUSAGE_SELF, usage.as_mut_ptr()) } != 0;
        // SAFETY: all zeros are a valid `rusage`, and the call wrote one over them.
        let usage = unsafe { usage.assume_init() };
        debug_assert!(!failed, "getrusage of the own process can't fail");
        Self {
            user: duration(usage.ru_utime),
            system: duration(usage.ru_stime),
            resident_bytes: resident_bytes().unwrap_or(0),
        }
    }
}

fn duration(time: libc::timeval) -> Duration {
    Duration::from_secs(time.tv_sec.unsigned_abs()) + Duration::from_micros(time.tv_usec.unsigned_abs())
}

fn resident_bytes() -> Option<u64> {
    let statm = std::fs::read_to_string("/proc/self/statm").ok()?;
    let pages: u64 = statm.split_whitespace().nth(1)?.parse().ok()?;
    // SAFETY: takes a number and returns a number.
    let page_bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    Some(pages * u64::try_from(page_bytes).ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_shows() {
        let before = Usage::now();
        let deadline = std::time::Instant::now() + Duration::from_secs(10);
        while Usage::now().user + Usage::now().system == before.user + before.system {
            assert!(std::time::Instant::now() < deadline);
        }
        assert!(before.resident_bytes > 100_000, "{before:?}");
    }
}
