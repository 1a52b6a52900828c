//! A harness for tests that need an RDMA card.
//!
//! Always true: a test that did not run is never counted as passed. Where there is no card, each is listed as ignored,
//! and a line `SKIP: reason` says why.
//!
//! The card is the one with the address in `SIDESTEP_RDMA_ADDR`; the Soft-RoCE machine under `tests/softroce` sets it.

use std::net::IpAddr;
use std::process::ExitCode;

use libtest_mimic::{Arguments, Trial, run};
use sidestep_common::fabric::verbs::device::{self, DeviceInfo};

/// A test by name. It gets the card's address, and panics if it fails.
pub struct CardTest {
    name: String,
    run: Box<dyn FnOnce(IpAddr) + Send>,
    ignored: Option<&'static str>,
}

impl CardTest {
    /// A test.
    pub fn new(name: impl Into<String>, run: impl FnOnce(IpAddr) + Send + 'static) -> Self {
        Self { name: name.into(), run: Box::new(run), ignored: None }
    }

    /// The same, not to be run here, for that reason.
    pub fn ignored(self, reason: &'static str) -> Self {
        Self { ignored: Some(reason), ..self }
    }
}

/// Runs the tests as the built-in harness would; the process's `main`.
pub fn main(tests: Vec<CardTest>) -> ExitCode {
    let mut arguments = Arguments::from_args();
    // One at a time: cases look at the one card's counts, and an emulated processor is slow enough so.
    arguments.test_threads.get_or_insert(1);
    // A test that lacks its card or its bed has nothing to run, even if asked to.
    arguments.ignored = false;
    arguments.include_ignored = false;
    let card = find_card();
    let skip = |reason: &str| {
        if !arguments.list {
            println!("SKIP: {reason}");
        }
    };
    if let Err(reason) = &card {
        skip(reason);
    }
    let trial = |test: CardTest| match (&card, test.ignored) {
        (Ok(address), None) => {
            let (address, run) = (*address, test.run);
            Trial::test(test.name, move || {
                run(address);
                Ok(())
            })
        }
        (card, reason) => {
            if let (Ok(_), Some(reason)) = (card, reason) {
                skip(&format!("{}: {reason}", test.name));
            }
            Trial::test(test.name, || Ok(())).with_ignored_flag(true)
        }
    };
    let trials = tests.into_iter().map(trial).collect();
    run(&arguments, trials).exit_code()
}

fn find_card() -> Result<IpAddr, String> {
    let Ok(address) = std::env::var("SIDESTEP_RDMA_ADDR") else {
        return Err("no RDMA card: SIDESTEP_RDMA_ADDR is not set; tests/softroce/vm has a machine with one"
            .to_owned());
    };
    let address: IpAddr =
        address.parse().map_err(|_| format!("SIDESTEP_RDMA_ADDR={address} is no IP address"))?;
    let devices = device::list().map_err(|error| error.to_string())?;
    if devices.is_empty() { Err("this host has no RDMA device".to_owned()) } else { Ok(address) }
}

/// The devices as tests want them: there is at least one.
pub fn devices() -> Vec<DeviceInfo> {
    device::list().expect("the devices' list")
}
