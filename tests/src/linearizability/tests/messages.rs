//! What a person is told.

use super::generator::{Random, Shape, history, mutate};
use super::reference::by_permutations;
use super::*;

/// Clients on a busy key: one gets a value that was removed before it asked.
fn removed_and_got() -> [Event; 9] {
    [
        put(1, 10, 12),
        get(1, 13, 14),
        delete(true, 15, 17),
        put(2, 16, 20),
        open(Call::Delete, 18),
        get(2, 21, 26),
        get(1, 23, 25),
        put(3, 24, 30),
        get(3, 31, 31),
    ]
}

#[test]
fn a_violation_is_told() {
    let events = removed_and_got();
    let violation = check(None, &events).unwrap_err();
    let told = "\
not linearizable: nothing explains the answer of operation 6.
The 4 that returned before it can be explained; the key is then absent or 2.
       0  ├─┤                             put 1 = stored, 10 to 12       put what was got
       1      ├─┤                         get = 1, 13 to 14
       2          ├───┤                   delete = it existed, 15 to 17
       3            ├─────┤               put 2 = stored, 16 to 20
       4                ├╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌  delete, open, from 18          in flight then
       5                    ├───────┤     get = 2, 21 to 26              in flight then
       6                      ├───┤       get = 1, 23 to 25              ◀ cannot be explained
       7                        ├─────┤   put 3 = stored, 24 to 30       in flight then";
    assert_eq!(violation.to_string(), told);
    assert_eq!(Failure::NotLinearizable(violation.clone()).to_string(), told);
    let undecided = Undecided { steps: 3, in_flight: 2 };
    assert_eq!(Failure::Undecided(undecided).to_string(), undecided.to_string());
    assert_eq!((violation.stuck, violation.explained), (6, 4));
    assert_eq!(violation.states, [None, Some(2)]);
    let roles: Vec<_> = violation.around.iter().map(|one| (one.number, one.role)).collect();
    let recent = [(1, Role::Recent), (2, Role::Recent), (3, Role::Recent)];
    assert_eq!(roles[0], (0, Role::Source));
    assert_eq!(roles[1..4], recent);
    assert_eq!(roles[4..6], [(4, Role::InFlight), (5, Role::InFlight)]);
    assert_eq!(roles[6..], [(6, Role::Stuck), (7, Role::InFlight)]);
    assert!(violation.around.iter().all(|one| one.event == events[one.number]));
}

/// Of many that returned before, only the last are told of; of those that put what was got, all.
#[test]
fn a_violation_is_told_in_few_lines() {
    let mut events: Vec<_> = (0..20).map(|time| put(time, 10 * time, 10 * time + 5)).collect();
    events.push(get(3, 300, 301));
    events.push(put(3, 400, 401));
    let violation = check(Some(7), &events).unwrap_err();
    let numbers: Vec<_> = violation.around.iter().map(|one| one.number).collect();
    assert_eq!(numbers, [3, 14, 15, 16, 17, 18, 19, 20, 21]);
    assert_eq!(violation.states, [Some(19)]);
    assert!(!violation.or_unread);
}

/// In long histories, values that no get returned are not told apart.
#[test]
fn values_nobody_got_are_told_as_such() {
    let [_, mut guided, _] = Checker::of_each_manner();
    let mut told = |initial, events: &[Event]| {
        let Err(Failure::NotLinearizable(violation)) = guided.check(initial, events) else { panic!() };
        let text = violation.to_string();
        (violation, text.lines().nth(1).unwrap().to_owned())
    };
    let (violation, line) = told(Some(1), &[get(1, 0, 1), put(2, 2, 5), put(3, 2, 5), get(1, 6, 7)]);
    assert_eq!(
        line,
        "The 3 that returned before it can be explained; the key is then some value that no get returned."
    );
    assert_eq!((violation.states.as_slice(), violation.or_unread), ([].as_slice(), true));
    let (violation, line) = told(Some(1), &[get(1, 0, 1), put(2, 2, 5), delete(true, 2, 5), get(1, 6, 7)]);
    assert_eq!(
        line,
        "The 3 that returned before it can be explained; the key is then absent or some value that no get returned."
    );
    assert_eq!((violation.states.as_slice(), violation.or_unread), ([None].as_slice(), true));
    let (violation, line) = told(Some(1), &[get(1, 0, 1), put(2, 2, 5), get(2, 6, 7), get(1, 8, 9)]);
    assert_eq!(line, "The 3 that returned before it can be explained; the key is then 2.");
    assert_eq!((violation.states.as_slice(), violation.or_unread), ([Some(2)].as_slice(), false));
    // The key began with a value that nobody got.
    let (_, line) = told(Some(1), &[open(Call::Put(5), 0), get(2, 6, 7)]);
    assert_eq!(
        line,
        "The 0 that returned before it can be explained; the key is then some value that no get returned."
    );
    let (_, line) = told(Some(1), &[get(2, 6, 7)]);
    assert_eq!(line, "The 0 that returned before it can be explained; the key is then 1.");
}

#[test]
fn a_timeline_is_drawn() {
    let events =
        [get(None, 5, 5), delete(false, 1, 7), put(4, 0, 5), open(Call::Put(3), 6), open(Call::Get, 7)];
    assert_eq!(
        Timeline(&events).to_string(),
        "
       2  ├───┤       put 4 = stored, 0 to 5
       1    ├─────┤   delete = it was absent, 1 to 7
       0      │       get = absent, 5 to 5
       3        ├╌╌╌  put 3, open, from 6
       4          ├╌  get, open, from 7"
    );
    assert_eq!(Timeline(&[]).to_string(), "");
    // Long ones are listed.
    let events: Vec<_> = (0..33).map(|time| get(None, time, 100)).collect();
    assert!(Timeline(&events[..32]).to_string().starts_with("\n       0  ├───"));
    assert!(
        Timeline(&events).to_string().starts_with("\n       0    get = absent, 0 to 100\n       1    get")
    );
}

/// What contradicts what, of a history with other things in it.
#[test]
fn a_violation_is_shrunk_to_what_contradicts() {
    let events = removed_and_got();
    assert_eq!(shrink(None, &events), [events[0], events[3], events[6]]);
    // A stale get among others: the put, the put that overwrote it, and the get; not the get alone.
    let events = [
        put(1, 0, 1),
        put(2, 2, 3),
        get(2, 4, 5),
        put(3, 4, 9),
        delete(true, 6, 7),
        put(4, 10, 11),
        get(4, 12, 15),
        get(2, 13, 14),
        open(Call::Delete, 13),
    ];
    assert_eq!(shrink(None, &events), [events[1], events[5], events[7]]);
    // A value from nowhere is a contradiction alone.
    assert_eq!(shrink(None, &[put(1, 0, 1), get(9, 2, 3), get(1, 4, 5)]), [get(9, 2, 3)]);
    // A value that was got too early is told of with its first put.
    let events = [put(2, 3, 4), get(1, 5, 6), put(1, 9, 10), put(1, 7, 8)];
    assert_eq!(shrink(None, &events), [events[1], events[3]]);
    assert_eq!(shrink(Some(1), &[put(2, 3, 4), get(1, 5, 6), put(1, 7, 8)]), [put(2, 3, 4), get(1, 5, 6)]);
    // Two deletes of one value, which had to be there.
    let events = [put(1, 0, 1), get(1, 2, 3), delete(true, 4, 7), delete(true, 5, 6), get(None, 8, 9)];
    assert_eq!(shrink(None, &events), [events[0], events[2], events[3]]);
    // An open put that was seen, and unseen later.
    let events = [open(Call::Put(2), 0), open(Call::Put(3), 0), get(2, 1, 2), get(1, 3, 4), get(1, 5, 6)];
    assert_eq!(shrink(Some(1), &events), [events[0], events[2], events[3]]);
    // Nothing is wrong with it.
    assert_eq!(shrink(Some(1), &events[..3]), events[..3]);
}

/// Random violating histories. What is left of each is a small part of it that violates too, and has a put of each value
/// that it says was got, unless nobody put it.
#[test]
fn what_is_left_violates_for_a_reason_of_the_whole() {
    let (mut shrunk, mut kept) = (0, 0);
    for seed in 0..1_500 {
        let mut random = Random(seed);
        let shape = Shape {
            operations: 4 + random.below(16) as usize,
            clients: 1 + random.below(4) as usize,
            values: [0, 3][random.below(2) as usize],
            puts_percent: 40,
            deletes_percent: random.below(60),
            open_percent: [0, 10][random.below(2) as usize],
            touching: random.chance(50),
        };
        let (initial, mut events) = history(&mut random, shape);
        for _ in 0..3 {
            mutate(&mut random, &mut events);
        }
        if check(initial, &events).is_ok() {
            continue;
        }
        shrunk += 1;
        let left = shrink(initial, &events);
        let context = || {
            format!("seed {seed}, initially {initial:?}: {}\nleft: {}", Timeline(&events), Timeline(&left))
        };
        kept += left.len();
        assert!(!by_permutations(initial, &left), "{}", context());
        let mut rest = events.iter();
        assert!(left.iter().all(|event| rest.any(|one| one == event)), "{}", context());
        for event in &left {
            if let Outcome::Returned { answer: Answer::Value(value), .. } = event.outcome
                && value.is_some()
                && value != initial
            {
                let is_source = |one: &Event| one.call == Call::Put(value.unwrap());
                assert_eq!(left.iter().any(is_source), events.iter().any(is_source), "{}", context());
            }
        }
    }
    assert!(shrunk > 400 && kept < 4 * shrunk, "{kept} operations are left of {shrunk} histories");
}
