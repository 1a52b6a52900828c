//! What a key does when one operation at a time is applied to it.
//!
//! Always true: this is all that the checker knows of the store's meaning. A new call is a new arm here.

use super::{Answer, Call, Value};

/// What a key that has the value `state` has after `call`, and what `call` answers.
pub fn apply(state: Option<Value>, call: Call) -> (Option<Value>, Answer) {
    match call {
        Call::Get => (state, Answer::Value(state)),
        Call::Put(value) => (Some(value), Answer::Stored),
        Call::Delete => (None, Answer::Existed(state.is_some())),
    }
}
