//! A region in which nothing is wrong, and what is in it.

use sidestep_common::layout::{SizeClass, chunk_shape};

use super::super::testing::Region;
use super::super::{Notes, Options, Progress, Sum};

/// 400 keys, every fourth overwritten, every fifth deleted afterwards, and 62 longer ones: all are counted, and so is every
/// byte of the pool.
#[test]
fn a_sound_region_has_no_findings_and_adds_up() {
    let region = Region::filled();
    let mut steps = Vec::new();
    let mut tell = |progress: Progress| {
        assert!(progress.done <= progress.all, "{progress:?}");
        steps.push(progress.step);
    };
    let report = region.check_with(Options { progress: Some(&mut tell), findings_max: None });
    assert_eq!((&report.findings[..], report.notes), (&[][..], Notes::default()));
    let index = report.index;
    assert_eq!((index.live, index.deleted, index.moved, index.segments), (320 + 62, 80, 0, 32));
    assert_eq!(index.live + index.deleted + index.empty, 32 * 64 * 31);
    assert_eq!(index.value_bytes, 240 * 4 + 80 * 13 + 60 * 200 + 2 * 140_000);
    let accounts = report.accounts;
    let sum = |blocks, block_bytes| Sum { blocks, bytes: blocks * block_bytes };
    assert_eq!(accounts.deleted, sum(80, 64));
    assert_eq!(accounts.free, sum(100 + 80, 64), "overwritten or deleted");
    assert_eq!(accounts.live.blocks, 320 + 62);
    let first = chunk_shape(SizeClass::holding(64).unwrap());
    // What nobody has in hand, and what the other session may have.
    assert_eq!(accounts.unused, sum(u64::from(first.block_count) - 400 - 180, 64));
    assert!(accounts.in_hand.blocks > 0 && accounts.left_behind.blocks == 0);
    assert_eq!(accounts.grants, region.facts.grants.len() as u64);
    assert!(accounts.is_balanced(), "{accounts:#?}");
    assert_eq!(accounts.ungranted_bytes, region.facts.free_bytes);
    for step in ["index", "free maps"] {
        assert!(steps.contains(&step), "nobody was told of {step}");
    }
}
