//! The bed of the `verbs` fabric: a memory node in this process, on a real card, or on one made of software.

use std::net::IpAddr;
use std::sync::Arc;

use sidestep_common::fabric::verbs::{CommitChoice, VerbsOptions, VerbsTarget};

use super::{TargetBed, conformance_mapping};

/// Makes beds of the `verbs` fabric.
pub struct VerbsBed;

impl VerbsBed {
    /// Starts a memory node at the card with that address, on a port that the kernel finds.
    pub fn start(address: IpAddr) -> TargetBed {
        Self::start_with(VerbsOptions { address: Some(address), ..VerbsOptions::default() })
    }

    /// The same, whose CPU executes CAS and FAA, as for a card without remote atomics.
    pub fn start_two_sided(address: IpAddr) -> TargetBed {
        let commits = CommitChoice::TwoSided;
        Self::start_with(VerbsOptions { address: Some(address), commits, ..VerbsOptions::default() })
    }

    fn start_with(options: VerbsOptions) -> TargetBed {
        let mapping = conformance_mapping();
        let target = VerbsTarget::start(Arc::clone(&mapping), &options).expect("a memory node on the card");
        TargetBed::new(Arc::new(target), mapping, None, Box::new(()))
    }
}
