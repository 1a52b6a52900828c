//! Tests of the checker.
//!
//! Always true: nothing here that judges a history shares code with the checker, `apply` included.

mod agreement;
mod generator;
mod long;
mod messages;
mod parts;
mod reference;
mod stories;

use super::*;

fn put(value: Value, invoked: u64, at: u64) -> Event {
    returned(Call::Put(value), invoked, at, Answer::Stored)
}

fn get(value: impl Into<Option<Value>>, invoked: u64, at: u64) -> Event {
    returned(Call::Get, invoked, at, Answer::Value(value.into()))
}

fn delete(existed: bool, invoked: u64, at: u64) -> Event {
    returned(Call::Delete, invoked, at, Answer::Existed(existed))
}

fn open(call: Call, invoked: u64) -> Event {
    Event { call, invoked, outcome: Outcome::Open }
}

fn returned(call: Call, invoked: u64, at: u64, answer: Answer) -> Event {
    Event { call, invoked, outcome: Outcome::Returned { at, answer } }
}
