//! A region in this process's memory, and what the story does to it.
//!
//! Always true: when a world is dropped, every word is what it was before the first call, so that the next story can
//! have the memory. Making it anew would cost more than most stories.

use std::cell::RefCell;

use sidestep_client::directory::Directory;
use sidestep_common::hash::KeyHash;
use sidestep_common::layout::{
    AtomicityDomain, BLOCK_HEADER_BYTES, BUCKET_BYTES, BlockHeader, BlockMeta, BlockPlace, BlockRef,
    BucketHeader, CHUNK_BYTES, DirectoryWord, Geometry, Offset, PAGE_UNIT_BYTES, SLOTS_PER_BUCKET, SizeClass,
    SlotState, SlotWord, Superblock, Version, WriteId, chunk_shape, free_map_offset,
};
use sidestep_common::memory::WordMemory;
use sidestep_common::wire::ChunkGrant;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::super::local_memory::LocalMemory;
use super::story::{BlockSpec, Place, Plant, SlotSpec, State, Value};

/// Three chunks beside the index.
const REGION_BYTES: u64 = 4 << 20;
pub(super) const SEED: u64 = 7;
/// All but the last share a bucket; the first two share their tag too.
pub(super) const KEYS: [&[u8]; 5] = [b"a", b"2478355", b"294", b"1414", b"stranger"];

/// Slots that a story's keys take, and one more.
const USED_SLOTS: u8 = KEYS.len() as u8;

pub(super) fn key(number: u8) -> &'static [u8] {
    KEYS[usize::from(number) % KEYS.len()]
}

/// See the module.
pub(super) struct World {
    memory: LocalMemory,
    pub(super) words: WordMemory,
    pub(super) superblock: Superblock,
    /// The client's copy.
    pub(super) directory: Directory,
    next_chunk: u64,
    /// The block that the client wrote last.
    pub(super) own_block: Option<BlockRef>,
    /// What was stored over, with its place.
    before: Vec<(Offset, u64)>,
}

thread_local! {
    /// Formatted memory that nobody uses now.
    static SPARE: RefCell<Option<LocalMemory>> = const { RefCell::new(None) };
}

impl Drop for World {
    fn drop(&mut self) {
        if std::thread::panicking() {
            return;
        }
        for (offset, bits) in self.before.drain(..).rev() {
            self.words.store(offset, bits).expect("it was there");
        }
        SPARE.set(Some(std::mem::replace(&mut self.memory, LocalMemory::new(0))));
    }
}

impl World {
    pub(super) fn new(grace_ms: u64) -> Self {
        let geometry = Geometry::for_region(REGION_BYTES).expect("a region's size");
        let domain = AtomicityDomain::Cpu;
        let superblock = Superblock { geometry, incarnation: 1, hash_seed: SEED, domain, grace_ms };
        let spare = SPARE.take();
        let is_formatted = spare.is_some();
        let mut memory = spare.unwrap_or_else(|| LocalMemory::new(REGION_BYTES));
        let words = memory.words();
        if !is_formatted {
            format(words, &geometry);
        }
        words.write(Offset(0), &superblock.encode()).expect("room");
        let mut directory = vec![0; 8 * geometry.directory_entries() as usize];
        words.read(geometry.directory_offset, &mut directory).expect("room");
        Self {
            memory,
            words,
            superblock,
            directory: Directory::from_bytes(&directory),
            next_chunk: geometry.block_pool_offset.0,
            own_block: None,
            before: Vec::new(),
        }
    }

    pub(super) fn geometry(&self) -> &Geometry {
        &self.superblock.geometry
    }

    pub(super) fn check(&self) {
        self.memory.check();
    }

    /// What a server would grant, until the pool is used up.
    pub(super) fn grant(&mut self, class: SizeClass) -> Option<ChunkGrant> {
        let shape = chunk_shape(class);
        let offset = self.next_chunk.next_multiple_of(shape.align_bytes);
        if !self.geometry().block_pool_holds(Offset(offset), shape.bytes) {
            return None;
        }
        self.next_chunk = offset + shape.bytes;
        Some(ChunkGrant { offset, class: class.index(), versions: Vec::new() })
    }

    /// Where the bucket of a key is, by the directory as the region has it now; by the first one if that names nothing.
    fn bucket(&self, key: &[u8]) -> Offset {
        let (geometry, hash) = (self.geometry(), KeyHash::of(key, SEED));
        let index = hash.directory_index(geometry.directory_bits);
        let bits = self.words.load(geometry.directory_word_offset(index)).expect("in the directory");
        let first = DirectoryWord { segment: index as u32, generation: 1, depth: 0 };
        let named = geometry.bucket_offset(DirectoryWord::from_bits(bits), hash);
        named.or_else(|| geometry.bucket_offset(first, hash)).expect("its segment is there")
    }

    fn slot(&self, key_number: u8, slot: u8) -> Offset {
        let slot = if slot < 0xe0 { slot % USED_SLOTS } else { slot % SLOTS_PER_BUCKET as u8 };
        self.bucket(key(key_number)).plus(8 + 8 * u64::from(slot))
    }

    /// The block that a slot names, if it names one within the region.
    fn named(&self, key_number: u8, slot: u8) -> Option<BlockRef> {
        let bits = self.words.load(self.slot(key_number, slot)).expect("in the index");
        match SlotWord::from_bits(bits).state() {
            SlotState::Live(block) | SlotState::Deleted(block) | SlotState::Moved(block) => Some(block),
            SlotState::Empty | SlotState::Closed | SlotState::Malformed => None,
        }
    }

    /// The place's first byte, rounded to a word; none if there is no such place now.
    fn offset(&self, place: Place) -> Option<Offset> {
        let offset = match place {
            Place::Superblock(word) => 8 * u64::from(word % 40),
            Place::Directory(number) => {
                let index = KeyHash::of(key(number), SEED).directory_index(self.geometry().directory_bits);
                self.geometry().directory_word_offset(index).0
            }
            Place::DirectoryAt(index) => {
                let index = u64::from(index) % self.geometry().directory_entries();
                self.geometry().directory_word_offset(index).0
            }
            Place::Header(number) => self.bucket(key(number)).0,
            Place::Slot { key, slot } => self.slot(key, slot).0,
            Place::Block { key, slot, word } => self.named(key, slot)?.offset.0 + 8 * u64::from(word),
            Place::FreeMap { key, slot } => free_map_offset(self.named(key, slot)?)?.0,
            Place::OwnBlock(word) => self.own_block?.offset.0 + 8 * u64::from(word),
            Place::Anywhere(offset) => u64::from(offset) % REGION_BYTES,
        };
        let word = offset - offset % 8;
        (word < REGION_BYTES).then_some(Offset(word))
    }

    /// Stores a word; nothing happens if there is no such place now.
    pub(super) fn store(&mut self, place: Place, value: Value) {
        let Some(offset) = self.offset(place) else { return };
        let bits = match value {
            Value::Any(bits) => bits,
            Value::Zero => 0,
            Value::Slot(spec) => self.slot_word(spec).bits(),
            Value::Header { key: number, depth, generation, sealed } => {
                let depth = u32::from(depth % 34);
                let prefix = KeyHash::of(key(number), SEED).prefix(depth) as u32;
                BucketHeader { depth, prefix, generation: generation.into(), sealed }.to_bits()
            }
            Value::Directory { segment, generation, depth } => DirectoryWord {
                segment: u32::from(segment % 40),
                generation: generation.into(),
                depth: u32::from(depth % 64),
            }
            .to_bits(),
            Value::Before(ago) => {
                let here = self.before.iter().rev().filter(|(at, _)| *at == offset);
                here.map(|(_, bits)| *bits).nth((ago % 4).into()).unwrap_or(0)
            }
        };
        self.store_at(offset, bits);
    }

    pub(super) fn flip(&mut self, place: Place, bit: u8) {
        let Some(offset) = self.offset(place) else { return };
        let bits = self.words.load(offset).expect("in the region");
        self.store_at(offset, bits ^ 1 << (bit % 64));
    }

    pub(super) fn copy(&mut self, from: Place, to: Place) {
        let (Some(from), Some(to)) = (self.offset(from), self.offset(to)) else { return };
        self.store_at(to, self.words.load(from).expect("in the region"));
    }

    fn store_at(&mut self, offset: Offset, bits: u64) {
        self.remember(offset);
        self.words.store(offset, bits).expect("in the region");
    }

    /// Keeps the word that is about to be replaced.
    fn remember(&mut self, offset: Offset) {
        let bits = self.words.load(offset).expect("in the region");
        self.before.push((offset, bits));
    }

    /// WRITE.
    pub(super) fn write(&mut self, offset: Offset, bytes: &[u8]) {
        let end = offset.0 + bytes.len() as u64;
        for word in (offset.0 - offset.0 % 8..end).step_by(8) {
            self.remember(Offset(word));
        }
        self.words.write(offset, bytes).expect("in the region");
    }

    /// CAS.
    pub(super) fn compare_swap(&mut self, offset: Offset, expected: u64, desired: u64) -> u64 {
        self.remember(offset);
        self.words.compare_swap(offset, expected, desired).expect("in the region")
    }

    fn block(&self, spec: BlockSpec, class: SizeClass, version: Version) -> BlockRef {
        let pool = self.geometry().block_pool_offset.0;
        let offset = match spec {
            BlockSpec::InChunk { chunk, index } => {
                let chunk = Offset(pool + u64::from(chunk % 4) * CHUNK_BYTES);
                let index = u32::from(index) % (chunk_shape(class).block_count + 1);
                return BlockPlace { chunk, index }.block(class, version);
            }
            BlockSpec::Extent { unit } => pool + u64::from(unit) * PAGE_UNIT_BYTES + 64,
            BlockSpec::Unit(unit) => 64 * (u64::from(unit) % (REGION_BYTES / 64 + 1024)),
            BlockSpec::Own => {
                return self.own_block.unwrap_or(BlockRef { offset: Offset(pool), class, version });
            }
        };
        BlockRef { offset: Offset(offset), class, version }
    }

    fn slot_word(&self, spec: SlotSpec) -> SlotWord {
        let class = SizeClass::from_index(spec.class % SizeClass::COUNT as u8).expect("a class in use");
        self.word_for(spec, self.block(spec.block, class, Version(spec.version)))
    }

    fn word_for(&self, spec: SlotSpec, block: BlockRef) -> SlotWord {
        let tag = KeyHash::of(key(spec.key), SEED).tag();
        match spec.state {
            State::Live => SlotWord::live(tag, block, spec.blind),
            State::Deleted => SlotWord::deleted(tag, block, spec.blind),
            State::Moved => SlotWord::live(tag, block, spec.blind).to_moved(),
            State::Closed => SlotWord::CLOSED,
        }
    }

    /// Writes a block of some key and names it in some slot, as a rival would, or one that takes the wrong slot.
    pub(super) fn plant(&mut self, plant: Plant) {
        let value = vec![0x5a; plant.value_bytes.into()];
        let key_bytes = key(plant.key);
        let class = BlockHeader::class_for(key_bytes.len(), value.len()).expect("short enough");
        let place = self.block(plant.word.block, class, Version(plant.word.version));
        let fits = BlockHeader::block_bytes(key_bytes.len(), value.len()) <= place.class.bytes();
        if !fits || self.words.check(place.offset, place.class.bytes()).is_err() {
            return;
        }
        let meta = BlockMeta { write_id: WriteId::new(9, 9), expiry_tick: 0, user_flags: 0 };
        let header = BlockHeader::new(place, meta, key_bytes, &value);
        let bytes = [header.as_bytes(), key_bytes, &value].concat();
        self.write(place.offset, &bytes);
        self.store_at(self.slot(plant.bucket_of, plant.slot), self.word_for(plant.word, place).bits());
    }
}

/// Directory and bucket headers, as a server makes them. Of the buckets, only those of the story's keys: the others are
/// nobody's.
fn format(words: WordMemory, geometry: &Geometry) {
    let depth = geometry.directory_bits;
    for index in 0..geometry.directory_entries() {
        let word = DirectoryWord { segment: index as u32, generation: 1, depth };
        words.store(geometry.directory_word_offset(index), word.to_bits()).expect("room");
        let header = BucketHeader { depth, prefix: index as u32, generation: 1, sealed: false };
        for key in KEYS {
            let bucket = geometry.bucket_offset(word, KeyHash::of(key, SEED)).expect("its segment");
            words.store(bucket, header.to_bits()).expect("room");
        }
    }
}

/// Whether `bytes`, which were read from `remote`, are a block that holds `key`. Reckoned by the drawing of a block, not
/// by the code that is under test.
pub(super) fn is_block_of(bytes: &[u8], remote: Offset, key: &[u8]) -> bool {
    let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"));
    let (key_bytes, version, value_bytes) = (word(16) & 0xffff, word(16) >> 16 & 0xff, word(16) >> 32);
    let end = (BLOCK_HEADER_BYTES as u64 + key_bytes + value_bytes) as usize;
    let seed = ((remote.0 / 64) << 8) | version;
    end <= bytes.len()
        && word(0) == xxh3_64_with_seed(&bytes[8..end], seed)
        && bytes[BLOCK_HEADER_BYTES..].starts_with(key)
        && key_bytes == key.len() as u64
}

const _: () = assert!(BUCKET_BYTES == 8 + 8 * SLOTS_PER_BUCKET as u64);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_related_as_they_are_said_to_be() {
        let bits = World::new(1).geometry().directory_bits;
        let of = |key: &[u8]| KeyHash::of(key, SEED);
        let bucket = |key: &[u8]| (of(key).directory_index(bits), of(key).bucket_index());
        let [first, twin, .., stranger] = KEYS;
        assert_eq!(of(first).tag(), of(twin).tag());
        for neighbour in &KEYS[1..4] {
            assert_eq!(bucket(first), bucket(neighbour), "{neighbour:?}");
        }
        assert!(KEYS[2..].iter().all(|key| of(key).tag() != of(first).tag()));
        assert_ne!(bucket(first), bucket(stranger));
    }
}
