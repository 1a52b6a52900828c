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

/// A test: gets the card's address, panics if it fails.
pub type CardTest = Box<dyn FnOnce(IpAddr) + Send>;

/// Runs the tests as the built-in harness would; the process's `main`.
pub fn main(tests: Vec<(String, CardTest)>) -> ExitCode {
    let card = find_card();
    if let Err(reason) = &card {
        println!("SKIP: {reason}");
    }
    let mut arguments = Arguments::from_args();
    if arguments.test_threads.is_none() {
        // Cases look at the one card's counts, and an emulated processor is slow enough with one at a time.
        arguments.test_threads = Some(1);
    }
    let trials = tests.into_iter().map(|(name, test)| match &card {
        Ok(address) => {
            let address = *address;
            Trial::test(name, move || {
                test(address);
                Ok(())
            })
        }
        Err(_) => Trial::test(name, || Ok(())).with_ignored_flag(true),
    });
    let trials: Vec<Trial> = trials.collect();
    if card.is_err() {
        // Asked to run even what is ignored, a test without its card has nothing to run.
        arguments.ignored = false;
        arguments.include_ignored = false;
    }
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
