//! What tests of this folder share: a small region in memory, laid out as a server does and filled by real operations.

use sidestep_common::layout::{
    AtomicityDomain, BUCKET_BYTES, BlockRef, Bucket, Geometry, Offset, SEGMENT_BYTES,
    SPARE_SUPERBLOCK_OFFSET, SlotState, SlotWord, Superblock,
};
use sidestep_common::wire::GrantHolder;

use super::{Facts, Options, Report, Still, check};
use crate::operation::tests::world::{Actor, Call, SEED, World, alone};

pub(super) const REGION_BYTES: u64 = 5 << 20;
const UPTIME_MS: u64 = 1_000_000;

pub(super) fn superblock() -> Superblock {
    Superblock {
        geometry: Geometry::for_region(4 << 20).unwrap(),
        incarnation: 0x1122_3344,
        hash_seed: SEED,
        domain: AtomicityDomain::Cpu,
        grace_ms: 1000,
    }
}

/// A slot that is not EMPTY.
#[derive(Clone, Copy, Debug)]
pub(super) struct Slot {
    pub(super) offset: Offset,
    pub(super) word: SlotWord,
    pub(super) block: BlockRef,
    pub(super) is_deleted: bool,
}

/// A region that nobody changes but the test.
#[derive(Clone)]
pub(super) struct Region {
    pub(super) bytes: Vec<u8>,
    pub(super) facts: Facts,
}

impl Region {
    /// Keys of all kinds: new, overwritten, deleted, with values from none to an extent's; a session that has ended and
    /// one that lives.
    pub(super) fn filled() -> Self {
        let mut world = World::with(REGION_BYTES, 0);
        let (mut gone, mut living) = (Actor::new(1), Actor::new(2));
        for number in 0..400_u32 {
            let key = format!("key {number}").into_bytes();
            alone(&mut world, &mut gone, Call::Put(&key, &number.to_le_bytes()));
            if number.is_multiple_of(4) {
                alone(&mut world, &mut gone, Call::Put(&key, b"another value"));
            }
            if number.is_multiple_of(5) {
                alone(&mut world, &mut gone, Call::Delete(&key));
            }
        }
        for number in 0..60_u32 {
            let key = format!("longer {number}").into_bytes();
            alone(&mut world, &mut living, Call::Put(&key, &[number as u8; 200]));
        }
        alone(&mut world, &mut living, Call::Put(b"huge", &[7; 140_000]));
        alone(&mut world, &mut living, Call::Put(b"huge too", &[8; 140_000]));
        let mut region = Self::of(&world);
        region.facts.grants[0].holder = GrantHolder::Nobody;
        region
    }

    /// A region as it is now.
    pub(super) fn of(world: &World) -> Self {
        let mut bytes = vec![0; world.superblock.geometry.region_bytes as usize];
        world.memory.read(Offset(0), &mut bytes).unwrap();
        let encoded = world.superblock.encode();
        for at in [0, SPARE_SUPERBLOCK_OFFSET.0 as usize] {
            bytes[at..][..encoded.len()].copy_from_slice(&encoded);
        }
        Self { bytes, facts: facts(world) }
    }

    pub(super) fn geometry(&self) -> Geometry {
        self.facts.superblock.geometry
    }

    pub(super) fn check(&self) -> Report {
        self.check_with(Options::default())
    }

    pub(super) fn check_with(&self, options: Options<'_>) -> Report {
        let mut source = Still::new(self.facts.clone(), |offset: Offset, into: &mut [u8]| {
            into.copy_from_slice(&self.bytes[offset.0 as usize..][..into.len()]);
            Ok(())
        });
        check(&mut source, options).unwrap()
    }

    pub(super) fn word(&self, offset: Offset) -> u64 {
        u64::from_le_bytes(self.bytes[offset.0 as usize..][..8].try_into().unwrap())
    }

    pub(super) fn set_word(&mut self, offset: Offset, word: u64) {
        self.bytes[offset.0 as usize..][..8].copy_from_slice(&word.to_le_bytes());
    }

    pub(super) fn change_word(&mut self, offset: Offset, change: impl FnOnce(u64) -> u64) {
        self.set_word(offset, change(self.word(offset)));
    }

    pub(super) fn flip(&mut self, bit: u64) {
        self.bytes[bit as usize / 8] ^= 1 << (bit % 8);
    }

    /// All buckets of segments that the directory names: where, and what is in them.
    pub(super) fn buckets(&self) -> impl Iterator<Item = (Offset, Bucket)> {
        let geometry = self.geometry();
        let start = geometry.segment_pool_offset.0;
        (start..start + geometry.directory_entries() * SEGMENT_BYTES)
            .step_by(BUCKET_BYTES as usize)
            .map(|offset| (Offset(offset), Bucket::parse(&self.bytes[offset as usize..])))
    }

    /// All slots that name blocks.
    pub(super) fn slots(&self) -> impl Iterator<Item = Slot> {
        self.buckets().flat_map(|(bucket, words)| {
            words.slots.into_iter().enumerate().filter_map(move |(slot, word)| {
                let offset = bucket.plus(8 + 8 * slot as u64);
                match word.state() {
                    SlotState::Live(block) => Some(Slot { offset, word, block, is_deleted: false }),
                    SlotState::Deleted(block) => Some(Slot { offset, word, block, is_deleted: true }),
                    _ => None,
                }
            })
        })
    }

    /// The bytes of a block.
    pub(super) fn block_mut(&mut self, block: BlockRef) -> &mut [u8] {
        &mut self.bytes[block.offset.0 as usize..][..block.class.bytes() as usize]
    }
}

/// What a memory node would say of a world.
pub(super) fn facts(world: &World) -> Facts {
    let grants = world.granted.iter().map(|grant| Facts::in_use(grant.offset, grant.class)).collect();
    Facts { uptime_ms: Some(UPTIME_MS), ..Facts::new(world.superblock, grants) }
}

/// A random number below `below`, in steps that a seed repeats.
pub(super) struct Random(pub(super) u64);

impl Random {
    pub(super) fn below(&mut self, below: u64) -> u64 {
        self.0 = self.0.wrapping_mul(0xd134_2543_de82_ef95).wrapping_add(1);
        (self.0 >> 33) % below.max(1)
    }
}
