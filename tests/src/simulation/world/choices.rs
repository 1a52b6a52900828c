//! What may happen next.
//!
//! Always true: with nothing left but mishaps, the run is over.

use super::*;

impl World<'_> {
    /// Everything that may happen next. What must not happen for the run to be over comes last: with only that left, it
    /// is over.
    pub fn choices(&mut self, into: &mut Vec<Choice>) {
        into.clear();
        if self.violation.is_some() {
            return;
        }
        let mut steps = Vec::new();
        for (number, actor) in self.actors.iter().enumerate() {
            let me = number as u8;
            let id = actor.client.queue_pair();
            match actor.life {
                Life::Fenced => {}
                Life::Dead => {
                    if self.region.node.pending(id) > 0 {
                        into.push(Choice::Late(me));
                        into.push(Choice::Fence(me));
                    }
                }
                Life::Alive if actor.client.must_rejoin() => {
                    if self.has_more(actor) {
                        into.push(Choice::Rejoin(me));
                    }
                    if self.region.node.pending(id) > 0 {
                        into.push(Choice::Late(me));
                        if !self.has_more(actor) {
                            into.push(Choice::Fence(me));
                        }
                    }
                }
                Life::Alive => {
                    let pending = self.region.node.pending(id);
                    let may_begin = if actor.client.pauses() {
                        actor.tried_at != self.changes
                    } else {
                        !actor.client.is_busy() && self.has_more(actor)
                    };
                    if self.story.fine {
                        steps.clear();
                        let random = &mut self.random;
                        self.region.node.fine_steps(id, &mut steps, |below| draw(random, below));
                        into.extend(steps.iter().map(|step| Choice::Network(me, *step)));
                        if may_begin {
                            into.push(Choice::Begin(me));
                        }
                    } else if pending > 0 || may_begin {
                        into.push(Choice::Verb(me));
                    }
                }
            }
        }
        if self.janitor.as_ref().is_some_and(|janitor| !janitor.is_done()) {
            into.push(Choice::Janitor);
        }
        if self.befalls_left > 0 && !into.is_empty() {
            self.befalling(into);
        }
    }

    pub(super) fn has_more(&self, actor: &Actor) -> bool {
        let number = self.actors.iter().position(|other| std::ptr::eq(other, actor));
        // A lost connection that a planted mistake keeps alive has no calls of its own.
        let calls = number.and_then(|number| self.story.clients.get(number)).map_or(0, Vec::len);
        actor.client.is_busy() || actor.next_call < calls
    }

    pub(super) fn befalling(&self, into: &mut Vec<Choice>) {
        for (number, actor) in self.actors.iter().enumerate() {
            if actor.life != Life::Alive || actor.client.must_rejoin() {
                continue;
            }
            let id = actor.client.queue_pair();
            let pending = self.region.node.pending(id);
            let is_busy = actor.client.is_busy();
            // Marks of the last call may be out.
            let concerned = is_busy || pending > 0;
            for &befall in &self.story.may_befall {
                let possible = match befall {
                    Befall::Death | Befall::LossBefore => concerned,
                    Befall::LossAfter => pending > 0,
                    Befall::Flush => pending > 0,
                    Befall::Timeout => is_busy && pending > 0,
                    Befall::Restart => concerned && self.lives == 1 && self.janitor.is_none(),
                    Befall::Standstill | Befall::ClockJump => is_busy,
                    Befall::NoMemory => {
                        !is_busy && pending == 0 && self.has_more(actor) && !actor.refuse_memory
                            || actor.client.stage() == ("delete", "bucket") && !actor.refuse_memory
                    }
                    Befall::ReadAgain => self.story.fine && !self.region.node.reads_to_repeat(id).is_empty(),
                    Befall::Tear | Befall::LateEffect => false,
                };
                if possible {
                    into.push(Choice::Befalls(number as u8, befall));
                }
            }
        }
    }
}
