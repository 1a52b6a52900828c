//! RDMA devices, as [`super::facts`] wants them: a thin adapter, with nothing to decide.

use sidestep_client::DeviceChoice;

use super::facts::Cards;

/// Without verbs built in there is nothing to look at.
#[cfg(not(feature = "verbs"))]
pub(super) fn look(_wanted: &DeviceChoice) -> Cards {
    Cards::NotBuilt
}

/// All devices, and what would be chosen of them.
#[cfg(feature = "verbs")]
pub(super) fn look(wanted: &DeviceChoice) -> Cards {
    use sidestep_client::common::fabric::verbs::{choice, device};

    use super::facts::{Choice, Outcome};

    let devices = match device::list() {
        Ok(devices) => devices,
        Err(error) => return Cards::Unlisted { reason: error.to_string() },
    };
    let choice = match choice::choose(&devices, wanted, None) {
        Ok(chosen) => Outcome::Ok(Choice {
            device: chosen.device,
            port: chosen.port,
            gid_index: chosen.gid_index,
            address: chosen.address.to_string(),
        }),
        // The table that comes with the problem is shown anyway.
        Err(error) => Outcome::Error(error.problem),
    };
    Cards::Listed { devices: devices.into_iter().map(adapt::card).collect(), choice }
}

#[cfg(feature = "verbs")]
mod adapt {
    use sidestep_client::common::fabric::verbs::device;

    use crate::doctor::facts::{Card, CardDetails, GidEntry, Outcome, Port};

    pub(super) fn card(card: device::DeviceInfo) -> Card {
        let details = match card.details {
            Ok(details) => Outcome::Ok(CardDetails {
                atomics: details.limits.atomics.to_string(),
                has_atomics: details.limits.atomics.has_atomics(),
                responder_depth: details.limits.responder_depth,
                ports: details.ports.into_iter().map(port).collect(),
            }),
            Err(reason) => Outcome::Error(reason),
        };
        Card { name: card.name, details }
    }

    fn port(port: device::PortInfo) -> Port {
        Port {
            number: port.number,
            state: port.state.to_string(),
            active: port.state == device::PortState::Active,
            ethernet: port.link_layer == device::LinkLayer::Ethernet,
            mtu_bytes: port.active_mtu.bytes(),
            gids: port.gids.into_iter().map(gid).collect(),
        }
    }

    fn gid(entry: device::GidEntry) -> GidEntry {
        GidEntry {
            index: entry.index,
            gid: entry.gid.to_string(),
            kind: entry.kind.to_string(),
            link_local: entry.gid.is_link_local(),
            interface: entry.interface,
        }
    }
}
