//! The few system calls that the standard library has no safe form of.
//!
//! Always true: descriptors are borrowed from the stream for the length of the call, and every pointer given to
//! the kernel is into a slice or value that outlives the call.

use std::io::{self, IoSlice};
use std::net::TcpStream;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::Duration;

/// A peer whose host doesn't acknowledge for so long is lost. Shorter than the time in which an operator would
/// look, longer than a switch takes to find another way.
pub(super) const PEER_TIMEOUT_MS: u32 = 10_000;
/// An idle connection asks its peer after so long, and then as often again.
const KEEPALIVE_SECONDS: u32 = 4;

/// Sends small frames at once, and notices a peer that is gone: also one that is idle, or that never reads.
pub(super) fn set_options(socket: BorrowedFd<'_>) -> io::Result<()> {
    set_option(socket, libc::IPPROTO_TCP, libc::TCP_NODELAY, 1)?;
    set_option(socket, libc::SOL_SOCKET, libc::SO_KEEPALIVE, 1)?;
    set_option(socket, libc::IPPROTO_TCP, libc::TCP_KEEPIDLE, KEEPALIVE_SECONDS)?;
    set_option(socket, libc::IPPROTO_TCP, libc::TCP_KEEPINTVL, KEEPALIVE_SECONDS)?;
    set_option(socket, libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT, PEER_TIMEOUT_MS)
}

fn set_option(socket: BorrowedFd<'_>, level: i32, name: i32, value: u32) -> io::Result<()> {
    let bytes = size_of::<u32>() as libc::socklen_t;
    // SAFETY: `value` is a C int of that size, alive during the call.
    let result =
        unsafe { libc::setsockopt(socket.as_raw_fd(), level, name, (&raw const value).cast(), bytes) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Sends from several places with one call; never a signal if the peer is gone.
pub(super) fn send_gathered(stream: &TcpStream, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
    // SAFETY: all zero is a valid message header: no name, no pieces, no control data.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    // `IoSlice` is documented to have the layout of `iovec`; the kernel only reads through it.
    message.msg_iov = pieces.as_ptr().cast_mut().cast();
    message.msg_iovlen = pieces.len();
    // SAFETY: the header points at `pieces`, which live as long as the call.
    let sent = unsafe { libc::sendmsg(stream.as_raw_fd(), &raw const message, libc::MSG_NOSIGNAL) };
    usize::try_from(sent).map_err(|_| io::Error::last_os_error())
}

/// Waits until there is something to read (or to be told of), or room to send if `writable` is wanted, or
/// `timeout` passes. A signal ends it early.
pub(super) fn wait(stream: &TcpStream, writable: bool, timeout: Duration) {
    let events = libc::POLLIN | if writable { libc::POLLOUT } else { 0 };
    let mut watched = libc::pollfd { fd: stream.as_raw_fd(), events, revents: 0 };
    let seconds = i64::try_from(timeout.as_secs()).unwrap_or(i64::MAX);
    let limit = libc::timespec { tv_sec: seconds, tv_nsec: i64::from(timeout.subsec_nanos()) };
    // SAFETY: one descriptor and one limit, both alive during the call; no signal mask.
    unsafe { libc::ppoll(&raw mut watched, 1, &raw const limit, std::ptr::null()) };
}
