//! Failures: what stops, what doesn't, and what a refusal costs.

use sidestep_common::fabric::{Effect, FailureKind, PostError, Rights, Verb};
use sidestep_common::layout::Offset;

use super::driver::is_end;
use super::{Bed, Driver, add, pattern, swap, write};

/// In one batch: a WRITE, then a verb that is refused, then the WRITE and the CAS that would publish; behind it, in the
/// same call, another batch. Only the first WRITE takes effect. A CAS must not publish a block whose WRITE failed.
pub fn nothing_executes_behind_a_failed_verb(bed: &dyn Bed) {
    let outside = bed.region_bytes();
    for culprit in ["READ", "WRITE", "CAS", "FAA"] {
        bed.poke(0, &[0; 64]);
        let mut driver = bed.connect();
        let failing = match culprit {
            "READ" => driver.read(outside, 8),
            "WRITE" => write(outside, &[1; 8]),
            "CAS" => swap(outside, 0, 1),
            _ => add(outside, 1),
        };
        let publish = vec![write(0, &[1]), failing, write(8, &[1]), swap(16, 0, 1), add(24, 1)];
        let behind = (vec![write(32, &[1])], false);
        driver.try_post_all(vec![(publish, false), behind]).expect("room for two batches");
        let failure = driver.take_next().expect_err(culprit);
        assert!(matches!(failure.kind, FailureKind::Access(_)), "{culprit}: {failure:?}");
        assert_eq!((failure.verb_index, failure.effect), (1, Effect::No), "{culprit}");
        let failure = driver.take_next().expect_err("the batch behind");
        assert!(is_end(&failure.kind), "{culprit}: {failure:?}");
        assert_eq!(failure.effect, Effect::No, "{culprit}: the batch behind");
        driver.assert_broken();
        let words: Vec<u64> = (0..5).map(|at| bed.peek_word(8 * at)).collect();
        assert_eq!(words, [1, 0, 0, 0, 0], "{culprit}");
    }
}

/// Batches that were under way when a later one fails are complete, and say so.
pub fn batches_before_the_failure_complete(bed: &dyn Bed) {
    let mut driver = bed.connect();
    for at in 0..10 {
        driver.post(vec![add(8 * at, at + 1)]);
    }
    driver.post(vec![add(bed.region_bytes(), 1)]);
    for _ in 0..10 {
        driver.take_next().expect("a batch before the failure");
    }
    driver.take_next().expect_err("the failure");
    for at in 0..10 {
        assert_eq!(bed.peek_word(8 * at), at + 1);
    }
}

/// Nobody waits for a silent batch; if it fails, the next one that somebody waits for must not succeed.
pub fn a_failed_silent_batch_ends_the_connection(bed: &dyn Bed) {
    let mut driver = bed.connect();
    let outside = bed.region_bytes();
    driver.try_post_all(vec![(vec![write(outside, &[1])], true)]).expect("room for a batch");
    match driver.try_post(vec![swap(0, 0, 1)]) {
        Err(PostError::Broken(_)) => {}
        Err(other) => panic!("{other}"),
        Ok(()) => {
            let failure = driver.take_next().expect_err("a batch behind a failure");
            assert_eq!(failure.effect, Effect::No, "{failure:?}");
        }
    }
    driver.assert_broken();
    assert_eq!(bed.peek_word(0), 0);
}

/// A hundred calls that can never fit, and then more good ones than may be in flight: each refusal is typed and gives
/// its credit back.
pub fn posts_that_are_refused_cost_nothing(bed: &dyn Bed) {
    let (_, fabric) = bed.connect_with(Rights::ReadWrite, 16);
    let mut driver = Driver::new(fabric);
    let depth = driver.depth();
    for _ in 0..100 {
        match driver.try_post((0..=depth).map(|_| add(0, 1)).collect()) {
            Err(PostError::TooLarge { asked, limit, .. }) => assert_eq!((asked, limit), (depth + 1, depth)),
            other => panic!("{other:?}"),
        }
    }
    // Where the limit is beyond what a test may allocate, the fabric's own tests see to it.
    let verb_bytes_max = driver.fabric().limits().verb_bytes_max;
    if verb_bytes_max <= 64 << 20 {
        let bytes = vec![1; verb_bytes_max + 1];
        let (first, rest) = bytes.split_at(bytes.len() / 3);
        let from = [first, &rest[..7], &rest[7..]];
        match driver.try_post(vec![Verb::Write { remote: Offset(0), from }]) {
            Err(PostError::TooLarge { asked, limit, .. }) => {
                assert_eq!((asked, limit), (bytes.len(), verb_bytes_max));
            }
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(bed.peek_word(0), 0, "nothing of a refused call is executed");
    for count in 0..1000 {
        assert_eq!(driver.atomic(add(0, 1)), count);
    }
}

/// One session's failure is no other's: those that were there go on, and new ones join.
pub fn other_sessions_go_on(bed: &dyn Bed) {
    let mut bystander = bed.connect();
    for round in 0..5 {
        let mut culprit = bed.connect();
        culprit.try_run(vec![add(bed.region_bytes(), 1)]).expect_err("outside the region");
        drop(culprit);
        let from = pattern(round, 1000);
        bystander.store(4096, &from);
        assert_eq!(bystander.fetch(4096, 1000), from);
        assert_eq!(bed.connect().fetch(4096, 1000), from);
    }
}
