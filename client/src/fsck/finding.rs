//! Something that is wrong, and where.
//!
//! Always true: its text begins with the place and the kind, which is all that a script needs.

use sidestep_common::layout::Offset;

use super::Problem;

/// Which part of the region something is about.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Part {
    /// The superblock.
    Superblock,
    /// An entry of the directory.
    Entry(u64),
    /// A bucket of a segment.
    Bucket {
        /// The segment's number.
        segment: u32,
        /// The bucket in it.
        bucket: u64,
    },
    /// A slot of a bucket.
    Slot {
        /// The segment's number.
        segment: u32,
        /// The bucket in it.
        bucket: u64,
        /// The slot in that.
        slot: usize,
    },
    /// A chunk or extent of the block pool.
    Chunk(Offset),
    /// The block pool as a whole, or memory of it that was never granted.
    Pool,
    /// Memory between the parts.
    Between,
}

impl std::fmt::Display for Part {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Superblock => write!(f, "superblock"),
            Self::Entry(entry) => write!(f, "directory entry {entry}"),
            Self::Bucket { segment, bucket } => write!(f, "segment {segment} bucket {bucket}"),
            Self::Slot { segment, bucket, slot } => {
                write!(f, "segment {segment} bucket {bucket} slot {slot}")
            }
            Self::Chunk(start) => write!(f, "chunk {start}"),
            Self::Pool => write!(f, "block pool"),
            Self::Between => write!(f, "between the parts"),
        }
    }
}

/// Something that is wrong.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Finding {
    /// Where in the region.
    pub offset: Offset,
    /// What lies there.
    pub part: Part,
    /// What is wrong.
    pub problem: Problem,
}

impl std::fmt::Display for Finding {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {}: {}: {}", self.offset, self.problem.name(), self.part, self.problem)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_finding_says_where_what_and_what_was_expected() {
        let finding = Finding {
            offset: Offset(0x4008),
            part: Part::Slot { segment: 3, bucket: 4, slot: 5 },
            problem: Problem::TagWrong { expected: 0x2aa, found: 0x2ab },
        };
        assert_eq!(
            finding.to_string(),
            "0x4008 tag-wrong: segment 3 bucket 4 slot 5: the slot has tag 0x2ab, its block's key has 0x2aa"
        );
    }
}
