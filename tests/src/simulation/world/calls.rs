//! Calls: their beginning, their verbs, their end.
//!
//! Always true: a client goes on at once when a completion is there.

use super::*;

impl World<'_> {
    pub(super) fn verb(&mut self, me: usize, footprint: &mut Footprint) {
        let Some(actor) = self.actors.get(me) else { return };
        if actor.life != Life::Alive || actor.client.must_rejoin() {
            return;
        }
        let id = actor.client.queue_pair();
        if self.region.node.pending(id) == 0 {
            self.begin(me, footprint);
        }
        let id = self.actors[me].client.queue_pair();
        if let Some(step) = self.region.node.whole_step(id) {
            self.network(me, step, footprint);
        }
    }

    /// Begins the next call, or resumes a paused one.
    pub(super) fn begin(&mut self, me: usize, footprint: &mut Footprint) {
        let Some(actor) = self.actors.get_mut(me) else { return };
        if actor.life != Life::Alive || actor.client.must_rejoin() {
            return;
        }
        if actor.client.pauses() {
            if actor.tried_at == self.changes {
                return;
            }
            actor.tried_at = self.changes;
            let event = actor.client.resume(self.region, self.now_ms);
            self.after(me, event, footprint);
            return;
        }
        if actor.client.is_busy() {
            return;
        }
        let Some(&call) = self.story.clients[me].get(actor.next_call) else { return };
        actor.next_call += 1;
        actor.verbs = 0;
        actor.tried_at = self.changes;
        let value = 100 * (me as u64 + 1) + actor.next_call as u64;
        actor.record = Some(self.history.records.len());
        self.history.records.push(Record {
            client: me,
            call,
            value,
            life: self.lives - 1,
            invoked: 2 * u64::from(self.steps),
            fate: Fate::Open,
        });
        footprint.begins = true;
        if self.story.reuse != Reuse::Never {
            self.harvest(me, footprint);
        }
        let event = self.actors[me].client.begin(self.region, self.now_ms, call, value);
        self.after(me, Ok(event), footprint);
    }

    /// The owner of chunks looks for blocks that were freed, where there are any.
    pub(super) fn harvest(&mut self, me: usize, footprint: &mut Footprint) {
        if let Some(grace_ms) = self.grace_ms()
            && self.book.is_worth_a_harvest(me)
        {
            self.actors[me].client.harvest_first(grace_ms);
        }
        let maps = self.book.chunks_of(me).into_iter().map(|(chunk, _)| (chunk, 64));
        footprint.reads.extend(maps);
    }

    pub(super) fn network(&mut self, me: usize, step: NetStep, footprint: &mut Footprint) {
        let Some(actor) = self.actors.get(me) else { return };
        if actor.life != Life::Alive || step.queue_pair() != actor.client.queue_pair() {
            return;
        }
        let stage = actor.client.stage();
        if let Some(touch) = self.observe(me, step) {
            footprint.touch(&touch);
            let actor = &mut self.actors[me];
            actor.verbs += u32::from(touch.whole);
            if matches!(step, NetStep::Execute(..)) && !touch.whole && actor.client.is_busy() {
                self.coverage.hit(stage, Befall::Tear);
            }
            if touch.whole && actor.stray > 0 {
                actor.stray -= 1;
                self.coverage.hit(actor.stray_stage, Befall::LateEffect);
            }
            if actor.verbs > VERBS_A_CALL_MAX {
                let detail = format!("client {me}'s call took more than {VERBS_A_CALL_MAX} verbs");
                self.violation.get_or_insert(Violation::new(Promise::Progress, detail));
            }
        }
        let event = self.actors[me].client.go_on(self.region, self.now_ms);
        self.after(me, event, footprint);
    }

    /// What follows a client's own step.
    pub(super) fn after(&mut self, me: usize, event: Result<Event, Violation>, footprint: &mut Footprint) {
        if self.story.rebuild.is_some() && !self.actors[me].client.directory_only_grows(self.region) {
            let detail = format!("client {me} forgot a newer word of the directory for an older one");
            self.violation.get_or_insert(Violation::new(Promise::Directory, detail));
        }
        let mut event = event;
        loop {
            match event {
                Err(violation) => {
                    self.violation.get_or_insert(violation);
                    return;
                }
                Ok(Event::Waits | Event::Pauses) => return,
                Ok(Event::Memory(class, purpose)) => {
                    let actor = &mut self.actors[me];
                    let pool_end = self.region.superblock.geometry.region_bytes;
                    let is_empty = self.next_chunk + CHUNK_BYTES > pool_end;
                    if std::mem::take(&mut actor.refuse_memory) || is_empty {
                        let stage = actor.client.stage();
                        self.coverage.hit(stage, Befall::NoMemory);
                        let end = self.actors[me].client.no_memory();
                        self.ended(me, end, footprint);
                        return;
                    }
                    let grant = self.grant(me, class, purpose);
                    let client = &mut self.actors[me].client;
                    Self::add(self.region, &self.story, client, grant, purpose, 0);
                    event = self.actors[me].client.resume(self.region, self.now_ms);
                }
                Ok(Event::Ended(end)) => {
                    self.ended(me, end, footprint);
                    return;
                }
            }
        }
    }

    pub(super) fn ended(&mut self, me: usize, end: End, footprint: &mut Footprint) {
        footprint.ends = true;
        let Some(number) = self.actors[me].record.take() else { return };
        if matches!(end, End::Answered(Answer::Stored))
            && let Err(violation) = self.book.stored(me)
        {
            self.violation.get_or_insert(violation);
        }
        let at = 2 * u64::from(self.steps) + 1;
        if matches!(end, End::Unknown) {
            // Whoever does not know whether it won can't mark what it may have unlinked.
            self.book.excuse(me);
        }
        let may_be_full = self.may_be_full();
        let record = &mut self.history.records[number];
        record.fate = match end {
            End::Answered(answer) => Fate::Returned(at, answer),
            End::Unknown => Fate::Open,
            End::Nothing => Fate::Nothing,
            End::Refused(error) => {
                let is_full = matches!(error, OperationError::BucketFull { .. });
                if !is_full || !may_be_full {
                    let detail = format!("client {me}: {}: {error}", record.call);
                    self.violation.get_or_insert(Violation::new(Promise::Errors, detail));
                }
                Fate::Nothing
            }
        };
    }
}
