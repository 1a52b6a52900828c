//! See `sidestep_tests::fuzzing::joining`.
#![no_main]

use libfuzzer_sys::fuzz_target;
use sidestep_tests::fuzzing::{joining, prepare};

fuzz_target!(init: prepare(), |bytes: &[u8]| joining::run(bytes));
