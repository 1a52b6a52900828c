//! A chunk that this session owns: which of its blocks are in use, and in which version.
//!
//! Always true: `versions` has each block's version of its last use, 0 if there was none; a block that is not in use has that
//! version in its byte of the free map, or will never have another. Version 0 is never handed out, so it means that nobody
//! has seen the block.

use sidestep_common::layout::{BlockPlace, BlockRef, ChunkShape, Offset, SizeClass, Version, chunk_shape};
use sidestep_common::wire::ChunkPurpose;

use super::audit::Snapshot;

/// A bit for each block of a chunk.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Blocks(Box<[u64]>);

impl Blocks {
    pub(super) fn none(count: u32) -> Self {
        Self(vec![0; count.div_ceil(64) as usize].into())
    }

    pub(super) fn has(&self, index: u32) -> bool {
        self.0.get(index as usize / 64).is_some_and(|word| word & 1 << (index % 64) != 0)
    }

    pub(super) fn add(&mut self, index: u32) {
        if let Some(word) = self.0.get_mut(index as usize / 64) {
            *word |= 1 << (index % 64);
        }
    }

    pub(super) fn remove(&mut self, index: u32) {
        if let Some(word) = self.0.get_mut(index as usize / 64) {
            *word &= !(1 << (index % 64));
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.iter().all(|word| *word == 0)
    }

    /// One more than the last.
    pub(super) fn end(&self) -> u32 {
        let last = self.0.iter().rposition(|word| *word != 0);
        last.map_or(0, |at| at as u32 * 64 + u64::BITS - self.0[at].leading_zeros())
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = u32> {
        self.0.iter().zip(0_u32..).flat_map(|(word, at)| {
            let mut left = *word;
            std::iter::from_fn(move || {
                let bit = (left != 0).then(|| left.trailing_zeros())?;
                left &= left - 1;
                Some(at * 64 + bit)
            })
        })
    }
}

/// A chunk or extent.
#[derive(Debug)]
pub(super) struct Chunk {
    pub(super) offset: Offset,
    pub(super) class: SizeClass,
    pub(super) shape: ChunkShape,
    pub(super) purpose: ChunkPurpose,
    /// Of each block's last use.
    pub(super) versions: Box<[u8]>,
    /// Blocks that a slot may name, or that are in hand.
    pub(super) in_use: Blocks,
    /// Blocks that are marked and wait for the grace period.
    pub(super) ripening: u32,
    /// When its map was read last.
    pub(super) harvested_ms: Option<u64>,
    /// Times that blocks of it became free in this period of counting, and in the one before.
    pub(super) reuses: [u32; 2],
    /// What was in use when the last audits were announced, in their order.
    pub(super) snapshots: Vec<Snapshot>,
    /// Blocks in use that an audit did not reach, and that are not reclaimed yet; none is the same as no set.
    pub(super) unreached: Option<Blocks>,
}

impl Chunk {
    /// With the versions as granted: none if nothing of it was ever used.
    pub(super) fn new(offset: Offset, class: SizeClass, purpose: ChunkPurpose, granted: &[u8]) -> Self {
        let shape = chunk_shape(class);
        let mut versions = vec![0; shape.block_count as usize].into_boxed_slice();
        versions[..granted.len()].copy_from_slice(granted);
        let mut in_use = Blocks::none(shape.block_count);
        // Used once, and perhaps still: the map will tell.
        (0..).zip(granted).filter(|(_, version)| **version != 0).for_each(|(index, _)| in_use.add(index));
        Self {
            offset,
            class,
            shape,
            purpose,
            versions,
            in_use,
            ripening: 0,
            harvested_ms: None,
            reuses: [0; 2],
            snapshots: Vec::new(),
            unreached: None,
        }
    }

    pub(super) const fn block(&self, index: u32, version: u8) -> BlockRef {
        BlockPlace { chunk: self.offset, index }.block(self.class, Version(version))
    }

    pub(super) fn version(&self, index: u32) -> u8 {
        self.versions.get(index as usize).copied().unwrap_or(0)
    }

    /// The block's next use begins, or did not happen after all.
    pub(super) fn set_version(&mut self, index: u32, version: u8) {
        if let Some(known) = self.versions.get_mut(index as usize) {
            *known = version;
        }
    }

    /// A block is in use no more: what audits said, or will say, is of the use that is over.
    pub(super) fn leave_use(&mut self, index: u32) {
        self.in_use.remove(index);
        for snapshot in &mut self.snapshots {
            snapshot.blocks.remove(index);
        }
        if let Some(unreached) = &mut self.unreached {
            unreached.remove(index);
            if unreached.is_empty() {
                self.unreached = None;
            }
        }
    }

    /// No block of it is in use, and none is marked for less than the grace period.
    pub(super) fn is_idle(&self) -> bool {
        self.ripening == 0 && self.in_use.is_empty()
    }

    /// The versions without the zeros at the end.
    pub(super) fn known_versions(&self) -> Vec<u8> {
        let count = self.versions.iter().rposition(|version| *version != 0).map_or(0, |last| last + 1);
        self.versions[..count].to_vec()
    }
}

/// The version of a block's next use; 0 is left out.
pub(super) fn following(version: u8) -> Version {
    if version == 0 {
        return Version::FIRST;
    }
    let next = Version(version).next();
    if next.0 == 0 { Version::FIRST } else { next }
}
