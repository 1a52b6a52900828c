//! The chunks of a session, by number and by place.
//!
//! Always true: a number belongs to one chunk while the session has it; two chunks never overlap.

use std::collections::BTreeMap;

use sidestep_common::layout::Offset;

use super::chunk::Chunk;

/// The chunks.
#[derive(Default, Debug)]
pub(super) struct Chunks {
    chunks: Vec<Option<Chunk>>,
    unused: Vec<u32>,
    places: BTreeMap<u64, u32>,
}

impl Chunks {
    /// Adds a chunk, unless it overlaps another one.
    pub(super) fn add(&mut self, chunk: Chunk) -> Option<u32> {
        let (start, end) = (chunk.offset.0, chunk.offset.0 + chunk.shape.bytes);
        let before = self.places.range(..end).next_back().and_then(|(_, at)| self.get(*at));
        if before.is_some_and(|before| before.offset.0 + before.shape.bytes > start) {
            return None;
        }
        let at = self.unused.pop().unwrap_or(self.chunks.len() as u32);
        if at as usize == self.chunks.len() {
            self.chunks.push(None);
        }
        self.chunks[at as usize] = Some(chunk);
        self.places.insert(start, at);
        Some(at)
    }

    pub(super) fn remove(&mut self, at: u32) -> Option<Chunk> {
        let chunk = self.chunks.get_mut(at as usize)?.take()?;
        self.places.remove(&chunk.offset.0);
        self.unused.push(at);
        Some(chunk)
    }

    pub(super) fn at(&self, offset: Offset) -> Option<u32> {
        self.places.get(&offset.0).copied()
    }

    #[inline]
    pub(super) fn get(&self, at: u32) -> Option<&Chunk> {
        self.chunks.get(at as usize)?.as_ref()
    }

    #[inline]
    pub(super) fn get_mut(&mut self, at: u32) -> Option<&mut Chunk> {
        self.chunks.get_mut(at as usize)?.as_mut()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Chunk> {
        self.chunks.iter().flatten()
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Chunk> {
        self.chunks.iter_mut().flatten()
    }

    /// With their numbers, to be changed.
    pub(super) fn numbered_mut(&mut self) -> impl Iterator<Item = (u32, &mut Chunk)> {
        (0..).zip(&mut self.chunks).filter_map(|(at, chunk)| Some((at, chunk.as_mut()?)))
    }

    /// With their numbers.
    pub(super) fn numbered(&self) -> impl Iterator<Item = (u32, &Chunk)> {
        (0..).zip(&self.chunks).filter_map(|(at, chunk)| Some((at, chunk.as_ref()?)))
    }
}
