//! The conformance suite on the `sim` fabric: it shows that the simulator keeps the contract that operations are proven
//! against.

use sidestep_tests::conformance::SimBed;

sidestep_tests::conformance_tests!(SimBed::start);
