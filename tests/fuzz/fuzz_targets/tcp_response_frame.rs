//! See `sidestep_tests::fuzzing::tcp_response_frame`.
#![no_main]

use libfuzzer_sys::fuzz_target;
use sidestep_tests::fuzzing::{prepare, tcp_response_frame};

fuzz_target!(init: prepare(), |bytes: &[u8]| tcp_response_frame::run(bytes));
