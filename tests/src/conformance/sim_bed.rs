//! A bed on the simulated fabric, which tears, delays and repeats as much as the contract allows.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use sidestep_common::fabric::sim::{QueuePairId, SimFabric, SimNode};
use sidestep_common::fabric::{ConnectError, Fabric, FabricKind, Rights, SessionId};
use sidestep_common::layout::Offset;

use super::{Bed, DEPTH};

const REGION_BYTES: u64 = 8 << 20;
const BUFFER_LIMIT_BYTES: usize = 32 << 20;
/// Steps that the network takes whenever somebody looks at the memory: cases wait for effects that way.
const STEPS_A_LOOK: usize = 16;

/// A simulated node.
#[derive(Debug)]
pub struct SimBed {
    node: SimNode,
    sessions: Mutex<Vec<QueuePairId>>,
}

impl SimBed {
    /// A node with a seed of its own; all cases of a run have different ones, the same in each run.
    pub fn start() -> Self {
        static SEED: AtomicU64 = AtomicU64::new(0x5eed);
        // Only gives out numbers.
        let seed = SEED.fetch_add(2, Ordering::Relaxed);
        Self { node: SimNode::automatic(REGION_BYTES, seed), sessions: Mutex::new(Vec::new()) }
    }

    fn admit(&self, fabric: SimFabric) -> (SessionId, Box<dyn Fabric>) {
        let mut sessions = self.sessions.lock().expect("no case panicked inside");
        sessions.push(fabric.id());
        (SessionId(sessions.len() as u32), Box::new(fabric))
    }
}

impl Bed for SimBed {
    fn kind(&self) -> FabricKind {
        FabricKind::Sim
    }

    fn region_bytes(&self) -> u64 {
        self.node.bytes()
    }

    fn connect_with(&self, rights: Rights, depth: usize) -> (SessionId, Box<dyn Fabric>) {
        self.admit(self.node.connect(rights, depth, BUFFER_LIMIT_BYTES))
    }

    fn connect_with_wrong_key(&self) -> Option<Box<dyn Fabric>> {
        Some(self.admit(self.node.connect_with_wrong_key(DEPTH, BUFFER_LIMIT_BYTES)).1)
    }

    fn join_twice(&self) -> Option<Result<Box<dyn Fabric>, ConnectError>> {
        None
    }

    fn join_after_fence(&self) -> Option<Result<Box<dyn Fabric>, ConnectError>> {
        None
    }

    fn fence(&self, session: SessionId) -> bool {
        let id = self.sessions.lock().expect("no case panicked inside")[session.0 as usize - 1];
        self.node.fence(id);
        true
    }

    fn peek(&self, offset: u64, into: &mut [u8]) {
        self.node.advance(STEPS_A_LOOK);
        self.node.read(Offset(offset), into);
    }

    fn poke(&self, offset: u64, from: &[u8]) {
        self.node.write(Offset(offset), from);
    }

    fn outside_untouched(&self) -> Option<bool> {
        None
    }
}
