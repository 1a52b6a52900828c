//! How a client behaves: the settings of [`crate::ClientBuilder`].

use std::time::Duration;

use sidestep_common::fabric::{DeviceChoice, Rights};

/// Settings that all sessions of a client share.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    /// Time for connecting, the first time.
    pub(crate) connect_timeout: Duration,
    /// Time for an operation.
    pub(crate) operation_timeout: Duration,
    pub(crate) rights: Rights,
    pub(crate) token: Option<String>,
    pub(crate) name: String,
    pub(crate) device: DeviceChoice,
    /// Values as long as this must be possible, or connecting fails.
    pub(crate) value_bytes_wanted: Option<usize>,
    pub(crate) verbs_in_flight_max: usize,
    pub(crate) buffer_limit_bytes: usize,
    /// Whether the superblock in the region must be the one that the server described.
    pub(crate) check_region: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            // Room for one or two lost messages of the RDMA connection manager, which sends again only after 4.3 s.
            connect_timeout: Duration::from_secs(10),
            operation_timeout: Duration::from_secs(5),
            rights: Rights::ReadWrite,
            token: None,
            name: std::env::args().next().unwrap_or_default(),
            device: DeviceChoice::default(),
            value_bytes_wanted: None,
            // Enough to hide a round trip of some microseconds behind verbs of a tenth of one.
            verbs_in_flight_max: 256,
            // Sixteen of the largest values in flight, or a hundred thousand buckets.
            buffer_limit_bytes: 32 << 20,
            check_region: true,
        }
    }
}
