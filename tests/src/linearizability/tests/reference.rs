//! Two other judges of histories: one written as plainly as can be, and one of other people.
//!
//! Always true: neither shares a line with the checker.

use todc_utils::linearizability::WGLChecker;
use todc_utils::linearizability::history::{Action, History};
use todc_utils::specifications::Specification;

use super::*;

/// Tries every order of every choice of open operations.
pub(super) fn by_permutations(initial: Option<Value>, events: &[Event]) -> bool {
    choices(events).iter().any(|chosen| {
        let mut order = Vec::new();
        extend(initial, chosen, &mut order)
    })
}

fn extend(initial: Option<Value>, events: &[Event], order: &mut Vec<usize>) -> bool {
    if order.len() == events.len() {
        return is_right(initial, order.iter().map(|&index| &events[index]));
    }
    for next in 0..events.len() {
        let follows = |other: usize| match events[other].outcome {
            Outcome::Returned { at, .. } => at < events[next].invoked,
            Outcome::Open => false,
        };
        if order.contains(&next) || (0..events.len()).any(|other| !order.contains(&other) && follows(other)) {
            continue;
        }
        order.push(next);
        // Whoever is wrong already need not be tried to the end.
        if is_right(initial, order.iter().map(|&index| &events[index])) && extend(initial, events, order) {
            return true;
        }
        order.pop();
    }
    false
}

fn is_right<'a>(mut value: Option<Value>, order: impl Iterator<Item = &'a Event>) -> bool {
    for event in order {
        let was = value;
        if let Call::Put(put) = event.call {
            value = Some(put);
        }
        if event.call == Call::Delete {
            value = None;
        }
        if let Outcome::Returned { answer, .. } = event.outcome {
            let right = match event.call {
                Call::Get => answer == Answer::Value(was),
                Call::Put(_) => answer == Answer::Stored,
                Call::Delete => answer == Answer::Existed(was.is_some()),
            };
            if !right {
                return false;
            }
        }
    }
    true
}

/// All that returned, with each choice of what was open.
fn choices(events: &[Event]) -> Vec<Vec<Event>> {
    let mut choices = vec![Vec::new()];
    for event in events {
        let without = choices.clone();
        for choice in &mut choices {
            choice.push(*event);
        }
        if event.outcome == Outcome::Open {
            choices.extend(without);
        }
    }
    choices
}

/// Asks todc-utils. It knows no open operations, so each choice of them is a history, in which those that happen return
/// after all others. It knows no initial value either, so a put that precedes all others makes one.
pub(super) fn by_todc(initial: Option<Value>, events: &[Event]) -> bool {
    choices(events).iter().any(|chosen| {
        let mut actions = Vec::new();
        if let Some(value) = initial {
            let first = (Call::Put(value), Some(Answer::Stored));
            actions.push((0, Action::Call(first)));
            actions.push((0, Action::Response(first)));
        }
        let mut moments = Vec::new();
        for (index, event) in chosen.iter().enumerate() {
            let (at, answer) = match event.outcome {
                Outcome::Returned { at, answer } => (at, Some(answer)),
                Outcome::Open => (u64::MAX, None),
            };
            let process = index + 1;
            moments.push((event.invoked, 0, (process, Action::Call((event.call, answer)))));
            moments.push((at, 1, (process, Action::Response((event.call, answer)))));
        }
        moments.sort_by_key(|(time, kind, (process, _))| (*time, *kind, *process));
        actions.extend(moments.into_iter().map(|(_, _, action)| action));
        actions.is_empty() || WGLChecker::<Register>::is_linearizable(History::from_actions(actions))
    })
}

struct Register;

impl Specification for Register {
    type State = Option<Value>;
    type Operation = (Call, Option<Answer>);

    fn init() -> Self::State {
        None
    }

    fn apply((call, answer): &Self::Operation, state: &Self::State) -> (bool, Self::State) {
        let (after, right) = match call {
            Call::Get => (*state, Answer::Value(*state)),
            Call::Put(value) => (Some(*value), Answer::Stored),
            Call::Delete => (None, Answer::Existed(state.is_some())),
        };
        if answer.is_none_or(|answer| answer == right) { (true, after) } else { (false, *state) }
    }
}
