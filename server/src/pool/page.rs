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
                Owner::Ownerless => GrantHolder::Nobody,
                Owner::Returned { .. } | Owner::Orphan => GrantHolder::Orphan,
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
    use sidestep_common::layout::{SizeClass, chunk_shape};
    use sidestep_common::wire::{ChunkPurpose, FRAME_BYTES_MAX, Response, ReturnedChunk, decode, encode};

    use super::super::tests::Bed;
    use super::*;

    /// Every grant comes once, whatever the size of the pages; with what is free it makes up the pool. Each change of
    /// the books shows in the revision.
    #[test]
    fn pages_bring_every_grant_once() {
        let bed = Bed::new(64 << 20);
        let (geometry, mut pool) = (bed.geometry, bed.pool(None));
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
        let returned = ReturnedChunk { offset: granted[0].offset, versions: vec![1], empty: false };
        let mut holder = |change: &dyn Fn(&mut BlockPool)| {
            let before = pool.page(0, 1).revision;
            change(&mut pool);
            assert!(pool.page(0, 1).revision > before);
            pool.page(0, 1).grants[0].holder
        };
        let give_back =
            |pool: &mut BlockPool| pool.return_chunks(session, vec![returned.clone()], || 7).unwrap();
        assert_eq!(holder(&give_back), GrantHolder::Orphan);
        assert_eq!(holder(&|pool| assert_eq!(pool.recycle(7), 1)), GrantHolder::Nobody);
        let second = granted[1].offset;
        assert_eq!(pool.page(second, 1).grants[0].holder, GrantHolder::Session);
        pool.end_session(session);
        assert_eq!(pool.page(second, 1).grants[0].holder, GrantHolder::Orphan);
    }

    #[test]
    fn the_longest_page_is_a_message() {
        let largest = GrantRecord { offset: u64::MAX, class: u8::MAX, holder: GrantHolder::Orphan };
        let page = GrantPage {
            grants: vec![largest; usize::from(GRANTS_PER_PAGE_MAX)],
            more: true,
            revision: u64::MAX,
            free_bytes: u64::MAX,
            reserve_bytes: u64::MAX,
        };
        let bytes = encode(&Response::Grants(page)).unwrap();
        assert!(bytes.len() <= FRAME_BYTES_MAX / 2 + 64);
        decode::<Response>(&bytes).unwrap();
    }
}
