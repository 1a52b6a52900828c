//! The block pool: what was granted, free maps, memory that nobody uses, and the accounts.
//!
//! Always true: every byte of the pool is counted in one part of the accounts only. A mark is judged by the slot that names
//! its block. Of a block that nobody names it proves nothing: a sweep, or an owner that reclaims it, frees it in a version
//! that was never written into it. Nor do bytes of memory that has no class: it may have had one.

use std::ops::Range;

use sidestep_common::layout::Offset;
use sidestep_common::wire::GrantHolder;

use super::grants::{Grant, list_whole};
use super::{Checker, Part, Problem, RegionSource, SourceError};

/// Free maps, and pieces of memory that was never granted, are read together up to this.
const BYTES_TOGETHER: u64 = 1 << 20;

impl<S: RegionSource> Checker<'_, '_, S> {
    /// Goes through all grants, and through what is between them.
    pub(super) fn check_pool(&mut self) -> Result<(), SourceError> {
        let geometry = self.geometry;
        self.report.accounts.pool_bytes = geometry.block_pool_bytes;
        // Asked for anew: a chunk that was granted meanwhile, and blocks of which slots name, counts as granted.
        let mut records = Vec::new();
        let listing = list_whole(self.source, &geometry, &mut records)?;
        let pool_end = geometry.block_pool_offset.0 + geometry.block_pool_bytes;
        let (mut end, mut granted_bytes, mut ungranted_bytes) = (geometry.block_pool_offset.0, 0_u64, 0);
        let mut sound: Vec<Range<u64>> = Vec::with_capacity(records.len());
        for record in &records {
            let learnt = self.grants.learn(&geometry, record);
            let (offset, part) = (Offset(record.offset), Part::Chunk(Offset(record.offset)));
            if let Err(problem) = learnt {
                self.find(offset, part, problem);
                continue;
            }
            let Some(grant) = self.grants.get(record.offset) else { continue };
            let bytes = grant.shape.bytes;
            granted_bytes += bytes;
            if record.offset < end {
                self.find(offset, part, Problem::GrantOverlap { end: Offset(end) });
                continue;
            }
            ungranted_bytes += record.offset - end;
            end = record.offset + bytes;
            sound.push(record.offset..end);
        }
        ungranted_bytes += pool_end.saturating_sub(end);
        self.report.accounts.grants = records.len() as u64;
        self.report.accounts.ungranted_bytes = ungranted_bytes;
        if !listing.is_whole {
            self.report.notes.grants_changed = true;
        } else if granted_bytes.saturating_add(listing.free_bytes) != geometry.block_pool_bytes {
            let (free_bytes, pool_bytes) = (listing.free_bytes, geometry.block_pool_bytes);
            let problem = Problem::PoolAccounts { granted_bytes, free_bytes, pool_bytes };
            self.find(geometry.block_pool_offset, Part::Pool, problem);
        }
        self.check_maps(&sound)?;
        // Those of deleted keys were counted when their slots were seen.
        let accounts = &mut self.report.accounts;
        accounts.live.blocks = accounts.live.blocks.saturating_sub(accounts.deleted.blocks);
        accounts.live.bytes = accounts.live.bytes.saturating_sub(accounts.deleted.bytes);
        Ok(())
    }

    /// Reads the free maps of all grants, some at a time.
    fn check_maps(&mut self, grants: &[Range<u64>]) -> Result<(), SourceError> {
        let (mut bytes, mut pieces, mut together) = (Vec::new(), Vec::<Range<u64>>::new(), 0);
        for (at, range) in grants.iter().enumerate() {
            if let Some(grant) = self.grants.get(range.start) {
                let map_bytes = grant.shape.blocks_offset;
                pieces.push(range.start..range.start + map_bytes);
                together += map_bytes;
            }
            if together < BYTES_TOGETHER && at + 1 < grants.len() {
                continue;
            }
            self.source.read(&pieces, &mut bytes)?;
            let mut rest = &bytes[..];
            for piece in pieces.drain(..) {
                let (map, behind) = rest.split_at((piece.end - piece.start) as usize);
                rest = behind;
                self.check_map(Offset(piece.start), map);
            }
            together = 0;
            self.progress("free maps", at as u64 + 1, grants.len() as u64);
        }
        Ok(())
    }

    /// Counts the blocks of a grant, and judges the bytes of its map.
    fn check_map(&mut self, chunk: Offset, map: &[u8]) {
        let Some(grant) = self.grants.get(chunk.0) else { return };
        let (class, shape) = (grant.class, grant.shape);
        let accounts = &mut self.report.accounts;
        let mut named = 0;
        for (index, &mark) in (0..shape.block_count).zip(map) {
            let block_bytes = class.bytes();
            if grant.is_named(index) {
                named += 1;
            } else if mark != 0 {
                accounts.free.add(1, block_bytes);
            } else {
                sum_of(accounts, grant).add(1, block_bytes);
            }
        }
        accounts.live.add(named, class.bytes());
        accounts.overhead_bytes += shape.bytes - u64::from(shape.block_count) * class.bytes();
        let padding = &map[shape.block_count as usize..];
        if let Some(at) = padding.iter().position(|byte| *byte != 0) {
            let offset = chunk.plus(u64::from(shape.block_count) + at as u64);
            self.find(offset, Part::Chunk(chunk), Problem::MapPadding { found: padding[at] });
        }
    }
}

/// The account of a block that nobody names and that has no mark.
const fn sum_of<'a>(accounts: &'a mut super::Accounts, grant: &Grant) -> &'a mut super::Sum {
    match grant.holder {
        GrantHolder::Session => &mut accounts.in_hand,
        GrantHolder::Nobody => &mut accounts.unused,
        GrantHolder::Orphan => &mut accounts.left_behind,
    }
}
