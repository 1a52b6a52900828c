//! The driver with a fabric that answers what a test lets it.

use sidestep_common::fabric::{BufferPool, FabricKind, Limits, Unregistered};
use sidestep_common::layout::{AtomicityDomain, Geometry, Offset, Superblock};

use super::*;
use crate::allocator::Allocator;
use crate::directory::Directory;
use crate::operation::{Hints, WriteIds};

/// Completes the first `answered` batches at once, and the others never.
struct Silent {
    answered: u64,
    completed: Vec<Completion>,
    buffers: BufferPool,
}

impl Fabric for Silent {
    fn kind(&self) -> FabricKind {
        FabricKind::Sim
    }

    fn limits(&self) -> Limits {
        Limits { verbs_in_flight_max: 16, verb_bytes_max: 1 << 20 }
    }

    fn describe(&self) -> String {
        "silent".into()
    }

    fn buffers(&mut self) -> &mut BufferPool {
        &mut self.buffers
    }

    fn post(&mut self, batches: &mut [Batch<'_>]) -> Result<(), PostError> {
        for batch in batches {
            let replies = batch.verbs.drain(..).map(|_| Reply::Old(0)).collect();
            if batch.id.0 <= self.answered {
                self.completed.push(Completion { batch: batch.id, result: Ok(replies) });
            }
        }
        Ok(())
    }

    fn poll(&mut self, completions: &mut Vec<Completion>) -> usize {
        let count = self.completed.len();
        completions.append(&mut self.completed);
        count
    }

    fn wait(&mut self, timeout: Duration) {
        std::thread::park_timeout(timeout);
    }
}

/// One CAS that wins; what it published must not be given back.
#[derive(Default)]
struct Swap {
    posted: bool,
    released: bool,
}

const CAS: PendingCas = PendingCas { slot: Offset(8), expected: 0, desired: 1 };

impl Operation for Swap {
    type Output = u64;

    fn step(&mut self, _: &mut Context<'_>, replies: &[Reply]) -> Step<u64> {
        if let Some(Reply::Old(old)) = replies.first() {
            return Step::Done(Ok(*old), None);
        }
        self.posted = true;
        let action = Action::CompareSwap { expected: CAS.expected, desired: CAS.desired };
        Step::Post(Plan::from_iter([PlannedVerb { subject: "slot", remote: CAS.slot, action }]))
    }

    fn block_pieces(&self) -> (&[u8], &[u8]) {
        (&[], &[])
    }

    fn pending_cas(&self) -> Option<PendingCas> {
        self.posted.then_some(CAS)
    }

    fn release(&mut self, _: &mut Context<'_>) {
        self.released = true;
    }

    fn restarts(&self) -> u32 {
        0
    }

    fn stage(&self) -> &'static str {
        "swap"
    }
}

struct Nothing {
    superblock: Superblock,
    directory: Directory,
    allocator: Allocator,
    write_ids: WriteIds,
    hints: Hints,
}

impl Ground for Nothing {
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

    fn ask_memory(&mut self, _: SizeClass, _: ChunkPurpose, _: Deadline) -> Result<(), Error> {
        unreachable!("nobody asks for memory")
    }

    fn report_bucket(&mut self, _: BucketReport, _: Deadline) -> Result<bool, Error> {
        unreachable!("no bucket is full")
    }
}

/// Two changes go in step. One's CAS comes back, the other's never does, and time runs out: the first has happened and
/// says so, and its block stays published; of the second nothing is known, and its block stays in limbo.
#[test]
fn what_came_back_before_time_ran_out_counts() {
    let mut ground = Nothing {
        superblock: Superblock {
            geometry: Geometry::for_region(4 << 20).unwrap(),
            incarnation: 1,
            hash_seed: 1,
            domain: AtomicityDomain::Cpu,
            grace_ms: 1000,
        },
        directory: Directory::from_bytes(&[]),
        allocator: Allocator::new(),
        write_ids: WriteIds::new(1, 0),
        hints: Hints::default(),
    };
    let buffers = BufferPool::new(Box::new(Unregistered), 1 << 20);
    let mut driver = Driver::new(Box::new(Silent { answered: 1, completed: Vec::new(), buffers }), 1);
    let mut operations = [Swap::default(), Swap::default()];
    let mut results = [None, None];
    let deadline = Deadline::after(Duration::from_millis(50));
    driver.run(&mut ground, &mut operations, deadline, |finished| {
        results[finished.index] = Some(finished.result);
    });
    assert!(matches!(results[0], Some(Ok(0))), "{results:?}");
    assert!(matches!(results[1], Some(Err(Stop::Timeout(Some(CAS))))), "{results:?}");
    assert!(!operations.iter().any(|operation| operation.released));
}
