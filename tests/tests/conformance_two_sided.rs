//! The conformance suite on the `verbs` fabric with two-sided commits: CAS and FAA are messages that the memory node's CPU
//! executes, as for cards without remote atomics. Says nothing of a card that really has none.

use std::process::ExitCode;

use sidestep_tests::card::{self, CardTest};
use sidestep_tests::conformance::{Bed, NamedCase, VerbsBed};

fn main() -> ExitCode {
    let cases: Vec<NamedCase> = sidestep_tests::conformance_list!();
    let tests = cases.into_iter().map(|(name, case)| {
        CardTest::new(name, move |address| {
            let bed = VerbsBed::start_two_sided(address);
            case(&bed);
            assert_ne!(bed.outside_untouched(), Some(false), "memory beside the region");
        })
    });
    card::main(tests.collect())
}
