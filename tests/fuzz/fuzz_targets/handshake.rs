//! See `sidestep_tests::fuzzing::handshake`.
#![no_main]

use libfuzzer_sys::fuzz_target;
use sidestep_tests::fuzzing::{handshake, prepare};

fuzz_target!(init: prepare(), |bytes: &[u8]| handshake::run(bytes));
