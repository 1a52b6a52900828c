//! The fabrics that are served: the memory node's side of each.
//!
//! Always true: all targets serve one region and one atomicity domain, as the plan said.

use std::path::Path;
use std::sync::Arc;

use sidestep_common::fabric::shm::ShmTarget;
use sidestep_common::fabric::tcp::TcpTarget;
use sidestep_common::fabric::{FabricKind, Target};
use sidestep_common::memory::Mapping;

use crate::config::Config;
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
            targets.verbs = Some(verbs::start(mapping, config).map_err(failed)?);
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

/// The RDMA devices of this host.
pub fn devices() -> Devices {
    verbs::devices()
}

#[cfg(not(feature = "verbs"))]
mod verbs {
    use std::sync::Arc;

    use sidestep_common::fabric::Target;
    use sidestep_common::memory::Mapping;

    use crate::config::Config;
    use crate::transport::Devices;

    const OBSTACLE: &str = "this kvserver was built without verbs";

    pub(super) fn devices() -> Devices {
        Devices { found: Vec::new(), obstacle: Some(OBSTACLE.into()) }
    }

    pub(super) fn start(_: &Arc<Mapping>, _: &Config) -> Result<Arc<dyn Target>, String> {
        Err(OBSTACLE.into())
    }
}

#[cfg(feature = "verbs")]
mod verbs {
    use std::net::IpAddr;
    use std::sync::Arc;

    use sidestep_common::fabric::Target;
    use sidestep_common::fabric::verbs::choice::choose;
    use sidestep_common::fabric::verbs::device::{self, DeviceDetails, PortState};
    use sidestep_common::fabric::verbs::{VerbsOptions, VerbsTarget};
    use sidestep_common::memory::Mapping;

    use crate::config::Config;
    use crate::transport::Devices;

    pub(super) fn devices() -> Devices {
        match device::list() {
            Err(error) => Devices { found: Vec::new(), obstacle: Some(error.to_string()) },
            Ok(devices) => {
                let judge = |device: device::DeviceInfo| {
                    let flaw = match device.details {
                        Ok(details) => flaw(&details),
                        Err(error) => Some(error),
                    };
                    (device.name, flaw)
                };
                Devices { found: devices.into_iter().map(judge).collect(), obstacle: None }
            }
        }
    }

    fn flaw(details: &DeviceDetails) -> Option<String> {
        if !details.limits.atomics.has_atomics() {
            return Some(format!("its remote atomics: {}", details.limits.atomics));
        }
        let active = details.ports.iter().any(|port| port.state == PortState::Active);
        (!active).then(|| "no port is active".to_owned())
    }

    pub(super) fn start(mapping: &Arc<Mapping>, config: &Config) -> Result<Arc<dyn Target>, String> {
        let options = VerbsOptions {
            device: config.device.clone(),
            address: address(config),
            // librdmacm's ports are not TCP's, except on iWARP, where the control port is taken.
            port: 0,
            responder_depth_max: None,
        };
        let target = VerbsTarget::start(Arc::clone(mapping), &options).map_err(|error| error.to_string())?;
        Ok(Arc::new(target))
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
