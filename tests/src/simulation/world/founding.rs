//! What a world begins with, and what a server does when it is asked for memory.
//!
//! Always true: nobody disturbs the calls that came before; the memory goes back to what they left.

use super::*;

/// No client of a story uses more blocks of a chunk.
const BLOCKS_USED_MAX: u32 = 32;

impl World<'_> {
    /// What was there before.
    pub(super) fn found(&mut self) {
        let mut calls: Vec<Call> =
            (0..self.story.fillers).map(|number| Call { ask: Ask::Put, key: Key::Filler(number) }).collect();
        calls.extend(&self.story.before);
        let mut client = Client::new(self.region, 100);
        let mut values: Vec<(Key, Option<u64>)> =
            self.story.keys().into_iter().map(|key| (key, None)).collect();
        for (number, call) in calls.into_iter().enumerate() {
            let value = 1 + number as u64;
            let answer = self.alone(&mut client, FOUNDER, call, value);
            let entry = values.iter_mut().find(|entry| entry.0 == call.key);
            match (call.ask, answer, entry) {
                (Ask::Put, Some(End::Answered(Answer::Stored)), entry) => {
                    if let Some(entry) = entry {
                        entry.1 = Some(value);
                    }
                }
                (Ask::Delete, Some(End::Answered(Answer::Existed(_))), Some(entry)) => entry.1 = None,
                (Ask::Get, ..) => {}
                // More keys than slots.
                (_, Some(End::Refused(OperationError::BucketFull { .. })), _) if self.may_be_full() => {}
                // With a fault planted a story may well begin badly.
                (.., answer, _) => {
                    let detail = format!("{call}, before anybody else: {answer:?}");
                    self.violation.get_or_insert(Violation::new(Promise::Errors, detail));
                }
            }
        }
        self.keys = values;
        if self.story.reuse != Reuse::Never {
            self.book.inherit(FOUNDER, 0);
        }
        self.founded = self.book.clone();
        self.founded_chunk = self.next_chunk;
        drop(client);
        self.way_back = self.region.node.mark();
    }

    /// The bucket has fewer slots than there are keys.
    pub(super) fn may_be_full(&self) -> bool {
        let keys = self.story.keys().into_iter().filter(|key| *key != Key::Elsewhere);
        usize::from(self.story.fillers) + keys.count() > SLOTS_PER_BUCKET
    }

    /// Runs a call with nobody in between. `None` if it does not end.
    pub(super) fn alone(&mut self, client: &mut Client, owner: usize, call: Call, value: u64) -> Option<End> {
        let mut event = client.begin(self.region, self.now_ms, call, value);
        for _ in 0..VERBS_A_CALL_MAX {
            match event {
                Event::Ended(end) => {
                    // Its mark, if any.
                    while let Some(step) = self.region.node.whole_step(client.queue_pair()) {
                        self.observe(owner, step);
                    }
                    let _ = client.go_on(self.region, self.now_ms);
                    return Some(end);
                }
                Event::Memory(class, purpose) => {
                    let grant = self.grant(owner, class, purpose);
                    Self::add(self.region, &self.story, client, grant, purpose, 0);
                    event = self.note(|world| client.resume(world.region, world.now_ms))?;
                }
                Event::Pauses => return None,
                Event::Waits => {
                    let step = self.region.node.whole_step(client.queue_pair())?;
                    self.observe(owner, step);
                    event = self.note(|world| client.go_on(world.region, world.now_ms))?;
                }
            }
        }
        None
    }

    pub(super) fn note<T>(&mut self, act: impl FnOnce(&mut Self) -> Result<T, Violation>) -> Option<T> {
        match act(self) {
            Ok(value) => Some(value),
            Err(violation) => {
                self.violation.get_or_insert(violation);
                None
            }
        }
    }

    /// What the server does when it is asked for memory.
    pub(super) fn grant(&mut self, owner: usize, class: SizeClass, purpose: ChunkPurpose) -> ChunkGrant {
        let offset = self.next_chunk;
        self.next_chunk += CHUNK_BYTES;
        self.book.granted(offset, owner, class, purpose);
        ChunkGrant { offset, class: class.index(), versions: Vec::new() }
    }

    /// Gives a client a chunk of which the blocks in front of `used` are somebody's.
    pub(super) fn add(
        region: &Region,
        story: &Story,
        client: &mut Client,
        grant: ChunkGrant,
        purpose: ChunkPurpose,
        used: u32,
    ) {
        let Some(class) = SizeClass::from_index(grant.class) else {
            unreachable!("a class that was asked for")
        };
        let block_count = chunk_shape(class).block_count;
        let first = if story.scarce { used.max(block_count - 1) } else { used };
        let first_version = Version(story.first_version);
        let next =
            if first_version == Version::FIRST { first } else { block_count.min(first + BLOCKS_USED_MAX) };
        let before = first_version.0.wrapping_sub(1).max(1);
        let version = |index: u32| if index < used { first_version.0 } else { before };
        let chunk = Offset(grant.offset);
        let grant = ChunkGrant { versions: (0..next).map(version).collect(), ..grant };
        let added = client.allocator().add(&region.superblock.geometry, &grant, purpose);
        assert!(added.is_ok(), "the region has room for every chunk of a story: {added:?}");
        // Those of another first version; the first one is to be the next.
        for index in (first..next).rev() {
            let block = BlockPlace { chunk, index }.block(class, first_version);
            client.allocator().reuse_next(block);
        }
    }

    /// The first client goes on with the chunks of whoever was there before.
    pub(super) fn take_over(&self, client: &mut Client) {
        for (chunk, purpose) in self.book.chunks_of(0) {
            let Some(class) = self.book.class_of(chunk) else { continue };
            let used = self.book.used_blocks(chunk);
            if used < chunk_shape(class).block_count {
                let grant = ChunkGrant { offset: chunk, class: class.index(), versions: Vec::new() };
                Self::add(self.region, &self.story, client, grant, purpose, used);
            }
        }
    }
}
