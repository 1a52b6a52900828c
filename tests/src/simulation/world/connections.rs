//! Connections that were lost, and those who come back.
//!
//! Always true: before a client looks what became of its CAS, the old queue pair is fenced.

use super::*;

impl World<'_> {
    /// Marks that went out and have not come may never do.
    pub(super) fn excuse_marks_under_way(&mut self, me: usize) {
        if self.actors[me].client.marks_posted() > self.book.marks_of(me) {
            self.book.excuse(me);
        }
    }

    pub(super) fn fence(&mut self, me: usize) {
        let Some(actor) = self.actors.get(me) else { return };
        let id = actor.client.queue_pair();
        self.excuse_marks_under_way(me);
        self.region.node.fence(id);
        self.fenced.push(id);
    }

    pub(super) fn rejoin(&mut self, me: usize, footprint: &mut Footprint) {
        if !self.actors.get(me).is_some_and(|actor| actor.life == Life::Alive && actor.client.must_rejoin()) {
            return;
        }
        if is_planted(Fault::ResolvedBeforeFence) {
            // Goes on beside the old queue pair; its verbs take effect when they like.
            self.strays_live_on(me);
        } else {
            self.fence(me);
        }
        let life = self.lives - 1;
        let actor = &mut self.actors[me];
        // A session of an earlier life is unknown to the server.
        let is_new = std::mem::replace(&mut actor.session_life, life) != life;
        let new_session = is_new.then_some(1000 * self.lives + me as u32);
        if let Some(number) = actor.record {
            self.history.records[number].life = life;
        }
        let old_life = actor.record;
        let event = actor.client.rejoin(self.region, self.now_ms, new_session);
        if new_session.is_some()
            && let (Some(number), Ok(Event::Ended(End::Unknown))) = (old_life, &event)
        {
            // Whatever it did, it did in the old life.
            self.history.records[number].life = life - 1;
        }
        self.after(me, event, footprint);
    }

    /// A planted mistake keeps a lost queue pair alive: its verbs become those of an actor that is dead.
    pub(super) fn strays_live_on(&mut self, me: usize) {
        let mut client = Client::new(self.region, 500 + me as u32);
        std::mem::swap(&mut client.fabric, &mut self.actors[me].client.fabric);
        self.book.in_limbo(me);
        self.book.excuse(me);
        let stray_stage = self.actors[me].stray_stage;
        self.actors.push(Actor { life: Life::Dead, stray_stage, ..Actor::new(client, me) });
    }

    pub(super) fn late(&mut self, me: usize, footprint: &mut Footprint) {
        let Some(actor) = self.actors.get(me) else { return };
        let id = actor.client.queue_pair();
        let (stage, owner) = (actor.stray_stage, actor.owner);
        if let Some(step) = self.region.node.whole_step(id)
            && let Some(touch) = self.observe(owner, step)
        {
            footprint.touch(&touch);
            self.coverage.hit(stage, Befall::LateEffect);
        }
    }
}
