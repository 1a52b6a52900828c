//! Where a WRITE's bytes wait that are too many to travel inside the work request.
//!
//! Always true: bytes are copied once, before `post` returns, and stay where they are until the card is done with
//! them. Work requests complete in order, so the memory is a ring: taken at one end, freed at the other. It starts
//! small and is replaced by a larger ring when a call needs more, up to a bound; the ring that was replaced lives
//! until its last WRITE is done.
//!
//! Places are numbered for ever upwards across rings, so that one number says how far all of it is free.

use std::collections::VecDeque;
use std::ptr::NonNull;
use std::sync::Arc;

use super::error::VerbsError;
use super::region::{LocalMemory, ProtectionDomain};

/// Most sessions only write small blocks; this holds a few dozen of them.
const FIRST_BYTES: usize = 128 << 10;
/// Pieces start at cache lines.
const ALIGN: u64 = 64;

/// Why nothing was staged.
#[derive(Debug)]
pub(super) enum StageError {
    /// It fits when earlier WRITEs are done.
    Full,
    /// It never fits.
    TooLarge,
    /// More memory could not be registered.
    Refused(VerbsError),
}

struct Ring {
    memory: LocalMemory,
    /// Number of the place where it starts.
    first: u64,
    /// Bytes before this are taken or were skipped at a wrap; none behind it.
    head: u64,
}

/// See the module.
pub(super) struct Staging {
    domain: Arc<ProtectionDomain>,
    /// The last one is in use, those before it wait to be freed.
    rings: VecDeque<Ring>,
    bytes_max: usize,
    /// All before this is free.
    free: u64,
}

/// Bytes that were staged.
#[derive(Clone, Copy, Debug)]
pub(super) struct Staged {
    /// Where they are.
    pub(super) start: NonNull<u8>,
    /// The memory's name for the own card.
    pub(super) lkey: u32,
}

impl Staging {
    /// A ring that may grow to `bytes_max`.
    pub(super) fn new(domain: &Arc<ProtectionDomain>, bytes_max: usize) -> Self {
        Self { domain: Arc::clone(domain), rings: VecDeque::new(), bytes_max, free: 0 }
    }

    /// How far it is taken: to be freed up to here, or to go back to.
    pub(super) fn head(&self) -> u64 {
        self.rings.back().map_or(self.free, |ring| ring.head)
    }

    /// All before `place` is done with.
    pub(super) fn free_to(&mut self, place: u64) {
        self.free = self.free.max(place);
        while self.rings.len() > 1 && self.rings.front().is_some_and(|ring| ring.head <= self.free) {
            self.rings.pop_front();
        }
    }

    /// Gives back what was taken since [`Self::head`] said `place`, none of it having been posted.
    pub(super) fn back_to(&mut self, place: u64) {
        if let Some(ring) = self.rings.back_mut() {
            ring.head = place.max(ring.first);
        }
    }

    /// Copies the pieces to one place.
    pub(super) fn stage(&mut self, pieces: &[&[u8]]) -> Result<Staged, StageError> {
        let bytes: usize = pieces.iter().map(|piece| piece.len()).sum();
        if bytes > self.bytes_max {
            return Err(StageError::TooLarge);
        }
        let at = loop {
            match self.rings.back_mut().and_then(|ring| ring.take(bytes, self.free)) {
                Some(at) => break at,
                None => self.grow(bytes)?,
            }
        };
        let Some(ring) = self.rings.back() else { unreachable!("a ring gave {bytes} bytes at {at}") };
        // SAFETY: `take` gave a place inside the ring's memory.
        let start = unsafe { ring.memory.start().add(at) };
        let mut to = start;
        for piece in pieces {
            // SAFETY: the place has room for all pieces, nobody else uses it, and callers' slices are not in it.
            unsafe { to.as_ptr().copy_from_nonoverlapping(piece.as_ptr(), piece.len()) };
            // SAFETY: as above; at most one past the last byte.
            to = unsafe { to.add(piece.len()) };
        }
        Ok(Staged { start, lkey: ring.memory.lkey() })
    }

    fn grow(&mut self, bytes: usize) -> Result<(), StageError> {
        let current = self.rings.back().map_or(0, |ring| ring.memory.bytes());
        let wanted = if current == 0 { FIRST_BYTES } else { current * 2 };
        let size = wanted.max(bytes.next_power_of_two()).min(self.bytes_max.next_power_of_two());
        if size <= current {
            return Err(StageError::Full);
        }
        let memory = LocalMemory::new(&self.domain, size).map_err(StageError::Refused)?;
        let first = self.head();
        self.rings.push_back(Ring { memory, first, head: first });
        self.free_to(self.free);
        Ok(())
    }
}

impl Ring {
    /// A place for `bytes` in one piece, as an offset into the memory; none if it isn't free.
    fn take(&mut self, bytes: usize, free: u64) -> Option<usize> {
        let (at, head) = place(self.first, self.head, free, self.memory.bytes() as u64, bytes as u64)?;
        self.head = head;
        Some(at as usize)
    }
}

/// Where `bytes` go in a ring of `size` that starts at `first`, is taken up to `head` and free before `free`: the
/// offset and the new head.
fn place(first: u64, head: u64, free: u64, size: u64, bytes: u64) -> Option<(u64, u64)> {
    let bytes = bytes.next_multiple_of(ALIGN);
    let at = (head - first) % size;
    // What does not fit before the end goes to the start; the rest of the end is skipped.
    let skip = if at + bytes > size { size - at } else { 0 };
    let tail = free.max(first).min(head);
    let taken = head - tail + skip + bytes;
    (taken <= size).then_some(((at + skip) % size, head + skip + bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Random sizes through a small ring, freed late and in order: no two pieces in use overlap, and a ring that is
    /// empty takes anything up to its size.
    #[test]
    fn pieces_in_use_never_overlap() {
        let (first, size) = (1000 * ALIGN, 64 * ALIGN);
        let (mut head, mut free) = (first, first);
        let mut used: VecDeque<(u64, u64, u64)> = VecDeque::new();
        let mut random = 0x9e37_79b9_7f4a_7c15_u64;
        for _ in 0..100_000 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let bytes = 1 + (random >> 33) % (size / 2);
            match place(first, head, free, size, bytes) {
                Some((at, new_head)) => {
                    assert!(at + bytes <= size);
                    for (other, other_bytes, _) in &used {
                        assert!(at + bytes <= *other || other + other_bytes <= at, "{at} {bytes} {other}");
                    }
                    used.push_back((at, bytes, new_head));
                    head = new_head;
                }
                None => {
                    let (.., end) = used.pop_front().expect("a ring without pieces takes half its size");
                    free = end;
                }
            }
        }
    }

    #[test]
    fn a_whole_ring_fits_once_it_is_empty() {
        assert_eq!(place(0, 0, 0, 1024, 1024), Some((0, 1024)));
        assert_eq!(place(0, 1024, 0, 1024, 1), None);
        assert_eq!(place(0, 1024, 1024, 1024, 1), Some((0, 1088)));
        assert_eq!(place(0, 64, 64, 1024, 1024), None, "not in one piece, short of the skip being free");
    }
}
