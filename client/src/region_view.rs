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
    use sidestep_common::layout::{AtomicityDomain, DirectoryWord, Geometry};

    use super::*;

    pub(super) fn view(incarnation: u64) -> Arc<RegionView> {
        let superblock = Superblock {
            geometry: Geometry::for_region(4 << 20).unwrap(),
            incarnation,
            hash_seed: 1,
            domain: AtomicityDomain::Cpu,
            grace_ms: 1,
        };
        let word = DirectoryWord { segment: 0, generation: incarnation as u32, depth: 1 };
        Arc::new(RegionView { superblock, directory: Directory::from_bytes(&word.to_bits().to_le_bytes()) })
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

    /// Views are replaced as fast as can be while others take them: each is whole, and all are freed in the end. (Run it under
    /// Miri to see that none is used after that: CONTRIBUTING.md.)
    #[test]
    fn views_are_replaced_under_readers() {
        let rounds = if cfg!(miri) { 20 } else { 2_000 };
        let shared = SharedView::empty();
        let views = [view(1), view(2)];
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    for round in 0..rounds {
                        let incarnation = 1 + round % 2;
                        let Some(found) = shared.of(&views[round % 2].superblock) else { continue };
                        assert_eq!(found.directory.word(0).generation as usize, incarnation);
                    }
                });
            }
            for round in 0..rounds {
                shared.set(&views[round % 2]);
            }
        });
        drop(shared);
        // What was replaced is freed by whoever pins next, one epoch after the other.
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(10);
        while views.iter().any(|view| Arc::strong_count(view) > 1) {
            assert!(std::time::Instant::now() < deadline, "views that nobody has are not freed");
            pin().flush();
            std::thread::yield_now();
        }
    }
}

#[cfg(all(test, loom))]
mod models {
    use sidestep_common::sync::explore;

    use super::tests::view;
    use super::*;

    /// One session found the server restarted and sets a new view; another asks for either of the two at that moment.
    /// What it gets is whole: the directory behind the pointer was made before.
    #[test]
    fn a_view_is_whole_while_it_is_replaced() {
        explore(Some(3), || {
            let shared = Arc::new(SharedView::empty());
            shared.set(&view(1));
            let theirs = Arc::clone(&shared);
            let restarted = loom::thread::spawn(move || theirs.set(&view(2)));
            for incarnation in [1, 2] {
                let superblock = view(incarnation).superblock;
                if let Some(found) = shared.of(&superblock) {
                    assert_eq!(found.directory.word(0).generation, incarnation as u32);
                }
            }
            restarted.join().unwrap();
            assert!(shared.of(&view(1).superblock).is_none());
            assert!(shared.of(&view(2).superblock).is_some());
        });
    }
}
