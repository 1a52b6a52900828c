//! Figures, not promises: `cargo test --release -p sidestep-common --lib tcp::tests::measure -- --ignored --nocapture`.

use std::time::{Duration, Instant};

use super::bed::*;
use crate::fabric::{Completion, Fabric, Reply};

/// READs per second of `frames` frames in flight with `reads` READs of `bytes` each; whether the client spins.
fn reads_per_second(frames: usize, reads: usize, bytes: usize, spins: bool) -> f64 {
    let bed = Bed::new();
    let (_, join) = bed.admit(crate::fabric::Rights::ReadOnly);
    let mut fabric = join_at(bed.address, &join, 4096).unwrap();
    let started = Instant::now();
    let mut completions: Vec<Completion> = Vec::new();
    let (mut done, mut in_flight) = (0_u64, 0);
    while started.elapsed() < Duration::from_secs(2) {
        while in_flight < frames {
            let mut batches: Vec<_> =
                (0..reads).map(|at| batch(1, [read(&mut fabric, 64 * at as u64, bytes)])).collect();
            fabric.post(&mut batches).unwrap();
            in_flight += 1;
        }
        if fabric.poll(&mut completions) == 0 && !spins {
            fabric.wait(PATIENCE);
        }
        if completions.len() >= reads {
            in_flight -= completions.len() / reads;
            let whole = completions.len() / reads * reads;
            for completion in completions.drain(..whole) {
                for reply in completion.result.unwrap() {
                    if let Reply::Read(buffer) = reply {
                        fabric.buffers().recycle(buffer);
                    }
                }
            }
            done += whole as u64;
        }
    }
    done as f64 / started.elapsed().as_secs_f64()
}

#[test]
#[ignore = "a measurement"]
fn measure() {
    for (frames, reads, bytes) in
        [(1, 1, 64), (1, 32, 64), (4, 32, 64), (1, 1, 4096), (1, 1, 1 << 20), (4, 1, 1 << 20)]
    {
        for spins in [false, true] {
            let rate = reads_per_second(frames, reads, bytes, spins);
            let how = if spins { "spinning" } else { "waiting" };
            println!("{frames} frames of {reads} READs of {bytes} bytes, {how}: {rate:.0} READs/s");
        }
    }
}
