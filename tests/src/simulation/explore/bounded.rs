//! Every schedule with few preemptions (Musuvathi, Qadeer 2007): whoever runs goes on until it is done, or is stopped at
//! one of few points; each set of points is tried, and each mishap at each step.
//!
//! Always true: who goes on when another is done costs no preemption, so all orders of whole clients are tried with none.
//! Nothing is left out but what needs more preemptions: sleep sets would leave out too much under a bound.
//!
//! What needs one to be stopped for long, and a block to be used again meanwhile, is a schedule with very few preemptions
//! at very few places: walks seldom meet it, and to try everything takes too long.

use super::random::actor;
use super::{Explored, Failure, is_fault};
use crate::simulation::fault::Befall;
use crate::simulation::world::{Choice, World};

/// One state on the path that is being tried.
struct Frame {
    /// What may happen here within the bound.
    choices: Vec<Choice>,
    /// Which of them is being tried.
    at: usize,
    /// Who ran before, and how many preemptions were left then.
    turn: Turn,
}

#[derive(Clone, Copy)]
struct Turn {
    current: Option<usize>,
    preemptions: u32,
}

/// Tries every schedule with at most so many preemptions, or `schedules_max` of them.
pub fn bounded(world: &mut World<'_>, preemptions: u32, schedules_max: u64) -> Explored {
    bounded_until(world, preemptions, schedules_max, &mut |_| true)
}

/// The same; `counts` says of a failure whether it is one to stop at.
pub(in crate::simulation) fn bounded_until(
    world: &mut World<'_>,
    preemptions: u32,
    schedules_max: u64,
    counts: &mut dyn FnMut(&Failure) -> bool,
) -> Explored {
    let mut explored = Explored::default();
    let mut path: Vec<Frame> = Vec::new();
    let mut choices = Vec::new();
    loop {
        world.reset(0);
        let mut turn = Turn { current: None, preemptions };
        for frame in &path {
            let choice = frame.choices[frame.at];
            turn = frame.turn.after(choice, &frame.choices);
            world.take(choice);
        }
        loop {
            world.choices(&mut choices);
            if choices.iter().all(|choice| is_fault(*choice)) {
                break;
            }
            turn.allow(&mut choices);
            let choice = choices[0];
            let next = turn.after(choice, &choices);
            world.take(choice);
            path.push(Frame { choices: std::mem::take(&mut choices), at: 0, turn });
            turn = next;
        }
        explored.schedules += 1;
        let taken = || path.iter().map(|frame| frame.choices[frame.at]);
        explored.befallen += u64::from(taken().any(is_fault));
        explored.crash_points +=
            u64::from(taken().any(|choice| matches!(choice, Choice::Befalls(_, Befall::Death))));
        if let Err(violation) = world.finish() {
            let failure = Failure { violation, schedule: taken().collect(), seed: None };
            if counts(&failure) {
                explored.failure = Some(failure);
                return explored;
            }
        }
        // Back to the last state that has something left to try.
        loop {
            let Some(frame) = path.last_mut() else { return explored };
            frame.at += 1;
            if frame.at < frame.choices.len() {
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

impl Turn {
    fn may_go_on(self, choices: &[Choice]) -> bool {
        choices.iter().any(|choice| !is_fault(*choice) && Some(actor(*choice)) == self.current)
    }

    /// Leaves what is within the bound: the one whose turn it is comes first, then the others, the last first, then
    /// mishaps. When one stands still all do, so that is tried once.
    fn allow(self, choices: &mut Vec<Choice>) {
        let goes_on = self.may_go_on(choices);
        let mut stands_still = false;
        choices.retain(|choice| match choice {
            Choice::Befalls(_, Befall::Standstill) => !std::mem::replace(&mut stands_still, true),
            _ if is_fault(*choice) => true,
            _ => !goes_on || self.preemptions > 0 || Some(actor(*choice)) == self.current,
        });
        choices.sort_by_key(|choice| {
            let actor = actor(*choice);
            (is_fault(*choice), Some(actor) != self.current, std::cmp::Reverse(actor))
        });
    }

    /// Whose turn it is after `choice`, which was made among these.
    fn after(self, choice: Choice, choices: &[Choice]) -> Self {
        if is_fault(choice) || Some(actor(choice)) == self.current {
            return self;
        }
        let spent = u32::from(self.may_go_on(choices));
        Self { current: Some(actor(choice)), preemptions: self.preemptions - spent }
    }
}
