//! What doctor makes of the facts.
//!
//! Always true: pure; every warning and everything wrong has a remedy. *Wrong* is what will make a fabric fail that
//! this host seems meant for, or that the user asked for; what merely is not there, or is slow, is a warning.

use serde::Serialize;
use sidestep_client::FabricKind;

use super::facts::{
    Card, CardDetails, Cards, Choice, Facts, HugePages, Loopback, Memlock, Outcome, Port, Server,
    SharedMemory,
};
use crate::connection::over;
use crate::stats::bytes;

/// How bad it is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Level {
    /// Fine.
    Ok,
    /// Works, but slower or not for all.
    Warning,
    /// Will fail.
    Wrong,
}

/// One line of doctor.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub(crate) struct Check {
    /// What was checked.
    pub(crate) check: &'static str,
    /// How bad it is.
    pub(crate) level: Level,
    /// What was found.
    pub(crate) finding: String,
    /// What to do.
    pub(crate) remedy: Option<String>,
}

fn ok(check: &'static str, finding: impl Into<String>) -> Check {
    Check { check, level: Level::Ok, finding: finding.into(), remedy: None }
}

fn warning(check: &'static str, finding: impl Into<String>, remedy: impl Into<String>) -> Check {
    Check { check, level: Level::Warning, finding: finding.into(), remedy: Some(remedy.into()) }
}

fn wrong(check: &'static str, finding: impl Into<String>, remedy: impl Into<String>) -> Check {
    Check { check, level: Level::Wrong, finding: finding.into(), remedy: Some(remedy.into()) }
}

/// Local buffers of one session, registered with the card.
const SESSION_BYTES: u64 = 32 << 20;

/// Less memory than this makes no useful region.
const MEMORY_BYTES_LOW: u64 = 256 << 20;

/// What a card's packets carry at the most; smaller ones cost packets, not correctness.
const MTU_BYTES_BEST: u32 = 4096;

/// Judges all facts, in the order in which one would mend things.
pub(crate) fn judge(facts: &Facts) -> Vec<Check> {
    let mut checks = Vec::new();
    let has_cards = judge_cards(facts, &mut checks);
    checks.push(judge_memlock(facts.memlock, has_cards));
    checks.extend(judge_huge_pages(&facts.huge_pages));
    checks.extend(facts.memory.as_ref().map(|(available, limit)| judge_memory(*available, limit)));
    checks.extend(judge_shared_memory(&facts.shared_memory));
    checks.extend(facts.loopbacks.iter().map(judge_loopback));
    checks.extend(facts.server.as_ref().map(judge_server));
    checks
}

/// Judges devices, ports and the choice; says whether there is a device that can be opened.
fn judge_cards(facts: &Facts, checks: &mut Vec<Check>) -> bool {
    let named = facts.wanted.device.as_deref();
    // Without a card there is nothing to mend, unless one was asked for.
    let absent = |finding: String, remedy: &str| match named {
        None => warning("RDMA device", format!("{finding}; shm and tcp only"), remedy),
        Some(name) => wrong("RDMA device", format!("{finding}, but {name} was asked for"), remedy),
    };
    let (devices, choice) = match &facts.cards {
        Cards::NotBuilt => {
            let remedy = "build with the feature `verbs` (it is on by default)";
            checks.push(absent("this kvctl has no verbs built in".into(), remedy));
            return false;
        }
        Cards::Unlisted { reason } => {
            let remedy = "apt-get install libibverbs1 librdmacm1 ibverbs-providers";
            checks.push(absent(reason.clone(), remedy));
            return false;
        }
        Cards::Listed { devices, .. } if devices.is_empty() => {
            let remedy =
                "load the card's driver; for Soft-RoCE: `rdma link add rxe0 type rxe netdev INTERFACE`";
            checks.push(absent("none".into(), remedy));
            return false;
        }
        Cards::Listed { devices, choice } => (devices, choice),
    };
    let usable: Vec<(&str, &CardDetails)> = devices.iter().filter_map(usable).collect();
    for device in devices {
        if let Outcome::Error(reason) = &device.details {
            let finding = format!("{} cannot be opened: {reason}", device.name);
            let remedy =
                "give the user access to /dev/infiniband/uverbs* (group rdma, or --device in a container)";
            // A bad device among good ones hurts only those who ask for it.
            let hurts = usable.is_empty() || named == Some(&device.name);
            checks.push(if hurts { wrong } else { warning }("RDMA device", finding, remedy));
        }
    }
    let any_active = usable.iter().any(|(_, details)| details.ports.iter().any(|port| port.active));
    let chosen = match choice {
        Outcome::Ok(choice) => Some(choice),
        Outcome::Error(_) => None,
    };
    for (name, details) in &usable {
        let is_chosen = chosen.is_some_and(|choice| choice.device == *name);
        checks.push(judge_atomics(name, details, is_chosen || chosen.is_none()));
        for port in &details.ports {
            checks.push(judge_port(name, port, any_active));
            if port.active {
                checks.push(judge_gids(name, port));
            }
        }
    }
    if !usable.is_empty() {
        checks.push(judge_choice(choice, &usable));
    }
    if let Some((choice, port)) = chosen.and_then(|choice| Some((choice, chosen_port(choice, &usable)?))) {
        checks.push(judge_mtu(choice, port));
    }
    !usable.is_empty()
}

fn usable(card: &Card) -> Option<(&str, &CardDetails)> {
    match &card.details {
        Outcome::Ok(details) => Some((&card.name, details)),
        Outcome::Error(_) => None,
    }
}

fn chosen_port<'a>(choice: &Choice, usable: &[(&str, &'a CardDetails)]) -> Option<&'a Port> {
    let (_, details) = usable.iter().find(|(name, _)| *name == choice.device)?;
    details.ports.iter().find(|port| port.number == choice.port)
}

fn judge_atomics(name: &str, details: &CardDetails, matters: bool) -> Check {
    let depth = match details.responder_depth {
        0 => "READs in flight not limited by the card".to_owned(),
        depth => format!("{depth} READs in flight a queue pair"),
    };
    let finding = format!("{name}: atomics {}; {depth}", details.atomics);
    if details.has_atomics {
        return ok("atomics", finding);
    }
    let remedy = "commits would be two-sided, the server's CPU executing each CAS: use a card with atomics (--device) \
                  where that is not wanted";
    if matters { warning("atomics", finding, remedy) } else { ok("atomics", finding) }
}

fn judge_port(name: &str, port: &Port, any_active: bool) -> Check {
    let finding = format!("{name} port {}: {}", port.number, port.state);
    if port.active {
        return ok("port", finding);
    }
    let remedy = if port.ethernet {
        "bring its network interface up (`ip link set INTERFACE up`) and check the cable; `rdma link` shows which it is"
    } else {
        "check the cable, and that a subnet manager (opensm) runs in the fabric"
    };
    // A second port is often left unplugged.
    if any_active { warning("port", finding, remedy) } else { wrong("port", finding, remedy) }
}

fn judge_gids(name: &str, port: &Port) -> Check {
    let mut finding = format!("{name} port {}:", port.number);
    for entry in &port.gids {
        let interface = entry.interface.as_deref().unwrap_or("-");
        finding.push_str(&format!("\n{:>3}  {}  {}  {interface}", entry.index, entry.gid, entry.kind));
    }
    let remedy = "give its network interface an address (`ip addr add ADDRESS/LENGTH dev INTERFACE`)";
    if port.gids.is_empty() {
        finding.push_str(" no entry");
        return warning("GID table", finding, remedy);
    }
    // InfiniBand addresses are not in this table.
    if port.ethernet && port.gids.iter().all(|entry| entry.link_local) {
        return warning("GID table", format!("{finding}\nonly link-local entries"), remedy);
    }
    ok("GID table", finding)
}

fn judge_choice(choice: &Outcome<Choice>, usable: &[(&str, &CardDetails)]) -> Check {
    let choice = match choice {
        Outcome::Ok(choice) => choice,
        Outcome::Error(reason) => {
            let mut ports = usable.iter().flat_map(|(_, details)| &details.ports);
            if ports.any(|port| port.active && !port.ethernet) {
                let remedy = "for InfiniBand, give the server the address of an IPoIB interface to listen on";
                return warning("choice", reason, remedy);
            }
            let remedy = "bring a port up and give its interface an address, or correct --device, --ib-port, --gid-index";
            return wrong("choice", reason, remedy);
        }
    };
    let entry = chosen_port(choice, usable)
        .and_then(|port| port.gids.iter().find(|entry| Some(entry.index) == choice.gid_index));
    let mut finding = format!("{} port {}", choice.device, choice.port);
    if let Some(index) = choice.gid_index {
        finding.push_str(&format!(", GID {index}"));
    }
    finding.push_str(&format!(": {}", choice.address));
    let Some(entry) = entry else { return ok("choice", finding) };
    finding.push_str(&format!(" ({})", entry.kind));
    if entry.kind == "RoCE v2" {
        return ok("choice", finding);
    }
    let remedy =
        "RoCE v1 does not cross routers, and both sides must use it: prefer a RoCE v2 entry (--gid-index)";
    warning("choice", finding, remedy)
}

fn judge_mtu(choice: &Choice, port: &Port) -> Check {
    let finding = format!("{} port {}: {} bytes", choice.device, choice.port, port.mtu_bytes);
    if port.mtu_bytes >= MTU_BYTES_BEST {
        return ok("MTU", finding);
    }
    let remedy = if port.ethernet {
        "works, with more packets for large values; for 4096 set the interfaces and switches to 4200 or more \
         (`ip link set INTERFACE mtu 9000`), on both sides"
    } else {
        "works, with more packets for large values; the subnet manager sets the MTU"
    };
    warning("MTU", finding, remedy)
}

fn judge_memlock(memlock: Memlock, has_cards: bool) -> Check {
    let Some(limit) = memlock.limit_bytes else { return ok("memlock", "unlimited") };
    let finding = format!("{} may be locked (RLIMIT_MEMLOCK)", bytes(limit));
    if memlock.exempt {
        return ok("memlock", format!("{finding}, and CAP_IPC_LOCK exempts this process"));
    }
    if !has_cards {
        return ok("memlock", format!("{finding}; it matters for verbs only"));
    }
    let remedy = "`ulimit -l unlimited` (limits.conf, after a new login), LimitMEMLOCK=infinity in a systemd unit, \
                  --ulimit memlock=-1 for a container";
    if limit < SESSION_BYTES {
        let finding = format!("{finding}, a session's buffers need up to {}", bytes(SESSION_BYTES));
        return wrong("memlock", finding, remedy);
    }
    let finding = format!("{finding}: {} sessions; a server needs its region's size", limit / SESSION_BYTES);
    warning("memlock", finding, remedy)
}

fn judge_huge_pages(pools: &[HugePages]) -> Vec<Check> {
    let reserved: Vec<&HugePages> = pools.iter().filter(|pool| pool.total > 0).collect();
    let remedy = "works with normal pages, slower on large regions; for a region of 1 GiB: \
                  `sysctl vm.nr_hugepages=512` (early, before memory is fragmented)";
    if reserved.is_empty() {
        let finding = if pools.is_empty() { "this kernel has none" } else { "none reserved" };
        return vec![warning("huge pages", finding, remedy)];
    }
    let judge = |pool: &&HugePages| {
        let finding = format!("{} of {} free, {} each", pool.free, pool.total, bytes(pool.page_bytes));
        if pool.free == 0 { warning("huge pages", finding, remedy) } else { ok("huge pages", finding) }
    };
    reserved.iter().map(judge).collect()
}

fn judge_memory(available: u64, limit: &str) -> Check {
    let finding = format!("{} available; the limit is {limit}", bytes(available));
    if available >= MEMORY_BYTES_LOW {
        return ok("memory", finding);
    }
    warning("memory", finding, "free some, raise the limit, or start the server with a small region (-m)")
}

fn judge_shared_memory(shared: &SharedMemory) -> Vec<Check> {
    let note = "regions are memory files (memfd), which this does not limit";
    let dev_shm = match shared.dev_shm {
        None => format!("not mounted; {note}"),
        Some((size, free)) => format!("{}, {} free; {note}", bytes(size), bytes(free)),
    };
    let region = match &shared.region {
        Outcome::Ok(description) => ok("memfd", format!("a small region could be made: {description}")),
        Outcome::Error(reason) => {
            let remedy =
                "allow memfd_create with seals (seccomp profile of the container), and enough memory";
            wrong("memfd", format!("a region cannot be made: {reason}"), remedy)
        }
    };
    vec![ok("/dev/shm", dev_shm), region]
}

fn judge_loopback(loopback: &Loopback) -> Check {
    let fabric = loopback.fabric;
    match &loopback.outcome {
        Outcome::Ok(times) => {
            let micros = |ns: u64| ns as f64 / 1000.0;
            let (read, cas) = (micros(times.read_ns), micros(times.cas_ns));
            ok("loopback", format!("{fabric}: READ of 64 bytes {read:.1} µs, CAS {cas:.1} µs"))
        }
        Outcome::Error(reason) => {
            let remedy = match fabric {
                FabricKind::Verbs => {
                    "mend what is above first; then `rping -s` and `rping -c -a ADDRESS` on this host"
                }
                FabricKind::Shm => "allow Unix sockets with SCM_RIGHTS, and pidfd_open, for this process",
                _ => "allow TCP to 127.0.0.1",
            };
            wrong("loopback", format!("{fabric}: {reason}"), remedy)
        }
    }
}

fn judge_server(server: &Server) -> Check {
    let endpoint = &server.endpoint;
    match &server.outcome {
        Outcome::Error(reason) => wrong(
            "server",
            reason.clone(),
            format!(
                "if it refuses, the reason says what to change; if it cannot be reached, check that kvserver runs at \
                 {endpoint} (`systemctl status kvserver`), and the ports and firewalls between"
            ),
        ),
        Outcome::Ok(answer) => {
            let finding = format!(
                "{endpoint} runs version {}, {}; answers in {} µs",
                answer.version,
                over(answer.fabric, &answer.connection),
                answer.ping_us
            );
            let own = env!("CARGO_PKG_VERSION");
            if answer.version == own {
                return ok("server", finding);
            }
            warning("server", finding, format!("this kvctl is version {own}: install the same on both sides"))
        }
    }
}
