//! Epochs: when nothing that began earlier can still be under way.
//!
//! Always true: the epoch only goes up, by one; a session acknowledges no epoch that was not raised, and never an older one
//! than before; [`Epochs::quiesced`] is acknowledged by every session that isn't fenced. What is to wait until nobody can
//! use it any more takes [`Epochs::target`] when it was made unreachable, and is free once that is quiesced.
//!
//! ⚑ The epoch is raised only after the last directory word of a rebuild was published; whoever raises it sees to that.

use std::collections::{BTreeMap, VecDeque};

use sidestep_common::fabric::SessionId;
use sidestep_common::wire::{DirectoryChanges, DirectoryRun};

/// The epoch of a region without a past.
pub const FIRST_EPOCH: u64 = 1;
/// Changed runs that are remembered; a session that is further behind reads the whole directory.
const RUNS_REMEMBERED: usize = 4096;

/// A session acknowledged what can't be.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum AcknowledgeError {
    /// An epoch to come.
    #[error("epoch {epoch} is acknowledged, the newest is {newest}")]
    NotYet {
        /// As acknowledged.
        epoch: u64,
        /// The newest.
        newest: u64,
    },
    /// An older one than before.
    #[error("epoch {epoch} is older than {acknowledged}, acknowledged earlier")]
    Backwards {
        /// As acknowledged.
        epoch: u64,
        /// As acknowledged earlier.
        acknowledged: u64,
    },
}

/// Who has acknowledged which epoch.
#[derive(Debug)]
pub struct Epochs {
    newest: u64,
    /// What sessions that are not fenced have acknowledged.
    acknowledged: BTreeMap<SessionId, u64>,
    /// Directory entries changed, with the epoch that was raised after.
    changed: VecDeque<(u64, DirectoryRun)>,
    /// Runs changed before the epoch behind this one are forgotten.
    forgotten: u64,
    /// Runs changed since the newest epoch.
    unannounced: Vec<DirectoryRun>,
    /// Somebody waits for an epoch that is to come.
    is_wanted: bool,
}

impl Default for Epochs {
    fn default() -> Self {
        Self::new()
    }
}

impl Epochs {
    /// Of a region without sessions.
    pub const fn new() -> Self {
        Self {
            newest: FIRST_EPOCH,
            acknowledged: BTreeMap::new(),
            changed: VecDeque::new(),
            forgotten: FIRST_EPOCH,
            unannounced: Vec::new(),
            is_wanted: false,
        }
    }

    /// The newest.
    pub const fn newest(&self) -> u64 {
        self.newest
    }

    /// The newest that every session has acknowledged that isn't fenced.
    pub fn quiesced(&self) -> u64 {
        self.acknowledged.values().copied().min().unwrap_or(self.newest)
    }

    /// A session begins: it knows nothing from before the newest epoch, which it gets.
    pub fn join(&mut self, session: SessionId) -> u64 {
        self.acknowledged.insert(session, self.newest);
        self.newest
    }

    /// A session was fenced: nothing of it can take effect any more.
    pub fn leave(&mut self, session: SessionId) {
        self.acknowledged.remove(&session);
    }

    /// A session acknowledges `epoch`. One that isn't known was fenced, and says nothing.
    ///
    /// # Errors
    /// [`AcknowledgeError`]; nothing was changed.
    pub fn acknowledge(&mut self, session: SessionId, epoch: u64) -> Result<(), AcknowledgeError> {
        let newest = self.newest;
        if epoch > newest {
            return Err(AcknowledgeError::NotYet { epoch, newest });
        }
        let Some(acknowledged) = self.acknowledged.get_mut(&session) else { return Ok(()) };
        if epoch < *acknowledged {
            return Err(AcknowledgeError::Backwards { epoch, acknowledged: *acknowledged });
        }
        *acknowledged = epoch;
        Ok(())
    }

    /// What a session has acknowledged, if it isn't fenced.
    pub fn acknowledged(&self, session: SessionId) -> Option<u64> {
        self.acknowledged.get(&session).copied()
    }

    /// The epoch to wait for: once it is quiesced, nobody does anything any more that began before now. It is raised
    /// soon.
    pub const fn target(&mut self) -> u64 {
        self.is_wanted = true;
        self.newest + 1
    }

    /// Somebody wants the epoch raised.
    pub const fn want(&mut self) {
        self.is_wanted = true;
    }

    /// Notes directory entries whose words were just published.
    pub fn note_change(&mut self, run: DirectoryRun) {
        self.is_wanted = true;
        self.unannounced.push(run);
    }

    /// Whether the epoch should be raised: somebody waits, and nobody is still to acknowledge the newest one. So a session
    /// that is slow is not hurried, and one that is quick is not asked at every change.
    pub fn should_raise(&self) -> bool {
        self.is_wanted && self.quiesced() == self.newest
    }

    /// Raises the epoch. ⚑ No rebuild may be between its first and its last directory word.
    pub fn raise(&mut self) -> u64 {
        self.newest += 1;
        self.is_wanted = false;
        self.changed.extend(self.unannounced.drain(..).map(|run| (self.newest, run)));
        while self.changed.len() > RUNS_REMEMBERED {
            if let Some((epoch, _)) = self.changed.pop_front() {
                self.forgotten = epoch;
            }
        }
        self.newest
    }

    /// Entries changed since `session` acknowledged last.
    pub fn changes_for(&self, session: SessionId) -> DirectoryChanges {
        let since = self.acknowledged.get(&session).copied().unwrap_or(0);
        if since < self.forgotten && since < self.newest {
            return DirectoryChanges::All;
        }
        let from = self.changed.partition_point(|(epoch, _)| *epoch <= since);
        if self.changed.len() - from > DirectoryChanges::RUNS_MAX {
            return DirectoryChanges::All;
        }
        DirectoryChanges::Runs(self.changed.range(from..).map(|(_, run)| *run).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: SessionId = SessionId(1);
    const B: SessionId = SessionId(2);

    fn run(first: u32) -> DirectoryRun {
        DirectoryRun { first, count: 1 }
    }

    #[test]
    fn the_slowest_session_decides_until_it_is_fenced() {
        let mut epochs = Epochs::new();
        assert_eq!((epochs.join(A), epochs.join(B)), (1, 1));
        let target = epochs.target();
        assert!(epochs.should_raise());
        assert_eq!(epochs.raise(), target);
        assert!(epochs.quiesced() < target);
        epochs.acknowledge(A, target).unwrap();
        assert!(epochs.quiesced() < target, "B hasn't");
        epochs.leave(B);
        assert_eq!(epochs.quiesced(), target);
        epochs.leave(A);
        assert_eq!(epochs.quiesced(), target, "nobody is there to wait for");
    }

    #[test]
    fn a_new_session_holds_up_nothing_from_before_it() {
        let mut epochs = Epochs::new();
        epochs.join(A);
        epochs.want();
        let raised = epochs.raise();
        assert_eq!(epochs.join(B), raised);
        epochs.acknowledge(A, raised).unwrap();
        assert_eq!(epochs.quiesced(), raised);
    }

    #[test]
    fn nobody_is_hurried() {
        let mut epochs = Epochs::new();
        epochs.join(A);
        epochs.want();
        epochs.raise();
        let later = epochs.target();
        assert!(!epochs.should_raise(), "A is still to acknowledge the last one");
        epochs.acknowledge(A, epochs.newest()).unwrap();
        assert!(epochs.should_raise());
        assert_eq!(epochs.raise(), later);
    }

    #[test]
    fn what_cannot_be_acknowledged_is_refused() {
        let mut epochs = Epochs::new();
        epochs.join(A);
        assert_eq!(epochs.acknowledge(A, 2), Err(AcknowledgeError::NotYet { epoch: 2, newest: 1 }));
        epochs.want();
        epochs.raise();
        epochs.acknowledge(A, 2).unwrap();
        assert_eq!(epochs.acknowledge(A, 1), Err(AcknowledgeError::Backwards { epoch: 1, acknowledged: 2 }));
        assert_eq!(epochs.acknowledge(B, 2), Ok(()), "a fenced one says nothing");
        assert_eq!(epochs.acknowledged(B), None);
    }

    #[test]
    fn sessions_hear_of_what_changed_since_they_acknowledged() {
        let mut epochs = Epochs::new();
        epochs.join(A);
        assert_eq!(epochs.changes_for(A), DirectoryChanges::Runs(vec![]));
        epochs.note_change(run(5));
        epochs.raise();
        epochs.note_change(run(7));
        epochs.raise();
        assert_eq!(epochs.changes_for(A), DirectoryChanges::Runs(vec![run(5), run(7)]));
        epochs.acknowledge(A, 2).unwrap();
        assert_eq!(epochs.changes_for(A), DirectoryChanges::Runs(vec![run(7)]));
        assert_eq!(epochs.changes_for(B), DirectoryChanges::All, "of a stranger nothing is known");
    }

    #[test]
    fn too_many_changes_are_all() {
        let mut epochs = Epochs::new();
        epochs.join(A);
        epochs.join(B);
        for entry in 0..=RUNS_REMEMBERED as u32 {
            epochs.note_change(run(entry));
            epochs.raise();
            if entry as usize >= RUNS_REMEMBERED - DirectoryChanges::RUNS_MAX {
                continue;
            }
            epochs.acknowledge(B, epochs.newest()).unwrap();
        }
        assert_eq!(epochs.changes_for(A), DirectoryChanges::All);
        assert_eq!(epochs.changes_for(B), DirectoryChanges::All, "one more than a message takes");
        epochs.acknowledge(B, epochs.newest() - 3).unwrap();
        let DirectoryChanges::Runs(runs) = epochs.changes_for(B) else { panic!("three are few") };
        assert_eq!(runs.len(), 3);
    }
}
