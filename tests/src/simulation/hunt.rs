//! Looks for mistakes that were planted.
//!
//! Always true: a mistake counts as caught only if a schedule breaks a promise with it (without it, no schedule of these
//! worlds does: they are in the catalogue too). One that another rule makes up for is planted together with the lack of
//! that rule, and counts only in a schedule that keeps all promises with that lack alone.

use std::panic::AssertUnwindSafe;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use sidestep_common::planted::{Fault, plant};

use super::campaign::{SCHEDULES_MAX, explore};
use super::catalogue::{How, Task, large, standing_still};
use super::explore::bounded::bounded_until;
use super::explore::{Failure, replay};
use super::fault::Befall;
use super::region::{Key, Region};
use super::story::{Rebuild, Reuse, Story, delete, get, put};
use super::violation::Promise;
use super::world::World;

/// Mistakes that no walk is made for, because these worlds don't have what they are about: hundreds of uses of a block, audits,
/// epochs. Stories catch them (`client/src/allocator/tests.rs`, `client/src/upkeep/tests.rs`, `client/src/operation/tests`).
pub const BY_STORIES: [Fault; 6] = [
    Fault::ReusedBeyondVersions,
    Fault::ReclaimedUnmarked,
    Fault::AuditOfBlocksInHand,
    Fault::AcknowledgedBeforeRefresh,
    Fault::AcknowledgedBeforeMarks,
    Fault::AcknowledgedUnresolved,
];

/// What became of a planted mistake.
#[derive(Clone, Debug)]
pub struct Hunted {
    /// Which.
    pub fault: Fault,
    /// How it was caught, if it was.
    pub caught: Option<Caught>,
    /// Schedules tried, with all that was caught in none.
    pub schedules: u64,
}

/// How a mistake was caught.
#[derive(Clone, Debug)]
pub struct Caught {
    /// The promise that was broken; none if the code panicked.
    pub promise: Option<Promise>,
    /// What was seen.
    pub detail: String,
    /// In which world.
    pub story: Story,
    /// Only together with its masks.
    pub is_masked: bool,
}

/// Walks of each world that is not explored whole: few at first, then many.
const WALKS: [u64; 2] = [200, 4000];
/// The same of worlds that are drawn.
const DRAWN_WORLDS: u64 = 400;
const DRAWN_WALKS: u64 = 500;

/// The worlds in which mistakes are looked for, those first in which most are found.
pub fn grounds() -> Vec<Task> {
    let (first, twin, neighbour) = (Key::First, Key::Twin, Key::Neighbour);
    let lossy = [Befall::LossBefore, Befall::LossAfter, Befall::Timeout, Befall::Flush];
    let pauses = [Befall::Standstill, Befall::ClockJump];
    let mut stories = vec![
        Story::of(vec![vec![put(first), get(first), put(first), delete(first), get(first)]]),
        Story::of(vec![vec![
            put(first),
            put(twin),
            put(neighbour),
            get(first),
            get(twin),
            delete(twin),
            get(twin),
        ]]),
        Story { fillers: 30, ..Story::of(vec![vec![put(first), get(first)]]) },
        Story { fillers: 30, ..Story::of(vec![vec![put(first), put(neighbour), put(neighbour)]]) },
        Story { scarce: true, ..Story::of(vec![vec![put(first), put(first), put(neighbour)]]) },
        Story { misled: true, ..Story::of(vec![vec![put(first), get(first)]]) },
        Story { misled: true, ..Story::of(vec![vec![get(first), delete(first)]]) }.after(vec![put(first)]),
        Story::of(vec![vec![put(first)], vec![put(first)]]),
        Story::of(vec![vec![put(first)], vec![put(neighbour), get(neighbour)]]),
        Story::of(vec![vec![put(first)], vec![put(twin), get(twin)]]),
        Story::of(vec![vec![delete(first)], vec![put(first), get(first)]]).after(vec![put(first)]),
        Story::of(vec![vec![delete(first)], vec![delete(first)]]).after(vec![put(first)]),
        Story::of(vec![vec![put(first)], vec![put(first), get(first)]]).after(vec![put(first)]),
        Story::of(vec![vec![put(first)], vec![get(first)]]).after(vec![put(first), delete(first)]),
        Story::of(vec![vec![delete(first)], vec![delete(first)], vec![put(first)]]).after(vec![put(first)]),
        Story::of(vec![vec![put(twin)], vec![put(first), delete(first)]]).after(vec![put(first)]),
    ];
    // A rebuild that meets a deleted key and living ones, with one call in between.
    for (call, past) in [
        (get(first), vec![put(neighbour), delete(neighbour), put(first)]),
        (put(first), vec![put(first), delete(first)]),
    ] {
        let story = Story { rebuild: Some(Rebuild::One), ..Story::of(vec![vec![call]]) };
        stories.push(story.after(past));
    }
    for clients in [
        vec![vec![put(first)], vec![get(first)]],
        vec![vec![put(first), get(first)], vec![put(first), get(first)]],
        vec![vec![put(first), put(neighbour)]],
        vec![vec![delete(first)], vec![delete(first)]],
        vec![vec![delete(first), get(first)], vec![put(first)]],
    ] {
        for past in [vec![], vec![put(first)]] {
            stories.push(Story::of(clients.clone()).after(past).with(1, &lossy));
        }
    }
    let mut tasks: Vec<Task> =
        stories.into_iter().map(|story| Task { family: "hunt", story, how: How::Complete }).collect();
    // Worlds with too much in them to be tried whole, one seed each.
    let mut walks = Vec::new();
    for rebuild in [Rebuild::One, Rebuild::Two] {
        for clients in [
            vec![vec![put(first), get(first)]],
            vec![vec![put(first), put(first)]],
            vec![vec![put(first)], vec![get(first)]],
            vec![vec![delete(first), put(first)], vec![get(first), get(first)]],
            vec![
                vec![put(first), put(neighbour)],
                vec![put(first), get(neighbour)],
                vec![get(first), get(first)],
            ],
        ] {
            for past in [vec![], vec![put(first)], vec![put(first), put(neighbour)]] {
                let story = Story { rebuild: Some(rebuild), ..Story::of(clients.clone()) };
                walks.push(story.after(past));
            }
        }
    }
    // One rebuild behind another: memory of the first segment could be taken again.
    let again = Story { rebuild_again: true, ..Story::of(vec![vec![put(first)]]) };
    let again = Story { rebuild: Some(Rebuild::One), ..again };
    walks.push(again.after(vec![put(neighbour), delete(neighbour)]));
    // A full bucket is sealed without any word becoming CLOSED.
    // Gets learn the new directory, whatever changes make of it.
    let full = vec![vec![get(neighbour), get(neighbour), put(neighbour)], vec![delete(neighbour)]];
    let full = Story::of(full);
    let full = full.after(vec![put(first), put(twin)]);
    walks.push(Story { fillers: 29, rebuild: Some(Rebuild::Two), ..full });
    // One session learns a word of the directory that another knows to be old.
    for rebuild in [Rebuild::One, Rebuild::Two] {
        let story = Story::of(vec![vec![get(first), put(first)], vec![get(first), get(first), get(first)]]);
        let story = Story { rebuild: Some(rebuild), together: true, misled: true, fine: true, ..story };
        walks.push(story.after(vec![put(first)]));
    }
    for (reuse, befalls) in [(Reuse::AtOnce, 0), (Reuse::AfterGrace, 3)] {
        for fine in [false, true] {
            for clients in [
                vec![vec![put(first), put(first), put(first)], vec![get(first)]],
                vec![vec![put(first), put(neighbour), put(neighbour)], vec![get(first)]],
                vec![vec![put(first), put(neighbour), put(neighbour)], vec![delete(first)]],
                vec![vec![put(first), put(neighbour), put(neighbour)], vec![put(first)]],
                vec![vec![put(first), put(first), put(twin)], vec![put(twin), get(twin)]],
                vec![vec![put(first), put(first), put(twin)], vec![put(twin)], vec![put(first)]],
            ] {
                let story = Story { reuse, fine, ..Story::of(clients) };
                walks.push(story.after(vec![put(first), put(first)]).with(befalls, &pauses));
            }
        }
    }
    for count in WALKS {
        tasks.extend((1..).zip(&walks).map(|(seed, story)| {
            let how = How::Walks { seed: seed << 32 | count << 16, count };
            Task { family: "hunt", story: story.clone(), how }
        }));
    }
    tasks.extend(large(0xfa17, DRAWN_WORLDS, DRAWN_WALKS));
    tasks.extend(standing_still());
    tasks
}

/// Plants every mistake but those of [`BY_STORIES`], one after the other, and looks for it. `tell` hears of each.
pub fn hunt_all(tell: &(dyn Fn(&Hunted) + Sync)) -> Vec<Hunted> {
    let grounds = grounds();
    let faults: Vec<Fault> = Fault::ALL.iter().copied().filter(|fault| !BY_STORIES.contains(fault)).collect();
    let next = AtomicUsize::new(0);
    let all = Mutex::new(Vec::new());
    let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let Some(fault) = faults.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let hunted = hunt(*fault, &grounds);
                    tell(&hunted);
                    all.lock().unwrap_or_else(std::sync::PoisonError::into_inner).push(hunted);
                }
            });
        }
    });
    let mut all = all.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
    all.sort_by_key(|hunted| Fault::ALL.iter().position(|fault| *fault == hunted.fault));
    all
}

/// Plants one mistake and looks for it. One with masks is tried alone first, a little: an oracle may see what no answer
/// shows. Then it is tried together with them, first where one stands still: most of those mistakes are of the clock.
pub fn hunt(fault: Fault, grounds: &[Task]) -> Hunted {
    let masks = fault.masked_by();
    let mut schedules = 0;
    let few = |task: &&Task| matches!(task.how, How::Walks { count, .. } if count <= WALKS[0]);
    let alone = grounds.iter().filter(|task| masks.is_empty() || few(task)).map(|task| (task, false));
    let is_bounded = |task: &&Task| matches!(task.how, How::Bounded { .. });
    let together = grounds.iter().filter(is_bounded).chain(grounds.iter().filter(|task| !is_bounded(task)));
    let together = together.filter(|_| !masks.is_empty()).map(|task| (task, true));
    for (task, is_masked) in alone.chain(together) {
        let tried = if is_masked { try_masked(fault, masks, task) } else { try_with(&[fault], task) };
        schedules += tried.schedules;
        let Some((promise, detail)) = tried.broken else { continue };
        let caught = Caught { promise, detail, story: task.story.clone(), is_masked };
        return Hunted { fault, caught: Some(caught), schedules };
    }
    Hunted { fault, caught: None, schedules }
}

/// Walks with the mistake and its masks until a schedule breaks a promise that the masks alone keep in it.
fn try_masked(fault: Fault, masks: &[Fault], task: &Task) -> Tried {
    let together = [&[fault], masks].concat();
    let (mut seed, count) = match task.how {
        How::Walks { seed, count } => (seed, count),
        How::Complete => (1, WALKS[0]),
        How::Bounded { preemptions } => return try_masked_bounded(&together, masks, task, preemptions),
    };
    let end = seed + count;
    let mut schedules = 0;
    while seed < end {
        let how = How::Walks { seed, count: end - seed };
        plant(&together);
        let region = Region::new();
        let explored = explore(&region, &Task { how, ..task.clone() }).explored;
        schedules += explored.schedules;
        let Some(failure) = explored.failure else { break };
        let walked = failure.seed.unwrap_or(end);
        plant(masks);
        let mut world = World::new(&region, task.story.clone());
        let (masked, _) = replay(&mut world, walked, &failure.schedule);
        if masked.is_ok() {
            plant(&[]);
            let violation = failure.violation;
            return Tried { schedules, broken: Some((Some(violation.promise), violation.detail)) };
        }
        seed = walked + 1;
    }
    plant(&[]);
    Tried { schedules, broken: None }
}

/// The same of a world whose schedules are all tried within a bound.
fn try_masked_bounded(together: &[Fault], masks: &[Fault], task: &Task, preemptions: u32) -> Tried {
    let (region, other) = (Region::new(), Region::new());
    let mut is_caught = |failure: &Failure| {
        plant(masks);
        let mut world = World::new(&other, task.story.clone());
        let (masked, _) = replay(&mut world, 0, &failure.schedule);
        plant(together);
        masked.is_ok()
    };
    plant(together);
    let mut world = World::new(&region, task.story.clone());
    let explored = bounded_until(&mut world, preemptions, SCHEDULES_MAX, &mut is_caught);
    plant(&[]);
    let broken = explored.failure.map(|failure| {
        let violation = failure.violation;
        (Some(violation.promise), violation.detail)
    });
    Tried { schedules: explored.schedules, broken }
}

struct Tried {
    schedules: u64,
    broken: Option<(Option<Promise>, String)>,
}

fn try_with(faults: &[Fault], task: &Task) -> Tried {
    plant(faults);
    // A region of its own: a panic may leave one half undone.
    let tried = std::panic::catch_unwind(AssertUnwindSafe(|| {
        let region = Region::new();
        let sums = explore(&region, task);
        let broken = sums.explored.failure.map(|failure| {
            let violation = failure.violation;
            (Some(violation.promise), violation.detail)
        });
        Tried { schedules: sums.explored.schedules, broken }
    }));
    plant(&[]);
    tried.unwrap_or_else(|payload| {
        let detail = payload
            .downcast_ref::<String>()
            .cloned()
            .or_else(|| payload.downcast_ref::<&str>().map(|text| (*text).to_owned()))
            .unwrap_or_default();
        Tried { schedules: 1, broken: Some((None, detail)) }
    })
}
