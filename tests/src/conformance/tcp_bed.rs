//! The bed of the `tcp` fabric: a memory node that listens on the loopback interface.

use std::io::Read;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use sidestep_common::fabric::tcp::TcpTarget;
use sidestep_common::wire::Preamble;

use super::{DEADLINE, TargetBed, conformance_mapping};

/// Makes beds of the `tcp` fabric.
pub struct TcpBed;

impl TcpBed {
    /// Starts a memory node in this process, with two threads that play the card.
    pub fn start() -> TargetBed {
        let mapping = conformance_mapping();
        let target = Arc::new(TcpTarget::start(Arc::clone(&mapping), 2).expect("threads"));
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port of the loopback interface");
        let address = listener.local_addr().expect("a bound socket");
        target.advertise(None, address.port());
        let acceptor = Acceptor::start(listener, address, Arc::clone(&target));
        TargetBed::new(target, mapping, Some(address.ip()), Box::new(acceptor))
    }
}

/// Reads preambles and passes connections on, as the server does; ends when dropped.
struct Acceptor {
    address: SocketAddr,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Acceptor {
    fn start(listener: TcpListener, address: SocketAddr, target: Arc<TcpTarget>) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let accept = move || {
            for stream in listener.incoming() {
                if stopped.load(Ordering::Acquire) {
                    return;
                }
                let mut preamble = [0; Preamble::BYTES];
                let mut stream = stream.expect("a connection");
                stream.set_read_timeout(Some(DEADLINE)).expect("a time limit");
                if stream.read_exact(&mut preamble).is_ok() && Preamble::parse(preamble).is_ok() {
                    // Fails if the client is gone already.
                    let _ = target.attach(stream);
                }
            }
        };
        Self { address, stop, thread: Some(std::thread::spawn(accept)) }
    }
}

impl Drop for Acceptor {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        // Wakes the thread.
        let _ = TcpStream::connect(self.address);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
