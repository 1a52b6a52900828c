//! Keys and values of a workload's records.
//!
//! Always true:
//! - a key is `user` and a number, padded with zeros: YCSB's names, so that a store can be loaded by one tool and
//!   read by another;
//! - a record is **one** value of `fieldcount * fieldlength` bytes (fewer if the field length is drawn). There
//!   are no fields: reading gives and updating writes the whole record;
//! - with data integrity the bytes of a value follow from its key: any prefix of the same stream is right, so a
//!   value can be checked whatever its length.

use super::settings::{FieldLength, Settings};
use crate::generator::fnv::fnv_64;
use crate::generator::theta::THETA_YCSB;
use crate::generator::zipfian::{Zipfian, ZipfianError};
use crate::random::RandomStream;

/// The longest key that the store takes.
pub const KEY_BYTES_MAX: u64 = 1024;

/// The widest number that fits into a key after `user`.
pub const ZERO_PADDING_MAX: u64 = KEY_BYTES_MAX - 4;

/// Makes keys and values. Each thread has its own clone.
#[derive(Debug, Clone)]
pub struct Records {
    is_hashed: bool,
    zero_padding: usize,
    field_count: u64,
    field_bytes: u64,
    field_bytes_min: u64,
    field_length: FieldLength,
    field_zipfian: Zipfian,
    data_integrity: bool,
}

impl Records {
    /// For a workload.
    pub fn new(settings: &Settings) -> Result<Self, ZipfianError> {
        let lengths = settings.field_bytes.saturating_sub(settings.field_bytes_min) + 1;
        Ok(Self {
            is_hashed: settings.is_hashed,
            zero_padding: settings.zero_padding as usize,
            field_count: settings.field_count,
            field_bytes: settings.field_bytes,
            field_bytes_min: settings.field_bytes_min,
            field_length: settings.field_length,
            field_zipfian: Zipfian::new(settings.field_bytes_min, lengths, THETA_YCSB)?,
            data_integrity: settings.data_integrity,
        })
    }

    /// Writes the name of key number `number` into `key`.
    pub fn key(&self, number: u64, key: &mut Vec<u8>) {
        use std::io::Write;
        let number = if self.is_hashed { fnv_64(number) } else { number };
        key.clear();
        write!(key, "user{number:0width$}", width = self.zero_padding)
            .expect("a Vec takes all that is written");
    }

    /// Writes a new value for `key` into `value`.
    pub fn value(&self, key: &[u8], random: &mut RandomStream, value: &mut Vec<u8>) {
        let bytes = self.draw_bytes(random);
        if self.data_integrity {
            expected_value(key, bytes, value);
        } else {
            value.resize(bytes, 0);
            random.fill(value);
        }
    }

    /// Whether `value` can have been written under `key`: the right bytes, and the right length if that is fixed.
    pub fn is_intact(&self, key: &[u8], value: &[u8]) -> bool {
        let right_length = match self.field_length {
            FieldLength::Constant => value.len() as u64 == self.field_count * self.field_bytes,
            _ => value.len() as u64 <= self.field_count * self.field_bytes,
        };
        right_length && is_expected_value(key, value)
    }

    fn draw_bytes(&self, random: &mut RandomStream) -> usize {
        let bytes: u64 = match self.field_length {
            FieldLength::Constant => self.field_count * self.field_bytes,
            FieldLength::Uniform => (0..self.field_count)
                .map(|_| self.field_bytes_min + random.below(self.field_bytes - self.field_bytes_min + 1))
                .sum(),
            FieldLength::Zipfian => (0..self.field_count).map(|_| self.field_zipfian.next(random)).sum(),
        };
        bytes as usize
    }
}

/// Writes the `bytes` bytes that belong to `key` into `value`.
pub fn expected_value(key: &[u8], bytes: usize, value: &mut Vec<u8>) {
    value.resize(bytes, 0);
    key_stream(key).fill(value);
}

/// Whether `value` is what [`expected_value`] makes for this key and length.
pub fn is_expected_value(key: &[u8], value: &[u8]) -> bool {
    let mut stream = key_stream(key);
    value.chunks(8).all(|chunk| stream.bits().to_le_bytes().starts_with(chunk))
}

fn key_stream(key: &[u8]) -> RandomStream {
    // FNV-1a over the key: this only needs to tell keys apart.
    let seed = key.iter().fold(0xCBF2_9CE4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(1_099_511_628_211)
    });
    RandomStream::new(seed, 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::properties::Properties;

    fn records(arguments: &[&str]) -> Records {
        let mut properties = Properties::default();
        properties.set("recordcount", "10");
        arguments.iter().for_each(|argument| properties.set_argument(argument).unwrap());
        Records::new(&Settings::new(&properties, "test", 1 << 20).unwrap()).unwrap()
    }

    fn key(records: &Records, number: u64) -> String {
        let mut key = Vec::new();
        records.key(number, &mut key);
        String::from_utf8(key).unwrap()
    }

    #[test]
    fn keys_are_ycsbs() {
        assert_eq!(key(&records(&[]), 0), "user6284781860667377211");
        assert_eq!(key(&records(&["insertorder=ordered"]), 7), "user7");
        assert_eq!(
            key(&records(&["insertorder=ordered", "zeropadding=20"]), 10_000_000_010),
            "user00000000010000000010"
        );
        assert_eq!(key(&records(&["zeropadding=64"]), 1).len(), 68);
        assert_eq!(key(&records(&["insertorder=ordered"]), u64::MAX), "user18446744073709551615");
    }

    #[test]
    fn values_have_the_length_of_all_fields() {
        let (mut random, mut value) = (RandomStream::new(1, 0), Vec::new());
        records(&[]).value(b"k", &mut random, &mut value);
        assert_eq!(value.len(), 1000);
        for distribution in ["fieldlengthdistribution=uniform", "fieldlengthdistribution=zipfian"] {
            let records = records(&[distribution, "fieldcount=2", "fieldlength=9", "minfieldlength=5"]);
            let mut seen = std::collections::BTreeSet::new();
            for _ in 0..10_000 {
                records.value(b"k", &mut random, &mut value);
                seen.insert(value.len());
            }
            assert_eq!(seen, (10..=18).collect(), "{distribution}");
        }
    }

    #[test]
    fn a_changed_byte_a_wrong_key_and_a_wrong_length_are_seen() {
        let records = records(&["dataintegrity=true", "fieldcount=1", "fieldlength=101"]);
        let (mut random, mut value) = (RandomStream::new(1, 0), Vec::new());
        records.value(b"user1", &mut random, &mut value);
        assert!(records.is_intact(b"user1", &value));
        assert!(!records.is_intact(b"user2", &value));
        assert!(!records.is_intact(b"user1", &value[..100]));
        for index in [0, 50, 100] {
            value[index] ^= 1;
            assert!(!records.is_intact(b"user1", &value), "byte {index}");
            value[index] ^= 1;
        }
        let mut prefix = Vec::new();
        expected_value(b"user1", 13, &mut prefix);
        assert_eq!(prefix, value[..13]);
        assert!(is_expected_value(b"user1", &prefix) && is_expected_value(b"user1", b""));
    }
}
