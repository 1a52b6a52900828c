//! The sums of the pool's books.
//!
//! Always true: they are kept as the books change, so asking for them costs nothing; free + reserve + cut up = pool.

use super::Owner;

/// What is in one state.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Share {
    /// Chunks and extents.
    pub chunks: u64,
    /// Their bytes.
    pub bytes: u64,
}

impl Share {
    pub(super) const fn add(&mut self, bytes: u64) {
        self.chunks += 1;
        self.bytes += bytes;
    }

    pub(super) const fn remove(&mut self, bytes: u64) {
        self.chunks -= 1;
        self.bytes -= bytes;
    }
}

/// Sums over the pool.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PoolAccounts {
    /// Bytes of the pool.
    pub pool_bytes: u64,
    /// Bytes of no class and not in the reserve.
    pub free_bytes: u64,
    /// Bytes kept for deletes.
    pub reserve_bytes: u64,
    /// What sessions have.
    pub session: Share,
    /// What was given back and waits for an epoch.
    pub returned: Share,
    /// What ended sessions had and waits for a sweep.
    pub orphan: Share,
    /// What the next session gets that asks for its class.
    pub ownerless: Share,
    /// Chunks of ended sessions that were swept, since the start.
    pub swept_total: u64,
}

impl PoolAccounts {
    /// Bytes cut up for size classes.
    pub const fn granted_bytes(&self) -> u64 {
        self.session.bytes + self.returned.bytes + self.orphan.bytes + self.ownerless.bytes
    }

    pub(super) const fn share(&mut self, owner: &Owner) -> &mut Share {
        match owner {
            Owner::Session(_) => &mut self.session,
            Owner::Returned { .. } => &mut self.returned,
            Owner::Orphan => &mut self.orphan,
            Owner::Ownerless => &mut self.ownerless,
        }
    }
}
