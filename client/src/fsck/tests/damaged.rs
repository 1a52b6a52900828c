//! Every kind of damage, seeded one by one into a sound region: each must be found, as what it is.

use std::collections::BTreeSet;

use sidestep_common::layout::{
    BLOCK_UNIT_BYTES, BUCKET_BYTES, BlockHeader, BlockMeta, BlockPlace, BlockRef, BucketHeader,
    DirectoryWord, Offset, SLOTS_PER_BUCKET, SizeClass, SlotState, SlotWord, TICK_OFFSET, Tag, Version,
    WriteId, chunk_shape, free_map_offset,
};
use sidestep_common::wire::GrantHolder;

use super::super::Problem;
use super::super::testing::{Region, Slot};
use crate::operation::tests::world::SEED;

/// What is done to a sound region, and as what it must be found.
type Damage = (&'static str, fn(&mut Region));

/// A LIVE slot of a small key.
fn live(region: &Region) -> Slot {
    region.slots().find(|slot| !slot.is_deleted && slot.block.class.bytes() == 64).unwrap()
}

fn deleted(region: &Region) -> Slot {
    region.slots().find(|slot| slot.is_deleted).unwrap()
}

/// The bucket that a slot is in.
fn bucket_of(slot: Slot) -> Offset {
    Offset(slot.offset.0 - slot.offset.0 % BUCKET_BYTES)
}

/// The first EMPTY slot of a bucket that has some.
fn first_empty(region: &Region, bucket: Offset) -> Offset {
    let slots = (0..SLOTS_PER_BUCKET as u64).map(|slot| bucket.plus(8 + 8 * slot));
    slots.into_iter().find(|&slot| region.word(slot) == 0).unwrap()
}

/// A bucket with nothing in it.
fn empty_bucket(region: &Region) -> Offset {
    region.buckets().find(|(_, bucket)| bucket.slots.iter().all(|word| word.bits() == 0)).unwrap().0
}

/// Another word for a slot: the block changed.
fn rename(region: &mut Region, slot: Slot, change: impl FnOnce(&mut BlockRef)) {
    let mut block = slot.block;
    change(&mut block);
    region.set_word(slot.offset, SlotWord::live(slot.word.tag(), block, true).bits());
}

/// Another block for a slot, whose checksum fits.
fn rewrite(region: &mut Region, slot: Slot, meta: BlockMeta, key: &[u8], value: &[u8]) {
    let header = BlockHeader::new(slot.block, meta, key, value);
    let bytes = [&header.as_bytes()[..], key, value].concat();
    region.block_mut(slot.block)[..bytes.len()].copy_from_slice(&bytes);
}

const META: BlockMeta = BlockMeta { write_id: WriteId::new(1, 1), expiry_tick: 0, user_flags: 0 };

/// The key of a slot.
fn key_of(region: &mut Region, slot: Slot) -> Vec<u8> {
    let bytes = region.block_mut(slot.block);
    let key_bytes = usize::from(u16::from_le_bytes([bytes[16], bytes[17]]));
    bytes[40..40 + key_bytes].to_vec()
}

/// The first words of a block with its checksum mended, after `change` has changed its header.
fn reseal(region: &mut Region, slot: Slot, change: impl FnOnce(&mut [u8])) {
    let block = slot.block;
    let bytes = region.block_mut(block);
    change(bytes);
    let key_bytes = usize::from(u16::from_le_bytes([bytes[16], bytes[17]]));
    let value_bytes = u32::from_le_bytes(bytes[20..24].try_into().unwrap()) as usize;
    let seed = (block.offset.0 / BLOCK_UNIT_BYTES) << 8 | u64::from(block.version.0);
    let checksum = xxhash_rust::xxh3::xxh3_64_with_seed(&bytes[8..40 + key_bytes + value_bytes], seed);
    bytes[..8].copy_from_slice(&checksum.to_le_bytes());
}

/// The chunk of an extent: what was granted last.
fn unused_place(region: &Region) -> Offset {
    let last = region.facts.grants.last().unwrap();
    let bytes = chunk_shape(SizeClass::from_index(last.class).unwrap()).bytes;
    Offset((last.offset + bytes).next_multiple_of(1 << 20))
}

/// An entry of the directory, changed.
fn change_entry(region: &mut Region, entry: u64, change: impl FnOnce(&mut DirectoryWord)) {
    let offset = region.geometry().directory_word_offset(entry);
    let mut word = DirectoryWord::from_bits(region.word(offset));
    change(&mut word);
    region.set_word(offset, word.to_bits());
}

/// A bucket's header, changed.
fn change_header(region: &mut Region, change: impl FnOnce(&mut BucketHeader)) {
    let bucket = bucket_of(live(region));
    let mut header = BucketHeader::from_bits(region.word(bucket));
    change(&mut header);
    region.set_word(bucket, header.to_bits());
}

const DAMAGES: &[Damage] = &[
    // The superblock.
    ("superblock-invalid", |region| region.bytes[3] ^= 1),
    ("superblock-invalid", |region| region.bytes[8] = 9),
    ("superblock-invalid", |region| region.bytes[33] ^= 4),
    ("superblock-invalid", |region| region.bytes[100] ^= 0x80),
    ("superblock-differs", |region| {
        let mut other = region.facts.superblock;
        other.incarnation += 1;
        region.bytes[..104].copy_from_slice(&other.encode());
    }),
    ("superblock-differs", |region| {
        let mut other = region.facts.superblock;
        other.grace_ms += 1;
        region.bytes[..104].copy_from_slice(&other.encode());
    }),
    ("tick-ahead", |region| region.set_word(TICK_OFFSET, 1_000_001)),
    ("stray-bytes", |region| region.bytes[110] = 1),
    ("stray-bytes", |region| region.bytes[4095] = 1),
    ("stray-bytes", |region| {
        let behind = region.geometry().directory_offset.plus(8 * region.geometry().directory_entries());
        region.set_word(behind, 1);
    }),
    ("stray-bytes", |region| {
        let before = region.geometry().block_pool_offset.0 - 8;
        region.set_word(Offset(before), 1);
    }),
    // The directory.
    ("directory-empty", |region| change_entry(region, 3, |word| word.generation = 0)),
    ("directory-empty", |region| region.set_word(region.geometry().directory_word_offset(3), 0)),
    ("directory-depth", |region| change_entry(region, 3, |word| word.depth += 1)),
    ("segment-outside", |region| change_entry(region, 3, |word| word.segment = 36)),
    ("segment-outside", |region| change_entry(region, 3, |word| word.segment = u32::MAX)),
    ("run-broken", |region| change_entry(region, 4, |word| word.depth -= 1)),
    ("run-broken", |region| change_entry(region, 3, |word| word.depth -= 1)),
    ("segment-named-twice", |region| change_entry(region, 3, |word| word.segment = 28)),
    ("segment-named-twice", |region| change_entry(region, 28, |word| word.segment = 3)),
    // Buckets.
    ("bucket-depth", |region| change_header(region, |header| header.depth -= 1)),
    ("bucket-prefix", |region| change_header(region, |header| header.prefix ^= 1)),
    ("bucket-generation", |region| change_header(region, |header| header.generation = 0)),
    ("bucket-generation", |region| change_entry(region, 3, |word| word.generation = 2)),
    ("slot-open", |region| change_header(region, |header| header.sealed = true)),
    // Slots.
    ("slot-malformed", |region| region.set_word(first_empty(region, empty_bucket(region)), 1)),
    ("slot-malformed", |region| {
        let slot = live(region);
        // A class that is none.
        region.change_word(slot.offset, |word| word | 0x7f << 43);
    }),
    ("empty-before-filled", |region| {
        let slot = live(region);
        let empty = first_empty(region, bucket_of(slot));
        region.set_word(empty.plus(8), slot.word.bits());
    }),
    ("empty-before-filled", |region| {
        let (bucket, _) = region.buckets().find(|(_, bucket)| bucket.slots[1].bits() != 0).unwrap();
        region.set_word(bucket.plus(8), 0);
    }),
    ("slot-closed", |region| {
        let empty = first_empty(region, bucket_of(live(region)));
        region.set_word(empty, SlotWord::CLOSED.bits());
    }),
    ("slot-moved", |region| {
        let slot = live(region);
        region.set_word(slot.offset, slot.word.to_moved().bits());
    }),
    // Where blocks are.
    ("block-outside", |region| {
        let slot = live(region);
        rename(region, slot, |block| block.offset = Offset(4096));
    }),
    ("block-outside", |region| {
        let slot = live(region);
        rename(region, slot, |block| block.offset = Offset(1 << 40));
    }),
    ("block-misplaced", |region| {
        let slot = region.slots().find(|slot| slot.block.class.bytes() == 256).unwrap();
        rename(region, slot, |block| block.offset = block.offset.plus(64));
    }),
    ("block-misplaced", |region| {
        // In the free map.
        let slot = live(region);
        rename(region, slot, |block| block.offset = Offset(block.offset.0 & !0xfffff));
    }),
    ("chunk-not-granted", |region| {
        let unused = unused_place(region);
        let slot = live(region);
        rename(region, slot, |block| {
            *block = BlockPlace { chunk: unused, index: 0 }.block(block.class, block.version)
        });
    }),
    ("chunk-not-granted", |region| {
        region.facts.grants.remove(0);
    }),
    ("chunk-class", |region| {
        let slot = live(region);
        let class = SizeClass::from_index(slot.block.class.index() + 1).unwrap();
        let chunk = BlockPlace::of(slot.block.offset, slot.block.class).unwrap().chunk;
        rename(region, slot, |block| *block = BlockPlace { chunk, index: 0 }.block(class, block.version));
    }),
    ("chunk-class", |region| region.facts.grants[0].class += 1),
    // Blocks.
    ("block-version", |region| {
        let slot = live(region);
        rename(region, slot, |block| block.version = Version(9));
    }),
    ("block-version", |region| {
        let slot = live(region);
        region.block_mut(slot.block)[18] = 2;
    }),
    ("block-lengths", |region| {
        let slot = live(region);
        region.block_mut(slot.block)[20] = 200;
    }),
    ("block-lengths", |region| {
        let slot = live(region);
        region.block_mut(slot.block)[17] = 0xff;
    }),
    ("block-checksum", |region| {
        let slot = live(region);
        region.block_mut(slot.block)[0] ^= 1;
    }),
    ("block-checksum", |region| {
        // The last byte of an extent's value.
        let slot = region.slots().max_by_key(|slot| slot.block.class.bytes()).unwrap();
        region.block_mut(slot.block)[140_000] ^= 1;
    }),
    ("block-checksum", |region| {
        // Another key's block, whole, copied over this one's.
        let slots: Vec<Slot> = region.slots().filter(|slot| slot.block.class.bytes() == 64).take(2).collect();
        let copy = region.block_mut(slots[1].block).to_vec();
        region.block_mut(slots[0].block).copy_from_slice(&copy);
    }),
    ("block-padding", |region| {
        let slot = live(region);
        reseal(region, slot, |bytes| bytes[19] = 1);
    }),
    ("block-padding", |region| {
        let slot = live(region);
        reseal(region, slot, |bytes| bytes[39] = 1);
    }),
    ("key-empty", |region| {
        let slot = live(region);
        rewrite(region, slot, META, b"", b"v");
    }),
    ("key-elsewhere", |region| {
        let slot = live(region);
        rewrite(region, slot, META, b"some other key", b"v");
    }),
    ("key-elsewhere", |region| {
        // Into another bucket: nobody would find it there.
        let slot = live(region);
        let empty = empty_bucket(region).plus(8);
        region.set_word(slot.offset, 0);
        region.set_word(empty, slot.word.bits());
    }),
    ("tag-wrong", |region| {
        let slot = live(region);
        region.change_word(slot.offset, |word| word ^ 1 << 55);
    }),
    ("expiry-bit", |region| {
        let slot = live(region);
        region.change_word(slot.offset, |word| word | 1 << 60);
    }),
    ("expiry-bit", |region| {
        let slot = live(region);
        let key = key_of(region, slot);
        rewrite(region, slot, BlockMeta { expiry_tick: 5, ..META }, &key, b"v");
    }),
    ("deleted-with-value", |region| {
        let slot = deleted(region);
        let key = key_of(region, slot);
        rewrite(region, slot, META, &key, b"v");
    }),
    ("deleted-with-value", |region| {
        let slot = live(region);
        region.set_word(slot.offset, SlotWord::deleted(slot.word.tag(), slot.block, false).bits());
    }),
    ("key-twice", |region| {
        let slot = live(region);
        let key = key_of(region, slot);
        let other = BlockRef { ..in_hand_of(region, slot.block.class) };
        let empty = first_empty(region, bucket_of(slot));
        rewrite(region, Slot { block: other, ..slot }, META, &key, b"other");
        region.set_word(empty, SlotWord::live(slot.word.tag(), other, true).bits());
    }),
    ("block-shared", |region| {
        // In the same bucket.
        let slot = live(region);
        let empty = first_empty(region, bucket_of(slot));
        region.set_word(empty, slot.word.bits());
    }),
    ("block-shared", |region| {
        // In a bucket behind.
        let slot = live(region);
        let (bucket, _) = region.buckets().filter(|(_, bucket)| bucket.slots[0].bits() == 0).last().unwrap();
        region.set_word(bucket.plus(8), slot.word.bits());
    }),
    ("block-shared", |region| {
        // In a bucket before.
        let slot = region.slots().filter(|slot| slot.block.class.bytes() == 64).last().unwrap();
        let empty = empty_bucket(region).plus(8);
        region.set_word(empty, slot.word.bits());
    }),
    // Free maps, and memory that nobody uses.
    ("marked-free", |region| {
        let slot = live(region);
        let mark = free_map_offset(slot.block).unwrap().0 as usize;
        region.bytes[mark] = slot.block.version.0;
    }),
    ("marked-free", |region| {
        let slot = deleted(region);
        let mark = free_map_offset(slot.block).unwrap().0 as usize;
        region.bytes[mark] = slot.block.version.0;
    }),
    ("mark-ahead", |region| {
        let slot = live(region);
        let mark = free_map_offset(slot.block).unwrap().0 as usize;
        region.bytes[mark] = 2;
    }),
    ("map-padding", |region| {
        let grant = region.facts.grants[0];
        let shape = chunk_shape(SizeClass::from_index(grant.class).unwrap());
        region.bytes[grant.offset as usize + shape.block_count as usize] = 1;
    }),
    // What the memory node says.
    ("grant-class", |region| region.facts.grants[0].class = 200),
    ("grant-outside", |region| {
        let mut outside = *region.facts.grants.last().unwrap();
        outside.offset = region.bytes.len() as u64;
        region.facts.grants.push(outside);
    }),
    ("grant-misaligned", |region| region.facts.grants[0].offset += 16 << 10),
    ("grant-overlap", |region| {
        let grant = region.facts.grants[0];
        let extent = region.facts.grants.last().unwrap().class;
        let overlapping =
            sidestep_common::wire::GrantRecord { offset: grant.offset + (32 << 10), class: extent, ..grant };
        region.facts.grants.insert(1, overlapping);
    }),
    ("pool-accounts", |region| region.facts.free_bytes -= 64),
    ("pool-accounts", |region| {
        region.facts.grants.pop();
    }),
];

/// A block of that class that the living session has in hand, in a chunk made for it.
fn in_hand_of(region: &mut Region, class: SizeClass) -> BlockRef {
    let grant = &mut region.facts.grants[0];
    assert_eq!(grant.class, class.index());
    grant.holder = GrantHolder::Session;
    let index = chunk_shape(class).block_count - 1;
    BlockPlace { chunk: Offset(grant.offset), index }.block(class, Version(1))
}

/// Each of them is found as what it is, with the place and both values in its message; and there is one for every kind
/// of problem that there is.
#[test]
fn every_kind_of_damage_is_found() {
    let sound = Region::filled();
    let (mut kinds, mut count) = (BTreeSet::new(), 0);
    for (number, (kind, damage)) in DAMAGES.iter().enumerate() {
        let mut region = sound.clone();
        damage(&mut region);
        let report = region.check();
        assert!(report.count_of(kind) > 0, "damage {number}, {kind}, was found as {:?}", report.by_kind);
        for finding in &report.findings {
            assert!(finding.to_string().contains(finding.problem.name()), "{finding}");
        }
        kinds.insert(*kind);
        count += 1;
    }
    assert_eq!(kinds, Problem::NAMES.iter().copied().collect());
    println!("{count} seeded damages of {} kinds, all found", kinds.len());
    assert!(kinds.len() >= 30, "{kinds:?}");
}

/// The keys of the table's stories are where the table thinks they are.
#[test]
fn the_table_damages_what_it_says() {
    let mut region = Region::filled();
    let slot = live(&region);
    let key = key_of(&mut region, slot);
    let hash = sidestep_common::hash::KeyHash::of(&key, SEED);
    assert_eq!(hash.tag(), slot.word.tag());
    assert_eq!(Tag::from_low_bits(hash.bits()), slot.word.tag());
    assert!(matches!(slot.word.state(), SlotState::Live(_)));
}
