//! The limit on locked memory, checked before a card is asked to pin any.
//!
//! Always true: what the kernel would answer with a bare "out of memory" is told beforehand, with the limit, the
//! need and the remedy. The kernel counts each registration of the same memory anew, and so do callers.

use std::fmt;
use std::fs;

/// The limit is too low.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "cannot lock memory for the card: {need_bytes} bytes more are needed, {locked_bytes} are locked, and the limit \
     RLIMIT_MEMLOCK is {limit_bytes}; raise it with `ulimit -l unlimited`, with LimitMEMLOCK=infinity in the systemd \
     unit, with --ulimit memlock=-1 for a container, or give the process CAP_IPC_LOCK"
)]
pub struct MemlockError {
    /// `RLIMIT_MEMLOCK` of this process.
    pub limit_bytes: u64,
    /// What it has locked for cards already.
    pub locked_bytes: u64,
    /// What is to be locked.
    pub need_bytes: u64,
}

/// What the kernel would judge by.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Memlock {
    /// None if unlimited.
    pub limit_bytes: Option<u64>,
    /// Pinned so far.
    pub locked_bytes: u64,
    /// Whether the process may exceed the limit (`CAP_IPC_LOCK`).
    pub exempt: bool,
}

impl Memlock {
    /// As it is for this process now.
    pub fn current() -> Self {
        let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: a limit to be filled in.
        let status = unsafe { libc::getrlimit(libc::RLIMIT_MEMLOCK, &mut limit) };
        // A limit that can't be read is taken for none: the card's own answer then decides.
        let limit_bytes = (status == 0 && limit.rlim_cur != libc::RLIM_INFINITY).then_some(limit.rlim_cur);
        let process = fs::read_to_string("/proc/self/status").unwrap_or_default();
        Self { limit_bytes, locked_bytes: locked_bytes(&process), exempt: exempt(&process) }
    }

    /// Whether `need_bytes` more may be locked.
    ///
    /// # Errors
    /// [`MemlockError`] if not.
    pub fn check(&self, need_bytes: u64) -> Result<(), MemlockError> {
        let Self { limit_bytes: Some(limit_bytes), locked_bytes, exempt: false } = *self else {
            return Ok(());
        };
        if locked_bytes.saturating_add(need_bytes) > limit_bytes {
            return Err(MemlockError { limit_bytes, locked_bytes, need_bytes });
        }
        Ok(())
    }

    /// The same error for a registration that the kernel refused although [`Self::check`] let it pass, as it may
    /// in a container whose CAP_IPC_LOCK does not count for the host.
    pub(super) fn refused(&self, need_bytes: u64) -> Option<MemlockError> {
        let limit_bytes = self.limit_bytes?;
        let over = self.locked_bytes.saturating_add(need_bytes) > limit_bytes;
        over.then_some(MemlockError { limit_bytes, locked_bytes: self.locked_bytes, need_bytes })
    }
}

impl fmt::Display for Memlock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.limit_bytes {
            None => write!(f, "unlimited")?,
            Some(bytes) => write!(f, "{bytes} bytes")?,
        }
        write!(f, ", {} locked", self.locked_bytes)?;
        if self.exempt { write!(f, ", may be exceeded (CAP_IPC_LOCK)") } else { Ok(()) }
    }
}

/// The line of `/proc/self/status` that starts with `name:`.
fn line<'a>(process: &'a str, name: &str) -> Option<&'a str> {
    process.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim)
}

fn locked_bytes(process: &str) -> u64 {
    let kib = line(process, "VmPin").and_then(|value| value.split_whitespace().next()?.parse::<u64>().ok());
    kib.unwrap_or(0).saturating_mul(1024)
}

fn exempt(process: &str) -> bool {
    const CAP_IPC_LOCK: u32 = 14;
    let effective = line(process, "CapEff").and_then(|value| u64::from_str_radix(value, 16).ok());
    effective.unwrap_or(0) >> CAP_IPC_LOCK & 1 == 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_message_names_limit_need_and_remedy() {
        let memlock = Memlock { limit_bytes: Some(65_536), locked_bytes: 4096, exempt: false };
        memlock.check(61_440).unwrap();
        let text = memlock.check(67_108_864).unwrap_err().to_string();
        for part in ["65536", "67108864", "4096", "RLIMIT_MEMLOCK", "ulimit -l", "LimitMEMLOCK=infinity"] {
            assert!(text.contains(part), "{part} is not in: {text}");
        }
        assert!(memlock.check(u64::MAX).is_err(), "sums must not wrap");
    }

    #[test]
    fn unlimited_and_exempt_processes_pass() {
        Memlock { limit_bytes: None, locked_bytes: 0, exempt: false }.check(u64::MAX).unwrap();
        let exempt = Memlock { limit_bytes: Some(0), locked_bytes: 0, exempt: true };
        exempt.check(1 << 40).unwrap();
        // A container's CAP_IPC_LOCK may not count: then the kernel's refusal is explained all the same.
        assert!(exempt.refused(1 << 40).is_some());
    }

    #[test]
    fn the_kernels_words_are_understood() {
        let process = "VmPin:\t     128 kB\nCapEff:\t0000000000004000\n";
        assert_eq!((locked_bytes(process), exempt(process)), (131_072, true));
        assert_eq!((locked_bytes(""), exempt("CapEff:\t000001ffffffbfff\n")), (0, false));
    }
}
