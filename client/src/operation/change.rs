//! put and delete: the changes of a key.
//!
//! Always true: a change takes effect at exactly one CAS of the key's slot, and after that CAS was posted it is
//! never repeated unless the CAS is known to have failed. The block that the CAS publishes was written before it
//! on the same queue pair. Whoever wins the CAS frees the block that it unlinked, with one 1-byte WRITE.
//!
//! ```text
//! put:    READ bucket, WRITE block ─▶ tag fits: READ block(s) ─▶ own: CAS word  ─▶ mark old block free
//!                                  │                          └▶ none own ─┐
//!                                  └▶ no tag fits ──────────────────────▶ CAS first EMPTY slot (none: report, wait, again)
//! delete: READ bucket ─▶ tag fits: READ block(s), WRITE key-only block ─▶ own: CAS word to DELETED ─▶ mark
//!                     └▶ no tag fits: it wasn't there
//! ```
//!
//! **Losing a race.** A CAS that finds another word is a lost race. The returned word is the newest word of the
//! slot, and by the binding rule (a slot that left EMPTY keeps its key) of the same key if the expected word
//! was. A put is *blind*: if the word it lost to is blind too, it was overwritten the moment it happened, and
//! is done. ⚑ It claims so only against a word that carries the blind bit. A delete reports whether the key
//! was there, so ⚑ it never claims: lost to DELETED it answers "no", lost to LIVE it tries again.

use sidestep_common::fabric::Reply;
use sidestep_common::hash::KeyHash;
use sidestep_common::layout::{
    BlockHeader, BlockMeta, BlockRef, CHUNK_BYTES, SizeClass, SlotState, SlotWord,
};
use sidestep_common::planted::{Fault, is_planted};
use sidestep_common::wire::ChunkPurpose;
use smallvec::SmallVec;

use super::route::{Header, Route, bucket_of};
use super::scan::{Candidate, Proof, Scan, UnfitWatch, check_place, mark_free, prove, read_block};
use super::{Action, Context, Operation, OperationError, PendingCas, Plan, PlannedVerb, Step};

/// What became of a change.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Changed {
    /// A put took effect. It may have been overwritten already, by a rival that didn't read.
    Stored,
    /// A delete found the key and removed it.
    Deleted,
    /// A delete found no such key.
    Absent,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    /// Unconditional, and reports nothing: blind.
    Put,
    /// Says whether the key was there: not blind.
    Delete,
}

/// A put or delete under way.
#[derive(Debug)]
pub struct Change<'a> {
    kind: Kind,
    key: &'a [u8],
    value: &'a [u8],
    class: SizeClass,
    route: Route,
    state: State,
    /// The block to be published; taken from the allocator once, published or given back at the end.
    block: Option<BlockRef>,
    /// The block's WRITE has been posted; steps go on only after its completion.
    written: bool,
    unfit: UnfitWatch,
    restarts: u32,
}

#[derive(Debug)]
enum State {
    Start,
    /// The READ of the bucket is out (and the block's WRITE, for a put).
    Bucket,
    /// The READ of the directory word is out.
    Directory,
    /// A delete waits for block memory before it reads the candidates' blocks.
    Verify(Scan),
    /// The READs of these candidates' blocks are out.
    Blocks(SmallVec<[Candidate; 4]>, Scan),
    /// The bucket was reported full, and its segment is being rebuilt, or was.
    Full,
    /// The CAS of an EMPTY slot is out.
    Insert(usize, Scan),
    /// The READ of the block of a rival that filled the slot first is out.
    Rival(Candidate, Scan),
    /// The CAS of the key's own slot is out.
    Replace(Candidate),
}

impl<'a> Change<'a> {
    /// A blind put of `value` at `key`; `None` if either is over its limit.
    pub fn put(key: &'a [u8], value: &'a [u8], seed: u64) -> Option<Self> {
        Self::new(Kind::Put, key, value, seed)
    }

    /// A delete of `key` that says whether it was there; `None` if the key is over its limit.
    pub fn delete(key: &'a [u8], seed: u64) -> Option<Self> {
        Self::new(Kind::Delete, key, &[], seed)
    }

    fn new(kind: Kind, key: &'a [u8], value: &'a [u8], seed: u64) -> Option<Self> {
        Some(Self {
            kind,
            key,
            value,
            class: BlockHeader::class_for(key.len(), value.len())?,
            route: Route::new(KeyHash::of(key, seed)),
            state: State::Start,
            block: None,
            written: false,
            unfit: UnfitWatch::default(),
            restarts: 0,
        })
    }

    /// The word that the CAS puts in.
    fn desired(&self, block: BlockRef) -> SlotWord {
        match self.kind {
            Kind::Put => SlotWord::live(self.route.hash.tag(), block, true),
            Kind::Delete if is_planted(Fault::DeleteWritesLive) => {
                SlotWord::live(self.route.hash.tag(), block, false)
            }
            Kind::Delete => SlotWord::deleted(self.route.hash.tag(), block, false),
        }
    }

    /// What its block is for.
    const fn purpose(&self) -> ChunkPurpose {
        match self.kind {
            Kind::Put => ChunkPurpose::General,
            Kind::Delete => ChunkPurpose::Delete,
        }
    }

    /// Makes sure of the block, before any verb that needs it. On `Err`, memory for that purpose
    /// must be got first.
    fn own_block(&mut self, context: &mut Context<'_>) -> Result<BlockRef, ChunkPurpose> {
        if let Some(block) = self.block {
            return Ok(block);
        }
        let purpose = self.purpose();
        self.block = context.allocator.allocate(self.class, purpose);
        self.block.ok_or(purpose)
    }

    /// The WRITE of the block, if it wasn't posted yet.
    fn write_block(&mut self, context: &mut Context<'_>, block: BlockRef) -> Option<PlannedVerb> {
        // With that planted, the WRITE goes out behind the CAS, for which the state has been left already.
        let is_early = is_planted(Fault::PublishedBeforeWritten) && matches!(self.state, State::Start);
        if is_early || std::mem::replace(&mut self.written, true) {
            return None;
        }
        let named = if is_planted(Fault::VersionOfBlockWrong) { block.version.next() } else { block.version };
        let meta = BlockMeta { write_id: context.write_ids.next_id(), expiry_tick: 0, user_flags: 0 };
        let header = BlockHeader::new(BlockRef { version: named, ..block }, meta, self.key, self.value);
        Some(PlannedVerb { subject: "block", remote: block.offset, action: Action::WriteBlock(header) })
    }

    fn start(&mut self, context: &mut Context<'_>) -> Step<Changed> {
        let mut plan = Plan::new();
        match self.route.read_bucket(context) {
            Ok(read) => plan.push(read),
            Err(error) => return self.end(context, Err(error)),
        }
        if self.kind == Kind::Put {
            match self.own_block(context) {
                Ok(block) => plan.extend(self.write_block(context, block)),
                Err(purpose) => return Step::Memory(self.class, purpose),
            }
        }
        self.state = State::Bucket;
        Step::Post(plan)
    }

    fn restart(&mut self, context: &mut Context<'_>) -> Step<Changed> {
        self.restarts += 1;
        self.start(context)
    }

    /// A rebuild is in the way, or the directory is old: learn where the key's bucket is now.
    fn refresh(&mut self, context: &Context<'_>) -> Step<Changed> {
        self.state = State::Directory;
        Step::Post(Plan::from_iter([self.route.read_directory(context)]))
    }

    /// Over without a CAS of ours in effect: the block was never published, so it can be used again at once.
    fn end(&mut self, context: &mut Context<'_>, result: Result<Changed, OperationError>) -> Step<Changed> {
        if !is_planted(Fault::UnpublishedLost) {
            self.release(context);
        }
        Step::Done(result, None)
    }

    /// Over with our CAS in effect: the block is published, and the one that it replaced is freed.
    fn won(&mut self, context: &mut Context<'_>, replaced: SlotWord) -> Step<Changed> {
        let mark = match self.block {
            Some(published) if is_planted(Fault::NewBlockMarked) => mark_free(self.desired(published)),
            _ => mark_free(replaced),
        };
        if is_planted(Fault::PublishedGivenBack) {
            self.release(context);
        }
        if let Some(published) = self.block.take() {
            context.allocator.published(published);
        }
        Step::Done(Ok(self.effect()), mark)
    }

    /// A blind put that lost to a blind word of its own key was overwritten the moment it happened, when its slot held
    /// `expected`.
    fn overwritten(&mut self, context: &mut Context<'_>, expected: SlotWord) -> Step<Changed> {
        match self.end(context, Ok(self.effect())) {
            Step::Done(result, _) if is_planted(Fault::LoserMarks) => Step::Done(result, mark_free(expected)),
            done => done,
        }
    }

    /// What is said of it once it happened.
    const fn effect(&self) -> Changed {
        match self.kind {
            Kind::Put => Changed::Stored,
            Kind::Delete => Changed::Deleted,
        }
    }

    /// ⚑ Only blind against blind may claim.
    fn may_claim(&self, lost_to: SlotWord) -> bool {
        let is_blind = self.kind == Kind::Put || is_planted(Fault::DeleteClaims);
        is_blind && (lost_to.is_blind() || is_planted(Fault::ClaimsAgainstAnyWord))
    }

    /// The bucket is here: decide which blocks must be looked at.
    fn judge_bucket(&mut self, context: &mut Context<'_>, replies: &[Reply]) -> Step<Changed> {
        let bucket = bucket_of(replies.first());
        match self.route.judge(&bucket) {
            Header::Open => {}
            Header::Sealed if is_planted(Fault::SealedTrustedByChange) => {}
            Header::Sealed | Header::Foreign => return self.refresh(context),
        }
        let scan = Scan::of(&bucket, self.route.hash.tag());
        if let Some(slot) = scan.malformed {
            let offset = self.route.slot_offset(slot);
            let what = "a slot that may be the key's has no valid word";
            return self.end(context, Err(OperationError::Corrupt { offset, what }));
        }
        // ⚑ CLOSED is neither EMPTY nor occupied: a rebuild has begun, start over with a fresh directory.
        let saw_closed = scan.saw_closed && !is_planted(Fault::ClosedPassedOver);
        let saw_moved = !scan.moved.is_empty() && !is_planted(Fault::MovedMissedByChange);
        if saw_closed || saw_moved {
            return self.refresh(context);
        }
        self.verify(context, scan)
    }

    /// Reads the blocks of all slots that may hold the key.
    fn verify(&mut self, context: &mut Context<'_>, scan: Scan) -> Step<Changed> {
        let mut candidates: SmallVec<[Candidate; 4]> = scan.live.iter().copied().collect();
        if is_planted(Fault::ClockRestarted) {
            self.route.posted_ms = context.now_ms;
        }
        if self.kind == Kind::Put && !is_planted(Fault::DeletedNotExamined) {
            // A deleted key's slot is taken up again by the same key only, so it must be found.
            candidates.extend(scan.deleted.iter().copied());
        }
        if candidates.is_empty() {
            return self.none_own(context, scan);
        }
        let reads = candidates.iter().map(|candidate| {
            read_block(context.superblock, self.route.slot_offset(candidate.slot), candidate.block)
        });
        let mut plan = match reads.collect::<Result<Plan, _>>() {
            Ok(plan) => plan,
            Err(error) => return self.end(context, Err(error)),
        };
        if self.kind == Kind::Delete {
            match self.own_block(context) {
                Ok(block) => plan.extend(self.write_block(context, block)),
                Err(purpose) => {
                    self.state = State::Verify(scan);
                    return Step::Memory(self.class, purpose);
                }
            }
        }
        self.state = State::Blocks(candidates, scan);
        Step::Post(plan)
    }

    fn judge_blocks(
        &mut self,
        context: &mut Context<'_>,
        candidates: &[Candidate],
        scan: Scan,
        replies: &[Reply],
    ) -> Step<Changed> {
        let mut unfit = None;
        for (candidate, reply) in candidates.iter().zip(replies) {
            match prove(reply, candidate.block, self.key) {
                Proof::Own(_) => return self.replace(context, *candidate),
                Proof::Other => {}
                Proof::Nothing => unfit = Some(*candidate),
            }
        }
        match unfit.map(|candidate| self.unfit.see(candidate)) {
            None => self.none_own(context, scan),
            Some(Ok(())) => self.restart(context),
            Some(Err(error)) => self.end(context, Err(error)),
        }
    }

    /// No slot of the bucket is this key's.
    fn none_own(&mut self, context: &mut Context<'_>, scan: Scan) -> Step<Changed> {
        match self.kind {
            Kind::Put => self.insert(context, scan),
            Kind::Delete if context.is_stale(self.route.posted_ms, Fault::StaleAbsentDeleted) => {
                self.restart(context)
            }
            Kind::Delete => self.end(context, Ok(Changed::Absent)),
        }
    }

    /// CAS of the first EMPTY slot that is left.
    fn insert(&mut self, context: &mut Context<'_>, mut scan: Scan) -> Step<Changed> {
        if context.is_stale(self.route.posted_ms, Fault::StaleInserted) {
            return self.restart(context);
        }
        if is_planted(Fault::AnyEmptySlot)
            && scan.empty.count_ones() > 1
            && self.block.is_some_and(|block| block.offset.0 / CHUNK_BYTES % 2 == 1)
        {
            scan.take_first_empty();
        }
        match scan.take_first_empty() {
            Some(slot) => self.cas(context, slot, SlotWord::EMPTY, State::Insert(slot, scan)),
            None => {
                // The block stays in hand: once there is room it is published.
                self.state = State::Full;
                Step::Grow(self.route.report(context, true))
            }
        }
    }

    /// CAS of the key's own slot.
    fn replace(&mut self, context: &mut Context<'_>, own: Candidate) -> Step<Changed> {
        if context.is_stale(self.route.posted_ms, Fault::StaleReplaced) {
            return self.restart(context);
        }
        self.cas(context, own.slot, own.word, State::Replace(own))
    }

    fn cas(
        &mut self,
        context: &mut Context<'_>,
        slot: usize,
        expected: SlotWord,
        state: State,
    ) -> Step<Changed> {
        let Some(block) = self.block else { unreachable!("a CAS without a block to publish") };
        self.state = state;
        let mut plan = Plan::from_iter([PlannedVerb {
            subject: "slot",
            remote: self.route.slot_offset(slot),
            action: Action::CompareSwap { expected: expected.bits(), desired: self.desired(block).bits() },
        }]);
        if is_planted(Fault::PublishedBeforeWritten) {
            plan.extend(self.write_block(context, block));
        }
        Step::Post(plan)
    }

    /// The CAS of an EMPTY slot came back.
    fn inserted(
        &mut self,
        context: &mut Context<'_>,
        slot: usize,
        scan: Scan,
        old: SlotWord,
    ) -> Step<Changed> {
        let block = match old.state() {
            SlotState::Empty => {
                context.hints.note(slot, self.route.report(context, false));
                return self.won(context, old);
            }
            SlotState::Live(_) if is_planted(Fault::LostSlotClaimed) => {
                return self.overwritten(context, SlotWord::EMPTY);
            }
            SlotState::Live(block) | SlotState::Deleted(block) => block,
            SlotState::Closed | SlotState::Moved(_) => return self.refresh(context),
            SlotState::Malformed => return self.malformed(context, slot),
        };
        if old.tag() != self.route.hash.tag() || is_planted(Fault::RivalPassedOver) {
            return self.insert(context, scan);
        }
        // A rival with our tag was first: our key, or another?
        let rival = Candidate { slot, word: old, block };
        match read_block(context.superblock, self.route.slot_offset(slot), block) {
            Ok(read) => {
                self.state = State::Rival(rival, scan);
                Step::Post(Plan::from_iter([read]))
            }
            Err(error) => self.end(context, Err(error)),
        }
    }

    fn judge_rival(
        &mut self,
        context: &mut Context<'_>,
        rival: Candidate,
        scan: Scan,
        reply: &Reply,
    ) -> Step<Changed> {
        match prove(reply, rival.block, self.key) {
            Proof::Other if !is_planted(Fault::RivalKeyNotCompared) => self.insert(context, scan),
            Proof::Own(_) | Proof::Other
                if self.may_claim(rival.word)
                    && !context.is_stale(self.route.posted_ms, Fault::StaleClaimed) =>
            {
                self.overwritten(context, SlotWord::EMPTY)
            }
            // It has to win, or is too old to be believed and starts again.
            Proof::Own(_) | Proof::Other => self.replace(context, rival),
            Proof::Nothing => match self.unfit.see(rival) {
                Ok(()) => self.restart(context),
                Err(error) => self.end(context, Err(error)),
            },
        }
    }

    /// The CAS of the key's own slot came back.
    fn replaced(&mut self, context: &mut Context<'_>, own: Candidate, old: SlotWord) -> Step<Changed> {
        let unchecked = match self.kind {
            Kind::Put => Fault::LostPutTakenForWon,
            Kind::Delete => Fault::LostDeleteTakenForWon,
        };
        if old == own.word || is_planted(unchecked) {
            return self.won(context, old);
        }
        let block = match old.state() {
            SlotState::Live(block) | SlotState::Deleted(block) => block,
            SlotState::Moved(block) if is_planted(Fault::MovedTakenForNext) => block,
            // Not the next expected word: a rebuild has moved the key.
            SlotState::Empty | SlotState::Closed | SlotState::Moved(_) => return self.refresh(context),
            SlotState::Malformed => return self.malformed(context, own.slot),
        };
        if self.may_claim(old) {
            return self.overwritten(context, own.word);
        }
        let word = if is_planted(Fault::LostSwapRepeated) { own.word } else { old };
        let rival = Candidate { slot: own.slot, word, block };
        match (self.kind, old.state()) {
            (Kind::Delete, SlotState::Deleted(_)) if !is_planted(Fault::DeleteLostToDeletedGoesOn) => {
                self.end(context, Ok(Changed::Absent))
            }
            (Kind::Delete, SlotState::Live(_)) if is_planted(Fault::DeleteLostToLiveGivesUp) => {
                self.end(context, Ok(Changed::Absent))
            }
            _ => match check_place(context.superblock, self.route.slot_offset(own.slot), rival.block) {
                Ok(()) => {
                    self.restarts += 1;
                    self.replace(context, rival)
                }
                Err(error) => self.end(context, Err(error)),
            },
        }
    }

    fn malformed(&mut self, context: &mut Context<'_>, slot: usize) -> Step<Changed> {
        let what = "a slot has no valid word";
        self.end(context, Err(OperationError::Corrupt { offset: self.route.slot_offset(slot), what }))
    }
}

/// The word that a CAS found.
fn old_word(replies: &[Reply]) -> SlotWord {
    match replies.first() {
        Some(Reply::Old(bits)) => SlotWord::from_bits(*bits),
        other => unreachable!("a CAS brings the old word, not {other:?}"),
    }
}

impl Operation for Change<'_> {
    type Output = Changed;

    fn step(&mut self, context: &mut Context<'_>, replies: &[Reply]) -> Step<Changed> {
        match std::mem::replace(&mut self.state, State::Start) {
            State::Start => self.start(context),
            State::Bucket => self.judge_bucket(context, replies),
            State::Directory => {
                self.restarts += 1;
                match self.route.learn(context, &replies[0]) {
                    // The rebuild hasn't published the new segment yet.
                    Ok(true) => Step::Pause,
                    Ok(false) => self.start(context),
                    Err(error) => self.end(context, Err(error)),
                }
            }
            State::Verify(scan) => self.verify(context, scan),
            State::Full => self.refresh(context),
            State::Blocks(candidates, scan) => self.judge_blocks(context, &candidates, scan, replies),
            State::Insert(slot, scan) => self.inserted(context, slot, scan, old_word(replies)),
            State::Rival(rival, scan) => self.judge_rival(context, rival, scan, &replies[0]),
            State::Replace(own) => self.replaced(context, own, old_word(replies)),
        }
    }

    fn block_pieces(&self) -> (&[u8], &[u8]) {
        (self.key, self.value)
    }

    fn pending_cas(&self) -> Option<PendingCas> {
        let (slot, expected) = match &self.state {
            State::Insert(slot, _) => (*slot, SlotWord::EMPTY),
            State::Replace(own) => (own.slot, own.word),
            _ => return None,
        };
        let block = self.block?;
        Some(PendingCas {
            slot: self.route.slot_offset(slot),
            expected: expected.bits(),
            desired: self.desired(block).bits(),
        })
    }

    fn may_rewind(&self) -> bool {
        matches!(self.state, State::Start | State::Verify(_) | State::Full)
    }

    fn rewind(&mut self) {
        if matches!(self.state, State::Verify(_)) {
            self.state = State::Start;
        }
    }

    fn held_block(&self) -> Option<BlockRef> {
        self.block
    }

    fn release(&mut self, context: &mut Context<'_>) {
        if let Some(block) = self.block.take() {
            context.allocator.give_back(block);
        }
    }

    fn restarts(&self) -> u32 {
        self.restarts
    }

    fn stage(&self) -> &'static str {
        match self.state {
            State::Start => "start",
            State::Bucket => "bucket",
            State::Directory => "directory",
            State::Verify(_) => "memory",
            State::Full => "full",
            State::Blocks(..) => "blocks",
            State::Insert(..) => "insert",
            State::Rival(..) => "rival",
            State::Replace(_) => "replace",
        }
    }
}
