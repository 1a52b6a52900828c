//! Every mistake that can be planted in the operations makes the tests of this folder fail, and nothing else does.
//!
//! This is the fast check that the plants do what they say; the simulator must find them without being told where.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};

use sidestep_common::layout::{SLOTS_PER_BUCKET, Version};
use sidestep_common::planted::{Fault, plant};

use super::interleaving::{
    every_interleaving_of_two_operations_on_one_key as one_key,
    every_interleaving_of_two_operations_on_twins as twins,
};
use super::lost::a_swap_out_holds_back_the_epoch as unresolved;
use super::lost::what_was_lost_is_never_guessed as lost;
use super::world::{Actor, Answer, Call, Running, World, alone, colliding};
use super::{rebuild, reuse, stories};
use crate::allocator::tests as allocator;
use crate::upkeep::tests as upkeep;

/// A test that must fail once the mistake, with what masks it, is planted.
type Test = fn();

const CAUGHT: &[(Fault, Test)] = &[
    (Fault::KeyNotCompared, twins),
    (Fault::UnfitTakenForOther, reuse::a_block_reused_under_a_reader_proves_nothing),
    (Fault::UnfitTakenForCorrupt, reuse::a_block_reused_under_a_reader_proves_nothing),
    (Fault::ChecksumUnchecked, reuse::a_torn_block_proves_nothing),
    (Fault::VersionUnchecked, reuse::a_block_reused_under_a_reader_proves_nothing),
    (Fault::ChecksumWithoutVersion, reuse::a_block_reused_under_a_reader_proves_nothing),
    (Fault::ValueCutShort, one_key),
    (Fault::SecondTwinIgnored, stories::equal_tags_are_told_apart_by_the_key),
    (Fault::AnyEmptySlot, one_key),
    (Fault::OnlyOneEmptySlot, twins),
    (Fault::DeletedNotExamined, one_key),
    (Fault::DeletedTakenForValue, one_key),
    (Fault::ClosedPassedOver, rebuild::an_insert_that_saw_closed_starts_over),
    (Fault::MovedMissedByGet, rebuild::gets_do_not_wait_for_a_rebuild),
    (Fault::MovedMissedByChange, rebuild::changes_wait_for_a_rebuild),
    (Fault::MovedTakenForNext, rebuild::a_swap_that_meets_a_rebuild_starts_over),
    (Fault::HeaderUnchecked, rebuild::a_recycled_segment_is_foreign),
    (Fault::SealedTrustedByGet, rebuild::an_old_directory_hides_no_change),
    (Fault::SealedTrustedByChange, rebuild::a_full_sealed_bucket_proves_no_absence),
    (Fault::OlderDirectoryLearned, rebuild::a_late_answer_brings_no_old_value_back),
    (Fault::DirectoryNotLearned, rebuild::an_old_directory_hides_no_change),
    (Fault::LostSlotClaimed, twins),
    (Fault::RivalKeyNotCompared, twins),
    (Fault::RivalPassedOver, one_key),
    (Fault::ClaimsAgainstAnyWord, stories::a_put_claims_to_be_overwritten_by_blind_words_only),
    (Fault::DeleteClaims, two_deletes_and_a_put),
    (Fault::DeleteLostToLiveGivesUp, one_key),
    (Fault::DeleteLostToDeletedGoesOn, one_key),
    (Fault::LostDeleteTakenForWon, one_key),
    (Fault::LostPutTakenForWon, one_key),
    (Fault::LostSwapRepeated, one_key),
    (Fault::DeleteWritesLive, one_key),
    (Fault::PublishedBeforeWritten, one_key),
    (Fault::VersionOfBlockWrong, one_key),
    (Fault::WriteIdRepeated, one_key),
    (Fault::PublishedGivenBack, one_key),
    (Fault::LimboGivenBack, lost),
    (Fault::UnpublishedLost, stories::a_block_that_was_not_published_is_used_again),
    (Fault::FreshHandedTwice, one_key),
    (Fault::SpareHandedTwice, a_block_given_back_is_handed_out_once),
    (Fault::ChunkEndIgnored, more_blocks_than_one_chunk_has),
    (Fault::VersionKept, reuse::a_block_reused_under_a_reader_proves_nothing),
    (Fault::NeverMarked, one_key),
    (Fault::MarkedTwice, one_key),
    (Fault::NextVersionMarked, one_key),
    (Fault::NeighbourMarked, one_key),
    (Fault::NewBlockMarked, one_key),
    (Fault::LoserMarks, one_key),
    (Fault::ResolvedNotMarked, lost),
    (Fault::FailedSwapMarked, lost),
    (Fault::StaleValueReturned, || reuse::a_get_that_finds().run(Version::next)),
    (Fault::StaleAbsentReturned, || reuse::a_get_that_misses().run(Version::next)),
    (Fault::StaleAbsentDeleted, || reuse::a_delete_that_misses().run(Version::next)),
    (Fault::StaleInserted, || reuse::a_put_that_inserts().run(Version::next)),
    (Fault::StaleReplaced, || reuse::a_put_replaces_no_block_of_long_ago(Version::next)),
    (Fault::StaleClaimed, || reuse::an_insert_claims_against_no_rival_of_long_ago(Version::next)),
    (Fault::ClockRestarted, || reuse::a_put_that_waits_for_its_bucket().run(Version::next)),
    (Fault::ReusedBeforeGrace, allocator::a_freed_block_is_used_again_after_the_grace_period),
    (Fault::ReusedBeyondVersions, allocator::versions_do_not_come_round_between_two_epochs),
    (Fault::AnyByteHarvested, allocator::an_old_mark_frees_nothing),
    (Fault::ReclaimedUnmarked, allocator::what_an_audit_does_not_reach_is_reclaimed),
    (Fault::AuditOfBlocksInHand, allocator::what_an_audit_does_not_reach_is_reclaimed),
    (Fault::AcknowledgedBeforeRefresh, upkeep::an_epoch_is_acknowledged_when_all_before_it_is_done),
    (Fault::AcknowledgedBeforeMarks, upkeep::an_epoch_is_acknowledged_when_all_before_it_is_done),
    (Fault::AcknowledgedUnresolved, unresolved),
    (Fault::UnknownRetried, lost),
    (Fault::UnknownReportedFailed, lost),
    (Fault::HappenedRetried, lost),
    (Fault::SwapOutForgotten, lost),
    (Fault::TimeoutTakenForFailed, lost),
    (Fault::OtherWordMeansNo, lost),
    (Fault::OtherWordMeansYes, lost),
    (Fault::ExpectedWordMeansYes, lost),
    (Fault::ResolvedBeforeFence, lost),
];

/// Of the server's rebuilds, which its own tests and the simulator's walks catch.
const OF_REBUILDS: &[Fault] = &[
    Fault::SealSkipped,
    Fault::LostSealNotRepeated,
    Fault::HeadersSealedLast,
    Fault::HeadersNotSealed,
    Fault::UnsealedBeforePublished,
    Fault::RunCutShort,
    Fault::GenerationKept,
    Fault::DeletedCarried,
    Fault::WrongHalf,
    Fault::DroppedNotMarked,
    Fault::DroppedMarkedTwice,
    Fault::LostDroppedMarked,
    Fault::RecycledEarly,
];

thread_local! {
    static EXPECTS_PANIC: Cell<bool> = const { Cell::new(false) };
}

/// Whether `test` fails with these mistakes.
fn fails(faults: &[Fault], test: Test) -> bool {
    plant(faults);
    EXPECTS_PANIC.set(!faults.is_empty());
    let result = catch_unwind(AssertUnwindSafe(test));
    EXPECTS_PANIC.set(false);
    plant(&[]);
    result.is_err()
}

/// With the mistake, and what masks it, the test fails; with the mask alone it passes, and with nothing planted too.
#[test]
fn every_mistake_is_caught() {
    // Panics that are wanted print nothing: their backtraces alone would take minutes.
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        if !EXPECTS_PANIC.get() {
            hook(info);
        }
    }));
    let (mut wrong, mut sound): (Vec<String>, Vec<Test>) = (Vec::new(), Vec::new());
    for &(fault, test) in CAUGHT {
        if !sound.iter().any(|known| std::ptr::fn_addr_eq(*known, test)) {
            assert!(!fails(&[], test), "the test for {fault:?} fails by itself");
            sound.push(test);
        }
        let masks = fault.masked_by();
        if !masks.is_empty() && fails(masks, test) {
            wrong.push(format!("{fault:?}: what masks it fails alone"));
        }
        if !masks.is_empty() && fails(&[fault], test) {
            wrong.push(format!("{fault:?}: it is not masked"));
        }
        if !fails(&[&[fault], masks].concat(), test) {
            wrong.push(format!("{fault:?}: not caught"));
        }
    }
    let told =
        |fault: &Fault| CAUGHT.iter().any(|(caught, _)| caught == fault) || OF_REBUILDS.contains(fault);
    let untold = Fault::ALL.iter().filter(|fault| !told(fault));
    wrong.extend(untold.map(|fault| format!("{fault:?}: no test is named for it")));
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// Two deletes lose their first CAS to one put. At most one of them may say that it came before.
fn two_deletes_and_a_put() {
    let (mut world, mut actors) = (World::new(), [Actor::new(1), Actor::new(2), Actor::new(3)]);
    alone(&mut world, &mut actors[2], Call::Put(b"k", b"old"));
    let mut deletes = [Running::new(Call::Delete(b"k")), Running::new(Call::Delete(b"k"))];
    for (delete, actor) in deletes.iter_mut().zip(&mut actors) {
        while delete.pending_cas().is_none() {
            delete.verb(&mut world, actor);
        }
    }
    alone(&mut world, &mut actors[2], Call::Put(b"k", b"new"));
    for (delete, actor) in deletes.iter_mut().zip(&mut actors) {
        while !delete.is_over() {
            delete.verb(&mut world, actor);
        }
    }
    let answers = deletes.map(|delete| delete.answer);
    let found = alone(&mut world, &mut actors[2], Call::Get(b"k")).0;
    assert_eq!(
        (answers, found),
        ([Some(Answer::Existed(true)), Some(Answer::Existed(false))], Answer::Value(None))
    );
}

/// A put that a full bucket refuses gives its block back; two others follow. The auditor sees who writes where.
fn a_block_given_back_is_handed_out_once() {
    let (mut world, mut actor) = (World::new(), Actor::new(1));
    let keys = colliding(&world, b"full", SLOTS_PER_BUCKET + 1, false);
    for key in &keys {
        alone(&mut world, &mut actor, Call::Put(key, b"v"));
    }
    for key in [b"one", b"two"] {
        assert_eq!(alone(&mut world, &mut actor, Call::Put(key, b"v")).0, Answer::Stored);
    }
}

/// A chunk has room for few large values; the next ones need another.
fn more_blocks_than_one_chunk_has() {
    let (mut world, mut actor) = (World::new(), Actor::new(1));
    let value = vec![7; 100 << 10];
    for number in 0_u8..12 {
        assert_eq!(alone(&mut world, &mut actor, Call::Put(&[number], &value)).0, Answer::Stored);
    }
}
