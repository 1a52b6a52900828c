//! Every input that the fuzzer found worth keeping (`tests/fuzz/corpus`), once more, without a fuzzer: what was found
//! and mended stays mended, and each target's promises hold on inputs that go far into the code.

use std::fs;
use std::path::{Path, PathBuf};

use libtest_mimic::{Arguments, Failed, Trial};
use sidestep_tests::fuzzing::{TARGETS, Target};

fn main() {
    let arguments = Arguments::from_args();
    let corpora = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus");
    let missing = !corpora.is_dir();
    if missing {
        println!("SKIP: no inputs at {}", corpora.display());
    }
    let trials = TARGETS.iter().map(|target| {
        let folder = corpora.join(target.name);
        Trial::test(target.name, move || replay(target, &folder)).with_ignored_flag(missing)
    });
    libtest_mimic::run(&arguments, trials.collect()).exit()
}

fn replay(target: &Target, folder: &Path) -> Result<(), Failed> {
    let entries = fs::read_dir(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let mut inputs: Vec<PathBuf> =
        entries.map(|entry| entry.map(|entry| entry.path())).collect::<Result<_, _>>()?;
    inputs.sort();
    if inputs.is_empty() {
        return Err(format!("{} has no inputs", folder.display()).into());
    }
    for input in inputs {
        let bytes = fs::read(&input)?;
        if std::panic::catch_unwind(|| (target.run)(&bytes)).is_err() {
            return Err(format!("input {}", input.display()).into());
        }
    }
    Ok(())
}
