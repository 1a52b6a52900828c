//! Small histories for messages.

use super::{Checker, Event, Failure, Value};

/// A part of the violating history `events` that violates too, and no longer does when any one operation is left out.
/// A history that does not violate comes back whole.
pub fn shrink(initial: Option<Value>, events: &[Event]) -> Vec<Event> {
    let mut checker = Checker::new();
    let mut violates =
        |events: &[Event]| matches!(checker.check(initial, events), Err(Failure::NotLinearizable(_)));
    let mut kept = events.to_vec();
    if !violates(&kept) {
        return kept;
    }
    let mut step = kept.len();
    loop {
        let mut removed = false;
        let mut start = 0;
        while start < kept.len() {
            let mut without = kept.clone();
            without.drain(start..(start + step).min(kept.len()));
            if violates(&without) {
                kept = without;
                removed = true;
            } else {
                start += step;
            }
        }
        if step > 1 {
            step /= 2;
        } else if !removed {
            return kept;
        }
    }
}
