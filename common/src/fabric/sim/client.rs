//! A client's end of a simulated connection.

use std::time::{Duration, Instant};

use super::{Loss, QueuePairId, SimNode};
use crate::fabric::{Batch, BufferPool, Completion, Fabric, FabricKind, Limits, PostError, Unregistered};

/// Bytes of one verb: as much as a block can have, and a little.
const VERB_BYTES_MAX: usize = 4 << 20;
/// Steps that an automatic node takes when it is polled.
const STEPS_A_POLL: usize = 8;

/// A connection to a [`SimNode`].
pub struct SimFabric {
    node: SimNode,
    id: QueuePairId,
    era: u64,
    limits: Limits,
    buffers: BufferPool,
}

impl SimFabric {
    pub(super) fn new(node: SimNode, id: QueuePairId, depth: usize, buffer_limit_bytes: usize) -> Self {
        let (era, pool) = {
            let mut node = node.lock();
            (node.era, node.pools.pop())
        };
        let buffers = pool.unwrap_or_else(|| BufferPool::new(Box::new(Unregistered), buffer_limit_bytes));
        Self {
            node,
            id,
            era,
            limits: Limits { verbs_in_flight_max: depth.max(1), verb_bytes_max: VERB_BYTES_MAX },
            buffers,
        }
    }

    /// Its queue pair.
    pub const fn id(&self) -> QueuePairId {
        self.id
    }

    fn check(&self, batches: &[Batch<'_>], in_flight: usize) -> Result<(), PostError> {
        let limit = self.limits.verbs_in_flight_max;
        let asked = batches.iter().map(|batch| batch.verbs.len().max(1)).sum();
        if asked > limit {
            return Err(PostError::TooLarge { what: "verbs of a call", asked, limit });
        }
        let longest =
            batches.iter().flat_map(|batch| &batch.verbs).map(|verb| verb.bytes()).max().unwrap_or(0);
        if longest > VERB_BYTES_MAX {
            return Err(PostError::TooLarge {
                what: "bytes of a verb",
                asked: longest,
                limit: VERB_BYTES_MAX,
            });
        }
        if asked > limit - in_flight {
            return Err(PostError::Full { asked, in_flight, limit });
        }
        Ok(())
    }
}

impl Fabric for SimFabric {
    fn kind(&self) -> FabricKind {
        FabricKind::Sim
    }

    fn limits(&self) -> Limits {
        self.limits
    }

    fn describe(&self) -> String {
        format!("sim, queue pair {}", self.id.0)
    }

    fn buffers(&mut self) -> &mut BufferPool {
        &mut self.buffers
    }

    fn post(&mut self, batches: &mut [Batch<'_>]) -> Result<(), PostError> {
        let mut node = self.node.lock();
        let queue_pair = node.queue_pair(self.id);
        for buffer in queue_pair.idle_buffers.drain(..) {
            self.buffers.recycle(buffer);
        }
        if let Some(reason) = queue_pair.broken() {
            return Err(PostError::Broken(reason.to_owned()));
        }
        self.check(batches, queue_pair.in_flight)?;
        for batch in batches {
            queue_pair.post(batch);
        }
        Ok(())
    }

    fn poll(&mut self, completions: &mut Vec<Completion>) -> usize {
        let mut node = self.node.lock();
        node.advance(STEPS_A_POLL);
        node.queue_pair(self.id).take_completions(completions)
    }

    fn wait(&mut self, timeout: Duration) {
        let deadline = Instant::now() + timeout;
        loop {
            let mut node = self.node.lock();
            if node.random.is_none() || node.queue_pair(self.id).has_completions() {
                return;
            }
            node.advance(STEPS_A_POLL);
            let goes_on = node.queue_pair(self.id).pending() > 0 || node.queue_pair(self.id).in_flight > 0;
            drop(node);
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            if !goes_on {
                // Nobody else can end this wait: the caller has the only connection end.
                std::thread::park_timeout(left);
            }
        }
    }
}

impl Drop for SimFabric {
    fn drop(&mut self) {
        // What was posted may still take effect; buffers of READs stay with the node until then. After a reset the
        // node has forgotten the queue pair.
        let mut node = self.node.lock();
        if node.era == self.era {
            node.queue_pair(self.id).lose(Loss::Death);
        }
        // Its limit is the same only where all are, as in a simulator.
        if node.random.is_none() {
            let empty = BufferPool::new(Box::new(Unregistered), 0);
            node.pools.push(std::mem::replace(&mut self.buffers, empty));
        }
    }
}

impl std::fmt::Debug for SimFabric {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "SimFabric({})", self.describe())
    }
}
