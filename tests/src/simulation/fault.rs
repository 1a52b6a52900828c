//! What can befall a client, its connection or its node.
//!
//! Always true: everything here can happen on a real network and a real host. (A duplicated WRITE or CAS within one
//! connection can't, and is not here.)

/// Something that goes wrong.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Befall {
    /// The client's process is killed; verbs that it posted may take effect until it is fenced.
    Death,
    /// Nothing comes back any more; what was posted may take effect until it is fenced.
    LossBefore,
    /// The oldest verb takes effect and nothing comes back any more.
    LossAfter,
    /// The card gives the connection up before it sent the verbs: they never execute.
    Flush,
    /// The call's time is up with verbs under way, which take effect later or never.
    Timeout,
    /// The server restarts with an empty region.
    Restart,
    /// The client stands still for longer than the grace period.
    Standstill,
    /// The client's own clock jumps by more than half of the grace period.
    ClockJump,
    /// The server has no memory to give.
    NoMemory,
    /// A READ is executed again, since its answer was lost.
    ReadAgain,
    /// A verb takes effect in parts, with others between them.
    Tear,
    /// A verb takes effect after the client was told that its connection is lost, or its time up, or after it died.
    LateEffect,
}

impl Befall {
    /// All of them, in the order of the table's columns.
    pub const ALL: [Self; 12] = [
        Self::Death,
        Self::LossBefore,
        Self::LossAfter,
        Self::LateEffect,
        Self::Flush,
        Self::Timeout,
        Self::ReadAgain,
        Self::Tear,
        Self::Restart,
        Self::Standstill,
        Self::ClockJump,
        Self::NoMemory,
    ];

    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Death => "client dies",
            Self::LossBefore => "lost without effect",
            Self::LossAfter => "lost with effect",
            Self::LateEffect => "late effect",
            Self::Flush => "flushed",
            Self::Timeout => "timed out",
            Self::ReadAgain => "READ again",
            Self::Tear => "torn",
            Self::Restart => "server restarts",
            Self::Standstill => "paused beyond grace",
            Self::ClockJump => "clock jumps",
            Self::NoMemory => "memory refused",
        }
    }
}
