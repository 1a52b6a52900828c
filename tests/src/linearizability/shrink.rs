//! Finds the few operations of a history that contradict each other.
//!
//! Always true: what is left violates, for a reason that the whole history has.
//!
//! Leaving operations out is not enough. Without the put of a value that a get returned, the get alone violates; but that
//! is not what was wrong. What a history proves is weakened, and never changed, when a get is left out, and when the
//! answer of another operation is forgotten so that it may happen at any time or not at all. So the *contradiction* is
//! found first: the fewest operations whose answers, with all other changes open, have no order. Then those of the others
//! are added that its answers rest on (without them, some of the answers would violate without the rest), and the puts of
//! values that were got too early.

use super::register::{Needs, needs};
use super::{Answer, Call, Checker, Event, Outcome, Value};

/// Steps that a part of a history may take beyond ten times those of the whole. Parts that are not decided by then are not
/// gone into.
const PART_STEPS: u64 = 100_000;

/// The operations of the violating history `events` that contradict each other, and those that these rest on, in the order
/// of `events`. A history that does not violate comes back whole.
pub fn shrink(initial: Option<Value>, events: &[Event]) -> Vec<Event> {
    let mut checker = Checker::new();
    if !checker.violates(initial, events) {
        return events.to_vec();
    }
    let mut checker = Checker::with_steps_max(10 * checker.steps() + PART_STEPS);
    let is_get = |index: &usize| events[*index].call == Call::Get;
    let (gets, changes): (Vec<_>, Vec<_>) = (0..events.len()).partition(is_get);
    let is_returned = |index: &usize| events[*index].outcome != Outcome::Open;
    // Gets first: what changed the key is often wanted anyway, for others to rest on.
    let mut contradiction: Vec<_> =
        [gets, changes.clone()].concat().into_iter().filter(is_returned).collect();
    minimize(&mut contradiction, |kept| checker.violates(initial, &weakened(events, kept, &changes)));
    let mut others = changes;
    let observes = |index: usize| match events[index].outcome {
        Outcome::Returned { answer, .. } => needs(events[index].call, answer) != Needs::Anything,
        Outcome::Open => false,
    };
    minimize(&mut others, |kept| {
        (0..contradiction.len()).filter(|&left_out| observes(contradiction[left_out])).all(|left_out| {
            let part = [&contradiction[..left_out], &contradiction[left_out + 1..]].concat();
            !checker.violates(initial, &weakened(events, &part, kept))
        })
    });
    let mut kept = [contradiction, others].concat();
    for place in 0..kept.len() {
        kept.extend(source(initial, events, &kept, kept[place]));
    }
    kept.sort_unstable();
    kept.dedup();
    kept.into_iter().map(|index| events[index]).collect()
}

/// A put of what operation `got` got, if none is among those `kept`: a person asks for it, and it may have come too late.
fn source(initial: Option<Value>, events: &[Event], kept: &[usize], got: usize) -> Option<usize> {
    let Outcome::Returned { answer: Answer::Value(state @ Some(value)), .. } = events[got].outcome else {
        return None;
    };
    let is_source = |index: &usize| events[*index].call == Call::Put(value);
    if state == initial || kept.iter().any(is_source) {
        return None;
    }
    (0..events.len()).filter(is_source).min_by_key(|&index| events[index].invoked)
}

/// The operations `kept` with their answers, and the `others` without.
fn weakened(events: &[Event], kept: &[usize], others: &[usize]) -> Vec<Event> {
    let mut is_kept = vec![false; events.len()];
    kept.iter().for_each(|&index| is_kept[index] = true);
    let with = kept.iter().map(|&index| events[index]);
    let without = others.iter().filter(|&&index| !is_kept[index]);
    with.chain(without.map(|&index| Event { outcome: Outcome::Open, ..events[index] })).collect()
}

/// Leaves members of `set` out for as long as it `holds`: in halves, quarters, and so on, those in front first.
fn minimize(set: &mut Vec<usize>, mut holds: impl FnMut(&[usize]) -> bool) {
    let mut step = set.len();
    while step > 0 {
        let mut start = 0;
        while start < set.len() {
            let end = (start + step).min(set.len());
            let without = [&set[..start], &set[end..]].concat();
            if holds(&without) {
                *set = without;
            } else {
                start = end;
            }
        }
        step /= 2;
    }
}
