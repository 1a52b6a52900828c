//! See `sidestep_tests::fuzzing::hostile_region`.
#![no_main]

use libfuzzer_sys::fuzz_target;
use sidestep_tests::fuzzing::{hostile_region, prepare};

fuzz_target!(init: prepare(), |bytes: &[u8]| hostile_region::run(bytes));
