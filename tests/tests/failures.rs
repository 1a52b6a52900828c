//! What users see when processes die, stop, restart or lie, on every fabric.

use std::io::Write;
use std::net::TcpListener;
use std::os::unix::process::CommandExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use sidestep_client::{Client, Effect, Error, FabricKind};
use sidestep_common::layout::{BUCKET_BYTES, BUCKETS_PER_SEGMENT, SEGMENT_BYTES};
use sidestep_server::node::End;
use sidestep_tests::system::{Node, NodeOptions, Process, run_suite, until};
use sidestep_tests::{cases, scaled};

fn main() {
    run_suite(&cases![
        a_restarted_server_is_found_again_and_is_empty,
        a_stopped_server_costs_a_call_its_deadline_and_no_more,
        a_client_that_dies_is_noticed_at_once,
        many_clients_killed_together_leave_the_server_well,
        sigterm_ends_the_server_cleanly,
        the_server_does_nothing_for_gets_and_puts,
        a_server_that_hangs_up_is_not_stormed,
        a_wrong_token_is_refused_and_named,
        limits_that_do_not_fit_are_found_when_connecting,
        lost_completions_are_resolved_and_never_guessed,
        an_idle_session_outlives_its_lease,
        a_sick_node_harms_its_own_keys_only,
        a_damaged_region_costs_a_call_its_deadline_and_no_more,
        a_session_costs_its_own_messages_only,
        a_session_that_was_ended_is_followed_by_another,
        what_was_mended_is_no_error,
        verbs_that_always_fail_are_not_a_storm_of_new_data_paths,
    ])
}

const SHORT: Duration = Duration::from_secs(1);
const LONG: Duration = Duration::from_secs(60);

/// The server is killed and another started in its place: clients go on without a restart, nothing of the old
/// life comes back, and what is written after it stays.
fn a_restarted_server_is_found_again_and_is_empty(fabric: FabricKind) {
    let server = Process::kvserver(fabric, 0, &["-m", "64M"]);
    let (port, client) = (server.port(), server.client(LONG));
    client.put(b"old", b"life").unwrap();
    let life = || client.with_session(|session| Ok(session.incarnation())).unwrap();
    let old = life();
    server.kill();
    // A mapping outlives the server by the moment that its client needs to notice.
    let impatient = client.with_timeout(Duration::from_millis(300));
    until("the loss is noticed", || impatient.get(b"old").is_err());
    let error = impatient.get(b"old").unwrap_err();
    assert!(error.is_unreachable(), "{error}");
    assert_eq!(error.effect(), Effect::No);
    let _server = Process::kvserver(fabric, port, &["-m", "64M"]);
    assert_eq!(client.get(b"old").unwrap(), None);
    client.put(b"new", b"life").unwrap();
    assert_eq!(client.get(b"new").unwrap().as_deref(), Some(&b"life"[..]));
    assert!(client.statistics().reconnects >= 1);
    assert!(old.is_some() && life().is_some() && life() != old, "{old:?}, {:?}", life());
}

/// SIGSTOP: connections stay open and nobody answers. A call ends with its deadline; after SIGCONT the same client
/// works. (Over `shm` and `verbs` the server's CPU isn't needed, so gets simply go on.)
fn a_stopped_server_costs_a_call_its_deadline_and_no_more(fabric: FabricKind) {
    let server = Process::kvserver(fabric, 0, &["-m", "64M"]);
    let client = server.client(LONG);
    client.put(b"k", b"v").unwrap();
    server.stop();
    let began = Instant::now();
    let result = client.with_timeout(SHORT).get(b"k");
    let took = began.elapsed();
    match fabric {
        FabricKind::Tcp => {
            let error = result.unwrap_err();
            assert!(matches!(error, Error::Timeout { .. }), "{error}");
            assert!(took >= SHORT, "{took:?}");
        }
        _ => assert_eq!(result.unwrap().as_deref(), Some(&b"v"[..])),
    }
    assert!(took < SHORT * 5, "{took:?}");
    server.signal(Signal::CONT);
    assert_eq!(client.get(b"k").unwrap().as_deref(), Some(&b"v"[..]));
    client.put(b"k", b"w").unwrap();
    assert_eq!(client.get(b"k").unwrap().as_deref(), Some(&b"w"[..]));
}

/// A client process that was killed has no session any more, long before its lease ends.
fn a_client_that_dies_is_noticed_at_once(fabric: FabricKind) {
    let node = Node::start(
        fabric,
        &NodeOptions { configure: |config| config.lease_ms = 600_000, ..NodeOptions::default() },
    );
    let mut children = spawn_clients(&node, 1);
    until("the client has its session", || node.running().statistics().session_count == 1);
    children[0].kill().unwrap();
    children[0].wait().unwrap();
    until("the session is gone", || node.running().statistics().session_count == 0);
    let client = node.client();
    client.put(b"k", b"v").unwrap();
}

/// Many clients under load, all killed in the same moment, several times: the server stays, idle, and serves.
fn many_clients_killed_together_leave_the_server_well(fabric: FabricKind) {
    let (clients, rounds) = if fabric == FabricKind::Verbs { (6, 2) } else { (40, 5) };
    let node = Node::start(fabric, &NodeOptions { memory_mib: 512, ..NodeOptions::default() });
    let keeper = node.client();
    keeper.put(b"kept", b"value").unwrap();
    for round in 0..rounds {
        let mut children = spawn_clients(&node, clients);
        let all = clients as u64 + 1;
        until("all clients have sessions", || node.running().statistics().session_count == all);
        for child in &mut children {
            child.kill().unwrap();
        }
        for child in &mut children {
            child.wait().unwrap();
        }
        until("their sessions are gone", || node.running().statistics().session_count == 1);
        assert_eq!(keeper.get(b"kept").unwrap().as_deref(), Some(&b"value"[..]), "round {round}");
    }
}

/// SIGTERM: the server drains and exits with 0.
fn sigterm_ends_the_server_cleanly(fabric: FabricKind) {
    let server = Process::kvserver(fabric, 0, &["-m", "64M", "--drain-ms", "100"]);
    let client = server.client(SHORT);
    client.put(b"k", b"v").unwrap();
    server.signal(Signal::TERM);
    assert_eq!(server.wait(), Some(0));
    let error = client.put(b"k", b"w").unwrap_err();
    assert!(error.is_unreachable(), "{error}");
}

/// The whole point: gets and puts cost the server no CPU. What it spends during a load is compared with what it
/// spends in the same time when nobody asks for anything; the rest, if any, is the data path's, and is less than
/// 10 ms for a million operations. Memory is asked for in bulk on the way, which the allowance covers.
fn the_server_does_nothing_for_gets_and_puts(fabric: FabricKind) {
    if fabric == FabricKind::Tcp {
        // Over tcp the server's threads play the card; there is nothing to show.
        return;
    }
    let server = Process::kvserver(fabric, 0, &["-m", "256M"]);
    let client = server.client(LONG);
    let keys: Vec<Vec<u8>> = (0..1000).map(|number| format!("key{number}").into_bytes()).collect();
    for key in &keys {
        client.put(key, &[1; 100]).unwrap();
    }
    let operations: u32 = if fabric == FabricKind::Verbs { 5_000 } else { 200_000 };
    let (before, began) = (server.cpu(), Instant::now());
    for number in 0..operations as usize {
        let key = &keys[number % keys.len()];
        if number % 20 == 0 {
            client.put(key, &[2; 100]).unwrap();
        } else {
            client.get(key).unwrap().unwrap();
        }
    }
    let (loaded, took) = (server.cpu() - before, began.elapsed());
    let (before, began) = (server.cpu(), Instant::now());
    until("as long has passed without work", || began.elapsed() >= took);
    let idle = server.cpu() - before;
    let beyond = loaded.saturating_sub(idle);
    println!(
        "{fabric}: {operations} operations in {took:?} cost the server {loaded:?} of CPU, as long a rest {idle:?}"
    );
    // A tick or a heartbeat more or less, which a busy host makes look long; on the clock that counts instructions one
    // is some 10 us.
    let repeatable = std::env::var("SIDESTEP_BED").is_ok_and(|bed| bed == "clock");
    let slack = if repeatable { Duration::from_micros(50) } else { Duration::from_millis(2) };
    let allowed = Duration::from_millis(10) * operations / 1_000_000 + slack;
    assert!(
        beyond <= allowed,
        "{beyond:?} of server CPU beyond its rest for {operations} operations in {took:?}"
    );
}

/// Something accepts connections and closes them at once. Clients must not try again as fast as they can, must say
/// so to their callers, and must find the real server when it appears.
fn a_server_that_hangs_up_is_not_stormed(fabric: FabricKind) {
    let server = Process::kvserver(fabric, 0, &["-m", "64M"]);
    let port = server.port();
    let clients: Vec<Client> = (0..10).map(|_| server.client(Duration::from_secs(3))).collect();
    let host = server.endpoint().trim_start_matches("sidestep://").to_owned();
    server.kill();
    let attempts = Arc::new(AtomicU64::new(0));
    let listener = TcpListener::bind(&host).unwrap();
    listener.set_nonblocking(true).unwrap();
    std::thread::scope(|scope| {
        let callers: Vec<_> =
            clients.iter().map(|client| scope.spawn(|| client.get(b"k").unwrap_err())).collect();
        while callers.iter().any(|caller| !caller.is_finished()) {
            if let Ok((stream, _)) = listener.accept() {
                attempts.fetch_add(1, Ordering::Relaxed);
                drop(stream);
            } else {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        for caller in callers {
            let error = caller.join().unwrap();
            assert!(error.is_unreachable(), "{error}");
        }
    });
    drop(listener);
    let attempts = attempts.load(Ordering::Relaxed);
    assert!((10..=120).contains(&attempts), "{attempts} attempts of 10 clients in 3 s");
    let _server = Process::kvserver(fabric, port, &["-m", "64M"]);
    for client in clients {
        assert_eq!(client.with_timeout(LONG).get(b"k").unwrap(), None);
    }
}

fn a_wrong_token_is_refused_and_named(fabric: FabricKind) {
    let server = Process::kvserver(fabric, 0, &["-m", "64M", "--token", "secret"]);
    let connect = |token: Option<&str>| {
        let builder = Client::builder(server.endpoint()).unwrap().fabric(fabric);
        token.map_or(builder.clone(), |token| builder.token(token)).connect()
    };
    for token in [None, Some(""), Some("secre"), Some("secret ")] {
        let error = connect(token).unwrap_err();
        assert!(matches!(error, Error::Refused { .. }), "{token:?}: {error}");
        assert!(!error.to_string().contains("secret"), "{error}");
    }
    connect(Some("secret")).unwrap().put(b"k", b"v").unwrap();
}

/// A client that needs longer values than the server takes learns so when it connects, with both numbers.
fn limits_that_do_not_fit_are_found_when_connecting(fabric: FabricKind) {
    let server = Process::kvserver(fabric, 0, &["-m", "64M", "--max-value", "1K"]);
    let builder = || Client::builder(server.endpoint()).unwrap().fabric(fabric);
    let error = builder().require_value_bytes(4096).connect().unwrap_err().to_string();
    assert!(error.contains("4096") && error.contains("1024"), "{error}");
    let client = builder().require_value_bytes(1024).connect().unwrap();
    client.put(b"k", &[0; 1024]).unwrap();
    let error = client.put(b"k", &[0; 1025]).unwrap_err();
    assert!(matches!(error, Error::ValueLength { bytes: 1025, limit_bytes: 1024 }), "{error}");
}

/// The data path is cut again and again at any moment, so that completions of CASes are lost with and without their
/// effect. Each change must say the truth: what it reports as done is there, what it reports as not done is not,
/// and "unknown" leaves exactly one of the two. Never an error for a change that took effect alone, never a second
/// copy, never a value that comes back.
fn lost_completions_are_resolved_and_never_guessed(fabric: FabricKind) {
    let node = Node::start(fabric, &NodeOptions { memory_mib: 256, ..NodeOptions::default() });
    let client = node.builder().timeout(LONG).connect().unwrap();
    let mut session = client.session().unwrap();
    let id = session.welcome().unwrap().session;
    let done = AtomicU64::new(0);
    let (rounds, mut unknown) = (scaled(3000), 0);
    std::thread::scope(|scope| {
        let (done, inside) = (&done, node.running().node());
        scope.spawn(move || {
            let target = inside.serving().and_then(|serving| serving.targets.get(fabric));
            let target = target.expect("it serves the fabric");
            let mut seen = 0;
            while done.load(Ordering::Acquire) < rounds {
                // Cut it in the middle of work, not while it waits for its next attempt.
                let now = done.load(Ordering::Acquire);
                if now > seen {
                    seen = now;
                    target.fence(id);
                }
                std::thread::yield_now();
            }
        });
        let mut current: Option<u64> = None;
        for round in 0..rounds {
            let delete = round % 4 == 3;
            let (result, intended) = if delete {
                (
                    session
                        .delete(b"k")
                        .map(|existed| assert_eq!(existed, current.is_some(), "round {round}")),
                    None,
                )
            } else {
                (session.put(b"k", &round.to_le_bytes()), Some(round))
            };
            let found = session.get(b"k").unwrap().map(|value| u64::from_le_bytes(value.try_into().unwrap()));
            match result {
                Ok(()) => assert_eq!(found, intended, "round {round}: reported as done"),
                Err(error) if error.effect() == Effect::No => {
                    assert_eq!(found, current, "round {round}: reported as not done: {error}");
                }
                Err(error) => {
                    unknown += 1;
                    assert!(found == intended || found == current, "round {round}: {found:?} after {error}");
                }
            }
            current = found;
            done.store(round + 1, Ordering::Release);
        }
    });
    let reconnects = client.statistics().reconnects;
    println!("{fabric}: {rounds} changes, {reconnects} new data paths, {unknown} unknown outcomes");
    // A mapping's client looks for its end every few milliseconds, and its verbs are over when they are posted; on an
    // emulated processor the thread that cuts seldom gets its turn.
    let enough = match fabric {
        FabricKind::Tcp => rounds / 50,
        FabricKind::Shm | FabricKind::Verbs | FabricKind::Sim => 1,
    };
    assert!(reconnects >= enough, "only {reconnects}: the test did not cut what it should");
}

/// Heartbeats keep a session that does nothing: three leases later it has the same number.
fn an_idle_session_outlives_its_lease(fabric: FabricKind) {
    let node = Node::start(
        fabric,
        &NodeOptions { configure: |config| config.lease_ms = 500, ..NodeOptions::default() },
    );
    let client = node.client();
    let session = || client.with_session(|session| session.welcome().map(|welcome| welcome.session)).unwrap();
    let before = session();
    let began = Instant::now();
    until("three leases have passed", || began.elapsed() > Duration::from_millis(1500));
    client.put(b"k", b"v").unwrap();
    assert_eq!(session(), before);
    assert_eq!(client.statistics().reconnects, 0);
    assert_eq!(node.running().statistics().sessions_fenced_total, 0);
}

/// Three nodes, one of them stopped: clients of the other two don't notice, an error names the sick one, and it is
/// used again when it is well, without a restart.
fn a_sick_node_harms_its_own_keys_only(fabric: FabricKind) {
    let servers: Vec<Process> = (0..3).map(|_| Process::kvserver(fabric, 0, &["-m", "16M"])).collect();
    let clients: Vec<Client> = servers.iter().map(|server| server.client(LONG)).collect();
    for client in &clients {
        client.put(b"k", b"v").unwrap();
    }
    servers[0].stop();
    let impatient = clients[0].with_timeout(Duration::from_millis(300));
    let mut errors = 0;
    for _ in 0..3 {
        if let Err(error) = impatient.get(b"k") {
            errors += 1;
            assert!(error.to_string().contains(servers[0].endpoint()), "{error}");
        }
        for client in &clients[1..] {
            assert_eq!(client.get(b"k").unwrap().as_deref(), Some(&b"v"[..]));
        }
    }
    assert_eq!(errors, if fabric == FabricKind::Tcp { 3 } else { 0 }, "only tcp needs the server's CPU");
    servers[0].signal(Signal::CONT);
    for client in &clients {
        assert_eq!(client.get(b"k").unwrap().as_deref(), Some(&b"v"[..]));
    }
}

/// The directory names segments whose buckets serve nobody, as if a rebuild never ended: there is no way to any key, and
/// looking again and again must end with the deadline, also where no verb is ever waited for. A directory that goes back,
/// which no rebuild makes, is damage, and said to be at once.
fn a_damaged_region_costs_a_call_its_deadline_and_no_more(fabric: FabricKind) {
    let node = Node::start(fabric, &NodeOptions::default());
    let client = node.client().with_timeout(SHORT);
    client.put(b"k", b"v").unwrap();
    let serving = node.running().node().serving().expect("it serves");
    let (geometry, words) = (serving.region.superblock.geometry, serving.mapping.words());
    for index in 0..geometry.directory_entries() {
        let segment = geometry.segment_pool_offset.plus(index * SEGMENT_BYTES);
        for bucket in 0..BUCKETS_PER_SEGMENT {
            words.store(segment.plus(bucket * BUCKET_BYTES), 0).unwrap();
        }
    }
    let began = Instant::now();
    let errors = [
        client.get(b"k").unwrap_err(),
        client.put(b"k", b"w").unwrap_err(),
        client.delete(b"k").unwrap_err(),
    ];
    assert!(began.elapsed() < SHORT * 10, "{:?}", began.elapsed());
    for error in errors {
        assert!(matches!(error, Error::Timeout { effect: Effect::No, .. }), "{error}");
    }
    for index in 0..geometry.directory_entries() {
        words.store(geometry.directory_word_offset(index), 0).unwrap();
    }
    let error = client.get(b"k").unwrap_err();
    assert!(error.to_string().contains("a directory word has gone back"), "{error}");
}

/// Forty sessions of one client say hello, and each is heard of again when its heartbeat is due: opening one must not
/// make all others speak.
fn a_session_costs_its_own_messages_only(fabric: FabricKind) {
    let node = Node::start(fabric, &NodeOptions::default());
    let client = node.client();
    let before = node.running().statistics().control_messages_total;
    let sessions: Vec<_> = (0..40).map(|_| client.session().unwrap()).collect();
    let messages = node.running().statistics().control_messages_total - before;
    assert!(messages < 10 * sessions.len() as u64, "{messages} messages for {} sessions", sessions.len());
}

/// The data path can be joined, but the call's verbs always fail, here because the fabric was told to take one at a
/// time and a put posts two. A call tries again, since a lost connection may be back, but waits longer each time:
/// each attempt makes the server fence and admit.
fn verbs_that_always_fail_are_not_a_storm_of_new_data_paths(fabric: FabricKind) {
    let node = Node::start(fabric, &NodeOptions::default());
    let client = node.builder().verbs_in_flight_max(1).timeout(SHORT * 2).connect().unwrap();
    let error = client.put(b"k", b"v").unwrap_err();
    assert_eq!(error.effect(), Effect::No, "{error}");
    let reconnects = client.statistics().reconnects;
    assert!((1..30).contains(&reconnects), "{reconnects} new data paths in 2 s");
    assert_eq!(client.get(b"k").unwrap(), None);
}

/// The server has ended the session (its lease ran out, say), and the client notices when it asks for memory. That
/// changed nothing, so the call goes on with a new session and its caller never knows.
fn a_session_that_was_ended_is_followed_by_another(fabric: FabricKind) {
    let node = Node::start(fabric, &NodeOptions::default());
    let client = node.client();
    let session = || client.with_session(|session| session.welcome().map(|welcome| welcome.session)).unwrap();
    for bytes in [10, 1_000, 10_000] {
        let before = session();
        node.running().node().end_session(before, End::LeaseExpired);
        client.put(b"k", &vec![1; bytes]).unwrap();
        assert_ne!(session(), before);
    }
    assert_eq!(client.get(b"k").unwrap(), Some(vec![1; 10_000]));
}

/// A data path is cut, and calls mend it without their callers' knowing: the figures tell of no error either.
fn what_was_mended_is_no_error(fabric: FabricKind) {
    let node = Node::start(fabric, &NodeOptions::default());
    let client = node.client();
    let session = client.with_session(|session| session.welcome().map(|welcome| welcome.session)).unwrap();
    client.put(b"k", b"v").unwrap();
    let target = node.running().node().serving().and_then(|serving| serving.targets.get(fabric));
    target.expect("it serves the fabric").fence(session);
    let mut gets = 0;
    until("the data path is a new one", || {
        client.get(b"k").unwrap().unwrap();
        gets += 1;
        client.statistics().reconnects == 1
    });
    let statistics = client.statistics();
    assert_eq!((statistics.get.operations, statistics.get.errors), (gets, 0));
}

/// Clients that put and get until they are killed, each a process of its own.
fn spawn_clients(node: &Node, count: usize) -> Vec<std::process::Child> {
    let endpoint = format!("{}?fabric={}", node.running().endpoint(), node.fabric());
    let spawn = |number: usize| {
        std::process::Command::new(sidestep_tests::system::binary("busy-client"))
            .args([&endpoint, &number.to_string()])
            .process_group(0)
            .spawn()
            .expect("the client starts")
    };
    std::io::stdout().flush().unwrap();
    (0..count).map(spawn).collect()
}
