//! What an honest client's verbs must keep to, whatever it has read.
//!
//! Always true of the client: it READs whole parts of the region, each where such a part can be; it WRITEs its block
//! into a block of a chunk that it was granted and that no word of its own names, or one byte of a free map, and that
//! only for the block that its CAS has just unlinked; it swaps only slots of the bucket that it has just read for the
//! key, and puts there only its own block, written before, with the key's tag.

use std::collections::HashSet;

use sidestep_client::operation::{Action, PendingCas, PlannedVerb};
use sidestep_common::hash::KeyHash;
use sidestep_common::layout::{
    BUCKET_BYTES, BlockPlace, BlockRef, Geometry, Offset, SizeClass, SlotState, SlotWord, chunk_shape,
    free_map_offset,
};
use sidestep_common::wire::BucketReport;

use super::world::SEED;

/// Verbs of a call since something last interfered with it. A block that does not fit is read four times, each time
/// with its bucket, a directory word and up to 30 others; then each of 31 slots may be lost to a rival. Twice that is
/// far from any honest number, and far from no bound.
pub(super) const VERBS_UNDISTURBED_MAX: u32 = 2 * (4 * (1 + 1 + 31 + 1) + 31);

/// Watches one client.
pub(super) struct Watch {
    granted: Vec<(Offset, SizeClass)>,
    /// Own blocks that a word names, or may name: never to be written again.
    out_of_hand: HashSet<Offset>,
    call: CallState,
}

/// What the current call has done.
#[derive(Default)]
struct CallState {
    key: Option<&'static [u8]>,
    /// The bucket that was read last.
    bucket: Option<Offset>,
    written: Option<BlockRef>,
    /// The word that its CAS has replaced.
    unlinked: Option<SlotWord>,
    marked: bool,
    verbs_undisturbed: u32,
}

impl Watch {
    pub(super) fn new() -> Self {
        Self { granted: Vec::new(), out_of_hand: HashSet::new(), call: CallState::default() }
    }

    pub(super) fn granted(&mut self, chunk: Offset, class: SizeClass) {
        self.granted.push((chunk, class));
    }

    pub(super) fn begin(&mut self, key: &'static [u8]) {
        self.call = CallState { key: Some(key), ..CallState::default() };
    }

    /// Something interfered.
    pub(super) fn disturbed(&mut self) {
        self.call.verbs_undisturbed = 0;
    }

    /// Looks at a verb before it executes. Gives the block that a WRITE is to.
    pub(super) fn verb(
        &mut self,
        geometry: &Geometry,
        verb: &PlannedVerb,
        written_bytes: u64,
    ) -> Option<BlockRef> {
        self.call.verbs_undisturbed += 1;
        let count = self.call.verbs_undisturbed;
        assert!(count <= VERBS_UNDISTURBED_MAX, "{count} verbs, and nobody interferes: {verb:?}");
        match verb.action {
            Action::Read(bytes) => self.read(geometry, verb, bytes as u64),
            Action::WriteBlock(_) => return Some(self.write_block(verb, written_bytes)),
            Action::WriteByte(byte) => self.mark(geometry, verb.remote, byte),
            Action::CompareSwap { expected, desired } => self.swap(geometry, verb.remote, expected, desired),
        }
        None
    }

    fn read(&mut self, geometry: &Geometry, verb: &PlannedVerb, bytes: u64) {
        let (at, from) = (verb.remote.0, geometry.segment_pool_offset.0);
        let in_segments = |bytes: u64| at >= from && at + bytes <= geometry.block_pool_offset.0;
        match verb.subject {
            "bucket" => {
                assert!(
                    in_segments(BUCKET_BYTES) && bytes == BUCKET_BYTES && at % BUCKET_BYTES == 0,
                    "{verb:?}"
                );
                let key = self.call.key.expect("a call");
                let place = KeyHash::of(key, SEED).bucket_index();
                assert_eq!((at - from) / BUCKET_BYTES % 64, place, "a bucket that is never this key's");
                self.call.bucket = Some(verb.remote);
            }
            "directory" => {
                let index = KeyHash::of(self.call.key.expect("a call"), SEED)
                    .directory_index(geometry.directory_bits);
                assert_eq!((verb.remote, bytes), (geometry.directory_word_offset(index), 8));
            }
            "block" => {
                let class = SizeClass::holding(bytes).filter(|class| class.bytes() == bytes);
                let class = class.expect("a READ of a whole block");
                assert!(geometry.block_pool_holds(verb.remote, bytes), "{verb:?}");
                assert!(BlockPlace::of(verb.remote, class).is_some(), "no block can be at {verb:?}");
            }
            "slot" => {
                assert!(in_segments(8) && bytes == 8 && at % 8 == 0 && at % BUCKET_BYTES != 0, "{verb:?}")
            }
            other => panic!("a READ of {other}: {verb:?}"),
        }
    }

    /// A full bucket is reported: the one that the key is in, by its directory entry.
    pub(super) fn reports(&self, geometry: &Geometry, report: BucketReport) {
        let hash = KeyHash::of(self.call.key.expect("a call"), SEED);
        assert_eq!(u64::from(report.entry), hash.directory_index(geometry.directory_bits), "{report:?}");
        assert!(report.full, "{report:?} is worth no wait");
    }

    fn write_block(&mut self, verb: &PlannedVerb, bytes: u64) -> BlockRef {
        assert!(self.call.written.is_none(), "a second WRITE of the call's block: {verb:?}");
        let holds = |(chunk, class): &&(Offset, SizeClass)| {
            BlockPlace::of(verb.remote, *class).is_some_and(|place| place.chunk == *chunk)
        };
        let grant = self.granted.iter().find(holds);
        let (chunk, class) = *grant.unwrap_or_else(|| panic!("{verb:?} is in no chunk that was granted"));
        assert!(verb.remote.0 >= chunk.0 + chunk_shape(class).blocks_offset);
        assert!(bytes <= class.bytes(), "{bytes} bytes into a block of {}", class.bytes());
        assert!(!self.out_of_hand.contains(&verb.remote), "{verb:?} is published, or may be");
        let Action::WriteBlock(header) = verb.action else { unreachable!("only called for these") };
        let version = sidestep_common::layout::Version(header.as_bytes()[18]);
        let block = BlockRef { offset: verb.remote, class, version };
        self.call.written = Some(block);
        block
    }

    fn mark(&mut self, geometry: &Geometry, remote: Offset, byte: u8) {
        assert!(geometry.block_pool_holds(remote, 1), "a mark at {remote}");
        assert!(!std::mem::replace(&mut self.call.marked, true), "a second mark at {remote}");
        let word = self.call.unlinked.expect("who marks has won its CAS");
        let (SlotState::Live(block) | SlotState::Deleted(block)) = word.state() else {
            panic!("{word:?} names no block to be freed")
        };
        assert_eq!((Some(remote), byte), (free_map_offset(block), block.version.0), "the mark of {block:?}");
    }

    fn swap(&self, geometry: &Geometry, remote: Offset, expected: u64, desired: u64) {
        let bucket = self.call.bucket.expect("a bucket was read");
        assert!(remote.0 >= geometry.segment_pool_offset.0 && remote.0 < geometry.block_pool_offset.0);
        let within = remote.0.checked_sub(bucket.0 + 8);
        assert!(
            within.is_some_and(|at| at < BUCKET_BYTES - 8 && at % 8 == 0),
            "{remote} is no slot of {bucket}"
        );
        assert!(self.call.unlinked.is_none(), "a CAS behind the one that won");
        let written = self.call.written.expect("the block is written before it is published");
        let word = SlotWord::from_bits(desired);
        let (SlotState::Live(block) | SlotState::Deleted(block)) = word.state() else {
            panic!("a client never puts {word:?}")
        };
        assert_eq!(block, written, "only the own block is published");
        assert_eq!(word.tag(), KeyHash::of(self.call.key.expect("a call"), SEED).tag());
        let expected = SlotWord::from_bits(expected).state();
        let usable = matches!(expected, SlotState::Empty | SlotState::Live(_) | SlotState::Deleted(_));
        assert!(usable, "{expected:?} is never the next expected word");
    }

    /// A CAS has come back with the old word.
    pub(super) fn swapped(&mut self, cas: PendingCas, old: u64) {
        if old == cas.expected {
            self.won(cas);
        }
    }

    /// A CAS is known to have taken effect.
    pub(super) fn won(&mut self, cas: PendingCas) {
        self.in_limbo();
        self.call.unlinked = Some(SlotWord::from_bits(cas.expected));
    }

    /// The fate of the call's CAS is known: its block is named by nothing, and may be written again.
    pub(super) fn not_published(&mut self) {
        if let Some(block) = self.call.written {
            self.out_of_hand.remove(&block.offset);
        }
    }

    /// The call's block may be published, and nobody knows.
    pub(super) fn in_limbo(&mut self) {
        if let Some(block) = self.call.written {
            self.out_of_hand.insert(block.offset);
        }
    }
}
