//! What only `verbs` has: devices, choices, negotiation, connections that are refused or half open.

use std::net::IpAddr;
use std::process::ExitCode;
use std::time::Instant;

use sidestep_common::fabric::DeviceChoice;
use sidestep_common::fabric::verbs::loopback_check;
use sidestep_tests::card::{self, CardTest};

fn main() -> ExitCode {
    let tests: Vec<(&str, fn(IpAddr))> =
        vec![("the_card_passes_its_own_check", the_card_passes_its_own_check)];
    card::main(tests.into_iter().map(|(name, test)| (name.to_owned(), Box::new(test) as CardTest)).collect())
}

/// The card connected to itself answers a CAS that loses, one that wins, FAAs and a READ as it must.
fn the_card_passes_its_own_check(_: IpAddr) {
    let start = Instant::now();
    let report = loopback_check(&DeviceChoice::default()).expect("a card that works");
    println!("{report:?} in {:?}", start.elapsed());
}
