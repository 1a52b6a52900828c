//! The hash by which YCSB spreads key numbers.
//!
//! Always true: the results are YCSB's, bit for bit. They are part of the names of the keys in a loaded store.

/// FNV-1a's constants over the eight bytes of `number`, lowest first, and then the absolute value of the result
/// taken as a signed number (so 63 bits).
pub fn fnv_64(number: u64) -> u64 {
    const OFFSET_BASIS: u64 = 0xCBF2_9CE4_8422_2325;
    const PRIME: u64 = 1_099_511_628_211;
    let hash = number
        .to_le_bytes()
        .iter()
        .fold(OFFSET_BASIS, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(PRIME));
    hash.cast_signed().unsigned_abs()
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_first_keys_are_those_that_ycsb_loads() {
        assert_eq!(super::fnv_64(0), 6_284_781_860_667_377_211);
        assert_eq!(super::fnv_64(1), 8_517_097_267_634_966_620);
    }
}
