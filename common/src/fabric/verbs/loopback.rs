//! A check of the card against itself: what `kvctl doctor` and a careful server start with.
//!
//! Always true: it uses the very path that clients use, on a small region of its own, and judges the card's atomics by
//! their truth table: a card that answers with swapped bytes, or whose driver only claims to have atomics, is found
//! here and not in somebody's data.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::connect::connect;
use super::error::VerbsError;
use super::target::{VerbsOptions, VerbsTarget};
use crate::fabric::{
    Batch, BatchId, ConnectOptions, DeviceChoice, Fabric, Reply, Rights, SessionId, Target, Verb, VerbList,
};
use crate::layout::Offset;
use crate::memory::{HugePages, Mapping, MappingOptions};

/// What was found.
#[derive(Clone, Debug)]
pub struct LoopbackReport {
    /// The memory node's side: address, device, port, GID, MTU.
    pub target: String,
    /// The client's side.
    pub client: String,
    /// A READ of 64 bytes.
    pub read: Duration,
    /// A CAS.
    pub compare_swap: Duration,
}

const DEADLINE: Duration = Duration::from_secs(10);
const BEFORE: u64 = 0x0123_4567_89ab_cdef;
const AFTER: u64 = 0xfedc_ba98_7654_3211;

/// Connects the chosen device to itself, reads and changes a word, and checks what comes back.
///
/// # Errors
/// [`VerbsError`]: whatever a server's start or a client's connection can fail with, or
/// [`VerbsError::WrongAtomics`].
pub fn loopback_check(choice: &DeviceChoice) -> Result<LoopbackReport, VerbsError> {
    let failed = |call: &str, reason: String| VerbsError::Call { call: call.to_owned(), reason, errno: 0 };
    let memory = MappingOptions {
        bytes: 1 << 16,
        huge_pages: HugePages::Off,
        threads: 1,
        name: "sidestep-loopback".to_owned(),
    };
    let mapping = Mapping::create(&memory).map_err(|error| failed("memory", error.to_string()))?;
    let mapping = Arc::new(mapping);
    let options = VerbsOptions { device: choice.clone(), ..VerbsOptions::default() };
    let target = VerbsTarget::start(Arc::clone(&mapping), &options)?;
    let device = target.chosen().device.clone();
    let join = target.admit(SessionId(1), Rights::ReadWrite).map_err(|reason| failed("ticket", reason))?;
    let deadline = Instant::now() + DEADLINE;
    let options = ConnectOptions {
        peer: None,
        region_bytes: mapping.bytes(),
        rights: Rights::ReadWrite,
        verbs_in_flight_max: 16,
        buffer_limit_bytes: 1 << 20,
        device: choice.clone(),
        deadline,
    };
    let fabric =
        connect(&join, &options).map_err(|error| failed("connecting to itself", error.to_string()))?;
    let mut check = Check { fabric, device, deadline };

    // The last word of the region: bounds that are off by one show here too.
    let word = Offset(mapping.bytes() - 8);
    mapping.words().store(word, BEFORE).map_err(|error| failed("memory", error.to_string()))?;
    let (expected, desired) = (!BEFORE, AFTER);
    check.expect("a CAS that must lose", Verb::CompareSwap { remote: word, expected, desired }, BEFORE)?;
    let (expected, desired) = (BEFORE, AFTER);
    let won = Verb::CompareSwap { remote: word, expected, desired };
    let compare_swap = check.expect("a CAS that must win", won, BEFORE)?;
    check.expect("a FAA", Verb::FetchAdd { remote: word, add: 1 }, AFTER)?;
    check.expect("a FAA that reads", Verb::FetchAdd { remote: word, add: 0 }, AFTER + 1)?;
    let into = check.fabric.buffers().take(64).map_err(|error| failed("a buffer", error.to_string()))?;
    let read = Verb::Read { remote: Offset(mapping.bytes() - 64), into };
    let read = check.expect("a READ of the word", read, AFTER + 1)?;
    let report =
        LoopbackReport { target: target.describe(), client: check.fabric.describe(), read, compare_swap };
    Ok(report)
}

struct Check<F> {
    fabric: F,
    device: String,
    deadline: Instant,
}

impl<F: Fabric> Check<F> {
    /// Runs one verb, whose result (the last 8 bytes of a READ) must be `expected`.
    fn expect(&mut self, what: &'static str, verb: Verb<'_>, expected: u64) -> Result<Duration, VerbsError> {
        let failed = |reason: String| VerbsError::Call { call: what.to_owned(), reason, errno: 0 };
        let start = Instant::now();
        let mut verbs = VerbList::new();
        verbs.push(verb);
        let mut batches = [Batch { id: BatchId(0), verbs, silent: false }];
        self.fabric.post(&mut batches).map_err(|error| failed(error.to_string()))?;
        let mut completions = Vec::new();
        while self.fabric.poll(&mut completions) == 0 {
            let left = self.deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(VerbsError::Timeout { doing: what });
            }
            self.fabric.wait(left);
        }
        let took = start.elapsed();
        let completion = completions.pop();
        let replies = match completion.map(|completion| completion.result) {
            Some(Ok(replies)) => replies,
            Some(Err(failure)) => return Err(failed(failure.to_string())),
            None => return Err(failed("no completion".to_owned())),
        };
        let found = match replies.first() {
            Some(Reply::Old(old)) => *old,
            Some(Reply::Read(buffer)) => {
                buffer.as_slice().last_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes))
            }
            _ => return Err(failed("no reply".to_owned())),
        };
        if found != expected {
            let device = self.device.clone();
            return Err(VerbsError::WrongAtomics { device, what, found, expected });
        }
        Ok(took)
    }
}
