//! What can go wrong on the way to a working queue pair.
//!
//! Always true: an error names the thing that failed, the value and the limit where there are any, and the remedy
//! where it is known. None of them leaves anything behind.

use std::io;

use super::choice::ChoiceError;
use super::device::AtomicCapability;
use super::memlock::MemlockError;
use crate::fabric::{ConnectError, FabricKind};

/// Why verbs could not be had. See the module.
#[derive(Clone, Debug, thiserror::Error)]
pub enum VerbsError {
    /// A library is not installed.
    #[error("{library} could not be loaded ({reason}); to use verbs: apt-get install {package}")]
    LibraryMissing {
        /// The library.
        library: &'static str,
        /// Debian's package that has it.
        package: &'static str,
        /// What the loader said.
        reason: String,
    },
    /// A library is too old.
    #[error("{library} has no {symbol} ({reason}); to use verbs, bring the package {package} up to date")]
    SymbolMissing {
        /// The function.
        symbol: &'static str,
        /// The library.
        library: &'static str,
        /// Debian's package that has it.
        package: &'static str,
        /// What the loader said.
        reason: String,
    },
    /// No device, port or GID fits.
    #[error(transparent)]
    Choice(#[from] ChoiceError),
    /// The limit on locked memory is too low.
    #[error(transparent)]
    Memlock(#[from] MemlockError),
    /// The card does no atomics.
    #[error(
        "device {device} has no remote atomics (capability {capability}), and one-sided commits need \
         compare-and-swap; use a device with atomics, --commits two-sided (the server's CPU), or --transport tcp"
    )]
    NoAtomics {
        /// The device.
        device: String,
        /// What it says of its atomics.
        capability: AtomicCapability,
    },
    /// The card's atomics do not do what they must.
    #[error("device {device} says it has atomics, but {what} returned {found:#x} instead of {expected:#x}")]
    WrongAtomics {
        /// The device.
        device: String,
        /// Which check.
        what: &'static str,
        /// What came back.
        found: u64,
        /// What should have.
        expected: u64,
    },
    /// librdmacm took another device or port than the one chosen.
    #[error("{address} was to be on {wanted}, but librdmacm takes {found} for it")]
    OtherDevice {
        /// The address.
        address: String,
        /// As chosen.
        wanted: String,
        /// As found.
        found: String,
    },
    /// Memory that no card may be given.
    #[error("memory of {bytes} bytes at {base:#x} does not consist of whole pages of {page_bytes} bytes")]
    NotPages {
        /// Its address.
        base: usize,
        /// Its length.
        bytes: u64,
        /// A page's length.
        page_bytes: usize,
    },
    /// A call failed.
    #[error("{call}: {reason}")]
    Call {
        /// Which, and on what.
        call: String,
        /// The cause.
        reason: String,
        /// The operating system's number for it; 0 if it gave none.
        errno: i32,
    },
    /// A call did not finish in time.
    #[error("timed out while {doing}")]
    Timeout {
        /// What was waited for.
        doing: &'static str,
    },
    /// The other side said no.
    #[error("refused: {reason}")]
    Refused {
        /// Why.
        reason: String,
    },
}

impl VerbsError {
    /// A call that left its reason in `errno`.
    pub(super) fn last_os(call: impl Into<String>) -> Self {
        Self::os(call, io::Error::last_os_error())
    }

    /// A call that returned an error number.
    pub(super) fn number(call: impl Into<String>, errno: i32) -> Self {
        Self::os(call, io::Error::from_raw_os_error(errno))
    }

    fn os(call: impl Into<String>, error: io::Error) -> Self {
        Self::Call { call: call.into(), reason: error.to_string(), errno: error.raw_os_error().unwrap_or(0) }
    }
}

impl From<VerbsError> for ConnectError {
    fn from(error: VerbsError) -> Self {
        let kind = FabricKind::Verbs;
        match error {
            VerbsError::Timeout { doing } => Self::Timeout { kind, doing },
            VerbsError::Refused { reason } => Self::Refused { kind, reason },
            VerbsError::Call { errno, .. } => {
                let source = io::Error::new(io::Error::from_raw_os_error(errno).kind(), error);
                Self::Io { kind, doing: "making a connection", source }
            }
            other => Self::Unavailable { kind, reason: other.to_string() },
        }
    }
}
