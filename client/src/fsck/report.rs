//! What a look at a region brought.
//!
//! Always true: every finding is counted, also those that are not kept; the accounts of a sound region make up its
//! block pool to the byte.

use std::collections::BTreeMap;

use serde::Serialize;

use super::Finding;

/// What a look at a region brought.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Report {
    /// What is wrong, the first ones.
    pub findings: Vec<Finding>,
    /// How many there are of each kind, by name.
    pub by_kind: BTreeMap<&'static str, u64>,
    /// What is not wrong but worth knowing.
    pub notes: Notes,
    /// What the index holds.
    pub index: IndexCounts,
    /// What the block pool is used for.
    pub accounts: Accounts,
}

impl Report {
    /// Whether nothing is wrong.
    pub fn is_clean(&self) -> bool {
        self.by_kind.is_empty()
    }

    /// How much is wrong.
    pub fn finding_count(&self) -> u64 {
        self.by_kind.values().sum()
    }

    /// How often something of the kind with this name was found.
    pub fn count_of(&self, name: &str) -> u64 {
        self.by_kind.get(name).copied().unwrap_or(0)
    }

    /// Counts a finding, and keeps it while there are fewer than `findings_max`.
    pub(super) fn add(&mut self, finding: Finding, findings_max: usize) {
        *self.by_kind.entry(finding.problem.name()).or_default() += 1;
        if self.findings.len() < findings_max {
            self.findings.push(finding);
        }
    }
}

/// What is not wrong but worth knowing.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
pub struct Notes {
    /// Suspicions that came to nothing because what they were about kept changing while it was looked at (or was
    /// changed while the dump was made).
    pub changed: u64,
    /// Sealed buckets that the directory still names: rebuilds under way.
    pub sealed_buckets: u64,
    /// The list of grants kept changing, so that its sums could not be compared.
    pub grants_changed: bool,
}

/// What the index holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
pub struct IndexCounts {
    /// Segments that the directory names.
    pub segments: u64,
    /// Slots with a key.
    pub live: u64,
    /// Slots whose key was deleted.
    pub deleted: u64,
    /// Slots whose key a rebuild is moving.
    pub moved: u64,
    /// Slots that were never used.
    pub empty: u64,
    /// Slots that a rebuild has closed.
    pub closed: u64,
    /// Slots of the fullest bucket that are not EMPTY.
    pub fullest_bucket: u64,
    /// Bytes of all keys, the deleted ones too.
    pub key_bytes: u64,
    /// Bytes of all values.
    pub value_bytes: u64,
}

/// Blocks, and their bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
pub struct Sum {
    /// How many.
    pub blocks: u64,
    /// Bytes of them.
    pub bytes: u64,
}

impl Sum {
    /// Adds `blocks` of `block_bytes` each.
    pub(super) const fn add(&mut self, blocks: u64, block_bytes: u64) {
        self.blocks += blocks;
        self.bytes += blocks * block_bytes;
    }
}

/// What the block pool is used for. In a region under load each part is of its own moment, but every byte is in one
/// part only.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
pub struct Accounts {
    /// Blocks that LIVE or MOVED slots name.
    pub live: Sum,
    /// Blocks that DELETED slots name.
    pub deleted: Sum,
    /// Blocks that nobody names and that are marked free.
    pub free: Sum,
    /// Blocks of living sessions that nobody names and that are not marked: in hand, in limbo, or never used.
    pub in_hand: Sum,
    /// Blocks of nobody's that nobody names and that are not marked: mostly never used. The next session gets them.
    pub unused: Sum,
    /// Blocks of sessions that ended without a word: not named, not marked. They wait for a sweep.
    pub left_behind: Sum,
    /// Free maps, and what is left over in chunks.
    pub overhead_bytes: u64,
    /// Memory that has no class.
    pub ungranted_bytes: u64,
    /// Chunks and extents that were granted.
    pub grants: u64,
    /// The whole pool.
    pub pool_bytes: u64,
}

impl Accounts {
    /// The sum of all parts.
    pub const fn sum_bytes(&self) -> u64 {
        self.live.bytes
            + self.deleted.bytes
            + self.free.bytes
            + self.in_hand.bytes
            + self.unused.bytes
            + self.left_behind.bytes
            + self.overhead_bytes
            + self.ungranted_bytes
    }

    /// Whether the parts make up the pool, to the byte.
    pub const fn is_balanced(&self) -> bool {
        self.sum_bytes() == self.pool_bytes
    }
}
