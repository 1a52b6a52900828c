//! Bytes on their way between a socket and whoever makes or takes them.
//!
//! Always true: `start <= end <= bytes.len()`, every byte is initialised, and memory grows only when bytes were
//! really put in, never on a peer's announcement.

/// A first-in, first-out queue of bytes that lie in one piece.
pub(super) struct ByteQueue {
    bytes: Vec<u8>,
    start: usize,
    end: usize,
}

impl ByteQueue {
    /// An empty queue with room for `capacity` bytes.
    pub(super) fn with_capacity(capacity: usize) -> Self {
        Self { bytes: vec![0; capacity], start: 0, end: 0 }
    }

    pub(super) fn len(&self) -> usize {
        self.end - self.start
    }

    pub(super) fn is_empty(&self) -> bool {
        self.start == self.end
    }

    /// Bytes of memory that it has.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(super) fn capacity(&self) -> usize {
        self.bytes.len()
    }

    /// What is queued.
    pub(super) fn filled(&self) -> &[u8] {
        &self.bytes[self.start..self.end]
    }

    /// Takes `count` bytes off the front.
    pub(super) fn consume(&mut self, count: usize) {
        assert!(count <= self.len(), "{count} of {}", self.len());
        self.start += count;
        if self.start == self.end {
            self.start = 0;
            self.end = 0;
        }
    }

    /// Free room behind the queued bytes, at least `least` bytes of it. What is filled in is queued by
    /// [`ByteQueue::commit`].
    pub(super) fn space(&mut self, least: usize) -> &mut [u8] {
        if self.bytes.len() - self.end < least {
            self.make_room(least);
        }
        &mut self.bytes[self.end..]
    }

    /// Queues the first `count` bytes of the free room.
    pub(super) fn commit(&mut self, count: usize) {
        assert!(count <= self.bytes.len() - self.end, "{count} of {}", self.bytes.len() - self.end);
        self.end += count;
    }

    /// Queues `bytes`.
    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.space(bytes.len())[..bytes.len()].copy_from_slice(bytes);
        self.commit(bytes.len());
    }

    /// Gives memory above `capacity` back, if nothing is queued.
    pub(super) fn shrink(&mut self, capacity: usize) {
        if self.is_empty() && self.bytes.len() > capacity {
            self.bytes = vec![0; capacity];
        }
    }

    #[cold]
    fn make_room(&mut self, least: usize) {
        self.bytes.copy_within(self.start..self.end, 0);
        self.end -= self.start;
        self.start = 0;
        if self.bytes.len() - self.end < least {
            self.bytes.resize((self.end + least).next_power_of_two(), 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_come_out_as_they_went_in() {
        let mut queue = ByteQueue::with_capacity(4);
        let (mut next_in, mut next_out) = (0_u8, 0_u8);
        for round in 0..1_000_usize {
            for _ in 0..round % 13 {
                queue.push(&[next_in]);
                next_in = next_in.wrapping_add(1);
            }
            let taken = queue.len().min(round % 11);
            for byte in &queue.filled()[..taken] {
                assert_eq!(*byte, next_out);
                next_out = next_out.wrapping_add(1);
            }
            queue.consume(taken);
        }
        assert!(queue.len() > 100 && queue.capacity() < 4 * queue.len());
    }

    #[test]
    fn room_is_reused_before_memory_is_taken() {
        let mut queue = ByteQueue::with_capacity(16);
        for _ in 0..1_000 {
            queue.push(&[1; 10]);
            queue.consume(7);
            queue.push(&[2; 5]);
            queue.consume(8);
        }
        assert_eq!(queue.capacity(), 16);
    }
}
