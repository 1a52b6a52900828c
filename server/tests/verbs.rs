//! kvserver with a card. These tests need an RDMA device, such as `tests/softroce/vm` has, and are ignored elsewhere.

mod bed;

use std::process::Command;

use bed::{Control, config, eventually, hello, join, read, start};
use sidestep_common::fabric::{Commits, FabricKind, Join};
use sidestep_common::layout::{AtomicityDomain, Offset, Superblock, TICK_OFFSET};
use sidestep_common::wire::{RefusalCode, Request, Response};
use sidestep_server::Config;
use sidestep_server::config::{CommitsChoice, Transport};

/// `auto` takes the card; the region is in its domain; what the card reads is what the server wrote, and the tick runs.
#[test]
#[ignore = "needs an RDMA device: tests/softroce/vm"]
fn a_session_reaches_the_region_through_the_card() {
    let server = start(config(Transport::Auto));
    let mut control = Control::tcp(server.control());
    let welcome = control.hello(hello(&[FabricKind::Shm, FabricKind::Verbs, FabricKind::Tcp]));
    assert!(matches!(welcome.join, Join::Verbs { .. }), "{:?}", welcome.join);
    let superblock = Superblock::parse(&welcome.superblock).unwrap();
    assert_eq!(superblock.domain, AtomicityDomain::Nic);
    let mut fabric = join(&welcome, &welcome.join);
    let bytes = read(&mut *fabric, Offset(0), 4096).unwrap();
    assert_eq!(Superblock::parse(&bytes), Ok(superblock));
    let mut tick = || read(&mut *fabric, TICK_OFFSET, 8).unwrap();
    let first = tick();
    eventually("the tick runs", || tick() != first);
    // CPU atomics and the card's don't mix, so no other fabric reaches this region.
    let refusal = Control::tcp(server.control()).refused(&Request::Hello(hello(&[FabricKind::Tcp])));
    assert_eq!(refusal.code, RefusalCode::Fabric);
    assert!(refusal.message.contains("serves verbs"), "{refusal}");
}

/// As for a card without remote atomics: the region is in the CPU's domain, and everybody is told that the CPU commits.
#[test]
#[ignore = "needs an RDMA device: tests/softroce/vm"]
fn two_sided_commits_are_said_plainly() {
    let server = start(Config { commits: CommitsChoice::TwoSided, ..config(Transport::Auto) });
    let welcome = Control::tcp(server.control()).hello(hello(&[FabricKind::Verbs]));
    assert!(
        matches!(welcome.join, Join::Verbs { commits: Commits::TwoSided { .. }, .. }),
        "{:?}",
        welcome.join
    );
    assert_eq!(Superblock::parse(&welcome.superblock).unwrap().domain, AtomicityDomain::Cpu);
    let said = "commits: two-sided, the server's CPU executes each CAS";
    let fabrics = server.statistics().fabrics;
    assert!(matches!(&fabrics[..], [(FabricKind::Verbs, line)] if line.contains(said)), "{fabrics:?}");
    let plan = &server.node().serving().unwrap().plan;
    assert!(plan.describe().contains(said) && plan.reasons()[0].reason.contains(said), "{plan:?}");
}

/// Fenced by its lease, by its lost control connection, and on its own wish: the queue pair does nothing any more.
#[test]
#[ignore = "needs an RDMA device: tests/softroce/vm"]
fn queue_pairs_end_with_their_sessions() {
    let server = start(Config { lease_ms: 2000, ..config(Transport::Verbs) });
    let mut quiet = Control::tcp(server.control());
    let welcome = quiet.hello(hello(&[FabricKind::Verbs]));
    let mut fabric = join(&welcome, &welcome.join);
    assert!(read(&mut *fabric, Offset(0), 8).is_some());
    eventually("the lease runs out", || server.statistics().sessions_fenced_total == 1);
    assert_eq!(read(&mut *fabric, Offset(0), 8), None);

    let mut lost = Control::tcp(server.control());
    let welcome = lost.hello(hello(&[FabricKind::Verbs]));
    let mut fabric = join(&welcome, &welcome.join);
    assert!(read(&mut *fabric, Offset(0), 8).is_some());
    drop(lost);
    eventually("the lost session is fenced", || server.statistics().sessions_fenced_total == 2);
    assert_eq!(read(&mut *fabric, Offset(0), 8), None);

    let mut again = Control::tcp(server.control());
    let welcome = again.hello(hello(&[FabricKind::Verbs]));
    let mut old = join(&welcome, &welcome.join);
    assert!(read(&mut *old, Offset(0), 8).is_some());
    let Response::Rejoined(anew) = again.ask(&Request::Rejoin) else { panic!() };
    assert_eq!(read(&mut *old, Offset(0), 8), None);
    assert!(read(&mut *join(&welcome, &anew), Offset(0), 8).is_some());
}

/// A1 and B5: too little lockable memory, and devices that aren't there, end the start with what is needed. Being
/// root would lift the limit, so the capability is dropped.
#[test]
#[ignore = "needs an RDMA device: tests/softroce/vm"]
fn what_keeps_a_card_from_serving_is_named() {
    let kvserver = env!("CARGO_BIN_EXE_kvserver");
    let flags = ["-l", "127.0.0.1:0", "-m", "64M", "--hugepages", "off", "--admin-listen", "off"];
    let mut command = Command::new("prlimit");
    command.args(["--memlock=65536", "setpriv", "--bounding-set=-ipc_lock", "--inh-caps=-all", kvserver]);
    let output = command.args(flags).args(["--transport", "verbs"]).output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{error}");
    assert!(error.contains("65536") && error.to_lowercase().contains("memlock"), "{error}");
    for (choice, named) in [(["--device", "nosuch"], "nosuch"), (["--gid-index", "99"], "99")] {
        let output =
            Command::new(kvserver).args(flags).args(["--transport", "verbs"]).args(choice).output().unwrap();
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{error}");
        assert!(error.contains(named) && error.contains("rxe"), "{error}");
    }
}
