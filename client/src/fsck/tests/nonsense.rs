//! Regions that are nonsense: looking at them ends, stays within the region, and holds little.

use std::ops::Range;
use std::time::Duration;

use sidestep_common::layout::{SizeClass, SlotWord, Superblock};
use sidestep_common::wire::{GrantHolder, GrantPage, GrantRecord};

use super::super::testing::{Random, Region};
use super::super::{Options, RegionSource, SourceError, Witness, check, dump};

/// A source that watches what it is asked for, and answers some questions with nonsense.
struct Watched {
    region: Region,
    random: Random,
    is_live: bool,
    most_bytes: u64,
}

impl RegionSource for Watched {
    fn superblock(&self) -> Superblock {
        self.region.facts.superblock
    }

    fn read(&mut self, pieces: &[Range<u64>], into: &mut Vec<u8>) -> Result<(), SourceError> {
        into.clear();
        for piece in pieces {
            assert!(piece.start < piece.end && piece.end <= self.region.bytes.len() as u64, "{piece:x?}");
            assert!(piece.end - piece.start <= 2 << 20, "{piece:x?}");
            into.extend(&self.region.bytes[piece.start as usize..piece.end as usize]);
        }
        self.most_bytes = self.most_bytes.max(into.len() as u64);
        Ok(())
    }

    fn grants(&mut self, from: u64, count: u16) -> Result<GrantPage, SourceError> {
        let mut page = self.region.facts.page(from, count);
        if self.random.below(3) == 0 {
            page.revision = self.random.below(2);
            page.more = self.random.below(2) == 0;
        }
        Ok(page)
    }

    fn uptime_ms(&mut self) -> Result<Option<u64>, SourceError> {
        Ok(Some(self.random.below(1 << 20)).filter(|uptime_ms| uptime_ms % 2 == 0))
    }

    fn has_changed(&mut self, _words: &[Witness]) -> Result<bool, SourceError> {
        Ok(self.is_live && self.random.below(4) == 0)
    }

    fn is_live(&self) -> bool {
        self.is_live
    }

    fn pause(&mut self, time: Duration) {
        assert!(time < Duration::from_secs(1));
    }
}

/// Overwrites a part of the region with words that are nonsense but look like what should be there.
fn scribble(region: &mut Region, random: &mut Random) {
    let geometry = region.geometry();
    let classes = SizeClass::COUNT as u64;
    for _ in 0..random.below(3000) {
        let places = match random.below(4) {
            0 => 0..geometry.segment_pool_offset.0,
            1 => geometry.block_pool_offset.0..geometry.region_bytes,
            _ => geometry.segment_pool_offset.0..geometry.block_pool_offset.0,
        };
        let place = (places.start + random.below(places.end - places.start)) & !7;
        let pool = geometry.block_pool_offset.0 + random.below(geometry.block_pool_bytes);
        let word = match random.below(5) {
            0 => random.below(u64::MAX) << 31 ^ random.below(u64::MAX),
            1 => 0,
            2 => SlotWord::CLOSED.bits(),
            _ => random.below(4) << 62 | random.below(classes) << 43 | random.below(3) << 35 | (pool / 64),
        };
        region.set_word(sidestep_common::layout::Offset(place), word);
    }
    for _ in 0..random.below(20) {
        let offset = match random.below(4) {
            0 => random.below(u64::MAX),
            _ => geometry.block_pool_offset.0 + (random.below(geometry.block_pool_bytes) & !0x3fff),
        };
        let holders = [GrantHolder::Session, GrantHolder::Nobody, GrantHolder::Orphan];
        region.facts.grants.push(GrantRecord {
            offset,
            class: random.below(70) as u8,
            holder: holders[random.below(3) as usize],
        });
    }
    if random.below(4) > 0 {
        region.facts.grants.sort_unstable_by_key(|grant| grant.offset);
    }
}

#[test]
fn a_look_at_nonsense_ends() {
    let sound = Region::filled();
    for seed in 1..=30 {
        let mut random = Random(seed);
        let mut region = sound.clone();
        scribble(&mut region, &mut random);
        let is_live = seed % 2 == 0;
        let mut source = Watched { region, random, is_live, most_bytes: 0 };
        let report = check(&mut source, Options { findings_max: Some(10), ..Options::default() }).unwrap();
        assert!(report.findings.len() <= 10);
        assert!(report.finding_count() >= report.findings.len() as u64);
        assert!(source.most_bytes <= 4 << 20, "seed {seed}: {} bytes at once", source.most_bytes);
    }
}

/// Not a byte as it should be.
#[test]
fn a_look_at_noise_ends() {
    let mut region = Region::filled();
    let mut random = Random(9);
    for fill in [0xff, 0x55, 0x00, 0x01] {
        region.bytes.fill(fill);
        let mut source = Watched { region: region.clone(), random: Random(1), is_live: false, most_bytes: 0 };
        assert!(!check(&mut source, Options::default()).unwrap().is_clean());
    }
    region.bytes.iter_mut().for_each(|byte| *byte = random.below(256) as u8);
    let mut source = Watched { region, random, is_live: true, most_bytes: 0 };
    let report = check(&mut source, Options { findings_max: Some(10), ..Options::default() }).unwrap();
    assert!(report.finding_count() > 50, "{report:?}");
}

/// What is dumped is found in the dump as it was in the region.
#[test]
fn a_dump_has_the_same_findings() {
    let sound = Region::filled();
    for seed in 0..6 {
        let mut random = Random(seed);
        let mut region = sound.clone();
        if seed > 0 {
            scribble(&mut region, &mut random);
        }
        // Only what can be in a dump: grants in their order.
        region.facts.grants.sort_unstable_by_key(|grant| grant.offset);
        region.facts.grants.dedup_by_key(|grant| grant.offset);
        let expected = region.check();
        let (_, mut opened) = dumped(&region);
        let found = check(&mut opened, Options::default()).unwrap();
        assert_eq!(found, expected, "seed {seed}");
        assert!(opened.is_still());
    }
}

/// Pages of zeros are holes.
#[test]
fn a_dump_takes_the_room_of_what_was_used() {
    let region = Region::filled();
    let (written, _) = dumped(&region);
    assert_eq!(written.region_bytes, region.bytes.len() as u64);
    assert!(written.data_bytes < written.region_bytes / 2, "{written:?}");
    assert_eq!((written.changed_words, written.grants), (0, region.facts.grants.len() as u64));
}

pub(super) fn dumped(region: &Region) -> (dump::Written, dump::Dump) {
    let mut source = super::super::Still::new(
        region.facts.clone(),
        |offset: sidestep_common::layout::Offset, into: &mut [u8]| {
            into.copy_from_slice(&region.bytes[offset.0 as usize..][..into.len()]);
            Ok(())
        },
    );
    let file = super::memory_file();
    let written = dump::write(&mut source, &file, None).unwrap();
    (written, dump::Dump::open(file).unwrap())
}
