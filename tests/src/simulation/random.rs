//! Random numbers that are the same everywhere.

/// A number below `below`.
pub(super) fn draw(random: &mut u64, below: usize) -> usize {
    // SplitMix64 (Steele, Lea, Flood 2014).
    *random = random.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut word = *random;
    word = (word ^ word >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    ((word ^ word >> 31) % below.max(1) as u64) as usize
}
