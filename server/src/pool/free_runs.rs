//! Free runs of the block pool.
//!
//! Always true: runs don't overlap, don't touch (they would be one), have whole units of 16 KiB, and lie inside
//! the pool. A run that was taken is in nobody's list until it is given back.
//!
//! Chunks are cut from the low end and extents from the high end, so that small extents don't break up the
//! room for aligned chunks before the pool is nearly full.

use std::collections::BTreeMap;

use sidestep_common::layout::{ChunkShape, Offset, PAGE_UNIT_BYTES};

/// Free runs by their start: start and length in bytes.
#[derive(Debug, Default)]
pub(super) struct FreeRuns {
    runs: BTreeMap<u64, u64>,
    free_bytes: u64,
}

impl FreeRuns {
    /// One free run.
    pub(super) fn of(start: Offset, bytes: u64) -> Self {
        let mut runs = Self::default();
        if bytes > 0 {
            runs.give_back(start, bytes);
        }
        runs
    }

    /// Bytes in all runs.
    pub(super) const fn free_bytes(&self) -> u64 {
        self.free_bytes
    }

    /// Takes room for a grant of that shape; `None` if no run has it.
    pub(super) fn take(&mut self, shape: ChunkShape) -> Option<Offset> {
        let extent = shape.align_bytes == PAGE_UNIT_BYTES;
        let place = |(&start, &bytes): (&u64, &u64)| {
            let end = start + bytes;
            let at = if extent {
                end.checked_sub(shape.bytes)?
            } else {
                start.checked_next_multiple_of(shape.align_bytes)?
            };
            (at >= start && at.checked_add(shape.bytes)? <= end).then_some((start, bytes, at))
        };
        let found =
            if extent { self.runs.iter().rev().find_map(place) } else { self.runs.iter().find_map(place) };
        let (start, bytes, at) = found?;
        self.runs.remove(&start);
        if at > start {
            self.runs.insert(start, at - start);
        }
        let end = at + shape.bytes;
        if start + bytes > end {
            self.runs.insert(end, start + bytes - end);
        }
        self.free_bytes -= shape.bytes;
        Some(Offset(at))
    }

    /// Takes these bytes; `false` if not all of them are free.
    pub(super) fn take_at(&mut self, at: Offset, bytes: u64) -> bool {
        let Some((&start, &length)) = self.runs.range(..=at.0).next_back() else { return false };
        let (end, run_end) = (at.0 + bytes, start + length);
        if end > run_end {
            return false;
        }
        self.runs.remove(&start);
        if at.0 > start {
            self.runs.insert(start, at.0 - start);
        }
        if run_end > end {
            self.runs.insert(end, run_end - end);
        }
        self.free_bytes -= bytes;
        true
    }

    /// Adds a run, joined with its neighbours.
    ///
    /// # Panics
    /// If part of it is free already: the caller's books are wrong, and going on would grant memory twice.
    pub(super) fn give_back(&mut self, start: Offset, bytes: u64) {
        assert!(bytes > 0 && bytes.is_multiple_of(PAGE_UNIT_BYTES), "a run of {bytes} bytes at {start}");
        let (mut first, mut end) = (start.0, start.0 + bytes);
        if let Some((&before, &length)) = self.runs.range(..=first).next_back() {
            assert!(before + length <= first, "{bytes} bytes at {start} are free already");
            if before + length == first {
                self.runs.remove(&before);
                first = before;
            }
        }
        if let Some((&after, &length)) = self.runs.range(start.0..).next() {
            assert!(after >= end, "{bytes} bytes at {start} are free already");
            if after == end {
                self.runs.remove(&after);
                end = after + length;
            }
        }
        self.runs.insert(first, end - first);
        self.free_bytes += bytes;
    }
}

#[cfg(test)]
mod tests {
    use sidestep_common::layout::{CHUNK_BYTES, SizeClass, chunk_shape};

    use super::*;

    #[test]
    fn chunks_come_from_below_and_extents_from_above() {
        let start = Offset(7 * CHUNK_BYTES);
        let mut runs = FreeRuns::of(start, 4 * CHUNK_BYTES + 3 * PAGE_UNIT_BYTES);
        let chunk = chunk_shape(SizeClass::holding(64).unwrap());
        let extent = chunk_shape(SizeClass::holding(200 << 10).unwrap());
        assert_eq!(runs.take(chunk), Some(start));
        let at = runs.take(extent).unwrap();
        assert_eq!(at.0 + extent.bytes, start.0 + 4 * CHUNK_BYTES + 3 * PAGE_UNIT_BYTES);
        assert_eq!(runs.take(chunk), Some(start.plus(CHUNK_BYTES)));
        assert_eq!(runs.take(chunk), Some(start.plus(2 * CHUNK_BYTES)));
        assert_eq!(runs.take(chunk), None, "the extent reaches into the last chunk");
        runs.give_back(at, extent.bytes);
        assert_eq!(runs.take(chunk), Some(start.plus(3 * CHUNK_BYTES)));
        assert_eq!(runs.free_bytes(), 3 * PAGE_UNIT_BYTES);
    }

    #[test]
    #[should_panic(expected = "free already")]
    fn giving_back_twice_is_noticed() {
        let mut runs = FreeRuns::of(Offset(0), CHUNK_BYTES);
        runs.give_back(Offset(PAGE_UNIT_BYTES), PAGE_UNIT_BYTES);
    }
}
