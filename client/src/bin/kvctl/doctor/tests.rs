//! Rules over hosts that nobody has here.

use sidestep_client::{DeviceChoice, FabricKind};

use super::facts::*;
use super::rules::{Check, Level, judge};
use super::text;

fn entry(index: u32, gid: &str, kind: &str) -> GidEntry {
    GidEntry {
        index,
        gid: gid.into(),
        kind: kind.into(),
        link_local: gid.starts_with("fe80"),
        interface: Some("eth0".into()),
    }
}

fn port(number: u8, active: bool) -> Port {
    Port {
        number,
        state: if active { "ACTIVE" } else { "DOWN" }.into(),
        active,
        ethernet: true,
        mtu_bytes: 4096,
        gids: vec![entry(0, "fe80::1", "RoCE v2"), entry(1, "::ffff:10.0.0.1", "RoCE v2")],
    }
}

fn card(name: &str, ports: Vec<Port>) -> Card {
    let details = CardDetails { atomics: "HCA".into(), has_atomics: true, responder_depth: 16, ports };
    Card { name: name.into(), details: Outcome::Ok(details) }
}

fn choice() -> Outcome<Choice> {
    let address = "10.0.0.1".into();
    Outcome::Ok(Choice { device: "mlx5_0".into(), port: 1, gid_index: Some(1), address })
}

/// A host on which all is well.
fn healthy() -> Facts {
    Facts {
        cards: Cards::Listed { devices: vec![card("mlx5_0", vec![port(1, true)])], choice: choice() },
        wanted: DeviceChoice::default(),
        memlock: Memlock { limit_bytes: None, exempt: false },
        huge_pages: vec![HugePages { page_bytes: 2 << 20, total: 512, free: 512 }],
        memory: Some((8 << 30, "MemAvailable".into())),
        shared_memory: SharedMemory {
            dev_shm: Some((64 << 20, 64 << 20)),
            region: Outcome::Ok("1 MiB".into()),
        },
        loopbacks: vec![Loopback {
            fabric: FabricKind::Verbs,
            outcome: Outcome::Ok(LoopbackTimes { read_ns: 2000, cas_ns: 1500 }),
        }],
        server: None,
    }
}

/// The facts of [`healthy`], with other devices.
fn with_cards(devices: Vec<Card>, choice: Outcome<Choice>) -> Facts {
    Facts { cards: Cards::Listed { devices, choice }, ..healthy() }
}

fn edit(card: &mut Card) -> &mut CardDetails {
    match &mut card.details {
        Outcome::Ok(details) => details,
        Outcome::Error(reason) => panic!("{reason}"),
    }
}

/// The checks of one name. Whatever is not ok must say what to do.
fn found(facts: &Facts, name: &str) -> Vec<Check> {
    let checks = judge(facts);
    for check in &checks {
        assert_eq!(check.remedy.is_some(), check.level != Level::Ok, "{check:?}");
    }
    checks.into_iter().filter(|check| check.check == name).collect()
}

fn level(facts: &Facts, name: &str) -> Level {
    found(facts, name).iter().map(|check| check.level).max().unwrap_or_else(|| panic!("no check {name}"))
}

fn worst(facts: &Facts) -> Level {
    judge(facts).iter().map(|check| check.level).max().unwrap()
}

#[test]
fn a_healthy_host_is_ok() {
    assert_eq!(worst(&healthy()), Level::Ok, "{}", text(&judge(&healthy())));
}

/// No card, no library, no verbs in the build: all a warning, because shm and tcp work. Wrong if one was asked for.
#[test]
fn no_device_is_a_warning_unless_one_was_asked_for() {
    let nothing = [
        Cards::NotBuilt,
        Cards::Unlisted { reason: "libibverbs.so.1 is missing".into() },
        Cards::Listed { devices: vec![], choice: Outcome::Error("no device".into()) },
    ];
    for cards in nothing {
        let mut facts = Facts { cards, ..healthy() };
        assert_eq!(worst(&facts), Level::Warning);
        let check = &found(&facts, "RDMA device")[0];
        assert!(check.finding.contains("shm and tcp only"), "{check:?}");
        facts.wanted.device = Some("mlx5_7".into());
        let check = &found(&facts, "RDMA device")[0];
        assert_eq!(check.level, Level::Wrong);
        assert!(check.finding.contains("mlx5_7"), "{check:?}");
    }
}

#[test]
fn one_bad_device_hides_no_good_one() {
    let bad = Card { name: "bad0".into(), details: Outcome::Error("permission denied".into()) };
    let mut facts = with_cards(vec![bad.clone(), card("mlx5_0", vec![port(1, true)])], choice());
    assert_eq!(level(&facts, "RDMA device"), Level::Warning);
    assert_eq!(level(&facts, "choice"), Level::Ok);
    facts.wanted.device = Some("bad0".into());
    assert_eq!(level(&facts, "RDMA device"), Level::Wrong);
    let alone = with_cards(vec![bad], Outcome::Error("cannot be opened".into()));
    assert_eq!(level(&alone, "RDMA device"), Level::Wrong);
}

#[test]
fn a_port_that_is_down_is_wrong_only_if_no_other_is_up() {
    let down =
        with_cards(vec![card("mlx5_0", vec![port(1, false)])], Outcome::Error("port 1 is DOWN".into()));
    assert_eq!((level(&down, "port"), level(&down, "choice")), (Level::Wrong, Level::Wrong));
    let second = with_cards(vec![card("mlx5_0", vec![port(1, true), port(2, false)])], choice());
    assert_eq!((level(&second, "port"), level(&second, "choice")), (Level::Warning, Level::Ok));
}

#[test]
fn only_link_local_gids_cannot_be_used() {
    let mut port = port(1, true);
    port.gids.truncate(1);
    let facts = with_cards(vec![card("mlx5_0", vec![port])], Outcome::Error("no usable GID".into()));
    let table = &found(&facts, "GID table")[0];
    assert_eq!(table.level, Level::Warning);
    assert!(table.finding.contains("only link-local") && table.finding.contains("fe80::1"), "{table:?}");
    assert_eq!(level(&facts, "choice"), Level::Wrong);
}

/// InfiniBand has its addresses elsewhere: it cannot be chosen unasked, which is nothing wrong with it.
#[test]
fn infiniband_without_an_address_is_a_warning() {
    let mut port = port(1, true);
    port.ethernet = false;
    port.gids = vec![entry(0, "fe80::1", "IB/RoCE v1")];
    let facts =
        with_cards(vec![card("mlx5_0", vec![port])], Outcome::Error("the address must be given".into()));
    assert_eq!((level(&facts, "GID table"), level(&facts, "choice")), (Level::Ok, Level::Warning));
}

#[test]
fn roce_v1_is_a_warning() {
    let mut port = port(1, true);
    port.gids[1].kind = "IB/RoCE v1".into();
    let facts = with_cards(vec![card("mlx5_0", vec![port])], choice());
    assert_eq!(level(&facts, "choice"), Level::Warning);
}

#[test]
fn a_card_without_atomics_is_a_warning_where_it_would_be_used() {
    let mut card_without = card("mlx5_0", vec![port(1, true)]);
    edit(&mut card_without).has_atomics = false;
    edit(&mut card_without).atomics = "NONE".into();
    let facts = with_cards(vec![card_without.clone()], choice());
    let check = &found(&facts, "atomics")[0];
    assert_eq!(check.level, Level::Warning);
    assert!(check.finding.contains("NONE"), "{check:?}");
    card_without.name = "other0".into();
    let facts = with_cards(vec![card_without, card("mlx5_0", vec![port(1, true)])], choice());
    assert_eq!(level(&facts, "atomics"), Level::Ok);
}

#[test]
fn a_small_mtu_is_a_warning_with_its_figure() {
    let mut port = port(1, true);
    port.mtu_bytes = 1024;
    let facts = with_cards(vec![card("mlx5_0", vec![port])], choice());
    let check = &found(&facts, "MTU")[0];
    assert_eq!(check.level, Level::Warning);
    assert!(check.finding.contains("1024"), "{check:?}");
}

#[test]
fn memlock_matters_where_there_is_a_card() {
    let limited = |limit, exempt| Memlock { limit_bytes: Some(limit), exempt };
    let mut facts = healthy();
    for (memlock, expected) in [
        (limited(64 << 10, false), Level::Wrong),
        (limited((32 << 20) - 1, false), Level::Wrong),
        (limited(32 << 20, false), Level::Warning),
        (limited(64 << 10, true), Level::Ok),
    ] {
        facts.memlock = memlock;
        assert_eq!(level(&facts, "memlock"), expected, "{memlock:?}");
    }
    facts.memlock = limited(64 << 10, false);
    facts.cards = Cards::NotBuilt;
    assert_eq!(level(&facts, "memlock"), Level::Ok);
}

#[test]
fn huge_pages_that_are_missing_or_used_up_are_a_warning() {
    let pool = |total, free| HugePages { page_bytes: 2 << 20, total, free };
    for (pools, expected) in [
        (vec![], Level::Warning),
        (vec![pool(0, 0)], Level::Warning),
        (vec![pool(8, 0)], Level::Warning),
        (vec![pool(8, 1)], Level::Ok),
    ] {
        let facts = Facts { huge_pages: pools.clone(), ..healthy() };
        assert_eq!(level(&facts, "huge pages"), expected, "{pools:?}");
    }
}

#[test]
fn what_fails_when_tried_is_wrong() {
    let mut facts = healthy();
    facts.shared_memory.region = Outcome::Error("memfd_create: not permitted".into());
    facts.shared_memory.dev_shm = None;
    assert_eq!(level(&facts, "memfd"), Level::Wrong);
    assert_eq!(level(&facts, "/dev/shm"), Level::Ok, "nothing of ours needs it");
    facts.loopbacks[0].outcome = Outcome::Error("no completion".into());
    assert_eq!(level(&facts, "loopback"), Level::Wrong);
    facts.memory = Some((1 << 20, "the control group".into()));
    assert_eq!(level(&facts, "memory"), Level::Warning);
}

#[test]
fn a_server_must_answer_and_should_be_of_this_version() {
    let answer = |version: &str| ServerAnswer {
        version: version.into(),
        fabric: FabricKind::Tcp,
        connection: "c".into(),
        ping_us: 3,
    };
    let with = |outcome| Facts { server: Some(Server { endpoint: "e".into(), outcome }), ..healthy() };
    assert_eq!(level(&with(Outcome::Ok(answer(env!("CARGO_PKG_VERSION")))), "server"), Level::Ok);
    assert_eq!(level(&with(Outcome::Ok(answer("0.0.9"))), "server"), Level::Warning);
    assert_eq!(level(&with(Outcome::Error("refused".into())), "server"), Level::Wrong);
}

#[test]
fn text_has_levels_tables_and_remedies() {
    let mut facts = healthy();
    facts.huge_pages.clear();
    facts.loopbacks[0].outcome = Outcome::Error("no completion".into());
    let text = text(&judge(&facts));
    assert!(text.contains("ok       GID table   mlx5_0 port 1:\n"), "{text}");
    assert!(text.contains("1  ::ffff:10.0.0.1  RoCE v2  eth0\n"), "{text}");
    assert!(text.contains("WRONG    loopback    verbs: no completion\n"), "{text}");
    assert!(text.contains("-> "), "{text}");
    assert!(text.ends_with(" ok, 1 warning, 1 wrong\n"), "{text}");
}

/// Facts go out as JSON whole, so nothing of a host may be left out or fail to be written.
#[test]
fn facts_are_json() {
    let json = serde_json::to_value(healthy()).unwrap();
    assert_eq!(json["cards"]["devices"][0]["details"]["ok"]["ports"][0]["gids"][1]["gid"], "::ffff:10.0.0.1");
    assert_eq!(json["cards"]["choice"]["ok"]["gid_index"], 1);
    assert_eq!(json["loopbacks"][0]["outcome"]["ok"]["read_ns"], 2000);
}
