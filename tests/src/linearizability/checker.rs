//! The checker: chooses how to search, and says what was found.
//!
//! Always true: `Ok` means that an order was found, [`Failure::NotLinearizable`] that there is none.

use std::fmt;

use super::demand::Demand;
use super::search::{Bounds, Manner, Moment, Search, Stop};
use super::violation::Violation;
use super::{Call, Event, Outcome, Value};

/// Where a search gives up, unless told otherwise: after some ten seconds, or with millions of configurations between two
/// returns. They double with each operation in flight, so more memory would seldom help.
const BOUNDS: Bounds = Bounds { steps_max: 400_000_000, bytes_max: 256 << 20 };

/// Histories of up to so many operations, and open changes among them, are searched plainly: the search is over before
/// the guided one would have learned what is asked for.
const PLAIN: Limits = Limits { operations_max: 24, open_max: 4 };

/// Classes of open operations that a guided search counts, at first; and if more matter at once, which takes that many
/// different values of clients that died, all of them read later.
const CLASSES: usize = 8;
const CLASSES_MAX: usize = 64;

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
    /// Configurations looked at, and comparisons of two.
    pub steps: u64,
    /// Operations in flight when it gave up, and open ones that could have mattered then.
    pub in_flight: usize,
}

impl fmt::Display for Undecided {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { steps, in_flight } = self;
        write!(out, "undecided: gave up after {steps} steps, with {in_flight} operations in flight")
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
/// Short histories cost some hundred nanoseconds. Long ones cost time in proportion to their length (eight clients that
/// never rest: about a second for a million operations), and no memory but for the order of their moments. What costs more
/// is many operations in flight at once.
pub struct Checker {
    bounds: Bounds,
    /// Taken by the last check.
    steps: u64,
    plain: Limits,
    moments: Vec<Moment>,
    demand: Demand,
    plain_search: Search<0>,
    search: Search<CLASSES>,
    wide: Search<CLASSES_MAX>,
}

impl Default for Checker {
    fn default() -> Self {
        Self::new()
    }
}

impl Checker {
    /// One that gives up after 400 million steps.
    pub fn new() -> Self {
        Self::with_steps_max(BOUNDS.steps_max)
    }

    /// One that gives up after `steps_max` steps: configurations looked at, or compared.
    pub fn with_steps_max(steps_max: u64) -> Self {
        Self {
            bounds: Bounds { steps_max, ..BOUNDS },
            steps: 0,
            plain: PLAIN,
            moments: Vec::new(),
            demand: Demand::default(),
            plain_search: Search::default(),
            search: Search::default(),
            wide: Search::default(),
        }
    }

    /// This one, with other bounds.
    #[cfg(test)]
    pub(super) fn with_bounds(self, steps_max: u64, bytes_max: usize) -> Self {
        Self { bounds: Bounds { steps_max, bytes_max }, ..self }
    }

    /// One that always searches plainly, one that is always guided, and one as it should be.
    #[cfg(test)]
    pub(super) fn of_each_manner() -> [Self; 3] {
        let all = Limits { operations_max: usize::MAX, open_max: usize::MAX };
        let none = Limits { operations_max: 0, open_max: 0 };
        [Self { plain: all, ..Self::new() }, Self { plain: none, ..Self::new() }, Self::new()]
    }

    /// Whether the history `events` of one key, which had the value `initial` before, is linearizable. The order of
    /// `events` does not matter.
    ///
    /// # Errors
    ///
    /// [`Failure::NotLinearizable`] if it is not; [`Failure::Undecided`] if the search gave up: after the steps that
    /// it may take, with more configurations at once than a quarter of a gigabyte holds, or with more than 128 operations in flight that returned later, or more than 64 values of
    /// open puts in doubt at once.
    ///
    /// # Panics
    ///
    /// If an operation returned before it was invoked.
    pub fn check(&mut self, initial: Option<Value>, events: &[Event]) -> Result<(), Failure> {
        self.steps = 0;
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
            Stop::TooHard { steps, in_flight } => Failure::Undecided(Undecided { steps, in_flight }),
            Stop::Classes => Failure::Undecided(Undecided { steps: self.steps, in_flight: CLASSES_MAX }),
        })
    }

    /// How many steps the last check took.
    pub fn steps(&self) -> u64 {
        self.steps
    }

    /// Whether it was proven that no order explains the history.
    pub(super) fn violates(&mut self, initial: Option<Value>, events: &[Event]) -> bool {
        self.steps = 0;
        matches!(self.search(initial, events, true), Err(Stop::Stuck { .. }))
    }

    fn is_plain(&self, events: &[Event]) -> bool {
        let open = |event: &&Event| event.outcome == Outcome::Open && event.call != Call::Get;
        events.len() <= self.plain.operations_max && events.iter().filter(open).count() <= self.plain.open_max
    }

    fn search(&mut self, initial: Option<Value>, events: &[Event], looks_ahead: bool) -> Result<(), Stop> {
        self.order_moments(events);
        let (moments, bounds) = (self.moments.as_slice(), self.bounds);
        if self.is_plain(events) {
            let result = self.plain_search.run(initial, events, moments, bounds, Manner::Plain);
            self.steps += self.plain_search.steps();
            return result;
        }
        self.demand.learn(initial, events);
        let manner = Manner::Guided { demand: &mut self.demand, looks_ahead };
        let result = self.search.run(initial, events, moments, bounds, manner);
        self.steps += self.search.steps();
        if result != Err(Stop::Classes) {
            return result;
        }
        self.demand.learn(initial, events);
        let manner = Manner::Guided { demand: &mut self.demand, looks_ahead };
        let result = self.wide.run(initial, events, moments, bounds, manner);
        self.steps += self.wide.steps();
        result
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
