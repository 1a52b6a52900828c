//! A door for fuzz targets: what a client makes of the answer to its ticket, on a socket that somebody else opened.

use std::os::unix::net::UnixStream;

use super::client;
use crate::fabric::{ConnectError, ConnectOptions, Ticket};
use crate::memory::Mapping;

/// Shows the ticket and maps what comes.
///
/// # Errors
/// [`ConnectError`], as joining's.
pub fn attach(
    stream: &UnixStream,
    ticket: Ticket,
    options: &ConnectOptions,
) -> Result<Mapping, ConnectError> {
    client::attach(stream, ticket, options)
}
