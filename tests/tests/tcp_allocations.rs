//! The `tcp` fabric in steady state: neither the client nor the thread that plays the card takes memory for a verb.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use sidestep_common::fabric::{Batch, BatchId, Completion, Fabric, Reply, Rights, Verb};
use sidestep_common::layout::Offset;
use sidestep_tests::conformance::{Bed, TcpBed};

/// The system's allocator, counted, for all threads of this process.
struct Counting;

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

// SAFETY: everything is passed on to the system's allocator as it came.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's promises are what the system's allocator wants.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: as in `alloc`, from where the memory came.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// Eight batches a call, with all kinds of verbs, one of them long enough to be sent gathered.
fn round(fabric: &mut dyn Fabric, completions: &mut Vec<Completion>, long: &[u8]) {
    let mut batches: [Batch<'_>; 8] = std::array::from_fn(|index| {
        let at = 64 * index as u64;
        let into = fabric.buffers().take(64).expect("a buffer");
        let verbs = [
            Verb::Write { remote: Offset(at), from: [b"abc", if index == 7 { long } else { b"de" }, b""] },
            Verb::Read { remote: Offset(at), into },
            Verb::CompareSwap { remote: Offset(8), expected: 0, desired: 1 },
            Verb::FetchAdd { remote: Offset(16), add: 1 },
        ];
        Batch { id: BatchId(at), verbs: verbs.into(), silent: index == 3 }
    });
    fabric.post(&mut batches).expect("room");
    while completions.len() < 7 {
        fabric.wait(Duration::from_secs(20));
        assert!(fabric.poll(completions) > 0, "an answer within the time");
    }
    for completion in completions.drain(..) {
        for reply in completion.result.expect("verbs that succeed") {
            if let Reply::Read(buffer) = reply {
                fabric.buffers().recycle(buffer);
            }
        }
    }
}

#[test]
fn a_steady_state_takes_no_memory() {
    let bed = TcpBed::start();
    let (_, mut fabric) = bed.connect_with(Rights::ReadWrite, 64);
    let mut completions = Vec::new();
    let long = vec![7; 40_000];
    for _ in 0..50 {
        round(&mut *fabric, &mut completions, &long);
    }
    let before = ALLOCATIONS.load(Ordering::Relaxed);
    for _ in 0..500 {
        round(&mut *fabric, &mut completions, &long);
    }
    let taken = ALLOCATIONS.load(Ordering::Relaxed) - before;
    // 500 frames of 32 verbs: one allocation a frame would be 500. A few are a queue that grew once more.
    assert!(taken < 10, "{taken} allocations for 16,000 verbs");
}
