//! Local memory for READs to land in.
//!
//! Always true: a buffer has exactly one owner. Posting a READ moves it into the fabric, the completion moves it
//! back; so nobody can look at bytes that a card still writes, and nobody can free them. A buffer keeps its
//! slab (and the slab's registration with the card) alive; a fabric that ends with READs in flight drops
//! their buffers only after the queue pair is destroyed.
//!
//! Slabs are registered once and buffers are recycled, so a steady state registers and allocates nothing. A pool
//! at its limit lets go of what lies idle before it refuses: sizes that were wanted once don't shut out others.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Registers local memory with a card. Fabrics without a card use [`Unregistered`].
pub trait Registrar: Send {
    /// Makes `bytes` at `memory` known to the card.
    ///
    /// # Errors
    /// A message that says what was refused and the remedy, if it can be known.
    ///
    /// # Safety
    /// The memory must stay valid until the registration is dropped.
    unsafe fn register(&self, memory: NonNull<u8>, bytes: usize) -> Result<Box<dyn Registration>, String>;
}

/// Registered local memory; dropping it ends the registration.
pub trait Registration: Send + Sync {
    /// The key that names the memory to the own card; 0 where there is none.
    fn lkey(&self) -> u32;
}

/// For fabrics whose local memory needs no registration.
#[derive(Debug, Default)]
pub struct Unregistered;

impl Registrar for Unregistered {
    unsafe fn register(&self, _memory: NonNull<u8>, _bytes: usize) -> Result<Box<dyn Registration>, String> {
        Ok(Box::new(Self))
    }
}

impl Registration for Unregistered {
    fn lkey(&self) -> u32 {
        0
    }
}

/// Tells pools apart: memory that one card, or one session, has registered is nothing to another.
#[derive(Clone, Copy, PartialEq, Eq)]
struct PoolId(u64);

impl PoolId {
    fn new() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        // Only gives out numbers; nothing is ordered by it.
        Self(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}

/// A piece of memory that buffers are cut from.
struct Slab {
    memory: NonNull<u8>,
    layout: Layout,
    lkey: u32,
    /// Of the pool that it was made for.
    pool: PoolId,
    /// Ends before the memory is freed; an option only so that `drop` can see to that order.
    registration: Option<Box<dyn Registration>>,
    /// The bytes of all slabs of its pool.
    pool_bytes: Arc<AtomicUsize>,
}

// SAFETY: the slab itself is only a pointer and a registration; buffers partition its bytes.
unsafe impl Send for Slab {}
// SAFETY: as above; no method of a shared slab touches its bytes.
unsafe impl Sync for Slab {}

impl Drop for Slab {
    fn drop(&mut self) {
        self.registration.take();
        // SAFETY: allocated in `BufferPool::add_slab` with this layout; no buffer is left, they hold the slab.
        unsafe { dealloc(self.memory.as_ptr(), self.layout) };
        // Only a sum; nothing is published by it.
        self.pool_bytes.fetch_sub(self.layout.size(), Ordering::Relaxed);
    }
}

/// Exclusively owned local memory; see the module.
pub struct Buffer {
    start: NonNull<u8>,
    capacity: usize,
    bytes: usize,
    slab: Arc<Slab>,
}

// SAFETY: a buffer is the only owner of its bytes, like a boxed slice.
unsafe impl Send for Buffer {}
// SAFETY: as above.
unsafe impl Sync for Buffer {}

impl Buffer {
    /// Its bytes.
    #[inline]
    pub fn as_slice(&self) -> &[u8] {
        // SAFETY: `start..start + bytes` is initialised (slabs are zeroed) and exclusively ours.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.bytes) }
    }

    /// Its bytes, to be changed.
    #[inline]
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: as in `as_slice`, and borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.bytes) }
    }

    /// How many bytes it has.
    #[inline]
    pub fn len(&self) -> usize {
        self.bytes
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// Where it starts, for a card's scatter list.
    pub fn address(&self) -> NonNull<u8> {
        self.start
    }

    /// The key that names it to the own card.
    pub fn lkey(&self) -> u32 {
        self.slab.lkey
    }
}

impl std::fmt::Debug for Buffer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Buffer({} of {} bytes at {:?})", self.bytes, self.capacity, self.start)
    }
}

/// No buffer could be had. Nothing was done.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum BufferError {
    /// The session's limit is reached.
    #[error(
        "a buffer of {asked_bytes} bytes would exceed the session's {limit_bytes} bytes of local buffers"
    )]
    Exhausted {
        /// As asked.
        asked_bytes: usize,
        /// The limit.
        limit_bytes: usize,
    },
    /// The card refused the memory.
    #[error("cannot register {bytes} bytes of local memory: {reason}")]
    Registration {
        /// The slab's size.
        bytes: usize,
        /// Why.
        reason: String,
    },
}

/// Capacities are powers of two from this.
const CAPACITY_BYTES_MIN: usize = 256;
/// The largest buffer: it holds the largest block.
const CAPACITY_BYTES_MAX: usize = 2 << 20;
const CAPACITIES: usize = (CAPACITY_BYTES_MAX / CAPACITY_BYTES_MIN).ilog2() as usize + 1;
/// Small buffers are cut from slabs of this size, so that a session registers a handful of slabs.
const SLAB_BYTES: usize = 128 << 10;
/// Alignment of slabs: a page, so that registering one never pins a neighbour's page.
const SLAB_ALIGN: usize = 4096;

/// A session's buffers: free ones by capacity, and the registrar for more.
pub struct BufferPool {
    id: PoolId,
    free: [Vec<Buffer>; CAPACITIES],
    registrar: Box<dyn Registrar>,
    slab_bytes: Arc<AtomicUsize>,
    limit_bytes: usize,
}

impl BufferPool {
    /// A pool that takes at most `limit_bytes` of memory. Starts with none.
    pub fn new(registrar: Box<dyn Registrar>, limit_bytes: usize) -> Self {
        let free = std::array::from_fn(|_| Vec::new());
        Self { id: PoolId::new(), free, registrar, slab_bytes: Arc::default(), limit_bytes }
    }

    /// A buffer of exactly `bytes` bytes; its contents are whatever was last in it.
    ///
    /// # Errors
    /// [`BufferError`] if the limit is reached or the card refuses the memory.
    #[inline]
    pub fn take(&mut self, bytes: usize) -> Result<Buffer, BufferError> {
        let Some(class) = capacity_class(bytes) else {
            return Err(BufferError::Exhausted { asked_bytes: bytes, limit_bytes: CAPACITY_BYTES_MAX });
        };
        if self.free[class].is_empty() {
            self.add_slab(class)?;
        }
        match self.free[class].pop() {
            Some(mut buffer) => {
                buffer.bytes = bytes;
                Ok(buffer)
            }
            None => unreachable!("a slab gives at least one buffer of class {class}"),
        }
    }

    /// Gives a buffer back. One of another session's pool is let go: its key means nothing to this session's queue pair,
    /// and a READ into it would end the connection.
    #[inline]
    pub fn recycle(&mut self, buffer: Buffer) {
        if buffer.slab.pool != self.id {
            return;
        }
        if let Some(class) = capacity_class(buffer.capacity) {
            self.free[class].push(buffer);
        }
    }

    fn slab_bytes(&self) -> usize {
        self.slab_bytes.load(Ordering::Relaxed)
    }

    fn add_slab(&mut self, class: usize) -> Result<(), BufferError> {
        let capacity = CAPACITY_BYTES_MIN << class;
        let slab_bytes = SLAB_BYTES.max(capacity);
        if self.slab_bytes() + slab_bytes > self.limit_bytes {
            self.free.iter_mut().for_each(Vec::clear);
        }
        if self.slab_bytes() + slab_bytes > self.limit_bytes {
            return Err(BufferError::Exhausted { asked_bytes: capacity, limit_bytes: self.limit_bytes });
        }
        let Ok(layout) = Layout::from_size_align(slab_bytes, SLAB_ALIGN) else {
            unreachable!("{slab_bytes} bytes aligned to {SLAB_ALIGN} is a layout")
        };
        // SAFETY: the layout has a size that isn't zero.
        let Some(memory) = NonNull::new(unsafe { alloc_zeroed(layout) }) else { handle_alloc_error(layout) };
        self.slab_bytes.fetch_add(slab_bytes, Ordering::Relaxed);
        let (pool, pool_bytes) = (self.id, Arc::clone(&self.slab_bytes));
        let mut slab = Slab { memory, layout, lkey: 0, pool, registration: None, pool_bytes };
        // SAFETY: the slab owns the memory and drops the registration before it frees it.
        let registered = unsafe { self.registrar.register(memory, slab_bytes) };
        let registration =
            registered.map_err(|reason| BufferError::Registration { bytes: slab_bytes, reason })?;
        slab.lkey = registration.lkey();
        slab.registration = Some(registration);
        let slab = Arc::new(slab);
        for at in (0..slab_bytes).step_by(capacity) {
            // SAFETY: `at` is inside the slab.
            let start = unsafe { memory.add(at) };
            self.free[class].push(Buffer { start, capacity, bytes: 0, slab: Arc::clone(&slab) });
        }
        Ok(())
    }
}

impl std::fmt::Debug for BufferPool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "BufferPool({} of {} bytes)", self.slab_bytes(), self.limit_bytes)
    }
}

#[inline]
fn capacity_class(bytes: usize) -> Option<usize> {
    if bytes > CAPACITY_BYTES_MAX {
        return None;
    }
    Some((bytes.max(CAPACITY_BYTES_MIN).next_power_of_two() / CAPACITY_BYTES_MIN).ilog2() as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_disjoint_and_recycled() {
        let mut pool = BufferPool::new(Box::new(Unregistered), 1 << 20);
        let mut buffers: Vec<Buffer> = (0..600).map(|_| pool.take(256).unwrap()).collect();
        for (at, buffer) in buffers.iter_mut().enumerate() {
            buffer.as_mut_slice().fill(at as u8);
        }
        for (at, buffer) in buffers.iter().enumerate() {
            assert!(buffer.as_slice().iter().all(|byte| *byte == at as u8), "buffer {at}");
        }
        let address = buffers[7].address();
        let seventh = buffers.swap_remove(7);
        pool.recycle(seventh);
        assert_eq!(pool.take(100).unwrap().address(), address);
    }

    #[test]
    fn the_limit_holds_and_nothing_is_lost_by_hitting_it() {
        let mut pool = BufferPool::new(Box::new(Unregistered), 3 << 20);
        let first = pool.take(2 << 20).unwrap();
        assert!(matches!(pool.take(2 << 20), Err(BufferError::Exhausted { .. })));
        assert!(matches!(pool.take((2 << 20) + 1), Err(BufferError::Exhausted { .. })));
        pool.recycle(first);
        assert_eq!(pool.take((1 << 20) + 1).unwrap().len(), (1 << 20) + 1);
    }

    /// Cards of which each names its memory in its own way.
    struct Keyed(u32);

    impl Registrar for Keyed {
        unsafe fn register(&self, _: NonNull<u8>, _: usize) -> Result<Box<dyn Registration>, String> {
            Ok(Box::new(Self(self.0)))
        }
    }

    impl Registration for Keyed {
        fn lkey(&self) -> u32 {
            self.0
        }
    }

    /// A session reconnects, and what the old connection's buffers held is given back to the new one's pool.
    #[test]
    fn a_pool_never_lends_what_another_card_registered() {
        let mut pools = [1, 2].map(|key| BufferPool::new(Box::new(Keyed(key)), 1 << 20));
        let buffer = pools[0].take(256).unwrap();
        pools[1].recycle(buffer);
        for _ in 0..2 {
            assert_eq!(pools[1].take(256).unwrap().lkey(), 2);
        }
    }

    /// Large buffers took all that there may be and lie idle: small ones can be had, and large ones again.
    #[test]
    fn idle_buffers_of_one_size_do_not_shut_out_another() {
        let mut pool = BufferPool::new(Box::new(Unregistered), 4 << 20);
        for _ in 0..3 {
            let large = [pool.take(2 << 20).unwrap(), pool.take(2 << 20).unwrap()];
            assert!(pool.take(256).is_err(), "nothing is idle");
            large.into_iter().for_each(|buffer| pool.recycle(buffer));
            let small = pool.take(256).unwrap();
            pool.recycle(small);
        }
    }

    #[test]
    fn a_buffer_outlives_its_pool() {
        let mut pool = BufferPool::new(Box::new(Unregistered), 1 << 20);
        let mut buffer = pool.take(1024).unwrap();
        drop(pool);
        buffer.as_mut_slice().fill(3);
        assert_eq!(buffer.as_slice()[1023], 3);
    }
}
