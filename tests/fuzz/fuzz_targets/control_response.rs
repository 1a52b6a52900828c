//! See `sidestep_tests::fuzzing::control_response`.
#![no_main]

use libfuzzer_sys::fuzz_target;
use sidestep_tests::fuzzing::{control_response, prepare};

fuzz_target!(init: prepare(), |bytes: &[u8]| control_response::run(bytes));
