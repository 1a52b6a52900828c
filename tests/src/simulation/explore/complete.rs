//! Every schedule of a small world.
//!
//! Always true: of each set of schedules that differ only in the order of neighbouring steps which touch different memory,
//! belong to different clients, and are no return and no invocation across each other, at least one is run to its end.
//! Such schedules have the same answers and the same order in time, so one stands for all (Mazurkiewicz 1986). The
//! others are left out by sleep sets (Godefroid 1996): what was tried from a state sleeps in the branches tried after it
//! until something that conflicts with it happens.

use super::{Explored, Failure};
use crate::simulation::fault::Befall;
use crate::simulation::world::{Choice, Footprint, World};

/// One state on the path that is being tried.
struct Frame {
    choices: Vec<Choice>,
    /// Which of them is being tried.
    at: usize,
    /// What it did.
    footprint: Footprint,
    /// Choices that need not be tried here, with what they did when they were.
    asleep: Vec<(Choice, Footprint)>,
}

/// Tries every schedule, or `schedules_max` of them.
pub fn complete(world: &mut World<'_>, schedules_max: u64) -> Explored {
    complete_with(world, schedules_max, true, &mut |_| {})
}

/// The same; `prunes` says whether what nobody could tell apart is tried once only, and `ended` sees the world at the end
/// of each schedule.
pub(in crate::simulation) fn complete_with(
    world: &mut World<'_>,
    schedules_max: u64,
    prunes: bool,
    ended: &mut dyn FnMut(&World<'_>),
) -> Explored {
    let mut explored = Explored::default();
    let mut path: Vec<Frame> = Vec::new();
    let mut choices = Vec::new();
    loop {
        // Along the path to where it branches.
        world.reset(0);
        let mut asleep: Vec<(Choice, Footprint)> = Vec::new();
        let mut befallen = false;
        for frame in &mut path {
            let choice = frame.choices[frame.at];
            befallen |= super::is_fault(choice);
            frame.footprint = world.take(choice);
            asleep = if prunes { awake_after(&frame.asleep, &frame.footprint) } else { Vec::new() };
        }
        // And on from there, always the first that is awake.
        let is_whole = loop {
            world.choices(&mut choices);
            if choices.iter().all(|choice| super::is_fault(*choice)) {
                break true;
            }
            let Some(at) = first_awake(&choices, &asleep, 0) else { break false };
            let choice = choices[at];
            befallen |= super::is_fault(choice);
            explored.crash_points += u64::from(matches!(choice, Choice::Befalls(_, Befall::Death)));
            let footprint = world.take(choice);
            let after = if prunes { awake_after(&asleep, &footprint) } else { Vec::new() };
            path.push(Frame { choices: std::mem::take(&mut choices), at, footprint, asleep });
            asleep = after;
        };
        let schedule = || path.iter().map(|frame| frame.choices[frame.at]).collect();
        if is_whole {
            explored.schedules += 1;
            explored.befallen += u64::from(befallen);
            if let Err(violation) = world.finish() {
                explored.failure = Some(Failure { violation, schedule: schedule(), seed: None });
                return explored;
            }
            ended(world);
        } else if let Some(violation) = world.take_violation() {
            explored.failure = Some(Failure { violation, schedule: schedule(), seed: None });
            return explored;
        } else {
            explored.pruned += 1;
        }
        // Back to the last state that has something left to try.
        loop {
            let Some(frame) = path.last_mut() else { return explored };
            let tried = (frame.choices[frame.at], std::mem::take(&mut frame.footprint));
            if !prunes {
                frame.asleep.clear();
            }
            frame.asleep.push(tried);
            if let Some(next) = first_awake(&frame.choices, &frame.asleep, frame.at + 1) {
                frame.at = next;
                let choice = frame.choices[next];
                explored.crash_points += u64::from(matches!(choice, Choice::Befalls(_, Befall::Death)));
                break;
            }
            path.pop();
        }
        if explored.schedules >= schedules_max {
            explored.is_cut_short = true;
            return explored;
        }
    }
}

fn first_awake(choices: &[Choice], asleep: &[(Choice, Footprint)], from: usize) -> Option<usize> {
    (from..choices.len()).find(|at| asleep.iter().all(|entry| entry.0 != choices[*at]))
}

fn awake_after(asleep: &[(Choice, Footprint)], footprint: &Footprint) -> Vec<(Choice, Footprint)> {
    asleep.iter().filter(|entry| !entry.1.conflicts_with(footprint)).cloned().collect()
}
