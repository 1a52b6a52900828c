//! The simulated fabric, driven by hand. (Conformance drives it from a seed.)

use super::*;
use crate::fabric::{Batch, BatchId, Completion, Effect, Fabric, FailureKind, Reply, Verb, VerbList};

struct Bed {
    node: SimNode,
    fabric: SimFabric,
    next: u64,
}

impl Bed {
    fn new() -> Self {
        let node = SimNode::by_hand(4096);
        let fabric = node.connect(Rights::ReadWrite, 16, 1 << 20);
        Self { node, fabric, next: 0 }
    }

    fn post(&mut self, verbs: Vec<Verb<'_>>) {
        self.next += 1;
        let verbs: VerbList<'_> = verbs.into();
        self.fabric.post(&mut [Batch { id: BatchId(self.next), verbs, silent: false }]).unwrap();
    }

    fn read(&mut self, remote: u64, bytes: usize) -> Verb<'static> {
        Verb::Read { remote: Offset(remote), into: self.fabric.buffers().take(bytes).unwrap() }
    }

    fn step(&self, step: impl FnOnce(QueuePairId) -> Step) -> Option<Touch> {
        self.node.step(step(self.fabric.id()))
    }

    fn poll(&mut self) -> Vec<Completion> {
        let mut completions = Vec::new();
        self.fabric.poll(&mut completions);
        completions
    }
}

fn swap(remote: u64, expected: u64, desired: u64) -> Verb<'static> {
    Verb::CompareSwap { remote: Offset(remote), expected, desired }
}

fn word(completion: &Completion, verb: usize) -> u64 {
    match &completion.result.as_ref().unwrap()[verb] {
        Reply::Read(buffer) => u64::from_le_bytes(buffer.as_slice()[..8].try_into().unwrap()),
        Reply::Old(old) => *old,
        Reply::Written => panic!(),
    }
}

/// A READ of two words is executed word by word while the node changes both: it may see the second new and the first old.
#[test]
fn a_read_tears_where_the_driver_wants() {
    let mut bed = Bed::new();
    let read = bed.read(0, 16);
    bed.post(vec![read]);
    bed.step(Step::Arrive);
    bed.step(|id| Step::Execute(id, 0, Part::Words { first: 0, count: 1 }));
    bed.node.store(Offset(0), 1);
    bed.node.store(Offset(8), 1);
    assert!(!bed.step(|id| Step::Execute(id, 0, Part::Words { first: 0, count: 1 })).unwrap().whole);
    assert!(bed.step(|id| Step::Execute(id, 0, Part::All)).unwrap().whole);
    bed.step(Step::Acknowledge);
    assert!(bed.poll().is_empty(), "nothing completes by itself");
    bed.step(Step::Complete);
    let completions = bed.poll();
    let Ok(replies) = &completions[0].result else { panic!() };
    assert!(
        matches!(&replies[0], Reply::Read(buffer) if buffer.as_slice()[0] == 0 && buffer.as_slice()[8] == 1)
    );
}

/// A lost answer: the READ is executed again and brings what is there then. The CAS behind it is not, whatever is sent
/// again; it was executed once and its old word is that of then.
#[test]
fn reads_are_executed_again_and_atomics_are_not() {
    let mut bed = Bed::new();
    let read = bed.read(0, 8);
    bed.post(vec![read, swap(0, 0, 7)]);
    bed.step(Step::Arrive);
    bed.step(Step::Arrive);
    bed.step(|id| Step::Execute(id, 0, Part::All));
    bed.step(|id| Step::Execute(id, 1, Part::All));
    assert_eq!(bed.node.reads_to_repeat(bed.fabric.id()), [0]);
    bed.step(|id| Step::ReadAgain(id, 0));
    assert!(bed.step(|id| Step::Execute(id, 1, Part::All)).is_none(), "a CAS takes effect once");
    bed.step(|id| Step::Execute(id, 0, Part::All));
    bed.step(Step::Acknowledge);
    bed.step(Step::Acknowledge);
    bed.step(Step::Complete);
    let completions = bed.poll();
    assert_eq!((word(&completions[0], 0), word(&completions[0], 1)), (7, 0));
}

/// A lost answer, while a later READ is under way or to come: neither brings what is older than what the repeated one brings.
#[test]
fn reads_behind_a_repeated_one_are_not_older() {
    for begun in [true, false] {
        let mut bed = Bed::new();
        let (slot, block) = (bed.read(0, 8), bed.read(64, 16));
        bed.post(vec![slot, block]);
        bed.step(Step::Arrive);
        bed.step(Step::Arrive);
        bed.step(|id| Step::Execute(id, 0, Part::All));
        if begun {
            bed.step(|id| Step::Execute(id, 1, Part::Words { first: 0, count: 1 }));
        }
        bed.step(|id| Step::ReadAgain(id, 0));
        assert!(bed.step(|id| Step::Execute(id, 1, Part::All)).is_none(), "before the repeated one");
        for place in [64, 72, 0] {
            bed.node.store(Offset(place), 9);
        }
        bed.step(|id| Step::Execute(id, 0, Part::All));
        bed.step(|id| Step::Execute(id, 1, Part::All));
        bed.step(Step::Acknowledge);
        bed.step(Step::Acknowledge);
        bed.step(Step::Complete);
        let completions = bed.poll();
        let Ok(replies) = &completions[0].result else { panic!() };
        for reply in replies {
            let Reply::Read(buffer) = reply else { panic!() };
            assert!(buffer.as_slice().chunks(8).all(|word| word[0] == 9), "{begun}: {:?}", buffer.as_slice());
        }
    }
}

/// A WRITE may overtake a READ; a CAS may not, and nothing overtakes a CAS.
#[test]
fn only_a_write_overtakes_and_only_reads() {
    let mut bed = Bed::new();
    let read = bed.read(0, 8);
    let bytes = [1; 8];
    let write = Verb::Write { remote: Offset(8), from: [&bytes, &[], &[]] };
    bed.post(vec![read, write, swap(16, 0, 1)]);
    for _ in 0..3 {
        bed.step(Step::Arrive);
    }
    assert!(bed.step(|id| Step::Execute(id, 2, Part::All)).is_none());
    assert!(bed.step(|id| Step::Execute(id, 1, Part::All)).is_some());
    assert!(bed.step(|id| Step::Execute(id, 2, Part::All)).is_none(), "the READ has not executed");
    bed.step(|id| Step::Execute(id, 0, Part::All));
    assert!(bed.step(|id| Step::Execute(id, 2, Part::All)).is_some());
    let write = Verb::Write { remote: Offset(8), from: [&bytes, &[], &[]] };
    bed.post(vec![swap(24, 0, 1), write]);
    for _ in 0..2 {
        bed.step(Step::Arrive);
    }
    assert!(bed.step(|id| Step::Execute(id, 4, Part::All)).is_none(), "behind a CAS");
}

/// The card gives up. What had not been sent never happens, and is said not to have; what had been is unknown, and may
/// happen until the fence, and not after it.
#[test]
fn a_loss_says_what_is_known_and_a_fence_ends_it() {
    let mut bed = Bed::new();
    bed.post(vec![swap(0, 0, 1)]);
    bed.post(vec![swap(8, 0, 1)]);
    bed.step(Step::Arrive);
    bed.node.lose(bed.fabric.id(), Loss::Flush);
    let completions = bed.poll();
    let effects: Vec<Effect> =
        completions.iter().map(|completion| completion.result.as_ref().unwrap_err().effect).collect();
    assert_eq!(effects, [Effect::Unknown, Effect::No]);
    assert!(matches!(completions[1].result.as_ref().unwrap_err().kind, FailureKind::Flushed));
    assert_eq!(bed.node.pending(bed.fabric.id()), 1);
    assert!(bed.step(Step::Whole).unwrap().changed, "late");
    assert_eq!((bed.node.load(Offset(0)), bed.node.load(Offset(8))), (1, 0));

    let mut other =
        Bed { fabric: bed.node.connect(Rights::ReadWrite, 16, 1 << 20), node: bed.node.clone(), next: 0 };
    other.post(vec![swap(16, 0, 1), swap(24, 0, 1)]);
    other.node.lose(other.fabric.id(), Loss::Silence);
    assert_eq!(other.poll()[0].result.as_ref().unwrap_err().effect, Effect::Unknown);
    other.step(Step::Whole);
    other.node.fence(other.fabric.id());
    assert!(other.step(Step::Whole).is_none());
    assert_eq!((other.node.load(Offset(16)), other.node.load(Offset(24))), (1, 0));
    assert!(other.fabric.post(&mut []).is_err(), "it takes nothing any more");
}

/// Back to a mark, and along the way to the one before it: what a restart does.
#[test]
fn marks_are_ways_back() {
    let node = SimNode::by_hand(64);
    node.store(Offset(0), 1);
    node.mark();
    node.store(Offset(0), 2);
    node.store(Offset(8), 2);
    let way = node.mark();
    node.store(Offset(0), 3);
    node.go_back(&way);
    assert_eq!((node.load(Offset(0)), node.load(Offset(8))), (1, 0));
    node.reset();
    assert_eq!((node.load(Offset(0)), node.load(Offset(8))), (2, 2));
}
