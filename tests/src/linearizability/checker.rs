//! The checker: chooses how to search, and says what was found.
//!
//! Always true: `Ok` means that an order was found, [`Failure::NotLinearizable`] that there is none.

use std::fmt;

use super::demand::Demand;
use super::search::{Manner, Moment, Search, Stop};
use super::violation::Violation;
use super::{Call, Event, Outcome, Value};

/// Configurations looked at before a search gives up, unless told otherwise: some ten seconds.
const STATES_MAX: u64 = 50_000_000;

/// Histories of up to so many operations, and open changes among them, are searched plainly: the search is over before
/// the guided one would have learned what is asked for.
const PLAIN: Limits = Limits { operations_max: 24, open_max: 4 };

/// Classes of open operations that a guided search counts, at first; and if more matter at once, which takes that many
/// different values of clients that died, all of them read later.
const CLASSES: usize = 8;
const CLASSES_MAX: usize = 256;

/// Why a history was not accepted.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Failure {
    /// No order explains it.
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

/// The search gave up. That says nothing of the history.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Undecided {
    /// Configurations looked at.
    pub states: u64,
    /// Operations in flight when it gave up, and open ones that could have mattered then.
    pub in_flight: usize,
}

impl fmt::Display for Undecided {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { states, in_flight } = self;
        write!(out, "undecided: gave up after {states} configurations, with {in_flight} operations in flight")
    }
}

impl std::error::Error for Undecided {}

#[derive(Clone, Copy)]
struct Limits {
    operations_max: usize,
    open_max: usize,
}

/// Checks histories, one after the other, and keeps its memory between them.
///
/// Short histories cost some hundred nanoseconds. Long ones cost time by the number of operations in flight at once, not
/// by their length, and no memory but for the order of their moments.
pub struct Checker {
    states_max: u64,
    plain: Limits,
    moments: Vec<Moment>,
    demand: Demand,
    plain_search: Search<0>,
    search: Search<CLASSES>,
    wide_search: Search<CLASSES_MAX>,
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
            plain: PLAIN,
            moments: Vec::new(),
            demand: Demand::default(),
            plain_search: Search::default(),
            search: Search::default(),
            wide_search: Search::default(),
        }
    }

    /// One that searches short histories plainly, as it should, and one that is guided on them too.
    #[cfg(test)]
    pub(super) fn one_of_each_manner() -> [Self; 2] {
        [Self::new(), Self { plain: Limits { operations_max: 0, open_max: 0 }, ..Self::new() }]
    }

    /// Whether the history `events` of one key, which had the value `initial` before, is linearizable. The order of
    /// `events` does not matter.
    ///
    /// # Errors
    ///
    /// [`Failure::NotLinearizable`] if it is not; [`Failure::Undecided`] if the search gave up: after the configurations
    /// that it may look at, or with more than 128 operations in flight that returned later, or more than 256 values of
    /// open puts in doubt at once.
    ///
    /// # Panics
    ///
    /// If an operation returned before it was invoked.
    pub fn check(&mut self, initial: Option<Value>, events: &[Event]) -> Result<(), Failure> {
        let Err(mut stop) = self.search(initial, events, true) else { return Ok(()) };
        if matches!(stop, Stop::Stuck { .. }) && !self.is_plain(events) {
            // Again without looking ahead, which sees what is wrong before it happens. If that is too hard, what was
            // found stands, with a less telling place.
            if let Err(exact @ Stop::Stuck { .. }) = self.search(initial, events, false) {
                stop = exact;
            }
        }
        Err(match stop {
            Stop::Stuck { event, explained, states, in_flight } => {
                let unread = if self.is_plain(events) { None } else { self.demand.unread() };
                Failure::NotLinearizable(Violation::new(events, event, explained, states, unread, &in_flight))
            }
            Stop::TooHard { states, in_flight } => Failure::Undecided(Undecided { states, in_flight }),
            Stop::Classes => Failure::Undecided(Undecided { states: 0, in_flight: CLASSES_MAX }),
        })
    }

    /// Whether it was proven that no order explains the history.
    pub(super) fn violates(&mut self, initial: Option<Value>, events: &[Event]) -> bool {
        matches!(self.search(initial, events, true), Err(Stop::Stuck { .. }))
    }

    fn is_plain(&self, events: &[Event]) -> bool {
        let open = |event: &&Event| event.outcome == Outcome::Open && event.call != Call::Get;
        events.len() <= self.plain.operations_max && events.iter().filter(open).count() <= self.plain.open_max
    }

    fn search(&mut self, initial: Option<Value>, events: &[Event], looks_ahead: bool) -> Result<(), Stop> {
        self.order_moments(events);
        let (moments, states_max) = (self.moments.as_slice(), self.states_max);
        if self.is_plain(events) {
            return self.plain_search.run(initial, events, moments, states_max, Manner::Plain);
        }
        self.demand.learn(initial, events);
        let manner = Manner::Guided { demand: &mut self.demand, looks_ahead };
        let result = self.search.run(initial, events, moments, states_max, manner);
        if result != Err(Stop::Classes) {
            return result;
        }
        self.demand.learn(initial, events);
        let manner = Manner::Guided { demand: &mut self.demand, looks_ahead };
        self.wide_search.run(initial, events, moments, states_max, manner)
    }

    fn order_moments(&mut self, events: &[Event]) {
        self.moments.clear();
        for (index, event) in events.iter().enumerate() {
            let index = u32::try_from(index).expect("a history of fewer than 2^32 operations");
            self.moments.push(Moment { time: event.invoked, is_return: false, event: index });
            if let Outcome::Returned { at, .. } = event.outcome {
                assert!(at >= event.invoked, "operation {index} returned before it was invoked: {event:?}");
                self.moments.push(Moment { time: at, is_return: true, event: index });
            }
        }
        self.moments.sort_unstable();
    }
}
