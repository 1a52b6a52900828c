//! The region's first bytes: what must be there before the first client comes.
//!
//! Always true: the superblock is written last, so whoever finds one finds the directory and every bucket header
//! too.

use std::time::Instant;

use sidestep_common::layout::{
    AtomicityDomain, BUCKET_BYTES, BUCKETS_PER_SEGMENT, BucketHeader, DirectoryWord, Geometry, Offset,
    SPARE_SUPERBLOCK_OFFSET, Superblock, TICK_OFFSET,
};
use sidestep_common::memory::{AccessError, WordMemory};

/// The generation of a region's first segments.
const FIRST_GENERATION: u32 = 1;
/// Fewer segments than this a thread are not worth the thread.
const SEGMENTS_PER_THREAD_MIN: u64 = 1024;

/// Writes both copies of the superblock: first the one at `first`, which must be bad if one is. Whoever stops on the way leaves a
/// good one.
///
/// # Errors
/// If the memory is too short.
pub fn write_superblock(
    words: WordMemory,
    superblock: &Superblock,
    first: Offset,
) -> Result<(), AccessError> {
    let second = if first == SPARE_SUPERBLOCK_OFFSET { Offset(0) } else { SPARE_SUPERBLOCK_OFFSET };
    words.write(first, &superblock.encode())?;
    words.write(second, &superblock.encode())
}

/// A region that is ready for clients.
#[derive(Debug)]
pub struct Region {
    /// What it says of itself.
    pub superblock: Superblock,
    words: WordMemory,
    created: Instant,
    /// What the tick was when another process left it.
    tick_before_ms: u64,
}

impl Region {
    /// Makes fresh, zeroed memory a region whose index has `segments` segments, a power of two: each serves a run of
    /// directory entries. Bucket headers are written by `threads` threads, since they touch one cache line in four.
    ///
    /// # Errors
    /// If the memory is shorter than the geometry.
    ///
    /// # Panics
    /// If the operating system has no randomness to give: the hash seed must be secret. If `segments` is no power of two or
    /// more than the directory has entries: the configuration was checked.
    pub fn format(
        words: WordMemory,
        geometry: Geometry,
        domain: AtomicityDomain,
        grace_ms: u64,
        segments: u64,
        threads: usize,
    ) -> Result<Self, AccessError> {
        let entries = geometry.directory_entries();
        assert!(segments.is_power_of_two() && segments <= entries, "{segments} segments, {entries} entries");
        words.check(Offset(0), geometry.region_bytes)?;
        let depth = segments.ilog2();
        write_headers(words, &geometry, depth, threads)?;
        for index in 0..entries {
            let segment = (index >> (geometry.directory_bits - depth)) as u32;
            let word = DirectoryWord { segment, generation: FIRST_GENERATION, depth };
            words.store(geometry.directory_word_offset(index), word.to_bits())?;
        }
        let superblock = Superblock {
            geometry,
            incarnation: random_incarnation(),
            hash_seed: random_word(),
            domain,
            grace_ms,
        };
        words.store(TICK_OFFSET, 0)?;
        // The one that clients read comes last.
        write_superblock(words, &superblock, SPARE_SUPERBLOCK_OFFSET)?;
        Ok(Self { superblock, words, created: Instant::now(), tick_before_ms: 0 })
    }

    /// One that was taken over from another process: the tick goes on from `tick_ms`.
    pub fn taken_over(words: WordMemory, superblock: Superblock, tick_ms: u64) -> Self {
        Self { superblock, words, created: Instant::now(), tick_before_ms: tick_ms }
    }

    /// How long there has been a server for it, in milliseconds.
    pub fn age_ms(&self) -> u64 {
        self.tick_before_ms.saturating_add(self.created.elapsed().as_millis() as u64)
    }

    /// Advances the tick to the present. Only one thread does this, so that it never goes back.
    pub fn advance_tick(&self) {
        if let Err(error) = self.words.store(TICK_OFFSET, self.age_ms()) {
            unreachable!("the tick word is in every region: {error}");
        }
    }
}

/// Writes the headers of the first `2^depth` segments, each of which serves the prefix that is its number.
fn write_headers(
    words: WordMemory,
    geometry: &Geometry,
    depth: u32,
    threads: usize,
) -> Result<(), AccessError> {
    let count = 1_u64 << depth;
    let threads = (threads as u64).clamp(1, count.div_ceil(SEGMENTS_PER_THREAD_MIN));
    let share = count.div_ceil(threads);
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads)
            .map(|thread| {
                let segments = thread * share..((thread + 1) * share).min(count);
                scope.spawn(move || {
                    for segment in segments {
                        write_segment(words, geometry, depth, segment)?;
                    }
                    Ok(())
                })
            })
            .collect();
        for worker in workers {
            match worker.join() {
                Ok(written) => written?,
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
        Ok(())
    })
}

fn write_segment(
    words: WordMemory,
    geometry: &Geometry,
    depth: u32,
    segment: u64,
) -> Result<(), AccessError> {
    let header = BucketHeader { depth, prefix: segment as u32, generation: FIRST_GENERATION, sealed: false };
    let start = geometry.segment_pool_offset.plus(segment * BUCKETS_PER_SEGMENT * BUCKET_BYTES);
    for bucket in 0..BUCKETS_PER_SEGMENT {
        words.store(start.plus(bucket * BUCKET_BYTES), header.to_bits())?;
    }
    Ok(())
}

/// A new incarnation. Zero would look like "none" in logs and answers.
///
/// # Panics
/// If the operating system has no randomness to give.
pub fn random_incarnation() -> u64 {
    random_word().max(1)
}

fn random_word() -> u64 {
    match getrandom::u64() {
        Ok(word) => word,
        Err(error) => panic!("no randomness from the operating system: {error}"),
    }
}

#[cfg(test)]
mod tests {
    use std::ptr::NonNull;

    use sidestep_common::hash::KeyHash;
    use sidestep_common::layout::Bucket;

    use super::*;

    fn formatted(region_bytes: u64, segments: u64, threads: usize, check: impl FnOnce(&Region, WordMemory)) {
        let mut memory = vec![0_u64; region_bytes as usize / 8];
        let base = NonNull::new(memory.as_mut_ptr().cast()).unwrap();
        // SAFETY: the vector outlives every use below.
        let words = unsafe { WordMemory::new(base, region_bytes) };
        let geometry = Geometry::for_region(region_bytes).unwrap();
        let region = Region::format(words, geometry, AtomicityDomain::Cpu, 5000, segments, threads).unwrap();
        check(&region, words);
    }

    /// What a client does first: superblock, directory word, bucket; every key must find a bucket that serves it.
    #[test]
    fn every_key_finds_its_bucket() {
        for segments in [1, 16, 512] {
            formatted(64 << 20, segments, 4, every_key_is_served);
        }
    }

    fn every_key_is_served(region: &Region, words: WordMemory) {
        let mut bytes = [0; 4096];
        words.read(Offset(0), &mut bytes).unwrap();
        assert_eq!(Superblock::parse(&bytes), Ok(region.superblock));
        let geometry = region.superblock.geometry;
        for key in 0..20_000_u32 {
            let hash = KeyHash::of(&key.to_le_bytes(), region.superblock.hash_seed);
            let index = hash.directory_index(geometry.directory_bits);
            let word = words.load(geometry.directory_word_offset(index)).unwrap();
            let offset = geometry.bucket_offset(DirectoryWord::from_bits(word), hash).unwrap();
            let mut bucket = [0; BUCKET_BYTES as usize];
            words.read(offset, &mut bucket).unwrap();
            let bucket = Bucket::parse(&bucket);
            assert!(bucket.header.serves(hash), "{:?}", bucket.header);
            assert!(bucket.slots.iter().all(|slot| slot.bits() == 0));
        }
    }

    #[test]
    fn the_block_pool_is_untouched_and_incarnations_differ() {
        let mut incarnations = Vec::new();
        for threads in [1, 3] {
            formatted(4 << 20, 4, threads, |region, words| {
                let pool = region.superblock.geometry.block_pool_offset.0;
                assert!((pool..4 << 20).step_by(8).all(|at| words.load(Offset(at)) == Ok(0)));
                incarnations.push((region.superblock.incarnation, region.superblock.hash_seed));
            });
        }
        assert_ne!(incarnations[0].0, incarnations[1].0);
        assert_ne!(incarnations[0].1, incarnations[1].1);
    }

    #[test]
    fn the_tick_advances() {
        formatted(4 << 20, 16, 1, |region, words| {
            let deadline = Instant::now() + std::time::Duration::from_secs(5);
            while words.load(TICK_OFFSET).unwrap() < 3 {
                assert!(Instant::now() < deadline);
                region.advance_tick();
            }
            assert!(words.load(TICK_OFFSET).unwrap() < 10_000);
        });
    }
}
