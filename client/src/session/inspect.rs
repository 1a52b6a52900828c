//! Looking at a region as it is, without keys: for checkers and for dumps.
//!
//! Always true: nothing is changed, nothing outside the region is asked for, and a piece's bytes are those of one READ,
//! so whatever is longer than a word may be of several moments. After a lost connection the READs are posted again, if
//! need be in another life of the server: [`Session::superblock`] tells by its incarnation.

use std::ops::Range;

use sidestep_common::fabric::Reply;
use sidestep_common::layout::Offset;
use sidestep_common::wire::{GrantPage, Request, Response};

use super::Session;
use crate::bootstrap::ReadPiece;
use crate::clock::Deadline;
use crate::driver::Stop;
use crate::error::Error;
use crate::link::{Link, unexpected};
use crate::statistics::Kind;

impl Session {
    /// Reads `pieces` of the region (each a range of bytes, up to 2 MiB long) into `into`, one behind the other,
    /// replacing what is in there. They share round trips as far as buffers and the fabric's limits go. When it returns
    /// all have been read after the call began, in no particular order.
    ///
    /// # Errors
    /// [`Error`]; then `into` has no meaning.
    pub fn read_region(&mut self, pieces: &[Range<u64>], into: &mut Vec<u8>) -> Result<(), Error> {
        self.try_until(Kind::Get, Deadline::after(self.timeout), &mut |_, link, deadline| {
            check_bounds(pieces, link.member.ground.view.superblock.geometry.region_bytes)
                .map_err(Stop::Error)?;
            into.clear();
            into.resize(pieces.iter().map(length).sum(), 0);
            let mut rest = &mut into[..];
            for part in pieces.chunks(link.driver.width()) {
                let (now, later) = rest.split_at_mut(part.iter().map(length).sum());
                read_part(link, part, now, deadline)?;
                rest = later;
            }
            Ok(())
        })
    }

    /// What of the block pool was granted, from the place `from` on, at most `count` grants. A page may have fewer than
    /// that, and says whether there are more.
    ///
    /// # Errors
    /// [`Error`] if the server gives no answer.
    pub fn grants(&mut self, from: u64, count: u16) -> Result<GrantPage, Error> {
        let mut answer = GrantPage::default();
        let endpoint = self.joiner.shared.endpoint.to_string();
        self.try_until(Kind::Get, Deadline::after(self.timeout), &mut |_, link, deadline| {
            let request = Request::Grants { from, count };
            match link.member.control.request(&request, deadline).map_err(Stop::Error)? {
                Response::Grants(page) => answer = page,
                other => return Err(Stop::Error(unexpected(&endpoint, &other))),
            }
            Ok(())
        })?;
        Ok(answer)
    }
}

/// The pieces were checked to be in the region, which this machine's addresses may not hold; buffers don't either.
fn length(piece: &Range<u64>) -> usize {
    usize::try_from(piece.end.saturating_sub(piece.start)).unwrap_or(usize::MAX)
}

fn check_bounds(pieces: &[Range<u64>], region_bytes: u64) -> Result<(), Error> {
    match pieces.iter().find(|piece| piece.end > region_bytes || piece.start >= piece.end) {
        None => Ok(()),
        Some(piece) => {
            let bytes = piece.end.saturating_sub(piece.start);
            Err(Error::Outside { offset: piece.start, bytes, region_bytes })
        }
    }
}

/// Reads pieces that go together into `into`, which is as long as all of them.
fn read_part(
    link: &mut Link,
    pieces: &[Range<u64>],
    into: &mut [u8],
    deadline: Deadline,
) -> Result<(), Stop> {
    let mut start = 0;
    let (mut starts, mut reads) = (Vec::with_capacity(pieces.len()), Vec::with_capacity(pieces.len()));
    for piece in pieces {
        reads.push(ReadPiece::of("region", Offset(piece.start), length(piece)));
        starts.push(start);
        start += length(piece);
    }
    let mut first = None;
    link.driver.run(&mut link.member.ground, &mut reads, deadline, |finished| {
        match (finished.result, finished.replies.first()) {
            (Ok(()), Some(Reply::Read(buffer))) => {
                let bytes = buffer.as_slice();
                into[starts[finished.index]..][..bytes.len()].copy_from_slice(bytes);
            }
            (Ok(()), other) => unreachable!("a READ brings bytes, not {other:?}"),
            (Err(stop), _) => {
                first.get_or_insert(stop);
            }
        }
    });
    first.map_or(Ok(()), Err)
}
