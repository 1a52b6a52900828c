//! A client's copy of the directory, shared by its sessions.
//!
//! Always true: a newer word is never replaced by an older one, whatever the order in which READs complete.
//! The copy may be old; a bucket's header tells, and then one word is read again.

use std::sync::atomic::{AtomicU64, Ordering};

use sidestep_common::layout::DirectoryWord;
use sidestep_common::planted::{Fault, is_planted};

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
        // Pairs with the release in `learn`; the word is all there is to see.
        DirectoryWord::from_bits(self.words[index as usize].load(Ordering::Acquire))
    }

    /// Learns a word of entry `index` that was just read, unless a newer one is known.
    pub fn learn(&self, index: u64, word: DirectoryWord) {
        let newer = |bits: u64| {
            let is_newer = word.is_newer_than(DirectoryWord::from_bits(bits));
            (is_newer || is_planted(Fault::OlderDirectoryLearned)).then_some(word.to_bits())
        };
        // An error says that what is known is as new; that is fine.
        let _ = self.words[index as usize].fetch_update(Ordering::AcqRel, Ordering::Acquire, newer);
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
