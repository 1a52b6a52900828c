//! The oracles on the region: who owns what, what each slot and block has been through.
//!
//! Always true: the book is kept from what the node saw, never from what a client believes.

use sidestep_common::fabric::sim::{Touch, VerbKind};
use sidestep_common::layout::{
    BUCKET_BYTES, BUCKET_HEADER_BYTES, Block, BlockPlace, BlockRef, Bucket, CHUNK_BYTES, Geometry, Offset,
    SLOTS_PER_BUCKET, SizeClass, SlotState, SlotWord, Version,
};
use sidestep_common::wire::ChunkPurpose;

use super::region::{Key, Region};
use super::violation::{Promise, Violation};

/// The server's janitor, where clients have their numbers.
pub(super) const JANITOR: usize = usize::MAX - 1;

/// A chunk that was granted.
#[derive(Clone, Copy, Debug)]
struct Chunk {
    offset: u64,
    owner: usize,
    class: SizeClass,
    purpose: ChunkPurpose,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Use {
    /// Written, and named by no slot.
    Written,
    /// Named by a slot.
    Published,
    /// Named no more, by that client's doing.
    Unlinked(usize),
}

/// A block that was written.
#[derive(Clone, Copy, Debug)]
struct Entry {
    block: BlockRef,
    owner: usize,
    used: Use,
    marked: bool,
    /// When it was marked.
    marked_ms: u64,
    /// The world has told its owner to look.
    is_told: bool,
}

impl Entry {
    const fn new(block: BlockRef, owner: usize, used: Use) -> Self {
        Self { block, owner, used, marked: false, marked_ms: 0, is_told: false }
    }

    /// Whether its owner may use it again: it was marked for the grace period, if it is used again at all.
    fn is_free(&self, now_ms: u64, grace_ms: Option<u64>) -> bool {
        let waited_ms = now_ms - self.marked_ms.min(now_ms);
        self.marked && grace_ms.is_some_and(|grace_ms| grace_ms == 0 || waited_ms > grace_ms)
    }
}

/// The book of one run.
#[derive(Clone, Debug, Default)]
pub(super) struct Book {
    /// The time.
    pub(super) now_ms: u64,
    /// For how long a block must have been marked; none if none is used again.
    pub(super) grace_ms: Option<u64>,
    chunks: Vec<Chunk>,
    blocks: Vec<Entry>,
    /// Slots that left EMPTY, with the key that they belong to.
    bound: Vec<(Offset, Key)>,
    /// Write ids of published blocks.
    write_ids: Vec<u64>,
    /// The last CAS of each client: whether it won, and the word that it found.
    swaps: Vec<(usize, bool, SlotWord)>,
    /// Marks that each client's verbs made.
    marks: Vec<(usize, u32)>,
    /// Clients with blocks whose fate they may not know.
    limbo: Vec<usize>,
    /// Clients whose marks may be lost: they died, or lost a connection with verbs under way.
    excused: Vec<usize>,
}

impl Book {
    pub(super) fn granted(&mut self, offset: u64, owner: usize, class: SizeClass, purpose: ChunkPurpose) {
        self.chunks.push(Chunk { offset, owner, class, purpose });
    }

    /// What `from` owns is now `to`'s.
    pub(super) fn inherit(&mut self, from: usize, to: usize) {
        self.chunks.iter_mut().filter(|chunk| chunk.owner == from).for_each(|chunk| chunk.owner = to);
        self.blocks.iter_mut().filter(|entry| entry.owner == from).for_each(|entry| entry.owner = to);
    }

    /// A client may not know the fate of a block that it wrote.
    pub(super) fn in_limbo(&mut self, client: usize) {
        self.limbo.push(client);
    }

    /// How many blocks a client has marked.
    pub(super) fn marks_of(&self, client: usize) -> u32 {
        self.marks.iter().find(|entry| entry.0 == client).map_or(0, |entry| entry.1)
    }

    /// A mark that a client owes may never come.
    pub(super) fn excuse(&mut self, client: usize) {
        self.excused.push(client);
    }

    /// A rebuild opened a slot, which belongs to the key that it took along.
    pub(super) fn opened(&mut self, slot: Offset, key: Key) {
        self.bound.retain(|entry| entry.0 != slot);
        self.bound.push((slot, key));
    }

    /// A rebuild opened a slot, which belongs to nobody.
    pub(super) fn emptied(&mut self, slot: Offset) {
        self.bound.retain(|entry| entry.0 != slot);
    }

    /// A rebuild gave a deleted key's slot up, and is to mark its block.
    pub(super) fn dropped(&mut self, block: BlockRef) {
        if let Some(entry) = self.entry(block.offset) {
            entry.used = Use::Unlinked(JANITOR);
        }
    }

    fn entry(&mut self, offset: Offset) -> Option<&mut Entry> {
        self.blocks.iter_mut().find(|entry| entry.block.offset == offset)
    }

    fn chunk(&self, offset: u64) -> Option<&Chunk> {
        let start = offset - offset % CHUNK_BYTES;
        self.chunks.iter().find(|chunk| chunk.offset == start)
    }

    /// Whether blocks of `owner` were marked since it was asked last: a harvest would find something.
    pub(super) fn is_worth_a_harvest(&mut self, owner: usize) -> bool {
        let mut is_worth = false;
        for entry in self.blocks.iter_mut().filter(|entry| entry.owner == owner && entry.marked) {
            is_worth |= !std::mem::replace(&mut entry.is_told, true);
        }
        is_worth
    }

    /// Takes down what a verb of `client` did. `node` is as it is after it.
    pub(super) fn touched(&mut self, client: usize, touch: &Touch, region: &Region) -> Result<(), Violation> {
        if touch.refused {
            let detail = format!("client {client}'s {:?} at {:#x} was refused", touch.kind, touch.offset);
            return Err(Violation::new(Promise::Grant, detail));
        }
        match touch.kind {
            VerbKind::Read => Ok(()),
            VerbKind::Write => self.written(client, touch, region),
            VerbKind::CompareSwap | VerbKind::FetchAdd => self.swapped(client, touch, region),
        }
    }

    fn written(&mut self, client: usize, touch: &Touch, region: &Region) -> Result<(), Violation> {
        let place = Offset(touch.offset);
        let outside = || {
            let detail = format!("client {client} WRITEs {} bytes at {place}", touch.bytes);
            Err(Violation::new(Promise::Grant, detail))
        };
        if !region.superblock.geometry.block_pool_holds(place, touch.bytes) {
            return outside();
        }
        let Some(chunk) = self.chunk(touch.offset).copied() else { return outside() };
        if touch.bytes == 1 {
            return self.marked(client, touch.offset, touch.new);
        }
        if chunk.owner != client {
            return outside();
        }
        let (now_ms, grace_ms) = (self.now_ms, self.grace_ms);
        match self.entry(place) {
            Some(entry) if entry.is_free(now_ms, grace_ms) => {
                *entry = Entry::new(BlockRef { version: Version(0), ..entry.block }, client, Use::Written);
                Ok(())
            }
            Some(entry) if entry.used != Use::Written => {
                let detail = format!("client {client} WRITEs block {place}, which is {:?}", entry.used);
                Err(Violation::new(Promise::Blocks, detail))
            }
            Some(_) => Ok(()),
            None => {
                // A CAS that publishes it says which version it is.
                let block = BlockRef { offset: place, class: chunk.class, version: Version(0) };
                self.blocks.push(Entry::new(block, client, Use::Written));
                Ok(())
            }
        }
    }

    /// A client, or the janitor, marks the byte at `offset` with `version`.
    pub(super) fn marked(&mut self, client: usize, offset: u64, version: u64) -> Result<(), Violation> {
        match self.marks.iter_mut().find(|entry| entry.0 == client) {
            Some(entry) => entry.1 += 1,
            None => self.marks.push((client, 1)),
        }
        let broken = |detail: String| Err(Violation::new(Promise::Marks, detail));
        let now_ms = self.now_ms;
        let Some(entry) = self.blocks.iter_mut().find(|entry| {
            BlockPlace::of(entry.block.offset, entry.block.class)
                .is_some_and(|place| place.chunk.0 + u64::from(place.index) == offset)
        }) else {
            return broken(format!("client {client} marks {offset:#x}, which no block in use has"));
        };
        let block = entry.block;
        if entry.used != Use::Unlinked(client) {
            return broken(format!("client {client} marks {block:?}, which is {:?}", entry.used));
        }
        if version != u64::from(block.version.0) {
            return broken(format!("client {client} marks {block:?} with {version}"));
        }
        entry.marked_ms = now_ms;
        if std::mem::replace(&mut entry.marked, true) {
            return broken(format!("client {client} marks {block:?} again"));
        }
        Ok(())
    }

    fn swapped(&mut self, client: usize, touch: &Touch, region: &Region) -> Result<(), Violation> {
        let slot = Offset(touch.offset);
        let geometry = &region.superblock.geometry;
        let Some((bucket, number)) = slot_of(geometry, slot) else {
            let detail = format!("client {client}'s atomic at {slot}, which is no slot");
            return Err(Violation::new(Promise::Grant, detail));
        };
        self.swaps.retain(|swap| swap.0 != client);
        self.swaps.push((client, touch.changed, SlotWord::from_bits(touch.old)));
        if !touch.changed {
            return Ok(());
        }
        let (old, new) = (SlotWord::from_bits(touch.old), SlotWord::from_bits(touch.new));
        let (SlotState::Live(block) | SlotState::Deleted(block)) = new.state() else {
            return Err(transition(client, slot, old, new));
        };
        let legal = matches!(
            (old.state(), new.state()),
            (SlotState::Live(_), _) | (SlotState::Empty | SlotState::Deleted(_), SlotState::Live(_))
        );
        if !legal {
            return Err(transition(client, slot, old, new));
        }
        let key = self.published(client, slot, new, block, region)?;
        match self.bound.iter().find(|entry| entry.0 == slot) {
            Some((_, owner)) if *owner != key => {
                let detail = format!("slot {slot} of {owner:?} is given to {key:?} by client {client}");
                return Err(Violation::new(Promise::Binding, detail));
            }
            Some(_) => {}
            None => self.bind(client, slot, key, bucket, number, region)?,
        }
        if let SlotState::Live(unlinked) | SlotState::Deleted(unlinked) = old.state()
            && let Some(entry) = self.entry(unlinked.offset)
        {
            entry.used = Use::Unlinked(client);
        }
        Ok(())
    }

    /// The block that a word names from now on; gives its key.
    fn published(
        &mut self,
        client: usize,
        slot: Offset,
        word: SlotWord,
        block: BlockRef,
        region: &Region,
    ) -> Result<Key, Violation> {
        let broken = |detail: String| Err(Violation::new(Promise::Blocks, detail));
        let chunk = self.chunk(block.offset.0).copied();
        if chunk.is_none_or(|chunk| chunk.owner != client) {
            return broken(format!("client {client} publishes {block:?}, which is not its own"));
        }
        let mut bytes = [0; 256];
        let bytes = &mut bytes[..block.class.bytes() as usize];
        region.node.read(block.offset, bytes);
        let parsed = match Block::parse(bytes, block) {
            Ok(parsed) => parsed,
            Err(error) => return broken(format!("client {client} publishes {block:?}: {error}")),
        };
        let Some(key) = region.key_of(parsed.key) else {
            return broken(format!("client {client} publishes {block:?} of an unknown key"));
        };
        if region.hash(key).tag() != word.tag() {
            return broken(format!("slot {slot}'s tag is not that of {key:?}"));
        }
        let write_id = parsed.meta.write_id.bits();
        if self.write_ids.contains(&write_id) {
            return broken(format!("client {client} publishes {block:?} with a write id that another has"));
        }
        self.write_ids.push(write_id);
        match self.entry(block.offset) {
            Some(entry) if entry.used != Use::Written => {
                let used = entry.used;
                broken(format!("client {client} publishes {block:?}, which is {used:?}"))
            }
            Some(entry) => {
                *entry = Entry::new(block, client, Use::Published);
                Ok(key)
            }
            None => {
                self.blocks.push(Entry::new(block, client, Use::Published));
                Ok(key)
            }
        }
    }

    /// A put of `client` says that it is done. If its last CAS did not win, it was overwritten: by a blind word, or it had
    /// no right to say so.
    pub(super) fn stored(&self, client: usize) -> Result<(), Violation> {
        match self.swaps.iter().find(|swap| swap.0 == client) {
            Some((_, false, word)) if !word.is_blind() => {
                let detail =
                    format!("client {client} claims to be overwritten by {word:?}, which is not blind");
                Err(Violation::new(Promise::Claims, detail))
            }
            _ => Ok(()),
        }
    }

    fn bind(
        &mut self,
        client: usize,
        slot: Offset,
        key: Key,
        bucket: Offset,
        number: usize,
        region: &Region,
    ) -> Result<(), Violation> {
        let mut bytes = [0; BUCKET_BYTES as usize];
        region.node.read(bucket, &mut bytes);
        let words = Bucket::parse(&bytes);
        if !words.header.serves(region.hash(key)) {
            let detail = format!("client {client} inserts {key:?} into {bucket}, which does not serve it");
            return Err(Violation::new(Promise::Binding, detail));
        }
        if let Some(empty) = words.slots[..number].iter().position(|word| *word == SlotWord::EMPTY) {
            let detail = format!("client {client} takes slot {number} of {bucket}; slot {empty} is EMPTY");
            return Err(Violation::new(Promise::Order, detail));
        }
        let end = bucket.plus(BUCKET_BYTES);
        let twice = self
            .bound
            .iter()
            .find(|entry| entry.1 == key && entry.0 > bucket && entry.0 < end && entry.0 != slot);
        if let Some((other, _)) = twice {
            let detail = format!("client {client} gives {key:?} slot {slot}; it has {other}");
            return Err(Violation::new(Promise::Binding, detail));
        }
        self.bound.push((slot, key));
        Ok(())
    }

    /// At the end, when every verb has executed: what is unlinked is marked, unless whoever had to was prevented.
    pub(super) fn balance(&self) -> Result<(), Violation> {
        for entry in &self.blocks {
            if let Use::Unlinked(client) = entry.used
                && !entry.marked
                && !self.excused.contains(&client)
            {
                let detail = format!("client {client} unlinked {:?} and never marked it", entry.block);
                return Err(Violation::new(Promise::Marks, detail));
            }
            if entry.used == Use::Published && entry.marked {
                let detail = format!("{:?} is marked and in use", entry.block);
                return Err(Violation::new(Promise::Marks, detail));
            }
        }
        Ok(())
    }

    /// Blocks of a chunk of `owner` that are in use, to begin behind them.
    pub(super) fn used_blocks(&self, chunk: u64) -> u32 {
        let indexes = self.blocks.iter().filter_map(|entry| {
            let place = BlockPlace::of(entry.block.offset, entry.block.class)?;
            (place.chunk.0 == chunk).then_some(place.index + 1)
        });
        indexes.max().unwrap_or(0)
    }

    /// Chunks of `owner`, with purpose.
    pub(super) fn chunks_of(&self, owner: usize) -> Vec<(u64, ChunkPurpose)> {
        let own = self.chunks.iter().filter(|chunk| chunk.owner == owner);
        own.map(|chunk| (chunk.offset, chunk.purpose)).collect()
    }

    /// The class of a chunk.
    pub(super) fn class_of(&self, chunk: u64) -> Option<SizeClass> {
        self.chunks.iter().find(|entry| entry.offset == chunk).map(|entry| entry.class)
    }

    /// Blocks that a client wrote and no CAS published; none if it may not know of some.
    pub(super) fn unpublished(&self, client: usize) -> Vec<(Offset, SizeClass, ChunkPurpose)> {
        if self.limbo.contains(&client) {
            return Vec::new();
        }
        let own = self.blocks.iter().filter(|entry| entry.owner == client && entry.used == Use::Written);
        own.filter_map(|entry| {
            let chunk = self.chunk(entry.block.offset.0)?;
            Some((entry.block.offset, chunk.class, chunk.purpose))
        })
        .collect()
    }
}

fn transition(client: usize, slot: Offset, old: SlotWord, new: SlotWord) -> Violation {
    Violation::new(Promise::Transition, format!("client {client} takes slot {slot} from {old:?} to {new:?}"))
}

/// The bucket and number of a slot, if there is one at that place.
pub(super) fn slot_of(geometry: &Geometry, slot: Offset) -> Option<(Offset, usize)> {
    let pool_end = geometry.block_pool_offset;
    let within = slot.0.checked_sub(geometry.segment_pool_offset.0)?;
    let at = (within % BUCKET_BYTES).checked_sub(BUCKET_HEADER_BYTES)?;
    let number = (at / 8) as usize;
    (slot < pool_end && at.is_multiple_of(8) && number < SLOTS_PER_BUCKET)
        .then(|| (Offset(slot.0 - slot.0 % BUCKET_BYTES), number))
}
