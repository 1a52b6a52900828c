//! Whole commands against an in-process store.

use std::sync::Arc;

use super::*;
use crate::measure::tally::Outcome;
use crate::store::Store;
use crate::testing::{Memory, shared_trace};

/// A handle on a store that outlives a command.
#[derive(Clone, Default)]
struct Node(Arc<Memory>);

impl Connect for Node {
    fn open(&self) -> Result<Box<dyn Store>, StoreError> {
        self.0.open()
    }
}

fn kvbench(node: &Node, arguments: &[&str]) -> Result<Report, CommandError> {
    let all = ["kvbench"].iter().chain(arguments).chain(&["--quiet"]);
    let arguments = Arguments::try_parse_from(all).map_err(CommandError::usage)?;
    match execute(&arguments, &|_| Ok(Box::new(node.clone())), &mut Vec::new())? {
        Done::Reported(report) => Ok(*report),
        Done::Lasted { .. } => panic!("it has no report"),
    }
}

/// The last line of a run that lasts, and its errors.
fn lasting(node: &Node, arguments: &[&str]) -> Result<(String, u64), CommandError> {
    let all = ["kvbench"].iter().chain(arguments).chain(&["--quiet"]);
    let arguments = Arguments::try_parse_from(all).map_err(CommandError::usage)?;
    let mut output = Vec::new();
    let done = execute(&arguments, &|_| Ok(Box::new(node.clone())), &mut output)?;
    let output = String::from_utf8(output).unwrap();
    Ok((output.lines().last().unwrap_or_default().to_owned(), done.errors()))
}

#[test]
fn churn_ends_with_one_line_of_figures() {
    let node = Node::default();
    let arguments = ["churn", "--ops", "5000", "--fill", "10", "--values", "100-200", "--threads", "2"];
    let (line, errors) = lasting(&node, &arguments).unwrap();
    assert_eq!(errors, 0);
    assert!(line.starts_with("churn: ops 5000 "), "{line}");
    assert!(
        line.contains(" errors 0 ") && line.contains(" wrong 0 ") && line.contains(" p99_ratio "),
        "{line}"
    );
    for bad in
        [&["churn"][..], &["churn", "--ops", "5", "--values", "9-3"], &["churn", "--ops", "5", "--fill", "0"]]
    {
        assert_eq!(lasting(&node, bad).unwrap_err().exit_code(), 2, "{bad:?}");
    }
}

#[test]
fn growth_ends_with_one_line_of_figures() {
    let node = Node::default();
    let (line, errors) = lasting(&node, &["grow", "--from", "10", "--to", "3000", "--threads", "2"]).unwrap();
    assert_eq!((errors, node.0.len()), (0, 3000));
    assert!(line.starts_with("grow: keys 3000 errors 0 "), "{line}");
    assert_eq!(lasting(&node, &["grow", "--from", "10", "--to", "3"]).unwrap_err().exit_code(), 2);
}

fn records(node: &Node) -> usize {
    // One is the note of the load.
    node.0.len() - 1
}

#[test]
fn ycsbs_own_files_load_and_run() {
    for (letter, kinds) in [
        ('a', &["READ", "UPDATE"][..]),
        ('b', &["READ", "UPDATE"]),
        ('c', &["READ"]),
        ('d', &["READ", "INSERT"]),
        ('f', &["READ", "READ-MODIFY-WRITE"]),
    ] {
        let Some(path) = shared_trace("ycsb", &format!("workload{letter}")) else { return };
        let (node, path) = (Node::default(), path.to_str().unwrap());
        let report = kvbench(&node, &["load", "-P", path, "--threads", "3", "--verify"]).unwrap();
        assert_eq!((report.operations.successes, records(&node)), (1000, 1000), "{letter}");
        let report = kvbench(&node, &["run", "-P", path, "--threads", "3", "--verify"]).unwrap();
        assert_eq!(report.operations.successes, 1000, "{letter}: {:?}", report.first_error);
        let found: Vec<_> = report.kinds.iter().map(|kind| kind.kind.name()).collect();
        assert_eq!(found, kinds, "{letter}");
        assert!(report.notes.is_empty(), "{letter}: {:?}", report.notes);
    }
}

#[test]
fn workload_e_is_refused_by_name() {
    let Some(path) = shared_trace("ycsb", "workloade") else { return };
    for phase in ["load", "run"] {
        let error = kvbench(&Node::default(), &[phase, "-P", path.to_str().unwrap()]).unwrap_err();
        assert_eq!(error.exit_code(), 2);
        assert!(error.to_string().contains("workload e needs scans"), "{error}");
    }
}

#[test]
fn this_projects_files_say_the_same_as_ycsbs() {
    for letter in ['a', 'b', 'c', 'd', 'f'] {
        let Some(theirs) = shared_trace("ycsb", &format!("workload{letter}")) else { return };
        let ours =
            std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("workloads/workload{letter}"));
        let read = |path: &std::path::Path| {
            let mut properties = crate::workload::properties::Properties::default();
            properties.read(path).unwrap();
            properties.set("recordcount", "1000");
            properties.set("operationcount", "1000");
            crate::workload::settings::Settings::new(&properties, "w", 1 << 20).unwrap()
        };
        assert_eq!(read(&ours), read(&theirs), "workload{letter}");
    }
}

#[test]
fn a_run_reads_all_that_was_loaded() {
    let node = Node::default();
    kvbench(&node, &["load", "--records", "5000", "-p", "fieldcount=1"]).unwrap();
    // The run does not repeat the record count, and its file would say another.
    let run = ["run", "-p", "fieldcount=1", "-p", "requestdistribution=sequential", "--ops", "5e3"];
    let report = kvbench(&node, &run).unwrap();
    assert_eq!(report.setting.record_count, Some(5000));
    assert_eq!(report.keys.as_ref().unwrap().touched, Some(5000));
    assert!(report.notes.iter().any(|note| note.contains("recordcount=5000, taken from the store")));
    let mut explicit = run.to_vec();
    explicit.extend(["-p", "recordcount=100"]);
    let report = kvbench(&node, &explicit).unwrap();
    assert_eq!(report.keys.as_ref().unwrap().touched, Some(100));
    assert!(report.notes.iter().any(|note| note.contains("although 5000 records were loaded")));

    let empty = Node::default();
    let error = kvbench(&empty, &run).unwrap_err();
    assert!(error.exit_code() == 2 && error.to_string().contains("no note of a load"), "{error}");
    let report = kvbench(&empty, &explicit).unwrap();
    assert!(report.notes.iter().any(|note| note.contains("assuming recordcount=100")));
    assert!(report.operations.misses > 0);
}

#[test]
fn ends_are_where_they_were_asked_for() {
    let node = Node::default();
    kvbench(&node, &["load", "--records", "100"]).unwrap();
    let done = |arguments: &[&str]| {
        let all = [&["run", "--records", "100"][..], arguments].concat();
        kvbench(&node, &all).map(|report| report.operation_count())
    };
    assert_eq!(done(&["--ops", "1", "--threads", "8"]).unwrap(), 1);
    assert_eq!(done(&["--ops", "0"]).unwrap(), 0);
    assert_eq!(done(&["-p", "operationcount=77"]).unwrap(), 77);
    // More operations than 32 bits hold end by time.
    let many = done(&["--ops", "5e9", "--duration", "100ms"]).unwrap();
    assert!(many > 0 && many < 5_000_000_000);
    // The file's count does not end a run with a duration.
    let path = std::env::temp_dir().join(format!("kvbench-ends-{}", std::process::id()));
    std::fs::write(&path, "operationcount=3\n").unwrap();
    assert_eq!(done(&["-P", path.to_str().unwrap()]).unwrap(), 3);
    assert!(done(&["-P", path.to_str().unwrap(), "--duration", "100ms"]).unwrap() > 3);
    std::fs::remove_file(&path).unwrap();
    assert_eq!(done(&[]).unwrap_err().exit_code(), 2);
}

#[test]
fn key_numbers_beyond_32_bits_are_exact() {
    let node = Node::default();
    let range = ["-p", "insertstart=10000000000", "-p", "insertcount=10", "-p", "recordcount=10000000010"];
    let names = ["-p", "insertorder=ordered", "-p", "zeropadding=20", "-p", "fieldcount=1"];
    kvbench(&node, &[&["load", "--threads", "3"], &range[..], &names[..]].concat()).unwrap();
    assert_eq!(records(&node), 10);
    assert!(node.0.map.lock().unwrap().contains_key(&b"user00000000010000000009"[..]));
    let report = kvbench(&node, &[&["run", "--ops", "1000"], &range[..], &names[..]].concat()).unwrap();
    assert_eq!(report.operations.successes, 1000);
    let keys = report.keys.unwrap();
    assert_eq!((keys.first, keys.last, keys.touched), (10_000_000_000, 10_000_000_009, None));
}

#[test]
fn mistakes_are_found_before_the_store_is_touched() {
    let nowhere = |arguments: &[&str]| {
        let arguments =
            Arguments::try_parse_from(["kvbench"].iter().chain(arguments)).map_err(CommandError::usage)?;
        execute(&arguments, &|_| panic!("the store was opened"), &mut Vec::new())
    };
    for arguments in [
        &["run", "--threads", "0"][..],
        &["run", "--threads", "5000"],
        &["load", "--records", "0"],
        &["load"],
        &["run", "--records", "10"],
        &["run", "--records", "10", "--ops", "-1"],
        &["run", "--records", "10", "--ops", "1", "-p", "threadcount=0"],
        &["run", "--records", "10", "--ops", "1", "-p", "zipfianconstant=NaN"],
        &["run", "--records", "10", "--ops", "1", "-p", "scanproportion=0.1"],
        &["run", "--records", "10", "--ops", "1", "-p", "fieldlength=2000000"],
        &["run", "--records", "10", "--ops", "1", "-p", "zeropadding=1021"],
        &["run", "--records", "10", "--ops", "1", "-p", "nonsense"],
        &["run", "--records", "10", "--ops", "1", "--target", "0"],
        &["run", "--records", "10", "--ops", "1", "--target", "NaN"],
        &["run", "--records", "10", "--duration", "soon"],
        &["run", "-P", "/no/such/file"],
        &["replay", "--format", "twitter", "/no/such/file"],
        &["replay", "--format", "tape", "/dev/null"],
        &["replay", "--format", "mooncake", "--block-size", "2000000", "/dev/null"],
    ] {
        let error = nowhere(arguments).expect_err(&arguments.join(" "));
        assert_eq!(error.exit_code(), 2, "{arguments:?}: {error}");
    }
}

#[test]
fn failures_are_not_hidden() {
    let node = Node(Arc::new(Memory { failing_put: 4, ..Memory::default() }));
    let report = kvbench(&node, &["load", "--records", "100", "--format", "json"]).unwrap();
    assert_eq!((report.operations.successes, report.operations.errors), (75, 25));
    assert!(report.notes.iter().any(|note| note.contains("only 75 of 100 records")));
    assert_eq!(node.0.len(), 75, "no note may promise 100 records");

    let nobody = Node(Arc::new(Memory { is_unreachable: true, ..Memory::default() }));
    for arguments in [&["load", "--records", "1"][..], &["run", "--records", "1", "--ops", "1"]] {
        assert_eq!(kvbench(&nobody, arguments).unwrap_err().exit_code(), 3);
    }
}

#[test]
fn verification_needs_a_verifiable_load() {
    let node = Node::default();
    kvbench(&node, &["load", "--records", "10"]).unwrap();
    let error = kvbench(&node, &["run", "--ops", "1", "--verify"]).unwrap_err();
    assert!(error.exit_code() == 2 && error.to_string().contains("--verify"), "{error}");
}

#[test]
fn replays_report_ratios_and_write_logs() {
    let Some(path) = shared_trace("mooncake", "synthetic_trace.jsonl") else { return };
    let log = std::env::temp_dir().join(format!("kvbench-replay-{}.hlog", std::process::id()));
    let arguments =
        ["replay", "--format", "mooncake", path.to_str().unwrap(), "--block-size", "64", "--threads", "2"];
    let report =
        kvbench(&Node::default(), &[&arguments[..], &["--hdr", log.to_str().unwrap()]].concat()).unwrap();
    let written = std::fs::read_to_string(&log).unwrap();
    std::fs::remove_file(&log).unwrap();
    assert!(written.contains("Tag=READ-success") && written.contains("Tag=INSERT-success"), "{written}");
    let replay = report.replay.unwrap();
    assert_eq!((replay.trace_operations, replay.fills, replay.distinct_keys), (121_877, 43_924, 43_924));
    assert_eq!(format!("{:.1}", 100.0 * replay.hit_ratio.unwrap()), "64.0");
    assert_eq!(*report.operations.of(Outcome::Miss), 43_924);
}
