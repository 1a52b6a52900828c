//! The simulated node's memory.
//!
//! Always true: every word that was changed since the last mark is in the journal with what it held then, so the memory
//! can be put back in time proportional to what was changed, whatever its size.

/// Words, with a way back.
#[derive(Debug)]
pub(super) struct Memory {
    words: Vec<u64>,
    journal: Vec<(usize, u64)>,
}

impl Memory {
    pub(super) fn new(bytes: u64) -> Self {
        Self { words: vec![0; bytes as usize / 8], journal: Vec::new() }
    }

    pub(super) const fn bytes(&self) -> u64 {
        self.words.len() as u64 * 8
    }

    pub(super) fn word(&self, index: usize) -> u64 {
        self.words[index]
    }

    pub(super) fn set(&mut self, index: usize, word: u64) {
        self.journal.push((index, self.words[index]));
        self.words[index] = word;
    }

    /// Replaces `from.len()` bytes of a word, starting with its byte `skip`.
    pub(super) fn set_part(&mut self, index: usize, skip: usize, from: &[u8]) {
        let mut bytes = self.words[index].to_le_bytes();
        bytes[skip..skip + from.len()].copy_from_slice(from);
        self.set(index, u64::from_le_bytes(bytes));
    }

    /// What is there now is what [`Memory::rollback`] goes back to; the way back to the mark before.
    pub(super) fn mark(&mut self) -> Vec<(usize, u64)> {
        std::mem::take(&mut self.journal)
    }

    pub(super) fn rollback(&mut self) {
        while let Some((index, word)) = self.journal.pop() {
            self.words[index] = word;
        }
    }

    /// Goes all changes back, and then along `way`: new changes themselves, which can be rolled back.
    pub(super) fn go_back(&mut self, way: &[(usize, u64)]) {
        let since_mark = self.journal.clone();
        for (index, word) in since_mark.into_iter().rev().chain(way.iter().rev().copied()) {
            self.set(index, word);
        }
    }
}

/// A run of bytes, as the words that it touches.
#[derive(Clone, Copy, Debug)]
pub(super) struct Span {
    pub(super) remote: u64,
    pub(super) bytes: usize,
}

/// A word's share of a span: bytes `skip..skip + len` of word `index` are bytes `at..at + len` of the span.
#[derive(Clone, Copy, Debug)]
pub(super) struct Share {
    pub(super) index: usize,
    pub(super) skip: usize,
    pub(super) at: usize,
    pub(super) len: usize,
}

impl Span {
    pub(super) const fn words(self) -> usize {
        ((self.remote % 8) as usize + self.bytes).div_ceil(8)
    }

    pub(super) fn share(self, word: usize) -> Share {
        let lead = (self.remote % 8) as usize;
        let index = (self.remote / 8) as usize + word;
        if word == 0 {
            return Share { index, skip: lead, at: 0, len: self.bytes.min(8 - lead) };
        }
        let at = 8 * word - lead;
        Share { index, skip: 0, at, len: (self.bytes - at).min(8) }
    }
}

/// Which words of a verb are still to be done.
#[derive(Clone, Default, Debug)]
pub(super) struct WordSet {
    bits: smallvec::SmallVec<[u64; 1]>,
    count: usize,
}

impl WordSet {
    pub(super) fn all(words: usize) -> Self {
        let mut bits: smallvec::SmallVec<[u64; 1]> = smallvec::SmallVec::from_elem(u64::MAX, words / 64);
        if !words.is_multiple_of(64) {
            bits.push((1 << (words % 64)) - 1);
        }
        Self { bits, count: words }
    }

    pub(super) const fn count(&self) -> usize {
        self.count
    }

    /// Takes a word out; whether it was there.
    pub(super) fn take(&mut self, word: usize) -> bool {
        let (at, bit) = (word / 64, 1 << (word % 64));
        let was = self.bits.get(at).is_some_and(|bits| bits & bit != 0);
        if was {
            self.bits[at] &= !bit;
            self.count -= 1;
        }
        was
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_are_cut_at_word_boundaries() {
        for remote in 0..10_u64 {
            for bytes in 1..40 {
                let span = Span { remote, bytes };
                let mut at = 0;
                for word in 0..span.words() {
                    let share = span.share(word);
                    assert_eq!(share.at, at, "{span:?} {share:?}");
                    assert_eq!(share.index as u64 * 8 + share.skip as u64, remote + at as u64);
                    assert!(share.len >= 1 && share.skip + share.len <= 8);
                    at += share.len;
                }
                assert_eq!(at, bytes);
            }
        }
    }

    #[test]
    fn the_way_back_is_exact() {
        let mut memory = Memory::new(64);
        memory.set(1, 7);
        memory.mark();
        memory.set(1, 8);
        memory.set_part(1, 3, &[9]);
        memory.set(2, 5);
        memory.rollback();
        assert_eq!((memory.word(1), memory.word(2)), (7, 0));
    }

    #[test]
    fn word_sets_give_each_word_once() {
        let mut set = WordSet::all(65);
        assert!(set.take(64) && !set.take(64) && !set.take(65) && set.take(0));
        assert_eq!(set.count(), 63);
    }
}
