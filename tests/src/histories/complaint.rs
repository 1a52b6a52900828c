//! A history that no order explains, told to a person.
//!
//! Always true: it has only operations that are needed for the contradiction, each with the record of the log that it is
//! from.

use std::fmt::{self, Write};
use std::sync::mpsc::channel;
use std::time::Duration;

use super::history::{Histories, Operation};
use super::record::Ask;
use crate::linearizability::{Answer, Call, Event, Neighbour, Outcome, Violation, check, shrink};

/// Time for making a history small. Of most it takes a second; with many operations open, it can be hours.
const SHRINK: Duration = Duration::from_secs(30);

/// Nobody reads more of where operations are from.
const TOLD_MAX: usize = 40;

/// A history that no order explains.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Complaint {
    /// The key, in words.
    pub key: String,
    /// Which life of the region, the first being 0.
    pub life: usize,
    /// Operations of the key in that life.
    pub events: usize,
    /// Those that contradict each other.
    pub shrunk: Vec<Event>,
    /// The same, drawn, and where they are from.
    pub text: String,
}

impl Complaint {
    /// About the `events` of a key in a life, which are these `operations` of `all`.
    pub(super) fn new(
        key: String,
        life: usize,
        violation: &Violation,
        events: &[Event],
        operations: &[&Operation],
        all: &Histories,
    ) -> Self {
        let Some(shrunk) = shrink_in_time(until(events, violation.stuck)) else {
            let mut text = violation.to_string();
            for Neighbour { number, .. } in &violation.around {
                let _ = write!(text, "\n  operation {number}: {}", operations[*number]);
            }
            text += "\nToo hard to be made small; the logs have all of it.";
            return Self { key, life, events: events.len(), shrunk: Vec::new(), text };
        };
        let small = renumbered(&shrunk);
        let mut text = match check(None, &small) {
            Ok(()) => {
                "the part that was made small is linearizable, which is a fault of the checker".to_owned()
            }
            Err(violation) => violation.to_string(),
        };
        for (number, (event, small)) in shrunk.iter().zip(&small).enumerate().take(TOLD_MAX) {
            // One that returned too late to matter was opened.
            let is_source = |one: &Event| (one.call, one.invoked) == (event.call, event.invoked);
            let Some(at) = events.iter().position(is_source) else { continue };
            let _ = write!(text, "\n  operation {number}: {}", operations[at]);
            if let Call::Put(value) = small.call {
                let _ = write!(text, "; its value is called {value} here");
            }
        }
        // A value that nobody can have put there was put somewhere else, or by a call that says that it did nothing.
        for value in small.iter().filter_map(got).filter(|value| *value > shrunk.len() as u64) {
            let puts = all.operations.iter().filter(|operation| match operation.ask {
                Ask::Put(number) => number.bits() == value,
                Ask::Get | Ask::Delete => false,
            });
            let words: Vec<_> =
                puts.map(|operation| format!("{operation}, life {:?}", operation.lives)).collect();
            let words = if words.is_empty() { "nobody".to_owned() } else { words.join("; ") };
            let _ = write!(text, "\n  {value} is put by {words}");
        }
        Self { key, life, events: events.len(), shrunk, text }
    }
}

/// What is known when operation `stuck` returns: that contradicts itself already.
fn until(events: &[Event], stuck: usize) -> Vec<Event> {
    let Outcome::Returned { at: end, .. } = events[stuck].outcome else { return events.to_vec() };
    let begun = events.iter().filter(|event| event.invoked <= end);
    let known = begun.map(|event| match event.outcome {
        Outcome::Returned { at, .. } if at > end => Event { outcome: Outcome::Open, ..*event },
        _ => *event,
    });
    known.collect()
}

/// The few operations that contradict each other, unless they take too long to find.
fn shrink_in_time(events: Vec<Event>) -> Option<Vec<Event>> {
    let (tell, told) = channel();
    // If nobody listens any more, it ends with the program.
    std::thread::spawn(move || drop(tell.send(shrink(None, &events))));
    told.recv_timeout(SHRINK).ok()
}

/// What a get got.
fn got(event: &Event) -> Option<u64> {
    match event.outcome {
        Outcome::Returned { answer: Answer::Value(value), .. } => value,
        _ => None,
    }
}

/// Small numbers for values, in the order of their puts, and times from 0: a person can read them.
fn renumbered(events: &[Event]) -> Vec<Event> {
    let first = events.iter().map(|event| event.invoked).min().unwrap_or(0);
    let mut puts: Vec<_> = events
        .iter()
        .filter_map(|event| match event.call {
            Call::Put(value) => Some((event.invoked, value)),
            Call::Get | Call::Delete => None,
        })
        .collect();
    puts.sort_unstable();
    // What nobody put keeps its number.
    let small = |value: u64| puts.iter().position(|(_, put)| *put == value).map_or(value, |at| at as u64 + 1);
    let renumber = |event: &Event| Event {
        call: match event.call {
            Call::Put(value) => Call::Put(small(value)),
            other => other,
        },
        invoked: event.invoked - first,
        outcome: match event.outcome {
            Outcome::Returned { at, answer } => {
                let answer = match answer {
                    Answer::Value(value) => Answer::Value(value.map(small)),
                    other => other,
                };
                Outcome::Returned { at: at - first, answer }
            }
            Outcome::Open => Outcome::Open,
        },
    };
    events.iter().map(renumber).collect()
}

impl fmt::Display for Complaint {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { key, life, events, shrunk, text } = self;
        write!(out, "{key}, life {life} of the region, ")?;
        if !shrunk.is_empty() {
            write!(out, "{} of ", shrunk.len())?;
        }
        write!(out, "{events} operations: {text}")
    }
}

impl std::error::Error for Complaint {}
