//! The block pool: what was granted, free maps, memory that nobody uses, and the accounts.
//!
//! Always true: every byte of the pool is counted in one part of the accounts only. In a region that others change, a mark
//! is compared with a version that was read after it, and what was never granted or used is asked about after it was read.

use std::ops::Range;

use sidestep_common::layout::{BLOCK_UNIT_BYTES, BlockPlace, CHUNK_BYTES, Offset, PAGE_UNIT_BYTES, Version};
use sidestep_common::wire::{GrantHolder, GrantRecord};

use super::grants::{Grant, list_whole};
use super::outside::first_nonzero;
use super::{Checker, Part, Problem, RegionSource, SourceError};

/// Free maps, and pieces of memory that was never granted, are read together up to this.
const BYTES_TOGETHER: u64 = 1 << 20;
/// Headers of marked blocks that are read together.
const HEADERS_TOGETHER: usize = 512;
/// In each mebibyte that was never granted a look is taken at what would be the free map of its smallest blocks.
const MAP_BYTES_MAX: u64 = 16 << 10;
/// Where the word with a block's version lies in its header.
const VERSION_WORD: u64 = 16;

/// A block that nobody names and that has a mark.
struct Marked {
    block: Offset,
    chunk: Offset,
    mark: u8,
    mark_offset: Offset,
}

impl<S: RegionSource> Checker<'_, '_, S> {
    /// Goes through all grants, and through what is between them.
    pub(super) fn check_pool(&mut self) -> Result<(), SourceError> {
        let geometry = self.geometry;
        self.report.accounts.pool_bytes = geometry.block_pool_bytes;
        // Asked for anew: a chunk that was granted meanwhile, and blocks of which slots name, counts as granted.
        let mut records = Vec::new();
        let listing = list_whole(self.source, &geometry, &mut records)?;
        let pool_end = geometry.block_pool_offset.0 + geometry.block_pool_bytes;
        let (mut end, mut granted_bytes) = (geometry.block_pool_offset.0, 0_u64);
        let mut sound: Vec<Range<u64>> = Vec::with_capacity(records.len());
        let mut gaps: Vec<Range<u64>> = Vec::new();
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
            if record.offset > end {
                gaps.push(end..record.offset);
            }
            end = record.offset + bytes;
            sound.push(record.offset..end);
        }
        if end < pool_end {
            gaps.push(end..pool_end);
        }
        self.report.accounts.grants = records.len() as u64;
        self.report.accounts.ungranted_bytes = gaps.iter().map(|gap| gap.end - gap.start).sum();
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
        self.check_gaps(&gaps)
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
            let mut marked = Vec::new();
            for piece in pieces.drain(..) {
                let (map, behind) = rest.split_at((piece.end - piece.start) as usize);
                rest = behind;
                self.check_map(Offset(piece.start), map, &mut marked)?;
            }
            self.check_marked(&marked)?;
            together = 0;
            self.progress("free maps", at as u64 + 1, grants.len() as u64);
        }
        Ok(())
    }

    /// Counts the blocks of a grant, and judges the bytes of its map.
    fn check_map(&mut self, chunk: Offset, map: &[u8], marked: &mut Vec<Marked>) -> Result<(), SourceError> {
        let Some(grant) = self.grants.get(chunk.0) else { return Ok(()) };
        let (class, shape) = (grant.class, grant.shape);
        let accounts = &mut self.report.accounts;
        let mut named = 0;
        for (index, &mark) in (0..shape.block_count).zip(map) {
            let block_bytes = class.bytes();
            if grant.is_named(index) {
                named += 1;
            } else if mark != 0 {
                accounts.free.add(1, block_bytes);
                let block = BlockPlace { chunk, index }.block(class, Version(mark)).offset;
                marked.push(Marked { block, chunk, mark, mark_offset: chunk.plus(u64::from(index)) });
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
        Ok(())
    }

    /// A marked block that nobody names has the version of its mark, or a later one if its owner uses it again. The
    /// version is read after the mark: it can only have grown.
    fn check_marked(&mut self, marked: &[Marked]) -> Result<(), SourceError> {
        let mut bytes = Vec::new();
        for part in marked.chunks(HEADERS_TOGETHER) {
            let pieces: Vec<_> =
                part.iter().map(|one| one.block.0 + VERSION_WORD..one.block.0 + VERSION_WORD + 8).collect();
            self.source.read(&pieces, &mut bytes)?;
            for (one, word) in part.iter().zip(bytes.as_chunks::<8>().0) {
                // Byte 18 of the header.
                let version = word[2];
                if version.wrapping_sub(one.mark) >= 128 {
                    if !self.source.is_in_order() {
                        self.report.notes.changed += 1;
                        continue;
                    }
                    let problem = Problem::MarkAhead { block: one.block, mark: one.mark, version };
                    self.find(one.mark_offset, Part::Chunk(one.chunk), problem);
                }
            }
        }
        Ok(())
    }

    /// Memory that was never granted is zero: all of it, or where it would have free maps, which must start as zeros.
    fn check_gaps(&mut self, gaps: &[Range<u64>]) -> Result<(), SourceError> {
        let (mut pieces, mut together) = (Vec::new(), 0);
        let mut done = 0;
        for gap in gaps {
            let mut start = gap.start;
            while start < gap.end {
                let chunk_end = gap.end.min((start + 1).next_multiple_of(CHUNK_BYTES));
                let end = if self.deep { chunk_end } else { chunk_end.min(start + MAP_BYTES_MAX) };
                pieces.push(start..end);
                together += end - start;
                if together >= BYTES_TOGETHER {
                    self.check_unused(&pieces)?;
                    pieces.clear();
                    together = 0;
                    self.progress("unused memory", done, self.report.accounts.ungranted_bytes);
                }
                done += chunk_end - start;
                start = chunk_end;
            }
        }
        self.check_unused(&pieces)?;
        self.progress("unused memory", done, self.report.accounts.ungranted_bytes);
        Ok(())
    }

    fn check_unused(&mut self, pieces: &[Range<u64>]) -> Result<(), SourceError> {
        let mut bytes = Vec::new();
        self.source.read(pieces, &mut bytes)?;
        let mut rest = &bytes[..];
        for piece in pieces {
            let (unused, behind) = rest.split_at((piece.end - piece.start) as usize);
            rest = behind;
            if let Some((at, found)) = first_nonzero(unused)
                && !self.is_granted_now(piece.start + at)?
            {
                self.find(Offset(piece.start + at), Part::Pool, Problem::UnusedMemory { found });
            }
        }
        Ok(())
    }

    /// Whether memory that was not granted is by now. What covers it starts at most a largest extent before it.
    fn is_granted_now(&mut self, offset: u64) -> Result<bool, SourceError> {
        if !self.source.is_live() {
            return Ok(false);
        }
        let mut is_granted = false;
        let mut from = offset.saturating_sub(LONGEST_GRANT_BYTES);
        loop {
            let page = self.source.grants(from, GRANTS_TOGETHER)?;
            for record in &page.grants {
                // What is wrong with it was found with the list, or will be the next time.
                let _ = self.grants.learn(&self.geometry, record);
                is_granted |= covers(self.grants.get(record.offset), record, offset);
                from = from.max(record.offset.saturating_add(1));
            }
            if is_granted || !page.more || page.grants.is_empty() || from > offset {
                return Ok(is_granted);
            }
        }
    }
}

/// The largest class has extents of 1.25 MiB and a map.
const LONGEST_GRANT_BYTES: u64 = (1280 << 10) + PAGE_UNIT_BYTES;
/// So many of the shortest extents lie within that.
const GRANTS_TOGETHER: u16 = 16;
const _: () = assert!(BLOCK_UNIT_BYTES < PAGE_UNIT_BYTES);

fn covers(grant: Option<&Grant>, record: &GrantRecord, offset: u64) -> bool {
    grant.is_some_and(|grant| (record.offset..record.offset + grant.shape.bytes).contains(&offset))
}

/// The account of a block that nobody names and that has no mark.
const fn sum_of<'a>(accounts: &'a mut super::Accounts, grant: &Grant) -> &'a mut super::Sum {
    match grant.holder {
        GrantHolder::Session => &mut accounts.in_hand,
        GrantHolder::Nobody => &mut accounts.unused,
        GrantHolder::Orphan => &mut accounts.left_behind,
    }
}
