//! Frames of a control connection, without a thread for each.
//!
//! Always true: a frame's length is checked before room is made for it, and room grows only as bytes arrive;
//! [`Frames::next`] may be dropped at any await and loses nothing.

use std::io;

use serde::{Serialize, de::DeserializeOwned};
use sidestep_common::wire::{FRAME_BYTES_MAX, WireError, decode, encode};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

const LENGTH_BYTES: usize = 4;
/// Bytes read at once; control messages are far smaller.
const READ_BYTES: usize = 4096;

/// A control connection that was greeted.
#[derive(Debug)]
pub(super) struct Frames<S> {
    stream: S,
    /// Bytes that arrived and are not yet a whole frame, or frames behind the one that was returned.
    arrived: Vec<u8>,
}

impl<S: AsyncRead + AsyncWrite + Unpin> Frames<S> {
    /// Frames over `stream`.
    pub(super) fn new(stream: S) -> Self {
        Self { stream, arrived: Vec::new() }
    }

    /// The next message; `None` if the peer closed the connection between two.
    pub(super) async fn next<T: DeserializeOwned>(&mut self) -> Result<Option<T>, WireError> {
        loop {
            if let Some(message) = self.take()? {
                return Ok(Some(message));
            }
            self.arrived.reserve(READ_BYTES);
            if self.stream.read_buf(&mut self.arrived).await? == 0 {
                if self.arrived.is_empty() {
                    return Ok(None);
                }
                return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
            }
        }
    }

    /// Takes a whole frame out of what arrived, if there is one.
    fn take<T: DeserializeOwned>(&mut self) -> Result<Option<T>, WireError> {
        let Some(length) = self.arrived.first_chunk::<LENGTH_BYTES>() else { return Ok(None) };
        let bytes = u32::from_le_bytes(*length) as usize;
        if bytes == 0 || bytes > FRAME_BYTES_MAX {
            return Err(WireError::FrameLength { bytes });
        }
        let Some(frame) = self.arrived.get(LENGTH_BYTES..LENGTH_BYTES + bytes) else { return Ok(None) };
        let message = decode(frame)?;
        self.arrived.drain(..LENGTH_BYTES + bytes);
        Ok(Some(message))
    }

    /// Sends a message.
    pub(super) async fn send<T: Serialize>(&mut self, message: &T) -> Result<(), WireError> {
        let message = encode(message)?;
        let mut frame = Vec::with_capacity(LENGTH_BYTES + message.len());
        frame.extend_from_slice(&(message.len() as u32).to_le_bytes());
        frame.extend_from_slice(&message);
        self.stream.write_all(&frame).await?;
        Ok(())
    }

    /// The connection again, for an orderly end.
    pub(super) fn into_stream(self) -> S {
        self.stream
    }
}

#[cfg(test)]
mod tests {
    use sidestep_common::wire::{Request, write_frame};

    use super::*;

    fn runtime() -> tokio::runtime::Runtime {
        tokio::runtime::Builder::new_current_thread().build().unwrap()
    }

    /// One byte at a time, ten frames at once: the same messages.
    #[test]
    fn frames_survive_any_cut() {
        let messages = [
            Request::Heartbeat { epoch: 5, wants_epoch: false },
            Request::Statistics,
            Request::ReturnChunks(Vec::new()),
            Request::Goodbye,
        ];
        let mut bytes = Vec::new();
        for message in &messages {
            write_frame(&mut bytes, message).unwrap();
        }
        for cut in 1..=bytes.len() {
            runtime().block_on(async {
                let (mut client, server) = tokio::io::duplex(cut);
                let writer = async {
                    client.write_all(&bytes).await.unwrap();
                    drop(client);
                };
                let reader = async {
                    let mut frames = Frames::new(server);
                    for message in &messages {
                        assert_eq!(frames.next::<Request>().await.unwrap().as_ref(), Some(message));
                    }
                    assert_eq!(frames.next::<Request>().await.unwrap(), None);
                };
                tokio::join!(writer, reader);
            });
        }
    }

    /// The connection ends after each byte of a frame: an error, except between two frames.
    #[test]
    fn a_cut_frame_is_an_error() {
        let mut bytes = Vec::new();
        write_frame(&mut bytes, &Request::Heartbeat { epoch: 1 << 40, wants_epoch: true }).unwrap();
        for length in 1..bytes.len() {
            runtime().block_on(async {
                let (mut client, server) = tokio::io::duplex(64);
                client.write_all(&bytes[..length]).await.unwrap();
                drop(client);
                assert!(Frames::new(server).next::<Request>().await.is_err(), "{length}");
            });
        }
    }

    #[test]
    fn what_announces_too_much_gets_no_room() {
        for length in [0, FRAME_BYTES_MAX as u32 + 1, 1 << 31, u32::MAX] {
            runtime().block_on(async {
                let (mut client, server) = tokio::io::duplex(64);
                client.write_all(&length.to_le_bytes()).await.unwrap();
                let mut frames = Frames::new(server);
                let result = frames.next::<Request>().await;
                assert!(matches!(result, Err(WireError::FrameLength { .. })), "{length}: {result:?}");
                assert!(frames.arrived.capacity() <= 2 * READ_BYTES);
            });
        }
    }
}
