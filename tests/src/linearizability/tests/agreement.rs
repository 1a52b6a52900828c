//! The checker against other judges, on random histories.

use super::generator::{Random, Shape, history, mutate};
use super::reference::{by_permutations, by_todc};
use super::*;

const SMALL: u64 = 30_000;
const LARGER: u64 = 6_000;

fn is_open(event: &&Event) -> bool {
    event.outcome == Outcome::Open
}

/// A good history, or one in which something was changed at random.
fn good_or_mutated(random: &mut Random, shape: Shape) -> (Option<Value>, Vec<Event>, bool) {
    let (initial, mut events) = history(random, shape);
    let mutations = if random.chance(30) { 0 } else { 3 + random.below(10) };
    for _ in 0..mutations {
        mutate(random, &mut events);
    }
    (initial, events, mutations > 0)
}

/// Random small histories, some as they were made and most mutated, with clients that died, with few values and with many.
/// The plain search, the guided one, permutations tried one by one, and todc-utils must all agree.
#[test]
fn all_judges_agree_on_small_histories() {
    let mut counts = [0; 2];
    let mut checkers = Checker::of_each_manner();
    for seed in 0..SMALL {
        let mut random = Random(seed);
        let shape = Shape {
            operations: 1 + random.below(10) as usize,
            clients: 1 + random.below(4) as usize,
            values: random.below(4),
            puts_percent: 20 + random.below(50),
            deletes_percent: random.below(80),
            open_percent: [0, 10, 25][random.below(3) as usize],
            touching: random.chance(50),
        };
        let (initial, events, mutated) = good_or_mutated(&mut random, shape);
        if events.iter().filter(is_open).count() > 4 {
            continue;
        }
        let expected = by_permutations(initial, &events);
        let history = || format!("seed {seed}, initially {initial:?}: {}", Timeline(&events));
        assert!(expected || mutated, "the generator made a bad one, {}", history());
        assert_eq!(by_todc(initial, &events), expected, "todc-utils and permutations, {}", history());
        for (manner, checker) in checkers.iter_mut().enumerate() {
            assert_eq!(checker.check(initial, &events).is_ok(), expected, "manner {manner}, {}", history());
            assert_eq!(checker.violates(initial, &events), !expected, "manner {manner}, {}", history());
        }
        counts[usize::from(expected)] += 1;
    }
    let [bad, good] = counts;
    assert!(
        bad > 7000 && good > 7000 && bad + good > 20_000,
        "{bad} bad and {good} good ones say too little"
    );
}

/// Larger histories, with more open operations than permutations can be tried of. The plain search, which knows little, and
/// the guided one must agree, also on the first return that can't be explained.
#[test]
fn both_manners_agree_on_larger_histories() {
    let mut counts = [0; 2];
    let [mut plain, mut guided, _] = Checker::of_each_manner();
    for seed in 0..LARGER {
        let mut random = Random(!seed);
        let shape = Shape {
            operations: 10 + random.below(30) as usize,
            clients: 3 + random.below(10) as usize,
            values: [0, 0, 2, 5][random.below(4) as usize],
            puts_percent: 20 + random.below(50),
            deletes_percent: random.below(80),
            open_percent: [3, 10, 30][random.below(3) as usize],
            touching: random.chance(50),
        };
        let (initial, events, mutated) = good_or_mutated(&mut random, shape);
        if events.iter().filter(is_open).count() > 10 {
            continue;
        }
        let history = || format!("seed {seed}, initially {initial:?}: {}", Timeline(&events));
        let place = |result| match result {
            Ok(()) => None,
            Err(Failure::NotLinearizable(violation)) => Some((violation.stuck, violation.explained)),
            Err(Failure::Undecided(undecided)) => panic!("{undecided}, {}", history()),
        };
        let expected = place(plain.check(initial, &events));
        assert!(expected.is_none() || mutated, "the generator made a bad one, {}", history());
        assert_eq!(place(guided.check(initial, &events)), expected, "{}", history());
        assert_eq!(guided.violates(initial, &events), expected.is_some(), "{}", history());
        counts[usize::from(expected.is_none())] += 1;
    }
    let [bad, good] = counts;
    assert!(bad > 1000 && good > 1000, "{bad} bad and {good} good ones say too little");
}
