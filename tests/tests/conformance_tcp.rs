//! The conformance suite on the `tcp` fabric, over the loopback interface. It says nothing of a card's atomics or
//! ordering.

use sidestep_tests::conformance::TcpBed;

sidestep_tests::conformance_tests!(TcpBed::start);
