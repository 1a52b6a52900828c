//! The simulated fabric: deterministic, for tests.
//!
//! Always true: nothing happens by itself and nothing depends on time. Every verb is split into [`Step`]s, and whoever
//! drives the [`SimNode`] decides which comes next: in what order queue pairs go on, where READs and WRITEs tear, which
//! answers are lost, what still takes effect after its poster died. The same steps give the same bytes.
//!
//! Two ways to drive it:
//! - by hand ([`SimNode::step`]), for a simulator that runs several clients in one thread;
//! - automatically ([`SimNode::automatic`]): waiting and polling take random steps from a seed, so that code which
//!   blocks, such as the conformance suite, runs over a network that tears and delays as much as the contract allows.
//!
//! It keeps the contract of [`crate::fabric`] and uses all of its freedom. It never does what no real fabric does: within
//! one connection a WRITE or an atomic takes effect at most once.

mod client;
mod memory;
mod queue_pair;
mod step;
#[cfg(test)]
mod tests;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

pub use client::SimFabric;
pub use step::{Part, Step, Touch, VerbKind};

use crate::fabric::{BufferPool, Rights};
use crate::layout::Offset;
use memory::Memory;
use queue_pair::QueuePair;

/// A queue pair of a node, by number; never used again.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct QueuePairId(pub u32);

/// How a connection is lost.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Loss {
    /// The poster's card gives up: what has arrived at the node may have taken effect, the rest was never sent.
    Flush,
    /// No answer comes any more: everything posted may have taken effect, or may yet until it is fenced.
    Silence,
    /// The poster is gone, and is told nothing.
    Death,
}

/// How the memory gets from one mark to the one before.
#[derive(Clone, Default, Debug)]
pub struct WayBack(Vec<(usize, u64)>);

#[derive(Debug)]
struct Node {
    memory: Memory,
    queue_pairs: Vec<QueuePair>,
    /// With a seed, waiting and polling drive the node.
    random: Option<u64>,
    scratch: Vec<Step>,
    /// Of connections that ended, for the next ones: a simulator makes millions, and their memory is the same to all.
    pools: Vec<BufferPool>,
    /// Counts resets, so that a fabric of earlier times is known as such.
    era: u64,
}

/// A memory node that exists in this process only.
#[derive(Clone, Debug)]
pub struct SimNode(Arc<Mutex<Node>>);

impl SimNode {
    /// A node with zeroed memory that does nothing by itself.
    ///
    /// # Panics
    /// If `bytes` is not a multiple of 8.
    pub fn by_hand(bytes: u64) -> Self {
        Self::new(bytes, None)
    }

    /// A node that goes on when its clients poll or wait, in steps drawn from `seed`.
    ///
    /// # Panics
    /// As [`SimNode::by_hand`].
    pub fn automatic(bytes: u64, seed: u64) -> Self {
        Self::new(bytes, Some(seed | 1))
    }

    fn new(bytes: u64, random: Option<u64>) -> Self {
        assert!(bytes.is_multiple_of(8), "{bytes}");
        let memory = Memory::new(bytes);
        let (queue_pairs, scratch) = (Vec::new(), Vec::new());
        Self(Arc::new(Mutex::new(Node { memory, queue_pairs, random, scratch, pools: Vec::new(), era: 0 })))
    }

    fn lock(&self) -> MutexGuard<'_, Node> {
        // A test that panicked elsewhere leaves the node as it was between two steps.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A new connection with room for `depth` verbs.
    pub fn connect(&self, rights: Rights, depth: usize, buffer_limit_bytes: usize) -> SimFabric {
        let id = self.add(rights, true);
        SimFabric::new(self.clone(), id, depth, buffer_limit_bytes)
    }

    /// A new connection that names the region by a wrong key.
    pub fn connect_with_wrong_key(&self, depth: usize, buffer_limit_bytes: usize) -> SimFabric {
        let id = self.add(Rights::ReadWrite, false);
        SimFabric::new(self.clone(), id, depth, buffer_limit_bytes)
    }

    fn add(&self, rights: Rights, key_is_right: bool) -> QueuePairId {
        let mut node = self.lock();
        let id = QueuePairId(node.queue_pairs.len() as u32);
        let region_bytes = node.memory.bytes();
        node.queue_pairs.push(QueuePair::new(id, rights, key_is_right, region_bytes));
        id
    }

    /// Takes a step; what it did to the memory, if anything. A step that is not possible does nothing.
    pub fn step(&self, step: Step) -> Option<Touch> {
        self.lock().step(step)
    }

    /// Verbs of a queue pair that have not executed, and may.
    pub fn pending(&self, id: QueuePairId) -> usize {
        self.lock().queue_pair(id).pending()
    }

    /// The oldest pending verb as one step.
    pub fn whole_step(&self, id: QueuePairId) -> Option<Step> {
        self.lock().queue_pair(id).whole_step()
    }

    /// Every step of a queue pair that is possible now; `draw(n)` picks below n where a verb is to tear.
    pub fn fine_steps(&self, id: QueuePairId, steps: &mut Vec<Step>, draw: impl FnMut(usize) -> usize) {
        self.lock().queue_pair(id).fine_steps(steps, draw);
    }

    /// READs of a queue pair that could be executed again.
    pub fn reads_to_repeat(&self, id: QueuePairId) -> Vec<usize> {
        self.lock().queue_pair(id).reads_to_repeat().collect()
    }

    /// The connection is lost.
    pub fn lose(&self, id: QueuePairId, loss: Loss) {
        self.lock().queue_pair(id).lose(loss);
    }

    /// Nothing of that queue pair takes effect from now on.
    pub fn fence(&self, id: QueuePairId) {
        self.lock().queue_pair(id).fence("the server fenced the session");
    }

    /// Bytes of the region.
    pub fn bytes(&self) -> u64 {
        self.lock().memory.bytes()
    }

    /// The aligned word at `offset`, as the node's own CPU sees it.
    ///
    /// # Panics
    /// If there is none.
    pub fn load(&self, offset: Offset) -> u64 {
        self.lock().memory.word((offset.0 / 8) as usize)
    }

    /// Stores an aligned word, as the node's own CPU does.
    ///
    /// # Panics
    /// If there is none.
    pub fn store(&self, offset: Offset, word: u64) {
        self.lock().memory.set((offset.0 / 8) as usize, word);
    }

    /// Copies bytes out, as the node's own CPU does.
    ///
    /// # Panics
    /// If they leave the region.
    pub fn read(&self, offset: Offset, into: &mut [u8]) {
        let node = self.lock();
        let span = memory::Span { remote: offset.0, bytes: into.len() };
        for word in 0..span.words() {
            let share = span.share(word);
            let bytes = node.memory.word(share.index).to_le_bytes();
            into[share.at..share.at + share.len].copy_from_slice(&bytes[share.skip..share.skip + share.len]);
        }
    }

    /// Copies bytes in, as the node's own CPU does.
    ///
    /// # Panics
    /// If they leave the region.
    pub fn write(&self, offset: Offset, from: &[u8]) {
        let mut node = self.lock();
        let span = memory::Span { remote: offset.0, bytes: from.len() };
        for word in 0..span.words() {
            let share = span.share(word);
            node.memory.set_part(share.index, share.skip, &from[share.at..share.at + share.len]);
        }
    }

    /// What the memory holds now is what [`SimNode::reset`] goes back to. Gives the way back to the mark before.
    pub fn mark(&self) -> WayBack {
        WayBack(self.lock().memory.mark())
    }

    /// The memory becomes what it was at an earlier mark, as a change that [`SimNode::reset`] undoes: what a restart
    /// does to a region. Queue pairs are the caller's business.
    pub fn go_back(&self, way: &WayBack) {
        self.lock().memory.go_back(&way.0);
    }

    /// Puts the memory back and forgets all queue pairs. Their fabrics are of no more use.
    pub fn reset(&self) {
        let mut node = self.lock();
        node.memory.rollback();
        node.queue_pairs.clear();
        node.era += 1;
    }

    /// Takes up to `count` random steps of an automatic node.
    pub fn advance(&self, count: usize) {
        self.lock().advance(count);
    }
}

impl Node {
    fn queue_pair(&mut self, id: QueuePairId) -> &mut QueuePair {
        &mut self.queue_pairs[id.0 as usize]
    }

    fn step(&mut self, step: Step) -> Option<Touch> {
        let Self { memory, queue_pairs, .. } = self;
        queue_pairs[step.queue_pair().0 as usize].step(step, memory)
    }

    fn draw(random: &mut u64, below: usize) -> usize {
        // SplitMix64 (Steele, Lea, Flood 2014): one addition a step, so that every seed is as good as any.
        *random = random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = *random;
        word = (word ^ word >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((word ^ word >> 31) % below as u64) as usize
    }

    fn advance(&mut self, count: usize) {
        let Some(mut random) = self.random else { return };
        let mut steps = std::mem::take(&mut self.scratch);
        for _ in 0..count {
            steps.clear();
            let busy = self.queue_pairs.iter().filter(|queue_pair| queue_pair.in_flight > 0);
            for queue_pair in busy {
                queue_pair.fine_steps(&mut steps, |below| Self::draw(&mut random, below));
                // Now and then an answer is lost on the way and a READ executed again.
                if Self::draw(&mut random, 64) == 0 {
                    let id = queue_pair.id();
                    steps.extend(queue_pair.reads_to_repeat().map(|at| Step::ReadAgain(id, at)));
                }
            }
            if steps.is_empty() {
                break;
            }
            let step = steps[Self::draw(&mut random, steps.len())];
            self.step(step);
        }
        self.scratch = steps;
        self.random = Some(random);
    }
}
