//! Sizes in bytes, as people write them.
//!
//! Always true: units are powers of 1024 and a size that parses fits 64 bits; what could be read two ways
//! (`1GB`) is refused.

use std::fmt;
use std::str::FromStr;

use serde::de::{self, Deserialize, Deserializer, Visitor};
use serde::{Serialize, Serializer};

/// A number of bytes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct ByteSize(pub u64);

/// The text is no size.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum SizeError {
    /// Not a whole number with a unit.
    #[error(
        "`{0}` is not a size: want a whole number of bytes, or one with K, M, G, T (or KiB, MiB, GiB, TiB)"
    )]
    Syntax(String),
    /// More than 64 bits.
    #[error("`{0}` is more than {max} bytes", max = u64::MAX)]
    TooLarge(String),
}

impl ByteSize {
    /// So many MiB.
    pub const fn mebibytes(count: u64) -> Self {
        Self(count << 20)
    }
}

impl FromStr for ByteSize {
    type Err = SizeError;

    fn from_str(text: &str) -> Result<Self, SizeError> {
        let syntax = || SizeError::Syntax(text.to_owned());
        let trimmed = text.trim();
        let digits_end = trimmed.find(|c: char| !c.is_ascii_digit()).unwrap_or(trimmed.len());
        let (digits, unit) = trimmed.split_at(digits_end);
        if digits.is_empty() {
            return Err(syntax());
        }
        let shift = match unit.trim_start().to_ascii_lowercase().as_str() {
            "" | "b" => 0,
            "k" | "kib" => 10,
            "m" | "mib" => 20,
            "g" | "gib" => 30,
            "t" | "tib" => 40,
            _ => return Err(syntax()),
        };
        let too_large = || SizeError::TooLarge(text.to_owned());
        let count: u64 = digits.parse().map_err(|_| too_large())?;
        count.checked_mul(1 << shift).map(Self).ok_or_else(too_large)
    }
}

/// The largest unit that divides the size, so that it parses to the same size again.
impl fmt::Display for ByteSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (shift, unit) in [(40, "T"), (30, "G"), (20, "M"), (10, "K")] {
            if self.0 != 0 && self.0.is_multiple_of(1 << shift) {
                return write!(f, "{}{unit}", self.0 >> shift);
            }
        }
        write!(f, "{}", self.0)
    }
}

impl Serialize for ByteSize {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for ByteSize {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct TextOrNumber;
        impl Visitor<'_> for TextOrNumber {
            type Value = ByteSize;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a size such as 536870912 or \"512M\"")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<ByteSize, E> {
                text.parse().map_err(E::custom)
            }

            fn visit_u64<E: de::Error>(self, bytes: u64) -> Result<ByteSize, E> {
                Ok(ByteSize(bytes))
            }

            fn visit_i64<E: de::Error>(self, bytes: i64) -> Result<ByteSize, E> {
                u64::try_from(bytes)
                    .map(ByteSize)
                    .map_err(|_| E::custom(SizeError::Syntax(bytes.to_string())))
            }
        }
        deserializer.deserialize_any(TextOrNumber)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_parse_and_print_alike() {
        for (text, bytes) in [
            ("1G", 1 << 30),
            ("1GiB", 1 << 30),
            ("512M", 512 << 20),
            ("64 mib", 64 << 20),
            ("4096", 4096),
            ("0", 0),
            ("3k", 3072),
            ("2T", 2 << 40),
            ("18446744073709551615", u64::MAX),
        ] {
            let size: ByteSize = text.parse().unwrap();
            assert_eq!(size.0, bytes, "{text}");
            assert_eq!(size.to_string().parse(), Ok(size), "{text}");
        }
    }

    #[test]
    fn what_is_no_size_is_named() {
        for text in ["", "G", "1GB", "1.5G", "-1", "1e9", "0x10", "1 G B", "\u{661}"] {
            assert_eq!(text.parse::<ByteSize>(), Err(SizeError::Syntax(text.into())));
        }
        for text in ["18446744073709551616", "16777216T"] {
            assert_eq!(text.parse::<ByteSize>(), Err(SizeError::TooLarge(text.into())));
        }
    }
}
