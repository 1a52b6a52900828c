//! The contract of costs: round trips and verbs of each operation, counted on every fabric.

use sidestep_client::KindStatistics;
use sidestep_tests::cases;
use sidestep_tests::system::{Node, run_suite};

fn main() {
    run_suite(&cases![
        operations_cost_what_the_design_says: 64,
        a_multi_get_takes_the_round_trips_of_one_get: 64,
        the_server_is_asked_for_memory_seldom: 64,
    ])
}

/// Round trips, verbs waited for, silent verbs.
fn cost(before: KindStatistics, after: KindStatistics) -> (u64, u64, u64) {
    let silent = after.silent_verbs - before.silent_verbs;
    (after.round_trips - before.round_trips, after.verbs - before.verbs - silent, silent)
}

/// Nobody else is there, nothing is cached: exactly the table of the design. The silent verb marks the block
/// that was replaced as free.
fn operations_cost_what_the_design_says(node: &Node) {
    let client = node.client();
    let statistics = || client.statistics();
    for number in 0..50 {
        let key = format!("key{number}");
        let key = key.as_bytes();
        let before = statistics();
        assert_eq!(client.get(key).unwrap(), None);
        client.put(key, b"one").unwrap();
        let inserted = statistics();
        assert_eq!(cost(before.get, inserted.get), (1, 1, 0), "get, absent");
        assert_eq!(cost(before.put, inserted.put), (2, 3, 0), "insert");
        assert_eq!(client.get(key).unwrap().as_deref(), Some(&b"one"[..]));
        client.put(key, b"two").unwrap();
        let replaced = statistics();
        assert_eq!(cost(inserted.get, replaced.get), (2, 2, 0), "get, present");
        assert_eq!(cost(inserted.put, replaced.put), (3, 4, 1), "put over an existing key");
        assert!(client.delete(key).unwrap());
        assert!(!client.delete(key).unwrap());
        let deleted = statistics();
        assert_eq!(cost(replaced.delete, deleted.delete), (3 + 1, 4 + 1, 1), "delete, present then absent");
        assert_eq!(deleted.get.retries + deleted.put.retries + deleted.delete.retries, 0);
    }
}

/// A hundred keys at once: two waits for all of them together.
fn a_multi_get_takes_the_round_trips_of_one_get(node: &Node) {
    let client = node.client();
    let keys: Vec<String> = (0..100).map(|number| format!("key{number}")).collect();
    for key in keys.iter().step_by(2) {
        client.put(key.as_bytes(), key.as_bytes()).unwrap();
    }
    let (result, trace) = client.explain(|session| session.get_many(&keys));
    for (at, value) in result.unwrap().into_iter().enumerate() {
        assert_eq!(value.as_deref(), (at % 2 == 0).then(|| keys[at].as_bytes()), "{}", keys[at]);
    }
    assert_eq!(trace.round_trips(), 2);
    assert_eq!(trace.verbs.len(), 100 + 50);
}

/// A thousand puts of one size: a handful of requests to the server, for memory in bulk.
fn the_server_is_asked_for_memory_seldom(node: &Node) {
    let client = node.client();
    for number in 0..1000 {
        client.put(format!("key{number}").as_bytes(), &[7; 1000]).unwrap();
    }
    let requests = client.statistics().chunk_requests;
    assert!((1..=2).contains(&requests), "{requests} requests");
}
