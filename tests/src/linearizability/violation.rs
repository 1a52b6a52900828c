//! Why a history has no order, told to a person.

use std::fmt;

use super::{Answer, Call, Event, Outcome, Value};

/// A history that no order explains: the longest prefix that can be explained, and the operation that can't.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Violation {
    /// How many operations had returned, and could be explained, before.
    pub explained: usize,
    /// What the key could have been then, over all orders.
    pub states: Vec<Option<Value>>,
    /// The operation whose answer nothing explains, with its number in the history.
    pub stuck: (usize, Event),
    /// What was in flight when it returned.
    pub in_flight: Vec<(usize, Event)>,
}

impl Violation {
    pub(super) fn new(
        events: &[Event],
        stuck: usize,
        explained: usize,
        states: Vec<Option<Value>>,
        in_flight: Vec<usize>,
    ) -> Self {
        Self {
            explained,
            states,
            stuck: (stuck, events[stuck]),
            in_flight: in_flight.into_iter().map(|index| (index, events[index])).collect(),
        }
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (index, event) = self.stuck;
        writeln!(out, "not linearizable: nothing explains operation {index}, {event}")?;
        write!(out, "  {} operations before it can be explained; the key is then ", self.explained)?;
        for (position, state) in self.states.iter().enumerate() {
            let between = if position == 0 { "" } else { " or " };
            match state {
                Some(value) => write!(out, "{between}{value}")?,
                None => write!(out, "{between}absent")?,
            }
        }
        for (index, event) in &self.in_flight {
            write!(out, "\n  in flight with it: operation {index}, {event}")?;
        }
        Ok(())
    }
}

impl std::error::Error for Violation {}

impl fmt::Display for Event {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.call {
            Call::Get => write!(out, "get")?,
            Call::Put(value) => write!(out, "put {value}")?,
            Call::Delete => write!(out, "delete")?,
        }
        match self.outcome {
            Outcome::Open => write!(out, " (from {}, open)", self.invoked),
            Outcome::Returned { at, answer } => {
                match answer {
                    Answer::Value(Some(value)) => write!(out, " = {value}")?,
                    Answer::Value(None) => write!(out, " = absent")?,
                    Answer::Stored => write!(out, " = stored")?,
                    Answer::Existed(true) => write!(out, " = existed")?,
                    Answer::Existed(false) => write!(out, " = was absent")?,
                }
                write!(out, " (from {} to {at})", self.invoked)
            }
        }
    }
}
