//! Values that tell whether they are whole, and whose they are.
//!
//! Always true: a value is all its number: length and every byte follow from it, and no two values of one run have the
//! same number. Two different values differ in each of their whole words, so a value of which any word is another's, or
//! at another place, is seen not to be whole.
//!
//! ```text
//! number:  │ client 16 │ session 4 │ count 28 │ key 16 │        the count-th put of that session, to that key
//! value:   number, then words that follow from number and position; the last one is cut
//! ```

use std::fmt;

use super::dice::{GOLDEN, mix};

/// A value's number. Never 0: clients are numbered from 1.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Number(u64);

const KEY_BITS: u32 = 16;
const COUNT_BITS: u32 = 28;
const SESSION_BITS: u32 = 4;
const _: () = assert!(16 + SESSION_BITS + COUNT_BITS + KEY_BITS == 64);

impl Number {
    /// The number of a session's `count`-th value, put at `key`.
    ///
    /// # Panics
    /// If there are more sessions or values than numbers.
    pub fn new(client: u16, session: u8, count: u32, key: u16) -> Self {
        assert!(client > 0 && session < 1 << SESSION_BITS && count < 1 << COUNT_BITS, "no number is left");
        let who = u64::from(client) << SESSION_BITS | u64::from(session);
        Self((who << COUNT_BITS | u64::from(count)) << KEY_BITS | u64::from(key))
    }

    /// From its bits; `None` for 0, which is no number.
    pub const fn from_bits(bits: u64) -> Option<Self> {
        if bits >> (SESSION_BITS + COUNT_BITS + KEY_BITS) == 0 { None } else { Some(Self(bits)) }
    }

    /// Its bits.
    pub const fn bits(self) -> u64 {
        self.0
    }

    /// The key that it was put at.
    pub const fn key(self) -> u16 {
        self.0 as u16
    }

    /// Bytes of the value.
    ///
    /// From a word to several KiB, around the borders of cache lines and size classes, and now and then so long that it
    /// is written and read for a long time. Few size classes, because a session has a chunk for each.
    pub const fn value_bytes(self) -> usize {
        let bits = mix(self.0 ^ GOLDEN);
        let more = (bits >> 32) as usize;
        match bits % 256 {
            0 => 100 * 1024 + more % 1024,
            1 => 150 * 1024 + more % 1024,
            2..=15 => 5_800 + more % 200,
            16..=47 => 1_100 + more % 100,
            48..=79 => 300 + more % 30,
            80..=127 => 100 + more % 40,
            _ => 8 + more % 57,
        }
    }

    /// Puts the value into `value`, replacing what is in there.
    pub fn write_value(self, value: &mut Vec<u8>) {
        let bytes = self.value_bytes();
        value.clear();
        value.reserve(bytes + 8);
        for position in 0..bytes.div_ceil(8) {
            value.extend_from_slice(&self.word(position as u64).to_le_bytes());
        }
        value.truncate(bytes);
    }

    const fn word(self, position: u64) -> u64 {
        if position == 0 {
            self.0
        } else {
            self.0.wrapping_add(position.wrapping_mul(GOLDEN)).wrapping_mul(SPREAD)
        }
    }

    /// Whose word that is, if it is one of a value, at that position.
    fn of_word(word: u64, position: u64) -> Option<Self> {
        let bits = match position {
            0 => word,
            _ => word.wrapping_mul(inverse(SPREAD)).wrapping_sub(position.wrapping_mul(GOLDEN)),
        };
        Self::from_bits(bits)
    }
}

impl fmt::Debug for Number {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{self}")
    }
}

impl fmt::Display for Number {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = self.0 >> KEY_BITS & ((1 << COUNT_BITS) - 1);
        let who = self.0 >> (COUNT_BITS + KEY_BITS);
        let (client, session) = (who >> SESSION_BITS, who & ((1 << SESSION_BITS) - 1));
        write!(out, "{:#x} (put {count} of client {client} session {session}, at key {})", self.0, self.key())
    }
}

/// Odd, so that it has an inverse.
const SPREAD: u64 = 0xd134_2543_de82_ef95;

/// The number whose product with an odd one is 1: Newton's method doubles the bits that are right, from three on.
const fn inverse(odd: u64) -> u64 {
    let mut found = odd;
    let mut right_bits = 3;
    while right_bits < 64 {
        found = found.wrapping_mul(2_u64.wrapping_sub(odd.wrapping_mul(found)));
        right_bits *= 2;
    }
    found
}

/// What was read is no whole value of its key.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum NotWhole {
    /// Not even a number.
    #[error("{bytes} bytes, which hold no number")]
    NoNumber {
        /// Bytes read.
        bytes: usize,
    },
    /// The value of another key.
    #[error("the value {number}, read at key {key}")]
    Foreign {
        /// The value's number.
        number: Number,
        /// The key that was read.
        key: u16,
    },
    /// Too long or too short.
    #[error("{bytes} bytes that begin like the value {number}, which has {expected}")]
    Length {
        /// By its first word.
        number: Number,
        /// Bytes read.
        bytes: usize,
        /// Bytes of that value.
        expected: usize,
    },
    /// Torn.
    #[error(
        "{bytes} bytes that begin like the value {number}, but byte {at} is in a word {word:#018x}{}",
        if let Some(other) = other { format!(", as the value {other} has it") } else { String::new() }
    )]
    Torn {
        /// By its first word.
        number: Number,
        /// Bytes read.
        bytes: usize,
        /// The first byte of the word that is not this value's.
        at: usize,
        /// That word.
        word: u64,
        /// Whose word it would be.
        other: Option<Number>,
    },
}

/// The number of the whole value `value`, read at `key`.
///
/// # Errors
/// [`NotWhole`] if it is none, or another key's.
pub fn read_value(value: &[u8], key: u16) -> Result<Number, NotWhole> {
    let bytes = value.len();
    let first = value.first_chunk().copied().map(u64::from_le_bytes);
    let number = first.and_then(Number::from_bits).ok_or(NotWhole::NoNumber { bytes })?;
    let (words, rest) = value.as_chunks::<8>();
    for (position, word) in words.iter().enumerate() {
        let word = u64::from_le_bytes(*word);
        if word != number.word(position as u64) {
            let other = Number::of_word(word, position as u64);
            return Err(NotWhole::Torn { number, bytes, at: position * 8, word, other });
        }
    }
    let last = number.word(words.len() as u64).to_le_bytes();
    if *rest != last[..rest.len()] {
        let mut word = [0; 8];
        word[..rest.len()].copy_from_slice(rest);
        let word = u64::from_le_bytes(word);
        return Err(NotWhole::Torn { number, bytes, at: words.len() * 8, word, other: None });
    }
    let expected = number.value_bytes();
    if bytes != expected {
        return Err(NotWhole::Length { number, bytes, expected });
    }
    if number.key() != key {
        return Err(NotWhole::Foreign { number, key });
    }
    Ok(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(number: Number) -> Vec<u8> {
        let mut value = vec![9; 3];
        number.write_value(&mut value);
        value
    }

    fn of_at_least(bytes: usize, key: u16) -> Number {
        let numbers = (0..).map(|count| Number::new(3, 1, count, key));
        numbers.into_iter().find(|number| number.value_bytes() >= bytes).unwrap()
    }

    #[test]
    fn values_come_back_and_have_all_lengths() {
        let mut lengths = Vec::new();
        for count in 0..2_000 {
            let number = Number::new(u16::MAX, 15, count, 7);
            let value = value(number);
            assert_eq!(read_value(&value, 7), Ok(number));
            assert_eq!(read_value(&value, 8), Err(NotWhole::Foreign { number, key: 8 }));
            lengths.push(value.len());
        }
        for (from, to) in
            [(8, 16), (60, 65), (100, 140), (300, 330), (1_100, 1_200), (5_800, 6_000), (102_400, 160_000)]
        {
            assert!(lengths.iter().any(|bytes| (from..to).contains(bytes)), "none of {from} to {to} bytes");
        }
    }

    /// Any one word of another value, at its place, or of the same value, at another place, is noticed, and the other
    /// value is named.
    #[test]
    fn torn_values_are_noticed() {
        let (one, other) = (of_at_least(1_100, 1), of_at_least(5_000, 1));
        let (whole, strange) = (value(one), value(other));
        let words = whole.len() / 8;
        for position in 1..words {
            let mut torn = whole.clone();
            let place = position * 8..position * 8 + 8;
            torn[place.clone()].copy_from_slice(&strange[place.clone()]);
            let found = read_value(&torn, 1);
            let Err(NotWhole::Torn { number, at, other: Some(named), .. }) = found else {
                panic!("{found:?}")
            };
            assert_eq!((number, at, named), (one, position * 8, other));
            let elsewhere = (position + 1) % words * 8;
            torn[place].copy_from_slice(&whole[elsewhere..elsewhere + 8]);
            assert!(matches!(read_value(&torn, 1), Err(NotWhole::Torn { .. })), "word {position}");
        }
        for bytes in 0..whole.len() {
            assert!(read_value(&whole[..bytes], 1).is_err(), "{bytes} bytes");
        }
        for at in 0..whole.len() {
            let mut flipped = whole.clone();
            flipped[at] ^= 0x10;
            assert!(read_value(&flipped, 1).is_err(), "byte {at}");
        }
    }
}
