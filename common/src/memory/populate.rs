//! Taking every page of a fresh mapping now, so that none is missing later.
//!
//! Always true: when [`populate`] returns `Ok`, each page of the file exists. A shortage is an error here and never a
//! SIGBUS at some later access.
//!
//! Threads take pieces off a common counter: zeroing pages is what a start costs, and it scales with cores.

use std::os::fd::{AsFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::FallocateFlags;
use rustix::io::Errno;
use rustix::mm::Advice;

/// What a thread takes at once: much longer than the work of taking it, short enough to share well. A multiple of
/// every page size but 1 GiB, which is a piece of its own.
const PIECE_BYTES: u64 = 64 << 20;

/// Takes all pages of the `bytes` mapped at `base`, which are the whole of `file`.
///
/// # Errors
/// What the system said; pages taken so far go with the file.
pub(super) fn populate(
    base: NonNull<u8>,
    bytes: u64,
    page_bytes: u64,
    threads: usize,
    file: BorrowedFd<'_>,
) -> Result<(), Errno> {
    let piece_bytes = PIECE_BYTES.max(page_bytes);
    let base = base.as_ptr().expose_provenance();
    let next = AtomicU64::new(0);
    let work = || -> Result<(), Errno> {
        loop {
            // Only hands out places; nothing else is ordered by it.
            let start = next.fetch_add(piece_bytes, Ordering::Relaxed);
            if start >= bytes {
                return Ok(());
            }
            let piece = piece_bytes.min(bytes - start);
            if let Err(errno) = take(base, start, piece, file) {
                next.store(bytes, Ordering::Relaxed);
                return Err(errno);
            }
        }
    };
    let pieces = usize::try_from(bytes.div_ceil(piece_bytes)).unwrap_or(usize::MAX);
    std::thread::scope(|scope| {
        let others: Vec<_> = (1..threads.min(pieces)).map(|_| scope.spawn(work)).collect();
        let mut result = work();
        for other in others {
            match other.join() {
                Ok(of_other) => result = result.and(of_other),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
        result
    })
}

fn take(base: usize, start: u64, bytes: u64, file: BorrowedFd<'_>) -> Result<(), Errno> {
    let address = std::ptr::with_exposed_provenance_mut(base + start as usize);
    loop {
        // SAFETY: the piece lies in the caller's mapping; populating changes no byte of it.
        match unsafe { rustix::mm::madvise(address, bytes as usize, Advice::LinuxPopulateWrite) } {
            Ok(()) => return Ok(()),
            Err(Errno::INTR | Errno::AGAIN) => {}
            // Before Linux 5.14. Allocating in the file does as well; page tables then fill by and by.
            Err(Errno::INVAL) => return allocate(file, start, bytes),
            // "Would have been a SIGBUS": there was no page to be had.
            Err(Errno::FAULT) => return Err(Errno::NOMEM),
            Err(errno) => return Err(errno),
        }
    }
}

fn allocate(file: BorrowedFd<'_>, start: u64, bytes: u64) -> Result<(), Errno> {
    loop {
        match rustix::fs::fallocate(file.as_fd(), FallocateFlags::empty(), start, bytes) {
            Err(Errno::INTR) => {}
            result => return result,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use rustix::fs::MemfdFlags;

    use super::*;

    /// The way of old kernels also takes every page.
    #[test]
    fn allocating_takes_every_page() {
        let file = rustix::fs::memfd_create("allocate", MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&file, 1 << 20).unwrap();
        assert_eq!(rustix::fs::fstat(&file).unwrap().st_blocks, 0);
        allocate(file.as_fd(), 0, 1 << 20).unwrap();
        assert_eq!(rustix::fs::fstat(&file).unwrap().st_blocks, (1 << 20) / 512);
    }
}
