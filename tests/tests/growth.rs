//! An index that grows while clients use it, on every fabric.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use sidestep_client::fsck::{Live, Options, check};
use sidestep_client::{Effect, FabricKind};
use sidestep_tests::system::{Node, NodeOptions, run_suite};
use sidestep_tests::{cases, scaled};

fn main() {
    run_suite(&cases![
        an_index_grows_under_writers_and_readers,
        an_index_that_can_grow_no_more_says_so: 6,
        room_of_deleted_keys_is_used_again,
    ])
}

fn key(number: u32) -> Vec<u8> {
    format!("key {number}").into_bytes()
}

/// One segment to begin with. Writers put keys of their own, and delete some; readers look for what is acknowledged all the
/// while. Nothing that was acknowledged is missing at any moment, and what was deleted stays away.
fn an_index_grows_under_writers_and_readers(fabric: FabricKind) {
    let configure = |config: &mut sidestep_server::Config| config.initial_segments = 1;
    let node = Node::start(fabric, &NodeOptions { memory_mib: 64, configure });
    let count = scaled(12_000) as u32;
    const WRITERS: u32 = 3;
    let client = node.client();
    let acknowledged: [AtomicU32; WRITERS as usize] = Default::default();
    let is_over = AtomicBool::new(false);
    let is_deleted = |number: u32| number % 5 == 3;
    let name = |writer: u32, number: u32| key(number * WRITERS + writer);
    std::thread::scope(|scope| {
        let writers: Vec<_> = (0..WRITERS)
            .map(|writer| {
                let (client, acknowledged) = (&client, &acknowledged[writer as usize]);
                scope.spawn(move || {
                    for number in 0..count {
                        let name = name(writer, number);
                        client.put(&name, &name).unwrap();
                        if is_deleted(number) {
                            assert!(client.delete(&name).unwrap());
                        }
                        acknowledged.store(number + 1, Ordering::Release);
                    }
                })
            })
            .collect();
        let mut random = 1_u64;
        let (client, acknowledged, is_over) = (&client, &acknowledged, &is_over);
        scope.spawn(move || {
            while !is_over.load(Ordering::Relaxed) {
                random = random.wrapping_mul(0xd134_2543_de82_ef95).wrapping_add(1);
                let writer = (random >> 40) as u32 % WRITERS;
                let known = acknowledged[writer as usize].load(Ordering::Acquire);
                let Some(number) = ((random >> 20) as u32).checked_rem(known) else { continue };
                let name = name(writer, number);
                let expected = (!is_deleted(number)).then(|| name.clone());
                assert_eq!(client.get(&name).unwrap(), expected, "{writer} {number} of {known}");
            }
        });
        let results: Vec<_> = writers.into_iter().map(std::thread::ScopedJoinHandle::join).collect();
        is_over.store(true, Ordering::Relaxed);
        results.into_iter().for_each(|result| result.unwrap());
    });
    for writer in 0..WRITERS {
        for number in 0..count {
            let name = name(writer, number);
            let expected = (!is_deleted(number)).then(|| name.clone());
            assert_eq!(client.get(&name).unwrap(), expected, "{writer} {number}");
        }
    }
    let statistics = node.running().statistics();
    let (serving, splits) = (statistics.segments_serving, statistics.splits_total);
    println!("{serving} segments, {} rebuilds, {splits} splits", statistics.rebuilds_total);
    assert_eq!(serving, splits + 1);
    if count >= 12_000 {
        assert!(serving > 16, "{} keys in {serving} segments", WRITERS * count);
    }
    let client = node.builder().damaged_region().connect().unwrap();
    let mut live = Live::new(client.session().unwrap()).unwrap();
    let report = check(&mut live, Options::default()).unwrap();
    assert_eq!(report.findings.first(), None);
    assert!(report.accounts.is_balanced(), "{:#?}", report.accounts);
}

/// A region so small that its index is full before its memory. New keys of full buckets are refused with an error of their
/// own, having done nothing; all else goes on, also after some keys were deleted.
fn an_index_that_can_grow_no_more_says_so(node: &Node) {
    let client = node.client();
    let mut there = HashSet::new();
    let mut refused = Vec::new();
    for number in 0..60_000 {
        match client.put(&key(number), b"value") {
            Ok(()) => assert!(there.insert(number)),
            Err(error) => {
                assert_eq!(error.effect(), Effect::No, "{error}");
                assert!(error.to_string().contains("the index has no room"), "{error}");
                refused.push(number);
                if refused.len() == 3 {
                    break;
                }
            }
        }
    }
    assert!(refused.len() == 3 && there.len() > 10_000, "{} keys, refused {refused:?}", there.len());
    let statistics = node.running().statistics();
    assert!(statistics.segments_serving > 20, "{}", statistics.segments_serving);
    for number in &refused {
        assert_eq!(client.get(&key(*number)).unwrap(), None);
    }
    for number in there.iter().take(2000) {
        assert_eq!(client.get(&key(*number)).unwrap().as_deref(), Some(&b"value"[..]));
        client.put(&key(*number), b"another").unwrap();
    }
    // Most keys go, and with them what filled the bucket.
    for number in &there {
        assert!(client.delete(&key(*number)).unwrap());
    }
    for number in &refused {
        client.put(&key(*number), b"at last").unwrap();
        assert_eq!(client.get(&key(*number)).unwrap().as_deref(), Some(&b"at last"[..]));
    }
}

/// Keys come and go, each once: several times as many as the index has slots. Their slots are used again.
fn room_of_deleted_keys_is_used_again(fabric: FabricKind) {
    let configure = |config: &mut sidestep_server::Config| config.grace_ms = 100;
    let node = Node::start(fabric, &NodeOptions { memory_mib: 4, configure });
    let client = node.client();
    // The index has 32 segments of 1,984 slots at the most.
    let count = scaled(80_000) as u32;
    for number in 0..count {
        client.put(&key(number), b"v").unwrap_or_else(|error| panic!("put {number}: {error}"));
        assert!(client.delete(&key(number)).unwrap_or_else(|error| panic!("delete {number}: {error}")));
    }
    let statistics = node.running().statistics();
    println!(
        "{} segments, {} rebuilds, {} splits",
        statistics.segments_serving, statistics.rebuilds_total, statistics.splits_total
    );
    for number in (0..count).step_by(997) {
        assert_eq!(client.get(&key(number)).unwrap(), None);
    }
}
