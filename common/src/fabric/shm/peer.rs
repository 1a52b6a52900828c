//! The process at the other end of a Unix socket.
//!
//! Always true: a [`PeerProcess`] names one process and never a later one with the same number; once
//! [`PeerProcess::is_dead`] has said yes, the process's threads run no more and its mappings are gone.

use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::PidfdFlags;

/// A handle on a process (a pidfd).
#[derive(Debug)]
pub(super) struct PeerProcess(OwnedFd);

impl PeerProcess {
    /// The process that connected `stream`. Ask while the stream is open: then it is certainly that one.
    ///
    /// # Errors
    /// If the process can't be named, such as one of a foreign name space before Linux 6.5.
    pub(super) fn of(stream: impl AsFd) -> io::Result<Self> {
        if let Some(handle) = handle_from_socket(&stream) {
            return Ok(Self(handle));
        }
        let pid = rustix::net::sockopt::socket_peercred(&stream)?.pid;
        let handle = rustix::process::pidfd_open(pid, PidfdFlags::empty())?;
        // If the peer had died and its number been given anew, its end would be closed.
        if has_event(&stream, PollFlags::HUP, Duration::ZERO)? {
            return Err(io::ErrorKind::ConnectionReset.into());
        }
        Ok(Self(handle))
    }

    /// Whether it is dead, or dies within `patience`.
    pub(super) fn is_dead(&self, patience: Duration) -> bool {
        // An error says nothing of the process, so it counts as alive.
        has_event(&self.0, PollFlags::IN, patience).unwrap_or(false)
    }
}

/// Whether any of `events` is there, or comes within `timeout`.
pub(super) fn has_event(file: impl AsFd, events: PollFlags, timeout: Duration) -> io::Result<bool> {
    let timeout = Timespec {
        tv_sec: timeout.as_secs().try_into().unwrap_or(i64::MAX),
        tv_nsec: timeout.subsec_nanos().into(),
    };
    let mut polled = [PollFd::new(&file, events)];
    match poll(&mut polled, Some(&timeout)) {
        Err(rustix::io::Errno::INTR) => Ok(false),
        Err(errno) => Err(errno.into()),
        Ok(_) => Ok(polled[0].revents().intersects(events)),
    }
}

/// Linux 6.5 and later hand out the peer itself, whatever its name space; `None` elsewhere.
fn handle_from_socket(stream: &impl AsFd) -> Option<OwnedFd> {
    let mut handle: libc::c_int = -1;
    let mut bytes = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: both pointers are to locals of the lengths given, and live through the call.
    let result = unsafe {
        libc::getsockopt(
            stream.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERPIDFD,
            (&raw mut handle).cast(),
            &raw mut bytes,
        )
    };
    if result != 0 || handle < 0 {
        return None;
    }
    // SAFETY: the kernel has just opened it for us, and nobody else knows of it.
    Some(unsafe { OwnedFd::from_raw_fd(handle) })
}
