//! Words: atomics, tearing, and the bytes beside a WRITE.

use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};

use sidestep_common::fabric::{Effect, FailureKind, GATHER_MAX, Reply, Verb};
use sidestep_common::layout::Offset;

use super::{Bed, add, pattern, swap, write};
use crate::scaled;

/// The first word, one in the middle, the very last: a swap that fits returns what was there and swaps, one that doesn't
/// returns what was there and leaves it. Numbers are little-endian in memory.
pub fn compare_and_swap_keeps_its_truth_table(bed: &dyn Bed) {
    let mut driver = bed.connect();
    let (a, b) = (0x0123_4567_89ab_cdef, u64::MAX);
    for remote in [0, 8, 4 << 20, bed.region_bytes() - 8] {
        let cases = [(0, 0, a, a), (a, 0, b, a), (a, b, 0, a), (a, a, b, b), (b, b, b, b), (b, b, 0, 0)];
        for (before, expected, desired, after) in cases {
            bed.poke_word(remote, before);
            assert_eq!(driver.atomic(swap(remote, expected, desired)), before, "at {remote:#x}");
            assert_eq!(bed.peek_word(remote), after, "at {remote:#x}");
        }
    }
}

/// Adding wraps at 64 bits, and a carry never leaves the word.
pub fn fetch_and_add_wraps(bed: &dyn Bed) {
    let mut driver = bed.connect();
    for remote in [8, bed.region_bytes() - 8] {
        bed.poke_word(remote, u64::MAX - 1);
        assert_eq!(driver.atomic(add(remote, 3)), u64::MAX - 1);
        assert_eq!(driver.atomic(add(remote, u64::MAX)), 1);
        assert_eq!(driver.atomic(add(remote, 0)), 0);
        assert_eq!(bed.peek_word(remote), 0);
        assert_eq!(bed.peek_word(remote - 8), 0, "the word before");
    }
    assert_eq!(bed.peek_word(16), 0, "the word behind");
}

/// An atomic on a word that isn't aligned is refused on every fabric, and no byte of either word changes.
pub fn unaligned_atomics_are_refused(bed: &dyn Bed) {
    let end = bed.region_bytes();
    for remote in [1, 4, 7, 4097, end - 4, end - 9] {
        for verb in [swap(remote, 0, u64::MAX), add(remote, u64::MAX)] {
            let name = verb.name();
            let mut driver = bed.connect();
            let failure = driver.try_run(vec![verb]).expect_err("an atomic that isn't aligned");
            assert!(matches!(failure.kind, FailureKind::Access(_)), "{name} at {remote:#x}: {failure:?}");
            assert_eq!((failure.verb_index, failure.effect), (0, Effect::No), "{name} at {remote:#x}");
        }
    }
    for word in [0, 8, 4096, 4104, end - 16, end - 8] {
        assert_eq!(bed.peek_word(word), 0, "word {word:#x}");
    }
}

/// WRITEs of every short length at every place within a word: exactly those bytes change.
pub fn a_write_leaves_its_neighbours_alone(bed: &dyn Bed) {
    let mut driver = bed.connect();
    let mut model = pattern(1, 64);
    bed.poke(0, &model);
    let mut seed = 2;
    for skip in 0..8_usize {
        for bytes in (1..=18).chain([31, 32, 33]) {
            let from = pattern(seed, bytes);
            seed += 1;
            driver.store(8 + skip as u64, &from);
            model[8 + skip..8 + skip + bytes].copy_from_slice(&from);
            assert_eq!(bed.peek_bytes(0, 64), model, "{bytes} bytes at {skip} within a word");
        }
    }
}

/// Two sessions mark neighbouring bytes of one word over and over: neither undoes the other's mark.
pub fn one_byte_writes_of_two_sessions_share_a_word(bed: &dyn Bed) {
    let rounds = scaled(2000);
    std::thread::scope(|scope| {
        for lane in 0..2_u64 {
            scope.spawn(move || {
                let mut driver = bed.connect();
                for round in 0..rounds {
                    driver.store(64 + 3 * lane, &[round as u8]);
                    assert_eq!(driver.fetch(64 + 3 * lane, 1), [round as u8], "lane {lane}, round {round}");
                }
            });
        }
    });
    let word = bed.peek_word(64).to_le_bytes();
    let last = (rounds - 1) as u8;
    assert_eq!(word, [last, 0, 0, last, 0, 0, 0, 0]);
}

/// Header, key and value of odd lengths (also none) arrive one behind the other, at any place, with nothing beside them
/// changed.
pub fn pieces_of_a_write_are_gathered(bed: &dyn Bed) {
    let mut driver = bed.connect();
    let shapes: [[usize; GATHER_MAX]; 9] = [
        [1, 1, 1],
        [3, 5, 7],
        [48, 11, 201],
        [0, 5, 0],
        [0, 0, 9],
        [7, 0, 2],
        [33, 1023, 4097],
        [56, 16, 65_536],
        [1, 0, 0],
    ];
    for (seed, lengths) in shapes.into_iter().enumerate() {
        for remote in [4096, 4099] {
            bed.poke(4000, &[0xcc; 100]);
            let pieces = lengths.map(|bytes| pattern((10 * seed + bytes) as u64, bytes));
            let joined = pieces.concat();
            let behind = remote + joined.len() as u64;
            bed.poke(behind, &[0xdd; 64]);
            let from = [&pieces[0][..], &pieces[1][..], &pieces[2][..]];
            let replies = driver.run(vec![Verb::Write { remote: Offset(remote), from }]);
            assert!(matches!(replies[0], Reply::Written));
            assert_eq!(bed.peek_bytes(remote, joined.len()), joined, "{lengths:?} at {remote}");
            assert_eq!(bed.peek_bytes(remote - 64, 64), [0xcc; 64], "before {lengths:?} at {remote}");
            assert_eq!(bed.peek_bytes(behind, 64), [0xdd; 64], "behind {lengths:?} at {remote}");
        }
    }
}

/// One session fills 64 aligned bytes with one value after the other, in pieces that meet within a word; another keeps
/// reading. The 64 bytes may be a mixture, but each word is all of one value.
pub fn words_do_not_tear(bed: &dyn Bed) {
    let rounds = scaled(20_000);
    let done = AtomicBool::new(false);
    let together = Barrier::new(2);
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let mut driver = bed.connect();
            together.wait();
            for round in 1..=rounds {
                let fill = [round as u8; 64];
                let from = [&fill[..11], &fill[..26], &fill[..27]];
                driver.run(vec![Verb::Write { remote: Offset(4096), from }]);
                driver.run(vec![write(4096, &[round.wrapping_mul(7) as u8; 64])]);
            }
            done.store(true, Ordering::Release);
        });
        let mut driver = bed.connect();
        together.wait();
        while !done.load(Ordering::Acquire) {
            // Many looks in a row make it likely that one falls into a WRITE.
            let looks = (0..32).map(|_| driver.read(4096, 64)).collect();
            let replies = driver.run(looks);
            for reply in &replies {
                let Reply::Read(buffer) = reply else { panic!("{reply:?}") };
                for word in buffer.as_slice().chunks(8) {
                    assert!(word.iter().all(|byte| *byte == word[0]), "a torn word: {word:?}");
                }
            }
            driver.recycle(replies);
            assert!(!writer.is_finished() || done.load(Ordering::Acquire), "the writer failed");
        }
    });
}
