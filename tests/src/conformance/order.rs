//! Order: what one session does, as it and others see it.

use std::sync::Barrier;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use super::{Bed, DEADLINE, Driver, read_word, swap, write};
use crate::scaled;

/// WRITE, then READ of the same place, in one batch and in two that are under way together: the READ sees it.
pub fn a_read_sees_the_write_before_it(bed: &dyn Bed) {
    let mut driver = bed.connect();
    for round in 1..=scaled(500) {
        let words = [round.to_le_bytes(), (round << 20).to_le_bytes()];
        let (first, second) = (driver.read(4096, 8), driver.read(4104, 8));
        driver.post(vec![write(4096, &words[0]), first, write(4104, &words[1])]);
        driver.post(vec![second]);
        let replies = driver.take_next().expect("a batch that succeeds");
        assert_eq!(read_word(&replies[1]), round);
        driver.recycle(replies);
        let replies = driver.take_next().expect("a batch that succeeds");
        assert_eq!(read_word(&replies[0]), round << 20);
        driver.recycle(replies);
    }
}

/// Several WRITEs to one place in one batch, of different lengths: the last one's bytes stay.
pub fn the_last_of_several_writes_stays(bed: &dyn Bed) {
    let mut driver = bed.connect();
    for round in 0..scaled(100) {
        let fills: Vec<Vec<u8>> = (0..8).map(|at| vec![(round + at) as u8; 2048 >> at]).collect();
        driver.run(fills.iter().map(|fill| write(0, fill)).collect());
        let stayed = bed.peek_bytes(0, 2048);
        for (at, fill) in fills.iter().enumerate() {
            let end = fill.len();
            let start = if at == 7 { 0 } else { end / 2 };
            assert!(stayed[start..end] == fill[start..], "round {round}: bytes {start} to {end}");
        }
    }
}

/// The heart of the store. A writer writes a block and publishes its number by CAS, in one batch; a reader reads the number
/// and the block, in one batch. Whatever number it sees, no word of the block is older.
pub fn a_published_block_is_complete(bed: &dyn Bed) {
    const SLOT: u64 = 64;
    const BLOCK: u64 = 8192;
    let rounds = scaled(3000);
    let together = &Barrier::new(2);
    std::thread::scope(|scope| {
        let writer = scope.spawn(move || {
            let mut driver = bed.connect();
            together.wait();
            for round in 1..=rounds {
                let block: Vec<u8> = (0..32).flat_map(|_| round.to_le_bytes()).collect();
                let replies = driver.run(vec![write(BLOCK, &block), swap(SLOT, round - 1, round)]);
                driver.recycle(replies);
            }
        });
        let mut driver = bed.connect();
        together.wait();
        let deadline = Instant::now() + DEADLINE;
        let mut newest = 0;
        while newest < rounds {
            let (slot, block) = (driver.read(SLOT, 8), driver.read(BLOCK, 256));
            let replies = driver.run(vec![slot, block]);
            let number = read_word(&replies[0]);
            assert!(number >= newest, "the slot went back from {newest} to {number}");
            newest = number;
            assert_not_older(&replies[1], number);
            driver.recycle(replies);
            assert!(Instant::now() < deadline || !writer.is_finished(), "the writer failed");
        }
    });
}

fn assert_not_older(reply: &sidestep_common::fabric::Reply, number: u64) {
    let sidestep_common::fabric::Reply::Read(buffer) = reply else { panic!("{reply:?}") };
    for word in buffer.as_slice().chunks_exact(8) {
        let word = u64::from_le_bytes(word.try_into().expect("eight bytes"));
        assert!(word >= number, "slot {number} was published over a block of {word}");
    }
}

/// A writer writes the same number to one place and then to another, silently, one batch each. A reader that reads them in
/// the other order never finds the first behind the second.
pub fn writes_are_seen_in_order(bed: &dyn Bed) {
    const FIRST: u64 = 4096;
    const SECOND: u64 = 64;
    let rounds = scaled(3000);
    let together = &Barrier::new(2);
    std::thread::scope(|scope| {
        let writer = scope.spawn(move || {
            let mut driver = bed.connect();
            together.wait();
            for round in 1..=rounds {
                let number = round.to_le_bytes();
                driver.post_silent(|| vec![write(FIRST, &number)]);
                driver.post_silent(|| vec![write(SECOND, &number)]);
            }
            // The silent ones have certainly executed when this has.
            driver.fetch(0, 8);
        });
        let mut driver = bed.connect();
        together.wait();
        let deadline = Instant::now() + DEADLINE;
        let mut second = 0;
        while second < rounds {
            let reads = [driver.read(SECOND, 8), driver.read(FIRST, 8)];
            let replies = driver.run(reads.into());
            second = read_word(&replies[0]);
            let first = read_word(&replies[1]);
            assert!(first >= second, "second place has {second}, first still {first}");
            driver.recycle(replies);
            assert!(Instant::now() < deadline || !writer.is_finished(), "the writer failed");
        }
    });
}

/// Two sessions each raise a flag of their own and then look at the other's. Both may see the other's flag, but it can't be
/// that neither does: then a READ would have passed an earlier WRITE. Each goes through many pairs of flags in one batch,
/// one upwards and one downwards, so that somewhere on the way they meet.
pub fn a_read_does_not_pass_an_earlier_write(bed: &dyn Bed) {
    let rounds = scaled(500).min(bed.region_bytes() / (128 * PAIRS));
    let started = [AtomicU64::new(0), AtomicU64::new(0)];
    let play = |player: usize| {
        let mut driver = bed.connect();
        assert!(driver.depth() as u64 >= 2 * PAIRS);
        let deadline = Instant::now() + DEADLINE;
        let mut seen = Vec::new();
        for round in 0..rounds {
            started[player].store(round + 1, Ordering::SeqCst);
            let mut spins = 0;
            while started[1 - player].load(Ordering::SeqCst) <= round {
                assert!(Instant::now() < deadline, "the other session failed");
                spins += 1;
                // Starting together matters, but not more than letting the other one run at all.
                if spins > 100 { std::thread::yield_now() } else { std::hint::spin_loop() }
            }
            seen.extend(flag(&mut driver, round, player));
        }
        seen
    };
    let (left, right) = std::thread::scope(|scope| {
        let right = scope.spawn(|| play(1));
        (play(0), right.join().expect("the other session"))
    });
    for (pair, seen) in left.into_iter().zip(right).enumerate() {
        assert_ne!(seen, (0, 0), "pair {pair}: neither session saw the other's flag");
    }
}

/// Pairs of flags in one batch, each flag on a cache line of its own.
const PAIRS: u64 = 32;

/// Raises the own flag of each pair and gives the other ones, in the order of the pairs.
fn flag(driver: &mut Driver, round: u64, player: usize) -> Vec<u64> {
    let (own, other) = (64 * player as u64, 64 - 64 * player as u64);
    let mut pairs: Vec<u64> = (0..PAIRS).map(|pair| 128 * (PAIRS * round + pair)).collect();
    if player == 1 {
        pairs.reverse();
    }
    let verbs = pairs
        .into_iter()
        .flat_map(|pair| [write(pair + own, &[1; 8]), driver.read(pair + other, 8)])
        .collect();
    let replies = driver.run(verbs);
    let mut seen: Vec<u64> = replies.iter().skip(1).step_by(2).map(read_word).collect();
    if player == 1 {
        seen.reverse();
    }
    driver.recycle(replies);
    seen
}
