//! Which fabrics to serve, and why.
//!
//! Always true: a region serves one atomicity domain, so a plan has `verbs` alone, or `shm` and `tcp` in any
//! combination; each fabric that is served or not has a reason that is told to the operator. A fabric that was
//! asked for by name is served, or the server does not start: nobody who asked for RDMA is given TCP.

use sidestep_common::fabric::{Commits, DeviceChoice, FabricKind};
use sidestep_common::layout::AtomicityDomain;

use crate::config::Transport;

/// What the host has in RDMA devices.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Devices {
    /// Each device: its name, and nothing if it is usable or else why not.
    pub found: Vec<(String, Option<String>)>,
    /// Why there can be none at all, if there is a reason.
    pub obstacle: Option<String>,
}

impl Devices {
    fn first_usable(&self) -> Option<&str> {
        self.found.iter().find(|(_, flaw)| flaw.is_none()).map(|(name, _)| name.as_str())
    }

    /// The list, for messages.
    pub fn describe(&self) -> String {
        if self.found.is_empty() {
            return match &self.obstacle {
                Some(obstacle) => format!("none ({obstacle})"),
                None => "none".into(),
            };
        }
        let one = |(name, flaw): &(String, Option<String>)| match flaw {
            Some(flaw) => format!("{name} ({flaw})"),
            None => format!("{name} (usable)"),
        };
        self.found.iter().map(one).collect::<Vec<_>>().join(", ")
    }
}

/// A fabric, whether it is served, and why.
#[derive(Clone, PartialEq, Eq, Debug, serde::Serialize)]
pub struct Reason {
    /// Which fabric.
    pub fabric: FabricKind,
    /// Whether it is served.
    pub served: bool,
    /// Why, or why not.
    pub reason: String,
}

/// The fabrics to serve.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Plan {
    reasons: Vec<Reason>,
    /// Who executes the commits of `verbs`.
    commits: Commits,
}

/// The wish can't be met.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum PlanError {
    /// RDMA was asked for, and there is none.
    #[error("transport verbs needs a usable RDMA device; found: {found}")]
    NoDevice {
        /// What was found.
        found: String,
    },
    /// A device was asked for by name, and it isn't there or can't be used.
    #[error("there is no usable RDMA device `{device}`; found: {found}")]
    NoSuchDevice {
        /// The name.
        device: String,
        /// What was found.
        found: String,
    },
}

impl Plan {
    /// Decides.
    ///
    /// # Errors
    /// [`PlanError`] if a fabric or device was named that can't be had.
    pub fn choose(wish: Transport, choice: &DeviceChoice, devices: &Devices) -> Result<Self, PlanError> {
        let by_name = format!("transport {wish} was asked for");
        match wish {
            Transport::Tcp => Ok(Self::of(&[
                (FabricKind::Verbs, false, &by_name),
                (FabricKind::Shm, false, &by_name),
                (FabricKind::Tcp, true, &by_name),
            ])),
            Transport::Shm => Ok(Self::of(&[
                (FabricKind::Verbs, false, &by_name),
                (FabricKind::Shm, true, &by_name),
                (FabricKind::Tcp, false, &by_name),
            ])),
            Transport::Verbs | Transport::Auto => {
                if let Some(device) = &choice.device
                    && !devices.found.iter().any(|(name, flaw)| name == device && flaw.is_none())
                {
                    let found = devices.describe();
                    return Err(PlanError::NoSuchDevice { device: device.clone(), found });
                }
                match devices.first_usable() {
                    Some(first) => {
                        let device = choice.device.as_deref().unwrap_or(first);
                        let reason = format!("{device} is a usable RDMA device");
                        let other_domain = "not beside verbs: its atomics don't mix with an RDMA card's";
                        Ok(Self::of(&[
                            (FabricKind::Verbs, true, &reason),
                            (FabricKind::Shm, false, other_domain),
                            (FabricKind::Tcp, false, other_domain),
                        ]))
                    }
                    None if wish == Transport::Verbs => {
                        Err(PlanError::NoDevice { found: devices.describe() })
                    }
                    None => {
                        let reason = format!("no usable RDMA device; found: {}", devices.describe());
                        Ok(Self::without_verbs(&reason))
                    }
                }
            }
        }
    }

    /// What `auto` takes when verbs can't be had after all.
    pub fn without_verbs(reason: &str) -> Self {
        Self::of(&[
            (FabricKind::Verbs, false, reason),
            (FabricKind::Shm, true, "for clients of this host, without verbs"),
            (FabricKind::Tcp, true, "for clients of other hosts, without verbs"),
        ])
    }

    /// The same without `shm`: a region that is kept is mapped by nobody who could outlive the server.
    pub fn of_kept_region(mut self) -> Self {
        for reason in
            self.reasons.iter_mut().filter(|reason| reason.fabric == FabricKind::Shm && reason.served)
        {
            reason.served = false;
            reason.reason =
                "not from a region that is kept: a client's mapping would outlive the server".into();
        }
        self
    }

    fn of(reasons: &[(FabricKind, bool, &str)]) -> Self {
        let reason = |&(fabric, served, reason): &_| Reason { fabric, served, reason: String::from(reason) };
        Self { reasons: reasons.iter().map(reason).collect(), commits: Commits::Atomics }
    }

    /// Whether the plan serves that fabric.
    pub fn serves(&self, fabric: FabricKind) -> bool {
        self.reasons.iter().any(|reason| reason.fabric == fabric && reason.served)
    }

    /// The same plan, once it is known who executes the commits of `verbs`. Two-sided ones are said wherever the plan is.
    pub fn with_commits(mut self, commits: Commits) -> Self {
        self.commits = commits;
        if self.has_two_sided_commits() {
            for reason in &mut self.reasons {
                match reason.fabric {
                    FabricKind::Verbs => {
                        reason.reason.push_str(&format!("; commits: {}", commits.describe()))
                    }
                    _ => reason.reason = "not beside verbs".into(),
                }
            }
        }
        self
    }

    /// Who executes commits, for people.
    pub fn commits(&self) -> &'static str {
        if self.serves(FabricKind::Verbs) { self.commits.describe() } else { "CPU atomics" }
    }

    /// Whether this server's CPU executes each commit of `verbs`.
    pub fn has_two_sided_commits(&self) -> bool {
        self.serves(FabricKind::Verbs) && matches!(self.commits, Commits::TwoSided { .. })
    }

    /// Whose atomics the region obeys.
    pub fn domain(&self) -> AtomicityDomain {
        if self.serves(FabricKind::Verbs) && !self.has_two_sided_commits() {
            AtomicityDomain::Nic
        } else {
            AtomicityDomain::Cpu
        }
    }

    /// Every fabric with its reason.
    pub fn reasons(&self) -> &[Reason] {
        &self.reasons
    }

    /// A line for people.
    pub fn describe(&self) -> String {
        let served = self.reasons.iter().filter(|reason| reason.served);
        let names: Vec<_> = served.map(|reason| reason.fabric.name()).collect();
        let names = names.join("+");
        if self.has_two_sided_commits() { format!("{names} (commits: {})", self.commits()) } else { names }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn served(plan: &Plan) -> Vec<FabricKind> {
        plan.reasons().iter().filter(|reason| reason.served).map(|reason| reason.fabric).collect()
    }

    fn devices(found: &[(&str, Option<&str>)]) -> Devices {
        let found = found.iter().map(|(name, flaw)| ((*name).into(), flaw.map(Into::into))).collect();
        Devices { found, obstacle: None }
    }

    #[test]
    fn auto_takes_verbs_where_there_is_a_device_and_else_shm_and_tcp() {
        let any = DeviceChoice::default();
        // A bad device does not hide a good one.
        let with = devices(&[("bad0", Some("port 1 is down")), ("rxe0", None)]);
        let plan = Plan::choose(Transport::Auto, &any, &with).unwrap();
        assert_eq!(served(&plan), [FabricKind::Verbs]);
        assert_eq!(plan.domain(), AtomicityDomain::Nic);
        assert!(plan.reasons()[0].reason.contains("rxe0"));
        for without in [devices(&[]), devices(&[("bad0", Some("port 1 is down"))])] {
            let plan = Plan::choose(Transport::Auto, &any, &without).unwrap();
            assert_eq!(served(&plan), [FabricKind::Shm, FabricKind::Tcp]);
            assert_eq!(plan.domain(), AtomicityDomain::Cpu);
        }
        assert_eq!(served(&Plan::choose(Transport::Shm, &any, &with).unwrap()), [FabricKind::Shm]);
        assert_eq!(served(&Plan::choose(Transport::Tcp, &any, &with).unwrap()), [FabricKind::Tcp]);
    }

    /// The CPU executes commits, so the region is in its domain; and everybody who asks is told.
    #[test]
    fn two_sided_commits_are_said_and_change_the_domain() {
        let plan =
            || Plan::choose(Transport::Auto, &DeviceChoice::default(), &devices(&[("siw0", None)])).unwrap();
        let plain = plan().with_commits(Commits::Atomics);
        assert_eq!((plain.domain(), plain.describe()), (AtomicityDomain::Nic, "verbs".into()));
        let two_sided = plan().with_commits(Commits::TwoSided { version: 1, depth: 16 });
        assert_eq!(two_sided.domain(), AtomicityDomain::Cpu);
        assert!(two_sided.describe().contains("the server's CPU executes each CAS"));
        assert!(
            two_sided.reasons()[0].reason.ends_with("commits: two-sided, the server's CPU executes each CAS")
        );
    }

    #[test]
    fn what_is_named_is_served_or_refused_with_what_was_found() {
        let any = DeviceChoice::default();
        let error = Plan::choose(Transport::Verbs, &any, &devices(&[])).unwrap_err().to_string();
        assert!(error.ends_with("found: none"), "{error}");
        let down = devices(&[("bad0", Some("port 1 is down"))]);
        let error = Plan::choose(Transport::Verbs, &any, &down).unwrap_err().to_string();
        assert!(error.contains("bad0 (port 1 is down)"), "{error}");
        let named = DeviceChoice { device: Some("nosuch".into()), ..any };
        for wish in [Transport::Verbs, Transport::Auto] {
            let error = Plan::choose(wish, &named, &devices(&[("rxe0", None)])).unwrap_err().to_string();
            assert!(error.contains("`nosuch`") && error.contains("rxe0 (usable)"), "{error}");
        }
    }
}
