//! Long histories, as real processes make them, and what bounds a search.
//!
//! Always true: bounds are on steps, which are the same on every machine, and never on time.

use super::generator::{Random, Shape, history};
use super::*;

/// Eight clients, always busy.
const BUSY: Shape = Shape {
    operations: 6_000,
    clients: 8,
    values: 0,
    puts_percent: 40,
    deletes_percent: 0,
    open_percent: 0,
    touching: false,
};

/// One operation in a hundred is opened: its client was killed, before it took effect or after.
fn kill_clients(random: &mut Random, events: &mut [Event]) {
    for event in events {
        if random.chance(1) {
            event.outcome = Outcome::Open;
        }
    }
}

/// A get near the end returns what was put, and overwritten, long before. Which get.
fn make_one_stale(events: &mut [Event]) -> usize {
    let middle = events.len() / 2;
    let old = events[middle..].iter().find_map(|event| match (event.call, event.outcome) {
        (Call::Put(value), Outcome::Returned { .. }) => Some(value),
        _ => None,
    });
    let returned_get =
        |event: &Event| matches!(event.outcome, Outcome::Returned { answer: Answer::Value(_), .. });
    let last = events.iter().rposition(returned_get).expect("there are gets");
    let Outcome::Returned { answer, .. } = &mut events[last].outcome else { unreachable!() };
    *answer = Answer::Value(old);
    last
}

/// How many steps a guided checker takes for a hundred operations, and where it is stuck.
fn judge(initial: Option<Value>, events: &[Event]) -> (u64, Option<usize>) {
    let [_, mut checker, _] = Checker::of_each_manner();
    let stuck = match checker.check(initial, events) {
        Ok(()) => None,
        Err(Failure::NotLinearizable(violation)) => Some(violation.stuck),
        Err(Failure::Undecided(undecided)) => panic!("{undecided}"),
    };
    (100 * checker.steps() / events.len() as u64, stuck)
}

/// Eight clients without a pause, then with many of them killed, then with one stale get near the end besides. The good
/// histories are found to be good, the bad one to be bad at that get, and the steps grow with the length only: here is
/// how many they are for a hundred operations.
#[test]
fn long_histories_are_judged_in_few_steps() {
    let shapes = [
        ("half gets", BUSY, [800, 800, 2_100]),
        ("with deletes", Shape { deletes_percent: 30, ..BUSY }, [2_600, 4_300, 9_700]),
        ("mostly deletes", Shape { puts_percent: 20, deletes_percent: 80, ..BUSY }, [1_100, 1_850, 2_950]),
        ("mostly puts", Shape { puts_percent: 95, ..BUSY }, [17_000, 16_300, 26_200]),
    ];
    for (name, shape, steps_max) in shapes {
        let mut random = Random(1);
        let (initial, mut events) = history(&mut random, shape);
        let good = judge(initial, &events);
        kill_clients(&mut random, &mut events);
        let killed = judge(initial, &events);
        let stale = make_one_stale(&mut events);
        let bad = judge(initial, &events);
        assert_eq!([good.1, killed.1, bad.1], [None, None, Some(stale)], "{name}");
        let steps = [good.0, killed.0, bad.0];
        assert!(
            steps.iter().zip(steps_max).all(|(steps, max)| *steps <= max),
            "{name}: {steps:?} of {steps_max:?}"
        );
    }
}

#[test]
fn a_hundred_thousand_operations() {
    let mut random = Random(2);
    let (initial, mut events) =
        history(&mut random, Shape { operations: 100_000, deletes_percent: 5, ..BUSY });
    kill_clients(&mut random, &mut events);
    let mut checker = Checker::new();
    assert_eq!(checker.check(initial, &events), Ok(()));
    let stale = make_one_stale(&mut events);
    match checker.check(initial, &events) {
        Err(Failure::NotLinearizable(violation)) => assert_eq!(violation.stuck, stale),
        other => panic!("{other:?}"),
    }
}

/// Thousands of clients died. Where no answer can rest on what they left undone, it costs nothing.
#[test]
fn open_operations_that_cannot_matter_cost_nothing() {
    let mut random = Random(3);
    let (initial, events) = history(&mut random, Shape { operations: 2_000, ..BUSY });
    let alone = judge(initial, &events);
    let mut all = events.clone();
    for time in 0..3_000 {
        // Nobody got these values, and there are no deletes that could have found them.
        all.push(open(Call::Put(1_000_000 + time), time));
        all.push(open(Call::Get, time));
        // Got by nobody who returned after this put was invoked.
        all.push(open(Call::Put(1_000), u64::MAX - time));
        // These may have removed the key, but nobody found it absent after the first values were put.
        all.push(open(Call::Delete, 1_000 + time));
    }
    let mut checker = Checker::new();
    assert_eq!(checker.check(initial, &all), Ok(()));
    assert_eq!(100 * checker.steps() / events.len() as u64, alone.0);
    // Where deletes find the key, those puts matter; but one is as good as another.
    let last = 1_000_000;
    for time in 0..100 {
        all.push(delete(true, last + 10 * time, last + 10 * time + 5));
        all.push(get(None, last + 10 * time + 6, last + 10 * time + 7));
    }
    assert_eq!(checker.check(initial, &all), Ok(()));
    assert!(checker.steps() < 2 * alone.0 * events.len() as u64 / 100, "{} steps", checker.steps());
}

/// Values of many dead clients turn up, all of them late and in turn. Beyond a number of them the checker says that it
/// does not know; it does not guess.
#[test]
fn many_open_puts_in_doubt_at_once() {
    for (doubts, decided) in
        [(1, true), (7, true), (8, true), (9, true), (63, true), (64, false), (300, false)]
    {
        let mut events = Vec::new();
        for value in 0..doubts {
            events.push(open(Call::Put(value), value));
        }
        for value in 0..doubts {
            events.push(get(value, 1_000 + 10 * value, 1_005 + 10 * value));
        }
        let mut twice = events.clone();
        twice.push(get(0, 5_000, 5_001));
        let mut checker = Checker::new();
        match checker.check(None, &events) {
            Ok(()) => assert!(decided && checker.steps() > doubts, "{doubts}: {} steps", checker.steps()),
            Err(Failure::Undecided(_)) => assert!(!decided, "{doubts}"),
            Err(Failure::NotLinearizable(violation)) => panic!("{doubts}: {violation}"),
        }
        match checker.check(None, &twice) {
            Ok(()) => assert_eq!(doubts, 1),
            Err(Failure::Undecided(_)) => assert!(!decided, "{doubts}"),
            Err(Failure::NotLinearizable(violation)) => {
                assert!(decided && doubts > 1, "{doubts}: {violation}");
                assert_eq!(violation.stuck, events.len());
            }
        }
    }
}

/// Histories of up to 24 operations, of which up to 4 are open changes, are searched plainly, others guided.
#[test]
fn the_manner_is_chosen_by_length_and_open_changes() {
    let [mut plain, mut guided, mut checker] = Checker::of_each_manner();
    for (operations, open_puts, is_plain) in
        [(24, 4, true), (24, 5, false), (25, 0, false), (6, 4, true), (7, 5, false)]
    {
        // All at once, the puts of values that nobody got: the manners differ in the steps that they take for these.
        let mut events = vec![put(101, 0, 9), put(102, 0, 9)];
        events.extend((0..open_puts).map(|value| open(Call::Put(value), 0)));
        while events.len() < operations {
            events.push(open(Call::Get, 0));
        }
        let steps = [&mut plain, &mut guided, &mut checker].map(|checker| {
            assert_eq!(checker.check(None, &events), Ok(()));
            checker.steps()
        });
        assert_ne!(steps[0], steps[1]);
        assert_eq!(steps[2], steps[usize::from(!is_plain)], "{operations} operations, {open_puts} open puts");
    }
}

/// 128 operations may be in flight at once. With one more the checker says that it does not know.
#[test]
fn many_operations_in_flight_at_once() {
    let mut events: Vec<_> = (0..128).map(|time| get(1, time, 1_000)).collect();
    for mut checker in Checker::of_each_manner() {
        assert_eq!(checker.check(Some(1), &events), Ok(()));
    }
    // Those that returned leave room for others.
    events.extend((0..128).map(|time| get(1, 1_001 + time, 2_000)));
    for mut checker in Checker::of_each_manner() {
        assert_eq!(checker.check(Some(1), &events), Ok(()));
    }
    events.push(get(1, 500, 1_500));
    for mut checker in Checker::of_each_manner() {
        let undecided = Undecided { steps: 0, in_flight: 128 };
        assert_eq!(checker.check(Some(1), &events), Err(Failure::Undecided(undecided)));
    }
    assert_eq!(
        Undecided { steps: 7, in_flight: 128 }.to_string(),
        "undecided: gave up after 7 steps, with 128 operations in flight"
    );
}

/// Thirty puts at once, and gets that tell their order only later. A checker without the patience or the memory for that
/// says so; it takes few steps more than it may, and can be used again.
#[test]
fn a_search_gives_up_within_its_bounds() {
    let mut events: Vec<_> = (0..30).map(|value| put(value, value, 1_000 + value)).collect();
    events.push(get(7, 2_000, 2_001));
    events.push(get(8, 2_002, 2_003));
    for checker in Checker::of_each_manner() {
        let mut impatient = checker.with_bounds(5_000, usize::MAX);
        let Err(Failure::Undecided(undecided)) = impatient.check(None, &events) else { panic!() };
        assert!((5_001..6_000).contains(&undecided.steps), "{undecided}");
        assert_eq!((undecided.in_flight, impatient.steps()), (30, undecided.steps));
        assert_eq!(impatient.check(None, &events[..2]), Ok(()));
        let mut short_of_memory = impatient.with_bounds(u64::MAX, 10_000);
        let Err(Failure::Undecided(undecided)) = short_of_memory.check(None, &events) else { panic!() };
        assert!((5..1_000).contains(&undecided.steps), "{undecided}");
        assert_eq!(short_of_memory.check(None, &events[..2]), Ok(()));
    }
}

#[test]
fn patience_is_what_was_asked_for() {
    let events: Vec<_> = (0..30).map(|value| put(value, value, 1_000 + value)).collect();
    for steps_max in [0, 7, 500, 20_000] {
        let Err(Failure::Undecided(undecided)) = Checker::with_steps_max(steps_max).check(None, &events)
        else {
            panic!()
        };
        assert!((steps_max + 1..2 * steps_max + 500).contains(&undecided.steps), "{steps_max}: {undecided}");
    }
}

/// Looking ahead finds a violation in fewer steps than it takes to tell at which operation it shows. With patience for the
/// first and not for the second, it is a violation all the same.
#[test]
fn a_violation_found_by_looking_ahead_stands() {
    let mut random = Random(4);
    let (initial, mut events) = history(&mut random, Shape { operations: 500, ..BUSY });
    let stale = make_one_stale(&mut events);
    let [_, mut guided, _] = Checker::of_each_manner();
    assert!(guided.violates(initial, &events));
    let enough = guided.steps();
    let Err(Failure::NotLinearizable(violation)) = guided.check(initial, &events) else { panic!() };
    assert_eq!(violation.stuck, stale);
    assert!(guided.steps() > 2 * enough);
    let mut impatient = guided.with_bounds(enough, usize::MAX);
    let Err(Failure::NotLinearizable(violation)) = impatient.check(initial, &events) else { panic!() };
    assert_ne!(violation.stuck, stale);
    let mut too_impatient = impatient.with_bounds(enough / 2, usize::MAX);
    assert!(matches!(too_impatient.check(initial, &events), Err(Failure::Undecided(_))));
    assert!(!too_impatient.violates(initial, &events));
}
