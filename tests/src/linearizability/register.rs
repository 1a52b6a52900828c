//! What a key does when one operation at a time is applied to it.
//!
//! Always true: [`apply`] alone says what is right. [`effect`] and [`needs`] are conclusions from it that long searches
//! are guided by; the tests hold them against it.
//!
//! A new call is a new arm in each of the three; [`Needs::Anything`] is always right. Short histories are searched without
//! [`effect`]. If what the call leaves depends on what it meets (a counter, a conditional put), [`Effect`] needs a third
//! variant, and histories that hold such a call must be searched plainly however long they are: what `demand.rs` concludes
//! is not true of them.

use super::{Answer, Call, Value};

/// What a key that has the value `state` has after `call`, and what `call` answers.
#[inline]
pub fn apply(state: Option<Value>, call: Call) -> (Option<Value>, Answer) {
    match call {
        Call::Get => (state, Answer::Value(state)),
        Call::Put(value) => (Some(value), Answer::Stored),
        Call::Delete => (None, Answer::Existed(state.is_some())),
    }
}

/// What a call leaves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Effect {
    /// What it met.
    Nothing,
    /// This, whatever it met.
    Becomes(Option<Value>),
}

/// What `call` leaves.
pub(super) fn effect(call: Call) -> Effect {
    match call {
        Call::Get => Effect::Nothing,
        Call::Put(value) => Effect::Becomes(Some(value)),
        Call::Delete => Effect::Becomes(None),
    }
}

/// What a call must have met.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Needs {
    /// Anything, or nothing will do.
    Anything,
    /// This.
    State(Option<Value>),
    /// A value, whichever.
    Presence,
}

/// What `call` must have met to answer `answer`.
pub(super) fn needs(call: Call, answer: Answer) -> Needs {
    match (call, answer) {
        (Call::Get, Answer::Value(state)) => Needs::State(state),
        (Call::Delete, Answer::Existed(true)) => Needs::Presence,
        (Call::Delete, Answer::Existed(false)) => Needs::State(None),
        (Call::Get | Call::Put(_) | Call::Delete, _) => Needs::Anything,
    }
}
