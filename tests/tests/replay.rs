//! kvbench against a real node: traces of production systems and YCSB's own workload files, with the counts and hit
//! ratios that these inputs must give. The inputs are not part of the project; without them the tests are listed as
//! ignored, with the reason.

use std::path::{Path, PathBuf};
use std::process::Command;

use libtest_mimic::{Arguments, Trial};
use serde_json::Value;
use sidestep_client::FabricKind;
use sidestep_tests::system::{Process, binary, fabrics};

/// A name, and what is done with the folder of inputs.
type Story = (&'static str, fn(FabricKind, &Path));

fn main() {
    let arguments = Arguments::from_args();
    let stories: [Story; 5] = [
        ("first_cachelib_sample", |fabric, traces| {
            cachelib(fabric, &traces.join("cachelib/kv_traces_1.csv"), 691, 52);
        }),
        ("second_cachelib_sample", |fabric, traces| {
            cachelib(fabric, &traces.join("cachelib/kv_traces_2.csv"), 433, 62);
        }),
        ("twitter_rows", twitter),
        ("mooncake_synthetic_trace", mooncake),
        ("ycsb_files_as_published", ycsb),
    ];
    let traces = std::env::var_os("SIDESTEP_TRACES")
        .map_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/traces"), PathBuf::from);
    let missing = !traces.is_dir();
    if missing {
        println!("SKIP: no traces at {} (SIDESTEP_TRACES names another place)", traces.display());
    }
    let trials = fabrics().into_iter().flat_map(|fabric| {
        let traces = traces.clone();
        stories.into_iter().map(move |(name, story)| {
            let traces = traces.clone();
            let run = move || {
                story(fabric, &traces);
                Ok(())
            };
            Trial::test(format!("{fabric}::{name}"), run).with_ignored_flag(missing)
        })
    });
    libtest_mimic::run(&arguments, trials.collect()).exit()
}

/// Runs kvbench against a fresh node; its report.
fn kvbench(fabric: FabricKind, memory: &str, runs: &[&[&str]]) -> Vec<Value> {
    let server = Process::kvserver(fabric, 0, &["-m", memory]);
    let endpoint = format!("{}?fabric={fabric}", server.endpoint());
    let run = |arguments: &&[&str]| {
        let output = Command::new(binary("kvbench"))
            .args(*arguments)
            .args(["-e", &endpoint, "--quiet"])
            .output()
            .expect("kvbench starts");
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "kvbench {arguments:?}: {}\n{errors}", output.status);
        serde_json::from_slice(&output.stdout).expect("a report is JSON")
    };
    runs.iter().map(run).collect()
}

fn replay(fabric: FabricKind, memory: &str, format: &str, file: &Path, more: &[&str]) -> Value {
    let file = file.to_str().expect("a path is text");
    let arguments = [&["replay", "--format", format, file, "--report", "json"], more].concat();
    kvbench(fabric, memory, &[&arguments]).remove(0)
}

/// What a look-aside cache sees of the sample: as many operations and keys as the rows say, and nothing fails.
fn cachelib(fabric: FabricKind, file: &Path, operations: u64, keys: u64) {
    let report = replay(fabric, "64M", "cachelib", file, &[]);
    assert_eq!(report["replay"]["trace_operations"], operations);
    assert_eq!(report["replay"]["distinct_keys"], keys);
    assert_eq!(report["operations"]["errors"], 0);
}

fn twitter(fabric: FabricKind, traces: &Path) {
    let report = replay(fabric, "64M", "twitter", &traces.join("twitter/five_rows.csv"), &[]);
    assert_eq!(report["replay"]["trace_operations"], 5);
    assert_eq!(report["replay"]["distinct_keys"], 5);
}

/// Blocks of 4 KiB, room for all of them: every reference but the first to each block is a hit, which are 64.0 %.
fn mooncake(fabric: FabricKind, traces: &Path) {
    let file = traces.join("mooncake/synthetic_trace.jsonl");
    let report = replay(fabric, "768M", "mooncake", &file, &["--block-size", "4096"]);
    assert_eq!(report["replay"]["trace_operations"], 121_877);
    assert_eq!(report["replay"]["distinct_keys"], 43_924);
    assert_eq!(report["replay"]["fills"], 43_924);
    assert_eq!(report["operations"]["errors"], 0);
    let ratio = report["replay"]["hit_ratio"].as_f64().expect("a number");
    assert_eq!((ratio * 1000.0).round(), 640.0, "{ratio}");
}

/// The published files, unmodified: everything read was loaded, and values are whole. Workload e is refused by name.
fn ycsb(fabric: FabricKind, traces: &Path) {
    for workload in ["a", "b", "c", "d", "f"] {
        let file = traces.join(format!("ycsb/workload{workload}"));
        let file = file.to_str().expect("a path is text");
        let common = ["-P", file, "--threads", "3", "--verify", "--format", "json"];
        let (load, run) = ([&["load"][..], &common].concat(), [&["run"][..], &common].concat());
        let reports = kvbench(fabric, "64M", &[&load, &run]);
        for report in &reports {
            let operations = &report["operations"];
            assert_eq!(operations["successes"], 1000, "workload {workload}: {operations}");
            assert_eq!((&operations["misses"], &operations["errors"]), (&0.into(), &0.into()), "{workload}");
        }
    }
    let file = traces.join("ycsb/workloade");
    let output = Command::new(binary("kvbench"))
        .args(["run", "-e", "sidestep://127.0.0.1:1", "-P"])
        .arg(file)
        .output()
        .expect("kvbench starts");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{errors}");
    assert!(errors.contains("scan"), "{errors}");
}
