//! Times on a command line, such as `5s`.
//!
//! Always true: what is taken is a number with a unit, within the limits; a time that would wrap, or be no time at all,
//! is refused.

use std::time::Duration;

/// A day: nobody waits longer for one call, and sums with it cannot overflow.
const LONGEST: Duration = Duration::from_secs(24 * 3600);

/// A positive time: `5s`, `200ms`, `1.5m`; seconds if there is no unit.
pub(crate) fn parse(text: &str) -> Result<Duration, String> {
    let unit_start = text.find(|character: char| character.is_ascii_alphabetic()).unwrap_or(text.len());
    let (number, unit) = text.split_at(unit_start);
    let scale = match unit {
        "us" => 1e-6,
        "ms" => 1e-3,
        "s" | "" => 1.0,
        "m" | "min" => 60.0,
        "h" => 3600.0,
        _ => return Err(format!("unknown unit `{unit}` (use us, ms, s, m or h)")),
    };
    let number: f64 = number.trim().parse().map_err(|_| "expected a time such as 5s or 200ms".to_owned())?;
    let seconds = number * scale;
    if !(1e-6..=LONGEST.as_secs_f64()).contains(&seconds) {
        return Err(format!("must be from 1us to {}h", LONGEST.as_secs() / 3600));
    }
    Ok(Duration::from_secs_f64(seconds))
}

/// `duration` in microseconds, for people: short ones exactly enough, long ones readable.
pub(crate) fn microseconds(duration: Duration) -> String {
    format!("{:.1}", duration.as_nanos() as f64 / 1000.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_understood() {
        for (text, ms) in [("5s", 5000), ("5", 5000), ("200ms", 200), ("1.5m", 90_000), ("24h", 86_400_000)] {
            assert_eq!(parse(text).unwrap(), Duration::from_millis(ms), "{text}");
        }
        assert_eq!(parse("1us").unwrap(), Duration::from_micros(1));
    }

    #[test]
    fn what_is_no_time_is_refused() {
        for text in ["", "s", "0", "0s", "-1s", "25h", "1e300s", "NaN", "inf", "5 parsecs", "5d"] {
            assert!(parse(text).is_err(), "{text}");
        }
    }
}
