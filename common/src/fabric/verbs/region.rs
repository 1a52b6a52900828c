//! Memory that a card knows: protection domains and registrations.
//!
//! Always true: memory is registered before a card is told of it and freed after its registration is gone; whole
//! pages only, so that pinning never touches a neighbour's; no relaxed ordering (the protocol orders a WRITE before
//! the CAS that publishes it) and no on-demand paging (a page fault would be a round trip of its own).
//!
//! A registration's lkey names it to its own card, its rkey to a peer. They are equal on some cards and different
//! on others, so they are never mixed: an lkey goes into scatter lists only, an rkey into messages only.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ffi::c_int;
use std::ptr::NonNull;
use std::sync::Arc;

use rdma_sys::{ibv_access_flags, ibv_mr, ibv_pd};

use super::context::Context;
use super::error::VerbsError;
use super::memlock::Memlock;
use crate::fabric::{Registrar, Registration, Rights};
use crate::memory::WordMemory;

/// Which registrations and queue pairs may be used together.
pub(super) struct ProtectionDomain {
    raw: NonNull<ibv_pd>,
    context: Arc<Context>,
}

// SAFETY: libibverbs' functions on a protection domain are safe to call from any thread.
unsafe impl Send for ProtectionDomain {}
// SAFETY: as above.
unsafe impl Sync for ProtectionDomain {}

impl ProtectionDomain {
    /// A new one.
    pub(super) fn new(context: &Arc<Context>) -> Result<Arc<Self>, VerbsError> {
        // SAFETY: an open context.
        let raw = unsafe { (context.symbols().ibv_alloc_pd)(context.raw()) };
        let Some(raw) = NonNull::new(raw) else { return Err(VerbsError::last_os("ibv_alloc_pd")) };
        Ok(Arc::new(Self { raw, context: Arc::clone(context) }))
    }

    /// libibverbs' own.
    pub(super) fn raw(&self) -> *mut ibv_pd {
        self.raw.as_ptr()
    }

    /// Its device.
    pub(super) fn context(&self) -> &Arc<Context> {
        &self.context
    }
}

impl Drop for ProtectionDomain {
    fn drop(&mut self) {
        // SAFETY: allocated by `new`, freed once; what was made in it held this domain.
        let status = unsafe { (self.context.symbols().ibv_dealloc_pd)(self.raw()) };
        if status != 0 {
            tracing::warn!(status, "ibv_dealloc_pd failed");
        }
    }
}

/// What may be done to registered memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Access {
    /// Only the own card, which may write to it: where READs land.
    Local,
    /// Peers, as these rights say.
    Remote(Rights),
    /// Peers, as these rights say, except for atomics: for cards that have none.
    RemoteData(Rights),
}

impl Access {
    /// libibverbs' flags for it. A card that may write for peers must be allowed to write locally.
    pub(super) const fn flags(self) -> u32 {
        let (local, read) =
            (ibv_access_flags::IBV_ACCESS_LOCAL_WRITE.0, ibv_access_flags::IBV_ACCESS_REMOTE_READ.0);
        let (write, atomic) =
            (ibv_access_flags::IBV_ACCESS_REMOTE_WRITE.0, ibv_access_flags::IBV_ACCESS_REMOTE_ATOMIC.0);
        match self {
            Self::Local => local,
            Self::Remote(Rights::ReadOnly) | Self::RemoteData(Rights::ReadOnly) => read,
            Self::RemoteData(Rights::ReadWrite) => local | read | write,
            Self::Remote(Rights::ReadWrite) => local | read | write | atomic,
        }
    }
}

/// A registration; ended when dropped.
pub(super) struct MemoryRegion {
    raw: NonNull<ibv_mr>,
    lkey: u32,
    rkey: u32,
    domain: Arc<ProtectionDomain>,
}

// SAFETY: a registration is a name for memory; libibverbs' functions on it are safe to call from any thread.
unsafe impl Send for MemoryRegion {}
// SAFETY: as above.
unsafe impl Sync for MemoryRegion {}

impl MemoryRegion {
    /// Registers `bytes` at `base`.
    ///
    /// # Errors
    /// [`VerbsError::Memlock`] if the limit on locked memory forbids it; [`VerbsError::NotPages`];
    /// [`VerbsError::Call`] with what the card said.
    ///
    /// # Safety
    /// The memory must stay valid until this is dropped, and be touched by nobody in a way that the card's
    /// accesses would break.
    pub(super) unsafe fn register(
        domain: &Arc<ProtectionDomain>,
        base: NonNull<u8>,
        bytes: u64,
        access: Access,
    ) -> Result<Self, VerbsError> {
        let page_bytes = page_bytes();
        let address = base.as_ptr().addr();
        let whole =
            address.is_multiple_of(page_bytes) && bytes.is_multiple_of(page_bytes as u64) && bytes > 0;
        let length = usize::try_from(bytes).ok().filter(|_| whole);
        let Some(length) = length else {
            return Err(VerbsError::NotPages { base: address, bytes, page_bytes });
        };
        let memlock = Memlock::current();
        memlock.check(bytes)?;
        let symbols = domain.context().symbols();
        let flags = access.flags() as c_int;
        // SAFETY: a live domain; the caller promised the memory.
        let raw = unsafe { (symbols.ibv_reg_mr)(domain.raw(), base.as_ptr().cast(), length, flags) };
        let Some(raw) = NonNull::new(raw) else {
            let error =
                VerbsError::last_os(format!("registering {bytes} bytes with {}", domain.context().name()));
            return Err(match (&error, memlock.refused(bytes)) {
                (VerbsError::Call { errno: libc::ENOMEM, .. }, Some(memlock)) => memlock.into(),
                _ => error,
            });
        };
        // SAFETY: a registration that libibverbs just made.
        let mr = unsafe { raw.as_ref() };
        Ok(Self { raw, lkey: mr.lkey, rkey: mr.rkey, domain: Arc::clone(domain) })
    }

    /// Its name for peers.
    pub(super) fn rkey(&self) -> u32 {
        self.rkey
    }
}

impl Registration for MemoryRegion {
    fn lkey(&self) -> u32 {
        self.lkey
    }
}

impl Drop for MemoryRegion {
    fn drop(&mut self) {
        // SAFETY: made by `register`, ended once.
        let status = unsafe { (self.domain.context().symbols().ibv_dereg_mr)(self.raw.as_ptr()) };
        if status != 0 {
            tracing::warn!(status, "ibv_dereg_mr failed");
        }
    }
}

/// Registers a session's local buffers.
pub(super) struct DomainRegistrar(pub(super) Arc<ProtectionDomain>);

impl Registrar for DomainRegistrar {
    unsafe fn register(&self, memory: NonNull<u8>, bytes: usize) -> Result<Box<dyn Registration>, String> {
        // SAFETY: the caller promised that the memory outlives the registration.
        let region = unsafe { MemoryRegion::register(&self.0, memory, bytes as u64, Access::Local) };
        region.map(|region| Box::new(region) as Box<dyn Registration>).map_err(|error| error.to_string())
    }
}

/// Registered memory of this module's own, zeroed at first: for atomics' results and staged WRITEs.
pub(super) struct LocalMemory {
    start: NonNull<u8>,
    layout: Layout,
    /// Ends before the memory is freed; an option only so that `drop` can see to that order.
    region: Option<MemoryRegion>,
    lkey: u32,
}

// SAFETY: it owns its memory, like a boxed slice.
unsafe impl Send for LocalMemory {}

impl LocalMemory {
    /// At least `bytes`, in whole pages.
    pub(super) fn new(domain: &Arc<ProtectionDomain>, bytes: usize) -> Result<Self, VerbsError> {
        let page_bytes = page_bytes();
        let bytes = bytes.max(1).next_multiple_of(page_bytes);
        let no_memory = || VerbsError::number(format!("allocating {bytes} bytes"), libc::ENOMEM);
        let layout = Layout::from_size_align(bytes, page_bytes).map_err(|_| no_memory())?;
        // SAFETY: the layout's size isn't zero.
        let start = NonNull::new(unsafe { alloc_zeroed(layout) }).ok_or_else(no_memory)?;
        let mut memory = Self { start, layout, region: None, lkey: 0 };
        // SAFETY: `drop` ends the registration before it frees the memory.
        let region = unsafe { MemoryRegion::register(domain, start, bytes as u64, Access::Local) }?;
        memory.lkey = region.lkey();
        memory.region = Some(region);
        Ok(memory)
    }

    /// Where it starts.
    pub(super) fn start(&self) -> NonNull<u8> {
        self.start
    }

    /// How many bytes it has.
    pub(super) fn bytes(&self) -> usize {
        self.layout.size()
    }

    /// Its name for the own card.
    pub(super) fn lkey(&self) -> u32 {
        self.lkey
    }

    /// Its bytes as words, for what a card and this process take turns with.
    pub(super) fn words(&self) -> WordMemory {
        // SAFETY: whole pages of this memory's own, which its owner uses the words no longer than; a card is given other
        // places of it than those that are in use here.
        unsafe { WordMemory::new(self.start, self.layout.size() as u64) }
    }
}

impl Drop for LocalMemory {
    fn drop(&mut self) {
        self.region.take();
        // SAFETY: allocated in `new` with this layout.
        unsafe { dealloc(self.start.as_ptr(), self.layout) };
    }
}

fn page_bytes() -> usize {
    // SAFETY: no arguments that could be wrong.
    let bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    usize::try_from(bytes).unwrap_or(4096)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the card is told is what keeps a read-only client out.
    #[test]
    fn read_only_memory_can_be_read_and_nothing_else() {
        let read = ibv_access_flags::IBV_ACCESS_REMOTE_READ.0;
        assert_eq!(Access::Remote(Rights::ReadOnly).flags(), read);
        let write =
            ibv_access_flags::IBV_ACCESS_REMOTE_WRITE.0 | ibv_access_flags::IBV_ACCESS_REMOTE_ATOMIC.0;
        assert_eq!(Access::Remote(Rights::ReadWrite).flags() & (read | write), read | write);
        assert_eq!(Access::Local.flags() & (read | write), 0);
        let atomic = ibv_access_flags::IBV_ACCESS_REMOTE_ATOMIC.0;
        assert_eq!(
            Access::RemoteData(Rights::ReadWrite).flags() & (read | write),
            read | write & !atomic,
            "a card without atomics refuses memory that is to have them"
        );
        assert_eq!(Access::RemoteData(Rights::ReadOnly).flags(), read);
        // Relaxed ordering (bit 20) and on-demand paging (bit 6) stay off.
        for access in [Access::Local, Access::Remote(Rights::ReadOnly), Access::Remote(Rights::ReadWrite)] {
            assert_eq!(access.flags() & (1 << 20 | 1 << 6), 0);
        }
    }
}
