//! A session's connection: one queue pair, one completion queue, its buffers.
//!
//! Always true: what a card may still touch (READs' buffers, atomics' cells, staged WRITEs) is freed after the queue
//! pair is destroyed; nothing is posted on a queue pair that failed; and the bytes of a WRITE are taken before `post`
//! returns, inside the work request if they are few, else copied once.
//!
//! Round trips: a call is one doorbell. Verbs of a call leave in order; the card answers them in order.

use std::os::fd::RawFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rdma_sys::{ibv_sge, rdma_cm_event_type};
use smallvec::SmallVec;

use super::cm::{EventChannel, Identifier, wait_readable};
use super::completion_queue::{CompletionQueue, Done};
use super::error::VerbsError;
use super::flight::{Cause, Flight, Pending};
use super::queue_pair::QueuePair;
use super::region::{DomainRegistrar, LocalMemory, ProtectionDomain};
use super::staging::{StageError, Staging};
use super::two_sided::{Operation, Outbox};
use super::work::{Remote, WorkList};
use crate::fabric::{
    Batch, BufferPool, Completion, Effect, Fabric, FabricKind, FailureKind, GATHER_MAX, Limits, PostError,
    Verb,
};
use crate::layout::Offset;

/// The longest verb: as the largest buffer, which holds the largest block.
pub(super) const VERB_BYTES_MAX: usize = 2 << 20;
/// Staged WRITEs of a session: several of the longest.
pub(super) const STAGING_BYTES_MAX: usize = 8 * VERB_BYTES_MAX;
/// Bytes that are asked to travel inside a work request: a small block, without making the send queue's entries
/// (which have room for it always) much larger than two cache lines times two.
pub(super) const INLINE_BYTES: u32 = 256;
/// An address that no registration contains, for atomics on words that aren't aligned: some drivers refuse those when
/// they are posted, others leave it to the card. The contract wants a completion in its place in the order, so the
/// memory node's card gets an atomic that it can only refuse.
const NOWHERE: u64 = u64::MAX - 0xfff;
/// What `poll` passes over.
const NO_FILE: RawFd = -1;
/// Polls that find nothing, after which the connection's file is looked at: a memory node that fenced this session
/// says so there, long before retries run out.
const EMPTY_POLLS_MAX: u32 = 1024;

/// What a connection was agreed to be.
#[derive(Clone, Debug)]
pub(super) struct Agreed {
    /// Virtual address of the region at the memory node.
    pub(super) base: u64,
    /// The region's key there.
    pub(super) rkey: u32,
    /// Verbs in flight.
    pub(super) verbs_in_flight_max: usize,
    /// Of silent ones, how many at most before one is signalled.
    pub(super) slack: usize,
    /// Local buffers' limit.
    pub(super) buffer_limit_bytes: usize,
    /// For people.
    pub(super) description: String,
}

/// See the module.
pub struct VerbsFabric {
    // Fields are dropped in this order: the queue pair first, the memory that it may write to after it.
    queue_pair: QueuePair,
    id: Identifier,
    events: std::sync::Arc<EventChannel>,
    completions: CompletionQueue,
    flight: Flight,
    staging: Staging,
    /// One word a work request, by its number.
    cells: LocalMemory,
    /// Messages instead of atomics; [`TwoSidedFabric`](super::two_sided::TwoSidedFabric) sees to their answers.
    outbox: Option<Outbox>,
    buffers: BufferPool,
    work: WorkList,
    /// Where the staging memory is after each batch of the call that is being posted.
    staged_ends: Vec<u64>,
    base: u64,
    rkey: u32,
    empty_polls: u32,
    description: String,
}

impl VerbsFabric {
    /// A fabric over a queue pair that is ready to send. Never fails: on the way out of here the completion queue would be
    /// dropped before the queue pair that uses it.
    pub(super) fn new(
        queue_pair: QueuePair,
        id: Identifier,
        events: std::sync::Arc<EventChannel>,
        completions: CompletionQueue,
        domain: &std::sync::Arc<ProtectionDomain>,
        cells: LocalMemory,
        agreed: Agreed,
    ) -> Self {
        let Agreed { base, rkey, verbs_in_flight_max, slack, buffer_limit_bytes, description } = agreed;
        let registrar = Box::new(DomainRegistrar(std::sync::Arc::clone(domain)));
        Self {
            queue_pair,
            id,
            events,
            completions,
            flight: Flight::new(verbs_in_flight_max, slack),
            staging: Staging::new(domain, STAGING_BYTES_MAX),
            cells,
            outbox: None,
            buffers: BufferPool::new(registrar, buffer_limit_bytes),
            work: WorkList::default(),
            staged_ends: Vec::new(),
            base,
            rkey,
            empty_polls: 0,
            description,
        }
    }

    /// The words that atomics' results land in: one a work request.
    pub(super) fn cells(
        domain: &std::sync::Arc<ProtectionDomain>,
        depth: usize,
    ) -> Result<LocalMemory, VerbsError> {
        LocalMemory::new(domain, depth * size_of::<u64>())
    }

    /// The same, whose CAS and FAA are messages from now on; the outbox is for a send queue of the same length.
    pub(super) fn with_outbox(mut self, outbox: Outbox) -> Self {
        self.outbox = Some(outbox);
        self
    }

    fn remote(&self, offset: Offset) -> Remote {
        // An offset that wraps names the same address that the card would reach, which it then judges.
        Remote { address: self.base.wrapping_add(offset.0), rkey: self.rkey }
    }

    fn remote_word(&self, offset: Offset) -> Remote {
        let remote = self.remote(offset);
        if remote.address.is_multiple_of(8) { remote } else { Remote { address: NOWHERE, ..remote } }
    }

    fn cell_count(&self) -> u64 {
        (self.cells.bytes() / size_of::<u64>()) as u64
    }

    fn cell(&self, number: u64) -> ibv_sge {
        let addr = self.cells.start().as_ptr().addr() as u64 + number % self.cell_count() * 8;
        ibv_sge { addr, length: 8, lkey: self.cells.lkey() }
    }

    /// Its queue pair.
    pub(super) fn queue_pair(&self) -> &QueuePair {
        &self.queue_pair
    }

    /// Why the connection failed, if it did.
    pub(super) fn failure(&self) -> Option<&Cause> {
        self.flight.failure()
    }

    fn broken(&self) -> Option<PostError> {
        self.flight.failure().map(|cause| PostError::Broken(cause.kind.to_string()))
    }

    /// The connection is over: nothing more is sent, what is in flight is in doubt.
    pub(super) fn fail(&mut self, reason: String) {
        self.flight.fail_oldest(Cause { kind: FailureKind::Disconnected(reason), effect: Effect::Unknown });
        self.end();
    }

    fn end(&self) {
        if let Err(error) = self.queue_pair.make_error() {
            tracing::debug!(%error, "a failed queue pair could not be stopped");
        }
    }

    /// Builds the work requests of a call; what was staged for them is taken.
    fn build(&mut self, batches: &[Batch<'_>]) -> Result<(), PostError> {
        self.work.clear();
        self.staged_ends.clear();
        let (mut number, mut tail) = (self.flight.next(), self.flight.tail());
        let mut sequence = self.outbox.as_ref().map_or(0, Outbox::next);
        for batch in batches {
            let mut staged = false;
            for verb in &batch.verbs {
                let bytes = verb.bytes();
                if bytes > VERB_BYTES_MAX {
                    let (what, limit) = ("bytes of a verb", VERB_BYTES_MAX);
                    return Err(PostError::TooLarge { what, asked: bytes, limit });
                }
                let remote = match verb {
                    Verb::Read { remote, .. } | Verb::Write { remote, .. } => self.remote(*remote),
                    Verb::CompareSwap { remote, .. } | Verb::FetchAdd { remote, .. } => {
                        self.remote_word(*remote)
                    }
                };
                match verb {
                    Verb::CompareSwap { .. } | Verb::FetchAdd { .. } if self.outbox.is_some() => {
                        self.send_commit(number, &mut sequence, verb);
                    }
                    Verb::Read { into, .. } => {
                        let addr = into.address().as_ptr().addr() as u64;
                        let entry = ibv_sge { addr, length: into.len() as u32, lkey: into.lkey() };
                        self.work.read(number, remote, entry);
                    }
                    Verb::Write { from, .. } if bytes <= self.queue_pair.inline_bytes() => {
                        self.work.write_inline(number, remote, from);
                    }
                    Verb::Write { from, .. } => {
                        staged = true;
                        let entry = self.stage(from, bytes)?;
                        self.work.write(number, remote, entry);
                    }
                    Verb::CompareSwap { expected, desired, .. } => {
                        self.work.compare_swap(number, remote, [*expected, *desired], self.cell(number));
                    }
                    Verb::FetchAdd { add, .. } => {
                        self.work.fetch_add(number, remote, *add, self.cell(number));
                    }
                }
                number += 1;
            }
            let signalled;
            (signalled, tail) = self.flight.signal(batch.silent && !staged, batch.verbs.len(), tail);
            if signalled {
                self.work.signal_last();
            }
            self.staged_ends.push(self.staging.head());
        }
        Ok(())
    }

    /// A CAS or FAA as a message. The card keeps it behind WRITEs by itself, behind READs only if told so.
    fn send_commit(&mut self, number: u64, sequence: &mut u64, verb: &Verb<'_>) {
        let operation = match verb {
            Verb::CompareSwap { expected, desired, .. } => {
                Operation::CompareSwap { expected: *expected, desired: *desired }
            }
            Verb::FetchAdd { add, .. } => Operation::FetchAdd { add: *add },
            Verb::Read { .. } | Verb::Write { .. } => return,
        };
        let Some(outbox) = &self.outbox else { return };
        let entry = outbox.write(number, *sequence, verb.remote(), self.rkey, operation);
        let inline = self.queue_pair.inline_bytes() >= Outbox::inline_bytes();
        let fenced = self.flight.has_reads() || self.work.has_reads();
        self.work.send(number, entry, inline, fenced);
        *sequence += 1;
    }

    fn stage(&mut self, pieces: &[&[u8]; GATHER_MAX], bytes: usize) -> Result<ibv_sge, PostError> {
        match self.staging.stage(pieces) {
            Ok(staged) => {
                let addr = staged.start.as_ptr().addr() as u64;
                Ok(ibv_sge { addr, length: bytes as u32, lkey: staged.lkey })
            }
            // With nothing in flight whose end will be told, waiting for room would be for ever.
            Err(StageError::TooLarge) => Err(too_much_staged(bytes)),
            Err(StageError::Full) if self.flight.is_idle() => Err(too_much_staged(STAGING_BYTES_MAX + bytes)),
            Err(StageError::Full) => Err(self.flight.full(1)),
            Err(StageError::Refused(error)) if self.flight.is_idle() => {
                Err(PostError::Broken(error.to_string()))
            }
            Err(StageError::Refused(error)) => {
                // More memory can't be had, but what is in use comes back.
                tracing::debug!(%error, "staging memory did not grow");
                Err(self.flight.full(1))
            }
        }
    }

    /// Moves the verbs of a call that was posted into the flight.
    fn take_off(&mut self, batches: &mut [Batch<'_>]) {
        for (batch, staged_end) in batches.iter_mut().zip(self.staged_ends.drain(..)) {
            let staged = batch.verbs.iter().any(|verb| {
                matches!(verb, Verb::Write { .. }) && verb.bytes() > self.queue_pair.inline_bytes()
            });
            let (_, tail) =
                self.flight.signal(batch.silent && !staged, batch.verbs.len(), self.flight.tail());
            let pending: SmallVec<[Pending; 4]> = batch
                .verbs
                .drain(..)
                .map(|verb| match verb {
                    Verb::Read { into, .. } => Pending::Read(into),
                    Verb::Write { .. } => Pending::Write,
                    Verb::CompareSwap { .. } | Verb::FetchAdd { .. } => Pending::Atomic,
                })
                .collect();
            if let Some(outbox) = &mut self.outbox {
                let commits = pending.iter().filter(|verb| matches!(verb, Pending::Atomic)).count();
                outbox.advance(commits as u64);
            }
            self.flight.push(batch.id, batch.silent, pending, tail, staged_end);
        }
    }

    /// Takes note of what the card says is done.
    fn drain(&mut self) {
        let flight = &mut self.flight;
        let was_whole = flight.failure().is_none();
        let polled = self.completions.poll(|done| match done {
            Done::Well(number) => flight.complete(number),
            Done::Failed(number, cause) => flight.fail(number, cause),
        });
        if let Err(error) = polled {
            self.fail(error.to_string());
        } else if was_whole && self.flight.failure().is_some() {
            self.end();
        }
    }

    /// As [`Fabric::wait`], but returns also when `file` is readable; tells whether it is.
    pub(super) fn wait_also_for(&mut self, timeout: Duration, file: RawFd) -> bool {
        if self.flight.failure().is_some() || self.flight.has_ended() {
            return false;
        }
        // Asked for first and polled after, so that nothing falls between the two.
        if let Err(error) = self.completions.ask_event() {
            self.fail(error.to_string());
            return false;
        }
        self.drain();
        if self.flight.has_ended() || self.flight.failure().is_some() {
            return false;
        }
        let mut files = [self.completions.fd(), self.events.fd(), file];
        wait_readable(&mut files, timeout);
        if files[0] >= 0 {
            self.completions.take_event();
        }
        if files[1] >= 0 {
            // What was done before the end is counted as done.
            self.drain();
            self.look_at_events();
        }
        files[2] >= 0
    }

    /// Looks whether the memory node, or the device, ended the connection.
    fn look_at_events(&mut self) {
        loop {
            match self.events.next() {
                Ok(None) => return,
                Ok(Some(event)) => match event.kind {
                    rdma_cm_event_type::RDMA_CM_EVENT_DISCONNECTED => {
                        self.fail("the memory node ended the connection".to_owned());
                    }
                    rdma_cm_event_type::RDMA_CM_EVENT_DEVICE_REMOVAL => {
                        self.fail("the device was removed".to_owned());
                    }
                    _ => tracing::debug!(event = event.name(), status = event.status, "on a data connection"),
                },
                Err(error) => return self.fail(error.to_string()),
            }
        }
    }
}

fn too_much_staged(asked: usize) -> PostError {
    PostError::TooLarge { what: "bytes of WRITEs in one call", asked, limit: STAGING_BYTES_MAX }
}

impl Fabric for VerbsFabric {
    fn kind(&self) -> FabricKind {
        FabricKind::Verbs
    }

    fn limits(&self) -> Limits {
        Limits { verbs_in_flight_max: self.flight.limit(), verb_bytes_max: VERB_BYTES_MAX }
    }

    fn describe(&self) -> String {
        self.description.clone()
    }

    fn buffers(&mut self) -> &mut BufferPool {
        &mut self.buffers
    }

    fn post(&mut self, batches: &mut [Batch<'_>]) -> Result<(), PostError> {
        if let Some(broken) = self.broken() {
            return Err(broken);
        }
        self.flight.check(batches.iter().map(|batch| batch.verbs.len()).sum())?;
        let staged = self.staging.head();
        if let Err(error) = self.build(batches) {
            self.staging.back_to(staged);
            return Err(error);
        }
        // SAFETY: READs' buffers and cells are registered and stay with this fabric, which frees nothing before the
        // queue pair is destroyed; inline bytes are borrowed for this call, in which the driver copies them. The
        // flight keeps count of the queue's room.
        let posted = unsafe { self.work.post(&self.queue_pair) };
        let first = self.flight.next();
        match posted {
            Ok(()) => {
                self.take_off(batches);
                Ok(())
            }
            Err(failure) if failure.posted == 0 => {
                self.staging.back_to(staged);
                self.fail(failure.error.to_string());
                Err(PostError::Broken(failure.error.to_string()))
            }
            // Part of the call is at the card: it counts as posted, and as failed.
            Err(failure) => {
                self.take_off(batches);
                tracing::warn!(error = %failure.error, first, posted = failure.posted, "a doorbell was cut short");
                self.fail(failure.error.to_string());
                Ok(())
            }
        }
    }

    fn poll(&mut self, completions: &mut Vec<Completion>) -> usize {
        if self.flight.failure().is_none() {
            self.drain();
        }
        let cells = self.cells.start();
        let cell_count = self.cell_count();
        let count = self.flight.take(completions, |number| {
            // SAFETY: a cell of this memory.
            let cell = unsafe { cells.cast::<AtomicU64>().add((number % cell_count) as usize) };
            // The driver's poll is an acquire: the card wrote the cell before it wrote the completion.
            // SAFETY: aligned, live, and written by the card as a whole word before the completion was polled.
            unsafe { cell.as_ref() }.load(Ordering::Relaxed)
        });
        self.staging.free_to(self.flight.staged_done());
        self.empty_polls = if count > 0 { 0 } else { self.empty_polls + 1 };
        if self.empty_polls >= EMPTY_POLLS_MAX {
            self.empty_polls = 0;
            if self.flight.failure().is_none() {
                self.look_at_events();
            }
        }
        count
    }

    fn wait(&mut self, timeout: Duration) {
        self.wait_also_for(timeout, NO_FILE);
    }
}

impl std::fmt::Debug for VerbsFabric {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "VerbsFabric({})", self.description)
    }
}

impl Drop for VerbsFabric {
    fn drop(&mut self) {
        // The memory node learns of it at once; if it can't be told, it notices when the identifier goes.
        if let Err(error) = self.id.disconnect() {
            tracing::debug!(%error, "the memory node was not told of the connection's end");
        }
    }
}
