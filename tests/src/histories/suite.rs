//! Runs of one case, each with a seed of its own.

use std::time::{Duration, Instant};

use sidestep_client::FabricKind;

use super::dice::mix;
use super::log::now_ns;
use super::plan::Case;
use super::run::run;
use super::summary::Summary;

/// Runs `case` over `fabric`: once, or for as many seconds as `SIDESTEP_HISTORIES_SECONDS` says; with the seed
/// `SIDESTEP_HISTORIES_SEED`, or one that nobody had before. Prints what happened in each run; says what happened in the
/// first.
///
/// A seed repeats what was planned and what clients ask. When a process gets its turn is up to the machine, so a rare
/// failure may need some runs with its seed.
///
/// # Panics
/// If a run fails; with its seed.
pub fn prove(fabric: FabricKind, case: &Case) -> Summary {
    let seconds = number("SIDESTEP_HISTORIES_SECONDS").unwrap_or(0);
    let given = number("SIDESTEP_HISTORIES_SEED");
    let deadline = Instant::now() + Duration::from_secs(seconds);
    let mut first = None;
    loop {
        let seed = given.unwrap_or_else(|| mix(now_ns() ^ u64::from(std::process::id()) << 32));
        let summary = run(fabric, case, seed).unwrap_or_else(|failure| panic!("{failure}"));
        println!("{summary}");
        let first = first.get_or_insert(summary).clone();
        if Instant::now() >= deadline {
            return first;
        }
    }
}

/// A number of the environment, as `0x12` or `18`.
fn number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    let parsed = match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16),
        None => text.parse(),
    };
    Some(parsed.unwrap_or_else(|_| panic!("{name} is `{text}`, which is no number")))
}
