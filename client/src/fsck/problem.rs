//! What can be wrong with a region.
//!
//! Always true: each kind has a name that never changes its meaning, so that scripts and tests can depend on it; a
//! message says what was expected and what was found.

use sidestep_common::layout::{Offset, SuperblockError};

macro_rules! problems {
    ($(
        $(#[doc = $doc:literal])+
        $variant:ident $({ $($(#[doc = $field_doc:literal])+ $field:ident: $type:ty,)* })? = $name:literal, $message:literal;
    )*) => {
        /// A kind of damage, with what was expected and found.
        #[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
        #[non_exhaustive]
        pub enum Problem {
            $(
                $(#[doc = $doc])+
                #[error($message)]
                $variant $({ $($(#[doc = $field_doc])+ $field: $type,)* })?,
            )*
        }

        impl Problem {
            /// The names of all kinds.
            pub const NAMES: &[&str] = &[$($name),*];

            /// The kind's name.
            pub const fn name(&self) -> &'static str {
                match self {
                    $(Self::$variant { .. } => $name,)*
                }
            }
        }
    };
}

problems! {
    // The superblock.

    /// The region's first bytes are no superblock.
    SuperblockInvalid {
        /// Why not.
        error: SuperblockError,
    } = "superblock-invalid", "the superblock is not valid: {error}";

    /// They are one, but not the one that the memory node describes.
    SuperblockDiffers {
        /// The word as described.
        expected: u64,
        /// The word as it is in the region.
        found: u64,
    } = "superblock-differs", "a word of the superblock is {found:#x}, the memory node says {expected:#x}";

    /// The tick is later than the memory node has been running.
    TickAhead {
        /// The tick.
        tick_ms: u64,
        /// For how long the memory node has been running.
        uptime_ms: u64,
    } = "tick-ahead", "the tick is {tick_ms} ms, the memory node has been running for {uptime_ms} ms";

    /// A byte that belongs to no part of the region is not zero.
    StrayBytes {
        /// Behind what it lies.
        behind: &'static str,
        /// The first such word.
        found: u64,
    } = "stray-bytes", "bytes behind {behind} are not zero: the first such word is {found:#018x}";

    // The directory.

    /// An entry of the directory names nothing.
    DirectoryEmpty {
        /// The word.
        word: u64,
    } = "directory-empty", "the entry {word:#018x} names no segment: its generation is 0";

    /// An entry is deeper than the directory.
    DirectoryDepth {
        /// As the entry says.
        depth: u32,
        /// The most that can be.
        limit: u32,
    } = "directory-depth", "the entry has depth {depth}, the directory {limit} bits";

    /// An entry names a segment that the pool has not.
    SegmentOutside {
        /// The segment's number.
        segment: u32,
        /// Segments in the pool.
        segment_count: u64,
    } = "segment-outside", "the entry names segment {segment}, there are {segment_count}";

    /// The entries of a run are not all the same: a segment of depth d serves 2^(bits - d) of them, aligned.
    RunBroken {
        /// The entry of the run whose word is another.
        entry: u64,
        /// The word of this entry.
        expected: u64,
        /// The word of that one.
        found: u64,
    } = "run-broken", "the entry is {expected:#018x}, but entry {entry} of the same run is {found:#018x}";

    /// Two runs name one segment.
    SegmentNamedTwice {
        /// The segment.
        segment: u32,
        /// The first entry of the other run.
        entry: u64,
    } = "segment-named-twice", "the entry names segment {segment}, and so does entry {entry} of another run";

    // Buckets.

    /// A bucket's header has another depth than the directory word that leads to it.
    BucketDepth {
        /// As the directory says.
        expected: u32,
        /// As the header says.
        found: u32,
    } = "bucket-depth", "the bucket has depth {found}, the directory says {expected}";

    /// A bucket's header has another generation than the directory word that leads to it.
    BucketGeneration {
        /// As the directory says.
        expected: u32,
        /// As the header says.
        found: u32,
    } = "bucket-generation", "the bucket has generation {found}, the directory says {expected}";

    /// A bucket serves other keys than those that are led to it.
    BucketPrefix {
        /// As the place in the directory says.
        expected: u64,
        /// As the header says.
        found: u32,
    } = "bucket-prefix", "the bucket serves hashes that begin with {found:#x}, the directory leads {expected:#x} to it";

    // Slots.

    /// A slot's bits are no word.
    SlotMalformed {
        /// The bits.
        word: u64,
    } = "slot-malformed", "{word:#018x} is no slot word";

    /// An EMPTY slot before one that is not: inserts take the first EMPTY slot in slot order.
    EmptyBeforeFilled {
        /// The later slot.
        slot: usize,
    } = "empty-before-filled", "the slot is EMPTY, but slot {slot} behind it is not";

    /// A CLOSED word in a bucket that takes keys, and no rebuild of its segment goes on.
    SlotClosed = "slot-closed", "the slot is CLOSED, but no rebuild goes on";

    /// A MOVED word in a bucket that takes keys, and no rebuild of its segment goes on.
    SlotMoved {
        /// The word.
        word: u64,
    } = "slot-moved", "the word {word:#018x} is MOVED, but no rebuild goes on";

    /// A bucket is sealed, and one of its slots is not: sealing comes first.
    SlotOpen {
        /// The word.
        word: u64,
    } = "slot-open", "the bucket is SEALED, but the word {word:#018x} is neither MOVED nor CLOSED";

    // Where a slot's block is.

    /// A slot names memory outside the block pool.
    BlockOutside {
        /// Where the block would start.
        block: Offset,
        /// Its bytes.
        bytes: u64,
    } = "block-outside", "the slot names {bytes} bytes at {block}, outside the block pool";

    /// A slot names a place where no block of its class can start.
    BlockMisplaced {
        /// Where the block would start.
        block: Offset,
        /// Its bytes.
        bytes: u64,
    } = "block-misplaced", "the slot names {block}, where no block of {bytes} bytes can start";

    /// A slot names memory that was never granted.
    ChunkNotGranted {
        /// Where the block starts.
        block: Offset,
        /// Where its chunk would start.
        chunk: Offset,
    } = "chunk-not-granted", "the slot names {block}, but nothing was granted at {chunk}";

    /// A slot names a block of another class than its chunk has.
    ChunkClass {
        /// Where the chunk starts.
        chunk: Offset,
        /// The chunk's class.
        expected: u8,
        /// The class in the slot word.
        found: u8,
    } = "chunk-class", "the slot names a block of class {found} in the chunk at {chunk} of class {expected}";

    // The block itself.

    /// The block is of another use of its memory than the slot names.
    BlockVersion {
        /// Where the block is.
        block: Offset,
        /// As the slot says.
        expected: u8,
        /// As the block says.
        found: u8,
    } = "block-version", "the block at {block} has version {found}, the slot names {expected}";

    /// The lengths in the block's header can't be.
    BlockLengths {
        /// Where the block is.
        block: Offset,
        /// Key bytes as the header says.
        key_bytes: usize,
        /// Value bytes as the header says.
        value_bytes: usize,
        /// Bytes of the block.
        block_bytes: usize,
    } = "block-lengths", "the block at {block} names a key of {key_bytes} and a value of {value_bytes} bytes in {block_bytes}";

    /// The checksum is not that of the block's bytes, address and version.
    BlockChecksum {
        /// Where the block is.
        block: Offset,
    } = "block-checksum", "the checksum of the block at {block} does not fit its bytes, address and version";

    /// Bytes of the block's header that are kept for later are not zero.
    BlockPadding {
        /// Where the block is.
        block: Offset,
    } = "block-padding", "bytes of the header of the block at {block} that should be zero are not";

    /// The block's key has no bytes.
    KeyEmpty {
        /// Where the block is.
        block: Offset,
    } = "key-empty", "the key of the block at {block} has no bytes";

    /// The block's key belongs to another bucket: nobody would find it here.
    KeyElsewhere {
        /// Where the block is.
        block: Offset,
        /// The directory entry of the key.
        entry: u64,
        /// The bucket of the key.
        bucket: u64,
    } = "key-elsewhere", "the key of the block at {block} belongs to bucket {bucket} under entry {entry} of the directory";

    /// The slot has another tag than the block's key.
    TagWrong {
        /// The key's tag.
        expected: u16,
        /// The slot's tag.
        found: u16,
    } = "tag-wrong", "the slot has tag {found:#x}, its block's key has {expected:#x}";

    /// The slot says that the key can't expire and the block that it does, or the other way round.
    ExpiryBit {
        /// What the slot says.
        can_expire: bool,
        /// The block's expiry tick.
        expiry_tick: u64,
    } = "expiry-bit", "the slot's expires bit is {can_expire}, its block's expiry tick {expiry_tick}";

    /// A DELETED slot's block has a value.
    DeletedWithValue {
        /// Where the block is.
        block: Offset,
        /// Bytes of the value.
        value_bytes: usize,
    } = "deleted-with-value", "the slot is DELETED, but the block at {block} has a value of {value_bytes} bytes";

    /// Two slots of a bucket have one key.
    KeyTwice {
        /// The other slot.
        slot: usize,
    } = "key-twice", "the slot has the key of slot {slot}";

    /// Two slots name one block.
    BlockShared {
        /// Where the block is.
        block: Offset,
    } = "block-shared", "the block at {block} is named by another slot too";

    // Free maps, and memory that nobody uses.

    /// A block that a slot names is marked free.
    MarkedFree {
        /// Where the block is.
        block: Offset,
        /// Its version, which is also its mark.
        version: u8,
    } = "marked-free", "the block at {block} is marked free in its version {version}, which a slot names";

    /// A block's mark is of a version that the block has not had yet.
    MarkAhead {
        /// Where the block is.
        block: Offset,
        /// The mark.
        mark: u8,
        /// The block's version.
        version: u8,
    } = "mark-ahead", "the block at {block} is marked with version {mark}, but has version {version}";

    /// A byte between the free map and the first block is not zero.
    MapPadding {
        /// The byte.
        found: u8,
    } = "map-padding", "a byte between the free map and the first block is {found:#04x}, not zero";

    // What the memory node says of its grants.

    /// A grant has a class that is none.
    GrantClass {
        /// The class.
        class: u8,
    } = "grant-class", "the memory node granted memory of class {class}, which is none";

    /// A grant lies, in part, outside the block pool.
    GrantOutside {
        /// Its bytes.
        bytes: u64,
    } = "grant-outside", "the memory node granted {bytes} bytes that are not all in the block pool";

    /// A grant does not start where one of its class may.
    GrantMisaligned {
        /// What it should be a multiple of.
        align_bytes: u64,
    } = "grant-misaligned", "the memory node granted memory that does not start at a multiple of {align_bytes}";

    /// A grant overlaps the one before it.
    GrantOverlap {
        /// Where the other one ends.
        end: Offset,
    } = "grant-overlap", "the memory node granted memory that is granted already, up to {end}";

    /// What was granted and what is free does not make up the pool.
    PoolAccounts {
        /// Bytes of all grants.
        granted_bytes: u64,
        /// Bytes that are free or held back, as the memory node says.
        free_bytes: u64,
        /// Bytes of the pool.
        pool_bytes: u64,
    } = "pool-accounts", "{granted_bytes} bytes granted and {free_bytes} free make another sum than the pool's {pool_bytes}";
}

impl Problem {
    /// Whether a rebuild of the segment that goes on at this moment looks like this.
    pub(super) const fn may_be_rebuild(&self) -> bool {
        matches!(
            self,
            Self::RunBroken { .. }
                | Self::BucketDepth { .. }
                | Self::BucketGeneration { .. }
                | Self::BucketPrefix { .. }
                | Self::SlotClosed
                | Self::SlotMoved { .. }
                | Self::SlotOpen { .. }
        )
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn names_are_all_different() {
        let names: BTreeSet<_> = Problem::NAMES.iter().collect();
        assert_eq!(names.len(), Problem::NAMES.len());
    }
}
