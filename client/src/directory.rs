//! A client's copy of the directory, shared by its sessions.
//!
//! Always true: a newer word is never replaced by an older one, whatever the order in which READs complete.
//! The copy may be old; a bucket's header tells, and then one word is read again.

use sidestep_common::layout::DirectoryWord;
use sidestep_common::planted::{Fault, is_planted};
use sidestep_common::sync::{AtomicU64, Ordering};

/// The copy.
#[derive(Debug)]
pub struct Directory {
    words: Box<[AtomicU64]>,
}

impl Directory {
    /// A copy from the bytes of the whole directory.
    pub fn from_bytes(bytes: &[u8]) -> Self {
        let words = bytes.chunks_exact(8).map(|chunk| {
            let mut word = [0; 8];
            word.copy_from_slice(chunk);
            AtomicU64::new(u64::from_le_bytes(word))
        });
        Self { words: words.collect() }
    }

    /// Entry `index`.
    ///
    /// # Panics
    /// If the directory has no such entry: the index comes from a hash and the directory's own size.
    #[inline]
    pub fn word(&self, index: u64) -> DirectoryWord {
        // Pairs with the release in `learn`. The word names a segment that the server built before it published the
        // word, and another session saw the word: over `shm` its segment is seen too, only if that is passed on.
        DirectoryWord::from_bits(self.words[index as usize].load(Ordering::Acquire))
    }

    /// Learns a word of entry `index` that was just read, unless a newer one is known.
    pub fn learn(&self, index: u64, word: DirectoryWord) {
        let newer = |bits: u64| {
            let is_newer = word.is_newer_than(DirectoryWord::from_bits(bits));
            (is_newer || is_planted(Fault::OlderDirectoryLearned)).then_some(word.to_bits())
        };
        // Pairs with the acquire in `word`; here nothing is done with what was known. An error says that it is as new; that
        // is fine.
        let _ = self.words[index as usize].fetch_update(Ordering::Release, Ordering::Relaxed, newer);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_older_answer_never_replaces_a_newer_one() {
        let word = |generation| DirectoryWord { segment: generation * 10, generation, depth: 1 };
        let bytes: Vec<u8> =
            [word(1), word(1)].iter().flat_map(|word| word.to_bits().to_le_bytes()).collect();
        let directory = Directory::from_bytes(&bytes);
        directory.learn(1, word(3));
        directory.learn(1, word(2));
        assert_eq!(directory.word(1), word(3));
        assert_eq!(directory.word(0), word(1));
    }
}

#[cfg(all(test, loom))]
mod models {
    use std::sync::Arc;

    use sidestep_common::layout::Offset;
    use sidestep_common::memory::WordMemory;
    use sidestep_common::sync::explore;

    use super::*;

    const SEGMENT: Offset = Offset(8);

    fn word(generation: u32) -> DirectoryWord {
        DirectoryWord { segment: generation * 10, generation, depth: 1 }
    }

    fn directory() -> Arc<Directory> {
        Arc::new(Directory::from_bytes(&word(1).to_bits().to_le_bytes()))
    }

    /// Two sessions learn words that they read at different times, the older one perhaps last.
    #[test]
    fn a_newer_word_is_never_replaced_by_an_older_one() {
        explore(None, || {
            let directory = directory();
            let theirs = Arc::clone(&directory);
            let newer = loom::thread::spawn(move || theirs.learn(0, word(3)));
            directory.learn(0, word(2));
            let seen = directory.word(0).generation;
            assert!(seen >= 2, "back to {seen}");
            newer.join().unwrap();
            assert_eq!(directory.word(0), word(3));
        });
    }

    /// One session learns, while another one looks: what it saw is never taken back.
    #[test]
    fn a_reader_never_goes_back() {
        explore(None, || {
            let directory = directory();
            let theirs = Arc::clone(&directory);
            let learning = loom::thread::spawn(move || [3, 2].map(|older| theirs.learn(0, word(older))));
            let first = directory.word(0).generation;
            let second = directory.word(0).generation;
            assert!(first <= second, "back from {first} to {second}");
            learning.join().unwrap();
        });
    }

    /// A rebuild: the server builds a segment, then publishes the directory's word. One session reads the word, another
    /// one uses it: it finds the segment built.
    #[test]
    fn a_learned_word_leads_to_a_segment_that_is_built() {
        explore(None, || {
            let words = [AtomicU64::new(word(1).to_bits()), AtomicU64::new(0)];
            // SAFETY: the words live until all threads are joined.
            let memory = unsafe { WordMemory::of_model(&words) };
            let directory = directory();
            let server = loom::thread::spawn(move || {
                memory.write(SEGMENT, &[7; 8]).unwrap();
                memory.store(Offset(0), word(2).to_bits()).unwrap();
            });
            let theirs = Arc::clone(&directory);
            let reader = loom::thread::spawn(move || {
                let mut bytes = [0; 8];
                memory.read(Offset(0), &mut bytes).unwrap();
                theirs.learn(0, DirectoryWord::from_bits(u64::from_le_bytes(bytes)));
            });
            if directory.word(0) == word(2) {
                let mut segment = [0; 8];
                memory.read(SEGMENT, &mut segment).unwrap();
                assert_eq!(segment, [7; 8], "a segment that is not built");
            }
            server.join().unwrap();
            reader.join().unwrap();
        });
    }
}
