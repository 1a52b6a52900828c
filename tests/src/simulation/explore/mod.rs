//! Schedulers: which choices are made.
//!
//! | scheduler | for | what it tries |
//! | --- | --- | --- |
//! | [`complete`] | small worlds | every schedule, up to the order of steps that nobody could tell |
//! | [`bounded`] | worlds in which one is stopped for long | every schedule with few preemptions |
//! | [`random`] | any world | walks: uniform, few preemptions, or by priorities |
//!
//! Always true: a run is its story and its choices; a failure carries both, was run again with the same end, and is as
//! small as [`crate::simulation::shrink`] could make it.

pub mod bounded;
pub mod complete;
pub mod random;

use super::violation::Violation;
use super::world::{Choice, World};

/// A run that broke a promise.
#[derive(Clone, Debug)]
pub struct Failure {
    /// What was broken.
    pub violation: Violation,
    /// The choices that led there.
    pub schedule: Vec<Choice>,
    /// The seed of the walk, if it was one.
    pub seed: Option<u64>,
}

/// What an exploration came to.
#[derive(Clone, Default, Debug)]
pub struct Explored {
    /// Schedules that were run to their end and checked.
    pub schedules: u64,
    /// Of those, schedules in which something befell somebody.
    pub befallen: u64,
    /// Points at which a client was killed.
    pub crash_points: u64,
    /// Schedules that were left, because another that was tried differs from them in nothing that anybody could tell.
    pub pruned: u64,
    /// The first failure.
    pub failure: Option<Failure>,
    /// There is more that was not tried.
    pub is_cut_short: bool,
}

impl Explored {
    /// Adds another's counts; the first failure stays.
    pub fn add(&mut self, other: Self) {
        self.schedules += other.schedules;
        self.befallen += other.befallen;
        self.crash_points += other.crash_points;
        self.pruned += other.pruned;
        self.failure = self.failure.take().or(other.failure);
        self.is_cut_short |= other.is_cut_short;
    }
}

/// Runs a schedule again; what is not possible is left out, and what is left open ends as it may. Gives the choices that
/// were made.
///
/// # Errors
/// The promise that was broken.
pub fn replay(world: &mut World<'_>, seed: u64, schedule: &[Choice]) -> (Result<(), Violation>, Vec<Choice>) {
    world.reset(seed);
    let mut made = Vec::new();
    let mut choices = Vec::new();
    for choice in schedule {
        world.choices(&mut choices);
        if choices.is_empty() {
            break;
        }
        let is_network = matches!(choice, Choice::Network(..));
        if is_network || choices.contains(choice) {
            world.take(*choice);
            made.push(*choice);
        }
    }
    loop {
        world.choices(&mut choices);
        let Some(choice) = choices.iter().copied().find(|choice| !is_fault(*choice)) else { break };
        world.take(choice);
        made.push(choice);
    }
    (world.finish(), made)
}

/// Whether the run could as well go on without it.
pub(super) const fn is_fault(choice: Choice) -> bool {
    matches!(choice, Choice::Befalls(..))
}
