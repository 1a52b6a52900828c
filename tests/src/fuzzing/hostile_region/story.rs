//! The fuzzer's bytes as a story: what an honest client calls, and what happens to the region meanwhile.

use arbitrary::Arbitrary;

/// Calls of one client, one after the other, and what interferes.
#[derive(Arbitrary, Debug)]
pub(super) struct Story {
    /// The region's grace period in milliseconds.
    pub(super) grace_ms: u8,
    pub(super) calls: Vec<Call>,
    /// In this order.
    pub(super) events: Vec<Event>,
}

/// One call of the client.
#[derive(Arbitrary, Clone, Copy, Debug)]
pub(super) struct Call {
    pub(super) kind: CallKind,
    /// Which key, counted round.
    pub(super) key: u8,
}

#[derive(Arbitrary, Clone, Copy, Debug)]
pub(super) enum CallKind {
    Get,
    /// So many bytes.
    Put(u8),
    /// A value of some pages, or now and then of a class that lives in extents.
    PutLong(u16),
    Delete,
}

/// Something that happens between two verbs.
#[derive(Arbitrary, Clone, Copy, Debug)]
pub(super) struct Event {
    /// After so many more verbs, counted round: a call has a few.
    pub(super) after_verbs: u8,
    /// Not between two verbs but in the middle of a READ, if that is what comes next.
    pub(super) torn: bool,
    pub(super) what: What,
}

#[derive(Arbitrary, Clone, Copy, Debug)]
pub(super) enum What {
    /// A word is stored.
    Store(Place, Value),
    /// One bit of a word is changed.
    Flip(Place, u8),
    /// A word is copied.
    Copy(Place, Place),
    /// A block that fits, of any key, is put where any slot names it.
    Plant(Plant),
    /// The client's clock goes on.
    Clock(u16),
    /// The completion of the next CAS is lost, with or without its effect.
    LoseCas { takes_effect: bool },
    /// The server has no memory the next time that it is asked.
    NoMemory,
}

/// A word of the region. Keys and slots are counted round; most numbers mean one of the first slots, where keys are.
#[derive(Arbitrary, Clone, Copy, Debug)]
pub(super) enum Place {
    Superblock(u8),
    /// The directory word of a key.
    Directory(u8),
    /// Any directory word.
    DirectoryAt(u8),
    /// The header of a key's bucket, in whichever segment the directory names now.
    Header(u8),
    /// A slot of a key's bucket.
    Slot {
        key: u8,
        slot: u8,
    },
    /// A word of the block that a slot names.
    Block {
        key: u8,
        slot: u8,
        word: u8,
    },
    /// The word of the free map that a slot's block has its byte in.
    FreeMap {
        key: u8,
        slot: u8,
    },
    /// A word of the block that the client wrote last.
    OwnBlock(u8),
    Anywhere(u32),
}

#[derive(Arbitrary, Clone, Copy, Debug)]
pub(super) enum Value {
    Any(u64),
    Zero,
    /// A slot word.
    Slot(SlotSpec),
    /// A bucket header that serves a key, but for what is said.
    Header {
        key: u8,
        depth: u8,
        generation: u8,
        sealed: bool,
    },
    /// A directory word.
    Directory {
        segment: u8,
        generation: u8,
        depth: u8,
    },
    /// What the place held before, so many stores ago.
    Before(u8),
}

/// A slot word that means something.
#[derive(Arbitrary, Clone, Copy, Debug)]
pub(super) struct SlotSpec {
    pub(super) state: State,
    /// Whose tag.
    pub(super) key: u8,
    pub(super) blind: bool,
    pub(super) class: u8,
    pub(super) version: u8,
    pub(super) block: BlockSpec,
}

#[derive(Arbitrary, Clone, Copy, Debug)]
pub(super) enum State {
    Live,
    Deleted,
    Moved,
    Closed,
}

/// Where a block is.
#[derive(Arbitrary, Clone, Copy, Debug)]
pub(super) enum BlockSpec {
    /// A block of a chunk of the pool.
    InChunk { chunk: u8, index: u16 },
    /// An extent of the pool.
    Extent { unit: u8 },
    /// Any unit of 64 bytes within the region or a little beyond.
    Unit(u32),
    /// The block that the client wrote last.
    Own,
}

/// A block that fits its word.
#[derive(Arbitrary, Clone, Copy, Debug)]
pub(super) struct Plant {
    /// Whose bucket, and which of its slots.
    pub(super) bucket_of: u8,
    pub(super) slot: u8,
    /// Whose key the block holds.
    pub(super) key: u8,
    pub(super) value_bytes: u8,
    pub(super) word: SlotSpec,
}
