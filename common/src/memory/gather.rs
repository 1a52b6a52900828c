//! WRITE from several places.
//!
//! Always true: pieces are stored as if they were one run of bytes, so a word that two pieces share is stored
//! whole, never half by half: the contract of a fabric makes aligned words indivisible.

use super::{AccessError, WordMemory};
use crate::layout::Offset;

impl WordMemory {
    /// WRITE: stores `pieces` one behind the other, from `offset`. As [`WordMemory::write`] of the joined bytes.
    ///
    /// # Errors
    /// [`AccessError`]; then nothing was changed.
    #[inline]
    pub fn write_gathered(&self, offset: Offset, pieces: &[&[u8]]) -> Result<(), AccessError> {
        if let [only, rest @ ..] = pieces
            && rest.iter().all(|piece| piece.is_empty())
        {
            return self.write(offset, only);
        }
        // A slice has at most isize::MAX bytes; the sum of a few may still wrap.
        let bytes = pieces.iter().fold(0_u64, |sum, piece| sum.saturating_add(piece.len() as u64));
        self.check(offset, bytes)?;
        let mut shared = SharedWord { start: offset.0, bytes: [0; 8], filled: 0 };
        for piece in pieces {
            let piece = if shared.filled == 0 { piece } else { shared.fill(self, piece)? };
            if piece.is_empty() {
                continue;
            }
            // Whole words are stored now, the rest waits for the next piece. What begins within a word counts as
            // whole once it reaches the word's end.
            let past_word = ((shared.start + piece.len() as u64) % 8) as usize;
            let (now, later) = piece.split_at(piece.len().saturating_sub(past_word));
            self.write(Offset(shared.start), now)?;
            shared.start += now.len() as u64;
            shared.fill(self, later)?;
        }
        self.write(Offset(shared.start), &shared.bytes[..shared.filled])
    }
}

/// The word that the pieces so far end in.
struct SharedWord {
    /// Where its first waiting byte goes.
    start: u64,
    bytes: [u8; 8],
    filled: usize,
}

impl SharedWord {
    /// Takes bytes up to the word's end, and stores the word if it is reached; gives the bytes left over.
    #[inline]
    fn fill<'a>(&mut self, memory: &WordMemory, piece: &'a [u8]) -> Result<&'a [u8], AccessError> {
        let room = 8 - (self.start % 8) as usize - self.filled;
        let (taken, rest) = piece.split_at(room.min(piece.len()));
        self.bytes[self.filled..self.filled + taken.len()].copy_from_slice(taken);
        self.filled += taken.len();
        if taken.len() == room {
            memory.write(Offset(self.start), &self.bytes[..self.filled])?;
            self.start += self.filled as u64;
            self.filled = 0;
        }
        Ok(rest)
    }
}

#[cfg(test)]
mod tests {
    use std::ptr::NonNull;
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    fn memory(words: &mut [u64]) -> WordMemory {
        let base = NonNull::new(words.as_mut_ptr().cast()).unwrap();
        // SAFETY: the words outlive the value in these tests and are touched by nobody else meanwhile.
        unsafe { WordMemory::new(base, 8 * words.len() as u64) }
    }

    /// Every way to cut up to 20 bytes in three, at every place in a word: as if they were one piece.
    #[test]
    fn pieces_are_stored_as_one() {
        let from: Vec<u8> = (1..=20).collect();
        for offset in 0..9 {
            for bytes in 0..=from.len() {
                for first in 0..=bytes {
                    for second in first..=bytes {
                        let (mut gathered, mut whole) = ([u64::MAX; 4], [u64::MAX; 4]);
                        let pieces = [&from[..first], &from[first..second], &from[second..bytes]];
                        memory(&mut gathered).write_gathered(Offset(offset), &pieces).unwrap();
                        memory(&mut whole).write(Offset(offset), &from[..bytes]).unwrap();
                        assert_eq!(gathered, whole, "{bytes} bytes cut at {first} and {second}, at {offset}");
                    }
                }
            }
        }
    }

    #[test]
    fn what_leaves_the_region_changes_nothing() {
        let mut words = [0; 2];
        let result = memory(&mut words).write_gathered(Offset(3), &[&[1; 4], &[1; 5], &[1; 5]]);
        assert_eq!(result, Err(AccessError::Bounds { offset: 3, bytes: 14, region_bytes: 16 }));
        assert_eq!(words, [0; 2]);
    }

    /// Two pieces meet in the middle of a word that another thread keeps reading: it sees old or new, no mixture.
    #[test]
    fn a_word_that_pieces_share_is_never_half_written() {
        let mut words = [0; 3];
        let memory = memory(&mut words);
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let reader = scope.spawn(|| {
                while !done.load(Ordering::Acquire) {
                    let word = memory.load(Offset(8)).unwrap().to_le_bytes();
                    if word.iter().any(|byte| *byte != word[0]) {
                        return Some(word);
                    }
                }
                None
            });
            for round in 0..100_000_u32 {
                let fill = [round as u8; 24];
                memory.write_gathered(Offset(0), &[&fill[..11], &fill[..2], &fill[..11]]).unwrap();
            }
            done.store(true, Ordering::Release);
            assert_eq!(reader.join().unwrap(), None, "a torn word");
        });
    }
}
