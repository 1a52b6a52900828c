//! Makes a failure small.
//!
//! Always true: what comes out fails like what went in (the same promise is broken), and no single choice or call can be
//! left out of it without that.

use super::explore::{Failure, replay};
use super::region::Region;
use super::story::Story;
use super::world::{Choice, World};

/// The smallest story and schedule found that break the same promise.
pub fn shrink(region: &Region, story: &Story, failure: &Failure) -> (Story, Failure) {
    let mut best = (story.clone(), failure.clone());
    let seed = failure.seed.unwrap_or(0);
    while let Some(smaller) = smaller(region, &best, seed) {
        best = smaller;
    }
    best
}

/// One choice or call less, if it still fails.
fn smaller(region: &Region, best: &(Story, Failure), seed: u64) -> Option<(Story, Failure)> {
    let (story, failure) = best;
    for client in 0..story.clients.len() {
        for call in 0..story.clients[client].len() {
            let mut less = story.clone();
            less.clients[client].remove(call);
            if let Some(failure) = fails(region, &less, seed, &failure.schedule, failure, true) {
                return Some((less, failure));
            }
        }
    }
    for call in 0..story.before.len() {
        let mut less = story.clone();
        less.before.remove(call);
        if let Some(failure) = fails(region, &less, seed, &failure.schedule, failure, true) {
            return Some((less, failure));
        }
    }
    for length in [16, 8, 4, 2, 1] {
        for at in 0..failure.schedule.len() {
            let end = (at + length).min(failure.schedule.len());
            let schedule = [&failure.schedule[..at], &failure.schedule[end..]].concat();
            if let Some(failure) = fails(region, story, seed, &schedule, failure, false) {
                return Some((story.clone(), failure));
            }
        }
    }
    None
}

fn fails(
    region: &Region,
    story: &Story,
    seed: u64,
    schedule: &[Choice],
    like: &Failure,
    is_new_story: bool,
) -> Option<Failure> {
    let mut world = World::new(region, story.clone());
    let (result, made) = replay(&mut world, seed, schedule);
    let violation = result.err()?;
    let is_less = is_new_story || made.len() < like.schedule.len();
    (violation.promise == like.violation.promise && is_less).then_some(Failure {
        violation,
        schedule: made,
        seed: like.seed,
    })
}
