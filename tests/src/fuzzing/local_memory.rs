//! A region in this process's memory, between guard words.

use std::ptr::NonNull;

use sidestep_common::memory::WordMemory;

const GUARD_WORDS: usize = 8;
const GUARD: u64 = 0xfeed_face_dead_beef;

/// Zeroed memory that notices if somebody writes beside it.
pub(super) struct LocalMemory {
    words: Vec<u64>,
}

impl LocalMemory {
    /// `bytes` bytes, a multiple of 8.
    pub(super) fn new(bytes: u64) -> Self {
        let inner = (bytes / 8) as usize;
        // Zeroed memory comes untouched from the system, so what is never used costs nothing.
        let mut words = vec![0; inner + 2 * GUARD_WORDS];
        words[..GUARD_WORDS].fill(GUARD);
        words[GUARD_WORDS + inner..].fill(GUARD);
        Self { words }
    }

    /// The memory. It is not to be used after `self` is dropped.
    pub(super) fn words(&mut self) -> WordMemory {
        let inner = self.words.len() - 2 * GUARD_WORDS;
        let base = NonNull::from(&mut self.words[GUARD_WORDS..]).cast();
        // SAFETY: the vector is neither resized nor touched otherwise while the copies of this value are used, all of
        // which stay within the target's run that owns `self`.
        unsafe { WordMemory::new(base, inner as u64 * 8) }
    }

    /// Checks the guards.
    pub(super) fn check(&self) {
        let inner = self.words.len() - 2 * GUARD_WORDS;
        let guards = self.words[..GUARD_WORDS].iter().chain(&self.words[GUARD_WORDS + inner..]);
        assert!(guards.into_iter().all(|word| *word == GUARD), "somebody wrote beside the region");
    }
}
