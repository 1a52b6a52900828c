//! One pass over the index: which blocks it reaches.
//!
//! Always true: each segment that the directory names is read once, word by word, and nothing is changed. A block that is
//! published all the while is reached, whatever sessions do; one that is published or unlinked meanwhile may be either.
//!
//! ⚑ No rebuild is under way while a segment is read: its words would be in two segments, or in none. Whole rebuilds may come
//! between two steps. They change the words of a run of entries: those behind the scan's place were read where they were, those
//! before it are read where they are now, and a run that lies across it is read twice.
//!
//! What it costs, of a region of 1 GiB with ten million keys of 64 bytes: 128 MiB of index read in order; a bit a block,
//! 2 MiB, in which each word sets one; a byte a block of chunks whose session ended. Measured in a release build on one core of a
//! virtual machine (`scan_speed`): 128 MiB of index with 4.2 million words in 128 ms, 31 ns a word.

use std::collections::HashMap;

use sidestep_common::layout::{
    BLOCK_UNIT_BYTES, BUCKET_BYTES, BUCKETS_PER_SEGMENT, BlockRef, CHUNK_BYTES, CHUNK_CLASS_BYTES_MAX,
    DirectoryWord, Geometry, SEGMENT_BYTES, SlotState, SlotWord, Version, chunk_shape,
};
use sidestep_common::memory::{AccessError, WordMemory};

use crate::pool::{CutUp, Holder};

/// No chunk.
const NONE: u32 = u32::MAX;

/// A pass over the index, under way or done.
#[derive(Debug)]
pub struct Scan {
    geometry: Geometry,
    chunks: Vec<Chunk>,
    /// For each piece of the pool of a chunk's size, which of the chunks it is.
    by_place: Vec<u32>,
    /// The same of extents, by where they start.
    extents: HashMap<u64, u32>,
    /// A bit a block, chunk after chunk.
    reached: Vec<u8>,
    /// The versions by which blocks were reached, of chunks whose session ended.
    versions: Vec<u8>,
    next_entry: u64,
    last_word: u64,
    figures: ScanFigures,
}

#[derive(Debug)]
struct Chunk {
    cut_up: CutUp,
    /// Its blocks' length in units.
    block_units: u32,
    blocks_offset: u64,
    block_count: u32,
    /// Where its bits begin.
    reached_at: usize,
    /// Where its versions begin, if they are kept.
    versions_at: Option<usize>,
}

/// What a scan saw.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ScanFigures {
    /// Segments read.
    pub segments: u64,
    /// Words that name a block.
    pub blocks: u64,
    /// Words that name a block which was in no chunk when the scan began. Those of chunks granted since are among them.
    pub strangers: u64,
    /// Words that are none.
    pub malformed: u64,
}

impl Scan {
    /// A pass that looks for the blocks of these chunks, in order of their places.
    pub fn new(geometry: Geometry, cut_up: Vec<CutUp>) -> Self {
        let places = geometry.block_pool_bytes.div_ceil(CHUNK_BYTES) as usize;
        let (mut by_place, mut extents) = (vec![NONE; places], HashMap::new());
        let (mut reached_bytes, mut versions_bytes) = (0, 0);
        let mut chunks = Vec::with_capacity(cut_up.len());
        for (number, cut_up) in (0..).zip(cut_up) {
            let shape = chunk_shape(cut_up.class);
            if cut_up.class.bytes() > CHUNK_CLASS_BYTES_MAX {
                extents.insert(cut_up.offset, number);
            } else {
                by_place[((cut_up.offset - geometry.block_pool_offset.0) / CHUNK_BYTES) as usize] = number;
            }
            let count = shape.block_count as usize;
            let versions_at = (cut_up.holder == Holder::Orphan).then_some(versions_bytes);
            chunks.push(Chunk {
                cut_up,
                block_units: (cut_up.class.bytes() / BLOCK_UNIT_BYTES) as u32,
                blocks_offset: shape.blocks_offset,
                block_count: shape.block_count,
                reached_at: reached_bytes,
                versions_at,
            });
            reached_bytes += count.div_ceil(8);
            versions_bytes += if versions_at.is_some() { count } else { 0 };
        }
        Self {
            geometry,
            chunks,
            by_place,
            extents,
            reached: vec![0; reached_bytes],
            versions: vec![0; versions_bytes],
            next_entry: 0,
            last_word: 0,
            figures: ScanFigures::default(),
        }
    }

    /// Reads up to `segments` segments; returns whether all were read.
    ///
    /// # Errors
    /// If the words are not those of the geometry's region.
    pub fn advance(&mut self, words: WordMemory, segments: u64) -> Result<bool, AccessError> {
        let end = self.figures.segments + segments;
        let entries = self.geometry.directory_entries();
        let mut segment = vec![0; SEGMENT_BYTES as usize];
        while self.next_entry < entries && self.figures.segments < end {
            let bits = words.load(self.geometry.directory_word_offset(self.next_entry))?;
            self.next_entry += 1;
            // A segment fills a run of entries.
            if bits == self.last_word {
                continue;
            }
            self.last_word = bits;
            let Some(offset) = self.geometry.segment_offset(DirectoryWord::from_bits(bits)) else { continue };
            words.read(offset, &mut segment)?;
            self.figures.segments += 1;
            self.look_through(&segment);
        }
        Ok(self.next_entry == entries)
    }

    /// Looks through a segment that was read.
    fn look_through(&mut self, segment: &[u8]) {
        let (words, _) = segment.as_chunks::<8>();
        const WORDS_PER_BUCKET: usize = (BUCKET_BYTES / 8) as usize;
        const _: () = assert!(SEGMENT_BYTES == BUCKETS_PER_SEGMENT * BUCKET_BYTES);
        for bucket in words.chunks_exact(WORDS_PER_BUCKET) {
            // The first word is the header.
            for word in &bucket[1..] {
                let bits = u64::from_le_bytes(*word);
                if bits != 0 {
                    self.look_at(SlotWord::from_bits(bits));
                }
            }
        }
    }

    fn look_at(&mut self, word: SlotWord) {
        let block = match word.state() {
            SlotState::Empty | SlotState::Closed => return,
            SlotState::Live(block) | SlotState::Deleted(block) | SlotState::Moved(block) => block,
            SlotState::Malformed => {
                self.figures.malformed += 1;
                return;
            }
        };
        self.figures.blocks += 1;
        let Some((chunk, index)) = self.find(block) else {
            self.figures.strangers += 1;
            return;
        };
        let (reached_at, versions_at) = (chunk.reached_at, chunk.versions_at);
        self.reached[reached_at + index / 8] |= 1 << (index % 8);
        if let Some(versions_at) = versions_at {
            self.versions[versions_at + index] = block.version.0;
        }
    }

    /// The chunk of a block, and which of its blocks it is.
    fn find(&self, block: BlockRef) -> Option<(&Chunk, usize)> {
        let number = if block.class.bytes() > CHUNK_CLASS_BYTES_MAX {
            *self.extents.get(&block.offset.0.checked_sub(BLOCK_UNIT_BYTES)?)?
        } else {
            let within = block.offset.0.checked_sub(self.geometry.block_pool_offset.0)?;
            *self.by_place.get(usize::try_from(within / CHUNK_BYTES).ok()?)?
        };
        let chunk = self.chunks.get(number as usize).filter(|chunk| chunk.cut_up.class == block.class)?;
        let within = block.offset.0.checked_sub(chunk.cut_up.offset + chunk.blocks_offset)?;
        // Slot words name places in units. A chunk, and an extent, has fewer than 2^32.
        let units = (within / BLOCK_UNIT_BYTES) as u32;
        let index = units / chunk.block_units;
        let is_block = index * chunk.block_units == units && index < chunk.block_count;
        is_block.then_some((chunk, index as usize))
    }

    /// What was seen.
    pub const fn figures(&self) -> ScanFigures {
        self.figures
    }

    /// What was found, chunk by chunk.
    pub fn found(&self) -> impl Iterator<Item = Found<'_>> {
        self.chunks.iter().map(|chunk| Found { chunk, scan: self })
    }
}

/// What a scan found of a chunk.
#[derive(Clone, Copy, Debug)]
pub struct Found<'a> {
    chunk: &'a Chunk,
    scan: &'a Scan,
}

impl<'a> Found<'a> {
    /// The chunk, as it was when the scan began.
    pub const fn chunk(&self) -> &'a CutUp {
        &self.chunk.cut_up
    }

    /// Bit `i % 8` of byte `i / 8` is 1 if block `i` was reached.
    pub fn bits(&self) -> &'a [u8] {
        let bytes = (self.chunk.block_count as usize).div_ceil(8);
        &self.scan.reached[self.chunk.reached_at..self.chunk.reached_at + bytes]
    }

    /// By which version a block was reached, if it was. Versions are known of chunks whose session ended; of others it is
    /// one version or another.
    pub fn reached(&self, block: u32) -> Option<Version> {
        let block = block as usize;
        if self.bits()[block / 8] & 1 << (block % 8) == 0 {
            return None;
        }
        Some(Version(self.chunk.versions_at.map_or(0, |at| self.scan.versions[at + block])))
    }
}
