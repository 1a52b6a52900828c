//! A memory node that is nothing but the fuzzer's answers, behind the trait of a fabric.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use arbitrary::Arbitrary;
use sidestep_common::fabric::{
    Batch, BufferPool, Completion, Effect, Fabric, FabricKind, Failure, FailureKind, Limits, PostError,
    Replies, Reply, Unregistered, Verb,
};
use sidestep_common::hash::KeyHash;
use sidestep_common::layout::{
    BLOCK_HEADER_BYTES, BUCKET_BYTES, BlockHeader, BlockMeta, BlockPlace, BlockRef, BucketHeader,
    DirectoryWord, Geometry, Offset, SEGMENT_BYTES, SizeClass, SlotWord, Superblock, Version, WriteId,
    chunk_shape,
};
use sidestep_common::wire::ChunkGrant;

pub(super) const SEED: u64 = 7;
/// Every byte of the values in the node's blocks.
pub(super) const FILL: u8 = 0xaa;
/// Then the node hangs up, so that a client which goes on for its whole deadline costs little.
const VERBS_MAX: u32 = 4000;

pub(super) fn key(number: u8) -> &'static [u8] {
    [b"a", b"b", b"c"][usize::from(number) % 3]
}

#[derive(Arbitrary, Debug)]
pub(super) struct NodeSpec {
    /// Directory words, over and over.
    directory: Vec<DirectorySpec>,
    header: HeaderSpec,
    /// Slots, over and over.
    slots: Vec<SlotSpec>,
    block: BlockSpec,
    /// What a CAS finds: over and over.
    swaps: Vec<SwapSpec>,
    /// The node hangs up after so many verbs.
    hang_up: Option<u8>,
}

#[derive(Arbitrary, Clone, Copy, Debug)]
enum DirectorySpec {
    /// The entry's own segment.
    Own {
        generation: u8,
    },
    Any(u64),
    /// One generation later each time that it is read.
    Later,
    /// One generation earlier each time that it is read.
    Earlier,
}

#[derive(Arbitrary, Clone, Copy, Debug)]
enum HeaderSpec {
    /// As it should be, in a segment of that entry.
    Right {
        sealed: bool,
    },
    Any(u64),
}

#[derive(Arbitrary, Clone, Copy, Debug)]
enum SlotSpec {
    Empty,
    Closed,
    Named { state: u8, key: u8, blind: bool, class: u8, index: u32, version: u8 },
    Any(u64),
}

#[derive(Arbitrary, Clone, Copy, Debug)]
struct BlockSpec {
    key: u8,
    value_bytes: u16,
    /// The version that it fits.
    version: u8,
    changed_byte: Option<u16>,
}

#[derive(Arbitrary, Clone, Copy, Debug)]
enum SwapSpec {
    Expected,
    Desired,
    Slot(SlotSpec),
}

/// What the client did, and what it may do.
pub(super) struct Seen {
    geometry: Geometry,
    granted: Vec<(Offset, SizeClass)>,
    verbs: u32,
}

impl Seen {
    pub(super) fn new(geometry: Geometry, grants: &[ChunkGrant]) -> Self {
        let class = |grant: &ChunkGrant| Some((Offset(grant.offset), SizeClass::from_index(grant.class)?));
        Self { geometry, granted: grants.iter().filter_map(class).collect(), verbs: 0 }
    }

    fn in_segments(&self, at: u64, bytes: u64) -> bool {
        at >= self.geometry.segment_pool_offset.0 && at + bytes <= self.geometry.block_pool_offset.0
    }

    fn verb(&mut self, verb: &Verb<'_>) {
        self.verbs += 1;
        let (at, bytes) = (verb.remote(), verb.bytes() as u64);
        let end = at.0.checked_add(bytes);
        assert!(end.is_some_and(|end| end <= self.geometry.region_bytes), "{verb:?} leaves the region");
        match verb {
            Verb::Read { .. } => {}
            Verb::Write { .. } if bytes == 1 => {
                assert!(self.geometry.block_pool_holds(at, 1), "a mark at {at}");
            }
            Verb::Write { .. } => {
                let own = self.granted.iter().any(|(chunk, class)| {
                    BlockPlace::of(at, *class).is_some_and(|place| place.chunk == *chunk)
                        && bytes <= class.bytes()
                        && at.0 >= chunk.0 + chunk_shape(*class).blocks_offset
                });
                assert!(own, "a WRITE of {bytes} bytes to {at}, which was not granted");
            }
            Verb::CompareSwap { .. } => {
                let is_slot = at.0 % 8 == 0 && at.0 % BUCKET_BYTES != 0 && self.in_segments(at.0, 8);
                assert!(is_slot, "a CAS of {at}, which is no slot");
            }
            Verb::FetchAdd { .. } => panic!("no operation adds"),
        }
    }
}

/// A connection to the node.
pub(super) fn fabric(
    spec: NodeSpec,
    superblock: Superblock,
    found: Vec<u8>,
    seen: Arc<Mutex<Seen>>,
) -> impl Fabric {
    Connection {
        spec,
        superblock,
        found,
        seen,
        directory_reads: 0,
        swaps: 0,
        written: None,
        completed: Vec::new(),
        broken: false,
        buffers: BufferPool::new(Box::new(Unregistered), 32 << 20),
    }
}

struct Connection {
    spec: NodeSpec,
    superblock: Superblock,
    /// The superblock's bytes, as the data path has them.
    found: Vec<u8>,
    seen: Arc<Mutex<Seen>>,
    directory_reads: u32,
    swaps: usize,
    /// The block that was written last.
    written: Option<(Offset, Vec<u8>)>,
    completed: Vec<Completion>,
    broken: bool,
    buffers: BufferPool,
}

impl Connection {
    fn execute(&mut self, verb: Verb<'_>) -> Option<Reply> {
        let verbs = {
            let mut seen = self.seen.lock().expect("one thread");
            seen.verb(&verb);
            seen.verbs
        };
        if verbs > VERBS_MAX || self.spec.hang_up.is_some_and(|after| verbs > u32::from(after)) {
            if let Verb::Read { into, .. } = verb {
                self.buffers.recycle(into);
            }
            return None;
        }
        Some(match verb {
            Verb::Read { remote, mut into } => {
                self.read(remote, into.as_mut_slice());
                Reply::Read(into)
            }
            Verb::Write { remote, from } => {
                self.written = Some((remote, from.concat()));
                Reply::Written
            }
            Verb::CompareSwap { expected, desired, .. } => Reply::Old(self.swap(expected, desired)),
            Verb::FetchAdd { .. } => unreachable!("looked at before"),
        })
    }

    fn swap(&mut self, expected: u64, desired: u64) -> u64 {
        self.swaps += 1;
        match self.spec.swaps.get((self.swaps - 1) % self.spec.swaps.len().max(1)) {
            None | Some(SwapSpec::Expected) => expected,
            Some(SwapSpec::Desired) => desired,
            Some(SwapSpec::Slot(slot)) => self.slot_word(*slot),
        }
    }

    /// What is where, by the part of the region.
    fn read(&mut self, remote: Offset, into: &mut [u8]) {
        into.fill(0);
        let geometry = self.superblock.geometry;
        if remote.0 < geometry.directory_offset.0 {
            let from = self.found.get(remote.0 as usize..).unwrap_or_default();
            let count = from.len().min(into.len());
            into[..count].copy_from_slice(&from[..count]);
        } else if remote.0 < geometry.segment_pool_offset.0 {
            self.directory_reads += 1;
            let first = (remote.0 - geometry.directory_offset.0) / 8;
            for (index, word) in (first..).zip(into.chunks_exact_mut(8)) {
                word.copy_from_slice(&self.directory_word(index).to_le_bytes());
            }
        } else if remote.0 < geometry.block_pool_offset.0 {
            for (at, word) in (remote.0..).step_by(8).zip(into.chunks_exact_mut(8)) {
                word.copy_from_slice(&self.index_word(at).to_le_bytes());
            }
        } else if let Some((_, bytes)) = self.written.as_ref().filter(|(at, _)| *at == remote) {
            let count = bytes.len().min(into.len());
            into[..count].copy_from_slice(&bytes[..count]);
        } else {
            self.read_block(remote, into);
        }
    }

    fn directory_word(&self, index: u64) -> u64 {
        let depth = self.superblock.geometry.directory_bits;
        let own = |generation| DirectoryWord { segment: index as u32, generation, depth }.to_bits();
        let specs = &self.spec.directory;
        match specs.get(index as usize % specs.len().max(1)) {
            None => own(1),
            Some(DirectorySpec::Own { generation }) => own((*generation).into()),
            Some(DirectorySpec::Any(bits)) => *bits,
            Some(DirectorySpec::Later) => own(self.directory_reads),
            Some(DirectorySpec::Earlier) => own(10_000_u32.saturating_sub(self.directory_reads)),
        }
    }

    fn index_word(&self, at: u64) -> u64 {
        let within = (at % BUCKET_BYTES / 8) as usize;
        let Some(slot) = within.checked_sub(1) else {
            let segment = (at - self.superblock.geometry.segment_pool_offset.0) / SEGMENT_BYTES;
            let depth = self.superblock.geometry.directory_bits;
            return match self.spec.header {
                HeaderSpec::Any(bits) => bits,
                HeaderSpec::Right { sealed } => {
                    BucketHeader { depth, prefix: segment as u32, generation: 1, sealed }.to_bits()
                }
            };
        };
        let slots = &self.spec.slots;
        slots.get(slot % slots.len().max(1)).map_or(0, |spec| self.slot_word(*spec))
    }

    fn slot_word(&self, spec: SlotSpec) -> u64 {
        match spec {
            SlotSpec::Empty => 0,
            SlotSpec::Closed => SlotWord::CLOSED.bits(),
            SlotSpec::Any(bits) => bits,
            SlotSpec::Named { state, key: number, blind, class, index, version } => {
                let class = SizeClass::from_index(class % SizeClass::COUNT as u8).expect("a class in use");
                let chunk = Offset(self.superblock.geometry.block_pool_offset.0);
                let index = index % (chunk_shape(class).block_count + 1);
                let block = BlockPlace { chunk, index }.block(class, Version(version));
                let tag = KeyHash::of(key(number), SEED).tag();
                match state % 3 {
                    0 => SlotWord::live(tag, block, blind),
                    1 => SlotWord::deleted(tag, block, blind),
                    _ => SlotWord::live(tag, block, blind).to_moved(),
                }
                .bits()
            }
        }
    }

    /// A block that fits one version of wherever it is read.
    fn read_block(&self, remote: Offset, into: &mut [u8]) {
        let spec = self.spec.block;
        let key = key(spec.key);
        let Some(class) = SizeClass::holding(into.len() as u64) else { return };
        if into.len() < BLOCK_HEADER_BYTES + key.len() {
            return;
        }
        let value_bytes = usize::from(spec.value_bytes).min(into.len() - BLOCK_HEADER_BYTES - key.len());
        let value = vec![FILL; value_bytes];
        let place = BlockRef { offset: remote, class, version: Version(spec.version) };
        let meta = BlockMeta { write_id: WriteId::new(2, 3), expiry_tick: 0, user_flags: 0 };
        let header = BlockHeader::new(place, meta, key, &value);
        let bytes = [header.as_bytes(), key, &value].concat();
        into[..bytes.len()].copy_from_slice(&bytes);
        if let Some(at) = spec.changed_byte {
            into[usize::from(at) % bytes.len()] ^= 0x10;
        }
    }
}

impl Fabric for Connection {
    fn kind(&self) -> FabricKind {
        FabricKind::Sim
    }

    fn limits(&self) -> Limits {
        Limits { verbs_in_flight_max: 256, verb_bytes_max: 2 << 20 }
    }

    fn describe(&self) -> String {
        "a hostile node".into()
    }

    fn buffers(&mut self) -> &mut BufferPool {
        &mut self.buffers
    }

    fn post(&mut self, batches: &mut [Batch<'_>]) -> Result<(), PostError> {
        if self.broken {
            return Err(PostError::Broken("the node has hung up".into()));
        }
        for batch in batches {
            let mut replies = Replies::new();
            let mut failure = None;
            for (verb_index, verb) in batch.verbs.drain(..).enumerate() {
                match self.execute(verb) {
                    Some(reply) => replies.push(reply),
                    None => {
                        let kind = FailureKind::Disconnected("the node has hung up".into());
                        failure = Some(Failure { verb_index, kind, effect: Effect::Unknown });
                        break;
                    }
                }
            }
            self.broken |= failure.is_some();
            if !batch.silent {
                let result = failure.map_or(Ok(replies), Err);
                self.completed.push(Completion { batch: batch.id, result });
            }
        }
        Ok(())
    }

    fn poll(&mut self, completions: &mut Vec<Completion>) -> usize {
        let count = self.completed.len();
        completions.append(&mut self.completed);
        count
    }

    fn wait(&mut self, _timeout: Duration) {
        assert!(!self.completed.is_empty(), "nothing is under way, and the client waits");
    }
}
