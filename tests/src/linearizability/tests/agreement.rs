//! The checker against other judges, on random histories.

use super::generator::{Random, Shape, history, mutate};
use super::reference::{by_permutations, by_todc};
use super::*;

const HISTORIES: u64 = 30_000;

/// Random small histories, half of them as they were made and half mutated, with clients that died, with few values
/// and with many. The plain search, the guided one, permutations tried one by one, and todc-utils must all agree.
#[test]
fn all_judges_agree_on_random_histories() {
    let mut counts = [0; 2];
    let [mut plain, mut guided] = Checker::one_of_each_manner();
    for seed in 0..HISTORIES {
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
        let (initial, mut events) = history(&mut random, shape);
        let mutations = if random.chance(30) { 0 } else { 2 + random.below(5) };
        for _ in 0..mutations {
            mutate(&mut random, &mut events);
        }
        let open = events.iter().filter(|event| event.outcome == Outcome::Open).count();
        if open > 4 {
            continue;
        }
        let expected = by_permutations(initial, &events);
        let context =
            || format!("seed {seed}, initially {initial:?}, expected {expected}: {}", Timeline(&events));
        assert!(expected || mutations > 0, "the generator: {}", context());
        assert_eq!(by_todc(initial, &events), expected, "todc: {}", context());
        assert_eq!(plain.check(initial, &events).is_ok(), expected, "plain: {}", context());
        let plainly = plain.check(initial, &events);
        let guidedly = guided.check(initial, &events);
        assert_eq!(guidedly.is_ok(), expected, "guided: {}", context());
        assert_eq!(guided.violates(initial, &events), !expected, "guided, looking ahead: {}", context());
        if let (Err(Failure::NotLinearizable(one)), Err(Failure::NotLinearizable(other))) =
            (plainly, guidedly)
        {
            assert_eq!((one.stuck, one.explained), (other.stuck, other.explained), "{}", context());
        }
        counts[usize::from(expected)] += 1;
    }
    let [bad, good] = counts;
    assert!(
        bad > 5000 && good > 5000 && bad + good > 20_000,
        "{bad} bad and {good} good ones are too few to say much"
    );
}
