//! See `sidestep_tests::fuzzing::tcp_request_frame`.
#![no_main]

use libfuzzer_sys::fuzz_target;
use sidestep_tests::fuzzing::{prepare, tcp_request_frame};

fuzz_target!(init: prepare(), |bytes: &[u8]| tcp_request_frame::run(bytes));
