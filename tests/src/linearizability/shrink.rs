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

/// Operations that are looked at before the last that can be done without.
const WINDOW: usize = 50;

/// The operations of the violating history `events` that contradict each other, and those that these rest on, in the order
/// of `events`. A history that does not violate comes back whole.
pub fn shrink(initial: Option<Value>, events: &[Event]) -> Vec<Event> {
    let mut checker = Checker::new();
    if !checker.violates(initial, events) {
        return events.to_vec();
    }
    let mut checker = Checker::with_steps_max(10 * checker.steps() + PART_STEPS);
    let mut violates =
        |answered: &[usize], others: &[usize]| checker.violates(initial, &weakened(events, answered, others));
    let changes: Vec<_> = (0..events.len()).filter(|&index| events[index].call != Call::Get).collect();
    let recent = window(events, |answered| violates(answered, &changes));
    let (mut got, mut changed): (Vec<_>, Vec<_>) =
        recent.into_iter().partition(|&index| events[index].call == Call::Get);
    // Gets first: what changed the key is often wanted anyway, for others to rest on.
    minimize(&mut got, |kept| violates(&[kept, &changed].concat(), &changes));
    minimize(&mut changed, |kept| violates(&[&got, kept].concat(), &changes));
    let contradiction = [got, changed].concat();
    let mut others = changes;
    let observes = |index: usize| match events[index].outcome {
        Outcome::Returned { answer, .. } => needs(events[index].call, answer) != Needs::Anything,
        Outcome::Open => false,
    };
    minimize(&mut others, |kept| {
        (0..contradiction.len()).filter(|&left_out| observes(contradiction[left_out])).all(|left_out| {
            let part = [&contradiction[..left_out], &contradiction[left_out + 1..]].concat();
            !violates(&part, kept)
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

/// Some of the operations that returned, one after the other, of which it still `holds`: the shortest run that ends as early
/// as can be, and as many again before it, for the one that says most is often just before.
fn window(events: &[Event], mut holds: impl FnMut(&[usize]) -> bool) -> Vec<usize> {
    let returned_at = |index: usize| match events[index].outcome {
        Outcome::Returned { at, .. } => Some((at, index)),
        Outcome::Open => None,
    };
    let mut returned: Vec<_> = (0..events.len()).filter_map(returned_at).collect();
    returned.sort_unstable();
    let returned: Vec<_> = returned.into_iter().map(|(_, index)| index).collect();
    let end = first(returned.len(), |end| holds(&returned[..end]));
    let length = first(end, |length| holds(&returned[end - length..end]));
    returned[end.saturating_sub(2 * length + WINDOW)..end].to_vec()
}

/// The first number up to `max` that `holds`, if those after it do too; `max` is taken to.
fn first(max: usize, mut holds: impl FnMut(usize) -> bool) -> usize {
    let (mut below, mut found) = (0, max);
    while below < found {
        let middle = below + (found - below) / 2;
        if holds(middle) {
            found = middle;
        } else {
            below = middle + 1;
        }
    }
    found
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

/// The operations `answered` with their answers, and the `others` without.
fn weakened(events: &[Event], answered: &[usize], others: &[usize]) -> Vec<Event> {
    let mut is_answered = vec![false; events.len()];
    answered.iter().for_each(|&index| is_answered[index] = true);
    let with = answered.iter().map(|&index| events[index]);
    let without = others.iter().filter(|&&index| !is_answered[index]);
    with.chain(without.map(|&index| Event { outcome: Outcome::Open, ..events[index] })).collect()
}

/// Leaves members of `set` out for as long as it `holds`: in halves, quarters, and so on.
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
