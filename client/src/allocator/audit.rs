//! Which blocks of this session's chunks nobody names any more although nobody marked them: what an audit is asked for.
//!
//! Always true: a block is reclaimed only if it was in use, and in nobody's hand, when an audit was announced, is in that use
//! still, and the audit did not reach it. What was found stays known until it is reclaimed or not in that use any more. ⚑ Its version is written into its byte of the free map, and only once that has
//! completed it begins to ripen: whoever has the chunk next finds it free.

use sidestep_common::fabric::Reply;
use sidestep_common::layout::{BlockRef, Offset};
use sidestep_common::planted::{Fault, is_planted};
use sidestep_common::wire::AuditedChunk;

use super::Allocator;
use super::chunk::Blocks;
use super::class::Spot;
use super::reuse::{may_reuse, wants_epoch};
use crate::operation::{Action, Context, Operation, PlannedVerb, Step};

/// What of a chunk was in use when an audit was announced. A block that leaves that use leaves it.
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

/// Writes the versions of blocks that an audit did not reach into their bytes, and lets them ripen when that is done. What it
/// does not come to stays unreached: the next one goes on with it.
#[derive(Debug)]
pub struct Reclaim {
    /// Those whose WRITEs are out.
    out: Vec<Found>,
    /// WRITEs that share a doorbell.
    together: usize,
    /// The chunk, and the period of counting, for which a use was counted last.
    counted: Option<Counted>,
    count: u32,
}

/// A chunk by its number, and a period by its own.
type Counted = (u32, u64);

/// WRITEs that share a doorbell at the most.
const WRITES_TOGETHER: usize = 32;
/// Audits of a chunk that may be waited for: one that is done and was asked about, and the next one.
const SNAPSHOTS_MAX: usize = 2;

impl Allocator {
    /// Audit `number` was announced, and no operation of this session's is under way, but for one that waits at its start:
    /// what is in use now was so at the audit's beginning, if its end finds it in the same use. ⚑ The block that is held is
    /// left out: it may be published behind the scan.
    pub fn note_audit(&mut self, number: u64) {
        let held =
            self.held.and_then(|block| self.hands.iter().rev().find(|hand| hand.offset == block.offset));
        let held = held.map(|hand| hand.spot);
        for (at, chunk) in self.chunks.numbered_mut() {
            if chunk.snapshots.iter().all(|snapshot| snapshot.audit != number) {
                let mut blocks = chunk.in_use.clone();
                if let Some(spot) = held.filter(|spot| spot.chunk == at) {
                    blocks.remove(spot.index);
                }
                if chunk.snapshots.len() == SNAPSHOTS_MAX {
                    chunk.snapshots.remove(0);
                }
                chunk.snapshots.push(Snapshot { audit: number, blocks });
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
        let chunks = self.chunks.iter().filter(|chunk| chunk.snapshots.iter().any(wants));
        chunks.map(|chunk| chunk.offset.0).collect()
    }

    /// Takes in what audit `number` found of chunks; [`Allocator::reclaim`] goes on with it.
    pub fn learn_audit(&mut self, number: u64, audited: &[AuditedChunk]) {
        for part in audited {
            let Some(at) = self.chunks.at(Offset(part.offset)) else { continue };
            let Some(chunk) = self.chunks.get_mut(at) else { continue };
            let Some(of_audit) = chunk.snapshots.iter().position(|snapshot| snapshot.audit == number) else {
                continue;
            };
            let snapshot = chunk.snapshots.remove(of_audit);
            let hands_audited = is_planted(Fault::AuditOfBlocksInHand);
            let blocks = if hands_audited { chunk.in_use.clone() } else { snapshot.blocks };
            for index in blocks.iter() {
                let reached =
                    part.reached.get(index as usize / 8).is_some_and(|byte| byte & 1 << (index % 8) != 0);
                if reached {
                    // Of a block in limbo that is all there was to know.
                    self.hands.retain(|hand| hand.spot != Spot { chunk: at, index });
                } else {
                    let count = chunk.shape.block_count;
                    chunk.unreached.get_or_insert_with(|| Blocks::none(count)).add(index);
                }
            }
        }
    }

    /// What audits did not reach, to be reclaimed; `None` if nothing is to be reclaimed now.
    pub fn reclaim(&self) -> Option<Reclaim> {
        let is_any = self.chunks.iter().any(|chunk| chunk.unreached.is_some() && may_reuse(chunk.reuses));
        is_any.then_some(Reclaim { out: Vec::new(), together: WRITES_TOGETHER, counted: None, count: 0 })
    }

    /// The next blocks to be reclaimed by one that has `counted` a use already.
    fn unreached(&self, count: usize, counted: Option<Counted>) -> Vec<Found> {
        let period = self.period.number;
        let chunks = self
            .chunks
            .numbered()
            .filter(|(at, chunk)| may_reuse(chunk.reuses) || counted == Some((*at, period)));
        let found = chunks.flat_map(|(at, chunk)| {
            chunk.unreached.iter().flat_map(Blocks::iter).map(move |index| Found {
                spot: Spot { chunk: at, index },
                byte: chunk.offset.plus(u64::from(index)),
                version: chunk.version(index),
            })
        });
        found.take(count).collect()
    }

    /// A block's byte says that it is free. ⚑ All blocks that one [`Reclaim`] finds in a chunk are one more use of it, in each
    /// period in which some of them begin to ripen.
    fn reclaimed(&mut self, found: &Found, counted: &mut Option<Counted>, now_ms: u64) -> bool {
        let use_of = (found.spot.chunk, self.period.number);
        let Some(chunk) = self.chunks.get_mut(found.spot.chunk) else { return false };
        if !chunk.unreached.as_ref().is_some_and(|unreached| unreached.has(found.spot.index)) {
            return false;
        }
        if *counted != Some(use_of) {
            if !may_reuse(chunk.reuses) {
                return false;
            }
            chunk.reuses[0] += 1;
            self.wants_epoch |= wants_epoch(chunk.reuses);
            *counted = Some(use_of);
        }
        chunk.leave_use(found.spot.index);
        chunk.ripening += 1;
        let (class, purpose) = (chunk.class, chunk.purpose);
        self.hands.retain(|hand| hand.spot != found.spot);
        self.memory(class, purpose).ripens(now_ms, found.spot);
        true
    }
}

impl Reclaim {
    /// The WRITEs that were out are back.
    fn take_in(&mut self, context: &mut Context<'_>) {
        for found in std::mem::take(&mut self.out) {
            let is_reclaimed = context.allocator.reclaimed(&found, &mut self.counted, context.now_ms);
            self.count += u32::from(is_reclaimed);
        }
    }
}

impl Operation for Reclaim {
    type Output = u32;

    fn step(&mut self, context: &mut Context<'_>, _: &[Reply]) -> Step<u32> {
        self.take_in(context);
        self.out = context.allocator.unreached(self.together, self.counted);
        if is_planted(Fault::ReclaimedUnmarked) {
            self.out = context.allocator.unreached(usize::MAX, self.counted);
            self.take_in(context);
        }
        if self.out.is_empty() {
            return Step::Done(Ok(self.count), None);
        }
        Step::Post(self.out.iter().map(write).collect())
    }

    fn spread(&mut self, verbs_max: usize) {
        self.together = self.together.min(verbs_max).max(1);
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
