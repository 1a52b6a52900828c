//! What the fuzz targets do with their bytes.
//!
//! Always true: a body takes any bytes, ends within a bound, and panics only if a promise of the product is broken. It
//! keeps nothing from one run to the next, so an input that fails fails again.
//!
//! The fuzzer is in `tests/fuzz`, a workspace of its own, since it needs another compiler; its targets only call what
//! is here. The inputs worth keeping are in `tests/fuzz/corpus`, and an ordinary test repeats them.
//!
//! | target | what is hostile | what must hold |
//! | --- | --- | --- |
//! | [`control_request`] | a client on the control channel | one response a request, the server's books stay right |
//! | [`control_response`] | a server on the control channel | errors with a type; block memory only from the pool |
//! | [`tcp_request_frame`] | a client on the data path | replies and memory are those of a simple model, however the stream is cut |
//! | [`tcp_response_frame`] | a memory node on the data path | completions are those of a simple model |
//! | [`superblock`] | the region's first bytes | what parses is whole, and encodes to the same |
//! | [`handshake`] | either side, while a data path is joined | an answer or an error; what is mapped can be used |
//! | [`bucket_and_block`] | the bytes of index and blocks | no panic; what is valid encodes to the same |
//! | [`joining`] | superblock and directory, then the whole region | verbs stay in the region; a value, a miss or an error |
//! | [`fsck`] | the region and its dump, under a look | a report or an error with a type; READs stay in the region |
//! | [`hostile_region`] | the region, between any two verbs | verbs keep to what was granted and have a bound |

pub mod bucket_and_block;
pub mod control_request;
pub mod control_response;
pub mod fsck;
pub mod handshake;
pub mod hostile_region;
pub mod joining;
mod local_memory;
mod pieces;
pub mod superblock;
pub mod tcp_request_frame;
pub mod tcp_response_frame;
mod versions;

/// A fuzz target.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// Its name, as its corpus and its program are called.
    pub name: &'static str,
    /// What it does with an input.
    pub run: fn(&[u8]),
}

/// All of them.
pub const TARGETS: [Target; 10] = [
    Target { name: "bucket_and_block", run: bucket_and_block::run },
    Target { name: "control_request", run: control_request::run },
    Target { name: "control_response", run: control_response::run },
    Target { name: "fsck", run: fsck::run },
    Target { name: "handshake", run: handshake::run },
    Target { name: "hostile_region", run: hostile_region::run },
    Target { name: "joining", run: joining::run },
    Target { name: "superblock", run: superblock::run },
    Target { name: "tcp_request_frame", run: tcp_request_frame::run },
    Target { name: "tcp_response_frame", run: tcp_response_frame::run },
];

/// Does once what Rust's own `main` does and the fuzzer's doesn't: whoever writes to a socket whose other end is closed
/// gets an error, not a signal.
pub fn prepare() {
    // SAFETY: the handler is one of the system's own.
    let before = unsafe { libc::signal(libc::SIGPIPE, libc::SIG_IGN) };
    assert_ne!(before, libc::SIG_ERR, "SIGPIPE can be ignored");
}

/// Makes a target's input out of the fuzzer's bytes; none if they are too few.
fn input<'a, T: arbitrary::Arbitrary<'a>>(bytes: &'a [u8]) -> Option<T> {
    T::arbitrary_take_rest(arbitrary::Unstructured::new(bytes)).ok()
}
