//! A bed for any fabric whose memory node's side runs in this process.
//!
//! Always true: the pages right before and behind the node's mapping are guards that nothing but a fault can change,
//! wherever the system leaves room for them.

use std::any::Any;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Instant;

use rustix::mm::{MapFlags, ProtFlags};
use sidestep_common::fabric::{
    ConnectError, ConnectOptions, DeviceChoice, Fabric, FabricKind, Join, Rights, SessionId, Target, connect,
};
use sidestep_common::layout::Offset;
use sidestep_common::memory::{HugePages, Mapping, MappingOptions};

use super::{Bed, DEADLINE, DEPTH};

const REGION_BYTES: u64 = 8 << 20;
const BUFFER_LIMIT_BYTES: usize = 32 << 20;
const GUARD_BYTES: usize = 4096;
const GUARD: u8 = 0xa5;

/// A region of the size that the suite wants.
pub fn conformance_mapping() -> Arc<Mapping> {
    let options = MappingOptions {
        bytes: REGION_BYTES,
        huge_pages: HugePages::Off,
        threads: 1,
        name: "sidestep-conformance".into(),
    };
    Arc::new(Mapping::create(&options).expect("8 MiB of memory"))
}

/// A memory node in this process and its clients.
pub struct TargetBed {
    target: Arc<dyn Target>,
    mapping: Arc<Mapping>,
    peer: Option<IpAddr>,
    next_session: AtomicU32,
    guards: Vec<Guard>,
    /// Whatever else must live as long: acceptor threads and the like.
    _node: Box<dyn Any + Send + Sync>,
}

impl TargetBed {
    /// A bed around `target`, which serves `mapping` and is reached at `peer`. Keeps `node` alive.
    pub fn new(
        target: Arc<dyn Target>,
        mapping: Arc<Mapping>,
        peer: Option<IpAddr>,
        node: Box<dyn Any + Send + Sync>,
    ) -> Self {
        let base = mapping.base().as_ptr();
        let places = [base.wrapping_sub(GUARD_BYTES), base.wrapping_add(mapping.bytes() as usize)];
        let guards = places.into_iter().filter_map(Guard::at).collect();
        Self { target, mapping, peer, next_session: AtomicU32::new(1), guards, _node: node }
    }

    fn admit(&self, rights: Rights) -> (SessionId, Join) {
        let session = SessionId(self.next_session.fetch_add(1, Ordering::Relaxed));
        (session, self.target.admit(session, rights).expect("the target takes a session"))
    }

    fn join(&self, join: &Join, rights: Rights, depth: usize) -> Result<Box<dyn Fabric>, ConnectError> {
        let options = ConnectOptions {
            peer: self.peer,
            region_bytes: self.mapping.bytes(),
            rights,
            verbs_in_flight_max: depth,
            buffer_limit_bytes: BUFFER_LIMIT_BYTES,
            device: DeviceChoice::default(),
            deadline: Instant::now() + DEADLINE,
        };
        connect(join, &options)
    }
}

impl Bed for TargetBed {
    fn kind(&self) -> FabricKind {
        self.target.kind()
    }

    fn region_bytes(&self) -> u64 {
        self.mapping.bytes()
    }

    fn connect_with(&self, rights: Rights, depth: usize) -> (SessionId, Box<dyn Fabric>) {
        let (session, join) = self.admit(rights);
        (session, self.join(&join, rights, depth).expect("a session joins"))
    }

    fn connect_with_wrong_key(&self) -> Option<Box<dyn Fabric>> {
        let (_, mut join) = self.admit(Rights::ReadWrite);
        match &mut join {
            Join::Shm { .. } => return None,
            Join::Tcp { rkey, .. } | Join::Verbs { rkey, .. } => *rkey ^= 0x0055_aa00,
        }
        Some(self.join(&join, Rights::ReadWrite, DEPTH).expect("a key is not looked at before it is used"))
    }

    fn join_twice(&self) -> Option<Result<Box<dyn Fabric>, ConnectError>> {
        let (_, join) = self.admit(Rights::ReadWrite);
        let first = self.join(&join, Rights::ReadWrite, DEPTH).expect("a fresh ticket");
        let second = self.join(&join, Rights::ReadWrite, DEPTH);
        drop(first);
        Some(second)
    }

    fn join_after_fence(&self) -> Option<Result<Box<dyn Fabric>, ConnectError>> {
        let (session, join) = self.admit(Rights::ReadWrite);
        assert!(self.target.fence(session), "a session that never joined has nothing to be revoked");
        Some(self.join(&join, Rights::ReadWrite, DEPTH))
    }

    fn fence(&self, session: SessionId) -> bool {
        self.target.fence(session)
    }

    fn peek(&self, offset: u64, into: &mut [u8]) {
        self.mapping.words().read(Offset(offset), into).expect("inside the region");
    }

    fn poke(&self, offset: u64, from: &[u8]) {
        self.mapping.words().write(Offset(offset), from).expect("inside the region");
    }

    fn outside_untouched(&self) -> Option<bool> {
        if self.guards.is_empty() {
            return None;
        }
        Some(self.guards.iter().all(Guard::is_intact))
    }
}

/// A page that nobody uses.
struct Guard(*mut u8);

// SAFETY: a page of this process, bound to no thread.
unsafe impl Send for Guard {}
// SAFETY: as above; it is only read after it was made.
unsafe impl Sync for Guard {}

impl Guard {
    fn at(place: *mut u8) -> Option<Self> {
        // SAFETY: without replacing anything: where something is mapped already, this fails.
        let mapped = unsafe {
            rustix::mm::mmap_anonymous(
                place.cast(),
                GUARD_BYTES,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE | MapFlags::FIXED_NOREPLACE,
            )
        };
        let guard = Self(mapped.ok()?.cast());
        if guard.0 != place {
            return None;
        }
        // SAFETY: the page was just mapped for writing, and nobody else knows of it.
        unsafe { guard.0.write_bytes(GUARD, GUARD_BYTES) };
        Some(guard)
    }

    fn is_intact(&self) -> bool {
        (0..GUARD_BYTES).all(|at| {
            let byte = self.0.wrapping_add(at);
            // SAFETY: inside the page; volatile, since what is looked for is somebody writing behind our back.
            let byte = unsafe { byte.read_volatile() };
            byte == GUARD
        })
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        // SAFETY: mapped in `at`, and nobody else knows of it.
        let _ = unsafe { rustix::mm::munmap(self.0.cast(), GUARD_BYTES) };
    }
}
