//! The search for an order that explains a history.
//!
//! Always true: after each return that was looked at, the frontier holds every way in which the operations that have
//! returned so far can be ordered, as far as it matters for what follows.
//!
//! This is Wing and Gong's search with Lowe's two additions ("Testing for linearizability", 2017): configurations that
//! were reached before are not looked at again, and an operation is placed just in time, when its own return, or that of
//! an operation behind it in the order, calls for it. The history is read once, in time. A configuration is the set of
//! operations in flight that took effect already, and the key's value; the operations that returned took effect in all of
//! them, so they are not stored, and memory does not grow with the history.

use std::collections::HashSet;
use std::fmt;

use super::violation::Violation;
use super::{Answer, Call, Event, Outcome, Value, apply};

/// Configurations looked at before a search gives up, unless told otherwise.
const STATES_MAX: u64 = 50_000_000;

/// Why a history was not accepted.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Failure {
    /// There is no order that explains it.
    NotLinearizable(Violation),
    /// The search gave up.
    Undecided(Undecided),
}

impl fmt::Display for Failure {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotLinearizable(violation) => violation.fmt(out),
            Self::Undecided(undecided) => undecided.fmt(out),
        }
    }
}

impl std::error::Error for Failure {}

/// The search gave up: it says nothing of the history.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Undecided {
    /// Configurations looked at.
    pub states: u64,
    /// Operations in flight at one moment, open ones too.
    pub in_flight: usize,
}

impl fmt::Display for Undecided {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { states, in_flight } = self;
        write!(out, "undecided after {states} configurations, with {in_flight} operations in flight at once")
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Configuration {
    effective: u128,
    state: Option<Value>,
}

#[derive(Clone, Copy)]
struct InFlight {
    event: usize,
    slot: u32,
    call: Call,
    answer: Option<Answer>,
}

impl InFlight {
    fn bit(&self) -> u128 {
        1 << self.slot
    }
}

/// Checks histories, one after the other, and keeps its memory between them.
pub struct Checker {
    states_max: u64,
    /// (time, is a return, event)
    moments: Vec<(u64, bool, usize)>,
    in_flight: Vec<InFlight>,
    frontier: Vec<Configuration>,
    work: Vec<Configuration>,
    seen: HashSet<Configuration>,
}

impl Default for Checker {
    fn default() -> Self {
        Self::new()
    }
}

impl Checker {
    /// One that gives up after fifty million configurations.
    pub fn new() -> Self {
        Self::with_states_max(STATES_MAX)
    }

    /// One that gives up after `states_max` configurations.
    pub fn with_states_max(states_max: u64) -> Self {
        Self {
            states_max,
            moments: Vec::new(),
            in_flight: Vec::new(),
            frontier: Vec::new(),
            work: Vec::new(),
            seen: HashSet::new(),
        }
    }

    /// Whether the history `events` of one key, which had the value `initial` before, is linearizable.
    ///
    /// # Errors
    ///
    /// [`Failure::NotLinearizable`] if it is not; [`Failure::Undecided`] if the search gave up.
    ///
    /// # Panics
    ///
    /// If an operation returned before it was invoked.
    pub fn check(&mut self, initial: Option<Value>, events: &[Event]) -> Result<(), Failure> {
        self.moments.clear();
        for (index, event) in events.iter().enumerate() {
            self.moments.push((event.invoked, false, index));
            if let Outcome::Returned { at, .. } = event.outcome {
                assert!(at >= event.invoked, "event {index} returned before it was invoked: {event:?}");
                self.moments.push((at, true, index));
            }
        }
        self.moments.sort_unstable();
        self.in_flight.clear();
        self.frontier.clear();
        self.frontier.push(Configuration { effective: 0, state: initial });
        let mut slots_used = 0u128;
        let mut states = 0;
        let mut returned = 0;
        for position in 0..self.moments.len() {
            let (_, is_return, index) = self.moments[position];
            let Event { call, outcome, .. } = events[index];
            if !is_return {
                let answer = match outcome {
                    Outcome::Returned { answer, .. } => Some(answer),
                    Outcome::Open if call == Call::Get => continue,
                    Outcome::Open => None,
                };
                let slot = slots_used.trailing_ones();
                if slot == u128::BITS {
                    return Err(Failure::Undecided(Undecided { states, in_flight: slot as usize + 1 }));
                }
                slots_used |= 1 << slot;
                self.in_flight.push(InFlight { event: index, slot, call, answer });
                continue;
            }
            let place = self.in_flight.iter().position(|one| one.event == index).expect("it was invoked");
            let bit = self.in_flight[place].bit();
            self.work.clear();
            self.seen.clear();
            let mut next = Vec::new();
            for configuration in std::mem::take(&mut self.frontier) {
                self.reach(configuration);
            }
            let before = self.seen.clone();
            while let Some(configuration) = self.work.pop() {
                states += 1;
                if states > self.states_max {
                    return Err(Failure::Undecided(Undecided { states, in_flight: self.in_flight.len() }));
                }
                if configuration.effective & bit != 0 {
                    next.push(Configuration { effective: configuration.effective & !bit, ..configuration });
                    continue;
                }
                for candidate in 0..self.in_flight.len() {
                    let one = self.in_flight[candidate];
                    if configuration.effective & one.bit() != 0 {
                        continue;
                    }
                    let (state, answer) = apply(configuration.state, one.call);
                    let fits = match one.answer {
                        Some(expected) => expected == answer,
                        None => state != configuration.state,
                    };
                    if fits {
                        self.reach(Configuration { effective: configuration.effective | one.bit(), state });
                    }
                }
            }
            if next.is_empty() {
                let mut states: Vec<_> = before.iter().map(|one| one.state).collect();
                states.sort_unstable();
                states.dedup();
                let pending = self.in_flight.iter().filter(|one| one.event != index).map(|one| one.event);
                return Err(Failure::NotLinearizable(Violation::new(
                    events,
                    index,
                    returned,
                    states,
                    pending.collect(),
                )));
            }
            self.frontier = next;
            slots_used &= !bit;
            self.in_flight.swap_remove(place);
            returned += 1;
        }
        Ok(())
    }

    /// Takes note of a configuration, in which all that changes nothing and fits takes effect at once.
    fn reach(&mut self, mut configuration: Configuration) {
        for one in &self.in_flight {
            if let Some(expected) = one.answer
                && apply(configuration.state, one.call) == (configuration.state, expected)
            {
                configuration.effective |= one.bit();
            }
        }
        if self.seen.insert(configuration) {
            self.work.push(configuration);
        }
    }
}
