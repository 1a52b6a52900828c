//! Numbers as people write them on command lines and in workload files.
//!
//! Always true: the exact number comes back or an error does; nothing is rounded, wrapped or cut to 32 bits.

use std::time::Duration;

/// A text that is not the number that was asked for.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not {wanted}")]
pub struct NumberError {
    text: String,
    wanted: &'static str,
}

/// A count: decimal digits, `_` between them allowed, or a whole number in the form `5e9`.
pub fn parse_count(text: &str) -> Result<u64, NumberError> {
    let error =
        || NumberError { text: text.to_owned(), wanted: "a whole number from 0 to 18446744073709551615" };
    let digits = text.trim().replace('_', "");
    let (mantissa, exponent) = match digits.split_once(['e', 'E']) {
        Some((mantissa, exponent)) => (mantissa, exponent.parse::<u32>().map_err(|_| error())?),
        None => (digits.as_str(), 0),
    };
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let all_digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    let misplaced = mantissa.contains('.') && (fraction.is_empty() || exponent < fraction.len() as u32);
    if whole.is_empty() || !all_digits(whole) || !all_digits(fraction) || misplaced || exponent > 19 {
        return Err(error());
    }
    let number: u128 = format!("{whole}{fraction}").parse().map_err(|_| error())?;
    let scaled = number.checked_mul(10u128.pow(exponent - fraction.len() as u32));
    scaled.and_then(|number| u64::try_from(number).ok()).ok_or_else(error)
}

/// A duration: a number followed by `ms`, `s`, `m` or `h`; seconds if nothing follows.
pub fn parse_duration(text: &str) -> Result<Duration, NumberError> {
    let error = || NumberError { text: text.to_owned(), wanted: "a duration such as 500ms, 30s, 2m or 1h" };
    let trimmed = text.trim();
    let end = trimmed
        .find(|character: char| !character.is_ascii_digit() && character != '.')
        .unwrap_or(trimmed.len());
    let (number, unit) = trimmed.split_at(end);
    let seconds = match unit.trim() {
        "ms" => 0.001,
        "" | "s" => 1.0,
        "m" | "min" => 60.0,
        "h" => 3600.0,
        _ => return Err(error()),
    };
    let number: f64 = number.parse().map_err(|_| error())?;
    Duration::try_from_secs_f64(number * seconds).map_err(|_| error())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_exact_beyond_32_bits() {
        for (text, number) in [
            ("0", 0),
            ("1_000_000", 1_000_000),
            ("5e9", 5_000_000_000),
            ("1.5e3", 1500),
            ("10000000010", 10_000_000_010),
            ("18446744073709551615", u64::MAX),
        ] {
            assert_eq!(parse_count(text), Ok(number));
        }
        for bad in
            ["", "-1", "1.5", "1e20", "18446744073709551616", "abc", "NaN", "1e", "1.", "0x10", "1.55e1"]
        {
            assert!(parse_count(bad).expect_err(bad).to_string().contains(&format!("{bad:?}")));
        }
    }

    #[test]
    fn durations_have_units() {
        for (text, milliseconds) in
            [("30s", 30_000), ("500ms", 500), ("2m", 120_000), ("1.5", 1500), ("1h", 3_600_000)]
        {
            assert_eq!(parse_duration(text), Ok(Duration::from_millis(milliseconds)));
        }
        for bad in ["", "s", "-1s", "1d", "1e400", "NaN", "99999999999999999999999h"] {
            assert!(parse_duration(bad).is_err(), "{bad}");
        }
    }
}
