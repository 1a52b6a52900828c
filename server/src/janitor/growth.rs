//! The janitor's work on the index: reports of full buckets, and rebuilds.

use std::time::Instant;

use sidestep_common::wire::{BucketReport, Refusal};

use crate::node::Serving;
use crate::region::Region;

/// What is known of the index's growth.
#[derive(Debug)]
pub struct Growth {}

/// Figures of the index.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct GrowthFigures {
    /// Segments that the directory names.
    pub segments_serving: u64,
    /// Segments that were replaced and wait until nobody can use them any more.
    pub segments_retired: u64,
    /// Rebuilds of segments since the start.
    pub rebuilds_total: u64,
    /// Those of them that made two out of one.
    pub splits_total: u64,
}

/// How the work on the index stands when the janitor turns to something else.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RebuildWork {
    /// A rebuild is between its first and its last step: the epoch is not raised, and nothing is scanned.
    pub is_under_way: bool,
    /// There will be something to do at that time.
    pub deadline: Option<Instant>,
}

impl Growth {
    /// Of a region that was just made.
    pub fn new(_region: &Region) -> Self {
        Self {}
    }

    /// The figures.
    pub fn figures(&self) -> GrowthFigures {
        GrowthFigures::default()
    }
}

impl Serving {
    /// Takes the report of a full bucket.
    ///
    /// # Errors
    /// The refusal to send.
    pub fn report_bucket(&self, _report: BucketReport) -> Result<(), Refusal> {
        self.bell.ring();
        Ok(())
    }
}

/// Does what there is to do for the index: recycles segments that nobody can use any more, rebuilds others. Runs on the
/// janitor's thread, with no lock held.
pub fn rebuild_work(_serving: &Serving) -> RebuildWork {
    RebuildWork::default()
}
