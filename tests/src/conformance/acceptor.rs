//! Takes connections for a bed, as the server does for its fabrics.
//!
//! Always true: a connection is passed on only behind a preamble that parses; the thread ends when this is dropped.

use std::io::Read;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use sidestep_common::wire::Preamble;

/// A thread that reads preambles and passes connections on.
pub(super) struct Acceptor {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
    wake: Box<dyn Fn() + Send + Sync>,
}

impl Acceptor {
    /// Passes what `accept` brings on to `attach`. `wake` makes a waiting `accept` return.
    pub(super) fn start<S: Read>(
        mut accept: impl FnMut() -> S + Send + 'static,
        attach: impl Fn(S) + Send + 'static,
        wake: impl Fn() + Send + Sync + 'static,
    ) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let run = move || {
            loop {
                let mut stream = accept();
                if stopped.load(Ordering::Acquire) {
                    return;
                }
                let mut preamble = [0; Preamble::BYTES];
                if stream.read_exact(&mut preamble).is_ok() && Preamble::parse(preamble).is_ok() {
                    attach(stream);
                }
            }
        };
        Self { stop, thread: Some(std::thread::spawn(run)), wake: Box::new(wake) }
    }
}

impl Drop for Acceptor {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        (self.wake)();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
