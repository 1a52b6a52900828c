//! Versions of a chunk's blocks, as a hostile peer may send them.

use arbitrary::Arbitrary;

/// More are more than any chunk has blocks, and fill a frame.
const COUNT_MAX: u16 = 20_000;

/// What the versions of a chunk's blocks are.
#[derive(Arbitrary, Clone, Debug)]
pub(super) enum VersionsSpec {
    /// Nothing was ever used.
    Fresh,
    /// The first blocks have these.
    These(Vec<u8>),
    /// So many blocks have this one.
    Many { count: u16, version: u8 },
}

impl VersionsSpec {
    /// The versions, no more than `count_max`.
    pub(super) fn versions(&self, count_max: u32) -> Vec<u8> {
        let mut versions = match *self {
            Self::Fresh => Vec::new(),
            Self::These(ref versions) => versions.clone(),
            Self::Many { count, version } => vec![version; usize::from(count % COUNT_MAX)],
        };
        versions.truncate(count_max as usize);
        versions
    }
}
