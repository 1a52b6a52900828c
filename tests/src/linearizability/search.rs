//! The search for an order that explains a history.
//!
//! Always true: after each return that was looked at, the frontier holds every way in which the operations that have
//! returned so far can be ordered, as far as it matters for what follows. If it is empty, there is none.
//!
//! This is Wing and Gong's search with the two improvements of Lowe ("Testing for linearizability", 2017): a configuration
//! that was reached before is not looked at again, and operations are placed just in time. The history is read once, in
//! the order of its moments:
//!
//! ```text
//! invocation of A   A is in flight, and may be placed from now on
//! return of A       each configuration that has not placed A places others in flight, in every order, until it has
//! ```
//!
//! Just in time is enough: an operation placed later than it must be sees no other state than it would have seen, since
//! nothing is placed in between. One thing is placed early: an operation whose answer is right here and nowhere else, and
//! which then changes nothing (a get; a delete that found nothing). It is worth nothing later, and any order that goes on
//! from here without it stays right if it is moved here. Not so a put of the value that the key has: it may be wanted
//! after another.
//!
//! There are two ways to treat open operations. The *plain* one places them like others, with any answer; it is right for
//! whatever [`apply`] says, and quick on short histories. The *guided* one is told by [`Demand`] what can matter.

use super::configuration::{Configuration, Reached};
use super::demand::{Class, Demand};
use super::register::{Needs, needs};
use super::{Answer, Call, Event, Outcome, Value, apply};

/// The column of the class of values that no get returned. It comes first where any value will do, and then alone.
const UNREAD: usize = 0;

/// When something was invoked or returned. At one time invocations come first, since operations that touch overlap.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Moment {
    pub(super) time: u64,
    pub(super) is_return: bool,
    /// Which of the history.
    pub(super) event: u32,
}

/// Why a search ended without an order.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Stop {
    /// The return that no configuration can explain.
    Stuck {
        /// The event that returned.
        event: usize,
        /// Operations that had returned before.
        explained: usize,
        /// What the key could have been before, in order, each once.
        states: Vec<Option<Value>>,
        /// Other events in flight.
        in_flight: Vec<usize>,
    },
    /// More classes of open operations mattered at once than were provided for.
    Classes,
    /// More operations than bits, more configurations than were allowed, or than there is room for.
    TooHard {
        /// Steps taken.
        steps: u64,
        /// Operations in flight at the time.
        in_flight: usize,
    },
}

/// Where a search gives up.
#[derive(Clone, Copy)]
pub(super) struct Bounds {
    /// Steps: configurations looked at, and comparisons of two.
    pub(super) steps_max: u64,
    /// Room for the configurations between two returns.
    pub(super) bytes_max: usize,
}

/// How a search goes about open operations.
pub(super) enum Manner<'a> {
    /// By [`apply`] alone.
    Plain,
    /// By what is asked for.
    Guided {
        /// What is.
        demand: &'a mut Demand,
        /// Whether to give up on a configuration that a later get will make impossible.
        looks_ahead: bool,
    },
}

#[derive(Clone, Copy)]
struct InFlight {
    event: u32,
    bit: u128,
    call: Call,
    /// `None` if any will do.
    answer: Option<Answer>,
    /// The state that it met, if its answer says so, and that it left as it was.
    rests_on: Option<Option<Value>>,
}

/// The memory of searches, kept between them. `CLASSES` is how many classes of open operations a guided search can count
/// at once; a plain one counts none.
pub(super) struct Search<const CLASSES: usize> {
    in_flight: Vec<InFlight>,
    /// Bits in use, and those of open operations among them.
    bits: u128,
    open: u128,
    /// Open operations in flight that the bits do not stand for.
    crowds: [Option<Crowd>; CLASSES],
    frontier: Vec<Configuration<CLASSES>>,
    next: Vec<Configuration<CLASSES>>,
    reached: Reached<CLASSES>,
    /// Configurations looked at.
    visited: u64,
    /// Comparisons that had been made when the search began.
    compared_before: u64,
    bounds: Bounds,
}

/// The open operations of a class that were invoked so far.
#[derive(Clone, Copy)]
struct Crowd {
    class: Class,
    count: u32,
}

impl<const CLASSES: usize> Default for Search<CLASSES> {
    fn default() -> Self {
        Self {
            in_flight: Vec::new(),
            bits: 0,
            open: 0,
            crowds: [None; CLASSES],
            frontier: Vec::new(),
            next: Vec::new(),
            reached: Reached::default(),
            visited: 0,
            compared_before: 0,
            bounds: Bounds { steps_max: 0, bytes_max: 0 },
        }
    }
}

impl<const CLASSES: usize> Search<CLASSES> {
    /// Looks for an order of `events`, whose `moments` are in order. The key began with `initial`.
    pub(super) fn run(
        &mut self,
        initial: Option<Value>,
        events: &[Event],
        moments: &[Moment],
        bounds: Bounds,
        mut manner: Manner<'_>,
    ) -> Result<(), Stop> {
        self.in_flight.clear();
        self.bits = 0;
        self.open = 0;
        self.crowds = [None; CLASSES];
        self.visited = 0;
        self.compared_before = self.reached.compared();
        self.bounds = bounds;
        let initial = match &manner {
            Manner::Plain => initial,
            Manner::Guided { demand, .. } => demand.stand_in_for_state(initial),
        };
        self.frontier.clear();
        self.frontier.push(Configuration::new(initial));
        let mut explained = 0;
        for moment in moments {
            if moment.is_return {
                self.take_return(moment, explained, &manner)?;
                explained += 1;
            } else {
                self.take_invocation(moment, &events[moment.event as usize], &mut manner)?;
            }
        }
        Ok(())
    }

    fn take_invocation(
        &mut self,
        moment: &Moment,
        event: &Event,
        manner: &mut Manner<'_>,
    ) -> Result<(), Stop> {
        let bit = self.bits.wrapping_add(1) & !self.bits;
        if bit == 0 {
            return Err(self.too_hard());
        }
        let mut call = event.call;
        let answer = match (event.outcome, manner) {
            (Outcome::Returned { answer, .. }, Manner::Plain) => Some(answer),
            (Outcome::Returned { answer, .. }, Manner::Guided { demand, .. }) => {
                call = demand.stand_in(call);
                Some(answer)
            }
            (Outcome::Open, Manner::Plain) => {
                self.open |= bit;
                None
            }
            (Outcome::Open, Manner::Guided { demand, .. }) => {
                return match demand.admit(call, event.invoked) {
                    Some(class) => self.join_crowd(class),
                    None => Ok(()),
                };
            }
        };
        let rests_on = match answer.map(|answer| needs(call, answer)) {
            Some(Needs::State(state)) if apply(state, call).0 == state => Some(state),
            _ => None,
        };
        self.bits |= bit;
        self.in_flight.push(InFlight { event: moment.event, bit, call, answer, rests_on });
        Ok(())
    }

    fn join_crowd(&mut self, class: Class) -> Result<(), Stop> {
        let (first, end) = if class.is_unread { (UNREAD, UNREAD + 1) } else { (UNREAD + 1, CLASSES) };
        let mut free = None;
        for column in first..end {
            match &mut self.crowds[column] {
                Some(crowd) if crowd.class == class => {
                    crowd.count += 1;
                    return Ok(());
                }
                Some(_) => {}
                None => free = free.or(Some(column)),
            }
        }
        self.crowds[free.ok_or(Stop::Classes)?] = Some(Crowd { class, count: 1 });
        Ok(())
    }

    fn take_return(&mut self, moment: &Moment, explained: usize, manner: &Manner<'_>) -> Result<(), Stop> {
        let place = self
            .in_flight
            .iter()
            .position(|one| one.event == moment.event)
            .expect("an operation returns once, after its invocation");
        let bit = self.in_flight[place].bit;
        self.next.clear();
        self.reached.clear();
        for index in 0..self.frontier.len() {
            self.reach(self.frontier[index]);
        }
        while let Some(configuration) = self.reached.next() {
            self.visited += 1;
            if self.steps() > self.bounds.steps_max || self.reached.bytes() > self.bounds.bytes_max {
                return Err(self.too_hard());
            }
            if configuration.placed & bit != 0 {
                self.next.push(Configuration { placed: configuration.placed & !bit, ..configuration });
            } else {
                self.go_on(&configuration, moment.time, manner);
            }
        }
        if self.next.is_empty() {
            return Err(self.stuck(moment.event, explained));
        }
        std::mem::swap(&mut self.frontier, &mut self.next);
        self.bits &= !bit;
        self.in_flight.swap_remove(place);
        self.forget_classes(moment.time);
        Ok(())
    }

    /// Adds a configuration, in which what can only be right here and changes nothing is placed at once.
    fn reach(&mut self, mut configuration: Configuration<CLASSES>) {
        for one in &self.in_flight {
            if one.rests_on == Some(configuration.state) {
                configuration.placed |= one.bit;
            }
        }
        self.reached.insert(configuration, self.open);
    }

    /// Places each operation that can be placed next.
    fn go_on(&mut self, configuration: &Configuration<CLASSES>, now: u64, manner: &Manner<'_>) {
        if let Manner::Guided { demand, looks_ahead: true } = manner
            && demand.must_stay(configuration.state, now)
        {
            // Whatever leaves this state as it is was placed when the configuration was reached.
            return;
        }
        for index in 0..self.in_flight.len() {
            let one = self.in_flight[index];
            if configuration.placed & one.bit != 0 {
                continue;
            }
            let placed = configuration.placed | one.bit;
            let (state, answer) = apply(configuration.state, one.call);
            match one.answer {
                // An open operation that changes nothing need not happen.
                None if state == configuration.state => {}
                Some(expected) if expected != answer => match manner {
                    Manner::Plain => {}
                    Manner::Guided { demand, looks_ahead } => {
                        self.go_on_with_help(configuration, &one, expected, now, demand, *looks_ahead);
                    }
                },
                None | Some(_) => self.reach(Configuration { placed, state, ..*configuration }),
            }
        }
    }

    /// Places `one`, whose answer `expected` is wrong as things are, directly after an open operation that makes it right.
    fn go_on_with_help(
        &mut self,
        configuration: &Configuration<CLASSES>,
        one: &InFlight,
        expected: Answer,
        now: u64,
        demand: &Demand,
        looks_ahead: bool,
    ) {
        let needed = needs(one.call, expected);
        for column in 0..CLASSES {
            let Some(Crowd { class, count }) = self.crowds[column] else { continue };
            if configuration.used[column] == count {
                continue;
            }
            let helps = match needed {
                Needs::Anything => false,
                Needs::State(state) => class.state == state,
                Needs::Presence => {
                    class.state.is_some()
                        && !(looks_ahead && demand.must_stay(class.state, now))
                        && !self.is_wanted(configuration, class.state, demand)
                }
            };
            if helps {
                let (state, _) = apply(class.state, one.call);
                let mut used = configuration.used;
                used[column] += 1;
                self.reach(Configuration { placed: configuration.placed | one.bit, state, used });
                if column == UNREAD {
                    return;
                }
            }
        }
    }

    /// Whether something in flight needs `state`, and nothing could bring it back.
    fn is_wanted(
        &self,
        configuration: &Configuration<CLASSES>,
        state: Option<Value>,
        demand: &Demand,
    ) -> bool {
        demand.is_unique(state)
            && self.in_flight.iter().any(|one| {
                configuration.placed & one.bit == 0
                    && one.answer.is_some_and(|answer| needs(one.call, answer) == Needs::State(state))
            })
    }

    /// Forgets the classes that nothing needs any more, and those of which nothing is left. A class of which more are
    /// invoked later begins anew.
    fn forget_classes(&mut self, now: u64) {
        for column in 0..CLASSES {
            let Some(Crowd { class, count }) = self.crowds[column] else { continue };
            let used_up = |configuration: &Configuration<CLASSES>| configuration.used[column] == count;
            if class.until < now || self.frontier.iter().all(used_up) {
                self.crowds[column] = None;
                for configuration in &mut self.frontier {
                    configuration.used[column] = 0;
                }
            }
        }
    }

    /// Configurations looked at and comparisons made by the last search: what its time is made of.
    pub(super) fn steps(&self) -> u64 {
        self.visited + (self.reached.compared() - self.compared_before)
    }

    fn stuck(&self, event: u32, explained: usize) -> Stop {
        let mut states: Vec<_> = self.frontier.iter().map(|configuration| configuration.state).collect();
        states.sort_unstable();
        states.dedup();
        let mut in_flight: Vec<_> = self.in_flight.iter().map(|one| one.event as usize).collect();
        in_flight.retain(|&other| other != event as usize);
        Stop::Stuck { event: event as usize, explained, states, in_flight }
    }

    fn too_hard(&self) -> Stop {
        let open: u32 = self.crowds.iter().flatten().map(|crowd| crowd.count).sum();
        Stop::TooHard { steps: self.steps(), in_flight: self.in_flight.len() + open as usize }
    }
}
