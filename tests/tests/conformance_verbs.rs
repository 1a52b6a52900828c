//! The conformance suite on the `verbs` fabric: on a card, or in the Soft-RoCE machine.

use std::process::ExitCode;

use sidestep_tests::card::{self, CardTest};
use sidestep_tests::conformance::{Bed, NamedCase, VerbsBed};

fn main() -> ExitCode {
    let cases: Vec<NamedCase> = sidestep_tests::conformance_list!();
    let tests = cases.into_iter().map(|(name, case)| {
        CardTest::new(name, move |address| {
            let bed = VerbsBed::start(address);
            case(&bed);
            assert_ne!(bed.outside_untouched(), Some(false), "memory beside the region");
        })
    });
    card::main(tests.collect())
}
