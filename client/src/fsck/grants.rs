//! What of the block pool was granted, and which of its blocks slots name.
//!
//! Always true: only grants that can be are kept, so a place that was judged sound lies in the pool; a block that a slot
//! names costs one bit. The memory node's answers are as little trusted as the region.

use std::collections::BTreeMap;

use sidestep_common::layout::{
    BlockPlace, BlockRef, ChunkShape, Geometry, Offset, PAGE_UNIT_BYTES, SizeClass, chunk_shape,
};
use sidestep_common::wire::{GrantHolder, GrantRecord};

use super::{Problem, RegionSource, SourceError};

/// A chunk or extent that was granted.
#[derive(Debug)]
pub(super) struct Grant {
    pub(super) class: SizeClass,
    pub(super) shape: ChunkShape,
    pub(super) holder: GrantHolder,
    /// Blocks that slots name, a bit each; none until there is one.
    named: Box<[u64]>,
}

impl Grant {
    fn new(class: SizeClass, record: &GrantRecord) -> Self {
        let shape = chunk_shape(class);
        Self { class, shape, holder: record.holder, named: Box::default() }
    }

    /// Whether a slot names the block.
    pub(super) fn is_named(&self, index: u32) -> bool {
        self.named.get(index as usize / 64).is_some_and(|word| word & 1 << (index % 64) != 0)
    }

    /// Notes that a slot names the block; says whether none did before.
    fn name(&mut self, index: u32) -> bool {
        if self.named.is_empty() {
            self.named = vec![0; self.shape.block_count.div_ceil(64) as usize].into();
        }
        let word = &mut self.named[index as usize / 64];
        let is_first = *word & 1 << (index % 64) == 0;
        *word |= 1 << (index % 64);
        is_first
    }
}

/// All grants that are known, by where they start.
#[derive(Debug, Default)]
pub(super) struct Grants(BTreeMap<u64, Grant>);

impl Grants {
    /// Learns of a grant, also of its newer state.
    ///
    /// # Errors
    /// What is wrong with it; it is not kept.
    pub(super) fn learn(&mut self, geometry: &Geometry, record: &GrantRecord) -> Result<(), Problem> {
        let Some(class) = SizeClass::from_index(record.class) else {
            return Err(Problem::GrantClass { class: record.class });
        };
        let shape = chunk_shape(class);
        if !geometry.block_pool_holds(Offset(record.offset), shape.bytes) {
            return Err(Problem::GrantOutside { bytes: shape.bytes });
        }
        if !record.offset.is_multiple_of(shape.align_bytes) {
            return Err(Problem::GrantMisaligned { align_bytes: shape.align_bytes });
        }
        let fresh = Grant::new(class, record);
        let known = self.0.entry(record.offset).or_insert_with(|| Grant::new(class, record));
        let named = if known.class == class { std::mem::take(&mut known.named) } else { Box::default() };
        *known = Grant { named, ..fresh };
        Ok(())
    }

    /// Learns anew what is granted at `chunk`.
    pub(super) fn refresh(
        &mut self,
        source: &mut impl RegionSource,
        geometry: &Geometry,
        chunk: Offset,
    ) -> Result<(), SourceError> {
        let page = source.grants(chunk.0, 1)?;
        match page.grants.first().filter(|record| record.offset == chunk.0) {
            Some(record) => {
                // What is wrong with it is found when all grants are gone through.
                let _ = self.learn(geometry, record);
            }
            None => {
                self.0.remove(&chunk.0);
            }
        }
        Ok(())
    }

    /// Whether a slot can name that block; where it is.
    pub(super) fn judge(&self, geometry: &Geometry, block: BlockRef) -> Result<BlockPlace, Problem> {
        let place = place(geometry, block)?;
        let chunk = place.chunk;
        match self.0.get(&chunk.0) {
            None => Err(Problem::ChunkNotGranted { block: block.offset, chunk }),
            Some(grant) if grant.class != block.class => {
                let (expected, found) = (grant.class.index(), block.class.index());
                Err(Problem::ChunkClass { chunk, expected, found })
            }
            Some(_) => Ok(place),
        }
    }

    /// Notes that a slot names the block; says whether none did before.
    pub(super) fn name(&mut self, place: BlockPlace) -> bool {
        self.0.get_mut(&place.chunk.0).is_some_and(|grant| grant.name(place.index))
    }

    /// The grant that starts at `chunk`.
    pub(super) fn get(&self, chunk: u64) -> Option<&Grant> {
        self.0.get(&chunk)
    }
}

/// Where a block is, if a block can be there at all.
pub(super) fn place(geometry: &Geometry, block: BlockRef) -> Result<BlockPlace, Problem> {
    let bytes = block.class.bytes();
    if !geometry.block_pool_holds(block.offset, bytes) {
        return Err(Problem::BlockOutside { block: block.offset, bytes });
    }
    BlockPlace::of(block.offset, block.class).ok_or(Problem::BlockMisplaced { block: block.offset, bytes })
}

/// What a list of all grants was like.
#[derive(Clone, Copy, Debug)]
pub(super) struct Listing {
    /// It is of one moment.
    pub(super) is_whole: bool,
    /// Bytes that are free or held back, as the memory node says.
    pub(super) free_bytes: u64,
    /// The revision of the books at its end.
    pub(super) revision: u64,
}

/// Grants asked for at once; the memory node has a limit of its own.
const PAGE_GRANTS: u16 = 4096;

/// Asks for all grants, in the order of their places, and tells `each` of them.
///
/// # Errors
/// If they can't be had.
pub(super) fn list(
    source: &mut impl RegionSource,
    geometry: &Geometry,
    mut each: impl FnMut(&GrantRecord),
) -> Result<Listing, SourceError> {
    // More than this can't be; a memory node that goes on and on is not listened to.
    let mut left = geometry.block_pool_bytes / PAGE_UNIT_BYTES;
    let mut from = 0;
    let mut first = None;
    let mut is_whole = true;
    loop {
        let page = source.grants(from, PAGE_GRANTS)?;
        is_whole &= *first.get_or_insert(page.revision) == page.revision;
        let free_bytes = page.free_bytes.saturating_add(page.reserve_bytes);
        let listing = |is_whole| Listing { is_whole, free_bytes, revision: page.revision };
        for record in &page.grants {
            if record.offset < from || left == 0 {
                return Ok(listing(is_whole));
            }
            left -= 1;
            each(record);
            from = record.offset.saturating_add(1);
        }
        if !page.more || page.grants.is_empty() {
            return Ok(listing(is_whole));
        }
    }
}

/// How often a list is asked for that keeps changing.
const LISTS_MAX: u32 = 4;

/// Asks for all grants until the list is of one moment, or it has been tried often enough.
///
/// # Errors
/// If they can't be had.
pub(super) fn list_whole(
    source: &mut impl RegionSource,
    geometry: &Geometry,
    into: &mut Vec<GrantRecord>,
) -> Result<Listing, SourceError> {
    let mut lists = 1;
    loop {
        into.clear();
        let listing = list(source, geometry, |record| into.push(*record))?;
        if listing.is_whole || lists == LISTS_MAX {
            return Ok(listing);
        }
        lists += 1;
    }
}

#[cfg(test)]
mod tests {
    use sidestep_common::layout::{CHUNK_BYTES, Version};

    use super::super::{Facts, Still};
    use super::*;
    use crate::fsck::testing::superblock;

    #[test]
    fn a_block_is_named_once() {
        let geometry = superblock().geometry;
        let chunk = geometry.block_pool_offset.0;
        let mut grants = Grants::default();
        grants.learn(&geometry, &Facts::in_use(chunk, 3)).unwrap();
        let last = grants.get(chunk).unwrap().shape.block_count - 1;
        for index in [0, 63, 64, last] {
            let place = BlockPlace { chunk: Offset(chunk), index };
            assert!(!grants.get(chunk).unwrap().is_named(index));
            assert!(grants.name(place) && !grants.name(place), "{index}");
            assert!(grants.get(chunk).unwrap().is_named(index));
        }
        // Its newer state has the same blocks, another class others.
        grants.learn(&geometry, &Facts::in_use(chunk, 3)).unwrap();
        assert!(grants.get(chunk).unwrap().is_named(63));
        grants.learn(&geometry, &Facts::in_use(chunk, 4)).unwrap();
        assert!(!grants.get(chunk).unwrap().is_named(63));
    }

    #[test]
    fn grants_that_cannot_be_are_not_kept() {
        let geometry = superblock().geometry;
        let chunk = geometry.block_pool_offset.0;
        let mut grants = Grants::default();
        for (offset, class, name) in [
            (chunk, 200, "grant-class"),
            (0, 3, "grant-outside"),
            (u64::MAX, 3, "grant-outside"),
            (chunk + (64 << 10), 3, "grant-misaligned"),
        ] {
            let problem = grants.learn(&geometry, &Facts::in_use(offset, class)).unwrap_err();
            assert_eq!(problem.name(), name);
            assert!(grants.get(offset).is_none());
        }
        grants.learn(&geometry, &Facts::in_use(chunk, 3)).unwrap();
        let block = BlockPlace { chunk: Offset(chunk), index: 5 };
        let class = SizeClass::from_index(3).unwrap();
        assert_eq!(grants.judge(&geometry, block.block(class, Version(1))), Ok(block));
    }

    /// Pages are put together; a memory node that repeats itself, or has no end, is not followed.
    #[test]
    fn lists_end() {
        let superblock = superblock();
        let geometry = superblock.geometry;
        let chunk = |number: u64| Facts::in_use(geometry.block_pool_offset.0 + number * CHUNK_BYTES, 0);
        let facts = Facts { superblock, grants: vec![chunk(0), chunk(1)], free_bytes: 7, uptime_ms: None };
        let mut source = Still::new(facts, |_, _: &mut [u8]| Ok(()));
        let mut found = Vec::new();
        let listing = list(&mut source, &geometry, |record| found.push(*record)).unwrap();
        assert_eq!((found, listing.is_whole, listing.free_bytes), (vec![chunk(0), chunk(1)], true, 7));
        let endless = (0..100_000).map(chunk).collect();
        let facts = Facts { superblock, grants: endless, free_bytes: 0, uptime_ms: None };
        let mut source = Still::new(facts, |_, _: &mut [u8]| Ok(()));
        let mut count = 0;
        list(&mut source, &geometry, |_| count += 1).unwrap();
        assert_eq!(count, geometry.block_pool_bytes / PAGE_UNIT_BYTES);
        let facts = Facts { superblock, grants: vec![chunk(1), chunk(0)], free_bytes: 0, uptime_ms: None };
        let mut source = Still::new(facts, |_, _: &mut [u8]| Ok(()));
        let mut count = 0;
        list(&mut source, &geometry, |_| count += 1).unwrap();
        assert_eq!(count, 1);
    }
}
