//! A region's memory in a file of a memory file system, where it outlives the process.
//!
//! Always true: a directory is used by one server at a time, which holds a lock on it until it ends, however it ends; a file
//! under the region's own name was a whole region when it got that name. What a crash left unfinished has another name, and
//! is removed by the next start.
//!
//! The file lives as long as the host does: nothing of it is on a disk.

use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, FlockOperation, Mode, OFlags};
use rustix::io::Errno;

/// The region's name in its directory.
const NAME: &str = "region";
/// Its name until it is one.
const UNFINISHED: &str = "region.unfinished";
/// Whoever has the region has a lock on this.
const LOCK: &str = "lock";
/// From Linux's `magic.h`.
const TMPFS_MAGIC: u64 = 0x0102_1994;
const HUGETLBFS_MAGIC: u64 = 0x9584_58f6;

/// A region's file can't be had.
#[derive(Debug, thiserror::Error)]
pub enum KeepError {
    /// The directory isn't there, or can't be used.
    #[error("cannot {doing} {path}: {source}", path = .path.display())]
    System {
        /// What was tried.
        doing: &'static str,
        /// With what.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// The directory is on a disk, or something else that isn't memory.
    #[error(
        "{path} is on a file system of type {found:#x}; a region must be in memory: want tmpfs or hugetlbfs (/dev/shm is one)",
        path = .path.display()
    )]
    NotMemory {
        /// The directory.
        path: PathBuf,
        /// The type, as `statfs` has it.
        found: u64,
    },
    /// Another server has it.
    #[error("{path} is in use by another kvserver", path = .path.display())]
    InUse {
        /// The directory.
        path: PathBuf,
    },
    /// Somebody else could read or change the file.
    #[error("{path} belongs to user {owner} with mode {mode:o}; a region's file must belong to the server's user {user}, and to nobody else's use (mode 600)", path = .path.display())]
    Foreign {
        /// The file.
        path: PathBuf,
        /// Whose it is.
        owner: u32,
        /// Its permissions.
        mode: u32,
        /// Whose it should be.
        user: u32,
    },
}

/// A directory with a region, locked.
#[derive(Debug)]
pub struct KeptDirectory {
    path: PathBuf,
    directory: OwnedFd,
    /// Nobody else can open it, so nobody else can hold the lock.
    _lock: OwnedFd,
    page_bytes: u64,
}

impl KeptDirectory {
    /// Locks `path`, which must be a directory of tmpfs or hugetlbfs.
    ///
    /// # Errors
    /// [`KeepError`]; nothing was changed.
    pub fn lock(path: &Path) -> Result<Self, KeepError> {
        let system = |doing| move |errno: Errno| system(doing, path, errno);
        let directory = rustix::fs::open(path, OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
            .map_err(system("open the directory"))?;
        let status = rustix::fs::fstatfs(&directory).map_err(system("look at the file system of"))?;
        let found = status.f_type as u64 & 0xffff_ffff;
        if found != TMPFS_MAGIC && found != HUGETLBFS_MAGIC {
            return Err(KeepError::NotMemory { path: path.to_owned(), found });
        }
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let lock = rustix::fs::openat(&directory, LOCK, flags, Mode::RUSR | Mode::WUSR)
            .map_err(system("open the lock in"))?;
        match rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => return Err(KeepError::InUse { path: path.to_owned() }),
            Err(errno) => return Err(system("lock")(errno)),
        }
        let page_bytes = status.f_bsize as u64;
        Ok(Self { path: path.to_owned(), directory, _lock: lock, page_bytes })
    }

    /// Bytes of a page there; the file's length is a multiple.
    pub const fn page_bytes(&self) -> u64 {
        self.page_bytes
    }

    /// Where the region is, or will be.
    pub fn file_path(&self) -> PathBuf {
        self.path.join(NAME)
    }

    /// The region that is there, with its length; `None` if there is none.
    ///
    /// # Errors
    /// [`KeepError`] if there is one that can't be used.
    pub fn existing(&self) -> Result<Option<(OwnedFd, u64)>, KeepError> {
        let path = self.file_path();
        let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let file = match rustix::fs::openat(&self.directory, NAME, flags, Mode::empty()) {
            Ok(file) => file,
            Err(Errno::NOENT) => return Ok(None),
            Err(errno) => return Err(system("open", &path, errno)),
        };
        let status = rustix::fs::fstat(&file).map_err(|errno| system("look at", &path, errno))?;
        let (owner, mode) = (status.st_uid, status.st_mode & 0o7777);
        let user = rustix::process::geteuid().as_raw();
        if owner != user || mode & 0o077 != 0 {
            return Err(KeepError::Foreign { path, owner, mode, user });
        }
        Ok(Some((file, u64::try_from(status.st_size).unwrap_or(0))))
    }

    /// A new file of that length, not yet under the region's name. An unfinished one of before is removed.
    ///
    /// # Errors
    /// [`KeepError`].
    pub fn create(&self, bytes: u64) -> Result<OwnedFd, KeepError> {
        let path = self.path.join(UNFINISHED);
        match rustix::fs::unlinkat(&self.directory, UNFINISHED, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(errno) => return Err(system("remove the unfinished", &path, errno)),
        }
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let file = rustix::fs::openat(&self.directory, UNFINISHED, flags, Mode::RUSR | Mode::WUSR)
            .map_err(|errno| system("make", &path, errno))?;
        rustix::fs::ftruncate(&file, bytes).map_err(|errno| {
            // An empty file is of no use to anybody.
            let _ = rustix::fs::unlinkat(&self.directory, UNFINISHED, AtFlags::empty());
            system("give its length to", &path, errno)
        })?;
        Ok(file)
    }

    /// Removes a file that was made and is no region.
    pub fn abandon(&self) {
        // What can't be removed is at the next start.
        let _ = rustix::fs::unlinkat(&self.directory, UNFINISHED, AtFlags::empty());
    }

    /// The file that was made is a whole region: it gets its name.
    ///
    /// # Errors
    /// [`KeepError`].
    pub fn finish(&self) -> Result<(), KeepError> {
        rustix::fs::renameat(&self.directory, UNFINISHED, &self.directory, NAME)
            .map_err(|errno| system("give its name to", &self.file_path(), errno))
    }
}

fn system(doing: &'static str, path: &Path, errno: Errno) -> KeepError {
    KeepError::System { doing, path: path.to_owned(), source: errno.into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A directory in memory that goes with the test.
    struct Scratch(PathBuf);

    impl Scratch {
        fn new(name: &str) -> Self {
            let path = PathBuf::from(format!("/dev/shm/sidestep-kept-{name}-{}", std::process::id()));
            std::fs::create_dir(&path).unwrap();
            Self(path)
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn a_region_has_its_name_when_it_is_whole() {
        let scratch = Scratch::new("name");
        let directory = KeptDirectory::lock(&scratch.0).unwrap();
        assert!(directory.existing().unwrap().is_none());
        drop(directory.create(8192).unwrap());
        assert!(directory.existing().unwrap().is_none(), "it isn't whole yet");
        drop(directory.create(4096).unwrap());
        directory.finish().unwrap();
        assert_eq!(directory.existing().unwrap().unwrap().1, 4096);
    }

    #[test]
    fn one_server_at_a_time_has_a_directory() {
        let scratch = Scratch::new("lock");
        let first = KeptDirectory::lock(&scratch.0).unwrap();
        let error = KeptDirectory::lock(&scratch.0).unwrap_err();
        assert!(matches!(error, KeepError::InUse { .. }), "{error}");
        drop(first);
        KeptDirectory::lock(&scratch.0).unwrap();
    }

    #[test]
    fn what_is_no_memory_or_somebody_elses_is_refused() {
        let error = KeptDirectory::lock(Path::new("/proc/self")).unwrap_err();
        assert!(error.to_string().contains("tmpfs"), "{error}");
        let error = KeptDirectory::lock(Path::new("/dev/shm/not-there-at-all")).unwrap_err();
        assert!(error.to_string().contains("not-there-at-all"), "{error}");
        let scratch = Scratch::new("mode");
        let directory = KeptDirectory::lock(&scratch.0).unwrap();
        let file = directory.create(4096).unwrap();
        directory.finish().unwrap();
        rustix::fs::fchmod(&file, Mode::from_raw_mode(0o644)).unwrap();
        let error = directory.existing().unwrap_err();
        assert!(error.to_string().contains("644"), "{error}");
        std::fs::remove_file(directory.file_path()).unwrap();
        std::os::unix::fs::symlink("/etc/hostname", directory.file_path()).unwrap();
        assert!(directory.existing().is_err(), "a link leads anywhere");
    }
}
