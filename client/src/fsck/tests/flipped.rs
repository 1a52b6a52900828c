//! Single flipped bits in what slots reach: each is found, at its place, or belongs to the few that the module names as
//! harmless. Flips of many slots are tried in one look, since a slot's findings are its own.

use std::collections::BTreeSet;

use sidestep_common::layout::{
    BUCKET_BYTES, BlockPlace, Offset, SLOTS_PER_BUCKET, SizeClass, chunk_shape, free_map_offset,
};
use sidestep_common::wire::GrantHolder;

use super::super::Report;
use super::super::testing::{Random, Region, Slot};

const BLIND_BIT: u64 = 61;

/// Where something was found, and the places that go with it: the message of a slot's finding is at the slot.
fn places(report: &Report) -> BTreeSet<u64> {
    assert_eq!(report.findings.len() as u64, report.finding_count(), "all are kept");
    report.findings.iter().map(|finding| finding.offset.0).collect()
}

fn check(region: &Region) -> Report {
    region.check_with(super::super::Options { findings_max: Some(usize::MAX), ..Default::default() })
}

/// Header, key and value of a block, in bits.
fn block_bits(region: &mut Region, slot: Slot) -> u64 {
    let bytes = region.block_mut(slot.block);
    let key_bytes = u64::from(u16::from_le_bytes([bytes[16], bytes[17]]));
    let value_bytes = u64::from(u32::from_le_bytes(bytes[20..24].try_into().unwrap()));
    8 * (40 + key_bytes + value_bytes)
}

/// One bit of each slot's word, but for the blind bit; EMPTY slots too.
#[test]
fn a_flipped_bit_of_any_slot_word_is_found() {
    let sound = Region::filled();
    for seed in 1..=8 {
        let mut random = Random(seed);
        let (mut region, mut flipped) = (sound.clone(), BTreeSet::new());
        for (bucket, _) in sound.buckets() {
            // One a bucket: two that are damaged together may excuse each other.
            let slot = bucket.plus(8 + 8 * random.below(SLOTS_PER_BUCKET as u64));
            let bit =
                Some(random.below(64)).filter(|bit| *bit != BLIND_BIT || sound.word(slot) == 0).unwrap_or(0);
            region.flip(8 * slot.0 + bit);
            flipped.insert(slot.0);
        }
        let found = places(&check(&region));
        let missed: Vec<_> = flipped.difference(&found).collect();
        assert!(missed.is_empty(), "seed {seed}: {missed:x?}");
    }
}

/// One bit of each slot's block (header, key, value), or of its mark.
#[test]
fn a_flipped_bit_of_any_block_or_mark_is_found() {
    let mut sound = Region::filled();
    let slots: Vec<Slot> = sound.slots().collect();
    for seed in 1..=8 {
        let mut random = Random(seed);
        let mut region = sound.clone();
        for &slot in &slots {
            if random.below(8) == 0 {
                region.flip(8 * free_map_offset(slot.block).unwrap().0 + random.below(8));
            } else {
                let bit = random.below(block_bits(&mut sound, slot));
                region.flip(8 * slot.block.offset.0 + bit);
            }
        }
        let report = check(&region);
        assert_eq!(report.finding_count(), slots.len() as u64, "seed {seed}: {:?}", report.by_kind);
        let expected: BTreeSet<_> = slots.iter().map(|slot| slot.offset.0).collect();
        assert_eq!(places(&report), expected, "seed {seed}");
    }
    // The same bit of the header of each.
    for bit in (0..8 * 40).step_by(3) {
        let mut region = sound.clone();
        for slot in &slots {
            region.flip(8 * slot.block.offset.0 + bit);
        }
        assert_eq!(check(&region).finding_count(), slots.len() as u64, "bit {bit}");
    }
}

#[test]
fn a_flipped_bit_of_any_bucket_header_is_found() {
    let sound = Region::filled();
    for bit in 0..64 {
        let mut region = sound.clone();
        let buckets: BTreeSet<u64> = sound.buckets().map(|(offset, _)| offset.0).collect();
        for bucket in &buckets {
            region.flip(8 * bucket + bit);
        }
        // A header's own, or that of a slot that is not sealed though its bucket is.
        let found: BTreeSet<u64> =
            places(&check(&region)).into_iter().map(|place| place - place % BUCKET_BYTES).collect();
        let missed: Vec<_> = buckets.difference(&found).collect();
        assert!(missed.is_empty(), "bit {bit}: {missed:x?}");
    }
}

#[test]
fn a_flipped_bit_of_any_directory_word_is_found() {
    let sound = Region::filled();
    for bit in 0..64 {
        let mut region = sound.clone();
        // Neighbours have nothing in common.
        let entry = bit * 7 % 32;
        region.flip(8 * region.geometry().directory_word_offset(entry).0 + bit);
        let report = check(&region);
        assert!(!report.is_clean(), "bit {bit} of entry {entry}");
    }
}

/// Of the superblock's page every bit counts, but those of a tick that does not lie in the future.
#[test]
fn a_flipped_bit_of_the_superblock_is_found() {
    let mut sound = Region::filled();
    // The rest of the region is of no interest here.
    sound.facts.grants.truncate(1);
    let uptime_ms = sound.facts.uptime_ms.unwrap();
    let mut random = Random(5);
    let sampled: Vec<u64> = (0..32).map(|_| random.below(8 * 4096)).collect();
    for bit in (0..8 * 104).step_by(13).chain(8 * 256..8 * 264).chain(sampled) {
        let mut region = sound.clone();
        region.flip(bit);
        let harmless = (8 * 256..8 * 264).contains(&bit) && region.word(Offset(256)) <= uptime_ms;
        let found = check(&region).findings.iter().any(|finding| finding.offset.0 < 4096);
        assert_eq!(found, !harmless, "bit {bit}");
    }
}

/// Marks of blocks that nobody names are anything: a sweep frees blocks in versions that were never written into them. A flipped
/// one takes the block from one account to another, where it waits for a sweep or an audit, and nothing else comes of it.
#[test]
fn a_flipped_bit_of_an_unnamed_blocks_mark_is_harmless() {
    let sound = Region::filled();
    let named: BTreeSet<(u64, u32)> = sound
        .slots()
        .filter_map(|slot| BlockPlace::of(slot.block.offset, slot.block.class))
        .map(|place| (place.chunk.0, place.index))
        .collect();
    assert!(sound.facts.grants.iter().any(|grant| grant.holder == GrantHolder::Nobody));
    for bit in 0..8 {
        let (mut region, mut flipped) = (sound.clone(), 0);
        for grant in &sound.facts.grants {
            for index in 0..chunk_shape(SizeClass::from_index(grant.class).unwrap()).block_count {
                if !named.contains(&(grant.offset, index)) {
                    region.flip(8 * (grant.offset + u64::from(index)) + bit);
                    flipped += 1;
                }
            }
        }
        let report = check(&region);
        assert_eq!(places(&report), BTreeSet::new(), "bit {bit}");
        assert!(report.accounts.is_balanced(), "bit {bit}");
        let free = sound.check().accounts.free.blocks;
        let expected = if bit == 0 { flipped - free } else { flipped };
        assert_eq!(report.accounts.free.blocks, expected, "bit {bit}");
    }
}
