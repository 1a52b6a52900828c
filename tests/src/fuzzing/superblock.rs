//! The region's first bytes: what parses is whole, and encodes to the same; a geometry's parts never overlap.

use sidestep_common::hash::KeyHash;
use sidestep_common::layout::{
    AtomicityDomain, CHUNK_BYTES, DirectoryWord, Geometry, PAGE_UNIT_BYTES, REGION_BYTES_MAX,
    REGION_BYTES_MIN, SEGMENT_BYTES, SUPERBLOCK_BYTES, Superblock, TICK_OFFSET,
};
use xxhash_rust::xxh3::xxh3_64;

const _: () = assert!(TICK_OFFSET.0 + 8 <= SUPERBLOCK_BYTES);

/// Bytes that a superblock's checksum is over; it follows them.
const CHECKED_BYTES: usize = 96;

/// The bytes as they are; then with the right checksum; then a superblock out of their numbers.
pub fn run(bytes: &[u8]) {
    check(bytes);
    if bytes.len() < CHECKED_BYTES + 8 {
        return;
    }
    let mut mended = bytes.to_vec();
    let checksum = xxh3_64(&mended[..CHECKED_BYTES]);
    mended[CHECKED_BYTES..CHECKED_BYTES + 8].copy_from_slice(&checksum.to_le_bytes());
    check(&mended);

    let word =
        |index: usize| u64::from_le_bytes(bytes[8 * index..8 * index + 8].try_into().expect("eight bytes"));
    let domain = if word(1) >> 32 == 1 { AtomicityDomain::Cpu } else { AtomicityDomain::Nic };
    let Ok(geometry) = Geometry::for_region(word(2)) else {
        assert!(!(REGION_BYTES_MIN..=REGION_BYTES_MAX).contains(&word(2)));
        return;
    };
    let superblock =
        Superblock { geometry, incarnation: word(3), hash_seed: word(4), domain, grace_ms: word(11) };
    assert_eq!(Superblock::parse(&superblock.encode()), Ok(superblock));
    check_geometry(&geometry, KeyHash::from_bits(word(5)));
}

fn check(bytes: &[u8]) {
    match Superblock::parse(bytes) {
        Ok(superblock) => {
            let encoded = superblock.encode();
            assert_eq!(encoded[..], bytes[..encoded.len()], "a superblock has one encoding");
            check_geometry(&superblock.geometry, KeyHash::from_bits(superblock.hash_seed));
        }
        Err(error) => _ = error.to_string(),
    }
}

/// Superblock, directory, segment pool and block pool follow each other, aligned, and end within the region.
fn check_geometry(geometry: &Geometry, hash: KeyHash) {
    assert_eq!(Geometry::for_region(geometry.region_bytes), Ok(*geometry));
    assert!(geometry.directory_offset.0 >= SUPERBLOCK_BYTES);
    let directory_end = geometry.directory_word_offset(geometry.directory_entries());
    assert!(directory_end.0 <= geometry.segment_pool_offset.0);
    assert!(geometry.segment_pool_offset.0.is_multiple_of(SEGMENT_BYTES));
    assert!(geometry.block_pool_offset.0.is_multiple_of(CHUNK_BYTES));
    let segments_end = geometry.segment_pool_offset.0 + geometry.segment_count * SEGMENT_BYTES;
    assert!(segments_end <= geometry.block_pool_offset.0);
    assert!(geometry.block_pool_bytes.is_multiple_of(PAGE_UNIT_BYTES) && geometry.block_pool_bytes > 0);
    assert!(geometry.block_pool_offset.0 + geometry.block_pool_bytes <= geometry.region_bytes);
    assert!(geometry.segment_count >= geometry.directory_entries());
    assert!(hash.directory_index(geometry.directory_bits) < geometry.directory_entries());
    let word = |segment: u64| DirectoryWord { segment: segment as u32, generation: 1, depth: 0 };
    let last = geometry.segment_offset(word(geometry.segment_count - 1));
    assert_eq!(last.map(|offset| offset.0 + SEGMENT_BYTES), Some(segments_end));
    assert_eq!(geometry.segment_offset(word(geometry.segment_count)), None);
}
