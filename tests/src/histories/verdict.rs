//! Judges the histories of a run.
//!
//! Always true: a run is good only if each key has a linearizable history in each life of the region, beginning absent.

use std::collections::BTreeMap;

use super::complaint::Complaint;
use super::history::{Histories, Operation};
use super::keys::Keys;
use super::trouble::Trouble;
use crate::linearizability::{Checker, Event, Failure, Outcome};

/// What was checked.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Checked {
    /// Histories: keys in lives.
    pub histories: u64,
    /// Operations in all of them. One between two lives counts in both.
    pub events: u64,
    /// Of these, how many may have taken effect or not.
    pub open: u64,
    /// Operations of the longest.
    pub longest: u64,
}

/// Checks every key in each of so many `lives`.
///
/// # Errors
/// [`Trouble`] for the first history that has no order, or for which none was found.
pub fn judge(histories: &Histories, keys: &Keys, lives: usize) -> Result<Checked, Trouble> {
    let mut checker = Checker::new();
    let mut checked = Checked::default();
    for life in 0..lives {
        let mut by_key: BTreeMap<u16, (Vec<Event>, Vec<&Operation>)> = BTreeMap::new();
        for operation in &histories.operations {
            if let Some(event) = operation.event(life) {
                let (events, sources) = by_key.entry(operation.key).or_default();
                events.push(event);
                sources.push(operation);
            }
        }
        for (key, (events, sources)) in by_key {
            checked.histories += 1;
            checked.events += events.len() as u64;
            checked.open += events.iter().filter(|event| event.outcome == Outcome::Open).count() as u64;
            checked.longest = checked.longest.max(events.len() as u64);
            let key = || keys.describe(key);
            match checker.check(None, &events) {
                Ok(()) => {}
                Err(Failure::NotLinearizable(violation)) => {
                    let complaint = Complaint::new(key(), life, &violation, &events, &sources, histories);
                    return Err(Trouble::NotLinearizable(Box::new(complaint)));
                }
                Err(Failure::Undecided(undecided)) => {
                    return Err(Trouble::Undecided { key: key(), life, events: events.len(), undecided });
                }
            }
        }
    }
    Ok(checked)
}
