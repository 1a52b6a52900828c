//! See `sidestep_tests::fuzzing::bucket_and_block`.
#![no_main]

use libfuzzer_sys::fuzz_target;
use sidestep_tests::fuzzing::{bucket_and_block, prepare};

fuzz_target!(init: prepare(), |bytes: &[u8]| bucket_and_block::run(bytes));
