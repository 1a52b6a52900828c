//! A small region on a simulated node, laid out as a server does it.
//!
//! Always true: segments are shared by four directory entries each, so that there is room for rebuilds; the keys of stories
//! are in the first two buckets of one segment; everything is the same in every run.

use sidestep_common::fabric::sim::SimNode;
use sidestep_common::hash::KeyHash;
use sidestep_common::layout::{
    AtomicityDomain, BUCKET_BYTES, BUCKETS_PER_SEGMENT, BucketHeader, DirectoryWord, Geometry, Offset,
    Superblock,
};

/// The grace period of the region.
pub(super) const GRACE_MS: u64 = 1000;
/// Room for a chunk a put, if need be; not all of it is ever touched.
const REGION_BYTES: u64 = 40 << 20;
const SEED: u64 = 7;
/// Directory entries to a segment, as a power of two.
const SHARED_BITS: u32 = 2;
/// Directory entries to a segment.
pub(super) const ENTRIES: usize = 1 << SHARED_BITS;
/// Keys that only fill the bucket up.
const FILLERS: usize = 31;

/// A key of the stories.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Key {
    /// The key.
    First,
    /// Another of the same bucket and tag: the hardest neighbour.
    Twin,
    /// Another of the same bucket, with another tag; of the other half when the segment is split.
    Neighbour,
    /// Another of the segment's next bucket.
    Elsewhere,
    /// One of many of the same bucket.
    Filler(u8),
}

/// The region of one simulator.
#[derive(Debug)]
pub struct Region {
    /// Its node.
    pub node: SimNode,
    /// Its facts.
    pub superblock: Superblock,
    /// The directory as it was made.
    pub directory: Vec<u8>,
    /// A copy of it that is older than it, and leads to other keys' segments.
    pub old_directory: Vec<u8>,
    /// Where chunks begin.
    pub first_chunk: u64,
    keys: [&'static [u8]; 4],
    fillers: Vec<&'static [u8]>,
}

impl Region {
    /// Makes one.
    ///
    /// # Panics
    /// Never: the sizes are constants.
    pub fn new() -> Self {
        let geometry = Geometry::for_region(REGION_BYTES).expect("a valid size");
        let superblock = Superblock {
            geometry,
            incarnation: 1,
            hash_seed: SEED,
            domain: AtomicityDomain::Cpu,
            grace_ms: GRACE_MS,
        };
        let node = SimNode::by_hand(REGION_BYTES);
        node.write(Offset(0), &superblock.encode());
        let depth = geometry.directory_bits - SHARED_BITS;
        let (mut directory, mut old_directory) = (Vec::new(), Vec::new());
        for index in 0..geometry.directory_entries() {
            let prefix = (index >> SHARED_BITS) as u32;
            let word = DirectoryWord { segment: prefix, generation: 1, depth };
            node.store(geometry.directory_word_offset(index), word.to_bits());
            directory.extend(word.to_bits().to_le_bytes());
            let old = DirectoryWord { segment: prefix ^ 1, generation: 0, depth };
            old_directory.extend(old.to_bits().to_le_bytes());
            let header = BucketHeader { depth, prefix, generation: 1, sealed: false };
            let segment = geometry.segment_offset(word).expect("a segment for each");
            for bucket in 0..BUCKETS_PER_SEGMENT {
                node.store(segment.plus(bucket * BUCKET_BYTES), header.to_bits());
            }
        }
        node.mark();
        let bits = |key: &[u8]| KeyHash::of(key, SEED);
        let mut keys = (0_u64..).map(|number| format!("key{number}").into_bytes());
        let Some(first) = keys.find(|key| bits(key).bucket_index() == 0) else {
            unreachable!("there is no end of keys")
        };
        let mut of_segment = keys.filter(|key| bits(key).prefix(depth) == bits(&first).prefix(depth));
        let (mut twin, mut neighbour, mut elsewhere, mut fillers) = (None, None, None, Vec::new());
        while twin.is_none() || neighbour.is_none() || elsewhere.is_none() || fillers.len() < FILLERS {
            let Some(key) = of_segment.next() else { unreachable!("there is no end of keys") };
            let other_half = bits(&key).prefix(depth + 1) != bits(&first).prefix(depth + 1);
            match bits(&key).bucket_index() {
                0 if bits(&key).tag() == bits(&first).tag() => twin = twin.or(Some(key)),
                0 if other_half && neighbour.is_none() => neighbour = Some(key),
                0 if fillers.len() < FILLERS => fillers.push(&*key.leak()),
                1 if other_half => elsewhere = elsewhere.or(Some(key)),
                _ => {}
            }
        }
        let found = |key: Option<Vec<u8>>| &*key.unwrap_or_default().leak();
        let keys = [&*first.leak(), found(twin), found(neighbour), found(elsewhere)];
        let first_chunk = geometry.block_pool_offset.0;
        Self { node, superblock, directory, old_directory, first_chunk, keys, fillers }
    }

    /// A key's bytes.
    pub fn key(&self, key: Key) -> &'static [u8] {
        match key {
            Key::First => self.keys[0],
            Key::Twin => self.keys[1],
            Key::Neighbour => self.keys[2],
            Key::Elsewhere => self.keys[3],
            Key::Filler(number) => self.fillers[usize::from(number)],
        }
    }

    /// Which key has these bytes.
    pub fn key_of(&self, bytes: &[u8]) -> Option<Key> {
        let filler = || self.fillers.iter().position(|key| *key == bytes).map(|at| Key::Filler(at as u8));
        match self.keys.iter().position(|key| *key == bytes) {
            Some(0) => Some(Key::First),
            Some(1) => Some(Key::Twin),
            Some(2) => Some(Key::Neighbour),
            Some(_) => Some(Key::Elsewhere),
            None => filler(),
        }
    }

    /// The key's hash.
    pub fn hash(&self, key: Key) -> KeyHash {
        KeyHash::of(self.key(key), SEED)
    }

    /// The directory entry of all keys of the stories, at their common depth: its first.
    pub fn first_entry(&self) -> u64 {
        let depth = self.superblock.geometry.directory_bits - SHARED_BITS;
        self.hash(Key::First).prefix(depth) << SHARED_BITS
    }

    /// Entries that share the segment of the stories' keys.
    pub const fn entries(&self) -> u64 {
        ENTRIES as u64
    }
}

impl Default for Region {
    fn default() -> Self {
        Self::new()
    }
}

/// The bytes of a value with this number: longer than a word, so that it can tear, and each word the same.
pub(super) fn value_bytes(number: u64) -> &'static [u8] {
    static VALUES: std::sync::OnceLock<Vec<[u8; VALUE_BYTES]>> = std::sync::OnceLock::new();
    let values = VALUES.get_or_init(|| {
        (0..VALUES_MAX)
            .map(|number: u64| {
                let mut bytes = [0; VALUE_BYTES];
                bytes.chunks_exact_mut(8).for_each(|word| word.copy_from_slice(&number.to_le_bytes()));
                bytes
            })
            .collect()
    });
    &values[number as usize]
}

const VALUE_BYTES: usize = 24;
const VALUES_MAX: u64 = 4096;

/// The number of a value; `None` if no put made these bytes.
pub(super) fn value_number(bytes: &[u8]) -> Option<u64> {
    let (words, rest) = bytes.as_chunks::<8>();
    let number = u64::from_le_bytes(*words.first()?);
    let whole = rest.is_empty() && bytes.len() == VALUE_BYTES && words.iter().all(|word| *word == words[0]);
    whole.then_some(number)
}
