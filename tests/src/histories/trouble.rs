//! Why a run failed.

use std::process::ExitStatus;

use sidestep_client::Error;
use sidestep_client::fsck::SourceError;

use super::complaint::Complaint;
use super::log::LogError;
use super::worker::Alarm;
use crate::linearizability::Undecided;

/// Why a run failed.
#[derive(Debug, thiserror::Error)]
pub enum Trouble {
    /// A client process ended by itself, or not cleanly.
    #[error("client {client} ended with {status}: {said}")]
    Client {
        /// Its number.
        client: u16,
        /// How it ended.
        status: ExitStatus,
        /// What it said.
        said: String,
    },
    /// Nobody does anything any more.
    #[error("no client has written a record for {seconds} s, after {records} of them")]
    Standstill {
        /// How long.
        seconds: u64,
        /// All records before.
        records: u64,
    },
    /// The last reads saw something that must not be.
    #[error("the last look at all keys: {0}")]
    LastLook(#[source] Alarm),
    /// The last reads could not be made.
    #[error("no client for the last look at all keys: {0}")]
    NoLastLook(#[source] Error),
    /// A log can't be read.
    #[error(transparent)]
    Log(#[from] LogError),
    /// A history that no order explains.
    #[error(transparent)]
    NotLinearizable(Box<Complaint>),
    /// The checker gave up, which says nothing of the store.
    #[error("the history of {key} in life {life}, {events} operations: {undecided}")]
    Undecided {
        /// The key.
        key: String,
        /// Which life of the region.
        life: usize,
        /// Operations of the history.
        events: usize,
        /// What the checker said.
        undecided: Undecided,
    },
    /// The region is not sound.
    #[error("fsck finds {count} things wrong in the region, or its accounts don't balance:\n  {findings}")]
    Unsound {
        /// How many.
        count: u64,
        /// The first ones.
        findings: String,
    },
    /// Memory was lost.
    #[error("{end} large values fit at the end, {new} into a new region: less than {per_mille} per mille")]
    Leaked {
        /// As many fit into a new one.
        new: u64,
        /// And at the end.
        end: u64,
        /// What is wanted.
        per_mille: u64,
    },
    /// The region could not be looked at.
    #[error("fsck: {0}")]
    NotLookedAt(#[from] SourceError),
}
