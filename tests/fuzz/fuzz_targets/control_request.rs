//! See `sidestep_tests::fuzzing::control_request`.
#![no_main]

use libfuzzer_sys::fuzz_target;
use sidestep_tests::fuzzing::{control_request, prepare};

fuzz_target!(init: prepare(), |bytes: &[u8]| control_request::run(bytes));
