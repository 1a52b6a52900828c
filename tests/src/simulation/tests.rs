//! The simulator itself: what it leaves out, what it repeats, what it makes small.

use std::collections::BTreeSet;

use sidestep_common::planted::{Fault, plant};

use super::campaign::{SCHEDULES_MAX, explore, made_small};
use super::catalogue::{How, Task, large, small};
use super::explore::bounded::bounded;
use super::explore::complete::complete_with;
use super::explore::random::random;
use super::explore::replay;
use super::table::{STAGES, impossible};
use super::*;

fn outcomes(region: &Region, story: &Story, prunes: bool) -> (BTreeSet<String>, u64) {
    let mut world = World::new(region, story.clone());
    let mut seen = BTreeSet::new();
    let explored = complete_with(&mut world, SCHEDULES_MAX, prunes, &mut |world| {
        seen.insert(world.outcome());
    });
    assert!(explored.failure.is_none() && !explored.is_cut_short, "{story}: {explored:?}");
    (seen, explored.schedules)
}

/// Leaving out schedules that differ in the order of independent steps must leave out nothing that anybody could tell:
/// every set of answers with every order in time is still there, crashes and losses included.
#[test]
fn what_is_left_out_makes_no_difference() {
    let (first, twin) = (Key::First, Key::Twin);
    let region = Region::new();
    let stories = [
        Story::of(vec![vec![put(first)], vec![put(first)]]),
        Story::of(vec![vec![put(first)], vec![delete(first)]]).after(vec![put(first)]),
        Story::of(vec![vec![get(first), get(first)], vec![put(first)]]).after(vec![put(first)]),
        Story::of(vec![vec![put(first)], vec![put(twin)]]),
        Story::of(vec![vec![put(first)], vec![get(first)]]).with(1, &[Befall::Death]),
        Story::of(vec![vec![delete(first)], vec![get(first)]])
            .after(vec![put(first)])
            .with(1, &[Befall::LossBefore, Befall::LossAfter, Befall::Timeout]),
        Story::of(vec![vec![get(first)], vec![get(first)], vec![put(first)]]),
    ];
    for story in stories {
        let (all, many) = outcomes(&region, &story, false);
        let (seen, few) = outcomes(&region, &story, true);
        assert_eq!(seen, all, "{story}");
        assert!(few < many, "{story}: {few} of {many}");
    }
}

/// A walk is its seed: the same again, to the last count.
#[test]
fn walks_repeat() {
    let region = Region::new();
    for task in large(77, 12, 200) {
        let (one, two) = (explore(&region, &task), explore(&region, &task));
        assert_eq!(one.counts.steps, two.counts.steps, "{}", task.story);
        assert_eq!(table::table(&one.coverage), table::table(&two.coverage), "{}", task.story);
        assert!(one.explored.failure.is_none(), "{:?}", one.explored.failure);
    }
}

/// A bound that is never reached leaves nothing out, and one of none leaves whole clients, in every order. Each schedule
/// is tried once.
#[test]
fn what_has_more_preemptions_is_all_that_a_bound_leaves_out() {
    let region = Region::new();
    let story = Story::of(vec![vec![put(Key::First)], vec![get(Key::First)], vec![get(Key::First)]]);
    let mut world = World::new(&region, story.clone());
    assert_eq!(bounded(&mut world, 0, SCHEDULES_MAX).schedules, 6);
    drop(world);
    let story = story.with(1, &[Befall::LossAfter]);
    let mut world = World::new(&region, story.clone());
    let all = bounded(&mut world, 100, SCHEDULES_MAX);
    drop(world);
    assert!(all.failure.is_none() && !all.is_cut_short, "{all:?}");
    assert_eq!(all.schedules, outcomes(&region, &story, false).1);
}

/// What failed fails again in the same way, and what is made of it is small: a put, and a get or put of its twin.
#[test]
fn failures_repeat_and_are_made_small() {
    let (first, twin, neighbour) = (Key::First, Key::Twin, Key::Neighbour);
    let region = Region::new();
    let clients = vec![
        vec![put(neighbour), put(first), get(neighbour)],
        vec![get(twin), put(twin), get(first)],
        vec![get(neighbour), get(twin)],
    ];
    let story = Story::of(clients).with(2, &Befall::ALL);
    plant(&[Fault::KeyNotCompared]);
    let mut world = World::new(&region, story.clone());
    let failure = random(&mut world, 5, 10_000).failure.expect("a mistake that many schedules show");
    for _ in 0..2 {
        let (result, _) = replay(&mut world, failure.seed.unwrap(), &failure.schedule);
        assert_eq!(result, Err(failure.violation.clone()));
    }
    drop(world);
    let task = Task { family: "", story, how: How::Walks { seed: 5, count: 10_000 } };
    let explored = explore::Explored { failure: Some(failure.clone()), ..explore::Explored::default() };
    let found = made_small(&region, &task, &explored).expect("it fails");
    plant(&[]);
    assert_eq!(found.violation.promise, failure.violation.promise);
    assert!(found.story.clients.iter().flatten().count() <= 2, "{found}");
    assert!(found.schedule.len() <= 12, "{found}");
    let text = found.to_string();
    assert!(text.contains("twin") && text.contains("again"), "{text}");
}

/// The small worlds are those that the project promises to explore whole.
#[test]
fn the_catalogue_has_what_was_promised() {
    let tasks = small();
    let count = |family: &str| tasks.iter().filter(|task| task.family == family).count();
    // Nine sequences of two calls give 45 pairs, three calls give 10 triples; after three pasts.
    assert_eq!(count("one key, two clients, two calls"), 45 * 3);
    assert_eq!(count("one key, three clients, one call"), 10 * 3);
    // 36 sequences give 666 pairs; after four pasts, of twins and of neighbours.
    assert_eq!(count("two keys, two clients, two calls"), 666 * 4 * 2);
    let sampled = tasks.iter().filter(|task| matches!(task.how, How::Walks { .. }));
    assert!(sampled.into_iter().all(|task| task.story.rebuild.is_some()), "only rebuilds are sampled");
}

/// Each column and each row of the table has something that can be hit.
#[test]
fn the_table_leaves_nothing_out_for_good() {
    for befall in Befall::ALL {
        assert!(STAGES.iter().any(|stage| impossible(*stage, befall).is_none()), "{befall:?}");
    }
    for stage in STAGES {
        assert!(Befall::ALL.iter().any(|befall| impossible(stage, *befall).is_none()), "{stage:?}");
    }
}
