//! Histories made by hand, each good or bad for one reason.

use super::*;

const ABSENT: Option<Value> = None;

/// The plain search and the guided one agree that there is an order, however the events are listed.
#[track_caller]
fn good(initial: Option<Value>, events: &[Event]) {
    for mut checker in Checker::of_each_manner() {
        let mut events = events.to_vec();
        for _ in 0..2 {
            if let Err(failure) = checker.check(initial, &events) {
                panic!("refused: {failure}");
            }
            events.reverse();
        }
    }
}

/// They agree that there is none, and that operation `stuck` is the first to return that can't be explained.
#[track_caller]
fn bad(initial: Option<Value>, events: &[Event], stuck: usize) {
    for mut checker in Checker::of_each_manner() {
        match checker.check(initial, events) {
            Err(Failure::NotLinearizable(violation)) => assert_eq!(violation.stuck, stuck, "{violation}"),
            other => panic!("{other:?} of {}", Timeline(events)),
        }
        let reversed: Vec<_> = events.iter().rev().copied().collect();
        assert!(matches!(checker.check(initial, &reversed), Err(Failure::NotLinearizable(_))));
    }
    assert_eq!(check(initial, events).unwrap_err().stuck, stuck);
}

#[test]
fn one_after_the_other() {
    good(None, &[]);
    good(None, &[get(ABSENT, 0, 1), delete(false, 2, 3), put(1, 4, 5), get(1, 6, 7), delete(true, 8, 9)]);
    good(None, &[put(1, 0, 1), put(2, 2, 3), get(2, 4, 5), delete(true, 6, 7), get(ABSENT, 8, 9)]);
    good(Some(5), &[get(5, 0, 1), delete(true, 2, 3), delete(false, 4, 5), put(5, 6, 7), get(5, 8, 9)]);
}

/// The key began with a value, or without one, and the first answers must say so.
#[test]
fn a_key_begins_as_it_was() {
    bad(None, &[get(5, 0, 1)], 0);
    bad(None, &[delete(true, 0, 1)], 0);
    bad(Some(5), &[get(ABSENT, 0, 1)], 0);
    bad(Some(5), &[get(6, 0, 1)], 0);
    bad(Some(5), &[delete(false, 0, 1)], 0);
    bad(Some(0), &[get(ABSENT, 0, 1)], 0);
    bad(None, &[get(0, 0, 1)], 0);
}

/// A put was acknowledged. A get that begins later returns what was before.
#[test]
fn a_stale_read_after_an_acknowledged_put() {
    bad(None, &[put(1, 0, 1), get(ABSENT, 2, 3)], 1);
    bad(None, &[put(1, 0, 1), put(2, 2, 3), get(1, 4, 5)], 2);
    bad(Some(1), &[put(2, 0, 1), get(1, 2, 3)], 1);
    bad(None, &[put(1, 0, 1), delete(true, 2, 3), get(1, 4, 5)], 2);
    // It began before the acknowledgement, or at the very moment: it may.
    good(None, &[put(1, 0, 2), get(ABSENT, 1, 3)]);
    good(None, &[put(1, 0, 2), get(ABSENT, 2, 3)]);
    // A put that returned in the moment in which it was invoked.
    bad(None, &[put(1, 1, 1), get(ABSENT, 2, 2)], 1);
    good(None, &[put(1, 1, 1), get(ABSENT, 1, 1)]);
}

/// Two puts were acknowledged, and the one that came second is gone.
#[test]
fn a_lost_update() {
    bad(None, &[put(1, 0, 1), put(2, 2, 3), get(1, 4, 5), get(1, 6, 7)], 2);
    bad(None, &[put(1, 0, 3), put(2, 1, 2), get(ABSENT, 4, 5)], 2);
    // They overlapped: either may have come second, but not both.
    good(None, &[put(1, 0, 3), put(2, 1, 2), get(1, 4, 5)]);
    good(None, &[put(1, 0, 3), put(2, 1, 2), get(2, 4, 5)]);
    bad(None, &[put(1, 0, 3), put(2, 1, 2), get(1, 4, 5), get(2, 6, 7)], 3);
    bad(None, &[put(1, 0, 3), put(2, 1, 2), get(2, 4, 5), get(1, 6, 7)], 3);
}

/// A key is removed once. Two deletes say that they removed it.
#[test]
fn a_key_deleted_twice() {
    bad(None, &[put(1, 0, 1), delete(true, 2, 5), delete(true, 3, 4)], 1);
    bad(Some(1), &[delete(true, 2, 4), delete(true, 3, 5)], 1);
    good(Some(1), &[delete(true, 2, 4), delete(false, 3, 5)]);
    good(Some(1), &[delete(false, 2, 4), delete(true, 3, 5)]);
    bad(Some(1), &[delete(false, 2, 3), delete(true, 4, 5)], 0);
    good(Some(1), &[delete(true, 2, 4), delete(true, 3, 5), put(2, 3, 4)]);
    bad(Some(1), &[delete(true, 2, 4), delete(true, 3, 5), put(2, 6, 7)], 1);
    // Three deletes, one put.
    bad(Some(1), &[delete(true, 0, 9), delete(true, 0, 9), delete(true, 0, 9), put(2, 0, 9)], 2);
    good(Some(1), &[delete(true, 0, 9), delete(true, 0, 9), delete(false, 0, 9), put(2, 0, 9)]);
}

/// Nobody put it.
#[test]
fn a_value_from_nowhere() {
    bad(None, &[put(1, 0, 9), get(2, 1, 2)], 1);
    bad(Some(1), &[open(Call::Put(2), 0), open(Call::Delete, 0), get(3, 1, 2)], 2);
    bad(Some(1), &[open(Call::Put(2), 0), delete(true, 1, 2), delete(true, 3, 4), delete(true, 5, 6)], 3);
}

/// A value is seen before anybody asked for it to be put.
#[test]
fn a_value_seen_before_its_put_began() {
    bad(None, &[get(1, 0, 1), put(1, 2, 3)], 0);
    bad(None, &[get(1, 0, 1), open(Call::Put(1), 2)], 0);
    bad(Some(1), &[get(ABSENT, 0, 1), open(Call::Delete, 2)], 0);
    bad(Some(1), &[delete(true, 0, 1), delete(true, 2, 3), open(Call::Put(2), 4)], 1);
    good(None, &[get(1, 0, 2), put(1, 2, 3)]);
    good(None, &[get(1, 0, 2), open(Call::Put(1), 2)]);
}

/// A client died during a put. The value may turn up at any time, or never; but it does not go away again.
#[test]
fn an_open_put() {
    let died = open(Call::Put(2), 2);
    good(Some(1), &[died]);
    good(Some(1), &[died, get(1, 3, 4)]);
    good(Some(1), &[died, get(2, 3, 4)]);
    good(Some(1), &[died, get(1, 3, 4), get(2, 5, 6)]);
    bad(Some(1), &[died, get(2, 3, 4), get(1, 5, 6)], 2);
    good(Some(1), &[died, get(2, 3, 6), get(1, 4, 5)]);
    // It may wait for a long time, and come after a later put; but it happens once.
    good(Some(1), &[died, get(1, 3, 4), put(3, 5, 6), get(3, 7, 8), get(2, 9, 10)]);
    bad(Some(1), &[died, get(2, 3, 4), put(3, 5, 6), get(3, 7, 8), get(2, 9, 10)], 4);
    // Two clients died, both putting the same.
    let events = [
        died,
        open(Call::Put(2), 2),
        get(2, 3, 4),
        put(3, 5, 6),
        get(3, 7, 8),
        get(2, 9, 10),
        get(3, 11, 12),
    ];
    good(Some(1), &events[..6]);
    bad(Some(1), &events, 6);
    // It is a value for a delete to find, once.
    good(None, &[died, delete(true, 3, 4), delete(false, 5, 6)]);
    bad(None, &[died, delete(true, 3, 4), delete(true, 5, 6)], 2);
    bad(None, &[died, delete(true, 3, 4), get(2, 5, 6)], 2);
}

/// A client died during a delete.
#[test]
fn an_open_delete() {
    let died = open(Call::Delete, 2);
    good(Some(1), &[died, get(1, 3, 4)]);
    good(Some(1), &[died, get(ABSENT, 3, 4)]);
    good(Some(1), &[died, delete(false, 3, 4)]);
    good(Some(1), &[died, get(1, 3, 4), put(2, 5, 6), get(ABSENT, 7, 8)]);
    bad(Some(1), &[died, get(ABSENT, 3, 4), get(1, 5, 6)], 2);
    bad(Some(1), &[died, get(ABSENT, 3, 4), put(2, 5, 6), get(ABSENT, 7, 8)], 3);
    bad(Some(1), &[died, delete(false, 3, 4), put(2, 5, 6), get(ABSENT, 7, 8)], 3);
    // Which of two deletes found the key: the one that died, or the one that says that it did.
    bad(Some(1), &[died, delete(true, 3, 4), put(2, 5, 6), delete(false, 7, 8), get(2, 9, 10)], 4);
    good(Some(1), &[died, delete(true, 3, 4), put(2, 5, 6), delete(false, 7, 8), get(ABSENT, 9, 10)]);
}

/// A get that did not return says nothing.
#[test]
fn an_open_get() {
    good(Some(1), &[open(Call::Get, 0), get(1, 1, 2)]);
    bad(Some(1), &[open(Call::Get, 0), get(2, 1, 2)], 1);
}

/// Two open operations together: a put to be found by a delete, after a delete that died made the key absent.
#[test]
fn open_operations_help_each_other() {
    let dead = [open(Call::Put(2), 1), open(Call::Delete, 2)];
    let events =
        [dead[0], dead[1], get(ABSENT, 3, 4), delete(true, 5, 6), delete(false, 7, 8), get(1, 9, 10)];
    good(Some(1), &events[..5]);
    bad(Some(1), &events, 5);
    let events = [dead[0], dead[1], delete(true, 3, 4), get(2, 5, 6), get(ABSENT, 7, 8), get(2, 9, 10)];
    good(Some(1), &events[..5]);
    bad(Some(1), &events, 5);
    // The put was seen, so no delete can have found it before, and no other put is there.
    let events = [dead[0], delete(true, 3, 4), delete(true, 5, 6), get(2, 7, 8)];
    bad(Some(1), &events, 3);
    good(Some(1), &[dead[0], open(Call::Put(3), 1), events[1], events[2], events[3]]);
    // A put nobody saw, begun too late for the first of the two deletes.
    bad(None, &[dead[0], open(Call::Put(3), 5), delete(true, 3, 4), get(2, 6, 7)], 3);
}

/// A put is under way. One get sees it, and a later one does not: the value went back.
#[test]
fn old_after_new() {
    let slow = put(2, 0, 9);
    bad(Some(1), &[slow, get(2, 1, 2), get(1, 3, 4)], 2);
    good(Some(1), &[slow, get(1, 1, 2), get(2, 3, 4)]);
    // The gets overlap each other, so either may have been first.
    good(Some(1), &[slow, get(2, 1, 3), get(1, 2, 4)]);
    good(Some(1), &[slow, get(2, 1, 3), get(1, 3, 4)]);
    // A third one that lies between both: its answer is the older, after one that saw the newer had returned.
    bad(Some(1), &[slow, get(2, 1, 2), get(1, 1, 5), get(1, 3, 6)], 3);
    // To and fro, for which two puts would be needed.
    bad(Some(1), &[slow, get(1, 1, 2), get(2, 3, 4), get(1, 5, 6)], 3);
    good(Some(1), &[slow, put(1, 0, 9), get(1, 1, 2), get(2, 3, 4), get(1, 5, 6)]);
    bad(Some(1), &[slow, put(1, 0, 9), get(2, 1, 2), get(1, 3, 4), get(2, 5, 6)], 4);
}

/// The order in which two readers saw two puts.
#[test]
fn two_readers_disagree() {
    let puts = [put(1, 0, 100), put(2, 0, 100)];
    let first = [get(1, 10, 20), get(2, 30, 40)];
    good(None, &[puts[0], puts[1], first[0], first[1], get(1, 11, 19), get(2, 29, 41)]);
    bad(None, &[puts[0], puts[1], first[0], first[1], get(2, 11, 19), get(1, 29, 41)], 5);
}

/// Several puts of one value. Each may be wanted after something else, also where the key has the value already.
#[test]
fn the_same_value_again() {
    good(Some(1), &[put(1, 0, 9), put(2, 0, 5), get(2, 1, 2), get(1, 3, 4)]);
    good(Some(1), &[put(1, 0, 9), put(2, 0, 5), get(1, 1, 2), get(2, 3, 4)]);
    bad(Some(1), &[put(1, 0, 9), put(2, 0, 5), get(2, 1, 2), get(1, 3, 4), get(2, 5, 6)], 4);
    good(Some(1), &[open(Call::Put(1), 0), put(2, 1, 2), get(1, 3, 4)]);
    good(None, &[put(1, 0, 1), put(1, 0, 9), delete(true, 2, 5), delete(true, 3, 6)]);
    bad(None, &[put(1, 0, 1), put(1, 0, 1), delete(true, 2, 5), delete(true, 3, 6)], 3);
}

/// An answer that the call never gives.
#[test]
fn an_answer_of_another_call() {
    bad(None, &[returned(Call::Get, 0, 1, Answer::Stored)], 0);
    bad(None, &[returned(Call::Put(1), 0, 1, Answer::Value(Some(1)))], 0);
    bad(None, &[returned(Call::Put(1), 0, 1, Answer::Existed(false))], 0);
    bad(None, &[returned(Call::Delete, 0, 1, Answer::Value(None))], 0);
    bad(Some(1), &[open(Call::Put(2), 0), returned(Call::Delete, 0, 1, Answer::Stored)], 1);
}

/// The clock of a recording ran backwards: the history says nothing, and that is not taken for an answer.
#[test]
#[should_panic(expected = "operation 1 returned before it was invoked")]
fn a_return_before_its_invocation_is_refused() {
    let _ = check(None, &[put(1, 0, 1), get(1, 5, 4)]);
}
