//! Walks through worlds that are too large to try all of.
//!
//! Always true: a walk is its seed. Three kinds take turns:
//! - uniform: each choice as likely as the others;
//! - few preemptions: a client goes on until one of few, randomly placed points;
//! - priorities (Burckhardt, Kothari, Musuvathi, Nagarakatte 2010): clients have random priorities, which change at a few
//!   random points; that finds orderings of depth d with a known probability.

use super::{Explored, Failure, is_fault};
use crate::simulation::fault::Befall;
use crate::simulation::random::draw;
use crate::simulation::world::{Choice, World};

/// How a walk chooses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Walk {
    /// Each choice as likely as the others.
    Uniform,
    /// A client goes on until one of so many points.
    Preemptions(u32),
    /// By priorities that change at so many points.
    Priorities(u32),
}

/// The kinds of walks, in turn.
const WALKS: [Walk; 4] = [Walk::Uniform, Walk::Preemptions(2), Walk::Priorities(3), Walk::Preemptions(4)];
/// Steps of a walk among which its points are placed.
const LENGTH: usize = 48;
/// One step in so many is something that befalls somebody, as long as there is.
const BEFALL_RARITY: usize = 12;

/// Walks `schedules` times, from seeds `seed`, `seed + 1` and so on.
pub fn random(world: &mut World<'_>, seed: u64, schedules: u64) -> Explored {
    let mut explored = Explored::default();
    let mut choices = Vec::new();
    let mut schedule = Vec::new();
    for number in 0..schedules {
        let seed = seed.wrapping_add(number);
        let kind = WALKS[(number % WALKS.len() as u64) as usize];
        let mut walker = Walker::new(seed, kind);
        world.reset(seed);
        schedule.clear();
        let mut befallen = false;
        loop {
            world.choices(&mut choices);
            if choices.iter().all(|choice| is_fault(*choice)) {
                break;
            }
            let choice = walker.choose(&choices);
            befallen |= is_fault(choice);
            explored.crash_points += u64::from(matches!(choice, Choice::Befalls(_, Befall::Death)));
            schedule.push(choice);
            world.take(choice);
        }
        explored.schedules += 1;
        explored.befallen += u64::from(befallen);
        if let Err(violation) = world.finish() {
            let schedule = schedule.clone();
            explored.failure = Some(Failure { violation, schedule, seed: Some(seed) });
            return explored;
        }
    }
    explored
}

/// Who is whose turn it is.
const ACTORS: usize = 16;

struct Walker {
    kind: Walk,
    random: u64,
    step: usize,
    points: Vec<usize>,
    priorities: [u32; ACTORS],
    current: usize,
}

impl Walker {
    fn new(seed: u64, kind: Walk) -> Self {
        let mut random = seed.wrapping_mul(0xd134_2543_de82_ef95) ^ 0x5eed;
        let count = match kind {
            Walk::Uniform => 0,
            Walk::Preemptions(count) | Walk::Priorities(count) => count,
        };
        let points = (0..count).map(|_| draw(&mut random, LENGTH)).collect();
        let mut priorities = [0; ACTORS];
        for priority in &mut priorities {
            *priority = 1000 + draw(&mut random, 1000) as u32;
        }
        let current = draw(&mut random, ACTORS);
        Self { kind, random, step: 0, points, priorities, current }
    }

    fn choose(&mut self, choices: &[Choice]) -> Choice {
        self.step += 1;
        let ordinary = choices.iter().position(|choice| is_fault(*choice)).unwrap_or(choices.len());
        if ordinary < choices.len() && draw(&mut self.random, BEFALL_RARITY) == 0 {
            return choices[ordinary + draw(&mut self.random, choices.len() - ordinary)];
        }
        let choices = &choices[..ordinary];
        let is_point = self.points.contains(&self.step);
        let wanted = match self.kind {
            Walk::Uniform => return choices[draw(&mut self.random, choices.len())],
            Walk::Preemptions(_) => {
                if is_point || choices.iter().all(|choice| actor(*choice) != self.current) {
                    self.current = actor(choices[draw(&mut self.random, choices.len())]);
                }
                self.current
            }
            Walk::Priorities(_) => {
                let highest = |walker: &Self| {
                    choices.iter().map(|choice| actor(*choice)).max_by_key(|actor| walker.priorities[*actor])
                };
                let first = highest(self).unwrap_or(0);
                if is_point {
                    // Below all others, and below those that were lowered before.
                    self.priorities[first] = 1000 - self.step.min(999) as u32;
                }
                highest(self).unwrap_or(first)
            }
        };
        let of_wanted = choices.iter().filter(|choice| actor(**choice) == wanted).count();
        let at = draw(&mut self.random, of_wanted);
        let chosen = choices.iter().filter(|choice| actor(**choice) == wanted).nth(at);
        chosen.copied().unwrap_or(choices[0])
    }
}

pub(super) fn actor(choice: Choice) -> usize {
    let number = match choice {
        Choice::Janitor => return ACTORS - 1,
        Choice::Verb(me)
        | Choice::Begin(me)
        | Choice::Network(me, _)
        | Choice::Rejoin(me)
        | Choice::Late(me)
        | Choice::Fence(me)
        | Choice::Befalls(me, _) => me,
    };
    usize::from(number) % (ACTORS - 1)
}
