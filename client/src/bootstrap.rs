//! The first READs of a session: is this the region that the server described, and where is everything.
//!
//! Always true: no operation runs before the superblock that was READ over the data path equals the one that
//! came over the control channel. That catches a data path into another region or another life of the server.

use sidestep_common::fabric::Reply;
use sidestep_common::layout::{Offset, SizeClass, Superblock};
use sidestep_common::wire::{BucketReport, ChunkPurpose};

use crate::allocator::Allocator;
use crate::clock::Deadline;
use crate::directory::Directory;
use crate::driver::{Driver, Ground, Stop};
use crate::error::Error;
use crate::operation::{Action, Context, Hints, Operation, Plan, PlannedVerb, Step, WriteIds};
use crate::region_view::RegionView;

/// Bytes fetched with one READ.
const PIECE_BYTES: usize = 512 << 10;

/// A READ of a piece of the region, of no particular meaning.
pub(crate) struct ReadPiece {
    subject: &'static str,
    offset: Offset,
    bytes: usize,
    posted: bool,
}

impl ReadPiece {
    /// The first `bytes` of the region.
    pub(crate) const fn probe(bytes: usize) -> Self {
        Self::of("superblock", Offset(0), bytes)
    }

    /// `bytes` at `offset`, which the caller has checked to be in the region.
    pub(crate) const fn of(subject: &'static str, offset: Offset, bytes: usize) -> Self {
        Self { subject, offset, bytes, posted: false }
    }
}

impl Operation for ReadPiece {
    type Output = ();

    fn step(&mut self, _context: &mut Context<'_>, _replies: &[Reply]) -> Step<()> {
        if std::mem::replace(&mut self.posted, true) {
            return Step::Done(Ok(()), None);
        }
        let action = Action::Read(self.bytes);
        Step::Post(Plan::from_iter([PlannedVerb { subject: self.subject, remote: self.offset, action }]))
    }

    fn block_pieces(&self) -> (&[u8], &[u8]) {
        (&[], &[])
    }

    fn restarts(&self) -> u32 {
        0
    }

    fn stage(&self) -> &'static str {
        self.subject
    }
}

/// Ground for READs that need nothing.
struct Bare<'a> {
    superblock: &'a Superblock,
    directory: Directory,
    allocator: Allocator,
    write_ids: WriteIds,
    hints: Hints,
}

impl Ground for Bare<'_> {
    fn context(&mut self, now_ms: u64) -> Context<'_> {
        Context {
            superblock: self.superblock,
            directory: &self.directory,
            allocator: &mut self.allocator,
            write_ids: &mut self.write_ids,
            hints: &mut self.hints,
            now_ms,
        }
    }

    fn ask_memory(&mut self, _: SizeClass, _: ChunkPurpose, _: Deadline) -> Result<(), Error> {
        unreachable!("a READ of a piece needs no block memory")
    }

    fn report_bucket(&mut self, _: BucketReport, _: Deadline) -> Result<bool, Error> {
        unreachable!("a READ of a piece looks at no bucket")
    }
}

/// Reads `bytes` at `offset` over the data path.
fn read(
    driver: &mut Driver,
    superblock: &Superblock,
    endpoint: &str,
    (subject, offset, bytes): (&'static str, Offset, usize),
    deadline: Deadline,
) -> Result<Vec<u8>, Error> {
    let mut ground = Bare {
        superblock,
        directory: Directory::from_bytes(&[]),
        allocator: Allocator::new(),
        write_ids: WriteIds::new(0, 0),
        hints: Hints::default(),
    };
    let kind = driver.fabric().kind();
    let mut copy =
        Err(Error::Protocol { endpoint: endpoint.to_owned(), reason: "a READ brought nothing".into() });
    driver.run(&mut ground, &mut [ReadPiece::of(subject, offset, bytes)], deadline, |finished| {
        copy = match (finished.result, finished.replies.first()) {
            (Ok(()), Some(Reply::Read(buffer))) => Ok(buffer.as_slice().to_vec()),
            (Ok(()), _) => return,
            (Err(Stop::Error(error)), _) => Err(error),
            (Err(Stop::Timeout(_)), _) => Err(Error::Timeout {
                endpoint: endpoint.to_owned(),
                after_ms: deadline.whole_ms(),
                doing: "reading the region for the first time",
                effect: sidestep_common::fabric::Effect::No,
            }),
            (Err(Stop::Failed(failure, _, effect)), _) => {
                Err(Error::Failed { endpoint: endpoint.to_owned(), kind, failure, effect })
            }
        };
    });
    copy
}

/// Checks that the data path reaches the region that `superblock` describes.
pub(crate) fn check_region(
    driver: &mut Driver,
    superblock: &Superblock,
    endpoint: &str,
    deadline: Deadline,
) -> Result<(), Error> {
    let expected = superblock.encode();
    let found = read(driver, superblock, endpoint, ("superblock", Offset(0), expected.len()), deadline)?;
    if found != expected {
        let reason = match Superblock::parse(&found) {
            Err(error) => format!("the data path reaches something else: {error}"),
            Ok(other) => format!(
                "the data path reaches incarnation {:#x}, the control channel {:#x}",
                other.incarnation, superblock.incarnation
            ),
        };
        return Err(Error::Protocol { endpoint: endpoint.to_owned(), reason });
    }
    Ok(())
}

/// Reads the whole directory into a view that others use.
pub(crate) fn learn_directory(
    driver: &mut Driver,
    view: &RegionView,
    endpoint: &str,
    deadline: Deadline,
) -> Result<(), Error> {
    let directory = read_directory(driver, &view.superblock, endpoint, deadline)?;
    for entry in 0..view.superblock.geometry.directory_entries() {
        view.directory.learn(entry, directory.word(entry));
    }
    Ok(())
}

/// Reads the whole directory.
pub(crate) fn read_directory(
    driver: &mut Driver,
    superblock: &Superblock,
    endpoint: &str,
    deadline: Deadline,
) -> Result<Directory, Error> {
    let geometry = &superblock.geometry;
    let whole = geometry.directory_entries() as usize * 8;
    let mut bytes = Vec::with_capacity(whole);
    while bytes.len() < whole {
        let offset = geometry.directory_offset.plus(bytes.len() as u64);
        let piece = PIECE_BYTES.min(whole - bytes.len());
        bytes.extend(read(driver, superblock, endpoint, ("directory", offset, piece), deadline)?);
    }
    Ok(Directory::from_bytes(&bytes))
}
