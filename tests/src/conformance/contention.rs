//! Contention: atomics of several sessions on the same words. Sums must come out.

use std::time::Instant;

use sidestep_common::fabric::Reply;

use super::{Bed, DEADLINE, Driver, add, swap};
use crate::scaled;

const SESSIONS: u64 = 4;

/// Adds one by CAS, however often it takes; gives the number of tries.
fn count_up(driver: &mut Driver, word: u64, seen: &mut u64, deadline: Instant) -> u64 {
    for tries in 1.. {
        let old = driver.atomic(swap(word, *seen, *seen + 1));
        if old == *seen {
            *seen += 1;
            return tries;
        }
        assert_ne!(old, *seen);
        *seen = old;
        assert!(Instant::now() < deadline, "no progress");
    }
    unreachable!("there are more numbers than tries")
}

/// Four sessions count one word up by CAS: each success counts, each failure brings what was there. The sum is exact.
pub fn compare_and_swap_counts_exactly(bed: &dyn Bed) {
    let each = scaled(2000);
    let deadline = Instant::now() + DEADLINE;
    std::thread::scope(|scope| {
        for _ in 0..SESSIONS {
            scope.spawn(move || {
                let (mut driver, mut seen) = (bed.connect(), 0);
                for _ in 0..each {
                    count_up(&mut driver, 4096, &mut seen, deadline);
                }
            });
        }
    });
    assert_eq!(bed.peek_word(4096), SESSIONS * each);
}

/// Four sessions count one word up by FAA, several in flight at once: the sum is exact, and no two got the same number.
pub fn fetch_and_add_counts_exactly(bed: &dyn Bed) {
    let each = scaled(2000).next_multiple_of(8);
    let last = bed.region_bytes() - 8;
    let mut numbers: Vec<u64> = std::thread::scope(|scope| {
        let sessions: Vec<_> = (0..SESSIONS)
            .map(|_| {
                scope.spawn(move || {
                    let mut driver = bed.connect();
                    let mut numbers = Vec::new();
                    for _ in 0..each / 8 {
                        (0..4).for_each(|_| driver.post(vec![add(last, 1), add(last, 1)]));
                        for _ in 0..4 {
                            for reply in driver.take_next().expect("a batch that succeeds") {
                                let Reply::Old(old) = reply else { panic!("{reply:?}") };
                                numbers.push(old);
                            }
                        }
                    }
                    assert!(numbers.is_sorted(), "one session's adds execute in order");
                    numbers
                })
            })
            .collect();
        sessions.into_iter().flat_map(|session| session.join().expect("a session")).collect()
    });
    numbers.sort_unstable();
    assert!(numbers.into_iter().eq(0..SESSIONS * each), "a number was given out twice, or never");
    assert_eq!(bed.peek_word(last), SESSIONS * each);
}

/// Two sessions count by CAS and two by FAA, on one word: the two kinds of atomic are atomic against each other.
pub fn both_atomics_share_a_word(bed: &dyn Bed) {
    let each = scaled(1000);
    let deadline = Instant::now() + DEADLINE;
    std::thread::scope(|scope| {
        for session in 0..SESSIONS {
            scope.spawn(move || {
                let (mut driver, mut seen) = (bed.connect(), 0);
                for _ in 0..each {
                    if session % 2 == 0 {
                        count_up(&mut driver, 64, &mut seen, deadline);
                    } else {
                        driver.atomic(add(64, 1 << 32));
                    }
                }
            });
        }
    });
    assert_eq!(bed.peek_word(64), 2 * each + ((2 * each) << 32));
}
