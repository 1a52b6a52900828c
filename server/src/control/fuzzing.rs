//! A door for fuzz targets: a control connection over a stream that is no socket.

use std::sync::Arc;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::Semaphore;

use crate::node::{Node, Peer};

/// Holds a control connection from its first byte to its end; says why it came to nothing, if it did. A data
/// connection is dropped.
pub async fn converse<S: AsyncRead + AsyncWrite + Unpin + Send>(
    node: &Arc<Node>,
    stream: S,
    peer: Peer,
) -> Option<String> {
    let permit = Arc::new(Semaphore::new(1)).acquire_owned().await.ok()?;
    super::converse(node, stream, peer, permit).await.err().map(|error| error.to_string())
}
