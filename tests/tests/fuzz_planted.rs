//! The corpus of the hostile region, with mistakes planted in the client: each is caught by what the target watches, or
//! the target is not worth its time.

use std::fs;
use std::path::Path;

use libtest_mimic::{Arguments, Trial};
use sidestep_common::planted::{Fault, plant};
use sidestep_tests::fuzzing::hostile_region;

/// Mistakes that break what is promised whatever the region holds.
const FAULTS: [Fault; 16] = [
    Fault::ChecksumUnchecked,
    Fault::ChunkEndIgnored,
    Fault::DeleteWritesLive,
    Fault::FailedSwapMarked,
    Fault::FreshHandedTwice,
    Fault::KeyNotCompared,
    Fault::LostPutTakenForWon,
    Fault::MarkedTwice,
    Fault::MovedTakenForNext,
    Fault::NeighbourMarked,
    Fault::NewBlockMarked,
    Fault::NextVersionMarked,
    Fault::PublishedBeforeWritten,
    Fault::PublishedGivenBack,
    Fault::ValueCutShort,
    Fault::VersionOfBlockWrong,
];

fn main() {
    let arguments = Arguments::from_args();
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus/hostile_region");
    // Every catch is a panic; that of the trial itself is told by libtest.
    std::panic::set_hook(Box::new(|_| {}));
    let trials = FAULTS.map(|fault| {
        let corpus = corpus.clone();
        Trial::test(fault.name(), move || {
            plant(&[fault]);
            for entry in fs::read_dir(&corpus)? {
                let bytes = fs::read(entry?.path())?;
                if std::panic::catch_unwind(|| hostile_region::run(&bytes)).is_err() {
                    return Ok(());
                }
            }
            Err(format!("no input of {} notices", corpus.display()).into())
        })
    });
    libtest_mimic::run(&arguments, trials.into()).exit()
}
