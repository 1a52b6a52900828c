//! One run: a server, client processes, and what is done to them.
//!
//! Always true: a run that is good leaves nothing behind; one that is not leaves its folder, with all logs, and what the
//! server and the clients said.

use std::collections::BTreeSet;
use std::fmt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use sidestep_client::fsck::{self, Finding, Live, Options};
use sidestep_client::{Client, FabricKind};
use sidestep_common::layout::Superblock;

use super::capacity::{capacity, empty};
use super::dice::Dice;
use super::evidence::Evidence;
use super::fleet::Fleet;
use super::history::Histories;
use super::keys::Keys;
use super::log::now_ns;
use super::orders::Orders;
use super::plan::{Act, Case, Plan};
use super::record::Ask;
use super::summary::Summary;
use super::trouble::Trouble;
use super::verdict::judge;
use super::worker::Worker;
use crate::scaled;
use crate::system::Process;

/// Between two looks at how far the clients are.
const LOOK: Duration = Duration::from_millis(1);
/// If nobody writes a record for so long, something is stuck.
const STANDSTILL: Duration = Duration::from_secs(60);
/// Time for what must not fail.
const LONG: Duration = Duration::from_secs(60);

/// Of what fits into a new region, as much must fit into one in which clients died. Some chunks keep blocks of keys that were
/// deleted, until their segment is rebuilt.
const CAPACITY_PER_MILLE: u64 = 999;

/// Nobody reads more findings; what is wrong at one place is often wrong at many.
const FINDINGS_TOLD_MAX: usize = 20;

/// How fast a fabric is here, in round numbers.
struct Pace {
    /// Block memory of sessions that were killed is not used again yet.
    memory: &'static str,
    /// Short, where somebody is to be stopped for longer; but not so short that a busy machine is late by itself.
    lease_ms: u64,
    /// So that some dozen calls are about each fresh key.
    fresh_us: u64,
    /// What a call takes.
    haste_us: u64,
}

impl Pace {
    const fn of(fabric: FabricKind) -> Self {
        match fabric {
            FabricKind::Shm | FabricKind::Sim => {
                Self { memory: "512M", lease_ms: 300, fresh_us: 2_000, haste_us: 50 }
            }
            FabricKind::Tcp => Self { memory: "512M", lease_ms: 300, fresh_us: 10_000, haste_us: 200 },
            // On an emulated processor.
            FabricKind::Verbs => Self { memory: "256M", lease_ms: 2_000, fresh_us: 200_000, haste_us: 5_000 },
        }
    }
}

/// A run that went wrong.
#[derive(Debug)]
pub struct Failure {
    /// Why.
    pub trouble: Trouble,
    /// What was done until then.
    pub summary: Summary,
    /// What else was planned.
    pub plan: Plan,
    /// Where everything is that was written.
    pub directory: PathBuf,
}

impl fmt::Display for Failure {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { trouble, summary, plan, directory } = self;
        writeln!(out, "{trouble}\n\n{summary}")?;
        if !plan.is_done() {
            writeln!(out, "not done any more: {plan}")?;
        }
        writeln!(out, "logs: {}", directory.display())?;
        let Summary { fabric, name, seed, .. } = summary;
        write!(
            out,
            "again: SIDESTEP_HISTORIES_SEED={seed:#x} cargo test -p sidestep-tests --test histories -- "
        )?;
        write!(out, "{fabric}::{name}")
    }
}

/// Runs `case` over `fabric` once, and judges what came of it.
///
/// # Errors
/// [`Failure`] if anything was not as it must be.
///
/// # Panics
/// If server or clients can't be started.
pub fn run(fabric: FabricKind, case: &Case, seed: u64) -> Result<Summary, Box<Failure>> {
    let directory = folder(fabric, case, seed);
    let mut dice = Dice::new(seed);
    let calls = scaled(case.calls);
    let mut run = Run {
        plan: Plan::draw(case, calls, &mut dice),
        summary: Summary::new(fabric, case.name, seed),
        directory,
        case,
        calls,
        dice,
        server: None,
        lives: Vec::new(),
        began: Instant::now(),
    };
    let result = run.run();
    let Run { plan, mut summary, directory, began, .. } = run;
    summary.took = began.elapsed();
    match result {
        Ok(()) => {
            // What can't be removed is in nobody's way.
            let _ = std::fs::remove_dir_all(&directory);
            Ok(summary)
        }
        Err(trouble) => Err(Box::new(Failure { trouble, summary, plan, directory })),
    }
}

struct Run<'a> {
    case: &'a Case,
    calls: u64,
    plan: Plan,
    dice: Dice,
    summary: Summary,
    directory: PathBuf,
    /// None only while it is replaced.
    server: Option<Process>,
    /// Incarnations of the region, one after the other.
    lives: Vec<u64>,
    began: Instant,
}

impl Run<'_> {
    fn run(&mut self) -> Result<(), Trouble> {
        let keys = Keys::colliding(&self.serve(0));
        let mut fleet = Fleet::new(self.orders(keys.clone()), self.case.plant);
        let result = self.go_through(&mut fleet);
        self.summary.lives = self.lives.len();
        self.summary.ran = self.began.elapsed();
        // From here on, what went wrong matters more than what can't be written or read then.
        let _ = Evidence::save(&self.directory, &keys, &self.lives);
        let histories = Histories::read(fleet.logs(), &self.lives);
        if let Ok(histories) = &histories {
            self.summary.count(histories);
        }
        result?;
        let histories = histories?;
        self.summary.checked = judge(&histories, &keys, self.lives.len())?;
        check_region(&self.server().client(LONG))?;
        if self.case.measures_capacity {
            let client = self.server().client(LONG);
            empty(&client, histories.keys().into_iter().map(|key| keys.name(key)))?;
            let end = capacity(&client)?;
            drop(client);
            check_region(&self.server().client(LONG))?;
            // The same server, but new.
            self.serve(0);
            let new = capacity(&self.server().client(LONG))?;
            self.summary.capacity = (new, end);
            if end * 1000 < new * CAPACITY_PER_MILLE {
                return Err(Trouble::Leaked { new, end, per_mille: CAPACITY_PER_MILLE });
            }
        }
        Ok(())
    }

    /// All that happens before the histories are judged.
    fn go_through(&mut self, fleet: &mut Fleet) -> Result<(), Trouble> {
        (0..self.case.clients).for_each(|_| fleet.start());
        self.disturb(fleet)?;
        fleet.retire()?;
        let client = self.server().client(LONG);
        let statistics = client.server_statistics().map_err(Trouble::NoLastLook)?;
        self.summary.sessions = statistics.sessions_total;
        self.summary.fenced = statistics.sessions_fenced_total;
        self.summary.granted_bytes = statistics.granted_bytes;
        let keys = Histories::read(fleet.logs(), &self.lives)?.keys();
        self.look_at_all(&client, fleet, &keys)
    }

    /// Starts a server, with an empty region.
    fn serve(&mut self, port: u16) -> Superblock {
        let (fabric, pace) = (self.summary.fabric, Pace::of(self.summary.fabric));
        let lease = pace.lease_ms.to_string();
        let memory = if self.case.memory.is_empty() { pace.memory } else { self.case.memory };
        let mut arguments = vec!["-m", memory];
        if self.case.pauses > 0 {
            arguments.extend(["--lease-ms", &lease, "--grace-ms", &lease]);
        }
        let server =
            Process::logging_kvserver(fabric, port, &arguments, &self.directory.join("kvserver.log"));
        let superblock = server.client(LONG).with_session(|session| session.superblock());
        let superblock = superblock.expect("a server that is ready is joined");
        self.lives.push(superblock.incarnation);
        self.server = Some(server);
        superblock
    }

    fn server(&self) -> &Process {
        self.server.as_ref().expect("it is replaced at once")
    }

    fn orders(&self, keys: Keys) -> Orders {
        let (fabric, pace) = (self.summary.fabric, Pace::of(self.summary.fabric));
        Orders {
            endpoint: format!("{}?fabric={fabric}", self.server().endpoint()),
            directory: self.directory.clone(),
            client: 1,
            sessions: self.case.sessions,
            seed: self.summary.seed,
            keys,
            began_ns: now_ns(),
            fresh_us: pace.fresh_us,
            hasty_per_mille: self.case.hasty_per_mille,
            haste_us: pace.haste_us,
            // Whoever waits for a server that is gone should not do so for the rest of the run.
            patience_ms: if self.case.is_quiet() { LONG.as_millis() as u64 } else { 2_000 },
            calls: 0,
            strict: self.case.is_quiet(),
        }
    }

    /// Lets the clients work until they have made enough calls and all that was planned was done to them.
    fn disturb(&mut self, fleet: &mut Fleet) -> Result<(), Trouble> {
        let pause = Duration::from_millis(Pace::of(self.summary.fabric).lease_ms * 2);
        let (mut records, mut progress) = (0, Instant::now());
        loop {
            fleet.check_running()?;
            let now = fleet.records();
            if now > records {
                (records, progress) = (now, Instant::now());
            } else if progress.elapsed() > STANDSTILL {
                return Err(Trouble::Standstill { seconds: STANDSTILL.as_secs(), records });
            }
            // A call and its return are two records.
            let calls = records / 2;
            let running = fleet.running();
            let all_run = running.len() == fleet.len();
            if calls >= self.calls && self.plan.is_done() && all_run {
                return Ok(());
            }
            self.summary.resumed += fleet.resume(pause);
            match self.plan.due(calls) {
                // Somebody must go on, or the run stands still too.
                Some(act) if act != Act::Pause || running.len() > 1 => {
                    self.act(act, &running, fleet)?;
                    self.plan.did();
                }
                _ => std::thread::sleep(LOOK),
            }
        }
    }

    fn act(&mut self, act: Act, running: &[usize], fleet: &mut Fleet) -> Result<(), Trouble> {
        let victim = |dice: &mut Dice, among: &[usize]| among[dice.below(among.len() as u64) as usize];
        match act {
            Act::Kill(count) => {
                for _ in 0..count {
                    // Also one that stands still.
                    fleet.kill(self.dice.below(fleet.len() as u64) as usize);
                    self.summary.kills += 1;
                }
                (0..count).for_each(|_| fleet.start());
            }
            Act::Pause => {
                fleet.stop(victim(&mut self.dice, running))?;
                self.summary.pauses += 1;
            }
            Act::Cut => {
                fleet.cut(self.dice.below(fleet.len() as u64) as usize);
                self.summary.cuts += 1;
            }
            Act::Restart => {
                let port = self.server().port();
                if let Some(server) = self.server.take() {
                    server.kill();
                }
                self.serve(port);
                self.summary.restarts += 1;
            }
        }
        Ok(())
    }

    /// Reads all keys once more, when nobody changes them any more. These reads are a part of the history.
    fn look_at_all(&self, client: &Client, fleet: &mut Fleet, keys: &BTreeSet<u16>) -> Result<(), Trouble> {
        let orders = Orders { strict: true, ..fleet.orders_for_another() };
        let session = client.session().map_err(Trouble::NoLastLook)?;
        let mut worker = Worker::new(session, 0, &orders).map_err(Trouble::LastLook)?;
        let mut look = |key: &u16| worker.call(Ask::Get, *key, LONG).map(drop);
        keys.iter().try_for_each(&mut look).map_err(Trouble::LastLook)
    }
}

/// fsck of the region that `client` reaches: it must find nothing.
fn check_region(client: &Client) -> Result<(), Trouble> {
    let mut live = Live::new(client.session().map_err(Trouble::NoLastLook)?)?;
    let report = fsck::check(&mut live, Options::default())?;
    if report.is_clean() && report.accounts.is_balanced() {
        return Ok(());
    }
    let findings: Vec<_> = report.findings.iter().take(FINDINGS_TOLD_MAX).map(Finding::to_string).collect();
    Err(Trouble::Unsound { count: report.finding_count(), findings: findings.join("\n  ") })
}

/// A new folder for a run: below `SIDESTEP_HISTORIES_DIR`, or target/histories.
fn folder(fabric: FabricKind, case: &Case, seed: u64) -> PathBuf {
    let base = std::env::var_os("SIDESTEP_HISTORIES_DIR").map_or_else(
        || {
            let own = std::env::current_exe().expect("a program knows where it is");
            own.ancestors().nth(3).expect("target/PROFILE/deps").join("histories")
        },
        PathBuf::from,
    );
    let folder = base.join(format!("{fabric}-{}-{seed:x}-{}", case.name, std::process::id()));
    std::fs::create_dir_all(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    folder
}
