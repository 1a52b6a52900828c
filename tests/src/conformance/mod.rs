//! The conformance suite: the contract of [`sidestep_common::fabric`], checked the same way on every fabric.
//!
//! Always true: a case knows nothing of the fabric but what the contract says; it takes a fresh [`Bed`], and panics if
//! the contract is broken. A green run says something of the fabric it ran on and of no other: `shm` proves nothing of
//! a card's atomics.
//!
//! One test binary per fabric makes the beds and lets [`crate::conformance_tests`] expand to one test a case:
//!
//! ```text
//! sidestep_tests::conformance_tests!(|| ShmBed::start());
//! ```
//!
//! Loops are scaled by [`crate::scaled`]; nothing assumes speed, only that an answer comes within a minute.

mod acceptor;
pub mod batches;
pub mod contention;
mod driver;
pub mod failures;
pub mod flow;
pub mod order;
pub mod rights;
mod shm_bed;
#[cfg(feature = "simulation")]
mod sim_bed;
mod target_bed;
mod tcp_bed;
#[cfg(feature = "verbs")]
mod verbs_bed;
pub mod words;

use sidestep_common::fabric::{ConnectError, Fabric, FabricKind, Rights, SessionId};

pub use driver::{DEADLINE, Driver, add, read_word, swap, write};
pub use shm_bed::ShmBed;
#[cfg(feature = "simulation")]
pub use sim_bed::SimBed;
pub use target_bed::{TargetBed, conformance_mapping};
pub use tcp_bed::TcpBed;
#[cfg(feature = "verbs")]
pub use verbs_bed::VerbsBed;

/// Verbs in flight of a session, if a case doesn't care.
pub const DEPTH: usize = 64;

/// A region and a way to it. Each case gets its own.
pub trait Bed: Send + Sync {
    /// Which fabric is tested.
    fn kind(&self) -> FabricKind;

    /// Bytes of the region; at least 8 MiB, zero at the start.
    fn region_bytes(&self) -> u64;

    /// A new session with at most `depth` verbs in flight.
    fn connect_with(&self, rights: Rights, depth: usize) -> (SessionId, Box<dyn Fabric>);

    /// A new session that uses a wrong key for the region; `None` where there are no keys.
    fn connect_with_wrong_key(&self) -> Option<Box<dyn Fabric>>;

    /// Joins with a ticket that has been used; `None` where there are no tickets.
    fn join_twice(&self) -> Option<Result<Box<dyn Fabric>, ConnectError>>;

    /// Joins with a ticket whose session has been fenced meanwhile; `None` where there are no tickets.
    fn join_after_fence(&self) -> Option<Result<Box<dyn Fabric>, ConnectError>>;

    /// Fences a session; whether its verbs can certainly do nothing any more.
    fn fence(&self, session: SessionId) -> bool;

    /// Copies bytes of the region, not through the fabric.
    fn peek(&self, offset: u64, into: &mut [u8]);

    /// Changes bytes of the region, not through the fabric.
    fn poke(&self, offset: u64, from: &[u8]);

    /// Whether the memory before and behind the region is as it was; `None` if the bed can't see it.
    fn outside_untouched(&self) -> Option<bool>;
}

impl dyn Bed + '_ {
    /// A new session that may do everything.
    pub fn connect(&self) -> Driver {
        self.connect_as(Rights::ReadWrite)
    }

    /// A new session.
    pub fn connect_as(&self, rights: Rights) -> Driver {
        Driver::new(self.connect_with(rights, DEPTH).1)
    }

    /// The word at `offset`, not through the fabric.
    pub fn peek_word(&self, offset: u64) -> u64 {
        let mut bytes = [0; 8];
        self.peek(offset, &mut bytes);
        u64::from_le_bytes(bytes)
    }

    /// Sets the word at `offset`, not through the fabric.
    pub fn poke_word(&self, offset: u64, word: u64) {
        self.poke(offset, &word.to_le_bytes());
    }

    /// `bytes` bytes at `offset`, not through the fabric.
    pub fn peek_bytes(&self, offset: u64, bytes: usize) -> Vec<u8> {
        let mut into = vec![0; bytes];
        self.peek(offset, &mut into);
        into
    }
}

/// Bytes that differ from place to place and from `seed` to `seed`.
pub fn pattern(seed: u64, bytes: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state = state.wrapping_mul(0xd134_2543_de82_ef95).wrapping_add(1);
        (state >> 56) as u8
    };
    (0..bytes).map(|_| next()).collect()
}

/// Hands the list of all cases, by module, to another macro of this crate, behind that macro's own arguments.
#[macro_export]
macro_rules! conformance_cases {
    ($then:ident! { $($arguments:tt)* }) => {
        $crate::$then! { $($arguments)*;
            batches {
                replies_come_in_the_order_of_the_verbs,
                completions_come_in_the_order_posted,
                a_silent_batch_has_an_effect_and_no_completion,
                silent_batches_alone_do_not_use_up_the_credit,
                the_bytes_of_a_write_are_taken_at_once,
                bytes_behind_a_completed_batch_stay_taken,
            }
            words {
                compare_and_swap_keeps_its_truth_table,
                fetch_and_add_wraps,
                unaligned_atomics_are_refused,
                a_write_leaves_its_neighbours_alone,
                one_byte_writes_of_two_sessions_share_a_word,
                pieces_of_a_write_are_gathered,
                words_do_not_tear,
            }
            rights {
                the_edges_are_inside,
                just_outside_is_refused,
                a_read_only_session_changes_nothing,
                a_wrong_key_opens_nothing,
                a_fenced_session_ends,
                a_ticket_opens_one_connection,
            }
            failures {
                nothing_executes_behind_a_failed_verb,
                batches_before_the_failure_complete,
                a_failed_silent_batch_ends_the_connection,
                posts_that_are_refused_cost_nothing,
                other_sessions_go_on,
            }
            flow {
                full_then_poll_then_room,
                every_depth_accounts_for_every_batch,
                overlapping_reads_land_in_their_own_buffers,
                large_transfers_arrive_whole,
                dropping_a_fabric_frees_nothing_that_is_written_to,
                replies_wait_until_they_are_polled,
                waiting_neither_sleeps_through_nor_spins,
            }
            order {
                a_read_sees_the_write_before_it,
                the_last_of_several_writes_stays,
                a_published_block_is_complete,
                writes_are_seen_in_order,
                a_read_does_not_pass_an_earlier_write,
            }
            contention {
                compare_and_swap_counts_exactly,
                fetch_and_add_counts_exactly,
                both_atomics_share_a_word,
            }
        }
    };
}

/// Expands to one test for each case of the suite. Takes an expression that makes a function from nothing to a
/// [`Bed`](crate::conformance::Bed).
#[macro_export]
macro_rules! conformance_tests {
    ($start:expr) => {
        $crate::conformance_cases! { conformance_tests! { @modules $start } }
    };
    (@modules $start:expr; $($module:ident { $($case:ident,)* })*) => {
        $(mod $module {
            #[allow(unused_imports)]
            use super::*;
            $(
                #[test]
                fn $case() {
                    let bed = ($start)();
                    $crate::conformance::$module::$case(&bed);
                    assert_ne!($crate::conformance::Bed::outside_untouched(&bed), Some(false), "memory beside the region");
                }
            )*
        })*
    };
}

/// A case by name, for harnesses that list tests themselves.
pub type NamedCase = (&'static str, fn(&dyn Bed));

/// Expands to a vector of all cases as [`NamedCase`](crate::conformance::NamedCase)s.
#[macro_export]
macro_rules! conformance_list {
    () => {
        $crate::conformance_cases! { conformance_list! { @modules } }
    };
    (@modules; $($module:ident { $($case:ident,)* })*) => {
        vec![$($((
            concat!(stringify!($module), "::", stringify!($case)),
            $crate::conformance::$module::$case as fn(&dyn $crate::conformance::Bed),
        ),)*)*]
    };
}

#[cfg(test)]
mod tests {
    /// A case that is written but not in the list above would never run.
    #[test]
    fn every_case_is_in_the_list() {
        let sources = [
            include_str!("batches.rs"),
            include_str!("words.rs"),
            include_str!("rights.rs"),
            include_str!("failures.rs"),
            include_str!("flow.rs"),
            include_str!("order.rs"),
            include_str!("contention.rs"),
        ];
        let list = include_str!("mod.rs");
        let mut count = 0;
        for line in sources.iter().flat_map(|source| source.lines()) {
            if let Some(name) =
                line.strip_prefix("pub fn ").and_then(|rest| rest.strip_suffix("(bed: &dyn Bed) {"))
            {
                assert!(list.contains(&format!("                {name},\n")), "{name} is not in the list");
                count += 1;
            }
        }
        assert_eq!(count, 39);
    }
}
