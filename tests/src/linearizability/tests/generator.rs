//! Random histories.
//!
//! Always true: a history that was made and not mutated is linearizable, since its operations took effect one after the
//! other, each at one moment between its invocation and its return.

use super::*;

/// Numbers from a seed (splitmix64).
pub(super) struct Random(pub(super) u64);

impl Random {
    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    pub(super) fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }

    pub(super) fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }
}

/// What histories are made.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    pub(super) operations: usize,
    pub(super) clients: usize,
    /// Put values come from so many; 0: each put has its own.
    pub(super) values: u64,
    pub(super) puts_percent: u64,
    pub(super) deletes_percent: u64,
    /// Operations whose client dies.
    pub(super) open_percent: u64,
    /// Whether some moments are shared by two.
    pub(super) touching: bool,
}

/// A good history, and the key's value before it.
pub(super) fn history(random: &mut Random, shape: Shape) -> (Option<Value>, Vec<Event>) {
    let initial = random.chance(50).then(|| random.below(shape.values.max(1)));
    let mut value = initial;
    let mut now = 0;
    let mut events: Vec<Event> = Vec::new();
    // The event of each client that is busy, and whether it has taken effect.
    let mut busy: Vec<Option<(usize, bool)>> = vec![None; shape.clients];
    // Events of dead clients that may still take effect.
    let mut late: Vec<usize> = Vec::new();
    let mut answers: Vec<Option<Answer>> = Vec::new();
    while events.len() < shape.operations || busy.iter().any(Option::is_some) {
        now += if shape.touching { random.below(2) } else { 1 };
        if !late.is_empty() && random.chance(10) {
            let event = late.swap_remove(random.below(late.len() as u64) as usize);
            take_effect(&mut value, events[event].call);
            continue;
        }
        let client = random.below(shape.clients as u64) as usize;
        match busy[client] {
            None if events.len() < shape.operations => {
                let call = if random.chance(shape.puts_percent) {
                    let own = 1000 + events.len() as u64;
                    Call::Put(if shape.values == 0 { own } else { random.below(shape.values) })
                } else if random.chance(shape.deletes_percent) {
                    Call::Delete
                } else {
                    Call::Get
                };
                busy[client] = Some((events.len(), false));
                events.push(open(call, now));
                answers.push(None);
            }
            None => {}
            Some((event, false)) if random.chance(shape.open_percent) => {
                if random.chance(50) {
                    late.push(event);
                }
                busy[client] = None;
            }
            Some((event, false)) => {
                answers[event] = Some(take_effect(&mut value, events[event].call));
                busy[client] = Some((event, true));
            }
            Some((event, true)) => {
                if !random.chance(shape.open_percent) {
                    let answer = answers[event].expect("it took effect");
                    events[event].outcome = Outcome::Returned { at: now, answer };
                }
                busy[client] = None;
            }
        }
    }
    (initial, events)
}

fn take_effect(value: &mut Option<Value>, call: Call) -> Answer {
    let was = *value;
    match call {
        Call::Get => Answer::Value(was),
        Call::Put(new) => {
            *value = Some(new);
            Answer::Stored
        }
        Call::Delete => {
            *value = None;
            Answer::Existed(was.is_some())
        }
    }
}

/// Changes something, which may or may not make the history bad: an answer, a time, or what was open.
pub(super) fn mutate(random: &mut Random, events: &mut Vec<Event>) {
    if events.is_empty() {
        return;
    }
    let index = random.below(events.len() as u64) as usize;
    let some_value = events.iter().filter_map(|event| match event.call {
        Call::Put(value) => Some(value),
        _ => None,
    });
    let mut values: Vec<_> = some_value.map(Some).collect();
    values.extend([None, Some(7)]);
    let event = &mut events[index];
    match (&mut event.outcome, random.below(5)) {
        (Outcome::Returned { answer: Answer::Value(value), .. }, 0..=1) => {
            *value = values[random.below(values.len() as u64) as usize];
        }
        (Outcome::Returned { answer: Answer::Existed(existed), .. }, 0..=1) => *existed = !*existed,
        (Outcome::Returned { at, .. }, 2) => *at = event.invoked + random.below(*at - event.invoked + 1),
        (Outcome::Returned { at, .. }, 3) => event.invoked += random.below(*at - event.invoked + 1),
        (_, 4) => {
            events.swap_remove(index);
        }
        (Outcome::Open, _) => event.invoked += random.below(6),
        (Outcome::Returned { .. }, _) => {}
    }
}
