//! Whether a region is sound, looked at over each fabric: under load, after clients were killed, and when it is not.

use std::os::unix::fs::FileExt;
use std::os::unix::process::CommandExt;
use std::sync::atomic::{AtomicU64, Ordering};

use sidestep_client::fsck::{Dump, Live, Options, Report, check, dump};
use sidestep_client::{Client, ClientBuilder, FabricKind};
use sidestep_common::layout::{DirectoryWord, Offset, SlotState, SlotWord, free_map_offset};
use sidestep_common::memory::WordMemory;
use sidestep_server::config::Transport;
use sidestep_tests::system::{Node, NodeOptions, run_suite, until};
use sidestep_tests::{cases, scaled};

fn main() {
    run_suite(&cases![
        a_region_under_load_raises_no_alarm,
        a_dump_of_a_region_under_load_raises_no_alarm,
        clients_that_are_killed_leave_a_sound_region,
        damage_is_found_over_every_fabric: 16,
        a_restarted_server_is_not_taken_for_damage,
    ])
}

const WRITERS: u64 = 3;
/// Keys that all of them change.
const SHARED_KEYS: u64 = 20;
/// Keys of each of them alone.
const OWN_KEYS: u64 = 60;

/// A node that serves whatever goes together with `fabric`, and these fabrics.
fn node(fabric: FabricKind, memory_mib: u64) -> (Node, Vec<FabricKind>) {
    let configure: fn(&mut sidestep_server::Config) = match fabric {
        FabricKind::Verbs => |_| {},
        _ => |config| {
            config.transport = Transport::Auto;
            // What is overwritten is used again within the run.
            config.grace_ms = 500;
        },
    };
    let node = Node::start(fabric, &NodeOptions { memory_mib, configure });
    let all = [FabricKind::Verbs, FabricKind::Shm, FabricKind::Tcp];
    let serving = node.running().node().serving().expect("it serves");
    let mut served: Vec<_> = all.into_iter().filter(|kind| serving.targets.get(*kind).is_some()).collect();
    // Beside a card, `auto` serves the card alone.
    if !served.contains(&fabric) {
        let node = Node::start(fabric, &NodeOptions { memory_mib, ..NodeOptions::default() });
        served = vec![fabric];
        return (node, served);
    }
    (node, served)
}

fn live(builder: ClientBuilder, fabric: FabricKind) -> Live {
    let client = builder.fabric(fabric).damaged_region().connect().expect("it connects");
    Live::new(client.session().expect("a session")).expect("a region")
}

fn look(live: &mut Live) -> Report {
    check(live, Options::default()).unwrap_or_else(|error| panic!("the region can't be looked at: {error}"))
}

#[track_caller]
fn assert_sound(report: &Report, when: &str) {
    assert_eq!(report.findings.first(), None, "{when}");
    assert!(report.accounts.is_balanced(), "{when}: {:#?}", report.accounts);
}

/// So many times the rounds that are wanted, if nobody has looked by then.
const LONGEST: u64 = 5;
/// Looks over each fabric while the writers work.
const LOOKS: u64 = 5;

/// A writer at work. It counts as one until it ends, however it ends: others wait for that.
struct AtWork<'a>(&'a AtomicU64);

impl Drop for AtWork<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Release);
    }
}

/// Puts, overwrites and deletes with values from none to an extent's, in sessions that come and go, for so many
/// rounds and then for as long as `goes_on` says. Returns how many keys of its own it left.
fn work(
    builder: &ClientBuilder,
    fabric: FabricKind,
    writer: u64,
    rounds: u64,
    goes_on: impl Fn() -> bool,
) -> u64 {
    let mut present = vec![false; OWN_KEYS as usize];
    let mut client: Option<Client> = None;
    for round in (0..LONGEST * rounds).take_while(|&round| round < rounds || goes_on()) {
        // A session's end gives memory back, a beginning takes some.
        if round.is_multiple_of(rounds / 4 + 1) {
            client = None;
        }
        let client = client.get_or_insert_with(|| builder.clone().fabric(fabric).connect().unwrap());
        let bytes = match round % 200 {
            100 if round < 1000 => 150_000,
            round => (round * round * 3) as usize % 250,
        };
        let value = vec![writer as u8; bytes];
        let shared = format!("shared {}", round * 7 % SHARED_KEYS);
        let own = round * 13 % OWN_KEYS;
        let own_key = format!("{writer}/{own}");
        match round % 5 {
            0 => {
                assert_eq!(client.delete(own_key.as_bytes()).unwrap(), present[own as usize]);
                present[own as usize] = false;
            }
            1 => drop(client.delete(shared.as_bytes()).unwrap()),
            2 | 3 => {
                client.put(own_key.as_bytes(), &value).unwrap();
                present[own as usize] = true;
            }
            _ => client.put(shared.as_bytes(), &value[..value.len().min(100)]).unwrap(),
        }
    }
    present.iter().filter(|is_present| **is_present).count() as u64
}

/// Clients put, overwrite and delete, and come and go, while the region is looked at again and again over every fabric
/// that it is served by: nothing is found. When they have ended it is sound, nothing changes any more, no session has
/// anything in hand, and the accounts make up the pool to the byte.
fn a_region_under_load_raises_no_alarm(fabric: FabricKind) {
    let (node, served) = node(fabric, 64);
    let working = AtomicU64::new(WRITERS);
    let looks: Vec<AtomicU64> = served.iter().map(|_| AtomicU64::new(0)).collect();
    let looks = &looks[..];
    let rounds = scaled(3000);
    let own_keys = std::thread::scope(|scope| {
        for (kind, looks) in served.iter().zip(looks) {
            let (builder, working) = (node.builder(), &working);
            scope.spawn(move || {
                let mut live = live(builder, *kind);
                let mut is_last = false;
                while !is_last {
                    is_last = working.load(Ordering::Acquire) == 0;
                    let report = look(&mut live);
                    assert_sound(&report, &format!("over {kind}, under load"));
                    looks.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        let writers: Vec<_> = (0..WRITERS)
            .map(|writer| {
                let (builder, working, served) = (node.builder(), &working, &served);
                scope.spawn(move || {
                    let _at_work = AtWork(working);
                    let fabric = served[writer as usize % served.len()];
                    let goes_on = || looks.iter().any(|looks| looks.load(Ordering::Relaxed) < LOOKS);
                    work(&builder, fabric, writer, rounds, goes_on)
                })
            })
            .collect();
        writers.into_iter().map(|writer| writer.join().unwrap()).sum::<u64>()
    });
    println!("{fabric}: {looks:?} looks over {served:?} while {WRITERS} writers worked");
    until("all sessions are gone", || node.running().statistics().session_count == 0);
    for kind in served {
        let report = look(&mut live(node.builder(), kind));
        assert_sound(&report, &format!("over {kind}, at rest"));
        assert_eq!(report.notes, sidestep_client::fsck::Notes::default());
        assert_eq!(report.accounts.in_hand.blocks, 0, "{:#?}", report.accounts);
        assert!(report.accounts.free.blocks > 0, "{:#?}", report.accounts);
        assert!(
            (own_keys..=own_keys + SHARED_KEYS).contains(&report.index.live),
            "{own_keys} {:?}",
            report.index
        );
        let granted = node.running().statistics().granted_bytes;
        let accounts = report.accounts;
        assert_eq!(accounts.pool_bytes - accounts.ungranted_bytes, granted);
    }
}

/// A dump that is made while clients work has no findings either.
fn a_dump_of_a_region_under_load_raises_no_alarm(fabric: FabricKind) {
    let (node, _) = node(fabric, 64);
    let working = AtomicU64::new(WRITERS);
    let rounds = scaled(1500);
    let directory = tempfile::tempdir().unwrap();
    std::thread::scope(|scope| {
        for writer in 0..WRITERS {
            let (builder, working) = (node.builder(), &working);
            scope.spawn(move || {
                let _at_work = AtWork(working);
                work(&builder, fabric, writer, rounds, || false);
            });
        }
        let mut live = live(node.builder(), fabric);
        let mut is_last = false;
        while !is_last {
            is_last = working.load(Ordering::Acquire) == 0;
            let path = directory.path().join("dump");
            let options =
                std::fs::OpenOptions::new().read(true).write(true).create(true).truncate(false).clone();
            let file = options.open(path).unwrap();
            let written = dump::write(&mut live, &file, None).unwrap();
            let mut dumped = Dump::open(file).unwrap();
            let report = check(&mut dumped, Options::default()).unwrap();
            assert_sound(&report, &format!("a dump, {written:?}"));
            assert!(!is_last || dumped.is_still(), "nobody works any more: {written:?}");
        }
    });
}

/// Clients are killed in the midst of their work. They leave unpublished and unmarked blocks, which is no damage: they
/// are in the accounts, as left behind, until they are swept.
fn clients_that_are_killed_leave_a_sound_region(fabric: FabricKind) {
    let (node, _) = node(fabric, 64);
    let mut live = live(node.builder(), fabric);
    for round in 0..3 {
        let endpoint = format!("{}?fabric={fabric}", node.running().endpoint());
        let spawn = |number: u32| {
            let mut command = std::process::Command::new(sidestep_tests::system::binary("busy-client"));
            command.args([&endpoint, &number.to_string()]).process_group(0).spawn().expect("it starts")
        };
        let mut clients: Vec<_> = (0..3).map(spawn).collect();
        until("all work", || node.running().statistics().session_count == 4);
        assert_sound(&look(&mut live), &format!("round {round}, while they work"));
        for client in &mut clients {
            client.kill().unwrap();
            client.wait().unwrap();
        }
        until("their sessions are gone", || node.running().statistics().session_count == 1);
        let report = look(&mut live);
        assert_sound(&report, &format!("round {round}, when they are dead"));
        assert_eq!(report.accounts.in_hand.blocks, 0, "{:#?}", report.accounts);
        until("what they left is swept", || node.running().statistics().orphan_chunks == 0);
        let report = look(&mut live);
        assert_sound(&report, &format!("round {round}, when all is swept"));
        assert_eq!(report.accounts.left_behind.blocks, 0, "{:#?}", report.accounts);
    }
}

/// The first slot that is not EMPTY.
fn filled_slot(node: &Node) -> (Offset, SlotWord) {
    let serving = node.running().node().serving().expect("it serves");
    let (words, geometry) = (serving.mapping.words(), serving.region.superblock.geometry);
    let slots = (geometry.segment_pool_offset.0..geometry.block_pool_offset.0).step_by(8);
    // A bucket's first word is its header.
    let slots = slots.filter(|offset| offset % 256 != 0).map(Offset);
    slots
        .map(|offset| (offset, SlotWord::from_bits(words.load(offset).unwrap())))
        .find(|(_, word)| matches!(word.state(), SlotState::Live(_)))
        .expect("a key is there")
}

/// Damage of a kind each: a look over the fabric finds it as what it is, a client that may not even connect with a damaged
/// superblock too, and when it is mended nothing is found. The dump of the damaged region says the same.
fn damage_is_found_over_every_fabric(node: &Node) {
    let client = node.client();
    for number in 0..40_u32 {
        client.put(format!("key {number}").as_bytes(), &number.to_le_bytes()).unwrap();
    }
    let serving = node.running().node().serving().expect("it serves");
    let (words, geometry) = (serving.mapping.words(), serving.region.superblock.geometry);
    let (slot, word) = filled_slot(node);
    let SlotState::Live(block) = word.state() else { unreachable!() };
    let bucket = Offset(slot.0 - slot.0 % 256);
    let flip = |offset: Offset, bit: u32| (Offset(offset.0 & !7), 1_u64 << bit);
    let mark = free_map_offset(block).unwrap();
    let damages = [
        ("superblock-invalid", flip(Offset(0), 3)),
        ("superblock-invalid", flip(Offset(512), 3)),
        ("stray-bytes", flip(Offset(1024), 3)),
        ("run-broken", flip(geometry.directory_word_offset(4), 58)),
        ("segment-outside", flip(geometry.directory_word_offset(4), 31)),
        ("bucket-generation", flip(bucket, 40)),
        ("slot-moved", flip(slot, 63)),
        ("slot-malformed", flip(slot, 62)),
        ("tag-wrong", flip(slot, 55)),
        ("expiry-bit", flip(slot, 60)),
        ("block-version", flip(slot, 36)),
        ("block-outside", flip(slot, 33)),
        ("block-checksum", flip(block.offset, 7)),
        ("block-lengths", flip(block.offset.plus(16), 15)),
        ("marked-free", flip(mark, 8 * (mark.0 % 8) as u32)),
    ];
    let toggle = |(offset, bits): (Offset, u64)| xor(&words, offset, bits);
    let mut live = live(node.builder(), node.fabric());
    assert_sound(&look(&mut live), "before");
    for (kind, damage) in damages {
        toggle(damage);
        let report = look(&mut live);
        assert!(report.count_of(kind) > 0, "{kind} was found as {:?}", report.by_kind);
        assert!(report.finding_count() <= 70, "{kind}: {:?}", report.by_kind);
        toggle(damage);
        assert_sound(&look(&mut live), &format!("{kind} was mended"));
    }
    // Nobody can connect as usual when the superblock is damaged; a checker can.
    toggle(damages[0].1);
    assert!(node.builder().connect().is_err());
    let report = look(&mut self::live(node.builder(), node.fabric()));
    assert_eq!(report.count_of("superblock-invalid"), 1);
    let file = tempfile::tempfile().unwrap();
    dump::write(&mut live, &file, None).unwrap();
    toggle(damages[0].1);
    // The dump is what it was, and can be damaged on its own.
    let mut dumped = Dump::open(file.try_clone().unwrap()).unwrap();
    assert_eq!(check(&mut dumped, Options::default()).unwrap().by_kind, [("superblock-invalid", 1)].into());
    file.write_all_at(&DirectoryWord::from_bits(0).to_bits().to_le_bytes(), geometry.directory_offset.0)
        .unwrap();
    assert_eq!(check(&mut dumped, Options::default()).unwrap().count_of("directory-empty"), 1);
    client.get(b"key 1").unwrap().expect("it is all mended");
}

fn xor(words: &WordMemory, offset: Offset, bits: u64) {
    words.store(offset, words.load(offset).unwrap() ^ bits).unwrap();
}

/// Another region appears behind the same endpoint while one is looked at: an error, not a finding.
fn a_restarted_server_is_not_taken_for_damage(fabric: FabricKind) {
    use sidestep_client::fsck::{RegionSource, SourceError};
    use sidestep_tests::system::Process;
    let server = Process::kvserver(fabric, 0, &["-m", "16M"]);
    let port = server.port();
    let client = server.client(std::time::Duration::from_secs(60));
    client.put(b"k", b"v").unwrap();
    let mut live = Live::new(client.session().unwrap()).unwrap();
    assert!(check(&mut live, Options::default()).unwrap().is_clean());
    server.kill();
    let _server = Process::kvserver(fabric, port, &["-m", "16M"]);
    // Until the new server serves, nobody answers.
    until("the other region is noticed", || {
        let looked = live.grants(0, 1).and_then(|_| check(&mut live, Options::default()));
        match looked {
            Ok(report) => panic!("looked at without an error: {report:?}"),
            Err(SourceError::Replaced { expected, found }) => expected != found,
            Err(SourceError::Client(_)) => false,
            Err(error) => panic!("{error}"),
        }
    });
}
