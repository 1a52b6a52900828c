use std::time::SystemTime;

use super::*;
use crate::store::{Counters, Fabric};

fn measured(operations: &[(OperationKind, Outcome, u64)]) -> Measured {
    let mut tally = Tally::default();
    for (kind, outcome, latency_us) in operations {
        tally.record(*kind, *outcome, Duration::from_micros(*latency_us), None);
    }
    let get = Cost { operations: 4, round_trips: 8, verbs: 8, received_bytes: 5000, ..Cost::default() };
    Measured {
        tally,
        counters: Counters { get, ..Counters::default() },
        fabric: Fabric { name: "memory".to_owned(), description: String::new() },
        elapsed: Duration::from_millis(if operations.is_empty() { 0 } else { 500 }),
        started: SystemTime::now(),
        interrupted: false,
    }
}

fn report(operations: &[(OperationKind, Outcome, u64)]) -> Report {
    let setting = Setting {
        phase: "run",
        input: "workloadb".to_owned(),
        endpoint: "sidestep://host:7480".to_owned(),
        threads: 2,
        seed: Some(42),
        offered_per_second: None,
        warmup_seconds: 0.0,
        record_count: Some(1000),
        record_bytes_max: Some(1000),
        request_distribution: Some("zipfian"),
    };
    let cpu = CpuSeconds { total: 0.004, user: None, system: None };
    Report::new(setting, &measured(operations), Some(cpu), vec!["a note".to_owned()])
}

const SOME: &[(OperationKind, Outcome, u64)] = &[
    (OperationKind::Read, Outcome::Success, 10),
    (OperationKind::Read, Outcome::Success, 20),
    (OperationKind::Read, Outcome::Miss, 5),
    (OperationKind::Update, Outcome::Error, 1000),
];

#[test]
fn json_keeps_outcomes_apart() {
    let json: serde_json::Value = serde_json::from_str(&report(SOME).render(ReportFormat::Json)).unwrap();
    assert_eq!(json["operations"], serde_json::json!({"successes": 2, "misses": 1, "errors": 1}));
    assert_eq!(json["per_second"]["successes"], 4.0);
    assert_eq!(json["kinds"][0]["kind"], "read");
    // A bucket answers with its upper end, at most 0.1 % above.
    let p50_ns = json["kinds"][0]["latency"]["successes"]["p50_ns"].as_u64().unwrap();
    assert!((10_000..=10_010).contains(&p50_ns), "{p50_ns}");
    assert_eq!(json["kinds"][0]["latency"]["errors"], serde_json::Value::Null);
    assert_eq!(json["costs"][0]["verbs_per_operation"], 2.0);
    assert_eq!(json["server_cpu"]["us_per_operation"], 1000.0);
    for name in
        ["commit", "fabric", "machine", "threads", "offered_per_second", "seed", "notes", "elapsed_seconds"]
    {
        assert!(json.get(name).is_some(), "no {name}");
    }
}

#[test]
fn nothing_done_is_not_zero_latency() {
    let empty = report(&[]);
    let json: serde_json::Value = serde_json::from_str(&empty.render(ReportFormat::Json)).unwrap();
    assert_eq!(json["per_second"], serde_json::Value::Null);
    assert_eq!(json["kinds"], serde_json::json!([]));
    let text = empty.render(ReportFormat::Text);
    assert!(text.contains("n/a") && !text.contains("NaN") && !text.contains("inf"), "{text}");
    assert!(!empty.render(ReportFormat::Ycsb).contains("NaN"));
    assert_eq!(empty.render(ReportFormat::Csv).lines().count(), 1);
}

#[test]
fn text_ycsb_and_csv_show_the_same() {
    let report = report(SOME);
    let text = report.render(ReportFormat::Text);
    for words in
        ["2 threads", "closed loop", "READ success", "READ miss", "UPDATE error", "4.0 ms", "2.000", "a note"]
    {
        assert!(text.contains(words), "{words} is not in\n{text}");
    }
    let ycsb = report.render(ReportFormat::Ycsb);
    for line in [
        "[OVERALL], RunTime(ms), 500",
        "[READ], Operations, 2",
        "[READ], Return=OK, 2",
        "[READ], Return=NOT_FOUND, 1",
        "[READ], 95thPercentileLatency(us), 20",
        "[UPDATE], Return=ERROR, 1",
        "[UPDATE-FAILED], MaxLatency(us), 1000",
    ] {
        assert!(ycsb.lines().any(|found| found == line), "{line} is not in\n{ycsb}");
    }
    let csv = report.render(ReportFormat::Csv);
    let columns: Vec<_> = csv.lines().map(|line| line.split(',').count()).collect();
    assert_eq!(columns, [20, 20, 20, 20]);
}
