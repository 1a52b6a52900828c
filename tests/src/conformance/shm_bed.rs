//! The bed of the `shm` fabric: a memory node that hands out its region at a Unix socket of its own.

use std::io::Read;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread::JoinHandle;

use sidestep_common::fabric::shm::ShmTarget;
use sidestep_common::wire::Preamble;

use super::{TargetBed, conformance_mapping};

/// Makes beds of the `shm` fabric.
pub struct ShmBed;

impl ShmBed {
    /// Starts a memory node in this process.
    pub fn start() -> TargetBed {
        let mapping = conformance_mapping();
        let (listener, path) = listen();
        let target = Arc::new(ShmTarget::new(Arc::clone(&mapping), path.to_str().expect("a plain path")));
        let acceptor = Acceptor::start(listener, path, Arc::clone(&target));
        TargetBed::new(target, mapping, None, Box::new(acceptor))
    }
}

fn listen() -> (UnixListener, PathBuf) {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let path = std::env::temp_dir().join(format!("sidestep-bed-{}-{number}.sock", std::process::id()));
    let _ = std::fs::remove_file(&path);
    (UnixListener::bind(&path).expect("a Unix socket in the temporary directory"), path)
}

/// Reads preambles and passes connections on, as the server does; ends when dropped.
struct Acceptor {
    path: PathBuf,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Acceptor {
    fn start(listener: UnixListener, path: PathBuf, target: Arc<ShmTarget>) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let accept = move || {
            for stream in listener.incoming() {
                if stopped.load(Ordering::Acquire) {
                    return;
                }
                let mut preamble = [0; Preamble::BYTES];
                let mut stream = stream.expect("a connection");
                if stream.read_exact(&mut preamble).is_ok() && Preamble::parse(preamble).is_ok() {
                    // A refusal is the case's business, which sees it at the other end.
                    let _ = target.attach(stream);
                }
            }
        };
        Self { path, stop, thread: Some(std::thread::spawn(accept)) }
    }
}

impl Drop for Acceptor {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        // Wakes the thread.
        let _ = UnixStream::connect(&self.path);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        let _ = std::fs::remove_file(&self.path);
    }
}
