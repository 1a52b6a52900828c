//! What was asked and answered in a run, out of its logs.
//!
//! Always true: an operation is in the history of each life of the region in which it can have taken effect. Where it is
//! not certain that it did, it may have taken effect there at any moment after it began, or never: that is said of more
//! operations than need be, which can hide a fault, and never of fewer, which could invent one.
//!
//! A session is joined to one life at a time and never to an earlier one than before. So a call before and after which it was
//! joined to the same life was made in that. Of a call between two lives nobody knows in which of them it took effect.

use std::collections::BTreeSet;
use std::fmt;
use std::ops::RangeInclusive;

use super::log::{self, LogError, LogFile};
use super::record::{Ask, Ending, Entry, Record};
use crate::linearizability::{Answer, Call, Event, Outcome};

/// A call.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Operation {
    /// Who made it.
    pub client: u16,
    /// In which session.
    pub session: u8,
    /// The record of the log that says so.
    pub position: u64,
    /// Of which key.
    pub key: u16,
    /// What was asked.
    pub ask: Ask,
    /// When.
    pub invoked: u64,
    /// When it returned and what, if it did before its process died.
    pub returned: Option<(u64, Ending)>,
    /// The lives of the region in which it can have taken effect, the first being 0.
    pub lives: RangeInclusive<usize>,
}

/// All calls of a run.
#[derive(Clone, Default, Debug)]
pub struct Histories {
    /// In no order.
    pub operations: Vec<Operation>,
}

impl Histories {
    /// Out of the logs of a run during which the region had the incarnations `lives`, one after the other.
    ///
    /// # Errors
    /// [`LogError`] if a log makes no sense.
    pub fn read(logs: &[LogFile], lives: &[u64]) -> Result<Self, LogError> {
        let mut all = Self::default();
        // A process that was killed soon may have begun no log.
        for file in logs.iter().filter(|file| file.path.exists()) {
            all.add(file, &log::read(&file.path)?, lives)?;
        }
        Ok(all)
    }

    /// The calls of one log.
    fn add(&mut self, file: &LogFile, records: &[Record], lives: &[u64]) -> Result<(), LogError> {
        // The life that the session was joined to at the last look.
        let mut life = 0;
        let mut look = |position: usize, incarnation: Option<u64>| {
            // A session without a connection will be joined to no earlier life.
            let Some(incarnation) = incarnation else { return Ok(None) };
            match lives.iter().position(|one| *one == incarnation) {
                Some(found) if found >= life => {
                    life = found;
                    Ok(Some(found))
                }
                _ => {
                    let (path, position) = (file.path.clone(), position as u64);
                    Err(LogError::WrongLife { path, position, incarnation })
                }
            }
        };
        let mut from = 0;
        let mut records = records.iter().enumerate();
        while let Some((position, record)) = records.next() {
            let out_of_turn =
                |position: usize| LogError::OutOfTurn { path: file.path.clone(), position: position as u64 };
            let Entry::Invoked(ask) = record.entry else { return Err(out_of_turn(position)) };
            from = look(position, record.incarnation)?.unwrap_or(from);
            let (mut returned, mut until) = (None, None);
            if let Some((position, next)) = records.next() {
                let Entry::Returned(ending) = next.entry else { return Err(out_of_turn(position)) };
                if next.key != record.key || next.time < record.time || !ending.fits(ask) {
                    return Err(out_of_turn(position));
                }
                returned = Some((next.time, ending));
                until = look(position, next.incarnation)?;
            }
            // Whoever did not come back, or came back without a connection, can have been joined to any life since.
            let lives = from..=until.unwrap_or(lives.len() - 1);
            from = until.unwrap_or(from);
            self.operations.push(Operation {
                client: file.client,
                session: file.session,
                position: position as u64,
                key: record.key,
                ask,
                invoked: record.time,
                returned,
                lives,
            });
        }
        Ok(())
    }

    /// The keys that were ever used.
    pub fn keys(&self) -> BTreeSet<u16> {
        self.operations.iter().map(|operation| operation.key).collect()
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { client, session, position, key, ask, invoked, returned, lives } = self;
        write!(
            out,
            "{invoked} ns: client {client} session {session}, record {position}: key {key}, {ask:?}, "
        )?;
        match returned {
            None => write!(out, "no return")?,
            Some((at, ending)) => write!(out, "{ending:?} at {at} ns")?,
        }
        if lives.start() != lives.end() {
            write!(out, ", in one of the lives {lives:?}")?;
        }
        Ok(())
    }
}

impl Operation {
    /// What it is to the checker, in the history of one life; `None` if it says nothing of that.
    pub fn event(&self, life: usize) -> Option<Event> {
        if !self.lives.contains(&life) {
            return None;
        }
        let call = match self.ask {
            Ask::Get => Call::Get,
            Ask::Put(number) => Call::Put(number.bits()),
            Ask::Delete => Call::Delete,
        };
        let is_certain = self.lives.start() == self.lives.end();
        let answer = match self.returned {
            Some((_, Ending::Nothing)) => return None,
            Some((at, ending)) if is_certain => ending.answer().map(|answer| (at, answer)),
            _ => None,
        };
        let outcome = match answer {
            Some((at, answer)) => Outcome::Returned { at, answer },
            None if self.ask == Ask::Get => return None,
            None => Outcome::Open,
        };
        Some(Event { call, invoked: self.invoked, outcome })
    }
}

impl Ending {
    /// Whether a call that asked this can end so.
    const fn fits(self, ask: Ask) -> bool {
        match self {
            Self::Found(_) | Self::Absent => matches!(ask, Ask::Get),
            Self::Stored => matches!(ask, Ask::Put(_)),
            Self::Existed | Self::NotThere => matches!(ask, Ask::Delete),
            Self::Unknown | Self::Nothing => true,
        }
    }

    /// What the caller was told, if it was told anything.
    const fn answer(self) -> Option<Answer> {
        match self {
            Self::Found(number) => Some(Answer::Value(Some(number.bits()))),
            Self::Absent => Some(Answer::Value(None)),
            Self::Stored => Some(Answer::Stored),
            Self::Existed => Some(Answer::Existed(true)),
            Self::NotThere => Some(Answer::Existed(false)),
            Self::Unknown | Self::Nothing => None,
        }
    }
}
