//! The bed of the `verbs` fabric: a memory node in this process, on a real card, or on one made of software.

use std::net::IpAddr;
use std::sync::Arc;

use sidestep_common::fabric::verbs::{VerbsOptions, VerbsTarget};

use super::{TargetBed, conformance_mapping};

/// Makes beds of the `verbs` fabric.
pub struct VerbsBed;

impl VerbsBed {
    /// Starts a memory node at the card with that address, on a port that the kernel finds.
    pub fn start(address: IpAddr) -> TargetBed {
        let mapping = conformance_mapping();
        let options = VerbsOptions { address: Some(address), ..VerbsOptions::default() };
        let target = VerbsTarget::start(Arc::clone(&mapping), &options).expect("a memory node on the card");
        TargetBed::new(Arc::new(target), mapping, None, Box::new(()))
    }
}
