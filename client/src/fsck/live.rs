//! A region that is being served, over any fabric.
//!
//! Always true: reads only, with a session's own READs; the memory node's CPU is asked for grants and nothing else. Should
//! the server be restarted meanwhile, the look ends with an error instead of mixing two regions.

use std::ops::Range;
use std::time::Duration;

use sidestep_common::layout::Superblock;
use sidestep_common::wire::GrantPage;

use super::{RegionSource, SourceError, Witness};
use crate::session::Session;

/// A region that is being served. For one whose superblock may be damaged, connect with
/// [`damaged_region`](crate::ClientBuilder::damaged_region).
#[derive(Debug)]
pub struct Live {
    session: Session,
    superblock: Superblock,
}

impl Live {
    /// The region that `session` reaches.
    ///
    /// # Errors
    /// [`SourceError`] if the session can't be joined.
    pub fn new(mut session: Session) -> Result<Self, SourceError> {
        let superblock = session.superblock()?;
        Ok(Self { session, superblock })
    }

    /// The session.
    pub const fn session(&mut self) -> &mut Session {
        &mut self.session
    }

    /// Whatever was just learnt is of the same region as all before.
    fn check_incarnation(&mut self) -> Result<(), SourceError> {
        let (expected, found) = (self.superblock.incarnation, self.session.superblock()?.incarnation);
        if found == expected { Ok(()) } else { Err(SourceError::Replaced { expected, found }) }
    }
}

impl RegionSource for Live {
    fn superblock(&self) -> Superblock {
        self.superblock
    }

    fn read(&mut self, pieces: &[Range<u64>], into: &mut Vec<u8>) -> Result<(), SourceError> {
        self.session.read_region(pieces, into)?;
        self.check_incarnation()
    }

    fn grants(&mut self, from: u64, count: u16) -> Result<GrantPage, SourceError> {
        let page = self.session.grants(from, count)?;
        self.check_incarnation()?;
        Ok(page)
    }

    fn uptime_ms(&mut self) -> Result<Option<u64>, SourceError> {
        let statistics = self.session.server_statistics()?;
        self.check_incarnation()?;
        Ok(Some(statistics.region_age_ms))
    }

    fn has_changed(&mut self, words: &[Witness]) -> Result<bool, SourceError> {
        let pieces: Vec<_> = words.iter().map(|(offset, _)| offset.0..offset.0 + 8).collect();
        let mut bytes = Vec::new();
        self.read(&pieces, &mut bytes)?;
        let words_now = bytes.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word));
        Ok(words_now.zip(words).any(|(now, (_, then))| now != *then))
    }

    fn is_live(&self) -> bool {
        true
    }

    fn pause(&mut self, time: Duration) {
        std::thread::sleep(time);
    }
}
