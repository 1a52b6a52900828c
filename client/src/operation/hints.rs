//! Buckets that fill up, to be told to the server when there is time.
//!
//! Always true: each bucket's segment is there once, and there are few: what is forgotten is found full later, which costs an
//! insert a wait and nothing else.

use sidestep_common::layout::SLOTS_PER_BUCKET;
use sidestep_common::wire::BucketReport;
use smallvec::SmallVec;

/// Hints that are kept. More at once come of an index that grows everywhere, where any of them will do.
const HINTS_MAX: usize = 8;
/// An insert into this slot, or one behind it, leaves a hint: five more keys have room while the segment is rebuilt.
const LATE_SLOT: usize = SLOTS_PER_BUCKET - 5;

/// What a session has to tell.
#[derive(Default, Debug)]
pub struct Hints(SmallVec<[BucketReport; HINTS_MAX]>);

impl Hints {
    /// An insert took `slot` of the bucket that `report` means.
    pub(super) fn note(&mut self, slot: usize, report: BucketReport) {
        if slot >= LATE_SLOT && self.0.len() < HINTS_MAX && !self.0.contains(&report) {
            self.0.push(report);
        }
    }

    /// Whether there is anything to tell.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Takes all of it out.
    pub fn take(&mut self) -> impl Iterator<Item = BucketReport> {
        std::mem::take(&mut self.0).into_iter()
    }
}
