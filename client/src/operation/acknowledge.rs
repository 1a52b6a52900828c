//! What a session does before it acknowledges an epoch.
//!
//! Always true: it begins while no operation of the session is under way and no CAS of its is unresolved, and is done only
//! when ⚑ the directory's changed words are known and, in this order, every verb that the session posted before has
//! executed: verbs of a session execute in the order posted, so a READ that has come back tells it of all before it.
//!
//! ```text
//! learn epoch ─▶ READ changed directory words ─▶ all verbs posted before are done, words known ─▶ acknowledge
//! ```
//!
//! What cached locations there are in retired segments is dropped in between.

use sidestep_common::fabric::Reply;
use sidestep_common::layout::{DirectoryWord, Offset};
use sidestep_common::planted::{Fault, is_planted};
use sidestep_common::wire::{DirectoryChanges, DirectoryRun};

use super::{Action, Context, Operation, Plan, PlannedVerb, Step};

/// READs that share a doorbell at the most.
const READS_TOGETHER: usize = 32;
/// Bytes that they bring at the most.
const BYTES_TOGETHER: usize = 512 << 10;

/// Refreshes the directory and waits for what was posted before.
#[derive(Debug)]
pub struct Acknowledge {
    epoch: u64,
    changes: DirectoryChanges,
    /// Entries to be read, the next ones last; none before the first step.
    rest: Option<Vec<DirectoryRun>>,
    /// Those whose READs are out.
    out: Vec<DirectoryRun>,
    posted: bool,
    /// READs that share a doorbell.
    together: usize,
}

/// Whether a session may begin. ⚑ While the fate of a CAS is unknown the operation is not over, though its queue pair was
/// fenced.
pub fn may_begin(is_unresolved: bool) -> bool {
    !is_unresolved || is_planted(Fault::AcknowledgedUnresolved)
}

impl Acknowledge {
    /// For that epoch, which came with these changes of the directory since the one acknowledged before.
    pub const fn new(epoch: u64, changes: DirectoryChanges) -> Self {
        Self { epoch, changes, rest: None, out: Vec::new(), posted: false, together: READS_TOGETHER }
    }

    fn learn(&self, context: &Context<'_>, replies: &[Reply]) {
        if is_planted(Fault::AcknowledgedBeforeRefresh) {
            return;
        }
        for (run, reply) in self.out.iter().zip(replies) {
            let Reply::Read(buffer) = reply else { unreachable!("a READ brings bytes, not {reply:?}") };
            for (entry, word) in (u64::from(run.first)..).zip(buffer.as_slice().as_chunks::<8>().0) {
                context.directory.learn(entry, DirectoryWord::from_bits(u64::from_le_bytes(*word)));
            }
        }
    }

    /// The READs of the next entries.
    fn next(&mut self, context: &Context<'_>) -> Plan {
        let geometry = &context.superblock.geometry;
        let rest = self.rest.get_or_insert_with(|| runs(&self.changes, geometry.directory_entries()));
        self.out.clear();
        let mut bytes = 0;
        while self.out.len() < self.together && bytes < BYTES_TOGETHER {
            let Some(run) = rest.pop() else { break };
            bytes += run.count as usize * 8;
            self.out.push(run);
        }
        let read = |run: &DirectoryRun| PlannedVerb {
            subject: "directory",
            remote: geometry.directory_word_offset(run.first.into()),
            action: Action::Read(run.count as usize * 8),
        };
        self.out.iter().map(read).collect()
    }
}

/// The runs to be read, in pieces that a READ may have; what is no entry is left out. Runs that come to more than the
/// directory are no help: then all of it is read, once.
fn runs(changes: &DirectoryChanges, entries: u64) -> Vec<DirectoryRun> {
    let all = [DirectoryRun { first: 0, count: u32::try_from(entries).unwrap_or(u32::MAX) }];
    let changed = match changes {
        DirectoryChanges::Runs(runs)
            if runs.iter().map(|run| u64::from(run.count)).sum::<u64>() <= entries =>
        {
            runs
        }
        DirectoryChanges::Runs(_) | DirectoryChanges::All => &all[..],
    };
    let mut pieces = Vec::new();
    for run in changed {
        let (mut first, end) =
            (u64::from(run.first), entries.min(u64::from(run.first) + u64::from(run.count)));
        while first < end {
            let count = (end - first).min(BYTES_TOGETHER as u64 / 8);
            pieces.push(DirectoryRun { first: first as u32, count: count as u32 });
            first += count;
        }
    }
    pieces
}

impl Operation for Acknowledge {
    /// The epoch that may be acknowledged now.
    type Output = u64;

    fn step(&mut self, context: &mut Context<'_>, replies: &[Reply]) -> Step<u64> {
        self.learn(context, replies);
        let mut plan = self.next(context);
        let waits = !std::mem::replace(&mut self.posted, true) && !is_planted(Fault::AcknowledgedBeforeMarks);
        if plan.is_empty() && waits {
            // Nothing has changed: any READ tells that the verbs before it are done.
            plan.push(PlannedVerb { subject: "superblock", remote: Offset(0), action: Action::Read(8) });
        }
        if plan.is_empty() {
            return Step::Done(Ok(self.epoch), None);
        }
        Step::Post(plan)
    }

    fn spread(&mut self, verbs_max: usize) {
        self.together = self.together.min(verbs_max).max(1);
    }

    fn block_pieces(&self) -> (&[u8], &[u8]) {
        (&[], &[])
    }

    fn restarts(&self) -> u32 {
        0
    }

    fn stage(&self) -> &'static str {
        "acknowledge"
    }
}
