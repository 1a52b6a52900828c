//! The bed of the `shm` fabric: a memory node that hands out its region at a Unix socket of its own.

use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use sidestep_common::fabric::shm::ShmTarget;

use super::acceptor::Acceptor;
use super::{TargetBed, conformance_mapping};

/// Makes beds of the `shm` fabric.
pub struct ShmBed;

impl ShmBed {
    /// Starts a memory node in this process.
    pub fn start() -> TargetBed {
        let mapping = conformance_mapping();
        let (listener, path) = listen();
        let target = Arc::new(ShmTarget::new(Arc::clone(&mapping), path.to_str().expect("a plain path")));
        let attached = Arc::clone(&target);
        let acceptor = Acceptor::start(
            move || listener.accept().expect("a connection").0,
            // A refusal is the case's business, which sees it at the other end.
            move |stream| drop(attached.attach(stream)),
            move || {
                let _ = UnixStream::connect(&path);
                let _ = std::fs::remove_file(&path);
            },
        );
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
