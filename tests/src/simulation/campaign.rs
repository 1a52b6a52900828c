//! Explores many worlds, on as many threads as there are processors.
//!
//! Always true: what comes out depends on the tasks alone, not on who did which when.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use super::catalogue::{How, Task};
use super::coverage::Coverage;
use super::explore::{Explored, bounded::bounded, complete::complete, random::random};
use super::region::Region;
use super::shrink::shrink;
use super::story::Story;
use super::violation::Violation;
use super::world::{Choice, Counts, World};

/// No small world has as many schedules; one that does is not small.
pub const SCHEDULES_MAX: u64 = 4_000_000;

/// A failure, as it is shown.
#[derive(Clone, Debug)]
pub struct Found {
    /// The world, made small.
    pub story: Story,
    /// What was broken.
    pub violation: Violation,
    /// The choices that lead there, made few.
    pub schedule: Vec<Choice>,
    /// For where verbs tear.
    pub seed: u64,
    /// The history.
    pub history: String,
    /// The world it was found in.
    pub found_in: Task,
}

/// Sums of a campaign.
#[derive(Clone, Default, Debug)]
pub struct Sums {
    /// Worlds.
    pub worlds: u64,
    /// Of those, the ones that were explored whole.
    pub complete: u64,
    /// What was explored.
    pub explored: Explored,
    /// What was hit.
    pub coverage: Coverage,
    /// Counts.
    pub counts: Counts,
    /// Worlds and schedules of each family, in the order in which they were asked for.
    pub families: BTreeMap<&'static str, (u64, u64)>,
    /// What was found.
    pub found: Vec<Found>,
}

impl Sums {
    /// Adds another's.
    pub fn add(&mut self, other: Self) {
        self.worlds += other.worlds;
        self.complete += other.complete;
        self.explored.add(other.explored);
        self.coverage.add(&other.coverage);
        self.counts.add(&other.counts);
        for (family, (worlds, schedules)) in other.families {
            let sums = self.families.entry(family).or_default();
            sums.0 += worlds;
            sums.1 += schedules;
        }
        self.found.extend(other.found);
    }
}

/// Explores one world.
pub fn explore(region: &Region, task: &Task) -> Sums {
    let mut world = World::new(region, task.story.clone());
    let explored = match task.how {
        How::Complete => complete(&mut world, SCHEDULES_MAX),
        How::Bounded { preemptions } => bounded(&mut world, preemptions, SCHEDULES_MAX),
        How::Walks { seed, count } => random(&mut world, seed, count),
    };
    let mut sums = Sums { worlds: 1, counts: world.counts, ..Sums::default() };
    sums.coverage = std::mem::take(&mut world.coverage);
    sums.complete = u64::from(task.how == How::Complete && !explored.is_cut_short);
    sums.families.insert(task.family, (1, explored.schedules));
    sums.explored = explored;
    sums
}

/// Explores all `tasks`; `tell` hears after each how many are done. Ends early after some failures, or when `stop` says so.
pub fn run(tasks: &[Task], stop: &AtomicBool, tell: &(dyn Fn(usize, &Sums) + Sync)) -> Sums {
    let next = AtomicUsize::new(0);
    let sums = Mutex::new(Sums::default());
    let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                let region = Region::new();
                while !stop.load(Ordering::Relaxed) {
                    let Some(task) = tasks.get(next.fetch_add(1, Ordering::Relaxed)) else { return };
                    let mut one = explore(&region, task);
                    if one.explored.failure.is_some() {
                        one.found.extend(made_small(&region, task, &one.explored));
                    }
                    let mut sums = sums.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
                    sums.add(one);
                    if sums.found.len() >= FOUND_MAX {
                        stop.store(true, Ordering::Relaxed);
                    }
                    tell(sums.worlds as usize, &sums);
                }
            });
        }
    });
    sums.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// After so many failures nobody reads further ones.
const FOUND_MAX: usize = 5;

/// The failure of an exploration, made small and told.
pub fn made_small(region: &Region, task: &Task, explored: &Explored) -> Option<Found> {
    let failure = explored.failure.as_ref()?;
    let (story, failure) = shrink(region, &task.story, failure);
    let mut world = World::new(region, story.clone());
    let seed = failure.seed.unwrap_or(0);
    let (result, schedule) = super::explore::replay(&mut world, seed, &failure.schedule);
    let violation = result.err().unwrap_or(failure.violation);
    Some(Found { story, violation, schedule, seed, history: world.tell(), found_in: task.clone() })
}

impl std::fmt::Display for Found {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        writeln!(f, "{}", self.violation)?;
        writeln!(f, "  world: {}", self.story)?;
        writeln!(f, "  found in: {}", self.found_in.story)?;
        if let How::Walks { seed, .. } = self.found_in.how {
            let walk = self.seed.wrapping_sub(seed);
            writeln!(f, "  again, if the world was drawn: simulate again {seed:#x} {walk}")?;
        }
        writeln!(f, "  schedule: {:?}", self.schedule)?;
        write!(f, "{}", self.history)
    }
}
