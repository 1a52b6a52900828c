//! Doors for fuzz targets: a control channel on a socket that somebody else connected, and joining and operating over
//! a fabric that somebody else made. What is behind them is what sessions use.

use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use sidestep_common::fabric::{Fabric, Reply};
use sidestep_common::layout::{SizeClass, Superblock};
use sidestep_common::wire::{BucketReport, ChunkGrant, ChunkPurpose, Pulse, Request, Response, Welcome};

use crate::Error;
use crate::allocator::Allocator;
use crate::bootstrap::{check_region, read_directory};
use crate::clock::Deadline;
use crate::control::Control;
use crate::directory::Directory;
use crate::driver::{Driver, Ground, Stop};
use crate::link::SessionGround;
use crate::operation::change::{Change, Changed};
use crate::operation::get::Get;
use crate::operation::{Context, Hints, Operation, WriteIds};
use crate::region_view::RegionView;
use crate::statistics::{Counters, SharedCounters};

const ENDPOINT: &str = "fuzzing";

/// A session's control channel, and the block memory that it got over it.
pub struct Channel {
    control: Arc<Control>,
    ground: Option<SessionGround>,
    patience: Duration,
}

impl Channel {
    /// Exchanges preambles on `stream`. Each request has `patience`.
    ///
    /// # Errors
    /// [`Error`], as connecting's.
    pub fn open(stream: UnixStream, patience: Duration) -> Result<Self, Error> {
        let control = Arc::new(Control::over(stream, Deadline::after(patience))?);
        Ok(Self { control, ground: None, patience })
    }

    /// Sends a request and reads its response.
    ///
    /// # Errors
    /// [`Error`], also for a refusal.
    pub fn request(&self, request: &Request) -> Result<Response, Error> {
        self.control.request(request, Deadline::after(self.patience))
    }

    /// Whether the channel was given up.
    pub fn is_lost(&self) -> bool {
        self.control.is_lost()
    }

    /// Becomes the session that `welcome` describes.
    ///
    /// # Errors
    /// If its superblock is none.
    pub fn enter(&mut self, welcome: &Welcome) -> Result<Superblock, Error> {
        let superblock = Superblock::parse(&welcome.superblock)
            .map_err(|error| Error::from_superblock(ENDPOINT, error))?;
        let view = Arc::new(RegionView { superblock, directory: Directory::from_bytes(&[]) });
        let counters = SharedCounters::new(Counters::default());
        let ground = SessionGround::new(ENDPOINT.into(), &self.control, view, welcome.session, &counters);
        self.ground = Some(ground);
        Ok(superblock)
    }

    /// Gets block memory from the server.
    ///
    /// # Errors
    /// [`Error`], as an operation's that needs memory.
    ///
    /// # Panics
    /// If the session was not entered.
    pub fn get_memory(&mut self, class: SizeClass, purpose: ChunkPurpose) -> Result<(), Error> {
        let deadline = Deadline::after(self.patience);
        self.ground.as_mut().expect("a session").ask_memory(class, purpose, deadline)
    }

    /// The newest pulse that was said unasked and not taken yet.
    pub fn take_notice(&self) -> Option<Pulse> {
        self.control.news.take().pulse.map(|heard| heard.pulse)
    }

    /// Reports a bucket; says whether its segment will be rebuilt.
    ///
    /// # Errors
    /// [`Error`], as an insert's that finds no room.
    ///
    /// # Panics
    /// If the session was not entered.
    pub fn report_bucket(&mut self, report: BucketReport) -> Result<bool, Error> {
        let deadline = Deadline::after(self.patience);
        self.ground.as_mut().expect("a session").report_bucket(report, deadline)
    }

    /// The session's block memory.
    ///
    /// # Panics
    /// If the session was not entered.
    pub fn allocator(&mut self) -> &mut Allocator {
        &mut self.ground.as_mut().expect("a session").allocator
    }
}

/// What a joined session stands on; block memory comes out of a list.
struct Listed {
    superblock: Superblock,
    directory: Directory,
    allocator: Allocator,
    write_ids: WriteIds,
    hints: Hints,
    grants: Vec<ChunkGrant>,
}

impl Ground for Listed {
    fn context(&mut self, now_ms: u64) -> Context<'_> {
        Context {
            superblock: &self.superblock,
            directory: &self.directory,
            allocator: &mut self.allocator,
            write_ids: &mut self.write_ids,
            hints: &mut self.hints,
            now_ms,
        }
    }

    fn ask_memory(&mut self, class: SizeClass, purpose: ChunkPurpose, _: Deadline) -> Result<(), Error> {
        let Some(grant) = self.grants.pop() else {
            return Err(Error::OutOfMemory("no grant is left".into()));
        };
        self.allocator
            .add_asked(&self.superblock.geometry, (class, 1, purpose), &[grant])
            .map_err(|error| Error::from_grant(ENDPOINT, error))
    }

    /// This index never grows.
    fn report_bucket(&mut self, _: BucketReport, _: Deadline) -> Result<bool, Error> {
        Ok(false)
    }
}

/// A session that joined over a fabric.
pub struct Joined {
    driver: Driver,
    ground: Listed,
}

impl Joined {
    /// Joins the region that the server describes with `told`, over `fabric`. `grants` is the block memory that it may
    /// have, the last one first.
    ///
    /// # Errors
    /// [`Error`], as connecting's.
    pub fn new(
        fabric: Box<dyn Fabric>,
        told: &[u8],
        grants: Vec<ChunkGrant>,
        patience: Duration,
    ) -> Result<Self, Error> {
        let superblock = Superblock::parse(told).map_err(|error| Error::from_superblock(ENDPOINT, error))?;
        let mut driver = Driver::new(fabric, superblock.incarnation);
        let deadline = Deadline::after(patience);
        check_region(&mut driver, &superblock, ENDPOINT, deadline)?;
        let directory = read_directory(&mut driver, &superblock, ENDPOINT, deadline)?;
        let (allocator, write_ids) = (Allocator::new(), WriteIds::new(1, 0));
        let hints = Hints::default();
        Ok(Self { driver, ground: Listed { superblock, directory, allocator, write_ids, hints, grants } })
    }

    /// What the region says of itself.
    pub fn superblock(&self) -> &Superblock {
        &self.ground.superblock
    }

    /// The values of `keys`, got in step.
    ///
    /// # Errors
    /// For each key [`Error`], as a session's.
    pub fn get_many(&mut self, keys: &[&[u8]], patience: Duration) -> Vec<Result<Option<Vec<u8>>, Error>> {
        let seed = self.ground.superblock.hash_seed;
        let mut operations: Vec<_> = keys.iter().map(|key| Get::new(key, seed)).collect();
        self.run(&mut operations, patience, |found, replies| {
            found.map(|found| match &replies[found.reply] {
                Reply::Read(buffer) => buffer.as_slice()[found.value].to_vec(),
                other => panic!("a value is in a READ's buffer, not in {other:?}"),
            })
        })
    }

    /// Puts `value` at `key`.
    ///
    /// # Errors
    /// [`Error`], as a session's.
    ///
    /// # Panics
    /// If key or value is over its limit.
    pub fn put(&mut self, key: &[u8], value: &[u8], patience: Duration) -> Result<Changed, Error> {
        let seed = self.ground.superblock.hash_seed;
        self.change(Change::put(key, value, seed).expect("lengths within limits"), patience)
    }

    /// Deletes `key`.
    ///
    /// # Errors
    /// [`Error`], as a session's.
    ///
    /// # Panics
    /// If the key is over its limit.
    pub fn delete(&mut self, key: &[u8], patience: Duration) -> Result<Changed, Error> {
        let seed = self.ground.superblock.hash_seed;
        self.change(Change::delete(key, seed).expect("a length within limits"), patience)
    }

    fn change(&mut self, change: Change<'_>, patience: Duration) -> Result<Changed, Error> {
        self.run(&mut [change], patience, |changed, _| changed).remove(0)
    }

    /// Runs operations in step, as a session does.
    fn run<O: Operation, T>(
        &mut self,
        operations: &mut [O],
        patience: Duration,
        take: impl Fn(O::Output, &[Reply]) -> T,
    ) -> Vec<Result<T, Error>> {
        let deadline = Deadline::after(patience);
        let kind = self.driver.fabric().kind();
        let mut ended: Vec<Option<Result<T, Error>>> = operations.iter().map(|_| None).collect();
        self.driver.run(&mut self.ground, operations, deadline, |finished| {
            let result = match finished.result {
                Ok(output) => Ok(take(output, finished.replies)),
                Err(Stop::Error(error)) => Err(error),
                Err(Stop::Timeout(_)) => Err(Error::Unreachable {
                    endpoint: ENDPOINT.into(),
                    reason: "the deadline has passed".into(),
                }),
                Err(Stop::Failed(failure, _, effect)) => {
                    Err(Error::Failed { endpoint: ENDPOINT.into(), kind, failure, effect })
                }
            };
            assert!(ended[finished.index].replace(result).is_none(), "an operation ends once");
        });
        ended.into_iter().map(|result| result.expect("every operation ends")).collect()
    }
}
