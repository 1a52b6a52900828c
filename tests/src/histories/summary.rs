//! What happened in a run, in one line.

use std::fmt;
use std::time::Duration;

use sidestep_client::FabricKind;

use super::history::Histories;
use super::record::{Ask, Ending};
use super::verdict::Checked;

/// What happened in a run.
#[derive(Clone, Debug)]
pub struct Summary {
    /// Over which fabric.
    pub fabric: FabricKind,
    /// The case's name.
    pub name: &'static str,
    /// The seed.
    pub seed: u64,
    /// Processes killed with SIGKILL, the server not counted.
    pub kills: u64,
    /// Processes stopped.
    pub pauses: u64,
    /// Of these, how many went on.
    pub resumed: u64,
    /// Connections cut.
    pub cuts: u64,
    /// Servers killed.
    pub restarts: u64,
    /// Calls.
    pub calls: u64,
    /// Of these: gets, puts and deletes.
    pub kinds: [u64; 3],
    /// Calls that ended with an error which says that they may have happened.
    pub unknown: u64,
    /// Calls that ended with an error which says that nothing happened.
    pub failed: u64,
    /// Calls whose process was killed before they returned.
    pub pending: u64,
    /// Keys.
    pub keys: usize,
    /// Lives of the region.
    pub lives: usize,
    /// Sessions opened at the last server.
    pub sessions: u64,
    /// Sessions fenced by the last server.
    pub fenced: u64,
    /// Block memory granted by the last server.
    pub granted_bytes: u64,
    /// Large values that fit into a new region, and into this one at its end; 0 if that was not measured.
    pub capacity: (u64, u64),
    /// What was checked.
    pub checked: Checked,
    /// How long it took until the histories were there.
    pub ran: Duration,
    /// And until they were checked.
    pub took: Duration,
}

impl Summary {
    /// Nothing happened yet.
    pub fn new(fabric: FabricKind, name: &'static str, seed: u64) -> Self {
        Self {
            fabric,
            name,
            seed,
            kills: 0,
            pauses: 0,
            resumed: 0,
            cuts: 0,
            restarts: 0,
            calls: 0,
            kinds: [0; 3],
            unknown: 0,
            failed: 0,
            pending: 0,
            keys: 0,
            lives: 0,
            sessions: 0,
            fenced: 0,
            granted_bytes: 0,
            capacity: (0, 0),
            checked: Checked::default(),
            ran: Duration::ZERO,
            took: Duration::ZERO,
        }
    }

    /// Counts what is in the histories.
    pub fn count(&mut self, histories: &Histories) {
        self.calls = histories.operations.len() as u64;
        self.keys = histories.keys().len();
        for operation in &histories.operations {
            let kind = match operation.ask {
                Ask::Get => 0,
                Ask::Put(_) => 1,
                Ask::Delete => 2,
            };
            self.kinds[kind] += 1;
            match operation.returned {
                None => self.pending += 1,
                Some((_, Ending::Unknown)) => self.unknown += 1,
                Some((_, Ending::Nothing)) => self.failed += 1,
                Some(_) => {}
            }
        }
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { fabric, name, seed, kills, pauses, cuts, restarts, calls, kinds, .. } = self;
        let [gets, puts, deletes] = kinds;
        let Self { unknown, failed, pending, keys, lives, sessions, fenced, granted_bytes, .. } = self;
        let (ran, all) = (self.ran.as_secs_f64(), self.took.as_secs_f64());
        write!(out, "histories {fabric} {name} seed {seed:#x}: ")?;
        write!(out, "{calls} calls ({gets} gets, {puts} puts, {deletes} deletes) of {keys} keys, ")?;
        write!(
            out,
            "{kills} kills, {pauses} pauses, {cuts} cuts, {restarts} restarts, {sessions} sessions, {fenced} fenced, "
        )?;
        write!(out, "{unknown} unknown, {failed} failed, {pending} pending; ")?;
        if let (new @ 1.., end) = self.capacity {
            write!(out, "{end} large values fit at the end, {new} at the start; ")?;
        }
        let Checked { histories, events, open, longest } = self.checked;
        write!(
            out,
            "checked {histories} histories in {lives} lives, {events} operations, {open} of them open, "
        )?;
        write!(
            out,
            "{longest} in the longest; {} MiB granted; {ran:.1} s, {:.1} s of checking",
            granted_bytes >> 20,
            all - ran
        )
    }
}
