//! What only `verbs` has: devices, choices, negotiation, connections that are refused, half open or cut.

use std::net::IpAddr;
use std::process::{Command, ExitCode};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use sidestep_common::fabric::verbs::{CommitChoice, VerbsError, VerbsOptions, VerbsTarget, loopback_check};
use sidestep_common::fabric::{
    Commits, ConnectError, ConnectOptions, DeviceChoice, Effect, FailureKind, Join, PostError, Rights,
    SessionId, Target, Ticket, connect,
};
use sidestep_common::memory::{HugePages, Mapping, MappingOptions};
use sidestep_tests::card::{self, CardTest};
use sidestep_tests::conformance::{Driver, add, conformance_mapping, pattern, write};
use sidestep_tests::scaled;

/// A role that this program plays for one of its tests, in a process of its own.
const ROLE: &str = "SIDESTEP_TEST_ROLE";
/// How long anything may take on an emulated processor.
const PATIENCE: Duration = Duration::from_secs(60);

macro_rules! tests {
    ($($name:ident,)*) => {
        [$((stringify!($name), $name as fn(IpAddr)),)*]
    };
}

fn main() -> ExitCode {
    if let Ok(role) = std::env::var(ROLE) {
        return play(&role);
    }
    let tests = tests![
        the_card_passes_its_own_check,
        choices_that_reach_nobody_are_refused_with_the_table,
        a_device_chosen_by_hand_is_used_by_both_sides,
        the_cpu_executes_commits_only_where_the_card_does_not,
        the_thread_for_commits_sleeps_when_idle,
        the_smaller_mtu_is_used_by_both_sides,
        more_reads_than_the_depth_all_complete,
        a_read_only_session_gains_nothing_by_the_other_key,
        a_wrong_ticket_is_refused_with_a_reason,
        nobody_listening_is_told_from_a_refusal,
        an_address_without_anybody_ends_by_the_deadline,
        connections_given_up_at_any_step_leave_nothing,
        a_killed_client_leaves_nothing,
        connections_are_counted,
        a_client_learns_that_the_memory_node_stopped,
        nothing_takes_effect_after_a_fence,
        too_low_a_memlock_limit_is_named,
        a_client_that_may_lock_nothing_leaves_nothing,
        forks_disturb_nothing,
        a_region_of_an_odd_size_is_served_to_its_last_word,
    ];
    let mut tests: Vec<CardTest> = tests.map(|(name, test)| CardTest::new(name, test)).into();
    let mut cut = CardTest::new("a_cut_wire_ends_the_connection_soon", a_cut_wire_ends_the_connection_soon);
    if std::env::var("SIDESTEP_BED").as_deref() != Ok("two-port") {
        cut = cut.ignored("only the two-port bed of the Soft-RoCE machine has a wire to cut");
    }
    tests.push(cut);
    card::main(tests)
}

// What the tests share.

/// Who executes commits: the card, or with `SIDESTEP_TEST_COMMITS=two-sided` the memory node's CPU. All tests hold for both.
fn options_of_node() -> VerbsOptions {
    let two_sided = std::env::var("SIDESTEP_TEST_COMMITS").as_deref() == Ok("two-sided");
    let commits = if two_sided { CommitChoice::TwoSided } else { CommitChoice::Auto };
    VerbsOptions { commits, ..VerbsOptions::default() }
}

struct Node {
    target: VerbsTarget,
    mapping: Arc<Mapping>,
}

impl Node {
    fn start(options: VerbsOptions) -> Self {
        let mapping = conformance_mapping();
        let target = VerbsTarget::start(Arc::clone(&mapping), &options).expect("a memory node on the card");
        Self { target, mapping }
    }

    fn at(address: IpAddr) -> Self {
        Self::start(VerbsOptions { address: Some(address), ..options_of_node() })
    }

    fn admit(&self, session: u32) -> Join {
        self.target.admit(SessionId(session), Rights::ReadWrite).expect("a ticket")
    }

    fn connect(&self, session: u32) -> Driver {
        Driver::new(connect(&self.admit(session), &options(PATIENCE)).expect("a connection"))
    }

    fn word(&self, offset: u64) -> u64 {
        self.mapping.words().load(sidestep_common::layout::Offset(offset)).expect("inside the region")
    }

    /// Waits until so many connections are there.
    fn wait_for_connections(&self, count: usize) {
        let start = Instant::now();
        while self.target.connection_count() != count {
            assert!(
                start.elapsed() < PATIENCE,
                "{} connections, not {count}",
                self.target.connection_count()
            );
            std::thread::yield_now();
        }
    }
}

fn options(time: Duration) -> ConnectOptions {
    ConnectOptions {
        peer: None,
        region_bytes: 8 << 20,
        rights: Rights::ReadWrite,
        verbs_in_flight_max: 64,
        buffer_limit_bytes: 32 << 20,
        device: DeviceChoice::default(),
        deadline: Instant::now() + time,
    }
}

fn device_of(address: IpAddr) -> DeviceChoice {
    let entry = |name: &str, port: u8, index: u32| DeviceChoice {
        device: Some(name.to_owned()),
        port: Some(port),
        gid_index: u8::try_from(index).ok(),
    };
    let devices = card::devices();
    for device in &devices {
        for port in device.details.iter().flat_map(|details| &details.ports) {
            if let Some(gid) = port.gids.iter().find(|gid| gid.gid.address() == address) {
                return entry(&device.name, port.number, gid.index);
            }
        }
    }
    panic!("no device has the address {address}: {devices:?}");
}

/// This program again, in a role.
fn this_program() -> Command {
    Command::new(std::env::current_exe().expect("this program's path"))
}

fn play(role: &str) -> ExitCode {
    let argument = std::env::args().nth(1).expect("the role's argument");
    match role {
        // Connects and says so; then waits to be killed.
        "client" => {
            let join = join_from_text(&argument);
            let mut driver = Driver::new(connect(&join, &options(PATIENCE)).expect("a connection"));
            driver.atomic(add(0, 1));
            println!("connected");
            loop {
                std::thread::park();
            }
        }
        // Tries to connect, which must fail, and counts its open files.
        "poor-client" => {
            let files = || std::fs::read_dir("/proc/self/fd").expect("this process's files").count();
            let mut counts = Vec::new();
            for text in argument.split(',') {
                match connect(&join_from_text(text), &options(PATIENCE)) {
                    Ok(fabric) => println!("connected: {}", fabric.describe()),
                    Err(error) => println!("{error}"),
                }
                counts.push(files());
            }
            println!("files {counts:?}");
            ExitCode::SUCCESS
        }
        // Starts a memory node, which must fail.
        "node" => {
            let address: IpAddr = argument.parse().expect("an address");
            let options = VerbsOptions { address: Some(address), ..options_of_node() };
            match VerbsTarget::start(conformance_mapping(), &options) {
                Ok(target) => println!("started: {target:?}"),
                Err(error) => println!("{error}"),
            }
            ExitCode::SUCCESS
        }
        other => panic!("no such role: {other}"),
    }
}

fn join_to_text(join: &Join) -> String {
    let Join::Verbs { host, port, ticket, rkey, base, commits, .. } = join else { panic!("{join:?}") };
    let (version, depth) = match commits {
        Commits::Atomics => (0, 0),
        Commits::TwoSided { version, depth } => (*version, *depth),
    };
    let ticket: String = ticket.0.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("{} {port} {ticket} {rkey} {base} {version} {depth}", host.as_deref().expect("an address"))
}

fn join_from_text(text: &str) -> Join {
    let parts: Vec<&str> = text.split(' ').collect();
    let byte = |at: usize| u8::from_str_radix(&parts[2][2 * at..2 * at + 2], 16).expect("two digits");
    Join::Verbs {
        host: Some(parts[0].to_owned()),
        port: parts[1].parse().expect("a port"),
        ticket: Ticket(std::array::from_fn(byte)),
        rkey: parts[3].parse().expect("a key"),
        base: parts[4].parse().expect("an address"),
        // As from a node that does not say.
        responder_depth: 0,
        mtu_bytes: 0,
        commits: match parts[5].parse().expect("a version") {
            0 => Commits::Atomics,
            version => Commits::TwoSided { version, depth: parts[6].parse().expect("a depth") },
        },
    }
}

// The tests.

/// The card connected to itself answers a CAS that loses, one that wins, FAAs and a READ as it must.
fn the_card_passes_its_own_check(address: IpAddr) {
    let report = loopback_check(&DeviceChoice::default(), Some(address)).expect("a card that works");
    println!("{report:?}");
    assert!(report.target.contains("MTU") && report.client.contains("READs outstanding"), "{report:?}");
}

/// Entry 0 of the card's table is link-local, as it always is on RoCE; 255 is outside; and a device that isn't there is
/// none. Each start fails, saying what there is.
fn choices_that_reach_nobody_are_refused_with_the_table(address: IpAddr) {
    let by_hand = device_of(address);
    let cases = [
        (DeviceChoice { gid_index: Some(0), ..by_hand.clone() }, "link-local"),
        (DeviceChoice { gid_index: Some(255), ..by_hand.clone() }, "255"),
        (DeviceChoice { port: Some(9), ..DeviceChoice::default() }, "no port 9"),
        (DeviceChoice { device: Some("nosuch".into()), ..DeviceChoice::default() }, "nosuch"),
    ];
    for (device, word) in cases {
        let options = VerbsOptions { device: device.clone(), ..options_of_node() };
        let error =
            VerbsTarget::start(conformance_mapping(), &options).expect_err("a choice that reaches nobody");
        let text = error.to_string();
        assert!(matches!(error, VerbsError::Choice(_)), "{text}");
        assert!(text.contains(word) && text.contains(&address.to_string()), "{device:?}: {text}");
        let node = Node::at(address);
        let join = node.admit(1);
        let error = connect(&join, &ConnectOptions { device, ..options_now() })
            .map(drop)
            .expect_err("the same choice");
        assert!(
            matches!(error, ConnectError::Unavailable { .. }) && error.to_string().contains(word),
            "{error}"
        );
    }
}

fn options_now() -> ConnectOptions {
    options(PATIENCE)
}

fn a_device_chosen_by_hand_is_used_by_both_sides(address: IpAddr) {
    let device = device_of(address);
    let node = Node::start(VerbsOptions { device: device.clone(), ..options_of_node() });
    let fabric = connect(&node.admit(1), &ConnectOptions { device: device.clone(), ..options_now() });
    let fabric = fabric.expect("a connection");
    let name = device.device.expect("a name");
    assert!(
        fabric.describe().contains(&name) && node.target.describe().contains(&name),
        "{}",
        fabric.describe()
    );
    assert_eq!(Driver::new(fabric).atomic(add(0, 1)), 0);
}

/// The card has atomics, so the CPU executes nothing unless told to; then the node says so, and grants credit.
fn the_cpu_executes_commits_only_where_the_card_does_not(address: IpAddr) {
    for (commits, two_sided) in
        [(CommitChoice::Auto, false), (CommitChoice::Atomics, false), (CommitChoice::TwoSided, true)]
    {
        let node = Node::start(VerbsOptions { address: Some(address), commits, ..VerbsOptions::default() });
        let mut driver = node.connect(1);
        assert_eq!(driver.atomic(add(0, 1)), 0);
        let said = [node.target.describe(), driver.fabric().describe()];
        assert!(said.iter().all(|text| text.contains("two-sided") == two_sided), "{commits:?}: {said:?}");
        let Join::Verbs { commits: granted, .. } = node.admit(2) else { panic!("no verbs") };
        assert_eq!(matches!(granted, Commits::TwoSided { depth: 1.., .. }), two_sided, "{commits:?}");
    }
}

/// The thread that executes commits sleeps while connections are idle, and wakes for the next commit; and it executes
/// nothing for READs and WRITEs.
fn the_thread_for_commits_sleeps_when_idle(address: IpAddr) {
    let commits = CommitChoice::TwoSided;
    let node = Node::start(VerbsOptions { address: Some(address), commits, ..VerbsOptions::default() });
    let mut drivers: Vec<Driver> = (1..=4).map(|session| node.connect(session)).collect();
    for (before, driver) in drivers.iter_mut().enumerate() {
        assert_eq!(driver.atomic(add(0, 1)), before as u64);
    }
    let before = turns("verbs-commits");
    // Nothing is waited for: this is the time in which a thread that polls would have run.
    std::thread::park_timeout(Duration::from_millis(300));
    for driver in &mut drivers {
        driver.store(64, &[7; 64]);
        assert_eq!(driver.fetch(64, 64), [7; 64]);
    }
    // It may have been on its way to sleep.
    let asleep = turns("verbs-commits");
    assert!(asleep <= before + 1, "the thread ran {} times while there was nothing to do", asleep - before);
    assert_eq!(drivers[0].atomic(add(0, 1)), 4);
    let start = Instant::now();
    while turns("verbs-commits") == asleep {
        assert!(start.elapsed() < PATIENCE, "the thread answered and never went to sleep again");
        std::thread::yield_now();
    }
}

/// How often this process's thread of that name went to sleep.
fn turns(name: &str) -> u64 {
    let tasks = std::fs::read_dir("/proc/self/task").expect("this process's threads");
    let statuses = tasks.filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("status")).ok());
    let status = statuses.into_iter().find(|status| status.lines().next() == Some(&format!("Name:\t{name}")));
    let status = status.unwrap_or_else(|| panic!("no thread {name}"));
    let switches = status.lines().filter(|line| line.starts_with("voluntary_ctxt_switches"));
    switches
        .map(|line| {
            line.split_whitespace().last().and_then(|count| count.parse::<u64>().ok()).expect("a count")
        })
        .sum()
}

/// A node whose port has the smallest MTU, as far as the client can know: both cut their packets to it. If only one
/// did, anything longer would be lost.
fn the_smaller_mtu_is_used_by_both_sides(address: IpAddr) {
    let node = Node::at(address);
    for mtu in [256, 512, 1024] {
        let mut join = node.admit(1);
        let Join::Verbs { mtu_bytes, .. } = &mut join else { panic!("{join:?}") };
        *mtu_bytes = mtu;
        let mut driver = Driver::new(connect(&join, &options_now()).expect("a connection"));
        assert!(driver.fabric().describe().contains(&format!("MTU {mtu}")), "{}", driver.fabric().describe());
        let from = pattern(u64::from(mtu), 16 << 10);
        driver.store(4096, &from);
        assert_eq!(driver.fetch(4096, from.len()), from, "MTU {mtu}");
    }
}

/// A card that answers four READs at once, and a client that posts 64 with one doorbell: all complete, each with its own
/// bytes. A depth that was not agreed on would have the fifth refused.
fn more_reads_than_the_depth_all_complete(address: IpAddr) {
    for depth in [1, 4] {
        let address = Some(address);
        let node =
            Node::start(VerbsOptions { address, responder_depth_max: Some(depth), ..options_of_node() });
        let mut driver = node.connect(1);
        assert!(
            driver.fabric().describe().contains(&format!("{depth} READs")),
            "{}",
            driver.fabric().describe()
        );
        for at in 0..64 {
            node.mapping.words().store(sidestep_common::layout::Offset(8 * at), at ^ 0xabcd).expect("inside");
        }
        for _ in 0..scaled(20) {
            let reads = (0..64).map(|at| driver.read(8 * at, 8)).collect();
            let replies = driver.run(reads);
            for (at, reply) in replies.iter().enumerate() {
                assert_eq!(
                    sidestep_tests::conformance::read_word(reply),
                    at as u64 ^ 0xabcd,
                    "depth {depth}"
                );
            }
            driver.recycle(replies);
        }
    }
}

/// A session that may only read, and has got hold of the key of those that may write: its queue pair keeps it out.
fn a_read_only_session_gains_nothing_by_the_other_key(address: IpAddr) {
    let node = Node::at(address);
    let Join::Verbs { rkey: other, .. } = node.admit(1) else { panic!("not verbs") };
    for verb in [write(0, &[1; 8]), add(0, 1)] {
        let mut join = node.target.admit(SessionId(2), Rights::ReadOnly).expect("a ticket");
        let Join::Verbs { rkey, .. } = &mut join else { panic!("{join:?}") };
        assert_ne!(std::mem::replace(rkey, other), other);
        let mut driver = Driver::new(connect(&join, &options_now()).expect("a connection"));
        assert_eq!(driver.fetch(0, 8), [0; 8]);
        let failure = driver.try_run(vec![verb]).expect_err("a change");
        assert!(matches!(failure.kind, FailureKind::Access(_)), "{failure:?}");
        assert_eq!(node.word(0), 0);
    }
}

fn a_wrong_ticket_is_refused_with_a_reason(address: IpAddr) {
    let node = Node::at(address);
    let mut join = node.admit(1);
    let Join::Verbs { ticket, .. } = &mut join else { panic!("{join:?}") };
    let good = std::mem::replace(ticket, Ticket([0x5a; 16]));
    let error = connect(&join, &options_now()).map(drop).expect_err("a ticket that was never given");
    assert!(matches!(&error, ConnectError::Refused { reason, .. } if reason.contains("ticket")), "{error}");
    assert_eq!(node.target.connection_count(), 0);
    // The refusal cost the good ticket nothing.
    let Join::Verbs { ticket, .. } = &mut join else { panic!("{join:?}") };
    *ticket = good;
    connect(&join, &options_now()).expect("the good ticket");
}

fn nobody_listening_is_told_from_a_refusal(address: IpAddr) {
    let join = {
        let node = Node::at(address);
        node.admit(1)
    };
    let error = connect(&join, &options_now()).map(drop).expect_err("the node is gone");
    assert!(
        matches!(&error, ConnectError::Refused { reason, .. } if reason.contains("nobody listens")),
        "{error}"
    );
}

fn an_address_without_anybody_ends_by_the_deadline(address: IpAddr) {
    let node = Node::at(address);
    let mut join = node.admit(1);
    let Join::Verbs { host, .. } = &mut join else { panic!("{join:?}") };
    let IpAddr::V4(v4) = address else { return };
    let [a, b, c, _] = v4.octets();
    *host = Some(format!("{a}.{b}.{c}.254"));
    let start = Instant::now();
    let error = connect(&join, &options(Duration::from_secs(2))).map(drop).expect_err("nobody is there");
    assert!(start.elapsed() < Duration::from_secs(12), "{error} after {:?}", start.elapsed());
    println!("{error} after {:?}", start.elapsed());
}

/// Clients with too little time give up anywhere between the first packet and the last. None of them leaves a queue pair
/// at the memory node, and one with enough time gets through afterwards.
fn connections_given_up_at_any_step_leave_nothing(address: IpAddr) {
    let node = Node::at(address);
    let start = Instant::now();
    drop(node.connect(1));
    let whole = start.elapsed();
    let (mut joined, mut gave_up) = (0, 0);
    for step in 0..scaled(400).max(40) as u32 {
        match connect(&node.admit(1), &options(whole * (step % 40) / 20)) {
            Ok(_) => joined += 1,
            Err(_) => gave_up += 1,
        }
    }
    println!("{joined} joined, {gave_up} gave up");
    assert!(gave_up > 0, "no deadline was short enough");
    node.wait_for_connections(0);
    assert_eq!(node.connect(2).atomic(add(0, 1)), 0);
}

/// A client is killed with its connection open; its queue pair goes by itself.
fn a_killed_client_leaves_nothing(address: IpAddr) {
    use std::io::Read;
    let node = Node::at(address);
    for _ in 0..3 {
        let join = node.admit(1);
        let mut client = this_program()
            .arg(join_to_text(&join))
            .env(ROLE, "client")
            .stdout(std::process::Stdio::piped())
            .spawn()
            .expect("a process");
        let mut said = [0; 10];
        client.stdout.take().expect("its output").read_exact(&mut said).expect("a line");
        assert_eq!(&said, b"connected\n");
        assert_eq!(node.target.connection_count(), 1);
        client.kill().expect("a living process");
        client.wait().expect("a dead one");
        node.wait_for_connections(0);
    }
    assert_eq!(node.word(0), 3);
}

fn connections_are_counted(address: IpAddr) {
    let node = Node::at(address);
    let mut drivers: Vec<Driver> = (1..=24).map(|session| node.connect(session)).collect();
    assert_eq!(node.target.connection_count(), 24);
    for (before, driver) in drivers.iter_mut().enumerate() {
        assert_eq!(driver.atomic(add(0, 1)), before as u64);
    }
    assert!(node.target.fence(SessionId(7)));
    assert_eq!(node.target.connection_count(), 23);
    drivers.clear();
    node.wait_for_connections(0);
}

/// The node stops while a client waits: the client is told at once, not after all retries, and takes no verbs any more.
/// What was not answered is in doubt.
fn a_client_learns_that_the_memory_node_stopped(address: IpAddr) {
    let node = Node::at(address);
    let mut driver = node.connect(1);
    driver.atomic(add(0, 1));
    drop(node);
    let start = Instant::now();
    let failure = match driver.try_post(vec![add(0, 1)]) {
        Ok(()) => driver.take_next().expect_err("the node is gone"),
        Err(error) => panic!("nobody looked yet, but: {error}"),
    };
    println!("{failure} after {:?}", start.elapsed());
    assert!(matches!(failure.kind, FailureKind::Disconnected(_)), "{failure}");
    assert_eq!(failure.effect, Effect::Unknown);
    assert!(matches!(driver.try_post(vec![add(0, 1)]), Err(PostError::Broken(_))));
}

/// A client adds to a word without a pause; when the fence has returned, the word stays as it is.
fn nothing_takes_effect_after_a_fence(address: IpAddr) {
    for _ in 0..scaled(60).max(5) {
        let node = Node::at(address);
        let mut driver = node.connect(1);
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    let burst = (0..16).map(|_| add(0, 1)).collect();
                    if driver.try_run(burst).is_err() {
                        return;
                    }
                }
            });
            let start = Instant::now();
            while node.word(0) < 40 {
                assert!(start.elapsed() < PATIENCE, "the client does nothing");
                std::thread::yield_now();
            }
            assert!(node.target.fence(SessionId(1)));
            let after = node.word(0);
            // Another session's verbs show that the card went on working meanwhile.
            let mut other = node.connect(2);
            for _ in 0..50 {
                other.run(vec![write(64, &[1; 64])]);
            }
            assert_eq!(node.word(0), after, "a verb took effect after the fence");
            stop.store(true, Ordering::Relaxed);
        });
        drop(driver);
        node.wait_for_connections(0);
    }
}

/// A process that may lock 64 KiB and is not exempt: the start fails with the limit, the need and the remedy.
fn too_low_a_memlock_limit_is_named(address: IpAddr) {
    let text = output_with_memlock(65_536, "node", &address.to_string());
    for part in ["RLIMIT_MEMLOCK", "65536", "16777216", "ulimit -l"] {
        assert!(text.contains(part), "{part} is not in: {text}");
    }
}

/// What this program says in a role, if it may lock so much and is not exempt.
fn output_with_memlock(bytes: u64, role: &str, argument: &str) -> String {
    let output = Command::new("prlimit")
        .arg(format!("--memlock={bytes}:{bytes}"))
        .args(["setpriv", "--bounding-set", "-ipc_lock", "--inh-caps", "-ipc_lock"])
        .arg(std::env::current_exe().expect("this program's path"))
        .arg(argument)
        .env(ROLE, role)
        .output()
        .expect("prlimit and setpriv of util-linux");
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

/// A client that may lock no memory at all tries again and again: it is told why, and each try gives all back, at both
/// sides.
fn a_client_that_may_lock_nothing_leaves_nothing(address: IpAddr) {
    let node = Node::at(address);
    let joins: Vec<String> = (1..=4).map(|session| join_to_text(&node.admit(session))).collect();
    let text = output_with_memlock(0, "poor-client", &joins.join(","));
    println!("{text}");
    assert_eq!(text.matches("RLIMIT_MEMLOCK").count(), joins.len(), "{text}");
    let counts = text.split_once("files [").and_then(|(_, rest)| rest.split_once(']')).expect("the counts").0;
    // The first try may leave what the libraries keep for good.
    let counts: Vec<&str> = counts.split(", ").skip(1).collect();
    assert!(counts.iter().all(|count| *count == counts[0]), "{text}");
    node.wait_for_connections(0);
}

/// A client that starts other programs while it reads and writes loses nothing: no page that its card writes to moves.
fn forks_disturb_nothing(address: IpAddr) {
    let node = Node::at(address);
    let mut driver = node.connect(1);
    for round in 0..scaled(100).max(10) {
        let from = pattern(round, 3000);
        let child = Command::new("/bin/true").spawn();
        driver.store(8192, &from);
        assert_eq!(driver.fetch(8192, from.len()), from, "round {round}");
        assert!(child.expect("a process").wait().expect("its end").success());
        assert_eq!(driver.fetch(8192, from.len()), from, "round {round}, after the fork");
    }
}

/// 5 MiB are no whole number of huge pages. With or without those, what is registered is what is served.
fn a_region_of_an_odd_size_is_served_to_its_last_word(address: IpAddr) {
    for huge_pages in [HugePages::Auto, HugePages::Off] {
        let memory = MappingOptions { bytes: 5 << 20, huge_pages, threads: 1, name: "sidestep-odd".into() };
        let mapping = Arc::new(Mapping::create(&memory).expect("5 MiB"));
        println!("{}", mapping.describe());
        let options_ = VerbsOptions { address: Some(address), ..options_of_node() };
        let target = VerbsTarget::start(Arc::clone(&mapping), &options_).expect("a memory node");
        let node = Node { target, mapping };
        let mut driver = node.connect(1);
        let last = node.mapping.bytes() - 8;
        assert_eq!(driver.atomic(add(last, 7)), 0);
        assert_eq!(node.word(last), 7);
        driver.try_run(vec![add(last + 8, 1)]).expect_err("the word behind the region");
    }
}

/// Frames vanish, or the client's own link goes down: within seconds the client knows that the connection is lost,
/// and that it can't know of the last verb. The memory node fences what is left.
fn a_cut_wire_ends_the_connection_soon(address: IpAddr) {
    // The link goes last: its addresses and routes don't come back with it.
    let cuts: [(&str, &[&str]); 2] = [
        ("tc", &["qdisc", "replace", "dev", "va", "root", "netem", "loss", "100%"]),
        ("ip", &["link", "set", "va", "down"]),
    ];
    for (at, (program, arguments)) in cuts.into_iter().enumerate() {
        let node = Node::at(address);
        let mut driver = node.connect(1);
        for before in 0..10 {
            assert_eq!(driver.atomic(add(0, 1)), before);
        }
        let status = Command::new(program).args(arguments).status().expect("iproute2");
        assert!(status.success(), "{program} {arguments:?}: {status}");
        let start = Instant::now();
        let failure = driver.try_run(vec![add(0, 1)]).expect_err("the wire is cut");
        let took = start.elapsed();
        println!("{program} {arguments:?}: {failure} after {took:?}");
        // Some cards have words of their own for a link that is down; that of a silent peer is the same on all.
        assert!(at > 0 || matches!(failure.kind, FailureKind::Disconnected(_)), "{failure}");
        assert_eq!(failure.effect, Effect::Unknown);
        assert!(took < Duration::from_secs(10), "{took:?}");
        assert!(matches!(driver.try_post(vec![add(0, 1)]), Err(PostError::Broken(_))));
        drop(driver);
        assert!(node.target.fence(SessionId(1)));
        assert!([10, 11].contains(&node.word(0)), "{}", node.word(0));
        let mend = ["qdisc", "replace", "dev", "va", "root", "netem", "loss", "0%"];
        assert!(Command::new("tc").args(mend).status().expect("iproute2").success());
    }
}
