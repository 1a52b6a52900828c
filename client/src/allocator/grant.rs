//! What the server grants, checked.
//!
//! Always true: a grant that passed lies in the block pool, where one of its class may, and has no more versions than blocks.

use sidestep_common::layout::{Geometry, Offset, SizeClass, chunk_shape};
use sidestep_common::wire::ChunkGrant;

/// The server granted what can't be right.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum GrantError {
    /// It can't be a chunk.
    #[error(
        "the server granted an impossible chunk of class {class} at {offset:#x} with {versions} versions"
    )]
    Impossible {
        /// Where.
        offset: u64,
        /// Its class.
        class: u8,
        /// How many versions came with it.
        versions: usize,
    },
    /// It overlaps a chunk that the session has.
    #[error("the server granted a chunk of class {class} at {offset:#x}, which the session has already")]
    Twice {
        /// Where.
        offset: u64,
        /// Its class.
        class: u8,
    },
    /// It is of another class than the one asked for.
    #[error("the server granted a chunk of class {found} at {offset:#x}, not of class {class}")]
    Class {
        /// As asked.
        class: u8,
        /// As granted.
        found: u8,
        /// Where.
        offset: u64,
    },
    /// None, or more than were asked for.
    #[error("the server granted {granted} chunks, {asked} were asked for")]
    Count {
        /// How many.
        granted: usize,
        /// As asked.
        asked: u16,
    },
}

/// Where and what a grant is.
pub(super) fn check(geometry: &Geometry, grant: &ChunkGrant) -> Result<(Offset, SizeClass), GrantError> {
    let ChunkGrant { offset, class, ref versions } = *grant;
    let error = GrantError::Impossible { offset, class, versions: versions.len() };
    let Some(class) = SizeClass::from_index(class) else { return Err(error) };
    let shape = chunk_shape(class);
    let sound = versions.len() <= shape.block_count as usize
        && offset.is_multiple_of(shape.align_bytes)
        && geometry.block_pool_holds(Offset(offset), shape.bytes);
    if sound { Ok((Offset(offset), class)) } else { Err(error) }
}
