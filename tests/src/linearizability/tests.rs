use super::*;

fn done(call: Call, invoked: u64, at: u64, answer: Answer) -> Event {
    Event { call, invoked, outcome: Outcome::Returned { at, answer } }
}

fn put(value: Value, invoked: u64, at: u64) -> Event {
    done(Call::Put(value), invoked, at, Answer::Stored)
}

fn get(value: Option<Value>, invoked: u64, at: u64) -> Event {
    done(Call::Get, invoked, at, Answer::Value(value))
}

#[test]
fn a_stale_read_is_found() {
    check(None, &[put(1, 0, 1), get(Some(1), 2, 3)]).unwrap();
    let events = [put(1, 0, 1), get(None, 2, 3)];
    let violation = check(None, &events).unwrap_err();
    assert_eq!(violation.stuck, (1, events[1]));
    assert_eq!(violation.states, [Some(1)]);
    check(None, &[put(1, 0, 2), get(None, 2, 3)]).unwrap();
}
