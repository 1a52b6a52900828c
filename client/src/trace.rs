//! The protocol made visible: every verb of an operation, as `kvctl explain` prints it.

use std::time::{Duration, Instant};

use serde::Serialize;
use sidestep_common::layout::{Offset, SlotState, SlotWord};

/// One verb of an operation.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct TracedVerb {
    /// Which wait for the memory node it belongs to, from 1; silent verbs belong to the one before.
    pub round_trip: u64,
    /// READ, WRITE or CAS.
    pub verb: &'static str,
    /// What of the region it touches.
    pub subject: &'static str,
    /// Where, from the region's start.
    pub remote_offset: u64,
    /// How many bytes.
    pub bytes: u64,
    /// Nobody waits for it.
    pub silent: bool,
    /// What came of it, in words.
    pub outcome: String,
    /// When it was posted, since the operation began.
    #[serde(rename = "posted_us", serialize_with = "micros")]
    pub posted: Duration,
    /// When its round trip ended, since the operation began; none if silent.
    #[serde(rename = "completed_us", serialize_with = "optional_micros")]
    pub completed: Option<Duration>,
}

fn micros<S: serde::Serializer>(duration: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_f64(duration.as_nanos() as f64 / 1000.0)
}

fn optional_micros<S: serde::Serializer>(
    duration: &Option<Duration>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    match duration {
        Some(duration) => micros(duration, serializer),
        None => serializer.serialize_none(),
    }
}

/// All verbs of an operation, in the order posted.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
pub struct Trace {
    /// The verbs.
    pub verbs: Vec<TracedVerb>,
}

impl Trace {
    /// Waits for the memory node.
    pub fn round_trips(&self) -> u64 {
        self.verbs.iter().map(|verb| verb.round_trip).max().unwrap_or(0)
    }
}

/// What came of a CAS of a slot that held `old`, in words.
pub(crate) fn swap_outcome(expected: u64, desired: u64, old: u64) -> String {
    if old == expected {
        format!("{} became {}", slot_words(old), slot_words(desired))
    } else {
        format!("lost to {}", slot_words(old))
    }
}

/// A slot word as people read it: its state, and the block that it names.
fn slot_words(bits: u64) -> String {
    let (state, block) = match SlotWord::from_bits(bits).state() {
        SlotState::Empty => return "EMPTY".into(),
        SlotState::Closed => return "CLOSED".into(),
        SlotState::Malformed => return format!("malformed {bits:#018x}"),
        SlotState::Live(block) => ("LIVE", block),
        SlotState::Deleted(block) => ("DELETED", block),
        SlotState::Moved(block) => ("MOVED", block),
    };
    format!("{state} {:#x} v{}", block.offset.0, block.version.0)
}

/// A trace being written.
#[derive(Debug)]
pub(crate) struct Tracer {
    started: Instant,
    trace: Trace,
}

impl Tracer {
    pub(crate) fn new() -> Self {
        Self { started: Instant::now(), trace: Trace::default() }
    }

    /// A verb goes out; returns its place in the trace.
    pub(crate) fn posted(
        &mut self,
        round_trip: u64,
        verb: &'static str,
        subject: &'static str,
        remote: Offset,
        bytes: u64,
        silent: bool,
    ) {
        self.trace.verbs.push(TracedVerb {
            round_trip,
            verb,
            subject,
            remote_offset: remote.0,
            bytes,
            silent,
            outcome: if silent { "not waited for".into() } else { String::new() },
            posted: self.started.elapsed(),
            completed: None,
        });
    }

    /// The round trip `round_trip` is over; `outcomes` are its verbs', in order.
    pub(crate) fn completed(&mut self, round_trip: u64, outcomes: impl Iterator<Item = String>) {
        let now = self.started.elapsed();
        let verbs = self.trace.verbs.iter_mut().filter(|verb| verb.round_trip == round_trip && !verb.silent);
        for (verb, outcome) in verbs.zip(outcomes) {
            verb.completed = Some(now);
            verb.outcome = outcome;
        }
    }

    pub(crate) fn finish(self) -> Trace {
        self.trace
    }
}

#[cfg(test)]
mod tests {
    use sidestep_common::layout::{BlockRef, SizeClass, Tag, Version};

    use super::*;

    #[test]
    fn a_swap_is_told_in_words() {
        let class = SizeClass::from_index(1).unwrap();
        let block = BlockRef { offset: Offset(0xa03f80), class, version: Version(3) };
        let live = SlotWord::live(Tag::from_low_bits(5), block, true).bits();
        let deleted = SlotWord::deleted(Tag::from_low_bits(5), block, false).bits();
        let empty = SlotWord::EMPTY.bits();
        assert_eq!(swap_outcome(empty, live, empty), "EMPTY became LIVE 0xa03f80 v3");
        assert_eq!(swap_outcome(live, deleted, live), "LIVE 0xa03f80 v3 became DELETED 0xa03f80 v3");
        assert_eq!(swap_outcome(empty, deleted, live), "lost to LIVE 0xa03f80 v3");
    }
}
