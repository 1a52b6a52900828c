//! What a sweep learned, put into the books.
//!
//! Always true: the index was scanned after the chunk was as it was listed, and ⚑ every session has acknowledged an epoch
//! raised after the scan; so a block that the scan did not reach is used by nobody, and every mark that was under way has
//! arrived. A chunk that changed hands since it was listed is left as it is.

use sidestep_common::layout::{Offset, SizeClass, Version, chunk_shape};

use super::maps::free_version;
use super::{BlockPool, Owner};

/// Who has a chunk that is cut up, for a sweep.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Holder {
    /// A session, which asks what was reached.
    Session,
    /// Nobody: which blocks are free is known, but for those that somebody unlinked and did not live to mark.
    Nobody,
    /// A session that ended: which blocks are free is to be found out.
    Orphan,
}

/// A chunk or extent that is cut up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CutUp {
    /// Where it starts.
    pub offset: u64,
    /// Its size class.
    pub class: SizeClass,
    /// Which grant it is.
    pub serial: u64,
    /// Who has it.
    pub holder: Holder,
}

/// What became of a chunk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Settled {
    /// The index reached no block: it is of no class any more.
    Free,
    /// The next session that asks for the class gets it; so many of its blocks were lost, and are free.
    Ownerless {
        /// Blocks that weren't known to be free.
        found: u32,
    },
    /// It changed hands meanwhile.
    Changed,
}

impl BlockPool {
    /// Everything that is cut up, in order.
    pub fn cut_up(&self) -> Vec<CutUp> {
        let one = |(&offset, grant): (&u64, &super::Grant)| CutUp {
            offset,
            class: grant.class,
            serial: grant.serial,
            holder: match grant.owner {
                Owner::Session(_) => Holder::Session,
                Owner::Returned { .. } | Owner::Ownerless => Holder::Nobody,
                Owner::Orphan => Holder::Orphan,
            },
        };
        self.grants.iter().map(one).collect()
    }

    /// Settles a chunk of nobody or of an ended session. `reached` says of each block by which version the index reached
    /// it, if it did.
    pub fn settle(&mut self, chunk: &CutUp, reached: impl Fn(u32) -> Option<Version>) -> Settled {
        let (offset, class) = (chunk.offset, chunk.class);
        let block_count = chunk_shape(class).block_count;
        let is_reached = (0..block_count).any(|block| reached(block).is_some());
        let owner = self.grants.get(&offset).filter(|grant| grant.serial == chunk.serial);
        match owner.map(|grant| grant.owner.clone()) {
            Some(Owner::Orphan) => {
                self.accounts.swept_total += 1;
                if !is_reached {
                    self.free(offset);
                    return Settled::Free;
                }
                let (versions, found) = self.adoptable_versions(chunk, reached);
                if let Some(grant) = self.grants.get_mut(&offset) {
                    grant.versions = versions;
                }
                self.set_owner(offset, Owner::Ownerless);
                Settled::Ownerless { found }
            }
            Some(Owner::Ownerless | Owner::Returned { .. }) => {
                if !is_reached {
                    self.free(offset);
                    return Settled::Free;
                }
                Settled::Ownerless { found: self.mark_lost(chunk, reached) }
            }
            Some(Owner::Session(_)) | None => Settled::Changed,
        }
    }

    /// The versions with which the blocks of an ended session's chunk can be used again. Those that the index reaches keep
    /// theirs. Of the others, one whose header and byte of the map say the same has it, and is free: most were never used, and
    /// need no mark. The rest get one above what header and byte say, and are marked free with it.
    fn adoptable_versions(&self, chunk: &CutUp, reached: impl Fn(u32) -> Option<Version>) -> (Vec<u8>, u32) {
        let (offset, class) = (Offset(chunk.offset), chunk.class);
        let map = self.maps.read(offset, class);
        let mut found = 0;
        let versions = (0..).zip(&map).map(|(block, &mark)| {
            if let Some(version) = reached(block) {
                return version.0;
            }
            let header = self.maps.header_version(offset, class, block).0;
            if header == mark {
                return mark;
            }
            let version = free_version(header, mark);
            self.maps.mark(offset, block, Version(version));
            found += 1;
            version
        });
        let mut versions: Vec<u8> = versions.collect();
        // Behind the end they are 0, whether said or not.
        versions.truncate(versions.iter().rposition(|version| *version != 0).map_or(0, |last| last + 1));
        (versions, found)
    }

    /// Marks blocks of a chunk of nobody that the index does not reach though they weren't marked; returns how many.
    fn mark_lost(&self, chunk: &CutUp, reached: impl Fn(u32) -> Option<Version>) -> u32 {
        let Some(grant) = self.grants.get(&chunk.offset) else { return 0 };
        let map = self.maps.read(Offset(chunk.offset), chunk.class);
        let versions = grant.versions.iter().copied().chain(std::iter::repeat(0));
        let mut found = 0;
        for ((block, &mark), version) in (0..).zip(&map).zip(versions) {
            if mark != version && reached(block).is_none() {
                self.maps.mark(Offset(chunk.offset), block, Version(version));
                found += 1;
            }
        }
        found
    }
}
