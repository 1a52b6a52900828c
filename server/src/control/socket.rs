//! The Unix socket that `shm` clients reach.
//!
//! Always true: a socket that somebody listens at is never replaced; one that was left by a server that is gone
//! is. Two servers that start at once agree by a lock file beside the socket. The socket has mode 0660: the
//! server's user and group may connect, and with it write to the region.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

/// The socket can't be had.
#[derive(Debug, thiserror::Error)]
pub enum SocketError {
    /// Another server is there.
    #[error("somebody listens at {path} already", path = .path.display())]
    InUse {
        /// Where.
        path: PathBuf,
    },
    /// A file that is no socket.
    #[error("{path} is there and is no socket; it is left alone", path = .path.display())]
    NotASocket {
        /// Where.
        path: PathBuf,
    },
    /// The operating system said no.
    #[error("cannot {doing} {path}: {source}", path = .path.display())]
    System {
        /// What was tried.
        doing: &'static str,
        /// Where.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

/// A socket in the file system; its file goes when this is dropped, unless it is another's by then.
#[derive(Debug)]
pub struct SocketFile {
    path: PathBuf,
    inode: u64,
    _lock: LockFile,
}

/// A lock file that is locked; its file goes when this is dropped, while it is still locked and so ours.
#[derive(Debug)]
struct LockFile {
    path: PathBuf,
    _locked: File,
}

impl Drop for LockFile {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

/// Where the socket is if nobody said: a directory that is the server's own, if it has one.
pub fn default_path(port: u16) -> PathBuf {
    default_path_in(port, |name| std::env::var(name).ok())
}

fn default_path_in(port: u16, variable: impl Fn(&str) -> Option<String>) -> PathBuf {
    // systemd puts several directories apart by colons.
    let runtime = variable("RUNTIME_DIRECTORY").and_then(|list| list.split(':').next().map(str::to_owned));
    let directory = [runtime, variable("XDG_RUNTIME_DIR")]
        .into_iter()
        .flatten()
        .map(PathBuf::from)
        .find(|path| path.is_absolute() && path.is_dir());
    directory.unwrap_or_else(|| PathBuf::from("/tmp")).join(format!("sidestep-{port}.sock"))
}

/// Listens at `path`.
///
/// # Errors
/// [`SocketError`]; whatever was there is left alone.
pub fn listen(path: &Path) -> Result<(UnixListener, SocketFile), SocketError> {
    let system = |doing| move |source| SocketError::System { doing, path: path.to_owned(), source };
    let lock = lock(path)?;
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(system("look at")(error)),
        Ok(found) if !found.file_type().is_socket() => {
            return Err(SocketError::NotASocket { path: path.to_owned() });
        }
        Ok(_) => match UnixStream::connect(path) {
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                fs::remove_file(path).map_err(system("remove the stale socket"))?;
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            // Full backlogs and missing permission mean that somebody is there.
            _ => return Err(SocketError::InUse { path: path.to_owned() }),
        },
    }
    let listener = UnixListener::bind(path).map_err(system("listen at"))?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o660)).map_err(system("set the mode of"))?;
    let inode = fs::symlink_metadata(path).map_err(system("look at"))?.ino();
    Ok((listener, SocketFile { path: path.to_owned(), inode, _lock: lock }))
}

/// Locks the file beside the socket. Who held the lock before may have removed the file since we opened it; then
/// our lock is on a file that nobody else will find, and the next try makes another.
fn lock(path: &Path) -> Result<LockFile, SocketError> {
    let mut lock_path = path.as_os_str().to_owned();
    lock_path.push(".lock");
    let lock_path = PathBuf::from(lock_path);
    let system = |source| SocketError::System { doing: "lock", path: lock_path.clone(), source };
    let mut options = OpenOptions::new();
    // In a directory that others write to, a link there must not lead us to somebody's file.
    options.write(true).create(true).truncate(false).mode(0o600).custom_flags(libc::O_NOFOLLOW);
    loop {
        let file = options.open(&lock_path).map_err(system)?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => return Err(SocketError::InUse { path: path.to_owned() }),
            Err(errno) => return Err(system(errno.into())),
        }
        let locked = file.metadata().map_err(system)?.ino();
        if fs::symlink_metadata(&lock_path).is_ok_and(|found| found.ino() == locked) {
            return Ok(LockFile { path: lock_path, _locked: file });
        }
    }
}

impl SocketFile {
    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if fs::symlink_metadata(&self.path).is_ok_and(|found| found.ino() == self.inode) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn directory(test: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("sidestep-socket-{}-{test}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        path
    }

    #[test]
    fn a_stale_socket_is_replaced_and_a_living_one_is_not() {
        let directory = directory("stale");
        let path = directory.join("a.sock");
        drop(UnixListener::bind(&path).unwrap());
        assert!(path.exists(), "closing leaves the file");
        let (listener, file) = listen(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o660);
        assert!(matches!(listen(&path), Err(SocketError::InUse { .. })));
        drop(listener);
        drop(file);
        assert_eq!(fs::read_dir(&directory).unwrap().count(), 0, "nothing is left");
        // Somebody without our lock file.
        let _other = UnixListener::bind(&path).unwrap();
        assert!(matches!(listen(&path), Err(SocketError::InUse { .. })));
        fs::remove_dir_all(directory).unwrap();
    }

    #[test]
    fn other_files_are_left_alone() {
        let directory = directory("file");
        let path = directory.join("precious");
        fs::write(&path, "data").unwrap();
        assert!(matches!(listen(&path), Err(SocketError::NotASocket { .. })));
        assert_eq!(fs::read_to_string(&path).unwrap(), "data");
        fs::remove_dir_all(directory).unwrap();
    }

    #[test]
    fn the_default_place() {
        let own = directory("default");
        let text = own.to_str().unwrap().to_owned();
        let both = |name: &str| match name {
            "RUNTIME_DIRECTORY" => Some(format!("{text}:/elsewhere")),
            _ => Some("/".into()),
        };
        assert_eq!(default_path_in(7, both), own.join("sidestep-7.sock"));
        assert_eq!(default_path_in(7, |_| Some("relative".into())), Path::new("/tmp/sidestep-7.sock"));
        assert_eq!(default_path_in(7480, |_| None), Path::new("/tmp/sidestep-7480.sock"));
        fs::remove_dir_all(own).unwrap();
    }
}
