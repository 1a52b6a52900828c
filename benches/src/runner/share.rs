//! Divides a number of operations, or a range of keys, over threads.
//!
//! Always true: the shares add up to the whole, follow each other without gap or overlap, and differ by at most
//! one. A share of 0 means *nothing to do*.

use std::ops::Range;

/// The part of `0..total` that thread `index` of `threads` gets.
pub fn share(total: u64, threads: u32, index: u32) -> Range<u64> {
    let (threads, index) = (u64::from(threads), u64::from(index));
    let (each, extra) = (total / threads, total % threads);
    let start = each * index + index.min(extra);
    start..start + each + u64::from(index < extra)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_add_up() {
        for total in [0, 1, 7, 100, 1001, u64::MAX] {
            for threads in [1, 3, 8, 64] {
                let mut end = 0;
                for index in 0..threads {
                    let share = share(total, threads, index);
                    assert_eq!(share.start, end);
                    end = share.end;
                }
                assert_eq!(end, total, "{threads} threads");
            }
        }
    }
}
