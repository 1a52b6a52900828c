//! Which blocks of this session's chunks nobody names any more although nobody marked them: what an audit is asked for.
//!
//! Always true: a block is reclaimed only if it was in use, and in nobody's hand, when an audit was announced, is in that use
//! still, and the audit did not reach it. ⚑ Its version is written into its byte of the free map, and only once that has
//! completed it begins to ripen: whoever has the chunk next finds it free.

use sidestep_common::fabric::Reply;
use sidestep_common::layout::{BlockRef, Offset};
use sidestep_common::planted::{Fault, is_planted};
use sidestep_common::wire::AuditedChunk;

use super::Allocator;
use super::chunk::Blocks;
use super::class::Spot;
use crate::operation::{Action, Context, Operation, Plan, PlannedVerb, Step};

/// What of a chunk was in use when an audit was announced. A block that ripens meanwhile leaves it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Snapshot {
    pub(super) audit: u64,
    pub(super) blocks: Blocks,
}

/// A block that is to be reclaimed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Found {
    spot: Spot,
    byte: Offset,
    version: u8,
}

/// Writes the versions of blocks that an audit did not reach into their bytes, and lets them ripen when that is done.
#[derive(Debug)]
pub struct Reclaim {
    found: Vec<Found>,
    posted: usize,
    count: u32,
}

/// WRITEs that share a doorbell; half of what the smallest sensible queue takes.
const WRITES_TOGETHER: usize = 32;

impl Allocator {
    /// Audit `number` was announced, and no operation of this session's is under way, but for one that waits at its start:
    /// what is in use now was so at the audit's beginning, if its end finds it in the same use. ⚑ The block that is held is
    /// left out: it may be published behind the scan.
    pub fn note_audit(&mut self, number: u64) {
        let held =
            self.held.and_then(|block| self.hands.iter().rev().find(|hand| hand.offset == block.offset));
        let held = held.map(|hand| hand.spot);
        for (at, chunk) in self.chunks.numbered_mut() {
            if chunk.snapshot.as_ref().is_none_or(|snapshot| snapshot.audit != number) {
                let mut blocks = chunk.in_use.clone();
                if let Some(spot) = held.filter(|spot| spot.chunk == at) {
                    blocks.remove(spot.index);
                }
                chunk.snapshot = Some(Snapshot { audit: number, blocks });
            }
        }
    }

    /// The block that the operation at its start has in hand, while it waits.
    pub const fn hold(&mut self, block: Option<BlockRef>) {
        self.held = block;
    }

    /// Chunks of which audit `number` can tell something new.
    pub fn audited_chunks(&self, number: u64) -> Vec<u64> {
        let wants = |snapshot: &Snapshot| snapshot.audit == number && !snapshot.blocks.is_empty();
        let chunks = self.chunks.iter().filter(|chunk| chunk.snapshot.as_ref().is_some_and(wants));
        chunks.map(|chunk| chunk.offset.0).collect()
    }

    /// Takes in what audit `number` found of chunks. `None` if nothing is to be reclaimed.
    pub fn learn_audit(&mut self, number: u64, audited: &[AuditedChunk]) -> Option<Reclaim> {
        let mut found = Vec::new();
        for part in audited {
            let Some(at) = self.chunks.at(Offset(part.offset)) else { continue };
            let Some(chunk) = self.chunks.get_mut(at) else { continue };
            let Some(snapshot) = chunk.snapshot.take_if(|snapshot| snapshot.audit == number) else {
                continue;
            };
            let hands_audited = is_planted(Fault::AuditOfBlocksInHand);
            let blocks = if hands_audited { &chunk.in_use } else { &snapshot.blocks };
            for index in blocks.iter() {
                let reached =
                    part.reached.get(index as usize / 8).is_some_and(|byte| byte & 1 << (index % 8) != 0);
                if reached {
                    // Of a block in limbo that is all there was to know.
                    self.hands.retain(|hand| hand.spot != Spot { chunk: at, index });
                } else {
                    let byte = chunk.offset.plus(u64::from(index));
                    found.push(Found {
                        spot: Spot { chunk: at, index },
                        byte,
                        version: chunk.version(index),
                    });
                }
            }
        }
        (!found.is_empty()).then_some(Reclaim { found, posted: 0, count: 0 })
    }

    fn reclaimed(&mut self, found: &Found, now_ms: u64) -> bool {
        let Some(chunk) = self.chunks.get_mut(found.spot.chunk) else { return false };
        if !chunk.in_use.has(found.spot.index) || chunk.version(found.spot.index) != found.version {
            return false;
        }
        chunk.in_use.remove(found.spot.index);
        chunk.ripening += 1;
        chunk.reuses[0] += 1;
        let (class, purpose) = (chunk.class, chunk.purpose);
        self.hands.retain(|hand| hand.spot != found.spot);
        self.memory(class, purpose).ripens(now_ms, found.spot);
        true
    }
}

impl Operation for Reclaim {
    type Output = u32;

    fn step(&mut self, context: &mut Context<'_>, replies: &[Reply]) -> Step<u32> {
        for found in &self.found[self.posted - replies.len()..self.posted] {
            self.count += u32::from(context.allocator.reclaimed(found, context.now_ms));
        }
        if is_planted(Fault::ReclaimedUnmarked) {
            for found in &self.found {
                self.count += u32::from(context.allocator.reclaimed(found, context.now_ms));
            }
            return Step::Done(Ok(self.count), None);
        }
        let rest = &self.found[self.posted..];
        if rest.is_empty() {
            return Step::Done(Ok(self.count), None);
        }
        let plan: Plan = rest.iter().take(WRITES_TOGETHER).map(write).collect();
        self.posted += plan.len();
        Step::Post(plan)
    }

    fn block_pieces(&self) -> (&[u8], &[u8]) {
        (&[], &[])
    }

    fn restarts(&self) -> u32 {
        0
    }

    fn stage(&self) -> &'static str {
        "reclaim"
    }
}

fn write(found: &Found) -> PlannedVerb {
    PlannedVerb { subject: "free map", remote: found.byte, action: Action::WriteByte(found.version) }
}
