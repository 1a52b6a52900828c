//! Taking a region over that another process served.
//!
//! Always true: nothing is changed before everything was checked, and what was changed can be changed again in the same
//! way: a crash on the way is as good as none. No client has access meanwhile: those of the old process lost theirs with
//! it (queue pairs and connections; a region that is kept is never mapped by clients).
//!
//! What the old process may have left half done, and what becomes of it:
//!
//! ```text
//! a rebuild that sealed slots, published nothing     the segment is built anew, with everything open, and published
//! one that published some words of a new segment     the same, for its whole run
//! a split that published one half only               both halves are built and published
//! one that published all, and not unsealed all       the same
//! chunks: which there are is known from the slots; what no slot reaches is free
//! ```
//!
//! That CLOSED slots are left out forgets deleted keys, which were absent already; nobody is under way who could have
//! read the slot before.

use std::collections::BTreeMap;

use sidestep_common::hash::KeyHash;
use sidestep_common::layout::{
    AtomicityDomain, BLOCK_HEADER_BYTES, BUCKET_BYTES, BUCKET_HEADER_BYTES, BUCKETS_PER_SEGMENT, Block,
    BlockPlace, BlockRef, Bucket, BucketHeader, DirectoryWord, Geometry, Offset, SLOTS_PER_BUCKET,
    SPARE_SUPERBLOCK_OFFSET, SizeClass, SlotState, SlotWord, Superblock, SuperblockError, TICK_OFFSET,
    chunk_shape,
};
use sidestep_common::memory::{AccessError, WordMemory};

use crate::pool::{VERSION_AT, free_version, reserve_end};
use crate::region::write_superblock;

/// A region can't be taken over. It is as it was.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum RecoveryError {
    /// It isn't a region, or of another version.
    #[error("the kept file is no region that this kvserver understands: {0}")]
    Superblock(#[from] SuperblockError),
    /// The file has another length.
    #[error("the kept file has {found_bytes} bytes, its region has {region_bytes}")]
    Length {
        /// Of the file.
        found_bytes: u64,
        /// As the superblock says.
        region_bytes: u64,
    },
    /// It was served to clients of another kind.
    #[error(
        "the kept region is of the atomicity domain `{found}`, what is to be served now is of `{wanted}`"
    )]
    Domain {
        /// As kept.
        found: AtomicityDomain,
        /// As wanted.
        wanted: AtomicityDomain,
    },
    /// Something in it can't be.
    #[error("the kept region is damaged at {offset}: {what}")]
    Damaged {
        /// Where.
        offset: Offset,
        /// What is wrong there.
        what: &'static str,
    },
    /// The memory is shorter than the region.
    #[error(transparent)]
    Access(#[from] AccessError),
}

/// A chunk that is cut up for a size class.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct KeptChunk {
    /// Where it starts.
    pub offset: u64,
    /// For which class.
    pub class: SizeClass,
    /// The version of each block's last use; a block is free if its byte of the free map equals it.
    pub versions: Vec<u8>,
}

/// A region that was taken over.
#[derive(Debug)]
pub struct Recovered {
    /// What it says of itself, with a new incarnation.
    pub superblock: Superblock,
    /// The tick goes on from here.
    pub tick_ms: u64,
    /// The chunks that hold something. Whatever else the pool has is free.
    pub chunks: Vec<KeptChunk>,
    /// Keys that are there.
    pub keys: u64,
    /// Rebuilds that were finished or undone.
    pub mended: u64,
}

/// A segment and the run of directory entries that it serves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Serving {
    word: DirectoryWord,
    first: u64,
    count: u64,
    /// The other half of its split was published, this one was not: it must be built out of the word's segment.
    is_to_be_built: bool,
}

/// Blocks that slots name, by chunk.
#[derive(Default)]
struct Chunks(BTreeMap<u64, Reached>);

struct Reached {
    class: SizeClass,
    /// The version that a slot names, by block; none if no slot does.
    versions: Vec<Option<u8>>,
}

/// A tick beyond this, a thousand years, is nonsense.
const TICK_MS_MAX: u64 = 1000 * 366 * 24 * 3600 * 1000;

/// What the region is from now on.
#[derive(Clone, Copy, Debug)]
pub struct NewLife {
    /// Whose atomics change it: as before.
    pub domain: AtomicityDomain,
    /// The grace period, in milliseconds.
    pub grace_ms: u64,
    /// Another number than ever before.
    pub incarnation: u64,
}

/// Checks a region, mends what was left half done, and begins its new life.
///
/// # Errors
/// [`RecoveryError`]; then nothing was changed.
pub fn take_over(words: WordMemory, life: NewLife) -> Result<Recovered, RecoveryError> {
    let NewLife { domain, grace_ms, incarnation } = life;
    let (superblock, bad) = read_superblock(words)?;
    let geometry = superblock.geometry;
    if geometry.region_bytes != words.bytes() {
        return Err(RecoveryError::Length {
            found_bytes: words.bytes(),
            region_bytes: geometry.region_bytes,
        });
    }
    if superblock.domain != domain {
        return Err(RecoveryError::Domain { found: superblock.domain, wanted: domain });
    }
    let mut check = Check { words, geometry, seed: superblock.hash_seed, chunks: Chunks::default(), keys: 0 };
    let plan = check.directory()?;
    let mut is_sealed = Vec::with_capacity(plan.len());
    for serving in &plan {
        is_sealed.push(check.segment(*serving)?);
    }
    let mut serving: Vec<u32> = plan.iter().map(|serving| serving.word.segment).collect();
    serving.sort_unstable();
    let mut free = (0..geometry.segment_count as u32).filter(|number| serving.binary_search(number).is_err());
    // What is built anew gets its segment now: what can't be done must be known before anything is.
    let mut segments = Vec::with_capacity(plan.len());
    for (one, is_sealed) in plan.iter().zip(is_sealed) {
        let is_built = one.is_to_be_built || is_sealed;
        let segment = if is_built { free.next() } else { None };
        if is_built && segment.is_none() {
            let what = "more rebuilds are half done than there are free segments to finish them";
            return damaged(geometry.directory_word_offset(one.first), what);
        }
        segments.push(segment);
    }
    // From here on everything fits; what follows can be repeated.
    let mut mended = 0;
    for (one, segment) in plan.iter().zip(segments) {
        let word = match segment {
            Some(segment) => {
                mended += 1;
                build(words, &geometry, *one, segment, superblock.hash_seed)?
            }
            None => one.word,
        };
        for entry in one.first..one.first + one.count {
            words.store(geometry.directory_word_offset(entry), word.to_bits())?;
        }
    }
    let chunks = check.chunks.settle(words)?;
    let superblock = Superblock { incarnation, grace_ms, ..superblock };
    write_superblock(words, &superblock, bad)?;
    // One that no server can have reached was written by somebody else.
    let tick_ms = words.load(TICK_OFFSET)?.min(TICK_MS_MAX);
    Ok(Recovered { superblock, tick_ms, chunks, keys: check.keys, mended })
}

/// The superblock, or the spare copy if a crash came while the first was written; and the copy to be written first.
fn read_superblock(words: WordMemory) -> Result<(Superblock, Offset), RecoveryError> {
    let read = |offset| -> Result<Result<Superblock, SuperblockError>, AccessError> {
        let mut bytes = [0; 256];
        words.read(offset, &mut bytes)?;
        Ok(Superblock::parse(&bytes))
    };
    match read(Offset(0))? {
        Ok(superblock) => Ok((superblock, SPARE_SUPERBLOCK_OFFSET)),
        Err(error) => {
            let superblock = read(SPARE_SUPERBLOCK_OFFSET)?.map_err(|_| error)?;
            Ok((superblock, Offset(0)))
        }
    }
}

struct Check {
    words: WordMemory,
    geometry: Geometry,
    seed: u64,
    chunks: Chunks,
    keys: u64,
}

const fn damaged<T>(offset: Offset, what: &'static str) -> Result<T, RecoveryError> {
    Err(RecoveryError::Damaged { offset, what })
}

impl Check {
    /// Which segment serves which run, once rebuilds that were under way are finished.
    fn directory(&self) -> Result<Vec<Serving>, RecoveryError> {
        let entries = self.geometry.directory_entries();
        let mut directory = Vec::with_capacity(entries as usize);
        for entry in 0..entries {
            let offset = self.geometry.directory_word_offset(entry);
            let word = DirectoryWord::from_bits(self.words.load(offset)?);
            if word.generation == 0
                || u64::from(word.segment) >= self.geometry.segment_count
                || word.depth > self.geometry.directory_bits
            {
                return damaged(offset, "a directory word names no segment");
            }
            directory.push(word);
        }
        let mut plan = Vec::new();
        // Runs still to be looked at, the first one last: an entry, how many, and the depth that such a run has.
        let mut runs = vec![(0_u64, entries, 0_u32)];
        while let Some((first, count, depth)) = runs.pop() {
            let words = &directory[first as usize..(first + count) as usize];
            if words.iter().any(|word| word.depth > depth) {
                runs.push((first + count / 2, count / 2, depth + 1));
                runs.push((first, count / 2, depth + 1));
                continue;
            }
            let of_depth = words.iter().filter(|word| word.depth == depth);
            let newest = of_depth.copied().reduce(|a, b| if b.is_newer_than(a) { b } else { a });
            match newest {
                Some(word) => plan.push(Serving { word, first, count, is_to_be_built: false }),
                None if words.iter().all(|word| *word == words[0]) => {
                    plan.push(Serving { word: words[0], first, count, is_to_be_built: true });
                }
                None => {
                    let offset = self.geometry.directory_word_offset(first);
                    return damaged(offset, "directory words of one run contradict each other");
                }
            }
        }
        let mut named: Vec<u32> =
            plan.iter().filter(|one| !one.is_to_be_built).map(|one| one.word.segment).collect();
        named.sort_unstable();
        if let Some(twice) = named.windows(2).find(|pair| pair[0] == pair[1]) {
            let word = DirectoryWord { segment: twice[0], generation: 1, depth: 0 };
            let offset = self.geometry.segment_offset(word).unwrap_or(Offset(0));
            return damaged(offset, "two runs of the directory name one segment");
        }
        Ok(plan)
    }

    /// Checks a segment; whether anything of it is sealed.
    fn segment(&mut self, serving: Serving) -> Result<bool, RecoveryError> {
        let Some(segment) = self.geometry.segment_offset(serving.word) else {
            return damaged(Offset(0), "a segment outside its pool");
        };
        let word = serving.word;
        // A half that is to be built is deeper than its source.
        let source_first = serving.first >> (self.geometry.directory_bits - word.depth);
        let mut is_sealed = false;
        let mut hashes: Vec<KeyHash> = Vec::with_capacity(SLOTS_PER_BUCKET);
        for number in 0..BUCKETS_PER_SEGMENT {
            let offset = segment.plus(number * BUCKET_BYTES);
            let bucket = self.bucket(offset)?;
            let header = bucket.header;
            if header.generation != word.generation
                || header.depth != word.depth
                || u64::from(header.prefix) != source_first
            {
                return damaged(offset, "a bucket's header is not the one of its directory word");
            }
            is_sealed |= header.sealed;
            hashes.clear();
            for (slot, &content) in bucket.slots.iter().enumerate() {
                let place = offset.plus(BUCKET_HEADER_BYTES + 8 * slot as u64);
                let (block, is_key) = match content.state() {
                    SlotState::Empty => continue,
                    SlotState::Closed => {
                        is_sealed = true;
                        continue;
                    }
                    SlotState::Live(block) => (block, true),
                    SlotState::Moved(block) => {
                        is_sealed = true;
                        (block, true)
                    }
                    SlotState::Deleted(block) => (block, false),
                    SlotState::Malformed => return damaged(place, "a slot holds no valid word"),
                };
                let hash = self.key_of(place, block)?;
                if hash.tag() != content.tag()
                    || hash.bucket_index() != number
                    || hash.prefix(word.depth) != source_first
                {
                    return damaged(place, "a slot's key belongs elsewhere");
                }
                let entry = hash.directory_index(self.geometry.directory_bits);
                if !(serving.first..serving.first + serving.count).contains(&entry) {
                    // Of the half that was published, whose own segment has it.
                    continue;
                }
                if hashes.contains(&hash) {
                    return damaged(place, "a key is in its bucket twice");
                }
                hashes.push(hash);
                self.chunks.reach(&self.geometry, place, block)?;
                self.keys += u64::from(is_key);
            }
        }
        Ok(is_sealed)
    }

    fn bucket(&self, offset: Offset) -> Result<Bucket, AccessError> {
        let mut bytes = [0; BUCKET_BYTES as usize];
        self.words.read(offset, &mut bytes)?;
        Ok(Bucket::parse(&bytes))
    }

    /// The hash of a block's key; the block must fit.
    fn key_of(&self, slot: Offset, block: BlockRef) -> Result<KeyHash, RecoveryError> {
        if BlockPlace::of(block.offset, block.class).is_none()
            || !self.geometry.block_pool_holds(block.offset, block.class.bytes())
        {
            return damaged(slot, "a slot names a place where no block can be");
        }
        let mut bytes = vec![0; block.class.bytes() as usize];
        self.words.read(block.offset, &mut bytes)?;
        match Block::parse(&bytes, block) {
            Ok(parsed) => Ok(KeyHash::of(parsed.key, self.seed)),
            Err(_) => damaged(block.offset, "a block does not fit the slot that names it"),
        }
    }
}

impl Chunks {
    /// A slot names that block.
    fn reach(&mut self, geometry: &Geometry, slot: Offset, block: BlockRef) -> Result<(), RecoveryError> {
        let Some(place) = BlockPlace::of(block.offset, block.class) else {
            return damaged(slot, "a slot names a place where no block can be");
        };
        let shape = chunk_shape(block.class);
        if !geometry.block_pool_holds(place.chunk, shape.bytes) {
            return damaged(slot, "a slot names a block of a chunk outside the pool");
        }
        let border = reserve_end(geometry);
        if place.chunk.0 < border && place.chunk.0 + shape.bytes > border {
            return damaged(slot, "a slot names a block of a chunk that is partly in the reserve");
        }
        let reached = self.0.entry(place.chunk.0).or_insert_with(|| Reached {
            class: block.class,
            versions: vec![None; shape.block_count as usize],
        });
        if reached.class != block.class {
            return damaged(slot, "slots name blocks of two classes in one chunk");
        }
        let version = &mut reached.versions[place.index as usize];
        if version.is_some() {
            return damaged(slot, "two slots name one block");
        }
        *version = Some(block.version.0);
        // Its neighbours' chunks may not lap over it.
        let before = self.0.range(..place.chunk.0).next_back();
        if before.is_some_and(|(at, chunk)| at + chunk_shape(chunk.class).bytes > place.chunk.0) {
            return damaged(slot, "a slot names a block of a chunk within another");
        }
        let after = self.0.range(place.chunk.0 + 1..).next();
        if after.is_some_and(|(at, _)| place.chunk.0 + shape.bytes > *at) {
            return damaged(slot, "a slot names a block of a chunk within another");
        }
        Ok(())
    }

    /// Marks what no slot reaches as free, with a version that neither the block nor the map has.
    fn settle(self, words: WordMemory) -> Result<Vec<KeptChunk>, AccessError> {
        let mut chunks = Vec::with_capacity(self.0.len());
        for (offset, reached) in self.0 {
            let shape = chunk_shape(reached.class);
            let mut map = vec![0; reached.versions.len()];
            words.read(Offset(offset), &mut map)?;
            let mut versions = Vec::with_capacity(reached.versions.len());
            for ((index, version), byte) in (0_u64..).zip(reached.versions).zip(&mut map) {
                versions.push(match version {
                    Some(version) => {
                        if *byte == version {
                            // A mark that is not this use's: version numbers come round. It must not free the block.
                            *byte = version.wrapping_sub(1);
                        }
                        version
                    }
                    None => {
                        let block = Offset(offset + shape.blocks_offset + index * reached.class.bytes());
                        let mut header = [0; BLOCK_HEADER_BYTES];
                        words.read(block, &mut header)?;
                        *byte = free_version(header[VERSION_AT as usize], *byte);
                        *byte
                    }
                });
            }
            words.write(Offset(offset), &map)?;
            chunks.push(KeptChunk { offset, class: reached.class, versions });
        }
        Ok(chunks)
    }
}

/// Builds what a run's keys need, with everything open and no slot left out, in segment number `number`: one half of a segment
/// that was split, or all of one that was sealed. ⚑ The old segment stays as it is, so whoever stops on the way changed nothing.
fn build(
    words: WordMemory,
    geometry: &Geometry,
    half: Serving,
    number: u32,
    seed: u64,
) -> Result<DirectoryWord, RecoveryError> {
    let depth = geometry.directory_bits - half.count.ilog2();
    let prefix = half.first >> half.count.ilog2();
    let word = DirectoryWord { segment: number, generation: half.word.next_generation(), depth };
    let (Some(from), Some(to)) = (geometry.segment_offset(half.word), geometry.segment_offset(word)) else {
        return damaged(geometry.directory_word_offset(half.first), "a segment outside its pool");
    };
    let header = BucketHeader { depth, prefix: prefix as u32, generation: word.generation, sealed: false };
    for bucket in 0..BUCKETS_PER_SEGMENT {
        let mut bytes = [0; BUCKET_BYTES as usize];
        words.read(from.plus(bucket * BUCKET_BYTES), &mut bytes)?;
        let old = Bucket::parse(&bytes);
        let place = to.plus(bucket * BUCKET_BYTES);
        words.store(place, header.to_bits())?;
        let mut next = 0;
        for content in old.slots {
            let (content, block) = match content.state() {
                SlotState::Moved(block) | SlotState::Live(block) => (content.to_live(), block),
                // Written after it was opened again; its block is in use.
                SlotState::Deleted(block) => (content, block),
                _ => continue,
            };
            let mut block_bytes = vec![0; block.class.bytes() as usize];
            words.read(block.offset, &mut block_bytes)?;
            let Ok(parsed) = Block::parse(&block_bytes, block) else { continue };
            if !header.serves(KeyHash::of(parsed.key, seed)) {
                continue;
            }
            words.store(place.plus(BUCKET_HEADER_BYTES + 8 * next), content.bits())?;
            next += 1;
        }
        for slot in next..SLOTS_PER_BUCKET as u64 {
            words.store(place.plus(BUCKET_HEADER_BYTES + 8 * slot), SlotWord::EMPTY.bits())?;
        }
    }
    Ok(word)
}

#[cfg(test)]
mod tests;
