//! Reading the free maps: how an owner learns which of its blocks others have freed.
//!
//! Always true: a block ripens only if its byte equals the version of the use that it is in, and its grace period counts from
//! a moment after the READ of that byte completed. ⚑ While the same operation could still be under way somewhere, no block
//! comes round to a version that it had: chunks whose blocks were reused too often are not harvested.

use sidestep_common::fabric::Reply;
use sidestep_common::layout::{Offset, SizeClass};
use sidestep_common::planted::{Fault, is_planted};
use sidestep_common::wire::ChunkPurpose;

use super::Allocator;
use super::class::Spot;
use super::reuse::{may_reuse, wants_epoch};
use crate::operation::{Action, Context, Operation, Plan, PlannedVerb, Step};

/// Maps read by one harvest at the most.
const MAPS_TOGETHER: usize = 32;
/// And no more bytes of them than this: eight of the longest.
const BYTES_TOGETHER: usize = 128 << 10;
/// A map is read again after this part of the grace period: a block is found at most that much later, and a session that is
/// short of memory does not read the same bytes over and over.
const GRACE_PART: u64 = 8;

/// A harvest at `now_ms` reads maps that were not read since then.
pub const fn due_since_ms(grace_ms: u64, now_ms: u64) -> u64 {
    (now_ms + 1).saturating_sub(grace_ms / GRACE_PART)
}

/// A map to be read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Map {
    chunk: u32,
    offset: Offset,
    bytes: usize,
}

/// READs of some free maps.
#[derive(Debug)]
pub struct Harvest {
    maps: Vec<Map>,
    /// Of these, whose READs are out or back.
    posted: usize,
    /// READs that share a doorbell.
    together: usize,
    /// Blocks that begin to ripen.
    count: u32,
}

impl Allocator {
    /// The next harvest of a class's chunks, of those whose maps were not read since `since_ms`; `None` if there is none, or
    /// the maps have nothing to tell.
    pub fn harvest(&mut self, (class, purpose): (SizeClass, ChunkPurpose), since_ms: u64) -> Option<Harvest> {
        let mut maps = Vec::new();
        let mut bytes = 0;
        let classes = if purpose == ChunkPurpose::Delete { &mut self.deletes } else { &mut self.general };
        let own = &mut classes[usize::from(class.index())].chunks;
        for _ in 0..own.len() {
            let Some(at) = own.pop_front() else { break };
            own.push_back(at);
            let Some(chunk) = self.chunks.get_mut(at) else { continue };
            let is_due = chunk.harvested_ms.is_none_or(|last| last < since_ms);
            if !is_due || chunk.in_use.is_empty() || !may_reuse(chunk.reuses) {
                continue;
            }
            // Behind the last block in use there is nothing to be learned.
            let map = Map { chunk: at, offset: chunk.offset, bytes: chunk.in_use.end() as usize };
            bytes += map.bytes;
            maps.push(map);
            if maps.len() == MAPS_TOGETHER || bytes >= BYTES_TOGETHER {
                break;
            }
        }
        (!maps.is_empty()).then_some(Harvest { maps, posted: 0, together: MAPS_TOGETHER, count: 0 })
    }

    /// A map's bytes, as they were at some moment before `now_ms`. Says how many blocks begin to ripen.
    fn read_map(&mut self, map: Map, bytes: &[u8], now_ms: u64) -> u32 {
        let Some(chunk) = self.chunks.get_mut(map.chunk).filter(|chunk| chunk.offset == map.offset) else {
            return 0;
        };
        chunk.harvested_ms = Some(now_ms);
        let mut ripe = Vec::new();
        let in_use = &chunk.in_use;
        let is_free = |index: u32| {
            let (byte, version) = (bytes.get(index as usize).copied(), chunk.version(index));
            byte == Some(version) || is_planted(Fault::AnyByteHarvested) && byte.is_some_and(|byte| byte != 0)
        };
        ripe.extend(in_use.iter().filter(|index| is_free(*index)));
        if ripe.is_empty() {
            return 0;
        }
        chunk.reuses[0] += 1;
        self.wants_epoch |= wants_epoch(chunk.reuses);
        chunk.ripening += ripe.len() as u32;
        ripe.iter().for_each(|index| chunk.leave_use(*index));
        let (class, purpose) = (chunk.class, chunk.purpose);
        if !self.hands.is_empty() {
            // A CAS of which nothing was known has happened: its block was unlinked again.
            self.hands.retain(|hand| hand.spot.chunk != map.chunk || !ripe.contains(&hand.spot.index));
        }
        let memory = self.memory(class, purpose);
        for index in &ripe {
            memory.ripens(now_ms, Spot { chunk: map.chunk, index: *index });
        }
        ripe.len() as u32
    }
}

impl Operation for Harvest {
    /// How many blocks begin to ripen.
    type Output = u32;

    fn step(&mut self, context: &mut Context<'_>, replies: &[Reply]) -> Step<u32> {
        for (map, reply) in self.maps[self.posted - replies.len()..self.posted].iter().zip(replies) {
            let Reply::Read(buffer) = reply else { unreachable!("a READ brings bytes, not {reply:?}") };
            self.count += context.allocator.read_map(*map, buffer.as_slice(), context.now_ms);
        }
        let plan: Plan = self.maps[self.posted..].iter().take(self.together).map(read).collect();
        if plan.is_empty() {
            return Step::Done(Ok(self.count), None);
        }
        self.posted += plan.len();
        Step::Post(plan)
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
        "free maps"
    }
}

fn read(map: &Map) -> PlannedVerb {
    PlannedVerb { subject: "free map", remote: map.offset, action: Action::Read(map.bytes) }
}
