//! From options to a client.
//!
//! Always true: a command that only reads asks for no more than reading; the memory node then keeps its writes out.

use sidestep_client::{Client, DeviceChoice, FabricKind};

use crate::arguments::{Common, DEFAULT_ENDPOINT};
use crate::failure::Failure;

/// What a command is going to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Purpose {
    /// It reads.
    Read,
    /// It reads, also where the region is damaged.
    Inspect,
    /// It changes keys.
    Change,
}

/// The endpoint as given, or the default.
pub(crate) fn endpoint(common: &Common) -> &str {
    common.endpoint.as_deref().unwrap_or(DEFAULT_ENDPOINT)
}

/// Connects as `common` says.
pub(crate) fn connect(common: &Common, purpose: Purpose) -> Result<Client, Failure> {
    let mut builder = Client::builder(endpoint(common))?
        .name("kvctl")
        .connect_timeout(common.timeout)
        .timeout(common.timeout)
        .device(device(common));
    if let Some(fabric) = common.fabric.kind() {
        builder = builder.fabric(fabric);
    }
    if let Some(token) = &common.token {
        builder = builder.token(token);
    }
    builder = match purpose {
        Purpose::Read => builder.read_only(),
        Purpose::Inspect => builder.damaged_region(),
        Purpose::Change => builder,
    };
    Ok(builder.connect()?)
}

/// The device as given.
pub(crate) fn device(common: &Common) -> DeviceChoice {
    DeviceChoice { device: common.device.clone(), port: common.ib_port, gid_index: common.gid_index }
}

/// Over which fabric, in words; descriptions may begin with its name already.
pub(crate) fn over(fabric: FabricKind, description: &str) -> String {
    if description.starts_with(fabric.name()) {
        format!("over {description}")
    } else {
        format!("over {fabric}: {description}")
    }
}
