//! Looking at buckets together with the blocks that their slots name.
//!
//! Always true: no READ is posted for a place where no block of the slot's class can be, or that was not granted as far
//! as is known; what is held at once is bounded, whatever the region names.

use std::ops::Range;

use sidestep_common::layout::{
    BUCKET_BYTES, BUCKETS_PER_SEGMENT, BlockPlace, BlockRef, SlotWord, free_map_offset,
};

use super::block::{judge_block, judge_mark};
use super::bucket::{Look, Named, Run, Site};
use super::grants::place;
use super::{Checker, Problem, RegionSource, SourceError};

/// Bytes of blocks that are held at once, if one alone does not need more.
const BYTES_TOGETHER: u64 = 2 << 20;
/// Blocks that are read at once. Their marks double the verbs; more would not shorten the wait for any.
const BLOCKS_TOGETHER: usize = 256;

/// A block that is to be read for a slot of a look.
struct Wanted {
    look: usize,
    slot: usize,
    word: SlotWord,
    block: BlockRef,
    place: BlockPlace,
}

impl<S: RegionSource> Checker<'_, '_, S> {
    /// Looks at all buckets of the segments whose bytes are `bytes`.
    pub(super) fn look(&mut self, runs: &[Run], bytes: &[u8]) -> Result<Vec<Look>, SourceError> {
        let sites =
            runs.iter().flat_map(|&run| (0..BUCKETS_PER_SEGMENT).map(move |bucket| Site { run, bucket }));
        let buckets = bytes.chunks_exact(BUCKET_BYTES as usize);
        let mut looks: Vec<_> = sites.zip(buckets).map(|(site, bytes)| Look::new(site, bytes)).collect();
        self.look_at_blocks(&mut looks, false)?;
        Ok(looks)
    }

    /// Looks at one bucket again, and at what was granted too.
    pub(super) fn look_again(&mut self, site: Site) -> Result<Look, SourceError> {
        let mut bytes = Vec::new();
        let start = site.offset().0;
        self.read_piece(start..start + BUCKET_BYTES, &mut bytes)?;
        let mut looks = [Look::new(site, &bytes)];
        self.look_at_blocks(&mut looks, true)?;
        let [look] = looks;
        Ok(look)
    }

    fn look_at_blocks(&mut self, looks: &mut [Look], is_again: bool) -> Result<(), SourceError> {
        let mut wanted: Vec<Wanted> = Vec::new();
        let mut bytes_wanted = 0;
        for at in 0..looks.len() {
            let blocks: Vec<_> = looks[at].blocks().collect();
            for (slot, word, block) in blocks {
                match self.judge_place(block, is_again)? {
                    Ok(place) => {
                        if wanted.len() == BLOCKS_TOGETHER
                            || bytes_wanted + block.class.bytes() > BYTES_TOGETHER
                        {
                            self.read_blocks(looks, &wanted)?;
                            wanted.clear();
                            bytes_wanted = 0;
                        }
                        bytes_wanted += block.class.bytes();
                        wanted.push(Wanted { look: at, slot, word, block, place });
                    }
                    Err(problem) => looks[at].suspect_slot(slot, problem, &[]),
                }
            }
        }
        self.read_blocks(looks, &wanted)?;
        for look in looks {
            look.judge_keys();
        }
        Ok(())
    }

    /// Judges where a slot's block is. On a second look, what was granted is asked after the slot was read: a chunk that
    /// was granted since the list was made is no corruption.
    fn judge_place(
        &mut self,
        block: BlockRef,
        is_again: bool,
    ) -> Result<Result<BlockPlace, Problem>, SourceError> {
        let judged = self.grants.judge(&self.geometry, block);
        if judged.is_err()
            && is_again
            && let Ok(place) = place(&self.geometry, block)
        {
            self.grants.refresh(self.source, &self.geometry, place.chunk)?;
            return Ok(self.grants.judge(&self.geometry, block));
        }
        Ok(judged)
    }

    /// Reads blocks and their marks, and judges them.
    fn read_blocks(&mut self, looks: &mut [Look], wanted: &[Wanted]) -> Result<(), SourceError> {
        if wanted.is_empty() {
            return Ok(());
        }
        let mut pieces: Vec<Range<u64>> = Vec::with_capacity(2 * wanted.len());
        for one in wanted {
            let start = one.block.offset.0;
            pieces.push(start..start + one.block.class.bytes());
            let Some(mark) = free_map_offset(one.block) else {
                unreachable!("{:?} was judged to be a place for a block", one.block)
            };
            pieces.push(mark.0..mark.0 + 1);
        }
        let mut bytes = std::mem::take(&mut self.block_bytes);
        self.source.read(&pieces, &mut bytes)?;
        let mut rest = &bytes[..];
        for one in wanted {
            let (block, behind) = rest.split_at(one.block.class.bytes() as usize);
            let (mark, behind) = behind.split_at(1);
            rest = behind;
            let look = &mut looks[one.look];
            let judged =
                judge_block(&self.geometry, self.hash_seed, &look.site, (one.word, one.block), block);
            let Wanted { slot, word, block, place, .. } = *one;
            look.named.push(Named { slot, word, block, place, key: judged.ok(), is_damaged: false });
            for problem in [judged.err(), judge_mark(one.block, mark[0]).err()].into_iter().flatten() {
                look.suspect_slot(one.slot, problem, &[]);
            }
        }
        self.block_bytes = bytes;
        Ok(())
    }
}
