//! What a log says: that a call was made, or what came of it.
//!
//! Always true: a record whose bytes are not all there, or are at another place than where they were written, is
//! recognised.
//!
//! ```text
//!       0        1        2        3        4        5        6        7
//!   0 │ time: nanoseconds of CLOCK_MONOTONIC                                  │
//!   8 │ number of the value that is put, or was got; 0 for none               │
//!  16 │ incarnation of the region that the session is joined to; 0 for none   │
//!  24 │ kind   │ zero   │ key (16)        │ checksum (32)                     │
//! ```
//!
//! The checksum is the lower half of xxh3-64 of the bytes before it, seeded with the record's position in its log.

use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::value::Number;

/// Bytes of a record: they divide a page, so a record lies in one, and `write` copies it whole or not at all.
pub const RECORD_BYTES: usize = 32;

const CHECKSUM_AT: usize = 28;

/// What a client asks of a key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ask {
    /// Its value.
    Get,
    /// To store this value.
    Put(Number),
    /// To remove it.
    Delete,
}

/// What came of a call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ending {
    /// A get found this value.
    Found(Number),
    /// A get found none.
    Absent,
    /// A put was done.
    Stored,
    /// A delete was done, and the key was there.
    Existed,
    /// A delete was done, and the key was not there.
    NotThere,
    /// An error that says that it may have happened.
    Unknown,
    /// An error that says that nothing happened.
    Nothing,
}

/// What a record says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Entry {
    /// A call is about to be made.
    Invoked(Ask),
    /// The call of the record before has returned.
    Returned(Ending),
}

/// A record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Record {
    /// When, in nanoseconds.
    pub time: u64,
    /// The region that the session was joined to then.
    pub incarnation: Option<u64>,
    /// The key.
    pub key: u16,
    /// What.
    pub entry: Entry,
}

impl Entry {
    const fn code(self) -> (u8, Option<Number>) {
        match self {
            Self::Invoked(Ask::Get) => (1, None),
            Self::Invoked(Ask::Put(number)) => (2, Some(number)),
            Self::Invoked(Ask::Delete) => (3, None),
            Self::Returned(Ending::Found(number)) => (4, Some(number)),
            Self::Returned(Ending::Absent) => (5, None),
            Self::Returned(Ending::Stored) => (6, None),
            Self::Returned(Ending::Existed) => (7, None),
            Self::Returned(Ending::NotThere) => (8, None),
            Self::Returned(Ending::Unknown) => (9, None),
            Self::Returned(Ending::Nothing) => (10, None),
        }
    }

    const fn of_code(code: u8, number: Option<Number>) -> Option<Self> {
        Some(match (code, number) {
            (1, None) => Self::Invoked(Ask::Get),
            (2, Some(number)) => Self::Invoked(Ask::Put(number)),
            (3, None) => Self::Invoked(Ask::Delete),
            (4, Some(number)) => Self::Returned(Ending::Found(number)),
            (5, None) => Self::Returned(Ending::Absent),
            (6, None) => Self::Returned(Ending::Stored),
            (7, None) => Self::Returned(Ending::Existed),
            (8, None) => Self::Returned(Ending::NotThere),
            (9, None) => Self::Returned(Ending::Unknown),
            (10, None) => Self::Returned(Ending::Nothing),
            _ => return None,
        })
    }
}

impl Record {
    /// The bytes of the record at `position` of a log.
    pub fn encode(&self, position: u64) -> [u8; RECORD_BYTES] {
        let (code, number) = self.entry.code();
        let mut bytes = [0; RECORD_BYTES];
        bytes[..8].copy_from_slice(&self.time.to_le_bytes());
        bytes[8..16].copy_from_slice(&number.map_or(0, Number::bits).to_le_bytes());
        bytes[16..24].copy_from_slice(&self.incarnation.unwrap_or(0).to_le_bytes());
        bytes[24] = code;
        bytes[26..28].copy_from_slice(&self.key.to_le_bytes());
        let checksum = checksum(&bytes, position);
        bytes[CHECKSUM_AT..].copy_from_slice(&checksum);
        bytes
    }

    /// The record whose bytes are at `position` of a log; `None` if they are none, or not of that place.
    pub fn parse(bytes: &[u8; RECORD_BYTES], position: u64) -> Option<Self> {
        if bytes[CHECKSUM_AT..] != checksum(bytes, position) {
            return None;
        }
        let word = |at: usize| bytes[at..].first_chunk().copied().map_or(0, u64::from_le_bytes);
        Some(Self {
            time: word(0),
            incarnation: Some(word(16)).filter(|incarnation| *incarnation != 0),
            key: u16::from_le_bytes([bytes[26], bytes[27]]),
            entry: Entry::of_code(bytes[24], Number::from_bits(word(8)))?,
        })
    }
}

fn checksum(bytes: &[u8; RECORD_BYTES], position: u64) -> [u8; 4] {
    (xxh3_64_with_seed(&bytes[..CHECKSUM_AT], position) as u32).to_le_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_record_comes_back_from_its_own_place_only() {
        let number = Number::new(2, 1, 77, 300);
        let asks = [Ask::Get, Ask::Put(number), Ask::Delete].map(Entry::Invoked);
        let endings = [
            Ending::Found(number),
            Ending::Absent,
            Ending::Stored,
            Ending::Existed,
            Ending::NotThere,
            Ending::Unknown,
            Ending::Nothing,
        ]
        .map(Entry::Returned);
        for (position, entry) in asks.into_iter().chain(endings).enumerate() {
            let position = position as u64;
            let record = Record { time: 1 << 60 | position, incarnation: Some(9), key: 300, entry };
            let bytes = record.encode(position);
            assert_eq!(Record::parse(&bytes, position), Some(record));
            assert_eq!(Record::parse(&bytes, position + 1), None);
            for at in 0..RECORD_BYTES {
                let mut damaged = bytes;
                damaged[at] ^= 1;
                assert_eq!(Record::parse(&damaged, position), None, "byte {at}");
            }
        }
        assert_eq!(Record::parse(&[0; RECORD_BYTES], 0), None);
    }
}
