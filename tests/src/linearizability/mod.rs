//! Linearizability of one key's history.
//!
//! Always true: a history is accepted if and only if its operations can be put into one order in which each gives
//! the answer that it gave, no operation stands before one that had returned when it was invoked, and each open
//! operation stands somewhere after its invocation or nowhere. A search that takes too long says so, and nothing else.
//!
//! ```text
//! mod.rs            what a history is
//! register.rs       what a key does when one operation at a time is applied to it
//! checker.rs        chooses how to search, and says what was found
//! search.rs         looks for the order: Wing and Gong's search, as Lowe improved it
//! configuration.rs  where a search can be
//! demand.rs         what answers need and open operations can give; keeps long searches narrow
//! violation.rs      tells a person what cannot be explained
//! timeline.rs       draws a history
//! shrink.rs         finds the few operations of a history that contradict each other
//! ```
//!
//! Linearizability is local (Herlihy and Wing, 1990): a store is linearizable if each of its keys is. So histories are
//! checked one key at a time.

mod checker;
mod configuration;
mod demand;
mod register;
mod search;
mod shrink;
#[cfg(test)]
mod tests;
mod timeline;
mod violation;

pub use checker::{Checker, Failure, Undecided};
pub use register::apply;
pub use shrink::shrink;
pub use timeline::Timeline;
pub use violation::{Neighbour, Role, Violation};

/// What a value is to the checker: its number. Histories whose puts all have values of their own say most.
pub type Value = u64;

/// What was asked, of one key.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Call {
    /// What is the key's value?
    Get,
    /// Let the key have this value.
    Put(Value),
    /// Let the key have no value, and say whether it had one.
    Delete,
}

/// What was answered.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Answer {
    /// To a get: the value; `None` if the key was absent.
    Value(Option<Value>),
    /// To a put.
    Stored,
    /// To a delete: whether the key was there.
    Existed(bool),
}

/// How an operation ended.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Outcome {
    /// It returned at this time with this answer.
    Returned {
        /// When; not before the invocation.
        at: u64,
        /// What the caller was told.
        answer: Answer,
    },
    /// Pending or unknown: it may take effect at any moment after its invocation, or never.
    Open,
}

/// One operation of a history. Operations known to have had no effect are simply left out.
///
/// Times come from one clock, whatever its unit. One operation precedes another if it returned at an earlier time than
/// the other was invoked; operations that touch at one moment overlap.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Event {
    /// What was asked.
    pub call: Call,
    /// When.
    pub invoked: u64,
    /// What came of it.
    pub outcome: Outcome,
}

/// Whether the history `events` of one key, which had the value `initial` before, is linearizable. The order of `events`
/// does not matter. Whoever checks many histories, or long ones, keeps a [`Checker`].
///
/// # Errors
///
/// [`Violation`] if no order explains it.
///
/// # Panics
///
/// Where [`Checker::check`] does, and where it would say [`Failure::Undecided`], which takes far more than a dozen
/// operations.
pub fn check(initial: Option<Value>, events: &[Event]) -> Result<(), Violation> {
    match Checker::new().check(initial, events) {
        Ok(()) => Ok(()),
        Err(Failure::NotLinearizable(violation)) => Err(violation),
        Err(Failure::Undecided(undecided)) => panic!("{undecided}"),
    }
}
