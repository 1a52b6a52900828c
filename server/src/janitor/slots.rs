//! Access to slot words in the region's atomicity domain.
//!
//! Always true: a slot word is compared and swapped by whoever executes its clients' atomics: this process where that is a
//! CPU (`shm`, `tcp`, two-sided commits), the card where that is a card. Then the swaps go out over a queue pair that the
//! server has to itself, in a session of its own; when that fails it is fenced at once, so that nothing takes effect any
//! more, and joined again for the next swap.
//!
//! Everything else is plain loads and stores in either domain: aligned words that only the server changes, and bytes of
//! free maps. A byte is stored by a compare-and-swap of its word in the cache; what a card writes beside it meanwhile comes
//! before or after that as a whole, since a card's WRITE is no atomic and takes part in the coherence of caches.

use std::sync::Arc;
use std::time::{Duration, Instant};

use sidestep_common::fabric::{
    Batch, BatchId, ConnectError, ConnectOptions, DeviceChoice, Fabric, Failure, PostError, Reply, Rights,
    SessionId, Target, Verb, VerbList, connect,
};
use sidestep_common::layout::{AtomicityDomain, Offset};
use sidestep_common::memory::{AccessError, WordMemory};

use super::rebuild::{Swap, Words};

/// The server's own session. No client has it: theirs begin with 1.
pub const OWN_SESSION: SessionId = SessionId(0);

/// Swaps under way at once: as many as hide a card's latency, few enough for any queue.
const SWAPS_IN_FLIGHT_MAX: usize = 64;
/// Nothing is ever read over the connection, but a pool has to have a size.
const BUFFER_LIMIT_BYTES: usize = 64 << 10;
/// A card answers itself within microseconds; after this long it never will.
const PATIENCE: Duration = Duration::from_secs(5);

/// Words could not be reached.
#[derive(Debug, thiserror::Error)]
pub enum SlotError {
    /// They are not in the region.
    #[error(transparent)]
    Access(#[from] AccessError),
    /// The loopback could not be joined.
    #[error("the server can't join its own card: {0}")]
    Join(#[from] JoinError),
    /// The loopback took no swaps.
    #[error("the loopback takes no swaps: {0}")]
    Post(#[from] PostError),
    /// A swap failed; it may have taken effect.
    #[error("a swap over the loopback failed: {0}")]
    Swap(#[from] Failure),
    /// No answer came; the swaps may have taken effect.
    #[error("the loopback did not answer within {} ms", PATIENCE.as_millis())]
    Silence,
    /// The answer isn't one to what was asked.
    #[error("the loopback answered {replies} of {swaps} swaps, or with something else")]
    Answer {
        /// Answers.
        replies: usize,
        /// As asked.
        swaps: usize,
    },
}

/// The server's own session could not be joined.
#[derive(Debug, thiserror::Error)]
pub enum JoinError {
    /// The card's target takes no more.
    #[error("{0}")]
    Admit(String),
    /// The connection failed.
    #[error(transparent)]
    Connect(#[from] ConnectError),
}

/// The way to the server's own data path.
pub trait Door: Send {
    /// Joins it.
    ///
    /// # Errors
    /// [`JoinError`]; nothing is left behind.
    fn join(&self) -> Result<Box<dyn Fabric>, JoinError>;

    /// After this nothing that was posted takes effect any more.
    fn fence(&self);
}

/// The door to a card's target.
struct CardDoor {
    target: Arc<dyn Target>,
    device: DeviceChoice,
    region_bytes: u64,
}

impl Door for CardDoor {
    fn join(&self) -> Result<Box<dyn Fabric>, JoinError> {
        let join = self.target.admit(OWN_SESSION, Rights::ReadWrite).map_err(JoinError::Admit)?;
        let options = ConnectOptions {
            peer: None,
            region_bytes: self.region_bytes,
            rights: Rights::ReadWrite,
            verbs_in_flight_max: SWAPS_IN_FLIGHT_MAX,
            buffer_limit_bytes: BUFFER_LIMIT_BYTES,
            device: self.device.clone(),
            deadline: Instant::now() + PATIENCE,
        };
        Ok(connect(&join, &options)?)
    }

    fn fence(&self) {
        // Queue pairs can always be taken away.
        let _ = self.target.fence(OWN_SESSION);
    }
}

/// The region's words, as the janitor reaches them.
pub struct Slots {
    words: WordMemory,
    loopback: Option<Loopback>,
}

impl Slots {
    /// For a region whose atomics this process may execute.
    pub const fn of_cpu(words: WordMemory) -> Self {
        Self { words, loopback: None }
    }

    /// For a region whose atomics are those of whoever is behind `door`.
    pub fn of_card(words: WordMemory, door: Box<dyn Door>) -> Self {
        let loopback = Loopback { door, fabric: None, completions: Vec::new(), next: 0 };
        Self { words, loopback: Some(loopback) }
    }

    /// For a region of that domain; `card` serves it in the domain of cards.
    ///
    /// # Panics
    /// If it is the domain of cards and there is none: the superblock's domain is that of what is served.
    pub fn new(
        words: WordMemory,
        domain: AtomicityDomain,
        card: Option<Arc<dyn Target>>,
        device: DeviceChoice,
    ) -> Self {
        match (domain, card) {
            (AtomicityDomain::Cpu, _) => Self::of_cpu(words),
            (AtomicityDomain::Nic, Some(target)) => {
                Self::of_card(words, Box::new(CardDoor { target, device, region_bytes: words.bytes() }))
            }
            (AtomicityDomain::Nic, None) => panic!("a region of the domain of cards, served by none"),
        }
    }
}

impl std::fmt::Debug for Slots {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(if self.loopback.is_some() { "slots over a loopback" } else { "slots" })
    }
}

impl Words for Slots {
    type Error = SlotError;

    #[inline]
    fn load(&mut self, at: Offset) -> Result<u64, SlotError> {
        Ok(self.words.load(at)?)
    }

    #[inline]
    fn read(&mut self, at: Offset, into: &mut [u8]) -> Result<(), SlotError> {
        Ok(self.words.read(at, into)?)
    }

    #[inline]
    fn store(&mut self, at: Offset, word: u64) -> Result<(), SlotError> {
        Ok(self.words.store(at, word)?)
    }

    #[inline]
    fn mark(&mut self, at: Offset, version: u8) -> Result<(), SlotError> {
        Ok(self.words.write(at, &[version])?)
    }

    fn swap(&mut self, swaps: &mut [Swap]) -> Result<(), SlotError> {
        if let Some(loopback) = &mut self.loopback {
            return loopback.swap(swaps);
        }
        for swap in swaps {
            swap.found = self.words.compare_swap(swap.at, swap.expected, swap.desired)?;
        }
        Ok(())
    }
}

/// The server's own session on its card.
struct Loopback {
    door: Box<dyn Door>,
    /// None before the first swap and after a failure.
    fabric: Option<Box<dyn Fabric>>,
    completions: Vec<sidestep_common::fabric::Completion>,
    /// Names the next batch.
    next: u64,
}

impl Loopback {
    fn swap(&mut self, swaps: &mut [Swap]) -> Result<(), SlotError> {
        let mut fabric = match self.fabric.take() {
            Some(fabric) => fabric,
            None => self.door.join()?,
        };
        let depth = fabric.limits().verbs_in_flight_max.clamp(1, SWAPS_IN_FLIGHT_MAX);
        for swaps in swaps.chunks_mut(depth) {
            if let Err(error) = self.swap_at_once(&mut *fabric, swaps) {
                drop(fabric);
                self.door.fence();
                return Err(error);
            }
        }
        self.fabric = Some(fabric);
        Ok(())
    }

    /// One doorbell, one completion.
    fn swap_at_once(&mut self, fabric: &mut dyn Fabric, swaps: &mut [Swap]) -> Result<(), SlotError> {
        let verbs: VerbList<'_> = swaps
            .iter()
            .map(|swap| Verb::CompareSwap { remote: swap.at, expected: swap.expected, desired: swap.desired })
            .collect();
        self.next += 1;
        let id = BatchId(self.next);
        fabric.post(&mut [Batch { id, verbs, silent: false }])?;
        let deadline = Instant::now() + PATIENCE;
        self.completions.clear();
        while fabric.poll(&mut self.completions) == 0 {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(SlotError::Silence);
            }
            fabric.wait(left);
        }
        let wrong = |replies| SlotError::Answer { replies, swaps: swaps.len() };
        let Some(completion) = self.completions.pop().filter(|completion| completion.batch == id) else {
            return Err(wrong(0));
        };
        let replies = completion.result?;
        let all_swapped = replies.iter().all(|reply| matches!(reply, Reply::Old(_)));
        if replies.len() != swaps.len() || !all_swapped {
            return Err(wrong(replies.len()));
        }
        for (swap, reply) in swaps.iter_mut().zip(replies) {
            if let Reply::Old(found) = reply {
                swap.found = found;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::ptr::NonNull;
    use std::sync::Mutex;
    use std::sync::atomic::{AtomicU32, Ordering};

    use sidestep_common::fabric::{
        BufferPool, Completion, Effect, FabricKind, FailureKind, Limits, Replies, Unregistered,
    };

    use super::*;

    fn words(memory: &mut [u64]) -> WordMemory {
        let base = NonNull::new(memory.as_mut_ptr().cast()).unwrap();
        // SAFETY: each test's memory outlives its uses.
        unsafe { WordMemory::new(base, 8 * memory.len() as u64) }
    }

    /// A card made of software, which fails when it is told to: before or after the swap took effect.
    struct Card {
        words: WordMemory,
        pool: BufferPool,
        done: Vec<Completion>,
        plan: Arc<Mutex<Vec<Trouble>>>,
        doorbells: Arc<AtomicU32>,
    }

    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    enum Trouble {
        FailsBefore,
        FailsAfter,
        AnswersLess,
    }

    impl Fabric for Card {
        fn kind(&self) -> FabricKind {
            FabricKind::Verbs
        }

        fn limits(&self) -> Limits {
            Limits { verbs_in_flight_max: 16, verb_bytes_max: 1 << 20 }
        }

        fn describe(&self) -> String {
            String::new()
        }

        fn buffers(&mut self) -> &mut BufferPool {
            &mut self.pool
        }

        fn post(&mut self, batches: &mut [Batch<'_>]) -> Result<(), PostError> {
            self.doorbells.fetch_add(1, Ordering::Relaxed);
            for batch in batches {
                let asked = batch.verbs.len();
                if asked > 16 {
                    return Err(PostError::TooLarge { what: "verbs", asked, limit: 16 });
                }
                let trouble = self.plan.lock().unwrap().pop();
                let mut replies = Replies::new();
                for verb in batch.verbs.drain(..) {
                    let Verb::CompareSwap { remote, expected, desired } = verb else { panic!("{verb:?}") };
                    if trouble != Some(Trouble::FailsBefore) {
                        let old = self.words.compare_swap(remote, expected, desired).unwrap();
                        replies.push(Reply::Old(old));
                    }
                }
                let failed = Failure {
                    verb_index: 0,
                    kind: FailureKind::Disconnected("unplugged".into()),
                    effect: Effect::Unknown,
                };
                let result = match trouble {
                    None => Ok(replies),
                    Some(Trouble::AnswersLess) => {
                        replies.pop();
                        Ok(replies)
                    }
                    Some(_) => Err(failed),
                };
                self.done.push(Completion { batch: batch.id, result });
            }
            Ok(())
        }

        fn poll(&mut self, completions: &mut Vec<Completion>) -> usize {
            completions.append(&mut self.done);
            completions.len()
        }

        fn wait(&mut self, _: Duration) {}
    }

    struct CardsDoor {
        words: WordMemory,
        plan: Arc<Mutex<Vec<Trouble>>>,
        doorbells: Arc<AtomicU32>,
        joins: Arc<AtomicU32>,
        fences: Arc<AtomicU32>,
    }

    impl Door for CardsDoor {
        fn join(&self) -> Result<Box<dyn Fabric>, JoinError> {
            if self.joins.fetch_add(1, Ordering::Relaxed) == 2 {
                return Err(JoinError::Admit("not now".into()));
            }
            Ok(Box::new(Card {
                words: self.words,
                pool: BufferPool::new(Box::new(Unregistered), 4096),
                done: Vec::new(),
                plan: Arc::clone(&self.plan),
                doorbells: Arc::clone(&self.doorbells),
            }))
        }

        fn fence(&self) {
            self.fences.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn swaps(count: u64, expected: u64) -> Vec<Swap> {
        (0..count)
            .map(|number| Swap { at: Offset(8 * number), expected, desired: 7, found: 0xdead })
            .collect()
    }

    #[test]
    fn swaps_say_what_was_there() {
        let mut memory = vec![0_u64; 64];
        memory[3] = 9;
        let mut slots = Slots::of_cpu(words(&mut memory));
        let mut swaps = swaps(8, 0);
        slots.swap(&mut swaps).unwrap();
        assert_eq!(swaps.iter().map(|swap| swap.found).collect::<Vec<_>>(), [0, 0, 0, 9, 0, 0, 0, 0]);
        assert_eq!(&memory[..9], [7, 7, 7, 9, 7, 7, 7, 7, 0]);
        let outside = &mut [Swap { at: Offset(512), expected: 0, desired: 1, found: 0 }];
        let error = Slots::of_cpu(words(&mut memory)).swap(outside).unwrap_err();
        assert!(matches!(error, SlotError::Access(_)), "{error}");
    }

    /// A card's swaps: as many to a doorbell as the queue takes; a failure is fenced, said, and over with the next call.
    #[test]
    fn a_failed_loopback_is_fenced_and_joined_again() {
        let mut memory = vec![0_u64; 64];
        let plan = Arc::new(Mutex::new(Vec::new()));
        let counts: [Arc<AtomicU32>; 3] = std::array::from_fn(|_| Arc::default());
        let [doorbells, joins, fences] = counts.clone();
        let door = CardsDoor { words: words(&mut memory), plan: Arc::clone(&plan), doorbells, joins, fences };
        let mut slots = Slots::of_card(words(&mut memory), Box::new(door));
        let counted = || counts.each_ref().map(|count| count.load(Ordering::Relaxed));

        slots.swap(&mut swaps(40, 0)).unwrap();
        assert_eq!(counted(), [3, 1, 0], "40 swaps in 3 doorbells of one connection");
        plan.lock().unwrap().push(Trouble::FailsBefore);
        let error = slots.swap(&mut swaps(4, 7)).unwrap_err();
        assert!(matches!(error, SlotError::Swap(_)) && error.to_string().contains("unplugged"), "{error}");
        assert_eq!(counted(), [4, 1, 1]);
        plan.lock().unwrap().push(Trouble::FailsAfter);
        slots.swap(&mut swaps(4, 7)).unwrap_err();
        assert_eq!(counted(), [5, 2, 2]);
        let error = slots.swap(&mut swaps(4, 7)).unwrap_err();
        assert!(matches!(error, SlotError::Join(_)), "{error}");
        slots.swap(&mut swaps(4, 7)).unwrap();
        plan.lock().unwrap().push(Trouble::AnswersLess);
        let error = slots.swap(&mut swaps(4, 7)).unwrap_err();
        assert!(matches!(error, SlotError::Answer { replies: 3, swaps: 4 }), "{error}");
        assert_eq!(counted(), [7, 4, 3]);
    }
}
