//! What was asked and answered in a run.
//!
//! Always true: a call whose fate is not known is open, and a call that certainly did nothing is in no history. A restart
//! of the server begins a new life, in which every key is absent; a call belongs to the life in which it ended.

use super::region::Key;
use super::story::{Ask, Call};
use super::violation::{Promise, Violation};
use crate::linearizability::{self, Answer, Checker, Event, Outcome};

/// A call's fate.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Fate {
    /// Under way, or ended without anybody knowing.
    Open,
    /// Certainly nothing happened.
    Nothing,
    /// It returned.
    Returned(u64, Answer),
}

/// A call, as its user saw it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Record {
    pub(super) client: usize,
    pub(super) call: Call,
    pub(super) value: u64,
    pub(super) life: u32,
    pub(super) invoked: u64,
    pub(super) fate: Fate,
}

/// All calls of a run.
#[derive(Clone, Default, Debug)]
pub(super) struct History {
    pub(super) records: Vec<Record>,
}

impl History {
    /// Checks every key of every life. `initial` says what keys held at the beginning.
    pub(super) fn check(
        &self,
        checker: &mut Checker,
        keys: &[(Key, Option<u64>)],
        lives: u32,
        events: &mut Vec<Event>,
    ) -> Result<(), Violation> {
        for life in 0..lives {
            for &(key, initial) in keys {
                let initial = if life == 0 { initial } else { None };
                events.clear();
                let of_key = |record: &&Record| record.life == life && record.call.key == key;
                events.extend(self.records.iter().filter(of_key).filter_map(event));
                if let Err(violation) = checker.check(initial, events) {
                    let detail = format!("{key:?}: {violation}");
                    return Err(Violation::new(Promise::Linearizable, detail));
                }
            }
        }
        Ok(())
    }
}

fn event(record: &Record) -> Option<Event> {
    let call = match record.call.ask {
        Ask::Get => linearizability::Call::Get,
        Ask::Put => linearizability::Call::Put(record.value),
        Ask::Delete => linearizability::Call::Delete,
    };
    let outcome = match record.fate {
        Fate::Nothing => return None,
        Fate::Open => Outcome::Open,
        Fate::Returned(at, answer) => Outcome::Returned { at, answer },
    };
    Some(Event { call, invoked: record.invoked, outcome })
}
