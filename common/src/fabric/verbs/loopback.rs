//! A check of the card against itself: what `kvctl doctor` and a careful server start with.
//!
//! Always true: it uses the very path that clients use, on a small region of its own, and judges the card's atomics by
//! their truth table: a card that answers with swapped bytes, or whose driver only claims to have atomics, is found
//! here and not in somebody's data.

use std::net::IpAddr;
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
    /// A READ of 64 bytes, in the median.
    pub read: Duration,
    /// A CAS, in the median.
    pub compare_swap: Duration,
}

const DEADLINE: Duration = Duration::from_secs(10);
/// Enough for a median that means something, and few enough to take no time.
const ROUNDS: u64 = 101;
const REGION_BYTES: u64 = 1 << 16;
/// The region's last word: bounds that are off by one show here too.
const WORD: Offset = Offset(REGION_BYTES - 8);
/// Values that are others with their bytes swapped.
const BEFORE: u64 = 0x0123_4567_89ab_cdef;
const AFTER: u64 = 0xfedc_ba98_7654_3200;

/// Connects the chosen device to itself, reads and changes a word, and checks what comes back. An `address` is only
/// needed where GID tables have none: on InfiniBand.
///
/// # Errors
/// [`VerbsError`]: whatever a server's start or a client's connection can fail with, or
/// [`VerbsError::WrongAtomics`].
pub fn loopback_check(choice: &DeviceChoice, address: Option<IpAddr>) -> Result<LoopbackReport, VerbsError> {
    let memory = MappingOptions {
        bytes: REGION_BYTES,
        huge_pages: HugePages::Off,
        threads: 1,
        name: "sidestep-loopback".to_owned(),
    };
    let mapping = Arc::new(Mapping::create(&memory).map_err(|error| failed("memory", error.to_string()))?);
    let options = VerbsOptions { device: choice.clone(), address, ..VerbsOptions::default() };
    let target = VerbsTarget::start(Arc::clone(&mapping), &options)?;
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
    mapping.words().store(WORD, BEFORE).map_err(|error| failed("memory", error.to_string()))?;
    let mut check = Check { fabric, device: target.chosen().device.clone(), deadline };

    check.swap("a CAS that must lose", !BEFORE, AFTER, BEFORE)?;
    check.swap("a CAS that must win", BEFORE, AFTER, BEFORE)?;
    check.expect("a FAA", Verb::FetchAdd { remote: WORD, add: 1 }, AFTER)?;
    check.expect("a FAA that reads", Verb::FetchAdd { remote: WORD, add: 0 }, AFTER + 1)?;
    let (mut reads, mut swaps) = (Vec::new(), Vec::new());
    for value in (AFTER + 1..).take(ROUNDS as usize) {
        reads.push(check.read("a READ of the word", value)?);
        swaps.push(check.swap("a CAS of the word that was read", value, value + 1, value)?);
    }
    Ok(LoopbackReport {
        target: target.describe(),
        client: check.fabric.describe(),
        read: median(reads),
        compare_swap: median(swaps),
    })
}

struct Check {
    fabric: Box<dyn Fabric>,
    device: String,
    deadline: Instant,
}

impl Check {
    fn read(&mut self, what: &'static str, found: u64) -> Result<Duration, VerbsError> {
        let into = self.fabric.buffers().take(64).map_err(|error| failed(what, error.to_string()))?;
        self.expect(what, Verb::Read { remote: Offset(REGION_BYTES - 64), into }, found)
    }

    fn swap(
        &mut self,
        what: &'static str,
        expected: u64,
        desired: u64,
        found: u64,
    ) -> Result<Duration, VerbsError> {
        self.expect(what, Verb::CompareSwap { remote: WORD, expected, desired }, found)
    }

    /// Runs one verb, whose result (the last 8 bytes of a READ) must be `expected`.
    fn expect(&mut self, what: &'static str, verb: Verb<'_>, expected: u64) -> Result<Duration, VerbsError> {
        let start = Instant::now();
        let mut verbs = VerbList::new();
        verbs.push(verb);
        let mut batches = [Batch { id: BatchId(0), verbs, silent: false }];
        self.fabric.post(&mut batches).map_err(|error| failed(what, error.to_string()))?;
        let mut completions = Vec::new();
        // Polled for a moment first: what is measured is the card, not the waking of a thread.
        let mut polls = 0;
        while self.fabric.poll(&mut completions) == 0 {
            polls += 1;
            let left = self.deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(VerbsError::Timeout { doing: what });
            }
            if polls > 1000 {
                self.fabric.wait(left);
            }
        }
        let took = start.elapsed();
        let reply = match completions.pop().map(|completion| completion.result) {
            Some(Ok(mut replies)) => replies.pop(),
            Some(Err(failure)) => return Err(failed(what, failure.to_string())),
            None => None,
        };
        let found = match reply {
            Some(Reply::Old(old)) => old,
            Some(Reply::Read(buffer)) => {
                let word = buffer.as_slice().last_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
                self.fabric.buffers().recycle(buffer);
                word
            }
            Some(Reply::Written) | None => return Err(failed(what, "no reply".to_owned())),
        };
        if found != expected {
            let device = self.device.clone();
            return Err(VerbsError::WrongAtomics { device, what, found, expected });
        }
        Ok(took)
    }
}

fn failed(call: &str, reason: String) -> VerbsError {
    VerbsError::Call { call: call.to_owned(), reason, errno: 0 }
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times.get(times.len() / 2).copied().unwrap_or_default()
}
