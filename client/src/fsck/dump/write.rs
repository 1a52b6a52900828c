//! Making a dump.
//!
//! Always true: the index is read before the pool and compared after it; grants are listed between the two. Pages of
//! zeros are not written, so a dump takes the room of what was used.

use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;

use sidestep_common::layout::SEGMENT_BYTES;

use super::super::grants::list_whole;
use super::super::settle::PATIENCE;
use super::super::{Facts, Progress, RegionSource, SourceError};
use super::DumpError;
use super::format::{Footer, Payload};

/// Bytes read at once, and in how many pieces: they share a round trip.
const BYTES_TOGETHER: u64 = 1 << 20;
const PIECE_BYTES: u64 = 256 << 10;
/// Zeros are left out in units of this, which is what file systems can leave out.
const PAGE_BYTES: usize = 4096;

/// What was written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Written {
    /// Bytes of the region.
    pub region_bytes: u64,
    /// Bytes of it that were written; the others are zeros.
    pub data_bytes: u64,
    /// Words of the index that changed meanwhile.
    pub changed_words: u64,
    /// Grants of the block pool.
    pub grants: u64,
}

/// Writes a dump of `source` into `file`, replacing what is in there.
///
/// # Errors
/// [`SourceError`] if the region can't be read or the file not be written; then the file is no dump.
pub fn write(
    source: &mut impl RegionSource,
    file: &File,
    mut progress: Option<&mut dyn FnMut(Progress)>,
) -> Result<Written, SourceError> {
    let mut tell = |step, done, all| {
        if let Some(tell) = &mut progress {
            tell(Progress { step, done, all });
        }
    };
    let superblock = source.superblock();
    let geometry = superblock.geometry;
    let resized = file.set_len(0).and_then(|()| file.set_len(geometry.region_bytes));
    resized.map_err(failed)?;
    let revision = source.grants(0, 1)?.revision;
    let index = 0..geometry.block_pool_offset.0;
    let pool = geometry.block_pool_offset.0..geometry.region_bytes;
    let mut data_bytes = 0;
    each_part(source, &index, |start, bytes| {
        data_bytes += write_sparse(file, start, bytes)?;
        tell("index", start, index.end);
        Ok(())
    })?;
    // After the tick was read, which must not be later.
    let uptime_ms = source.uptime_ms()?;
    each_part(source, &pool, |start, bytes| {
        data_bytes += write_sparse(file, start, bytes)?;
        tell("block pool", start - pool.start, pool.end - pool.start);
        Ok(())
    })?;
    let mut grants = Vec::new();
    let listing = list_whole(source, &geometry, &mut grants)?;
    if source.is_live() {
        // A rebuild that is under way has gone on by then, so that it shows in the words that changed.
        source.pause(PATIENCE);
    }
    let words =
        geometry.directory_offset.0..geometry.segment_pool_offset.0 + geometry.segment_count * SEGMENT_BYTES;
    let mut changed = Vec::new();
    let mut before = Vec::new();
    each_part(source, &words, |start, bytes| {
        before.resize(bytes.len(), 0);
        file.read_exact_at(&mut before, start).map_err(failed)?;
        let pairs = before.as_chunks::<8>().0.iter().zip(bytes.as_chunks::<8>().0);
        let differs = (start..).step_by(8).zip(pairs).filter(|(_, (before, now))| before != now);
        changed.extend(differs.map(|(offset, _)| offset));
        tell("index again", start - words.start, words.end - words.start);
        Ok(())
    })?;
    // A list that is not of one moment has no sums that could be compared: what the grants leave is what is free.
    let mut facts = Facts { uptime_ms, ..Facts::new(superblock, grants) };
    if listing.is_whole {
        facts.free_bytes = listing.free_bytes;
    }
    let written = Written {
        region_bytes: geometry.region_bytes,
        data_bytes,
        changed_words: changed.len() as u64,
        grants: facts.grants.len() as u64,
    };
    let payload =
        Payload { facts, books_are_still: listing.is_whole && listing.revision == revision, changed };
    let payload = payload.encode();
    let footer = Footer::new(geometry.region_bytes, &payload);
    file.write_all_at(&payload, footer.image_bytes)
        .and_then(|()| file.write_all_at(&footer.encode(), footer.image_bytes + footer.payload_bytes))
        .and_then(|()| file.sync_all())
        .map_err(failed)?;
    Ok(written)
}

fn failed(source: std::io::Error) -> DumpError {
    DumpError::File { doing: "write", source }
}

/// Reads `range` part by part and calls `each` with where a part starts, and its bytes.
fn each_part(
    source: &mut impl RegionSource,
    range: &Range<u64>,
    mut each: impl FnMut(u64, &[u8]) -> Result<(), DumpError>,
) -> Result<(), SourceError> {
    let mut bytes = Vec::new();
    let mut start = range.start;
    while start < range.end {
        let end = range.end.min(start + BYTES_TOGETHER);
        let pieces: Vec<_> = (start..end)
            .step_by(PIECE_BYTES as usize)
            .map(|from| from..end.min(from + PIECE_BYTES))
            .collect();
        source.read(&pieces, &mut bytes)?;
        each(start, &bytes)?;
        start = end;
    }
    Ok(())
}

/// Writes what of `bytes` is not zero; says how much that was.
fn write_sparse(file: &File, start: u64, bytes: &[u8]) -> Result<u64, DumpError> {
    let mut written = 0;
    let mut run = 0..0;
    for (at, page) in bytes.chunks(PAGE_BYTES).enumerate() {
        let from = at * PAGE_BYTES;
        if page.iter().any(|byte| *byte != 0) {
            if run.is_empty() {
                run = from..from;
            }
            run.end = from + page.len();
        } else if !run.is_empty() {
            file.write_all_at(&bytes[run.clone()], start + run.start as u64).map_err(failed)?;
            written += run.len() as u64;
            run = 0..0;
        }
    }
    if !run.is_empty() {
        file.write_all_at(&bytes[run.clone()], start + run.start as u64).map_err(failed)?;
        written += run.len() as u64;
    }
    Ok(written)
}
