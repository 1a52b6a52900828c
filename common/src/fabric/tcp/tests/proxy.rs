//! A proxy that forwards bytes in other pieces than they came.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

/// How bytes are forwarded.
#[derive(Clone, Copy, Debug)]
pub(super) enum Pieces {
    /// So many a segment.
    Of(usize),
    /// As many as come within a while.
    Merged,
}

/// Starts a proxy to `server` for one connection; its threads end with the connection.
pub(super) fn start(server: SocketAddr, pieces: Pieces) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        let (client, _) = listener.accept().unwrap();
        let server = TcpStream::connect(server).unwrap();
        for (from, to) in [(&client, &server), (&server, &client)] {
            let (from, to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
            to.set_nodelay(true).unwrap();
            std::thread::spawn(move || forward(from, to, pieces));
        }
    });
    address
}

fn forward(mut from: TcpStream, mut to: TcpStream, pieces: Pieces) {
    let mut waiting = Vec::new();
    let mut bytes = vec![0; 64 << 10];
    loop {
        let pause = if waiting.is_empty() { None } else { Some(Duration::from_millis(5)) };
        from.set_read_timeout(pause).unwrap();
        let count = match from.read(&mut bytes) {
            Ok(0) => break,
            Ok(count) => count,
            // The pause that ends a merged piece.
            Err(_) if pause.is_some() => 0,
            Err(_) => break,
        };
        waiting.extend_from_slice(&bytes[..count]);
        let size = match pieces {
            Pieces::Of(size) => size,
            Pieces::Merged if count > 0 && waiting.len() < 1 << 20 => continue,
            Pieces::Merged => waiting.len(),
        };
        for piece in waiting.chunks(size) {
            if to.write_all(piece).is_err() {
                return;
            }
        }
        waiting.clear();
    }
    let _ = to.write_all(&waiting);
    let _ = to.shutdown(std::net::Shutdown::Write);
}
