//! What is read from a region: whatever the bytes, a checked type or an error.
#![no_main]

use libfuzzer_sys::fuzz_target;
use sidestep_common::layout::{
    BUCKET_BYTES, Block, BlockPlace, Bucket, DirectoryWord, SlotState, Superblock, free_map_offset,
};

fuzz_target!(|bytes: &[u8]| {
    if let Ok(superblock) = Superblock::parse(bytes) {
        assert_eq!(Superblock::parse(&superblock.encode()), Ok(superblock));
    }
    if bytes.len() < BUCKET_BYTES as usize {
        return;
    }
    let bucket = Bucket::parse(bytes);
    let directory = DirectoryWord::from_bits(bucket.header.to_bits());
    assert_eq!(DirectoryWord::from_bits(directory.to_bits()), directory);
    for word in bucket.slots {
        let block = match word.state() {
            SlotState::Live(block) | SlotState::Deleted(block) | SlotState::Moved(block) => block,
            SlotState::Empty | SlotState::Closed | SlotState::Malformed => continue,
        };
        assert_eq!(free_map_offset(block).is_some(), BlockPlace::of(block.offset, block.class).is_some());
        if let Ok(found) = Block::parse(&bytes[BUCKET_BYTES as usize..], block) {
            assert!(found.key.len() + found.value.len() <= bytes.len());
        }
    }
});
