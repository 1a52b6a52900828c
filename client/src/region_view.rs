//! What a client knows of a region, shared by its sessions.
//!
//! Always true: a view belongs to one incarnation of one region; a session that finds another incarnation gets
//! another view, and what it knew of the old one is dropped. Readers take the current view without a lock;
//! a view that was replaced is freed when no reader can hold it any more (epoch-based reclamation, Fraser 2004,
//! by way of crossbeam-epoch).

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crossbeam_epoch::{Atomic, Owned, pin};
use sidestep_common::layout::Superblock;

use crate::directory::Directory;

/// One incarnation of a region.
#[derive(Debug)]
pub(crate) struct RegionView {
    pub(crate) superblock: Superblock,
    pub(crate) directory: Directory,
}

/// The view that a client's sessions share.
#[derive(Debug)]
pub(crate) struct SharedView(Atomic<Arc<RegionView>>);

impl SharedView {
    pub(crate) fn empty() -> Self {
        Self(Atomic::null())
    }

    /// The view of that incarnation, if it is the current one.
    pub(crate) fn of(&self, superblock: &Superblock) -> Option<Arc<RegionView>> {
        let guard = pin();
        // Pairs with the release in `set`: the view behind the pointer is complete.
        let current = self.0.load(Ordering::Acquire, &guard);
        // SAFETY: the pointer is null or from `set`, and what `set` replaces is destroyed only after this guard.
        let current = unsafe { current.as_ref() }?;
        (current.superblock == *superblock).then(|| Arc::clone(current))
    }

    /// Makes `view` the current one.
    pub(crate) fn set(&self, view: &Arc<RegionView>) {
        let guard = pin();
        let old = self.0.swap(Owned::new(Arc::clone(view)), Ordering::AcqRel, &guard);
        if !old.is_null() {
            // SAFETY: it was just taken out, so no new reader finds it; earlier ones hold their guards.
            unsafe { guard.defer_destroy(old) };
        }
    }
}

impl Drop for SharedView {
    fn drop(&mut self) {
        let current = std::mem::replace(&mut self.0, Atomic::null());
        // SAFETY: nobody else has a reference to `self`, so nobody reads the pointer any more.
        drop(unsafe { current.try_into_owned() });
    }
}

#[cfg(test)]
mod tests {
    use sidestep_common::layout::{AtomicityDomain, Geometry};

    use super::*;

    fn view(incarnation: u64) -> Arc<RegionView> {
        let superblock = Superblock {
            geometry: Geometry::for_region(4 << 20).unwrap(),
            incarnation,
            hash_seed: 1,
            domain: AtomicityDomain::Cpu,
            grace_ms: 1,
        };
        Arc::new(RegionView { superblock, directory: Directory::from_bytes(&[]) })
    }

    #[test]
    fn only_the_current_incarnation_is_given_out() {
        let shared = SharedView::empty();
        let (first, second) = (view(1), view(2));
        assert!(shared.of(&first.superblock).is_none());
        shared.set(&first);
        assert!(Arc::ptr_eq(&shared.of(&first.superblock).unwrap(), &first));
        shared.set(&second);
        assert!(shared.of(&first.superblock).is_none());
        assert!(shared.of(&second.superblock).is_some());
        drop(shared);
        assert_eq!(Arc::strong_count(&second), 1, "freed with the shared view");
    }
}
