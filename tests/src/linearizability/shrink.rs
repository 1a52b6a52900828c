//! Finds the few operations of a history that contradict each other.
//!
//! Always true: what is left violates, for a reason that the whole history has.
//!
//! Leaving operations out is not enough. Without the put of a value that a get returned, the get alone violates; but that
//! is not what was wrong. What a history proves is weakened, and never changed, when a get is left out, and when the
//! answer of another operation is forgotten so that it may happen at any time or not at all. So the *contradiction* is
//! found first: the fewest operations whose answers, with all other changes open, have no order. Then those of the others
//! are added that its members rest on: without them, a part of the contradiction alone would violate.

use super::{Call, Checker, Event, Outcome, Value};

/// The operations of the violating history `events` that contradict each other, and those that these rest on, in the order
/// of `events`. A history that does not violate comes back whole.
pub fn shrink(initial: Option<Value>, events: &[Event]) -> Vec<Event> {
    let mut checker = Checker::new();
    if !checker.violates(initial, events) {
        return events.to_vec();
    }
    let returned = |index: &usize| events[*index].outcome != Outcome::Open;
    let mut contradiction: Vec<usize> = (0..events.len()).filter(returned).collect();
    let mut others: Vec<usize> = (0..events.len()).filter(|index| events[*index].call != Call::Get).collect();
    minimize(&mut contradiction, |kept| checker.violates(initial, &weakened(events, kept, &others)));
    minimize(&mut others, |kept| {
        (0..contradiction.len()).all(|left_out| {
            let mut part = contradiction.clone();
            part.remove(left_out);
            !checker.violates(initial, &weakened(events, &part, kept))
        })
    });
    let mut kept = contradiction;
    kept.extend(others);
    kept.sort_unstable();
    kept.dedup();
    kept.into_iter().map(|index| events[index]).collect()
}

/// Only the operations `kept` with their answers, and the `others`, without.
fn weakened(events: &[Event], kept: &[usize], others: &[usize]) -> Vec<Event> {
    let with = kept.iter().map(|&index| events[index]);
    let without = others.iter().filter(|index| kept.binary_search(index).is_err());
    with.chain(without.map(|&index| Event { outcome: Outcome::Open, ..events[index] })).collect()
}

/// Leaves members of `set`, which is in order, out for as long as it `holds`, in halves, quarters, and so on.
fn minimize(set: &mut Vec<usize>, mut holds: impl FnMut(&[usize]) -> bool) {
    let mut step = set.len();
    while step > 0 {
        let mut start = 0;
        while start < set.len() {
            let end = (start + step).min(set.len());
            let without: Vec<_> = [&set[..start], &set[end..]].concat();
            if holds(&without) {
                *set = without;
            } else {
                start = end;
            }
        }
        step /= 2;
    }
}
