//! A change whose connection fails, or whose time runs out, while its CAS is out: with the rules of `outcome` and
//! `resolve`, as a session applies them.

use sidestep_common::fabric::{Effect, Failure, FailureKind};
use sidestep_common::layout::SlotState;
use sidestep_common::planted::{Fault, is_planted};
use sidestep_common::wire::DirectoryChanges;

use super::super::acknowledge::{Acknowledge, may_begin};
use super::super::outcome::{Verdict, effect_of, effect_of_timeout, may_release, verdict};
use super::super::resolve::Resolve;
use super::super::{Action, Operation, PendingCas, PlannedVerb, Step};
use super::history::{Event, Model, apply, is_linearizable};
use super::interleaving::setups;
use super::world::{Actor, Answer, Call, Running, World, alone, perform};

/// What becomes of the CAS.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fate {
    Never,
    /// It takes effect, and its completion is lost.
    AtOnce,
    /// It takes effect at the last moment that the fabric allows: before the fence, or, if nobody fences, behind the READ
    /// of the slot.
    Late,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Loss {
    Connection,
    Time,
}

const KEY: &[u8] = b"k";

/// What a rival does to the key: while nothing is known of the CAS, and before the second try, if there is one.
const RIVALS: [&[Call<'static>]; 7] = [
    &[],
    &[Call::Put(KEY, b"rival")],
    &[Call::Delete(KEY)],
    &[Call::Get(KEY), Call::Put(KEY, b"rival")],
    &[Call::Get(KEY), Call::Delete(KEY)],
    &[Call::Put(KEY, b"rival"), Call::Delete(KEY)],
    &[Call::Delete(KEY), Call::Put(KEY, b"rival")],
];

/// One run: the subject's call among those of a rival, and what all of them answered.
struct Story<'a> {
    world: World,
    actor: Actor,
    rival: Actor,
    time: usize,
    events: Vec<Event<'a>>,
}

impl<'a> Story<'a> {
    fn rivals(&mut self, calls: &[Call<'a>]) {
        for &call in calls {
            self.time += 2;
            let (answer, ..) = alone(&mut self.world, &mut self.rival, call);
            self.events.push(Event { call, answer, invoked: self.time, returned: self.time + 1 });
        }
    }

    fn swap(&mut self, cas: PendingCas) {
        let action = Action::CompareSwap { expected: cas.expected, desired: cas.desired };
        self.world.execute(&PlannedVerb { subject: "slot", remote: cas.slot, action }, (&[], &[]));
    }

    fn resolve(&mut self, cas: PendingCas) -> Effect {
        let mut resolve = Resolve::new(cas);
        let Step::Post(plan) = resolve.step(&mut self.world.context(&mut self.actor), &[]) else {
            panic!("it reads the slot first")
        };
        let replies = [self.world.execute(&plan[0], (&[], &[]))];
        assert_eq!(resolve.restarts(), 0);
        let step = resolve.step(&mut self.world.context(&mut self.actor), &replies);
        let Step::Done(Ok(effect), marks) = step else { panic!("one READ is enough") };
        for mark in marks.unwrap_or_default() {
            self.world.execute(&mark, (&[], &[]));
        }
        effect
    }

    /// The connection fails with `cas` out; says what the caller is told, if it is told an answer or "failed".
    fn disconnected(
        &mut self,
        call: Call<'a>,
        cas: PendingCas,
        fate: Fate,
        rivals: [&[Call<'a>]; 2],
    ) -> Result<Answer, Effect> {
        let failure = Failure {
            verb_index: 0,
            kind: FailureKind::Disconnected("lost".into()),
            effect: Effect::Unknown,
        };
        let mut effect = effect_of(Some(cas), &failure);
        self.rivals(rivals[0]);
        let fences = !is_planted(Fault::ResolvedBeforeFence);
        if fate == Fate::Late && fences {
            self.swap(cas);
        }
        if effect == Effect::Unknown {
            effect = self.resolve(cas);
        }
        if fate == Fate::Late && !fences {
            self.swap(cas);
        }
        match verdict(effect, &failure) {
            Verdict::Succeeded => Ok(match call {
                Call::Put(..) => Answer::Stored,
                _ => Answer::Existed(true),
            }),
            Verdict::Again => {
                self.rivals(rivals[1]);
                Ok(alone(&mut self.world, &mut self.actor, call).0)
            }
            Verdict::Failed(effect) => Err(effect),
        }
    }

    fn timed_out(&mut self, cas: PendingCas, fate: Fate, rivals: &[Call<'a>]) -> Effect {
        self.rivals(rivals);
        if fate == Fate::Late {
            self.swap(cas);
        }
        effect_of_timeout(Some(cas))
    }
}

fn run<'a>(setup: &[Call<'a>], call: Call<'a>, loss: Loss, fate: Fate, rivals: [&[Call<'a>]; 2]) {
    let (world, actor, rival) = (World::new(), Actor::new(1), Actor::new(2));
    let mut story = Story { world, actor, rival, time: 0, events: Vec::new() };
    let mut model: Model<'a> = vec![(KEY, None)];
    for &call in setup {
        let (answer, ..) = alone(&mut story.world, &mut story.rival, call);
        model = apply(&model, &Event { call, answer, invoked: 0, returned: 0 }).expect("nobody interferes");
    }
    let mut running = Running::new(call);
    while running.pending_cas().is_none() && !running.is_over() {
        running.verb(&mut story.world, &mut story.actor);
    }
    // A delete that finds nothing has no CAS to lose.
    let Some(cas) = running.pending_cas() else {
        assert!(
            matches!(call, Call::Delete(_)) && model[0].1.is_none(),
            "{call:?} after {setup:?} has no CAS"
        );
        return;
    };
    if fate == Fate::AtOnce {
        story.swap(cas);
    }
    if may_release(true) {
        running.release(&story.world, &mut story.actor);
    }
    let told = match loss {
        Loss::Connection => story.disconnected(call, cas, fate, rivals),
        Loss::Time => Err(story.timed_out(cas, fate, rivals[0])),
    };
    story.time += 2;
    let mut subject = Event { call, answer: Answer::Stored, invoked: 0, returned: story.time };
    // Whatever it holds now is published by the next one, elsewhere.
    alone(&mut story.world, &mut story.actor, Call::Put(b"elsewhere", b"v"));
    story.rivals(&[Call::Get(KEY)]);
    story.world.check_bucket(KEY);
    let explained = |subject: Option<&Event<'a>>| {
        let events: Vec<Event<'a>> = story.events.iter().chain(subject).cloned().collect();
        is_linearizable(&model, &events)
    };
    let is_explained = match told.clone() {
        Ok(answer) => {
            story.world.auditor.check_marks();
            subject.answer = answer;
            explained(Some(&subject))
        }
        Err(Effect::Unknown) => {
            subject.returned = usize::MAX;
            let answers = [Answer::Stored, Answer::Existed(true), Answer::Existed(false)];
            explained(None)
                || answers.into_iter().any(|answer| explained(Some(&Event { answer, ..subject.clone() })))
        }
        Err(_) => explained(None),
    };
    assert!(
        is_explained,
        "setup {setup:?}, {call:?} loses {loss:?} and happens {fate:?}: {told:?}\n{:#?}",
        story.events
    );
}

/// Whatever became of the CAS, and whatever a rival did meanwhile: what the caller is told is true, what happened is not
/// done twice, what may have happened is not reported as failed, and no block is used that may be published.
#[test]
pub(super) fn what_was_lost_is_never_guessed() {
    for setup in setups(KEY) {
        for call in [Call::Put(KEY, b"mine"), Call::Delete(KEY)] {
            for fate in [Fate::Never, Fate::AtOnce, Fate::Late] {
                for first in RIVALS {
                    run(&setup, call, Loss::Time, fate, [first, &[]]);
                    for second in RIVALS {
                        run(&setup, call, Loss::Connection, fate, [first, second]);
                    }
                }
            }
        }
    }
}

/// A put's connection is lost with its CAS out, and the old queue pair is fenced; the session has another one. Meanwhile an
/// epoch is raised. As long as the session does not know what became of its CAS it does not begin to acknowledge: others
/// could use blocks again until the slot holds the very word that the CAS expected, or puts in, and it would learn the fate of
/// another's.
#[test]
pub(super) fn a_swap_out_holds_back_the_epoch() {
    let (mut world, mut actor, mut rival) = (World::new(), Actor::new(1), Actor::new(2));
    alone(&mut world, &mut rival, Call::Put(KEY, b"old"));
    let block_of = |world: &World| {
        let words = world.slot_words(KEY);
        let SlotState::Live(block) = words[0].state() else { panic!("{words:?}") };
        (words[0], block)
    };
    let (expected, block) = block_of(&world);
    let mut put = Running::new(Call::Put(KEY, b"new"));
    while put.pending_cas().is_none() {
        put.verb(&mut world, &mut actor);
    }
    let cas = put.pending_cas().expect("its CAS is out");
    assert_eq!(cas.expected, expected.bits());
    // It takes effect behind the session's back, and is overwritten.
    let action = Action::CompareSwap { expected: cas.expected, desired: cas.desired };
    world.execute(&PlannedVerb { subject: "slot", remote: cas.slot, action }, (&[], &[]));
    world.audit_off();
    alone(&mut world, &mut rival, Call::Put(KEY, b"newer"));
    let is_acknowledged = may_begin(true);
    if is_acknowledged {
        assert_eq!(perform(&mut world, &mut actor, &mut Acknowledge::new(2, DirectoryChanges::All)), Ok(2));
        // Now the first block's versions may come round.
        rival.allocator.reuse_next(block);
        alone(&mut world, &mut rival, Call::Put(KEY, b"newest"));
    }
    // "No" would be wrong, and so would a second try.
    assert_eq!(perform(&mut world, &mut actor, &mut Resolve::new(cas)), Ok(Effect::Unknown));
    assert!(!is_acknowledged);
}
