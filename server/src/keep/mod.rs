//! Regions that outlive the process: `--keep DIR`.
//!
//! Always true: a region that is there is taken over whole, or the server doesn't start and says what doesn't fit; it is
//! never replaced by an empty one without being told to (by removing the file). Losing the host loses the data.

mod recovery;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use sidestep_common::layout::AtomicityDomain;
use sidestep_common::memory::{KeepError, KeptDirectory, Mapping, MappingError};

pub use recovery::{KeptChunk, NewLife, Recovered, RecoveryError, take_over};

use crate::region::{Region, random_incarnation};

/// A kept region can't be had. What was there is as it was.
#[derive(Debug, thiserror::Error)]
pub enum KeepStartError {
    /// The directory, or the file.
    #[error(transparent)]
    Keep(#[from] KeepError),
    /// Another size was asked for.
    #[error(
        "{path} holds a region of {found_bytes} bytes, {asked_bytes} were asked for (memory); give that size, or remove the file and what is in it",
        path = .path.display()
    )]
    Size {
        /// The file.
        path: PathBuf,
        /// Its length.
        found_bytes: u64,
        /// As asked.
        asked_bytes: u64,
    },
    /// The memory can't be had.
    #[error("region of {bytes} bytes: {source}")]
    Memory {
        /// As asked.
        bytes: u64,
        /// Why not.
        source: MappingError,
    },
    /// What is there can't be taken over.
    #[error("{path}: {source}; nothing of it was changed", path = .path.display())]
    Recovery {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: RecoveryError,
    },
}

/// A directory with a region's memory, locked for as long as this lives.
#[derive(Debug)]
pub struct Kept {
    directory: KeptDirectory,
    mapping: Arc<Mapping>,
    is_new: bool,
    is_finished: bool,
}

impl Drop for Kept {
    fn drop(&mut self) {
        // A start that failed leaves nothing behind.
        if !self.is_finished {
            self.directory.abandon();
        }
    }
}

impl Kept {
    /// Opens the region's memory in `path`, or makes it.
    ///
    /// # Errors
    /// [`KeepStartError`].
    pub fn open(path: &Path, asked_bytes: u64, threads: usize) -> Result<Self, KeepStartError> {
        let directory = KeptDirectory::lock(path)?;
        let page_bytes = directory.page_bytes();
        let bytes = asked_bytes.next_multiple_of(page_bytes.max(1));
        let (file, is_new) = match directory.existing()? {
            Some((_, found_bytes)) if found_bytes != bytes => {
                let path = directory.file_path();
                return Err(KeepStartError::Size { path, found_bytes, asked_bytes: bytes });
            }
            Some((file, _)) => (file, false),
            None => (directory.create(bytes)?, true),
        };
        match Mapping::keep(&file, bytes, page_bytes, threads, is_new) {
            Ok(mapping) => Ok(Self { directory, mapping: Arc::new(mapping), is_new, is_finished: !is_new }),
            Err(source) => {
                if is_new {
                    directory.abandon();
                }
                Err(KeepStartError::Memory { bytes, source })
            }
        }
    }

    /// The memory.
    pub const fn mapping(&self) -> &Arc<Mapping> {
        &self.mapping
    }

    /// Whether there was a region.
    pub const fn is_new(&self) -> bool {
        self.is_new
    }

    /// Takes the region over that is there; its chunks come with it.
    ///
    /// # Errors
    /// [`KeepStartError::Recovery`] says what doesn't fit.
    pub fn take_over(
        &self,
        domain: AtomicityDomain,
        grace_ms: u64,
    ) -> Result<(Region, Vec<KeptChunk>), KeepStartError> {
        let (words, path) = (self.mapping.words(), self.directory.file_path());
        let began = Instant::now();
        let recovered = take_over(words, NewLife { domain, grace_ms, incarnation: random_incarnation() })
            .map_err(|source| KeepStartError::Recovery { path: path.clone(), source })?;
        let Recovered { superblock, tick_ms, chunks, keys, mended } = recovered;
        let took_ms = began.elapsed().as_millis() as u64;
        tracing::info!(path = %path.display(), keys, chunks = chunks.len(), mended, took_ms, "took a region over");
        Ok((Region::taken_over(words, superblock, tick_ms), chunks))
    }

    /// A new file is a whole region by now.
    ///
    /// # Errors
    /// [`KeepError`].
    pub fn finish(&mut self) -> Result<(), KeepError> {
        if !self.is_finished {
            self.directory.finish()?;
            self.is_finished = true;
        }
        Ok(())
    }
}
