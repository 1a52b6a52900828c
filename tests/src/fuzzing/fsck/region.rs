//! The region's bytes: what a server makes, and what the fuzzer puts over it.

use std::sync::OnceLock;

use arbitrary::Arbitrary;
use sidestep_common::hash::KeyHash;
use sidestep_common::layout::{
    AtomicityDomain, BUCKET_BYTES, BlockHeader, BlockMeta, BlockPlace, BlockRef, BucketHeader, DirectoryWord,
    Geometry, Offset, REGION_BYTES_MIN, SEGMENT_BYTES, SLOTS_PER_BUCKET, SPARE_SUPERBLOCK_OFFSET, SizeClass,
    SlotWord, Superblock, Version, WriteId, chunk_shape, free_map_offset,
};

/// As small as can be: what is never touched is read too.
const REGION_BYTES: u64 = REGION_BYTES_MIN;
const SEED: u64 = 7;
/// Bounds what a run takes: each can name a block that is read again and again.
const SPECS_MAX: usize = 128;
const FIRST_GENERATION: u32 = 1;

/// Something in the region that is otherwise.
#[derive(Arbitrary, Clone, Copy, Debug)]
pub(super) enum Spec {
    /// A word anywhere.
    Word { at: u32, bits: u64 },
    /// A word of the superblock, its tick among them.
    Superblock { word: u8, bits: u64 },
    /// An entry of the directory.
    Directory { entry: u8, segment: u8, generation: u8, depth: u8 },
    /// A bucket's header.
    Header { bucket: u16, depth: u8, prefix: u8, generation: u8, sealed: bool },
    /// A slot of the bucket of a key.
    Slot { key: u8, slot: u8, word: WordSpec },
    /// A block that fits, with nothing that names it.
    Block { block: BlockSpec, key: u8, value_bytes: u8, changed_byte: Option<u8> },
    /// Both: a key as a client stores it.
    Stored { key: u8, slot: u8, block: BlockSpec, value_bytes: u8, is_deleted: bool },
    /// A byte of a free map.
    Mark { block: BlockSpec },
}

/// What is in a slot.
#[derive(Arbitrary, Clone, Copy, Debug)]
pub(super) enum WordSpec {
    Empty,
    Closed,
    Live(BlockSpec),
    Deleted(BlockSpec),
    Moved(BlockSpec),
    Any(u64),
}

/// A place where a block can be, as far as its class and number go.
#[derive(Arbitrary, Clone, Copy, Debug)]
pub(super) struct BlockSpec {
    class: u8,
    chunk: u8,
    index: u16,
    version: u8,
}

impl BlockSpec {
    fn block(self, geometry: &Geometry) -> BlockRef {
        let class = class(self.class);
        let shape = chunk_shape(class);
        // One more than there are of each.
        let chunks = geometry.block_pool_bytes / shape.align_bytes + 1;
        let chunk = geometry.block_pool_offset.plus(u64::from(self.chunk) % chunks * shape.align_bytes);
        let index = u32::from(self.index) % (shape.block_count + 1);
        BlockPlace { chunk, index }.block(class, Version(self.version))
    }
}

/// The class with that number, if there are so many.
pub(super) fn class(number: u8) -> SizeClass {
    SizeClass::from_index(number % SizeClass::COUNT as u8).expect("a class in use")
}

fn key(number: u8) -> &'static [u8] {
    [&b"a"[..], b"b", b"c", b"dddddddd"][usize::from(number) % 4]
}

/// A region.
pub(super) struct Region {
    pub(super) superblock: Superblock,
    bytes: Vec<u8>,
}

impl Region {
    pub(super) fn new(specs: &[Spec]) -> Self {
        static FRESH: OnceLock<(Superblock, Vec<u8>)> = OnceLock::new();
        let (superblock, bytes) = FRESH.get_or_init(fresh);
        let mut region = Self { superblock: *superblock, bytes: bytes.clone() };
        for spec in specs.iter().take(SPECS_MAX) {
            region.apply(*spec);
        }
        region
    }

    fn apply(&mut self, spec: Spec) {
        let geometry = self.superblock.geometry;
        match spec {
            Spec::Word { at, bits } => self.set(u64::from(at), bits),
            Spec::Superblock { word, bits } => self.set(8 * u64::from(word), bits),
            Spec::Directory { entry, segment, generation, depth } => {
                let entry = u64::from(entry) % geometry.directory_entries();
                let word = DirectoryWord {
                    segment: segment.into(),
                    generation: generation.into(),
                    depth: depth.into(),
                };
                self.set(geometry.directory_word_offset(entry).0, word.to_bits());
            }
            Spec::Header { bucket, depth, prefix, generation, sealed } => {
                let (depth, prefix, generation) = (depth.into(), prefix.into(), generation.into());
                let header = BucketHeader { depth, prefix, generation, sealed };
                let buckets = geometry.segment_count * SEGMENT_BYTES / BUCKET_BYTES;
                let bucket = u64::from(bucket) % buckets;
                self.set(geometry.segment_pool_offset.0 + bucket * BUCKET_BYTES, header.to_bits());
            }
            Spec::Slot { key, slot, word } => {
                let tag = KeyHash::of(self::key(key), SEED).tag();
                let word = match word {
                    WordSpec::Empty => SlotWord::EMPTY,
                    WordSpec::Closed => SlotWord::CLOSED,
                    WordSpec::Live(block) => SlotWord::live(tag, block.block(&geometry), true),
                    WordSpec::Deleted(block) => SlotWord::deleted(tag, block.block(&geometry), false),
                    WordSpec::Moved(block) => SlotWord::live(tag, block.block(&geometry), true).to_moved(),
                    WordSpec::Any(bits) => SlotWord::from_bits(bits),
                };
                self.set(self.slot(key, slot), word.bits());
            }
            Spec::Block { block, key, value_bytes, changed_byte } => {
                self.put_block(block.block(&geometry), key, value_bytes, changed_byte);
            }
            Spec::Stored { key, slot, block, value_bytes, is_deleted } => {
                let (block, tag) = (block.block(&geometry), KeyHash::of(self::key(key), SEED).tag());
                self.put_block(block, key, if is_deleted { 0 } else { value_bytes }, None);
                let word = if is_deleted {
                    SlotWord::deleted(tag, block, false)
                } else {
                    SlotWord::live(tag, block, true)
                };
                self.set(self.slot(key, slot), word.bits());
            }
            Spec::Mark { block } => {
                let block = block.block(&geometry);
                if let Some(mark) = free_map_offset(block) {
                    self.put_bytes(mark.0, &[block.version.0]);
                }
            }
        }
    }

    /// Where a slot of a key's bucket is in a fresh region.
    fn slot(&self, key: u8, slot: u8) -> u64 {
        let geometry = self.superblock.geometry;
        let hash = KeyHash::of(self::key(key), SEED);
        let (depth, segment) =
            (geometry.directory_bits, hash.directory_index(geometry.directory_bits) as u32);
        let word = DirectoryWord { segment, generation: FIRST_GENERATION, depth };
        let bucket = geometry.bucket_offset(word, hash).expect("a segment for each entry");
        bucket.0 + 8 + 8 * (u64::from(slot) % SLOTS_PER_BUCKET as u64)
    }

    fn put_block(&mut self, block: BlockRef, key: u8, value_bytes: u8, changed_byte: Option<u8>) {
        let key = self::key(key);
        let room_bytes = (block.class.bytes() - BlockHeader::block_bytes(key.len(), 0)) as usize;
        let value = vec![0xaa; usize::from(value_bytes).min(room_bytes)];
        let meta = BlockMeta { write_id: WriteId::new(2, 3), expiry_tick: 0, user_flags: 0 };
        let header = BlockHeader::new(block, meta, key, &value);
        let mut bytes = [header.as_bytes(), key, &value].concat();
        if let Some(at) = changed_byte {
            let length = bytes.len();
            bytes[usize::from(at) % length] ^= 0x10;
        }
        self.put_bytes(block.offset.0, &bytes);
    }

    /// Puts bytes where there is room for all of them.
    fn put_bytes(&mut self, offset: u64, bytes: &[u8]) {
        let room = self.bytes.get_mut(offset as usize..).and_then(|rest| rest.get_mut(..bytes.len()));
        if let Some(room) = room {
            room.copy_from_slice(bytes);
        }
    }

    /// Sets the word that holds the byte at `at`.
    fn set(&mut self, at: u64, bits: u64) {
        self.put_bytes(at & !7, &bits.to_le_bytes());
    }

    /// Copies bytes out.
    pub(super) fn read(&self, offset: u64, into: &mut [u8]) {
        let bytes = self.bytes.get(offset as usize..).and_then(|rest| rest.get(..into.len()));
        let Some(bytes) = bytes else {
            panic!("a READ of {} bytes at {offset:#x} leaves the region", into.len());
        };
        into.copy_from_slice(bytes);
    }

    /// Where the pool's chunks begin.
    pub(super) fn pool(&self) -> Offset {
        self.superblock.geometry.block_pool_offset
    }
}

/// As a server makes it.
fn fresh() -> (Superblock, Vec<u8>) {
    let geometry = Geometry::for_region(REGION_BYTES).expect("a region's size");
    let (incarnation, domain) = (1, AtomicityDomain::Cpu);
    let superblock = Superblock { geometry, incarnation, hash_seed: SEED, domain, grace_ms: 1000 };
    let mut region = Region { superblock, bytes: vec![0; REGION_BYTES as usize] };
    for at in [Offset(0), SPARE_SUPERBLOCK_OFFSET] {
        region.put_bytes(at.0, &superblock.encode());
    }
    let depth = geometry.directory_bits;
    for prefix in 0..geometry.directory_entries() as u32 {
        let word = DirectoryWord { segment: prefix, generation: FIRST_GENERATION, depth };
        region.set(geometry.directory_word_offset(prefix.into()).0, word.to_bits());
        let segment = geometry.segment_offset(word).expect("a segment for each entry").0;
        let header = BucketHeader { depth, prefix, generation: FIRST_GENERATION, sealed: false };
        for bucket in (segment..segment + SEGMENT_BYTES).step_by(BUCKET_BYTES as usize) {
            region.set(bucket, header.to_bits());
        }
    }
    (superblock, region.bytes)
}
