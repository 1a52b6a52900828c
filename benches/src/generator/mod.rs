//! Which key comes next: YCSB's request distributions.
//!
//! Always true: a generator holds only its own parameters and takes its randomness as an argument; it does no
//! I/O and shares nothing except where its documentation says so ([`acknowledged`], sequential).

pub mod acknowledged;
pub mod choose;
pub mod exact_zipfian;
pub mod exponential;
pub mod fnv;
pub mod hotspot;
pub mod latest;
pub mod permutation;
pub mod scrambled;
pub mod theta;
mod zeta;
pub mod zipfian;

#[cfg(test)]
mod statistics;
