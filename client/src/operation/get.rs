//! get: find a key's value.
//!
//! Always true: a value is returned only out of a fitting block with exactly this key, named by a LIVE or MOVED
//! word of a bucket that served the key, all within half a grace period of the slot's READ. "Absent" is said
//! only if every slot with the tag was ruled out by a fitting block.
//!
//! ```text
//! READ bucket ─▶ no tag fits: absent                                  1 round trip, 1 verb
//!      │
//!      ├─ a tag fits: READ block(s) ─▶ own key: value                  2 round trips, 2 verbs
//!      │                             ├▶ all others' keys: absent
//!      │                             └▶ a block doesn't fit: from the start
//!      ├─ header foreign: READ directory word, from the start
//!      └─ header sealed: READ directory word ─▶ still names this segment: use the words, else from the start
//! ```

use std::ops::Range;

use sidestep_common::fabric::Reply;
use sidestep_common::hash::KeyHash;
use sidestep_common::layout::{BLOCK_HEADER_BYTES, BlockMeta};
use sidestep_common::planted::{Fault, is_planted};
use smallvec::SmallVec;

use super::route::{Header, Route, bucket_of};
use super::scan::{Candidate, Proof, Scan, UnfitWatch, prove, read_block};
use super::{Context, Operation, OperationError, Plan, Step};

/// A key that was found: where its value is among the replies of the last step.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Found {
    /// Which reply.
    pub reply: usize,
    /// Which of its bytes are the value.
    pub value: Range<usize>,
    /// What else the block says.
    pub meta: BlockMeta,
}

/// A get under way.
#[derive(Debug)]
pub struct Get<'a> {
    key: &'a [u8],
    route: Route,
    state: State,
    unfit: UnfitWatch,
    restarts: u32,
}

#[derive(Debug)]
enum State {
    Start,
    /// The READ of the bucket is out.
    Bucket,
    /// The READ of the directory word is out because a header was foreign.
    Directory,
    /// The READ of the directory word is out because the bucket is sealed; its words wait.
    Sealed(Scan),
    /// The READs of these candidates' blocks are out.
    Blocks(SmallVec<[Candidate; 2]>, Option<usize>),
}

impl<'a> Get<'a> {
    /// A get of `key`, hashed with the region's `seed`.
    pub fn new(key: &'a [u8], seed: u64) -> Self {
        let route = Route::new(KeyHash::of(key, seed));
        Self { key, route, state: State::Start, unfit: UnfitWatch::default(), restarts: 0 }
    }

    fn start(&mut self, context: &Context<'_>) -> Step<Option<Found>> {
        self.state = State::Bucket;
        match self.route.read_bucket(context) {
            Ok(verb) => Step::Post(Plan::from_iter([verb])),
            Err(error) => Step::Done(Err(error), None),
        }
    }

    fn restart(&mut self, context: &Context<'_>) -> Step<Option<Found>> {
        self.restarts += 1;
        self.start(context)
    }

    fn refresh(&mut self, context: &Context<'_>, state: State) -> Step<Option<Found>> {
        self.state = state;
        Step::Post(Plan::from_iter([self.route.read_directory(context)]))
    }

    /// The words are valid: read the blocks of the slots that may hold the key.
    fn follow(&mut self, context: &Context<'_>, scan: Scan) -> Step<Option<Found>> {
        let mut candidates = scan.live;
        if !is_planted(Fault::MovedMissedByGet) {
            candidates.extend(scan.moved);
        }
        if is_planted(Fault::DeletedTakenForValue) {
            candidates.extend(scan.deleted);
        }
        if is_planted(Fault::ClockRestarted) {
            self.route.posted_ms = context.now_ms;
        }
        if candidates.is_empty() {
            return self.absent(context, scan.malformed);
        }
        let reads = candidates.iter().map(|candidate| {
            read_block(context.superblock, self.route.slot_offset(candidate.slot), candidate.block)
        });
        match reads.collect::<Result<Plan, _>>() {
            Ok(plan) => {
                self.state = State::Blocks(candidates, scan.malformed);
                Step::Post(plan)
            }
            Err(error) => Step::Done(Err(error), None),
        }
    }

    fn absent(&mut self, context: &Context<'_>, malformed: Option<usize>) -> Step<Option<Found>> {
        if context.is_stale(self.route.posted_ms, Fault::StaleAbsentReturned) {
            return self.restart(context);
        }
        Step::Done(
            match malformed {
                None => Ok(None),
                Some(slot) => Err(OperationError::Corrupt {
                    offset: self.route.slot_offset(slot),
                    what: "a slot that may be the key's has no valid word",
                }),
            },
            None,
        )
    }

    fn judge(
        &mut self,
        context: &Context<'_>,
        candidates: &[Candidate],
        malformed: Option<usize>,
        replies: &[Reply],
    ) -> Step<Option<Found>> {
        let mut unfit = None;
        for (at, (candidate, reply)) in candidates.iter().zip(replies).enumerate() {
            match prove(reply, candidate.block, self.key) {
                Proof::Own(_) if context.is_stale(self.route.posted_ms, Fault::StaleValueReturned) => {
                    return self.restart(context);
                }
                Proof::Own(block) => {
                    let start = BLOCK_HEADER_BYTES + block.key.len();
                    let bytes =
                        block.value.len().saturating_sub(usize::from(is_planted(Fault::ValueCutShort)));
                    let value = start..start + bytes;
                    return Step::Done(Ok(Some(Found { reply: at, value, meta: block.meta })), None);
                }
                Proof::Other => {}
                Proof::Nothing => unfit = Some(*candidate),
            }
        }
        match unfit.map(|candidate| self.unfit.see(candidate)) {
            None => self.absent(context, malformed),
            Some(Ok(())) => self.restart(context),
            Some(Err(error)) => Step::Done(Err(error), None),
        }
    }
}

impl Operation for Get<'_> {
    type Output = Option<Found>;

    fn step(&mut self, context: &mut Context<'_>, replies: &[Reply]) -> Step<Option<Found>> {
        match std::mem::replace(&mut self.state, State::Start) {
            State::Start => self.start(context),
            State::Bucket => {
                let bucket = bucket_of(replies.first());
                match self.route.judge(&bucket) {
                    Header::Foreign => self.refresh(context, State::Directory),
                    Header::Sealed if !is_planted(Fault::SealedTrustedByGet) => {
                        let scan = Scan::of(&bucket, self.route.hash.tag());
                        self.refresh(context, State::Sealed(scan))
                    }
                    Header::Sealed | Header::Open => {
                        self.follow(context, Scan::of(&bucket, self.route.hash.tag()))
                    }
                }
            }
            State::Directory => {
                // The word may name the segment just found foreign: it was recycled, or is being built. Then
                // somebody else must go on first.
                match self.route.learn(context, &replies[0]) {
                    Ok(true) => {
                        self.restarts += 1;
                        Step::Pause
                    }
                    Ok(false) => self.restart(context),
                    Err(error) => Step::Done(Err(error), None),
                }
            }
            State::Sealed(scan) => match self.route.learn(context, &replies[0]) {
                Ok(true) => self.follow(context, scan),
                Ok(false) => self.restart(context),
                Err(error) => Step::Done(Err(error), None),
            },
            State::Blocks(candidates, malformed) => self.judge(context, &candidates, malformed, replies),
        }
    }

    fn block_pieces(&self) -> (&[u8], &[u8]) {
        (&[], &[])
    }

    fn may_rewind(&self) -> bool {
        matches!(self.state, State::Start)
    }

    fn restarts(&self) -> u32 {
        self.restarts
    }

    fn stage(&self) -> &'static str {
        match self.state {
            State::Start => "start",
            State::Bucket => "bucket",
            State::Directory => "directory",
            State::Sealed(_) => "sealed",
            State::Blocks(..) => "blocks",
        }
    }
}
