//! Histories of real processes, on every fabric: see `sidestep_tests::histories`.

use sidestep_client::FabricKind;
use sidestep_tests::cases;
use sidestep_tests::histories::{Case, prove};
use sidestep_tests::system::{self, run_suite};

const CASES: [system::Case; 7] = cases![
    keys_that_all_fight_over_are_linearizable,
    killed_clients_leave_each_call_done_or_not,
    clients_stopped_beyond_their_lease_go_on_rightly,
    hasty_and_cut_off_clients_are_told_the_truth,
    nothing_of_an_old_life_is_seen_in_a_new_one,
    all_of_it_at_once,
    half_of_the_writers_die_again_and_again,
];

#[cfg(not(feature = "simulation"))]
fn main() {
    run_suite(&CASES)
}

#[cfg(feature = "simulation")]
fn main() {
    run_suite(&[&CASES[..], &cases![planted_mistakes_are_caught]].concat())
}

const CONTENDED: Case =
    Case { name: "keys_that_all_fight_over_are_linearizable", calls: 40_000, ..Case::QUIET };
const HASTY: Case = Case {
    name: "hasty_and_cut_off_clients_are_told_the_truth",
    calls: 20_000,
    cuts: 20,
    hasty_per_mille: 100,
    ..Case::QUIET
};

/// Processes get, put and delete a few keys that collide in every way, and new ones at the same time. Nothing is done to
/// them: no call may fail.
fn keys_that_all_fight_over_are_linearizable(fabric: FabricKind) {
    prove(fabric, &CONTENDED);
}

/// Processes are killed wherever they are, alone and several at once, and others take their places. Each call under way
/// has happened as a whole or not at all.
fn killed_clients_leave_each_call_done_or_not(fabric: FabricKind) {
    let case =
        Case { name: "killed_clients_leave_each_call_done_or_not", calls: 30_000, kills: 10, ..Case::QUIET };
    let summary = prove(fabric, &case);
    assert!(summary.kills >= 10, "{summary}");
}

/// Processes stand still, in the middle of a call, for twice their lease and the grace period, then go on with what they
/// knew. Their sessions have ended meanwhile, or end now.
fn clients_stopped_beyond_their_lease_go_on_rightly(fabric: FabricKind) {
    let case = Case {
        name: "clients_stopped_beyond_their_lease_go_on_rightly",
        calls: 20_000,
        pauses: 3,
        ..Case::QUIET
    };
    let summary = prove(fabric, &case);
    // A process has a session more than those that work, and the driver has two.
    let first = u64::from(case.clients) * (u64::from(case.sessions) + 1) + 2;
    assert!(summary.pauses == 3 && summary.sessions > first, "nobody lost a lease: {summary}");
}

/// Calls get so little time that they end while their verbs are under way, and connections are cut at any moment. Whoever is
/// told "done" or "not done" is told the truth, and whoever is told "unknown" was told no less than could be known.
fn hasty_and_cut_off_clients_are_told_the_truth(fabric: FabricKind) {
    prove(fabric, &HASTY);
}

/// The server is killed and another takes its place. What was put in its region is gone, for everybody and for good.
fn nothing_of_an_old_life_is_seen_in_a_new_one(fabric: FabricKind) {
    let case = Case {
        name: "nothing_of_an_old_life_is_seen_in_a_new_one",
        calls: 20_000,
        restarts: 3,
        ..Case::QUIET
    };
    let summary = prove(fabric, &case);
    assert_eq!((summary.restarts, summary.lives), (3, 4), "{summary}");
}

/// All of the above.
fn all_of_it_at_once(fabric: FabricKind) {
    let case = Case {
        name: "all_of_it_at_once",
        clients: 4,
        calls: 30_000,
        kills: 6,
        pauses: 2,
        cuts: 10,
        restarts: 2,
        hasty_per_mille: 30,
        ..Case::QUIET
    };
    prove(fabric, &case);
}

/// Half of the processes are killed at one moment, two hundred times. The others go on, and nothing is lost: neither calls nor
/// memory.
fn half_of_the_writers_die_again_and_again(fabric: FabricKind) {
    let (rounds, calls) = if fabric == FabricKind::Verbs { (10, 10_000) } else { (200, 200_000) };
    let case = Case {
        name: "half_of_the_writers_die_again_and_again",
        clients: 6,
        sessions: 1,
        calls,
        kills: rounds,
        killed_at_once: 3,
        memory: if fabric == FabricKind::Verbs { "256M" } else { "2G" },
        measures_capacity: fabric != FabricKind::Verbs,
        ..Case::QUIET
    };
    let summary = prove(fabric, &case);
    assert_eq!(summary.kills, rounds * 3, "{summary}");
}

/// Clients that make mistakes are found out: the driver can fail. The simulator plants all there are; these are some that
/// chance alone brings out within some thousand calls.
#[cfg(feature = "simulation")]
fn planted_mistakes_are_caught(fabric: FabricKind) {
    let contended = [
        "KeyNotCompared",
        "SecondTwinIgnored",
        "DeletedTakenForValue",
        "DeletedNotExamined",
        "DeleteLostToLiveGivesUp",
        "DeleteLostToDeletedGoesOn",
        "LostDeleteTakenForWon",
        "PublishedGivenBack",
        "AnyEmptySlot",
        "LostPutTakenForWon",
        "NewBlockMarked",
        "ChecksumWithoutVersion",
    ];
    // Over shm a verb is over when it is posted, and no call ends while one is under way.
    let hasty: &[_] = if fabric == FabricKind::Shm { &[] } else { &["TimeoutTakenForFailed"] };
    let contended = contended.map(|plant| Case { plant, calls: 10_000, ..CONTENDED });
    let hasty = hasty.iter().map(|plant| Case { plant, ..HASTY });
    for case in contended.into_iter().chain(hasty) {
        let caught = (1..=5).find_map(|seed| sidestep_tests::histories::run(fabric, &case, seed).err());
        let failure = caught.unwrap_or_else(|| panic!("{fabric}: {} is not caught", case.plant));
        let trouble = failure.trouble.to_string();
        let trouble = trouble.lines().next().unwrap_or_default();
        println!("{fabric}: {} is caught after {} calls: {trouble}", case.plant, failure.summary.calls);
        std::fs::remove_dir_all(failure.directory).expect("it is there");
    }
}
