//! What goes wrong, when it does.
//!
//! Always true: only what is among the choices befalls, and each costs one of the story's mishaps.

use super::*;

impl World<'_> {
    pub(super) fn befall(&mut self, me: usize, befall: Befall, footprint: &mut Footprint) {
        if self.befalls_left == 0 || !self.actors.get(me).is_some_and(|actor| actor.life == Life::Alive) {
            return;
        }
        let mut possible = Vec::new();
        self.befalling(&mut possible);
        if !possible.contains(&Choice::Befalls(me as u8, befall)) {
            return;
        }
        self.befalls_left -= 1;
        self.counts.befalls += 1;
        let stage = self.actors[me].client.stage();
        let id = self.actors[me].client.queue_pair();
        if befall != Befall::NoMemory {
            self.coverage.hit(stage, befall);
        }
        self.actors[me].stray_stage = stage;
        match befall {
            Befall::Death => {
                self.counts.kills += 1;
                self.actors[me].life = Life::Dead;
                self.book.in_limbo(me);
                self.book.excuse(me);
                self.region.node.lose(id, Loss::Death);
            }
            Befall::LossBefore | Befall::LossAfter | Befall::Flush => {
                self.book.in_limbo(me);
                self.excuse_marks_under_way(me);
                if befall == Befall::LossAfter {
                    // Of fine steps, the oldest that has not executed.
                    let mut steps = Vec::new();
                    while let Some(step) = self.first_execution(id, &mut steps) {
                        if let Some(touch) = self.observe(me, step) {
                            footprint.touch(&touch);
                        }
                        if matches!(step, NetStep::Execute(..)) {
                            break;
                        }
                    }
                }
                let loss = if befall == Befall::Flush { Loss::Flush } else { Loss::Silence };
                self.region.node.lose(id, loss);
                let event = self.actors[me].client.go_on(self.region, self.now_ms);
                self.after(me, event, footprint);
                self.lose_idle(me);
            }
            Befall::Timeout => {
                self.book.in_limbo(me);
                let actor = &mut self.actors[me];
                actor.stray = self.region.node.pending(id);
                let end = actor.client.time_out(self.region, self.now_ms);
                self.ended(me, end, footprint);
            }
            Befall::Restart => {
                footprint.is_global = true;
                self.restart();
            }
            Befall::Standstill => {
                footprint.is_global = true;
                self.now_ms += GRACE_MS + 1;
            }
            Befall::ClockJump => self.actors[me].client.ahead_ms += GRACE_MS / 2 + 1,
            Befall::NoMemory => self.actors[me].refuse_memory = true,
            Befall::ReadAgain => {
                if let Some(at) = self.region.node.reads_to_repeat(id).first() {
                    self.region.node.step(NetStep::ReadAgain(id, *at));
                }
            }
            Befall::Tear | Befall::LateEffect => {}
        }
    }

    /// The next step towards the execution of the oldest verb that has not executed.
    pub(super) fn first_execution(&self, id: QueuePairId, steps: &mut Vec<NetStep>) -> Option<NetStep> {
        steps.clear();
        self.region.node.fine_steps(id, steps, |_| 0);
        let execution = steps.iter().find(|step| matches!(step, NetStep::Execute(..)));
        execution.or_else(|| steps.iter().find(|step| matches!(step, NetStep::Arrive(_)))).copied()
    }

    /// A connection that was lost while nobody waited shows with the next call.
    pub(super) fn lose_idle(&mut self, me: usize) {
        self.actors[me].client.connection_lost();
    }

    /// The server restarts: its region is empty, and all connections are lost.
    pub(super) fn restart(&mut self) {
        self.lives += 1;
        self.region.node.go_back(&self.way_back);
        self.changes += 1;
        self.book = Book::default();
        for me in 0..self.actors.len() {
            let id = self.actors[me].client.queue_pair();
            self.region.node.lose(id, Loss::Silence);
            self.region.node.fence(id);
            self.fenced.push(id);
            self.book.in_limbo(me);
            self.book.excuse(me);
            if self.actors[me].life == Life::Alive {
                let event = self.actors[me].client.go_on(self.region, self.now_ms);
                let mut footprint = Footprint::default();
                self.after(me, event, &mut footprint);
                self.lose_idle(me);
            } else {
                self.actors[me].life = Life::Fenced;
            }
        }
    }
}
