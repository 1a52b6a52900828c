//! One block, and the slot word that names it.
//!
//! Always true: pure; it judges copies. The checks of a block come in an order in which each makes sense only if the one
//! before went well; the mark in the free map is judged by itself.

use sidestep_common::hash::KeyHash;
use sidestep_common::layout::{
    BLOCK_HEADER_BYTES, Block, BlockError, BlockRef, Geometry, SlotState, SlotWord,
};

use super::Problem;
use super::bucket::{Key, Site};

/// Seeds the second hash of keys.
const DIGEST_SEED: u64 = 0x6b65_7973_2074_7769;

/// Judges the block that `word` names: the bytes read from there. Gives the key.
pub(super) fn judge_block(
    geometry: &Geometry,
    hash_seed: u64,
    site: &Site,
    (word, place): (SlotWord, BlockRef),
    bytes: &[u8],
) -> Result<Key, Problem> {
    let at = place.offset;
    let block = Block::parse(bytes, place).map_err(|error| match error {
        BlockError::Version { expected, found } => Problem::BlockVersion { block: at, expected, found },
        BlockError::Lengths { key_bytes, value_bytes, available_bytes } => {
            Problem::BlockLengths { block: at, key_bytes, value_bytes, block_bytes: available_bytes }
        }
        BlockError::Checksum => Problem::BlockChecksum { block: at },
    })?;
    if bytes[19] != 0 || bytes[36..BLOCK_HEADER_BYTES] != [0; 4] {
        return Err(Problem::BlockPadding { block: at });
    }
    if block.key.is_empty() {
        return Err(Problem::KeyEmpty { block: at });
    }
    let hash = KeyHash::of(block.key, hash_seed);
    if !site.serves(hash) {
        let (entry, bucket) = (hash.directory_index(geometry.directory_bits), hash.bucket_index());
        return Err(Problem::KeyElsewhere { block: at, entry, bucket });
    }
    if word.tag() != hash.tag() {
        return Err(Problem::TagWrong { expected: hash.tag().value(), found: word.tag().value() });
    }
    if word.can_expire() != (block.meta.expiry_tick != 0) {
        let expiry_tick = block.meta.expiry_tick;
        return Err(Problem::ExpiryBit { can_expire: word.can_expire(), expiry_tick });
    }
    if matches!(word.state(), SlotState::Deleted(_)) && !block.value.is_empty() {
        return Err(Problem::DeletedWithValue { block: at, value_bytes: block.value.len() });
    }
    Ok(Key {
        hash,
        digest: KeyHash::of(block.key, hash_seed ^ DIGEST_SEED),
        key_bytes: block.key.len() as u64,
        value_bytes: block.value.len() as u64,
    })
}

/// Judges the mark of a block that a slot names. A mark is the version of an earlier use; how much earlier can't be
/// told, since versions wrap, so half of all versions count as earlier: a mark that is 128 uses late would have been
/// under way for as many grace periods.
pub(super) fn judge_mark(block: BlockRef, mark: u8) -> Result<(), Problem> {
    let version = block.version.0;
    match version.wrapping_sub(mark) {
        0 => Err(Problem::MarkedFree { block: block.offset, version }),
        1..128 => Ok(()),
        _ => Err(Problem::MarkAhead { block: block.offset, mark, version }),
    }
}
