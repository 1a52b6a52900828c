//! What is done to a run, and when.
//!
//! Always true: a plan follows from its case and its seed. When something is due is said by how far the clients are, not
//! by the clock, so on a slow machine it comes as often and in the same places.

use std::collections::VecDeque;
use std::fmt;

use super::dice::Dice;

/// A kind of run.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    /// Its name: that of the test.
    pub name: &'static str,
    /// Client processes at once.
    pub clients: u16,
    /// Sessions of each.
    pub sessions: u8,
    /// Calls of all together; there may be more.
    pub calls: u64,
    /// How often somebody is killed.
    pub kills: u64,
    /// How many are killed at once; 0 for one, now and then two.
    pub killed_at_once: u64,
    /// Bytes of the region, as the server is told; empty for what the fabric has here.
    pub memory: &'static str,
    /// Whether as much must fit into the region at the end as into a new one.
    pub measures_capacity: bool,
    /// How often somebody is stopped for longer than the lease.
    pub pauses: u64,
    /// How often somebody's connection is cut.
    pub cuts: u64,
    /// How often the server is killed and another started.
    pub restarts: u64,
    /// Of a thousand calls, how many have too little time.
    pub hasty_per_mille: u64,
    /// Mistakes that clients make, if they were built with the feature `simulation`: names of faults, with commas.
    pub plant: &'static str,
}

impl Case {
    /// Three clients with two sessions each, and nothing is done to them.
    pub const QUIET: Self = Self {
        name: "",
        clients: 3,
        sessions: 2,
        calls: 10_000,
        kills: 0,
        killed_at_once: 0,
        memory: "",
        measures_capacity: false,
        pauses: 0,
        cuts: 0,
        restarts: 0,
        hasty_per_mille: 0,
        plant: "",
    };

    /// Whether nothing happens that could be a reason for an error.
    pub const fn is_quiet(&self) -> bool {
        self.kills + self.pauses + self.cuts + self.restarts + self.hasty_per_mille == 0
    }
}

/// Something to be done.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Act {
    /// Kill so many clients at once, and start as many.
    Kill(u64),
    /// Stop a client.
    Pause,
    /// Cut a client's connection.
    Cut,
    /// Kill the server, and start another.
    Restart,
}

/// What is done, and after how many calls.
#[derive(Clone, Debug)]
pub struct Plan {
    acts: VecDeque<(u64, Act)>,
}

impl Plan {
    /// A plan for a run of `calls` calls.
    pub fn draw(case: &Case, calls: u64, dice: &mut Dice) -> Self {
        let mut acts = Vec::new();
        let mut add = |count, act: &dyn Fn(&mut Dice) -> Act| {
            acts.extend((0..count).map(|_| (calls / 20 + dice.below(calls * 9 / 10 + 1), act(dice))));
        };
        // Now and then several at once: they leave more behind at one moment.
        add(case.kills, &|dice| match case.killed_at_once {
            0 => Act::Kill(if dice.chance(300) { 2 } else { 1 }),
            all => Act::Kill(all),
        });
        add(case.pauses, &|_| Act::Pause);
        add(case.cuts, &|_| Act::Cut);
        add(case.restarts, &|_| Act::Restart);
        acts.sort_unstable();
        Self { acts: acts.into() }
    }

    /// What is due after so many calls, if anything is.
    pub fn due(&self, calls: u64) -> Option<Act> {
        self.acts.front().filter(|(at, _)| *at <= calls).map(|(_, act)| *act)
    }

    /// What was due is done.
    pub fn did(&mut self) {
        self.acts.pop_front();
    }

    /// Whether all was done.
    pub fn is_done(&self) -> bool {
        self.acts.is_empty()
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words: Vec<_> = self.acts.iter().map(|(at, act)| format!("{act:?} after {at}")).collect();
        write!(out, "{}", words.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_follows_from_its_seed_and_does_all_in_order() {
        let case = Case { kills: 5, pauses: 3, cuts: 4, restarts: 2, ..Case::QUIET };
        let draw = |seed| Plan::draw(&case, 1000, &mut Dice::new(seed));
        assert_eq!(draw(1).to_string(), draw(1).to_string());
        assert_ne!(draw(1).to_string(), draw(2).to_string());
        let mut plan = draw(3);
        assert_eq!(plan.due(0), None);
        let mut done = 0;
        for calls in 0..1000 {
            while plan.due(calls).is_some() {
                plan.did();
                done += 1;
            }
        }
        assert_eq!((done, plan.is_done()), (14, true));
        assert!(Case::QUIET.is_quiet() && !case.is_quiet());
    }
}
