//! What was granted, page by page, for checkers of the region.
//!
//! Always true: a page is of one moment and has its grants in the order of their places; walking on from behind the
//! last one brings every grant that was there all the while exactly once.

use sidestep_common::wire::{GrantHolder, GrantPage, GrantRecord};

use super::{BlockPool, Owner};

/// Grants in one page: half of what a control message holds.
pub const GRANTS_PER_PAGE_MAX: u16 = 2048;

impl BlockPool {
    /// The grants that start at `from` or behind, at most `count`, at least one if there is one.
    pub fn page(&self, from: u64, count: u16) -> GrantPage {
        let count = usize::from(count.clamp(1, GRANTS_PER_PAGE_MAX));
        let mut rest = self.grants.range(from..);
        let record = |(&offset, grant): (&u64, &super::Grant)| GrantRecord {
            offset,
            class: grant.class.index(),
            holder: match grant.owner {
                Owner::Session(_) => GrantHolder::Session,
                Owner::Returned(_) | Owner::Tail => GrantHolder::Nobody,
                Owner::LeftBehind => GrantHolder::Orphan,
            },
        };
        GrantPage {
            grants: rest.by_ref().take(count).map(record).collect(),
            more: rest.next().is_some(),
            revision: self.revision,
            free_bytes: self.free.free_bytes(),
            reserve_bytes: self.reserve.free_bytes(),
        }
    }
}

#[cfg(test)]
mod tests {
    use sidestep_common::fabric::SessionId;
    use sidestep_common::layout::{Geometry, SizeClass, chunk_shape};
    use sidestep_common::wire::{ChunkPurpose, ChunkTail, FRAME_BYTES_MAX, Response, encode};

    use super::*;

    /// Every grant comes once, whatever the size of the pages; with what is free it makes up the pool. Each change of
    /// the books shows in the revision.
    #[test]
    fn pages_bring_every_grant_once() {
        let geometry = Geometry::for_region(64 << 20).unwrap();
        let mut pool = BlockPool::new(&geometry, None);
        let class = |bytes| SizeClass::holding(bytes).unwrap().index();
        let session = SessionId(1);
        assert_eq!((pool.page(0, 9).grants.len(), pool.page(0, 9).more), (0, false));
        let mut granted = Vec::new();
        for (bytes, count) in [(64, 3), (300 << 10, 4), (1000, 2)] {
            let before = pool.page(0, 1).revision;
            granted.extend(pool.grant(session, class(bytes), count, ChunkPurpose::General).unwrap());
            assert!(pool.page(0, 1).revision > before);
        }
        granted.sort_unstable_by_key(|grant| grant.offset);
        for count in [1, 2, 4, 5, 100] {
            let (mut from, mut found) = (0, Vec::new());
            loop {
                let page = pool.page(from, count);
                found.extend(page.grants);
                if !page.more {
                    break;
                }
                from = found.last().unwrap().offset + 1;
            }
            let places: Vec<_> = found.iter().map(|grant| (grant.offset, grant.class)).collect();
            assert_eq!(places, granted.iter().map(|grant| (grant.offset, grant.class)).collect::<Vec<_>>());
            let bytes = |grant: &GrantRecord| chunk_shape(SizeClass::from_index(grant.class).unwrap()).bytes;
            let page = pool.page(0, 1);
            let sum = found.iter().map(bytes).sum::<u64>() + page.free_bytes + page.reserve_bytes;
            assert_eq!(sum, geometry.block_pool_bytes);
        }
        let tail = ChunkTail { offset: granted[0].offset, first_index: 5 };
        pool.return_tails(session, &[tail]).unwrap();
        let first = pool.page(0, 1).grants[0];
        assert_eq!((first.first_index, first.holder), (5, GrantHolder::Nobody));
        assert_eq!(pool.page(first.offset + 1, 1).grants[0].holder, GrantHolder::Session);
        let before = pool.page(0, 1).revision;
        pool.end_session(session, false);
        assert_eq!(pool.page(0, 1).grants[0].holder, GrantHolder::LeftBehind);
        assert!(pool.page(0, 1).revision > before);
    }

    #[test]
    fn the_longest_page_is_a_message() {
        let largest = GrantRecord {
            offset: u64::MAX,
            class: u8::MAX,
            first_index: u32::MAX,
            holder: GrantHolder::LeftBehind,
        };
        let page = GrantPage {
            grants: vec![largest; usize::from(GRANTS_PER_PAGE_MAX)],
            more: true,
            revision: u64::MAX,
            free_bytes: u64::MAX,
            reserve_bytes: u64::MAX,
        };
        assert!(encode(&Response::Grants(page)).unwrap().len() <= FRAME_BYTES_MAX / 2 + 64);
    }
}
