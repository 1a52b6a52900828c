//! The conformance suite on the `shm` fabric. It says nothing of a card's atomics or ordering.

use sidestep_tests::conformance::ShmBed;

sidestep_tests::conformance_tests!(ShmBed::start);
