//! See `sidestep_tests::fuzzing::superblock`.
#![no_main]

use libfuzzer_sys::fuzz_target;
use sidestep_tests::fuzzing::{prepare, superblock};

fuzz_target!(init: prepare(), |bytes: &[u8]| superblock::run(bytes));
