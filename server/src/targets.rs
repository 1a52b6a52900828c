//! The fabrics that are served: the memory node's side of each.
//!
//! Always true: all targets serve one region and one atomicity domain, as the plan said.

use std::path::Path;
use std::sync::Arc;

use sidestep_common::fabric::shm::ShmTarget;
use sidestep_common::fabric::tcp::TcpTarget;
use sidestep_common::fabric::{Commits, FabricKind, Target};
use sidestep_common::memory::Mapping;

use crate::config::{CommitsChoice, Config};
use crate::transport::{Devices, Plan};

/// The targets of one region.
#[derive(Default)]
pub struct Targets {
    /// Shared memory, if it is served.
    pub shm: Option<Arc<ShmTarget>>,
    /// TCP, if it is served.
    pub tcp: Option<Arc<TcpTarget>>,
    /// RDMA, if it is served.
    verbs: Option<Arc<dyn Target>>,
    /// Who executes the commits of RDMA clients, if it is served.
    commits: Option<Commits>,
}

/// A fabric could not be started.
#[derive(Debug, thiserror::Error)]
#[error("cannot serve {fabric}: {reason}")]
pub struct TargetError {
    /// Which.
    pub fabric: FabricKind,
    /// Why, and the remedy if one is known.
    pub reason: String,
}

impl Targets {
    /// Starts what the plan serves. `socket` is where `shm` clients are let in.
    ///
    /// # Errors
    /// [`TargetError`] names the fabric that failed; what had started has ended.
    pub fn start(
        plan: &Plan,
        mapping: &Arc<Mapping>,
        config: &Config,
        socket: Option<&Path>,
    ) -> Result<Self, TargetError> {
        let mut targets = Self::default();
        if plan.serves(FabricKind::Verbs) {
            let failed = |reason| TargetError { fabric: FabricKind::Verbs, reason };
            let (target, commits) = verbs::start(mapping, config).map_err(failed)?;
            targets.verbs = Some(target);
            targets.commits = Some(commits);
        }
        if plan.serves(FabricKind::Shm)
            && let Some(socket) = socket
        {
            let path = socket.display().to_string();
            targets.shm = Some(Arc::new(ShmTarget::new(Arc::clone(mapping), path)));
        }
        if plan.serves(FabricKind::Tcp) {
            let target = TcpTarget::start(Arc::clone(mapping), config.threads as usize)
                .map_err(|error| TargetError { fabric: FabricKind::Tcp, reason: error.to_string() })?;
            targets.tcp = Some(Arc::new(target));
        }
        Ok(targets)
    }

    /// A card that a test plays.
    #[cfg(test)]
    pub(crate) fn of_card(card: Arc<dyn Target>) -> Self {
        Self { verbs: Some(card), ..Self::default() }
    }

    /// Who executes the commits of RDMA clients, if it is served.
    pub fn commits(&self) -> Option<Commits> {
        self.commits
    }

    /// The card, if one is served: the server itself is its client where words are changed by its atomics.
    pub fn card(&self) -> Option<Arc<dyn Target>> {
        self.verbs.clone()
    }

    /// The target of that kind, if it is served.
    pub fn get(&self, fabric: FabricKind) -> Option<&dyn Target> {
        match fabric {
            FabricKind::Shm => self.shm.as_deref().map(|target| target as &dyn Target),
            FabricKind::Tcp => self.tcp.as_deref().map(|target| target as &dyn Target),
            FabricKind::Verbs => self.verbs.as_deref(),
            FabricKind::Sim => None,
        }
    }

    /// All that are served.
    pub fn all(&self) -> impl Iterator<Item = &dyn Target> {
        [FabricKind::Verbs, FabricKind::Shm, FabricKind::Tcp].into_iter().filter_map(|kind| self.get(kind))
    }
}

impl std::fmt::Debug for Targets {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.all().map(Target::describe)).finish()
    }
}

/// The RDMA devices of this host, judged by whether they can commit as is wished.
pub fn devices(commits: CommitsChoice) -> Devices {
    verbs::devices(commits)
}

#[cfg(not(feature = "verbs"))]
mod verbs {
    use std::sync::Arc;

    use sidestep_common::fabric::{Commits, Target};
    use sidestep_common::memory::Mapping;

    use crate::config::{CommitsChoice, Config};
    use crate::transport::Devices;

    const OBSTACLE: &str = "this kvserver was built without verbs";

    pub(super) fn devices(_: CommitsChoice) -> Devices {
        Devices { found: Vec::new(), obstacle: Some(OBSTACLE.into()) }
    }

    pub(super) fn start(_: &Arc<Mapping>, _: &Config) -> Result<(Arc<dyn Target>, Commits), String> {
        Err(OBSTACLE.into())
    }
}

#[cfg(feature = "verbs")]
mod verbs {
    use std::net::IpAddr;
    use std::sync::Arc;

    use sidestep_common::fabric::verbs::choice::choose;
    use sidestep_common::fabric::verbs::device::{self, DeviceDetails, PortState};
    use sidestep_common::fabric::verbs::{CommitChoice, VerbsOptions, VerbsTarget};
    use sidestep_common::fabric::{Commits, Target};
    use sidestep_common::memory::Mapping;

    use crate::config::{CommitsChoice, Config};
    use crate::transport::Devices;

    pub(super) fn devices(commits: CommitsChoice) -> Devices {
        match device::list() {
            Err(error) => Devices { found: Vec::new(), obstacle: Some(error.to_string()) },
            Ok(devices) => {
                let judge = |device: device::DeviceInfo| {
                    let flaw = match device.details {
                        Ok(details) => flaw(&details, commits),
                        Err(error) => Some(error),
                    };
                    (device.name, flaw)
                };
                Devices { found: devices.into_iter().map(judge).collect(), obstacle: None }
            }
        }
    }

    fn flaw(details: &DeviceDetails, commits: CommitsChoice) -> Option<String> {
        if commits == CommitsChoice::Atomics && !details.limits.atomics.has_atomics() {
            return Some(format!("its remote atomics: {}", details.limits.atomics));
        }
        let active = details.ports.iter().any(|port| port.state == PortState::Active);
        (!active).then(|| "no port is active".to_owned())
    }

    pub(super) fn start(
        mapping: &Arc<Mapping>,
        config: &Config,
    ) -> Result<(Arc<dyn Target>, Commits), String> {
        let options = VerbsOptions {
            device: config.device.clone(),
            address: address(config),
            // librdmacm's ports are not TCP's, except on iWARP, where the control port is taken.
            port: 0,
            responder_depth_max: None,
            commits: match config.commits {
                CommitsChoice::Auto => CommitChoice::Auto,
                CommitsChoice::Atomics => CommitChoice::Atomics,
                CommitsChoice::TwoSided => CommitChoice::TwoSided,
            },
        };
        let target = VerbsTarget::start(Arc::clone(mapping), &options).map_err(|error| error.to_string())?;
        let commits = target.commits();
        Ok((Arc::new(target), commits))
    }

    /// The address that clients know, if a card carries it. Else the card's own: the control channel may well run
    /// over another network than the data.
    fn address(config: &Config) -> Option<IpAddr> {
        let devices = device::list().ok()?;
        let advertised = config.advertise.as_deref().and_then(|host| host.parse().ok());
        let listened = Some(config.listen.ip()).filter(|address| !address.is_unspecified());
        [advertised, listened]
            .into_iter()
            .flatten()
            .find(|address| choose(&devices, &config.device, Some(*address)).is_ok())
    }
}
