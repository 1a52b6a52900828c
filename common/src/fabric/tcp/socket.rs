//! What both sides ask of a socket beyond the standard library's reach.

use std::io::{self, IoSlice};
use std::net::TcpStream;
use std::os::fd::AsFd;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::net::{SendAncillaryBuffer, SendFlags, sockopt};

/// A peer whose host doesn't acknowledge for so long is lost. Shorter than the time in which an operator would
/// look, longer than a switch takes to find another way.
const PEER_TIMEOUT_MS: u32 = 10_000;
/// An idle connection asks its peer after so long, and then as often again.
const KEEPALIVE: Duration = Duration::from_secs(4);

/// Sends small frames at once, and notices a peer that is gone: also one that is idle, or that never reads.
pub(super) fn set_options(socket: impl AsFd) -> io::Result<()> {
    let socket = socket.as_fd();
    sockopt::set_tcp_nodelay(socket, true)?;
    sockopt::set_socket_keepalive(socket, true)?;
    sockopt::set_tcp_keepidle(socket, KEEPALIVE)?;
    sockopt::set_tcp_keepintvl(socket, KEEPALIVE)?;
    sockopt::set_tcp_user_timeout(socket, PEER_TIMEOUT_MS)?;
    Ok(())
}

/// Sends from several places with one call; never a signal if the peer is gone.
pub(super) fn send_gathered(stream: &TcpStream, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
    let mut no_control = SendAncillaryBuffer::default();
    Ok(rustix::net::sendmsg(stream, pieces, &mut no_control, SendFlags::NOSIGNAL)?)
}

/// Waits until there is something to read (or to be told of), or room to send if `writable` is wanted, or
/// `timeout` passes. A signal ends it early.
pub(super) fn wait(stream: &TcpStream, writable: bool, timeout: Duration) {
    let mut wanted = PollFlags::IN;
    wanted.set(PollFlags::OUT, writable);
    // Longer than the kernel can count is for ever.
    let limit = Timespec::try_from(timeout).ok();
    // Whatever goes wrong, the caller polls next and finds out.
    let _ = rustix::event::poll(&mut [PollFd::new(stream, wanted)], limit.as_ref());
}
