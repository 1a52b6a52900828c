//! What the answers of a history need, and what its open operations can give.
//!
//! Always true: an order exists with what is left out here if and only if one exists without it.
//!
//! A long history with hundreds of open operations has too many configurations to look at. Most of them differ in nothing
//! that matters. Four arguments, each a change of a given order that keeps it right:
//!
//! 1. **An open operation directly precedes one that needs it.** Every call leaves what it met or something fixed. An open
//!    operation followed by another change is overwritten unseen; take it out of the order, unless that change is a delete
//!    whose answer rests on it. One followed by a get that it does not feed changes nothing: take it out. So an open
//!    operation is placed just before a returned one whose answer would be wrong without it, or never; and those that can
//!    precede no such operation are dropped: open gets, and puts of a value that no later get returned, when no later
//!    delete found the key.
//! 2. **Open operations that leave the same are one class**, of which only the number placed matters: whichever were
//!    invoked so far, each of them could stand where another stands. No more of a class are ever placed than there are
//!    answers that need it, so the later ones are dropped. A class is forgotten once no such answer is to come, or none of
//!    it is left unplaced.
//! 3. **Values that no get returned are one value**: no answer depends on which of them the key has. Open puts of such
//!    values are one class. Where only presence is needed they are taken first: they serve nothing else.
//! 4. **A value that one operation alone could put there, and that a get invoked later returned, must stay until then**:
//!    once it is overwritten that get cannot be explained any more. This one looks ahead, so with it a search may give up
//!    on a history earlier than at the first return that cannot be explained.

use std::collections::HashMap;

use super::register::{Effect, Needs, effect, needs};
use super::{Call, Event, Outcome, Value};

/// What a history asks for.
#[derive(Default)]
pub(super) struct Demand {
    states: HashMap<Option<Value>, OfState>,
    /// Deletes that found the key.
    presence: OfPresence,
    /// The value that stands for all that no get returned.
    unread: Option<Value>,
}

#[derive(Default, Clone, Copy)]
struct OfPresence {
    answers: u32,
    last_returned: u64,
}

#[derive(Default, Clone, Copy)]
struct OfState {
    /// Answers that need this state.
    answers: u32,
    last_invoked: u64,
    last_returned: u64,
    /// Operations that can leave it in time for such an answer, and one more if the key began with it.
    sources: u32,
    /// Open operations admitted.
    admitted: u32,
}

/// Which open operations can stand for each other.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Class {
    /// What they leave.
    pub(super) state: Option<Value>,
    /// Whether that is a value that no get returned.
    pub(super) is_unread: bool,
    /// When the last answer that needs it returned.
    pub(super) until: u64,
}

impl Demand {
    /// Learns what the history `events` of a key that began with `initial` asks for.
    pub(super) fn learn(&mut self, initial: Option<Value>, events: &[Event]) {
        self.states.clear();
        self.presence = OfPresence::default();
        self.unread = None;
        for event in events {
            let Outcome::Returned { at, answer } = event.outcome else { continue };
            match needs(event.call, answer) {
                Needs::Anything => {}
                Needs::Presence => {
                    self.presence.answers += 1;
                    self.presence.last_returned = self.presence.last_returned.max(at);
                }
                Needs::State(state) => {
                    let of_state = self.states.entry(state).or_default();
                    of_state.answers += 1;
                    of_state.last_invoked = of_state.last_invoked.max(event.invoked);
                    of_state.last_returned = of_state.last_returned.max(at);
                }
            }
        }
        if let Some(of_state) = self.states.get_mut(&initial) {
            of_state.sources += 1;
        }
        for event in events {
            let state = match effect(event.call) {
                Effect::Nothing => continue,
                Effect::Becomes(state) => state,
            };
            match self.states.get_mut(&state) {
                Some(of_state) => of_state.sources += u32::from(event.invoked <= of_state.last_returned),
                None if state.is_some() && self.unread.is_none() => {
                    self.unread = state;
                    self.states.insert(state, OfState::default());
                }
                None => {}
            }
        }
    }

    /// Whether no get returned `value`.
    pub(super) fn is_unread(&self, value: Value) -> bool {
        self.states.get(&Some(value)).is_none_or(|of_state| of_state.answers == 0)
    }

    /// The value that stands for all that no get returned, if there are any.
    pub(super) fn unread(&self) -> Option<Value> {
        self.unread
    }

    /// `state`, with the value that stands for its own.
    pub(super) fn stand_in_for_state(&self, state: Option<Value>) -> Option<Value> {
        match (state, self.unread) {
            (Some(value), Some(unread)) if self.is_unread(value) => Some(unread),
            _ => state,
        }
    }

    /// `call`, with the value that stands for its own.
    pub(super) fn stand_in(&self, call: Call) -> Call {
        match (call, self.unread) {
            (Call::Put(value), Some(unread)) if self.is_unread(value) => Call::Put(unread),
            _ => call,
        }
    }

    /// The class of an open operation; `None` if it can be left out.
    pub(super) fn admit(&mut self, call: Call, invoked: u64) -> Option<Class> {
        let state = match effect(self.stand_in(call)) {
            Effect::Nothing => return None,
            Effect::Becomes(state) => state,
        };
        let of_state = self.states.get_mut(&state)?;
        let mut answers = of_state.answers;
        let mut until = of_state.last_returned;
        if state.is_some() {
            answers += self.presence.answers;
            until = until.max(self.presence.last_returned);
        }
        if invoked > until || of_state.admitted >= answers {
            return None;
        }
        of_state.admitted += 1;
        Some(Class { state, is_unread: state.is_some() && state == self.unread, until })
    }

    /// Whether an operation invoked after `now` needs `state`, which nothing can bring back.
    pub(super) fn must_stay(&self, state: Option<Value>, now: u64) -> bool {
        self.states.get(&state).is_some_and(|of_state| of_state.sources == 1 && of_state.last_invoked > now)
    }

    /// Whether nothing can bring `state` back.
    pub(super) fn is_unique(&self, state: Option<Value>) -> bool {
        self.states.get(&state).is_some_and(|of_state| of_state.sources == 1)
    }
}
