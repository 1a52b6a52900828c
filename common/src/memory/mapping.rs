//! A region's memory: a sealed memory file, mapped.
//!
//! Always true:
//! - base and length are multiples of the page size, whatever was asked for;
//! - the file can neither shrink nor grow nor lose these seals, so no access to the mapping can end in SIGBUS, whoever
//!   exits, crashes or means harm;
//! - a mapping that [`Mapping::create`] made has all of its pages; if they couldn't be had, it says so and leaves
//!   nothing behind;
//! - a mapping attached [`Rights::ReadOnly`] is read-only for the processor, and [`Mapping::read_only_fd`] can't be mapped
//!   for writing: the kernel keeps such a client out, not politeness. (A client that runs as the server's own user can
//!   get around any file's rights, by attaching a debugger if need be.)
//!
//! The memory node creates, clients of the `shm` fabric attach.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;

use rustix::fs::{MemfdFlags, Mode, OFlags, SealFlags};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags};

use super::populate::populate;
use super::{Available, MemoryLimit, WordMemory};
use crate::fabric::Rights;

/// Which pages a region is made of.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum HugePages {
    /// Pages of 2 MiB if enough are free, else normal ones.
    #[default]
    Auto,
    /// Pages of 2 MiB or an error.
    Size2m,
    /// Pages of 1 GiB or an error.
    Size1g,
    /// Normal pages.
    Off,
}

/// How to make a region's memory.
#[derive(Clone, Debug)]
pub struct MappingOptions {
    /// At least this much; rounded up to whole pages.
    pub bytes: u64,
    /// Which pages.
    pub huge_pages: HugePages,
    /// Threads that fetch the pages; 0 counts as 1.
    pub threads: usize,
    /// The memory file's name, seen in `/proc/PID/maps`.
    pub name: String,
}

/// A region's memory could not be had. Nothing is left behind.
#[derive(Debug, thiserror::Error)]
pub enum MappingError {
    /// No region has this size.
    #[error("a region of {bytes} bytes is outside 1 to {limit_bytes} bytes")]
    Size {
        /// As asked.
        bytes: u64,
        /// The most that can be addressed.
        limit_bytes: u64,
    },
    /// There is less memory than was asked for. Found before any was touched.
    #[error(
        "{asked_bytes} bytes of memory asked for, {available_bytes} available; what sets the limit is {limit}"
    )]
    Shortage {
        /// As asked, in whole pages.
        asked_bytes: u64,
        /// What can be had.
        available_bytes: u64,
        /// What allows no more.
        limit: MemoryLimit,
    },
    /// There are fewer free huge pages than were asked for.
    #[error(
        "{asked_pages} huge pages of {page_bytes} bytes asked for, {free_pages} free; \
         raise /sys/kernel/mm/hugepages/hugepages-{}kB/nr_hugepages", page_bytes / 1024
    )]
    HugePages {
        /// Bytes of one.
        page_bytes: u64,
        /// How many are needed.
        asked_pages: u64,
        /// How many can be had.
        free_pages: u64,
    },
    /// Memory ran out while the pages were fetched, though there seemed to be enough.
    #[error("memory ran out while {asked_bytes} bytes were fetched: {source}")]
    RanOut {
        /// As asked, in whole pages.
        asked_bytes: u64,
        /// What the system said.
        source: io::Error,
    },
    /// What was handed over is no memory file at all.
    #[error("what was handed over is not a memory file, so not a region")]
    NotMemory,
    /// The file could still be cut short under its users.
    #[error("the memory file is not sealed against {missing}, so it is no finished region")]
    Unsealed {
        /// Seals that are missing.
        missing: String,
    },
    /// The file has another length than the region.
    #[error("the memory file has {found_bytes} bytes, the region should have {expected_bytes}")]
    Length {
        /// Of the file.
        found_bytes: u64,
        /// Of the region.
        expected_bytes: u64,
    },
    /// The operating system failed.
    #[error("cannot {doing}: {source}")]
    System {
        /// What was tried.
        doing: &'static str,
        /// The cause.
        source: io::Error,
    },
}

/// A region's memory, mapped. Unmapped when dropped.
pub struct Mapping {
    base: NonNull<u8>,
    bytes: u64,
    page_bytes: u64,
    rights: Rights,
    /// The file, and a second descriptor of it that allows reading only. A client needs neither once it has mapped, and a
    /// kept file is given to nobody.
    files: Option<(OwnedFd, OwnedFd)>,
    pages: String,
}

// SAFETY: a mapping is an address range of the process, bound to no thread; its bytes are shared as atomic words.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped in `map` with this length; whoever copied `words` keeps the mapping alive, as it promised.
        let unmapped = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.bytes as usize) };
        debug_assert!(unmapped.is_ok(), "{unmapped:?}");
    }
}

/// The longest mapping: offsets of files and pointers stay positive.
const BYTES_MAX: u64 = 1 << 46;
const PAGE_2M: u64 = 2 << 20;
const PAGE_1G: u64 = 1 << 30;
const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);

impl Mapping {
    /// Makes a region's memory, zeroed, with all pages taken.
    ///
    /// # Errors
    /// [`MappingError`]; a shortage is found before memory is touched, as far as it can be.
    pub fn create(options: &MappingOptions) -> Result<Self, MappingError> {
        if options.bytes == 0 || options.bytes > BYTES_MAX {
            return Err(MappingError::Size { bytes: options.bytes, limit_bytes: BYTES_MAX });
        }
        let normal = normal_page_bytes();
        let (page_bytes, why_normal) = match options.huge_pages {
            HugePages::Off => (normal, Some("huge pages are off".to_owned())),
            HugePages::Size2m => (PAGE_2M, None),
            HugePages::Size1g => (PAGE_1G, None),
            HugePages::Auto => match check_huge_pages(options.bytes, PAGE_2M) {
                Ok(()) => (PAGE_2M, None),
                Err(shortage) => (normal, Some(shortage.to_string())),
            },
        };
        match Self::create_with(options, page_bytes, why_normal) {
            // Somebody else took the pages meanwhile.
            Err(error) if options.huge_pages == HugePages::Auto && page_bytes == PAGE_2M => {
                Self::create_with(options, normal, Some(error.to_string()))
            }
            result => result,
        }
    }

    fn create_with(
        options: &MappingOptions,
        page_bytes: u64,
        why_normal: Option<String>,
    ) -> Result<Self, MappingError> {
        let bytes = options.bytes.next_multiple_of(page_bytes);
        check_file_size(bytes)?;
        let mut flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        if page_bytes > normal_page_bytes() {
            check_huge_pages(bytes, page_bytes)?;
            let size = if page_bytes == PAGE_1G { MemfdFlags::HUGE_1GB } else { MemfdFlags::HUGE_2MB };
            flags |= MemfdFlags::HUGETLB | size;
        } else {
            check_available(bytes, Available::now())?;
        }
        let file = make_file(&options.name, flags).map_err(system("make a memory file"))?;
        // Nobody but the owner may open it anew through /proc, so a read-only descriptor stays one.
        rustix::fs::fchmod(&file, Mode::RUSR | Mode::WUSR).map_err(system("set the memory file's mode"))?;
        rustix::fs::ftruncate(&file, bytes).map_err(system("give the memory file its length"))?;
        let read_only =
            open_read_only(&file).map_err(system("open the memory file read-only through /proc"))?;
        let (base, pages) = map(&file, bytes, Rights::ReadWrite).map_err(system("map the memory file"))?;
        let pages = match why_normal {
            Some(why) => format!("{pages} ({why})"),
            None => pages,
        };
        let files = Some((file, read_only));
        let mapping = Self { base, bytes, page_bytes, rights: Rights::ReadWrite, files, pages };
        // From here on `mapping` cleans up.
        advise_transparent(base, bytes, page_bytes);
        populate(base, bytes, page_bytes, options.threads.max(1), mapping.fd())
            .map_err(|errno| MappingError::RanOut { asked_bytes: bytes, source: errno.into() })?;
        rustix::fs::fcntl_add_seals(mapping.fd(), SEALS).map_err(system("seal the memory file"))?;
        Ok(mapping)
    }

    /// Maps a file that outlives this process, of `bytes` in whole pages of its file system, with all pages taken. It is not
    /// sealed, so it is for nobody but this process and the cards that it registers the mapping with: `shm` can't be
    /// served from it.
    ///
    /// # Errors
    /// [`MappingError`]; new pages that couldn't be had are named.
    pub fn keep(
        file: &OwnedFd,
        bytes: u64,
        page_bytes: u64,
        threads: usize,
        is_new: bool,
    ) -> Result<Self, MappingError> {
        if bytes == 0 || bytes > BYTES_MAX || !bytes.is_multiple_of(page_bytes.max(1)) {
            return Err(MappingError::Size { bytes, limit_bytes: BYTES_MAX });
        }
        if is_new {
            check_file_size(bytes)?;
            if page_bytes > normal_page_bytes() {
                check_huge_pages(bytes, page_bytes)?;
            } else {
                check_available(bytes, Available::now())?;
            }
        }
        let (base, pages) = map(file, bytes, Rights::ReadWrite).map_err(system("map the region's file"))?;
        let pages = format!("{pages}, kept in a file");
        let mapping = Self { base, bytes, page_bytes, rights: Rights::ReadWrite, files: None, pages };
        // From here on `mapping` cleans up.
        advise_transparent(base, bytes, page_bytes);
        // A file that is there has its pages, but for what a sparse one lacks; either way all are taken now.
        populate(base, bytes, page_bytes, threads.max(1), file.as_fd())
            .map_err(|errno| MappingError::RanOut { asked_bytes: bytes, source: errno.into() })?;
        Ok(mapping)
    }

    /// Maps a region's memory that another process made. `bytes` is the region's length as its superblock has it.
    ///
    /// # Errors
    /// [`MappingError`] if this is no finished region of that length.
    pub fn attach(file: OwnedFd, bytes: u64, rights: Rights) -> Result<Self, MappingError> {
        let seals = rustix::fs::fcntl_get_seals(&file).map_err(|errno| match errno {
            Errno::INVAL => MappingError::NotMemory,
            errno => system("read the memory file's seals")(errno),
        })?;
        let missing = SEALS.difference(seals);
        if !missing.is_empty() {
            let missing = missing.iter_names().map(|(name, _)| name.to_lowercase()).collect::<Vec<_>>();
            return Err(MappingError::Unsealed { missing: missing.join(", ") });
        }
        // Sealed, so the length can't change after this look.
        let status = rustix::fs::fstat(&file).map_err(system("look at the memory file"))?;
        let found_bytes = status.st_size.try_into().unwrap_or(0);
        let page_bytes: u64 = status.st_blksize.try_into().unwrap_or_else(|_| normal_page_bytes());
        if found_bytes != bytes || bytes == 0 || !bytes.is_multiple_of(normal_page_bytes()) {
            return Err(MappingError::Length { found_bytes, expected_bytes: bytes });
        }
        let (base, pages) = map(&file, bytes, rights).map_err(system(match rights {
            Rights::ReadOnly => "map the memory file for reading",
            Rights::ReadWrite => "map the memory file for writing",
        }))?;
        let mapping = Self { base, bytes, page_bytes, rights, files: None, pages };
        advise_transparent(base, bytes, page_bytes);
        // A forked child must not keep the region mapped when its parent, whom the server watches, is dead.
        // SAFETY: the range is the mapping just made; the advice changes no byte and nothing in this process.
        unsafe { rustix::mm::madvise(base.as_ptr().cast(), bytes as usize, Advice::LinuxDontFork) }
            .map_err(system("keep the mapping from child processes"))?;
        Ok(mapping)
    }

    /// The memory as words. Whoever keeps them keeps the mapping too (an `Arc` of it, beside them); writing methods
    /// may only be called if [`Mapping::rights`] allow it, else the process dies of SIGSEGV.
    pub fn words(&self) -> WordMemory {
        // SAFETY: the range is mapped until `self` is dropped, with the pages sealed in; sharers use atomic words.
        unsafe { WordMemory::new(self.base, self.bytes) }
    }

    /// Where it is mapped in this process.
    pub const fn base(&self) -> NonNull<u8> {
        self.base
    }

    /// Its length: what was asked for in whole pages.
    pub const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Bytes of one of its pages.
    pub const fn page_bytes(&self) -> u64 {
        self.page_bytes
    }

    /// What the mapping allows.
    pub const fn rights(&self) -> Rights {
        self.rights
    }

    /// The memory file, for clients that may write.
    ///
    /// # Panics
    /// On a mapping that was attached or is kept: it has no file to give.
    pub fn fd(&self) -> BorrowedFd<'_> {
        match &self.files {
            Some((file, _)) => file.as_fd(),
            None => panic!("this mapping has no file to give"),
        }
    }

    /// The memory file, for clients that may only read.
    ///
    /// # Panics
    /// As [`Mapping::fd`].
    pub fn read_only_fd(&self) -> BorrowedFd<'_> {
        match &self.files {
            Some((_, read_only)) => read_only.as_fd(),
            None => panic!("this mapping has no file to give"),
        }
    }

    /// A line for people: length, pages, and why these.
    pub fn describe(&self) -> String {
        format!("{} bytes in {}", self.bytes, self.pages)
    }
}

impl std::fmt::Debug for Mapping {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Mapping({} at {:?})", self.describe(), self.base)
    }
}

fn system(doing: &'static str) -> impl Fn(Errno) -> MappingError {
    move |errno| MappingError::System { doing, source: errno.into() }
}

fn normal_page_bytes() -> u64 {
    rustix::param::page_size() as u64
}

fn make_file(name: &str, flags: MemfdFlags) -> Result<OwnedFd, Errno> {
    // Some hosts insist on memory files that can't be executed; kernels before 6.3 don't know the flag.
    match rustix::fs::memfd_create(name, flags | MemfdFlags::NOEXEC_SEAL) {
        Err(Errno::INVAL) => rustix::fs::memfd_create(name, flags),
        result => result,
    }
}

fn open_read_only(file: &OwnedFd) -> Result<OwnedFd, Errno> {
    use std::os::fd::AsRawFd;
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
}

/// Maps the whole file; gives base and a word on its pages.
fn map(file: &OwnedFd, bytes: u64, rights: Rights) -> Result<(NonNull<u8>, String), Errno> {
    let mut protection = ProtFlags::READ;
    if rights.can_write() {
        protection |= ProtFlags::WRITE;
    }
    let length = usize::try_from(bytes).map_err(|_| Errno::NOMEM)?;
    // SAFETY: no address is asked for, so no other mapping is touched.
    let base =
        unsafe { rustix::mm::mmap(std::ptr::null_mut(), length, protection, MapFlags::SHARED, file, 0) }?;
    let Some(base) = NonNull::new(base.cast()) else { return Err(Errno::FAULT) };
    let page_bytes = rustix::fs::fstat(file).map_or(0, |status| status.st_blksize as u64);
    let pages = match page_bytes {
        PAGE_1G => "huge pages of 1 GiB".to_owned(),
        PAGE_2M => "huge pages of 2 MiB".to_owned(),
        other => format!("pages of {other} bytes"),
    };
    Ok((base, pages))
}

/// Where the kernel offers it, normal pages are joined to huge ones behind the scenes; elsewhere nothing happens.
fn advise_transparent(base: NonNull<u8>, bytes: u64, page_bytes: u64) {
    if page_bytes < PAGE_2M {
        // SAFETY: the range is a mapping of the caller's; the advice changes no byte.
        let _ = unsafe { rustix::mm::madvise(base.as_ptr().cast(), bytes as usize, Advice::LinuxHugepage) };
    }
}

fn check_available(asked_bytes: u64, available: Option<Available>) -> Result<(), MappingError> {
    match available {
        Some(Available { bytes, limit }) if bytes < asked_bytes => {
            Err(MappingError::Shortage { asked_bytes, available_bytes: bytes, limit })
        }
        _ => Ok(()),
    }
}

/// A file longer than this limit ends the process with SIGXFSZ.
fn check_file_size(asked_bytes: u64) -> Result<(), MappingError> {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Fsize).current;
    check_available(asked_bytes, limit.map(|bytes| Available { bytes, limit: MemoryLimit::FileSize }))
}

fn check_huge_pages(bytes: u64, page_bytes: u64) -> Result<(), MappingError> {
    let directory = format!("/sys/kernel/mm/hugepages/hugepages-{}kB", page_bytes / 1024);
    let count = |name: &str| -> u64 {
        let text = std::fs::read_to_string(format!("{directory}/{name}")).unwrap_or_default();
        text.trim().parse().unwrap_or(0)
    };
    let free_pages = count("free_hugepages").saturating_sub(count("resv_hugepages"));
    let asked_pages = bytes.div_ceil(page_bytes);
    if free_pages < asked_pages {
        return Err(MappingError::HugePages { page_bytes, asked_pages, free_pages });
    }
    Ok(())
}

#[cfg(test)]
mod tests;
