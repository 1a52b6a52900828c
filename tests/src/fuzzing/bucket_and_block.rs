//! The bytes of index and blocks: whatever they are, parsing ends with a checked value or an error, and a value that
//! was parsed encodes to the bits that it came from.

use sidestep_common::hash::KeyHash;
use sidestep_common::layout::{
    BLOCK_HEADER_BYTES, BUCKET_BYTES, Block, BlockHeader, BlockMeta, BlockPlace, BlockRef, Bucket,
    BucketHeader, DirectoryWord, Geometry, KEY_BYTES_MAX, Offset, SizeClass, SlotState, SlotWord,
    VALUE_BYTES_MAX, Version, WriteId, chunk_shape, free_map_offset,
};

/// A directory word, the bytes of a bucket, then those of a block; with too few of them, the rest is zeros.
pub fn run(bytes: &[u8]) {
    let mut padded = bytes.to_vec();
    padded.resize(bytes.len().max(8 + BUCKET_BYTES as usize + BLOCK_HEADER_BYTES), 0);
    let (directory, rest) = padded.split_at(8);
    let (bucket, block) = rest.split_at(BUCKET_BYTES as usize);
    let words: Vec<u64> =
        bucket.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().expect("eight"))).collect();

    check_directory_word(u64::from_le_bytes(directory.try_into().expect("eight")), words[0]);
    let parsed = Bucket::parse(bucket);
    assert_eq!(parsed.header.to_bits(), words[0], "all 64 bits of a header mean something");
    assert_eq!(BucketHeader::from_bits(words[0]), parsed.header);
    // Whether it serves a hash is said of the top bits alone.
    let hash = KeyHash::from_bits(words[1]);
    let serves = parsed.header.serves(hash);
    assert_eq!(serves, parsed.header.serves(KeyHash::from_bits(words[1] | 0x1_ffff_ffff)));
    assert!(!serves || parsed.header.depth <= 31 && parsed.header.generation != 0);

    for (word, bits) in parsed.slots.into_iter().zip(&words[1..]) {
        assert_eq!(word.bits(), *bits);
        let block_ref = check_slot_word(word);
        if let Some(block_ref) = block_ref {
            check_place(block_ref);
            check_block(block, block_ref);
            check_header(block, block_ref);
        }
    }
}

fn check_directory_word(bits: u64, other: u64) {
    let word = DirectoryWord::from_bits(bits);
    assert_eq!(word.to_bits(), bits, "all 64 bits of a directory word mean something");
    let other = DirectoryWord::from_bits(other);
    assert!(!(word.is_newer_than(other) && other.is_newer_than(word)));
    for region_bytes in [4 << 20, 1 << 30, 2 << 40] {
        let geometry = Geometry::for_region(region_bytes).expect("a region's size");
        let Some(segment) = geometry.segment_offset(word) else { continue };
        let bucket = geometry.bucket_offset(word, KeyHash::from_bits(bits)).expect("its segment is there");
        assert!(segment.0 >= geometry.segment_pool_offset.0 && bucket.0 >= segment.0);
        assert!(bucket.0 + BUCKET_BYTES <= geometry.block_pool_offset.0, "{word:?} leaves the segment pool");
        assert!(bucket.0.is_multiple_of(BUCKET_BYTES));
    }
}

/// Checks a word against its parts; gives the block that it names.
fn check_slot_word(word: SlotWord) -> Option<BlockRef> {
    let _ = format!("{word:?}");
    let (state, block) = match word.state() {
        SlotState::Empty => {
            assert_eq!(word.bits(), 0);
            return None;
        }
        SlotState::Closed => {
            assert_eq!(word, SlotWord::CLOSED);
            return None;
        }
        SlotState::Malformed => return None,
        SlotState::Live(block) => (1, block),
        SlotState::Deleted(block) => (2, block),
        SlotState::Moved(block) => (3, block),
    };
    assert!(block.offset.0.is_multiple_of(64) && block.offset.0 < 2 << 40);
    let expires = u64::from(word.can_expire()) << 60;
    let again = match state {
        2 => SlotWord::deleted(word.tag(), block, word.is_blind()),
        _ => SlotWord::live(word.tag(), block, word.is_blind()),
    };
    let again = if state == 3 { again.to_moved() } else { again };
    assert_eq!(again.bits() | expires, word.bits(), "{word:?}");
    Some(block)
}

/// A block's byte of the free map is in front of its chunk's blocks, and nobody else's.
fn check_place(block: BlockRef) {
    let place = BlockPlace::of(block.offset, block.class);
    let map = free_map_offset(block);
    assert_eq!(map.is_some(), place.is_some());
    let (Some(place), Some(map)) = (place, map) else { return };
    let shape = chunk_shape(block.class);
    assert_eq!(place.block(block.class, block.version), block);
    assert!(place.index < shape.block_count && place.chunk.0.is_multiple_of(shape.align_bytes));
    assert!(map.0 >= place.chunk.0 && map.0 < place.chunk.0 + shape.blocks_offset);
    assert!(block.offset.0 + block.class.bytes() <= place.chunk.0 + shape.bytes);
    let geometry = Geometry::for_region(64 << 20).expect("a region's size");
    if geometry.block_pool_holds(block.offset, block.class.bytes()) {
        assert!(geometry.block_pool_holds(map, 1), "the map of a block in the pool is in the pool");
    }
}

fn check_block(bytes: &[u8], place: BlockRef) {
    let Ok(found) = Block::parse(bytes, place) else { return };
    assert!(found.key.len() <= KEY_BYTES_MAX && found.value.len() <= VALUE_BYTES_MAX);
    let block_bytes = BLOCK_HEADER_BYTES + found.key.len() + found.value.len();
    assert!(block_bytes <= bytes.len());
    for other in [place.version.next(), Version(place.version.0 ^ 0x80)] {
        let other = BlockRef { version: other, ..place };
        assert!(Block::parse(bytes, other).is_err(), "a block fits one version");
    }
    let other = BlockRef { offset: Offset(place.offset.0 ^ 64), ..place };
    assert!(Block::parse(bytes, other).is_err(), "a block fits one address");
}

/// A block made of the bytes for a place fits it, whatever is behind it.
fn check_header(bytes: &[u8], place: BlockRef) {
    let (key, value) = bytes.split_at(bytes.len().min(bytes[0].into()));
    let Some(class) = BlockHeader::class_for(key.len(), value.len()) else { return };
    if class > place.class {
        return;
    }
    let meta = BlockMeta {
        write_id: WriteId::new(u32::from(bytes[2]), u64::from(bytes[3])),
        expiry_tick: u64::from(bytes[4]),
        user_flags: u32::from(bytes[5]),
    };
    let header = BlockHeader::new(place, meta, key, value);
    let mut block = [header.as_bytes(), key, value].concat();
    assert!(block.len() as u64 <= class.bytes() && SizeClass::holding(block.len() as u64) == Some(class));
    block.resize(class.bytes() as usize, 0xa5);
    let found = Block::parse(&block, place).expect("what was made for a place fits it");
    assert_eq!((found.key, found.value, found.meta), (key, value, meta));
    check_block(&block, place);
    let at = usize::from(bytes[1]) % (BLOCK_HEADER_BYTES + key.len() + value.len());
    block[at] ^= 1;
    assert!(Block::parse(&block, place).is_err(), "byte {at} counts");
}
