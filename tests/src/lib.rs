//! Whole-system tests of Sidestep. What several test binaries share is here.

#[cfg(feature = "verbs")]
pub mod card;
pub mod conformance;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
pub mod histories;
pub mod linearizability;
#[cfg(feature = "simulation")]
pub mod simulation;
pub mod system;

/// How often something is repeated that is `count` times on an ordinary machine: `SIDESTEP_TEST_SCALE` (1.0 if not
/// set) is 0.05 or so on an emulated processor, and more than 1 for a long night.
pub fn scaled(count: u64) -> u64 {
    let scale =
        std::env::var("SIDESTEP_TEST_SCALE").ok().and_then(|text| text.parse::<f64>().ok()).unwrap_or(1.0);
    ((count as f64 * scale) as u64).max(1)
}

/// Keys that broke other stores: zero bytes, blanks, line ends, bytes that are no text, a path, one letter composed and
/// decomposed. All different.
pub const AWKWARD_KEYS: [&[u8]; 14] = [
    b"\0",
    b"\0\x01",
    b"\0\0",
    b"a\0b",
    b"a\0c",
    b"a",
    b"a b",
    b"\t",
    b"\r\nset x 0 0 1\r\n",
    b"\xff\xfe",
    "\u{e9}".as_bytes(),
    "e\u{301}".as_bytes(),
    b"../x",
    b" ",
];
