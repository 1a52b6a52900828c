//! Word access to a region.
//!
//! Always true: only whole, aligned 64-bit words are loaded, stored or compared, so that no two accesses of
//! different size ever race. A write of part of a word replaces these bytes by compare-and-swap and leaves the
//! neighbours alone.

use std::ptr::NonNull;

use crate::layout::Offset;
use crate::sync::{AtomicU64, Ordering, fence};

/// An access that the region does not allow. Nothing was changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum AccessError {
    /// It leaves the region.
    #[error("access to {bytes} bytes at {offset:#x} leaves a region of {region_bytes} bytes")]
    Bounds {
        /// From the region's start.
        offset: u64,
        /// How many.
        bytes: u64,
        /// Bytes of the region.
        region_bytes: u64,
    },
    /// An atomic on a word that isn't aligned.
    #[error("atomic access at {offset:#x} is not a multiple of 8")]
    Unaligned {
        /// From the region's start.
        offset: u64,
    },
}

/// Memory that this process shares with others, as words. A plain pointer and length: whoever makes one keeps
/// the mapping alive for as long as it is used.
#[derive(Clone, Copy, Debug)]
pub struct WordMemory {
    base: NonNull<AtomicU64>,
    bytes: u64,
}

// SAFETY: every access goes through atomic words; the maker of a `WordMemory` guarantees the mapping's life.
unsafe impl Send for WordMemory {}
// SAFETY: as above.
unsafe impl Sync for WordMemory {}

impl WordMemory {
    /// Words at `base`, `bytes` long.
    ///
    /// # Safety
    /// `base` must be valid for reads (and for writes, if any writing method is called) of `bytes` bytes for
    /// as long as this value or a copy of it is used, and touched by others through atomic words only.
    ///
    /// # Panics
    /// If `base` or `bytes` is not a multiple of 8.
    pub unsafe fn new(base: NonNull<u8>, bytes: u64) -> Self {
        assert!(base.as_ptr().addr().is_multiple_of(8) && bytes.is_multiple_of(8), "{base:?} {bytes}");
        if size_of::<AtomicU64>() != 8 {
            panic!("loom's words are longer than eight bytes: see `of_model`");
        }
        Self { base: base.cast(), bytes }
    }

    /// Words of a test under loom.
    ///
    /// # Safety
    /// `words` must live for as long as this value or a copy of it is used.
    #[cfg(loom)]
    pub unsafe fn of_model(words: &[AtomicU64]) -> Self {
        Self { base: NonNull::from(words).cast(), bytes: 8 * words.len() as u64 }
    }

    /// Its length.
    pub const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Where it is mapped in this process.
    pub const fn base(&self) -> NonNull<u8> {
        self.base.cast()
    }

    /// Whether `bytes` at `offset` lie inside.
    ///
    /// # Errors
    /// [`AccessError::Bounds`] if they don't.
    #[inline]
    pub const fn check(&self, offset: Offset, bytes: u64) -> Result<(), AccessError> {
        if bytes > self.bytes || offset.0 > self.bytes - bytes {
            return Err(AccessError::Bounds { offset: offset.0, bytes, region_bytes: self.bytes });
        }
        Ok(())
    }

    #[inline]
    fn check_atomic(&self, offset: Offset) -> Result<&AtomicU64, AccessError> {
        if !offset.0.is_multiple_of(8) {
            return Err(AccessError::Unaligned { offset: offset.0 });
        }
        self.check(offset, 8)?;
        Ok(self.word(offset.0 / 8))
    }

    /// The word with that index; callers have checked the bounds.
    #[inline]
    fn word(&self, index: u64) -> &AtomicU64 {
        debug_assert!(index < self.bytes / 8);
        // SAFETY: the index is inside, as checked by the public method that came here.
        let word = unsafe { self.base.add(index as usize) };
        // SAFETY: `new` was promised that this memory is valid and shared by atomic words only.
        unsafe { word.as_ref() }
    }

    /// READ: copies `into.len()` bytes from `offset`. Words are copied whole; longer copies may tear.
    ///
    /// # Errors
    /// [`AccessError`]; then `into` is untouched.
    #[inline]
    pub fn read(&self, offset: Offset, into: &mut [u8]) -> Result<(), AccessError> {
        self.check(offset, into.len() as u64)?;
        let mut index = offset.0 / 8;
        let skip = (offset.0 % 8) as usize;
        let (head, rest) = into.split_at_mut(head_bytes(skip, into.len()));
        if !head.is_empty() {
            head.copy_from_slice(
                &self.word(index).load(Ordering::Relaxed).to_ne_bytes()[skip..skip + head.len()],
            );
            index += 1;
        }
        // Arrays, not slices of eight: a store each and no call.
        let (words, tail) = rest.as_chunks_mut::<8>();
        for word in words {
            *word = self.word(index).load(Ordering::Relaxed).to_ne_bytes();
            index += 1;
        }
        if !tail.is_empty() {
            tail.copy_from_slice(&self.word(index).load(Ordering::Relaxed).to_ne_bytes()[..tail.len()]);
        }
        fence(Ordering::Acquire);
        Ok(())
    }

    /// WRITE: stores `from` at `offset`. Whole words are stored whole; bytes beside it keep their values.
    ///
    /// # Errors
    /// [`AccessError`]; then nothing was changed.
    #[inline]
    pub fn write(&self, offset: Offset, from: &[u8]) -> Result<(), AccessError> {
        self.check(offset, from.len() as u64)?;
        fence(Ordering::Release);
        let mut index = offset.0 / 8;
        let skip = (offset.0 % 8) as usize;
        let (head, rest) = from.split_at(head_bytes(skip, from.len()));
        if !head.is_empty() {
            self.write_part(index, skip, head);
            index += 1;
        }
        let (words, tail) = rest.as_chunks::<8>();
        for word in words {
            self.word(index).store(u64::from_ne_bytes(*word), Ordering::Relaxed);
            index += 1;
        }
        if !tail.is_empty() {
            self.write_part(index, 0, tail);
        }
        Ok(())
    }

    /// Replaces `from.len()` bytes of a word, starting with its byte `skip`.
    fn write_part(&self, index: u64, skip: usize, from: &[u8]) {
        let replaced = |word: u64| {
            let mut bytes = word.to_ne_bytes();
            bytes[skip..skip + from.len()].copy_from_slice(from);
            Some(u64::from_ne_bytes(bytes))
        };
        // The closure never declines, so this can't fail.
        let _ = self.word(index).fetch_update(Ordering::Relaxed, Ordering::Relaxed, replaced);
    }

    /// CAS: puts `desired` where `expected` is; returns what was there. Numbers are little-endian in memory.
    ///
    /// # Errors
    /// [`AccessError`], also for a word that isn't aligned; then nothing was changed.
    #[inline]
    pub fn compare_swap(&self, offset: Offset, expected: u64, desired: u64) -> Result<u64, AccessError> {
        let word = self.check_atomic(offset)?;
        let old =
            word.compare_exchange(expected.to_le(), desired.to_le(), Ordering::AcqRel, Ordering::Acquire);
        Ok(u64::from_le(old.unwrap_or_else(|other| other)))
    }

    /// FAA: adds `add`, wrapping; returns what was there.
    ///
    /// # Errors
    /// As [`WordMemory::compare_swap`].
    #[inline]
    pub fn fetch_add(&self, offset: Offset, add: u64) -> Result<u64, AccessError> {
        let word = self.check_atomic(offset)?;
        if cfg!(target_endian = "little") {
            return Ok(word.fetch_add(add, Ordering::AcqRel));
        }
        let added = |old: u64| Some(u64::from_le(old).wrapping_add(add).to_le());
        let old = word.fetch_update(Ordering::AcqRel, Ordering::Acquire, added);
        Ok(u64::from_le(old.unwrap_or_else(|other| other)))
    }

    /// Loads one aligned word.
    ///
    /// # Errors
    /// As [`WordMemory::compare_swap`].
    #[inline]
    pub fn load(&self, offset: Offset) -> Result<u64, AccessError> {
        Ok(u64::from_le(self.check_atomic(offset)?.load(Ordering::Acquire)))
    }

    /// Stores one aligned word.
    ///
    /// # Errors
    /// As [`WordMemory::compare_swap`].
    #[inline]
    pub fn store(&self, offset: Offset, value: u64) -> Result<(), AccessError> {
        self.check_atomic(offset)?.store(value.to_le(), Ordering::Release);
        Ok(())
    }
}

/// Bytes before the first word boundary, of an access of `bytes` that starts at byte `skip` of a word.
#[inline]
fn head_bytes(skip: usize, bytes: usize) -> usize {
    if skip == 0 { 0 } else { bytes.min(8 - skip) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 64 bytes with a guard word on either side that no access may touch.
    struct Guarded(Vec<u64>);

    impl Guarded {
        fn new() -> Self {
            let mut words = vec![0; 10];
            words[0] = u64::MAX;
            words[9] = u64::MAX;
            Self(words)
        }

        fn memory(&mut self) -> WordMemory {
            let base = NonNull::new(self.0.as_mut_ptr().wrapping_add(1).cast()).unwrap();
            // SAFETY: the vector outlives the value in these tests and has ten words.
            unsafe { WordMemory::new(base, 64) }
        }
    }

    #[test]
    fn reads_see_writes_at_every_place_and_length() {
        let mut guarded = Guarded::new();
        let memory = guarded.memory();
        let mut model = [0_u8; 64];
        let mut fill = 1_u8;
        for offset in 0..64_usize {
            for bytes in 0..=64 - offset {
                let from: Vec<u8> = (0..bytes).map(|at| fill.wrapping_add(at as u8)).collect();
                fill = fill.wrapping_mul(5).wrapping_add(3);
                memory.write(Offset(offset as u64), &from).unwrap();
                model[offset..offset + bytes].copy_from_slice(&from);
                let mut whole = [0; 64];
                memory.read(Offset(0), &mut whole).unwrap();
                assert_eq!(whole, model, "after {bytes} bytes at {offset}");
                let mut part = vec![0; bytes];
                memory.read(Offset(offset as u64), &mut part).unwrap();
                assert_eq!(part, from);
            }
        }
        assert_eq!((guarded.0[0], guarded.0[9]), (u64::MAX, u64::MAX));
    }

    #[test]
    fn what_leaves_the_region_is_refused_and_changes_nothing() {
        let mut guarded = Guarded::new();
        let memory = guarded.memory();
        for (offset, bytes) in [(64, 1), (63, 2), (0, 65), (u64::MAX, 1), (u64::MAX - 7, 8), (60, 8)] {
            assert!(memory.write(Offset(offset), &vec![7; bytes]).is_err(), "{offset} {bytes}");
            assert!(memory.read(Offset(offset), &mut vec![0; bytes]).is_err(), "{offset} {bytes}");
        }
        assert!(memory.read(Offset(64), &mut []).is_ok(), "nothing at the very end is inside");
        for offset in [64, 57, u64::MAX - 7, 1, 4, 63] {
            assert!(memory.compare_swap(Offset(offset), 0, 1).is_err(), "{offset}");
            assert!(memory.fetch_add(Offset(offset), 1).is_err(), "{offset}");
        }
        assert_eq!(guarded.0[1..9], [0; 8]);
    }

    #[test]
    fn atomics_return_what_was_there_also_in_the_last_word() {
        let mut guarded = Guarded::new();
        let memory = guarded.memory();
        assert_eq!(memory.compare_swap(Offset(56), 0, 5), Ok(0));
        assert_eq!(memory.compare_swap(Offset(56), 0, 6), Ok(5));
        assert_eq!(memory.load(Offset(56)), Ok(5));
        assert_eq!(memory.fetch_add(Offset(56), u64::MAX), Ok(5));
        assert_eq!(memory.load(Offset(56)), Ok(4));
        memory.store(Offset(0), 1).unwrap();
        assert_eq!(guarded.0[1].to_ne_bytes()[0], 1, "little-endian");
    }

    /// Marks of neighbouring blocks, from several threads: none may undo another's.
    #[test]
    fn one_byte_writes_leave_their_neighbours_alone() {
        let mut guarded = Guarded::new();
        let memory = guarded.memory();
        std::thread::scope(|scope| {
            for lane in 0..4_u64 {
                scope.spawn(move || {
                    for round in 0..10_000_u64 {
                        memory.write(Offset(8 + lane), &[round as u8]).unwrap();
                        let mut own = [0];
                        memory.read(Offset(8 + lane), &mut own).unwrap();
                        assert_eq!(own[0], round as u8, "lane {lane}");
                    }
                });
            }
        });
    }
}
