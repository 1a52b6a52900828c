//! What guides the search, held against what it was concluded from.

use super::super::configuration::{Configuration, Reached};
use super::super::demand::{Class, Demand};
use super::super::register::{Effect, Needs, effect, needs};
use super::*;

const STATES: [Option<Value>; 4] = [None, Some(0), Some(1), Some(2)];
const CALLS: [Call; 4] = [Call::Get, Call::Put(1), Call::Put(2), Call::Delete];

fn answers() -> impl Iterator<Item = Answer> {
    let values = STATES.into_iter().map(Answer::Value);
    values.chain([Answer::Stored, Answer::Existed(true), Answer::Existed(false)])
}

#[test]
fn a_key_does_what_it_should() {
    assert_eq!(apply(Some(1), Call::Get), (Some(1), Answer::Value(Some(1))));
    assert_eq!(apply(None, Call::Get), (None, Answer::Value(None)));
    assert_eq!(apply(Some(1), Call::Put(2)), (Some(2), Answer::Stored));
    assert_eq!(apply(None, Call::Put(2)), (Some(2), Answer::Stored));
    assert_eq!(apply(Some(1), Call::Delete), (None, Answer::Existed(true)));
    assert_eq!(apply(None, Call::Delete), (None, Answer::Existed(false)));
}

/// What a call leaves, and what an answer needs, is what applying the call to each state shows.
#[test]
fn conclusions_are_those_of_applying() {
    for call in CALLS {
        for state in STATES {
            match effect(call) {
                Effect::Nothing => assert_eq!(apply(state, call).0, state, "{call:?}"),
                Effect::Becomes(left) => assert_eq!(apply(state, call).0, left, "{call:?}"),
            }
        }
        for answer in answers() {
            let right: Vec<_> = STATES.into_iter().filter(|state| apply(*state, call).1 == answer).collect();
            match needs(call, answer) {
                Needs::Anything => {
                    assert!(right.is_empty() || right.len() == STATES.len(), "{call:?} {answer:?}")
                }
                Needs::State(state) => assert_eq!(right, [state], "{call:?} {answer:?}"),
                Needs::Presence => assert_eq!(right, STATES[1..], "{call:?} {answer:?}"),
            }
        }
    }
}

fn configuration(placed: u128, state: Option<Value>, used: [u32; 2]) -> Configuration<2> {
    Configuration { placed, state, used }
}

fn all_of(reached: &mut Reached<2>) -> Vec<Configuration<2>> {
    std::iter::from_fn(|| reached.next()).collect()
}

/// Of two configurations that differ in the open operations placed, the one with fewer is kept, whichever comes first.
/// Others are kept both.
#[test]
fn what_can_do_less_is_not_kept() {
    const OPEN: u128 = 0b1100 << 100;
    let base = configuration(0b01, Some(1), [1, 1]);
    let worse = [
        configuration(0b01, Some(1), [1, 2]),
        configuration(0b01, Some(1), [2, 1]),
        configuration(0b01 | 1 << 102, Some(1), [1, 1]),
        configuration(0b01 | OPEN, Some(1), [7, 7]),
        base,
    ];
    for worse in worse {
        for order in [[base, worse], [worse, base]] {
            let mut reached = Reached::default();
            reached.clear();
            order.into_iter().for_each(|one| reached.insert(one, OPEN));
            assert_eq!(all_of(&mut reached), [base]);
            assert_eq!(reached.compared(), 1);
        }
        // What the search has gone on from already is not taken back, but it does go on from the better one.
        let mut reached = Reached::default();
        reached.clear();
        reached.insert(worse, OPEN);
        assert_eq!(reached.next(), Some(worse));
        reached.insert(base, OPEN);
        reached.insert(worse, OPEN);
        assert_eq!(all_of(&mut reached), if worse == base { vec![] } else { vec![base] });
    }
    let others = [
        configuration(0b11, Some(1), [1, 1]),
        configuration(0b10, Some(1), [1, 1]),
        configuration(0b01 | 1 << 99, Some(1), [1, 1]),
        configuration(0b01, Some(2), [1, 1]),
        configuration(0b01, None, [1, 1]),
        configuration(0b01, Some(1), [0, 2]),
        configuration(0b01, Some(1), [2, 0]),
        configuration(0b01 | 1 << 102, Some(1), [0, 1]),
    ];
    for other in others {
        for order in [[base, other], [other, base]] {
            let mut reached = Reached::default();
            reached.clear();
            order.into_iter().for_each(|one| reached.insert(one, OPEN));
            assert_eq!(all_of(&mut reached), order);
        }
    }
}

/// Thousands of configurations, each twice, over several rounds: each is there once, in the order of coming.
#[test]
fn many_configurations_are_kept_apart() {
    let mut reached = Reached::default();
    for round in 1..4_u64 {
        reached.clear();
        let all: Vec<_> = (0..3_000)
            .map(|number| configuration(u128::from(number % 64) << 60, Some(number / 64 * round), [0, 0]))
            .collect();
        for one in &all {
            reached.insert(*one, 0);
        }
        let before = reached.compared();
        for one in &all {
            reached.insert(*one, 0);
        }
        // Entries that are no equals are seldom met on the way.
        let compared = reached.compared() - before;
        assert!((3_000..9_000).contains(&compared), "{compared}");
        assert_eq!(reached.bytes(), all.len() * size_of::<Configuration<2>>());
        assert_eq!(all_of(&mut reached), all);
        assert_eq!(reached.next(), None);
    }
}

/// Rounds are counted in 32 bits. After the last, the first begins, and what was reached in the first is not there again.
#[test]
fn rounds_begin_anew() {
    let all: Vec<_> = (0..9).map(|value| configuration(1, Some(value), [0, 0])).collect();
    for rounds_gone_by in [1, 2, u32::MAX - 1, u32::MAX] {
        let mut reached = Reached::default();
        reached.clear();
        reached.insert(all[0], 0);
        reached.set_round(rounds_gone_by);
        for _ in 0..3 {
            reached.clear();
            assert_eq!(reached.next(), None);
            for one in all.iter().chain(&all) {
                reached.insert(*one, 0);
            }
            assert_eq!(all_of(&mut reached), all);
        }
    }
}

fn learned(initial: Option<Value>, events: &[Event]) -> Demand {
    let mut demand = Demand::default();
    demand.learn(Some(77), &[get(77, 0, 1), delete(true, 0, 900), put(78, 0, 1), delete(false, 0, 900)]);
    demand.learn(initial, events);
    demand
}

/// Open puts of a value that was got matter until the last get of it returned, and no more of them than there are gets.
#[test]
fn open_puts_matter_while_they_can_be_got() {
    let mut demand = learned(None, &[get(5, 10, 20), get(5, 8, 30), get(6, 40, 50)]);
    let class = Class { state: Some(5), is_unread: false, until: 30 };
    assert_eq!(demand.admit(Call::Put(5), 31), None);
    assert_eq!(demand.admit(Call::Put(5), 30), Some(class));
    assert_eq!(demand.admit(Call::Put(5), 0), Some(class));
    assert_eq!(demand.admit(Call::Put(5), 0), None);
    assert_eq!(demand.admit(Call::Put(6), 0), Some(Class { state: Some(6), is_unread: false, until: 50 }));
    assert_eq!(demand.admit(Call::Put(7), 0), None);
    assert_eq!(demand.admit(Call::Delete, 0), None);
    assert_eq!(demand.admit(Call::Get, 0), None);
}

/// Where deletes found the key, any value may be what they found. Those that nobody got are one class.
#[test]
fn open_puts_matter_while_they_can_be_deleted() {
    let events = [get(5, 10, 20), delete(true, 15, 25), delete(true, 15, 22), put(7, 0, 1), put(8, 0, 1)];
    let mut demand = learned(Some(9), &events);
    let unread = Class { state: Some(7), is_unread: true, until: 25 };
    assert_eq!(demand.unread(), Some(7));
    assert_eq!(demand.admit(Call::Put(8), 26), None);
    assert_eq!(demand.admit(Call::Put(8), 25), Some(unread));
    assert_eq!(demand.admit(Call::Put(100), 0), Some(unread));
    assert_eq!(demand.admit(Call::Put(7), 0), None);
    let read = Class { state: Some(5), is_unread: false, until: 25 };
    assert_eq!([(); 4].map(|()| demand.admit(Call::Put(5), 0)), [Some(read), Some(read), Some(read), None]);
    assert_eq!(demand.admit(Call::Delete, 0), None);
    // Each stands in for the others.
    assert_eq!(demand.stand_in(Call::Put(8)), Call::Put(7));
    assert_eq!(demand.stand_in(Call::Put(5)), Call::Put(5));
    assert_eq!(demand.stand_in(Call::Get), Call::Get);
    assert_eq!(demand.stand_in_for_state(Some(9)), Some(7));
    assert_eq!(demand.stand_in_for_state(Some(5)), Some(5));
    assert_eq!(demand.stand_in_for_state(None), None);
    // Where every value was got, or none was put, each stands for itself.
    let demand = learned(Some(9), &[get(5, 0, 1), put(5, 0, 1)]);
    assert_eq!((demand.unread(), demand.stand_in_for_state(Some(9))), (None, Some(9)));
    assert_eq!(demand.stand_in(Call::Put(4)), Call::Put(4));
}

/// Open deletes matter while the key can be found absent.
#[test]
fn open_deletes_matter_while_absence_can_be_found() {
    let mut demand = learned(Some(1), &[get(None, 0, 4), delete(false, 2, 7), delete(true, 0, 100)]);
    let class = Class { state: None, is_unread: false, until: 7 };
    assert_eq!(demand.admit(Call::Delete, 8), None);
    assert_eq!([(); 3].map(|()| demand.admit(Call::Delete, 7)), [Some(class), Some(class), None]);
}

/// A state must stay if something invoked later needs it and nothing can bring it back in time.
#[test]
fn a_state_must_stay_while_a_later_get_needs_it() {
    let events = [put(5, 0, 1), get(5, 8, 30), get(5, 10, 12)];
    let demand = learned(None, &events);
    assert!(demand.is_unique(Some(5)) && demand.must_stay(Some(5), 9));
    assert!(!demand.must_stay(Some(5), 10));
    assert!(!demand.is_unique(Some(6)) && !demand.must_stay(Some(6), 9));
    assert!(!demand.must_stay(None, 9));
    // There is another put of it, or it was there from the start.
    for other in [put(5, 30, 40), open(Call::Put(5), 30)] {
        let demand = learned(None, &[events.as_slice(), &[other]].concat());
        assert!(!demand.is_unique(Some(5)) && !demand.must_stay(Some(5), 9));
    }
    let demand = learned(Some(5), &events);
    assert!(!demand.is_unique(Some(5)) && !demand.must_stay(Some(5), 9));
    let demand = learned(Some(5), &events[1..]);
    assert!(demand.is_unique(Some(5)) && demand.must_stay(Some(5), 9));
    // The other begins too late for those who got it.
    for other in [put(5, 31, 40), open(Call::Put(5), 31)] {
        let demand = learned(None, &[events.as_slice(), &[other]].concat());
        assert!(demand.is_unique(Some(5)) && demand.must_stay(Some(5), 9));
    }
    // The absent key that was never deleted.
    let demand = learned(None, &[put(5, 0, 9), get(None, 8, 9)]);
    assert!(demand.is_unique(None) && demand.must_stay(None, 7));
    let demand = learned(None, &[put(5, 0, 9), get(None, 8, 9), open(Call::Delete, 0)]);
    assert!(!demand.is_unique(None) && !demand.must_stay(None, 7));
}
