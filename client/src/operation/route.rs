//! From a key's hash to its bucket: the directory's part in every operation.
//!
//! Always true: a bucket's words are used only after its header was found to serve the hash. An old copy of the
//! directory costs a READ of one directory word and never a wrong answer.

use sidestep_common::fabric::Reply;
use sidestep_common::hash::KeyHash;
use sidestep_common::layout::{BUCKET_BYTES, Bucket, DirectoryWord, Offset};
use sidestep_common::planted::{Fault, is_planted};
use sidestep_common::wire::BucketReport;

use super::{Action, Context, OperationError, PlannedVerb};

/// How an operation finds its bucket.
#[derive(Debug)]
pub(super) struct Route {
    /// The key's hash.
    pub(super) hash: KeyHash,
    /// The directory word by which the bucket was found.
    word: DirectoryWord,
    /// Where the bucket is.
    bucket: Offset,
    /// When its READ was posted.
    pub(super) posted_ms: u64,
}

/// What a bucket's header means for an operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Header {
    /// It serves the key and is open.
    Open,
    /// It served the key; a rebuild has sealed it and the directory says whether the words still count.
    Sealed,
    /// It serves other keys: the directory is out of date.
    Foreign,
}

impl Route {
    pub(super) const fn new(hash: KeyHash) -> Self {
        Self { hash, word: DirectoryWord::from_bits(0), bucket: Offset(0), posted_ms: 0 }
    }

    /// The READ of the bucket, by the directory as it is known now.
    pub(super) fn read_bucket(&mut self, context: &Context<'_>) -> Result<PlannedVerb, OperationError> {
        let geometry = &context.superblock.geometry;
        let index = self.hash.directory_index(geometry.directory_bits);
        self.word = context.directory.word(index);
        self.bucket = geometry.bucket_offset(self.word, self.hash).ok_or(OperationError::Corrupt {
            offset: geometry.directory_word_offset(index),
            what: "a directory word names no segment",
        })?;
        self.posted_ms = context.now_ms;
        Ok(PlannedVerb {
            subject: "bucket",
            remote: self.bucket,
            action: Action::Read(BUCKET_BYTES as usize),
        })
    }

    /// What the header of the bucket read means.
    pub(super) fn judge(&self, bucket: &Bucket) -> Header {
        match bucket.header {
            header if !header.serves(self.hash) && !is_planted(Fault::HeaderUnchecked) => Header::Foreign,
            header if header.sealed => Header::Sealed,
            _ => Header::Open,
        }
    }

    /// The READ of this key's directory word.
    pub(super) fn read_directory(&self, context: &Context<'_>) -> PlannedVerb {
        let geometry = &context.superblock.geometry;
        let index = self.hash.directory_index(geometry.directory_bits);
        PlannedVerb {
            subject: "directory",
            remote: geometry.directory_word_offset(index),
            action: Action::Read(8),
        }
    }

    /// Learns a directory word just read; says whether it still names the segment that was used. A word that was
    /// published before the one that was used is corruption: whoever went back to the one that is known would come here
    /// again, without end.
    pub(super) fn learn(&self, context: &Context<'_>, reply: &Reply) -> Result<bool, OperationError> {
        let Reply::Read(buffer) = reply else { unreachable!("a directory READ brings bytes, not {reply:?}") };
        let mut bits = [0; 8];
        bits.copy_from_slice(&buffer.as_slice()[..8]);
        let word = DirectoryWord::from_bits(u64::from_le_bytes(bits));
        if word == self.word {
            return Ok(true);
        }
        let geometry = &context.superblock.geometry;
        let index = self.hash.directory_index(geometry.directory_bits);
        if !word.is_newer_than(self.word) {
            let offset = geometry.directory_word_offset(index);
            return Err(OperationError::Corrupt { offset, what: "a directory word has gone back" });
        }
        if !is_planted(Fault::DirectoryNotLearned) {
            context.directory.learn(index, word);
        }
        Ok(false)
    }

    /// What is to be said of the bucket to the server.
    pub(super) const fn report(&self, context: &Context<'_>, full: bool) -> BucketReport {
        let entry = self.hash.directory_index(context.superblock.geometry.directory_bits) as u32;
        BucketReport { entry, generation: self.word.generation, full }
    }

    /// Where a slot of the bucket is.
    pub(super) const fn slot_offset(&self, slot: usize) -> Offset {
        self.bucket.plus(8 + 8 * slot as u64)
    }
}

/// The bucket that a READ brought.
pub(super) fn bucket_of(reply: Option<&Reply>) -> Bucket {
    match reply {
        Some(Reply::Read(buffer)) => Bucket::parse(buffer.as_slice()),
        other => unreachable!("a bucket READ brings bytes, not {other:?}"),
    }
}
