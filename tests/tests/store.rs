//! What a user does with the store, on every fabric.

use std::collections::HashMap;
use std::sync::Barrier;
use std::sync::atomic::{AtomicU64, Ordering};

use sidestep_client::{Effect, Error};
use sidestep_common::fabric::FabricKind;
use sidestep_common::hash::KeyHash;
use sidestep_common::layout::{BlockRef, DirectoryWord, SlotState, SlotWord, free_map_offset};
use sidestep_tests::system::{Node, NodeOptions, run_suite};
use sidestep_tests::{AWKWARD_KEYS, cases, scaled};

fn main() {
    run_suite(&cases![
        keys_may_be_any_bytes: 64,
        a_panic_in_the_callers_code_costs_nothing: 64,
        keys_and_values_have_the_same_limits_everywhere: 64,
        values_of_every_size_come_back: 128,
        many_large_values_come_at_once: 128,
        deletes_say_whether_the_key_was_there: 64,
        a_full_store_refuses_new_keys_and_nothing_else: 8,
        puts_do_not_use_up_what_is_kept_for_deletes: 64,
        what_nobody_uses_is_found_before_a_put_is_refused,
        threads_share_a_client: 128,
        exactly_one_of_racing_deletes_finds_the_key: 64,
        readers_see_whole_values_of_their_key_only: 128,
        an_acknowledged_put_is_seen_by_everybody: 64,
        a_read_only_client_only_reads: 64,
        sessions_end_without_leaving_memory_behind: 64,
        unused_memory_of_a_clean_session_is_used_by_the_next: 16,
        a_clean_end_loses_no_mark: 64,
    ])
}

/// The caller's code panics while it looks at a value: the session goes on as if nothing had happened.
fn a_panic_in_the_callers_code_costs_nothing(node: &Node) {
    let client = node.client();
    let mut session = client.session().unwrap();
    session.put(b"k", b"v").unwrap();
    let look = std::panic::AssertUnwindSafe(|| session.get_with(b"k", |_| panic!("on purpose, by a test")));
    let panicked = std::panic::catch_unwind(look);
    assert!(panicked.is_err());
    let before = session.statistics().reconnects;
    assert_eq!(session.get(b"k").unwrap().as_deref(), Some(&b"v"[..]));
    assert_eq!(session.statistics().reconnects, before);
}

/// Leading NULs, blanks, line ends, bytes that are no text, look-alikes: all different, all come back.
fn keys_may_be_any_bytes(node: &Node) {
    let client = node.client();
    let keys = AWKWARD_KEYS;
    for (number, key) in keys.iter().enumerate() {
        client.put(key, number.to_string().as_bytes()).unwrap();
    }
    for (number, key) in keys.iter().enumerate() {
        assert_eq!(client.get(key).unwrap(), Some(number.to_string().into_bytes()), "{key:?}");
    }
    for key in keys {
        assert!(client.delete(key).unwrap(), "{key:?}");
        assert_eq!(client.get(key).unwrap(), None);
    }
}

/// One byte over the limit is refused by every operation, with the value in the message, and the next call works.
fn keys_and_values_have_the_same_limits_everywhere(node: &Node) {
    let client = node.client();
    for bytes in [1, 1023, 1024] {
        let key = vec![b'k'; bytes];
        client.put(&key, &key).unwrap();
        assert_eq!(client.get(&key).unwrap(), Some(key.clone()));
        assert_eq!(client.get_many(&[&key]).unwrap(), [Some(key.clone())]);
        assert!(client.delete(&key).unwrap());
    }
    for bytes in [0, 1025, 10_240] {
        let key = vec![b'k'; bytes];
        let errors = [
            client.put(&key, b"").unwrap_err(),
            client.get(&key).unwrap_err(),
            client.get_many(&[&key]).unwrap_err(),
            client.delete(&key).unwrap_err(),
        ];
        for error in errors {
            assert!(matches!(error, Error::KeyLength { bytes: found } if found == bytes), "{error}");
            assert!(error.to_string().contains(&bytes.to_string()), "{error}");
            assert_eq!(error.effect(), Effect::No);
        }
        assert_eq!(client.get(b"absent").unwrap(), None, "the session still works");
    }
    let error = client.put(b"k", &vec![0; (1 << 20) + 1]).unwrap_err();
    assert!(
        matches!(error, Error::ValueLength { bytes, limit_bytes } if bytes == limit_bytes + 1),
        "{error}"
    );
    assert_eq!(client.get(b"k").unwrap(), None);
}

/// Sizes around every border: of words, classes, chunks and extents.
fn values_of_every_size_come_back(node: &Node) {
    let client = node.client();
    let mut sizes: Vec<usize> = (0..130).collect();
    for border in [256, 512, 1024, 4096, 65_536, 128 << 10, 256 << 10, 1 << 20] {
        sizes.extend([border - 45, border - 1, border, border + 1].iter().filter(|size| **size <= 1 << 20));
    }
    let value = |size: usize| -> Vec<u8> { (0..size).map(|at| (at * 31 + size) as u8).collect() };
    for &size in &sizes {
        client.put(b"one key", &value(size)).unwrap();
        let mut into = vec![9; 3];
        assert!(client.get_into(b"one key", &mut into).unwrap());
        assert!(into == value(size), "size {size}");
    }
    for &size in &sizes {
        client.put(format!("key {size}").as_bytes(), &value(size)).unwrap();
    }
    for &size in &sizes {
        assert!(client.get(format!("key {size}").as_bytes()).unwrap() == Some(value(size)), "size {size}");
    }
}

/// More than the session's buffers hold at once, in one call; then sizes for which no buffer was made before.
fn many_large_values_come_at_once(node: &Node) {
    let client = node.client();
    let value = |number: usize| vec![number as u8; (1 << 20) - number];
    let keys: Vec<String> = (0..40).map(|number| format!("large {number}")).collect();
    for (number, key) in keys.iter().enumerate() {
        client.put(key.as_bytes(), &value(number)).unwrap();
    }
    for bytes in [300, 3_000, 30_000, 300_000] {
        client.put(format!("{bytes}").as_bytes(), &vec![3; bytes]).unwrap();
    }
    let client = node.client();
    let found = client.get_many(&keys).unwrap();
    for (number, found) in found.into_iter().enumerate() {
        assert!(found == Some(value(number)), "{number}");
    }
    for bytes in [300, 3_000, 30_000, 300_000] {
        assert!(client.get(format!("{bytes}").as_bytes()).unwrap() == Some(vec![3; bytes]), "{bytes}");
    }
}

fn deletes_say_whether_the_key_was_there(node: &Node) {
    let client = node.client();
    for _ in 0..10 {
        assert!(!client.delete(b"absent").unwrap());
    }
    for _ in 0..10 {
        client.put(b"k", b"v").unwrap();
        assert!(client.delete(b"k").unwrap());
        assert!(!client.delete(b"k").unwrap());
        assert_eq!(client.get(b"k").unwrap(), None);
    }
}

/// Filled to refusal: what is there can be read and deleted (deletes have a reserve), absent keys are answered,
/// and a refused put changed nothing.
fn a_full_store_refuses_new_keys_and_nothing_else(node: &Node) {
    let client = node.client();
    let value = vec![5; 30_000];
    let mut stored = 0_u64;
    let error = loop {
        match client.put(format!("key{stored}").as_bytes(), &value) {
            Ok(()) => stored += 1,
            Err(error) => break error,
        }
        assert!(stored < 10_000, "8 MiB can't hold this");
    };
    assert!(matches!(error, Error::OutOfMemory(_)), "{error}");
    assert_eq!(error.effect(), Effect::No);
    assert!(stored > 100, "only {stored} of 30 kB in 8 MiB");
    for number in 0..stored {
        assert!(client.get(format!("key{number}").as_bytes()).unwrap() == Some(value.clone()), "{number}");
    }
    assert_eq!(client.get(format!("key{stored}").as_bytes()).unwrap(), None);
    for number in 0..stored {
        assert!(client.delete(format!("key{number}").as_bytes()).unwrap(), "{number}");
        assert_eq!(client.get(format!("key{number}").as_bytes()).unwrap(), None);
    }
}

/// The store is full, and one session deletes. What it gets for that out of the reserve is for deletes alone: not for
/// its own puts, and not all of it for this one session.
fn puts_do_not_use_up_what_is_kept_for_deletes(node: &Node) {
    let client = node.client();
    client.put(b"first", b"v").unwrap();
    let (mut stored, value) = (0_u64, vec![5; 1 << 20]);
    while client.put(format!("large{stored}").as_bytes(), &value).is_ok() {
        stored += 1;
    }
    let mut small = 0_u64;
    while client.put(format!("key{small}").as_bytes(), b"").is_ok() {
        small += 1;
    }
    let reserve = || node.running().statistics().reserve_bytes;
    let whole = reserve();
    assert!(whole >= 1 << 20, "a region of this size has a reserve");
    assert!(client.delete(b"first").unwrap());
    assert_eq!(whole - reserve(), 1 << 20, "one chunk at a time");
    // There may be room where the deleted block was, if that was seen in time; no more.
    let error = (0..2).find_map(|number| client.put(format!("another{number}").as_bytes(), b"").err());
    assert!(matches!(error, Some(Error::OutOfMemory(_))), "{error:?}");
    assert_eq!(whole - reserve(), 1 << 20, "puts take nothing of it");
    for number in 0..small.min(100) {
        assert!(client.delete(format!("key{number}").as_bytes()).unwrap(), "{number}");
    }
}

/// A session fills the store with short values, deletes them and leaves. What it had belongs to nobody, and is of a class that
/// nobody asks for: a put of a long value finds it, the first one already. So does one of another class after that.
fn what_nobody_uses_is_found_before_a_put_is_refused(fabric: FabricKind) {
    let configure = |config: &mut sidestep_server::Config| config.grace_ms = 200;
    let node = Node::start(fabric, &NodeOptions { memory_mib: 16, configure });
    let client = node.client();
    for bytes in [100, 3000, 40_000] {
        let mut session = client.session().unwrap();
        let (mut stored, value) = (0_u64, vec![7; bytes]);
        let error = loop {
            match session.put(format!("{bytes}/{stored}").as_bytes(), &value) {
                Ok(()) => stored += 1,
                Err(error) => break error,
            }
        };
        assert!(matches!(error, Error::OutOfMemory(_)), "{error}");
        assert!(stored * bytes as u64 > 5 << 20, "{stored} values of {bytes} bytes");
        for number in 0..stored {
            assert!(session.delete(format!("{bytes}/{number}").as_bytes()).unwrap(), "{number}");
        }
    }
}

fn threads_share_a_client(node: &Node) {
    let client = node.client();
    let rounds = scaled(500);
    std::thread::scope(|scope| {
        for thread in 0..4_u64 {
            let client = client.clone();
            scope.spawn(move || {
                let mut model = HashMap::new();
                for round in 0..rounds {
                    let key = format!("{thread}/{}", round * 7 % 40).into_bytes();
                    match round % 5 {
                        0..=2 => {
                            let value =
                                format!("{thread}/{round}").repeat(1 + round as usize % 50).into_bytes();
                            client.put(&key, &value).unwrap();
                            model.insert(key, value);
                        }
                        3 => assert_eq!(client.delete(&key).unwrap(), model.remove(&key).is_some()),
                        _ => assert_eq!(client.get(&key).unwrap(), model.get(&key).cloned()),
                    }
                }
                for (key, value) in model {
                    assert_eq!(client.get(&key).unwrap(), Some(value));
                }
            });
        }
    });
    let statistics = client.statistics();
    assert_eq!(statistics.put.errors + statistics.get.errors + statistics.delete.errors, 0);
}

fn exactly_one_of_racing_deletes_finds_the_key(node: &Node) {
    let client = node.client();
    let rounds = scaled(200);
    let found = AtomicU64::new(0);
    let start = Barrier::new(4);
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let (client, found, start) = (client.clone(), &found, &start);
            scope.spawn(move || {
                for round in 0..rounds {
                    if thread == 0 {
                        client.put(b"contended", &round.to_le_bytes()).unwrap();
                    }
                    start.wait();
                    found.fetch_add(u64::from(client.delete(b"contended").unwrap()), Ordering::Relaxed);
                    start.wait();
                }
            });
        }
    });
    assert_eq!(found.into_inner(), rounds);
    assert_eq!(client.get(b"contended").unwrap(), None);
}

/// Writers replace values of changing size as fast as they can; a reader must never see a mixture, another
/// key's value, or a value older than one it has seen.
fn readers_see_whole_values_of_their_key_only(node: &Node) {
    let client = node.client();
    let rounds = scaled(400);
    let value = |key: u64, round: u64| -> Vec<u8> {
        let mut value = [key.to_le_bytes(), round.to_le_bytes()].concat();
        value.resize(16 + (round as usize * 97) % 3000, (key + round) as u8);
        value
    };
    for key in 0..4_u64 {
        client.put(&key.to_le_bytes(), &value(key, 0)).unwrap();
    }
    let writing = AtomicU64::new(2);
    std::thread::scope(|scope| {
        for writer in 0..2_u64 {
            let (client, writing) = (client.clone(), &writing);
            scope.spawn(move || {
                for round in 1..=rounds {
                    for key in [writer * 2, writer * 2 + 1] {
                        client.put(&key.to_le_bytes(), &value(key, round)).unwrap();
                    }
                }
                writing.fetch_sub(1, Ordering::Release);
            });
        }
        for _ in 0..2 {
            let (client, writing) = (client.clone(), &writing);
            scope.spawn(move || {
                let mut newest = [0_u64; 4];
                let mut last_look = false;
                while !last_look {
                    last_look = writing.load(Ordering::Acquire) == 0;
                    for key in 0..4_u64 {
                        let found = client.get(&key.to_le_bytes()).unwrap().expect("never deleted");
                        let round = u64::from_le_bytes(found[8..16].try_into().unwrap());
                        assert!(found == value(key, round), "key {key}: a mixture");
                        assert!(round >= newest[key as usize], "key {key} went back to {round}");
                        newest[key as usize] = round;
                    }
                }
                assert_eq!(newest, [rounds; 4]);
            });
        }
    });
}

/// One client puts and tells another, which gets: never the old value, never nothing.
fn an_acknowledged_put_is_seen_by_everybody(node: &Node) {
    let (writer, reader) = (node.client(), node.client());
    let rounds = scaled(2000);
    let (tell, told) = std::sync::mpsc::sync_channel::<u64>(0);
    std::thread::scope(|scope| {
        scope.spawn(move || {
            for round in 0..rounds {
                writer.put(format!("key{}", round % 10).as_bytes(), &round.to_le_bytes()).unwrap();
                tell.send(round).unwrap();
            }
        });
        for round in told {
            let found = reader.get(format!("key{}", round % 10).as_bytes()).unwrap().expect("acknowledged");
            assert!(u64::from_le_bytes(found.try_into().unwrap()) >= round);
        }
    });
}

fn a_read_only_client_only_reads(node: &Node) {
    node.client().put(b"k", b"v").unwrap();
    let reader = node.builder().read_only().connect().unwrap();
    assert_eq!(reader.get(b"k").unwrap().as_deref(), Some(&b"v"[..]));
    assert!(matches!(reader.put(b"k", b"w"), Err(Error::ReadOnly)));
    assert!(matches!(reader.delete(b"k"), Err(Error::ReadOnly)));
    assert_eq!(reader.get(b"k").unwrap().as_deref(), Some(&b"v"[..]));
}

/// Many short-lived clients, as a shell script makes them: the region's memory must not drain away.
fn sessions_end_without_leaving_memory_behind(node: &Node) {
    let rounds = scaled(60).max(12);
    for round in 0..rounds {
        let client = node.client();
        client.put(b"k", format!("{round}").as_bytes()).unwrap();
        client.put(b"large", &vec![round as u8; 5000]).unwrap();
    }
    // Of each class a chunk, and one or two that were given back and wait for an epoch.
    let statistics = node.running().statistics();
    assert!(statistics.granted_bytes <= 6 << 20, "{} bytes granted", statistics.granted_bytes);
    sidestep_tests::system::until("all sessions are gone", || node.running().statistics().session_count == 0);
}

/// A session takes a chunk, uses one block of it and ends; the next must be able to use the rest, though the
/// pool has no other chunk left.
fn unused_memory_of_a_clean_session_is_used_by_the_next(node: &Node) {
    let mut stored = 0;
    for round in 0..40_u64 {
        let client = node.client();
        for number in 0..20 {
            client.put(format!("{round}/{number}").as_bytes(), &[1; 10_000]).unwrap();
            stored += 1;
        }
    }
    assert_eq!(stored, 800, "8 MB of values in a pool of about 13");
}

/// Nobody waits for the mark that frees an overwritten block, and a client may end right behind it, as a shell script's
/// do. The mark must be there all the same, or the block would be lost until somebody audits its chunk.
fn a_clean_end_loses_no_mark(node: &Node) {
    let serving = node.running().node().serving().expect("it serves");
    let (superblock, words) = (serving.region.superblock, serving.mapping.words());
    let hash = KeyHash::of(b"k", superblock.hash_seed);
    let index = hash.directory_index(superblock.geometry.directory_bits);
    let word = words.load(superblock.geometry.directory_word_offset(index)).unwrap();
    let bucket = superblock.geometry.bucket_offset(DirectoryWord::from_bits(word), hash).unwrap();
    let block = || -> BlockRef {
        let word = words.load(bucket.plus(8)).unwrap();
        let SlotState::Live(block) = SlotWord::from_bits(word).state() else { panic!("{word:#x}") };
        block
    };
    node.client().put(b"k", b"first").unwrap();
    for round in 0..scaled(100) {
        let old = block();
        node.client().put(b"k", &round.to_le_bytes()).unwrap();
        let mut mark = [0];
        words.read(free_map_offset(old).unwrap(), &mut mark).unwrap();
        assert_eq!(mark, [old.version.0], "round {round}");
    }
}
