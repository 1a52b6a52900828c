//! What a world begins with, and what a server does when it is asked for memory.
//!
//! Always true: nobody disturbs the calls that came before; the memory goes back to what they left.

use super::*;

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
        usize::from(self.story.fillers) + self.story.keys().len() > SLOTS_PER_BUCKET
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
                    Self::add(self.region, client, grant, purpose);
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
        let block_count = chunk_shape(class).block_count;
        let first_index = if self.story.scarce { block_count - 1 } else { 0 };
        let version = self.story.first_version;
        ChunkGrant { offset, class: class.index(), first_index, block_count, version }
    }

    pub(super) fn add(region: &Region, client: &mut Client, grant: ChunkGrant, purpose: ChunkPurpose) {
        let added = client.allocator().add(&region.superblock.geometry, grant, purpose);
        assert!(added.is_ok(), "the region has room for every chunk of a story: {added:?}");
    }

    /// The first client goes on with the chunks of whoever was there before.
    pub(super) fn take_over(&self, client: &mut Client) {
        for (chunk, purpose) in self.book.chunks_of(0) {
            let Some(class) = self.book.class_of(chunk) else { continue };
            if self.book.used_blocks(chunk) == chunk_shape(class).block_count {
                continue;
            }
            let grant = ChunkGrant {
                offset: chunk,
                class: class.index(),
                first_index: self.book.used_blocks(chunk),
                block_count: chunk_shape(class).block_count,
                version: self.story.first_version,
            };
            Self::add(self.region, client, grant, purpose);
        }
    }
}
