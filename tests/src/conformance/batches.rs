//! Batches: replies, completions, silence, and who owns a WRITE's bytes.

use std::time::Instant;

use sidestep_common::fabric::{Reply, Verb};

use super::{Bed, DEADLINE, add, pattern, read_word, swap, write};
use crate::scaled;

/// One batch with every kind of verb: one reply a verb, in their order, each of its own kind, and executed in order.
pub fn replies_come_in_the_order_of_the_verbs(bed: &dyn Bed) {
    let mut driver = bed.connect();
    bed.poke_word(64, 5);
    let reads = [driver.read(64, 8), driver.read(64, 8), driver.read(64, 8)];
    let [before, between, after] = reads;
    let verbs = vec![before, swap(64, 5, 7), between, add(64, 3), write(128, &[1]), after];
    let replies = driver.run(verbs);
    assert_eq!(read_word(&replies[0]), 5);
    assert!(matches!(replies[1], Reply::Old(5)), "{replies:?}");
    assert_eq!(read_word(&replies[2]), 7);
    assert!(matches!(replies[3], Reply::Old(7)), "{replies:?}");
    assert!(matches!(replies[4], Reply::Written), "{replies:?}");
    assert_eq!(read_word(&replies[5]), 10);
    assert_eq!(bed.peek_word(64), 10);
}

/// Many batches in one call and in many calls, of different lengths: one completion each, in the order posted (the
/// driver sees to that), and the verbs executed in that order too: each adds one and gets what was there.
pub fn completions_come_in_the_order_posted(bed: &dyn Bed) {
    let mut driver = bed.connect();
    let mut expected = 0;
    for round in 0..scaled(200) {
        let lengths = [1, 3, 1 + (round % 5) as usize];
        let one_call = lengths.map(|length| ((0..length).map(|_| add(512, 1)).collect(), false));
        driver.try_post_all(one_call.into()).expect("room for a few batches");
        driver.post(vec![add(512, 1)]);
        for length in lengths.into_iter().chain([1]) {
            let replies = driver.take_next().expect("a batch that succeeds");
            assert_eq!(replies.len(), length);
            for reply in replies {
                assert!(matches!(reply, Reply::Old(old) if old == expected), "{reply:?} is not {expected}");
                expected += 1;
            }
        }
    }
    assert_eq!(bed.peek_word(512), expected);
}

/// Nobody waits for a silent batch, so it gets no completion; but what was posted behind it finds its effect.
pub fn a_silent_batch_has_an_effect_and_no_completion(bed: &dyn Bed) {
    let mut driver = bed.connect();
    for round in 1..=scaled(100) {
        driver.post_silent(|| vec![add(0, 1), add(8, 2)]);
        let (first, second) = (driver.read(0, 8), driver.read(8, 8));
        // The driver would find a completion that is none of this batch's.
        let replies = driver.run(vec![first, second]);
        assert_eq!((read_word(&replies[0]), read_word(&replies[1])), (round, 2 * round));
        driver.recycle(replies);
    }
    let silent_read = driver.read(0, 8);
    driver.try_post_all(vec![(vec![silent_read], true), (vec![add(16, 1)], false)]).expect("room for two");
    assert_eq!(driver.take_next().expect("a batch that succeeds").len(), 1);
    let mut completions = Vec::new();
    assert_eq!(driver.fabric().poll(&mut completions), 0, "{completions:?}");
}

/// A session that only marks freed blocks, silently, far more often than may be in flight: room comes back by polling
/// alone, and none of the marks is lost.
pub fn silent_batches_alone_do_not_use_up_the_credit(bed: &dyn Bed) {
    let mut driver = bed.connect();
    let count = 10 * driver.depth() as u64;
    for at in 0..count {
        let mark = [at as u8 | 1];
        driver.post_silent(|| vec![write(at, &mark)]);
    }
    // One that is waited for, behind them all.
    let deadline = Instant::now() + DEADLINE;
    while driver.try_post(vec![add(1 << 20, 1)]).is_err() {
        driver.poll_once(deadline);
    }
    driver.take_next().expect("a batch that succeeds");
    let marks = bed.peek_bytes(0, count as usize);
    for (at, mark) in marks.into_iter().enumerate() {
        assert_eq!(mark, at as u8 | 1, "mark {at}");
    }
}

/// The caller reuses its bytes as soon as `post` is back, long before the completion: what was posted arrives.
pub fn the_bytes_of_a_write_are_taken_at_once(bed: &dyn Bed) {
    let mut driver = bed.connect();
    for (round, bytes) in
        [1, 8, 60, 200, 1000, 4096, 70_000].into_iter().cycle().take(scaled(70) as usize).enumerate()
    {
        let sent = pattern(round as u64, bytes);
        let mut pieces = [sent[..bytes / 2].to_vec(), sent[bytes / 2..].to_vec()];
        let [first, second] = &pieces;
        let verb = Verb::Write { remote: sidestep_common::layout::Offset(4096), from: [first, second, &[]] };
        driver.post(vec![verb]);
        pieces.iter_mut().for_each(|piece| piece.fill(0xee));
        driver.take_next().expect("a batch that succeeds");
        assert_eq!(bed.peek_bytes(4096, bytes), sent, "{bytes} bytes");
    }
}

/// A call of two batches, a long WRITE in the second. The first ends early and gives its room back; what is posted then
/// must not take the place of the second one's bytes, which the card is still sending. (On a card it takes a wire with
/// some delay to be still sending: the `two-port` bed.)
pub fn bytes_behind_a_completed_batch_stay_taken(bed: &dyn Bed) {
    const BYTES: usize = 1_000_000;
    const PLACES: [u64; 2] = [1 << 20, 2 << 20];
    let mut driver = bed.connect();
    let mut sent = [pattern(1, BYTES), pattern(2, BYTES)];
    for round in 0..scaled(50).max(10) {
        let two = vec![(vec![add(0, 1)], false), (vec![write(PLACES[0], &sent[0])], false)];
        driver.try_post_all(two).expect("room for two batches");
        driver.take_next().expect("a batch that succeeds");
        let deadline = Instant::now() + DEADLINE;
        while driver.try_post(vec![write(PLACES[1], &sent[1])]).is_err() {
            driver.poll_once(deadline);
        }
        for (place, sent) in PLACES.into_iter().zip(&sent) {
            driver.take_next().expect("a batch that succeeds");
            assert!(
                bed.peek_bytes(place, BYTES) == *sent,
                "round {round}: other bytes arrived at {place:#x}"
            );
        }
        sent.reverse();
    }
}
