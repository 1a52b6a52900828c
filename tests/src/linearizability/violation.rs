//! What cannot be explained, told to a person.
//!
//! Always true: the operations that had returned before the one that is stuck can be put in order, all of them; with it
//! they cannot.

use std::fmt;

use super::timeline::draw;
use super::{Answer, Call, Event, Outcome, Value};

/// How many of the operations that returned last are shown: those of a handful of clients.
const RECENT_MAX: usize = 6;

/// A history that no order explains: the longest prefix that can be explained, and the operation whose answer then can't.
///
/// What is wrong may have happened earlier; [`shrink`](super::shrink()) finds what contradicts what.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Violation {
    /// The number in the history of the operation that is stuck: nothing explains its answer.
    pub stuck: usize,
    /// How many operations had returned before. They can be explained.
    pub explained: usize,
    /// What the key may have had then, over all orders that explain them.
    pub states: Vec<Option<Value>>,
    /// Whether it may have had a value that no get returned, besides.
    pub or_unread: bool,
    /// The operation that is stuck and those around it.
    pub around: Vec<Neighbour>,
}

/// An operation that is told of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Neighbour {
    /// Its number in the history.
    pub number: usize,
    /// The operation.
    pub event: Event,
    /// Why it is told of.
    pub role: Role,
}

/// Why an operation is told of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Role {
    /// Nothing explains its answer.
    Stuck,
    /// It was in flight when the one that is stuck returned.
    InFlight,
    /// It put the value that the one that is stuck got.
    Source,
    /// It was one of the last to return before.
    Recent,
}

impl Violation {
    /// With the key's `states` before operation `stuck`; `unread` among them stands for all that no get returned.
    pub(super) fn new(
        events: &[Event],
        stuck: usize,
        explained: usize,
        mut states: Vec<Option<Value>>,
        unread: Option<Value>,
        in_flight: &[usize],
    ) -> Self {
        let all = states.len();
        states.retain(|state| unread.is_none() || *state != unread);
        let or_unread = states.len() < all;
        let returned_at = |event: &Event| match event.outcome {
            Outcome::Returned { at, .. } => Some(at),
            Outcome::Open => None,
        };
        let end = returned_at(&events[stuck]);
        let mut recent: Vec<_> = (0..events.len())
            .filter(|&number| number != stuck && !in_flight.contains(&number))
            .filter_map(|number| returned_at(&events[number]).map(|at| (at, number)))
            .filter(|(at, _)| Some(*at) <= end)
            .collect();
        recent.sort_unstable();
        let recent = &recent[recent.len().saturating_sub(RECENT_MAX)..];
        let role = |number: usize| {
            if number == stuck {
                Some(Role::Stuck)
            } else if is_source(&events[number], &events[stuck]) {
                Some(Role::Source)
            } else if in_flight.contains(&number) {
                Some(Role::InFlight)
            } else {
                recent.iter().any(|(_, one)| *one == number).then_some(Role::Recent)
            }
        };
        let neighbour = |number| role(number).map(|role| Neighbour { number, event: events[number], role });
        let around = (0..events.len()).filter_map(neighbour).collect();
        Self { stuck, explained, states, or_unread, around }
    }
}

/// Whether `event` put the value that `get` got.
fn is_source(event: &Event, get: &Event) -> bool {
    match (event.call, get.outcome) {
        (Call::Put(put), Outcome::Returned { answer: Answer::Value(Some(got)), .. }) => put == got,
        _ => false,
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { stuck, explained, states, or_unread, around } = self;
        writeln!(out, "not linearizable: nothing explains the answer of operation {stuck}.")?;
        write!(out, "The {explained} that returned before it can be explained; the key is then ")?;
        for (position, state) in states.iter().enumerate() {
            let between = if position == 0 { "" } else { " or " };
            match state {
                Some(value) => write!(out, "{between}{value}")?,
                None => write!(out, "{between}absent")?,
            }
        }
        if *or_unread {
            let between = if states.is_empty() { "" } else { " or " };
            write!(out, "{between}some value that no get returned")?;
        }
        write!(out, ".")?;
        let lines: Vec<_> = around.iter().map(|one| (one.number, one.event, one.role.remark())).collect();
        draw(out, &lines)
    }
}

impl std::error::Error for Violation {}

impl Role {
    fn remark(self) -> &'static str {
        match self {
            Self::Stuck => "◀ cannot be explained",
            Self::InFlight => "in flight then",
            Self::Source => "put what was got",
            Self::Recent => "",
        }
    }
}
