//! See `sidestep_tests::fuzzing::fsck`.
#![no_main]

use libfuzzer_sys::fuzz_target;
use sidestep_tests::fuzzing::{fsck, prepare};

fuzz_target!(init: prepare(), |bytes: &[u8]| fsck::run(bytes));
