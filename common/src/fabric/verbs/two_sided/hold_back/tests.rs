//! The hold-back against a model of a card and a CPU, without either.

use super::*;

/// A client, the network, a card and a CPU: what is sent reaches the card at once and in order; commits reach the CPU, which
/// answers when the test says so.
struct World {
    hold_back: HoldBack,
    /// What executed or was handed to the CPU, in the order sent.
    sent: Vec<u64>,
    /// Sequences that the CPU has not answered.
    asked: VecDeque<u64>,
    next_sequence: u64,
    /// Parts that the card has not completed: how many READs and WRITEs, in places.
    at_card: VecDeque<Vec<bool>>,
    completions: Vec<Completion>,
    next_batch: u64,
}

/// A verb at that offset, by a letter: `w` for a WRITE, `c` for a CAS, `f` for a FAA.
fn verb(letter: char, offset: u64) -> Verb<'static> {
    let remote = Offset(offset);
    match letter {
        'w' => Verb::Write { remote, from: [b"ab", b"", b"c"] },
        'c' => Verb::CompareSwap { remote, expected: 1, desired: 2 },
        _ => Verb::FetchAdd { remote, add: 1 },
    }
}

impl World {
    fn new(limit: usize, credit: usize) -> Self {
        Self {
            hold_back: HoldBack::new(limit, credit),
            sent: Vec::new(),
            asked: VecDeque::new(),
            next_sequence: 0,
            at_card: VecDeque::new(),
            completions: Vec::new(),
            next_batch: 0,
        }
    }

    /// Posts a batch as the fabric does. Verbs' offsets are 100 times the batch's number and their place.
    fn post(&mut self, letters: &str, silent: bool) {
        let number = self.next_batch;
        self.next_batch += 1;
        let mut gate = self.hold_back.gate();
        let mut verbs: Vec<Verb<'_>> =
            (100 * number..).zip(letters.chars()).map(|(at, it)| verb(it, at)).collect();
        let count = verbs.iter().take_while(|verb| gate.admit(is_atomic(verb))).count();
        let held: Vec<HeldVerb> = verbs.split_off(count).into_iter().map(HeldVerb::new).collect();
        let sent: Vec<bool> = verbs.iter().map(is_atomic).collect();
        self.go(&verbs);
        self.hold_back.push(BatchId(number), silent, &sent, held.into_iter());
    }

    fn go(&mut self, verbs: &[Verb<'_>]) {
        for verb in verbs {
            let data = !is_atomic(verb);
            assert!(!data || self.asked.is_empty(), "{verb:?} was sent behind an unanswered commit");
            self.sent.push(verb.remote().0);
            if !data {
                self.asked.push_back(self.next_sequence);
                self.next_sequence += 1;
            }
        }
        if !verbs.is_empty() {
            self.at_card.push_back(verbs.iter().map(is_atomic).collect());
        }
    }

    fn pump(&mut self) {
        for part in self.hold_back.next_run() {
            let mut lent = self.hold_back.lend(part);
            let verbs: Vec<Verb<'_>> = lent.iter_mut().filter_map(HeldVerb::verb).collect();
            self.go(&verbs);
            drop(verbs);
            self.hold_back.lent_were_sent(part, &lent);
        }
    }

    fn card_completes(&mut self) -> bool {
        let Some(part) = self.at_card.pop_front() else { return false };
        let replies = part.into_iter().map(|atomic| if atomic { Reply::Old(0xbad) } else { Reply::Written });
        self.hold_back.part_done(Ok(replies.collect()));
        true
    }

    fn cpu_answers(&mut self) -> bool {
        let Some(sequence) = self.asked.pop_front() else { return false };
        self.hold_back.answer(sequence, Ok(1000 + sequence)).expect("the next sequence");
        true
    }

    fn take(&mut self) -> Vec<u64> {
        self.hold_back.take(&mut self.completions, |_| {});
        self.completions.iter().map(|completion| completion.batch.0).collect()
    }

    fn fail(&mut self, effect: Effect) -> Vec<(u64, usize, Effect, bool)> {
        self.hold_back.fail(Cause { kind: FailureKind::Disconnected("gone".into()), effect });
        self.take();
        let outcome = |completion: Completion| match completion.result {
            Ok(_) => (completion.batch.0, 99, Effect::Yes, false),
            Err(failure) => {
                let refused = matches!(failure.kind, FailureKind::Access(_));
                (completion.batch.0, failure.verb_index, failure.effect, refused)
            }
        };
        self.completions.drain(..).map(outcome).collect()
    }
}

/// A card and a CPU that answer in any order and as late as they like: verbs leave in the order posted, none of them behind
/// an unanswered commit, never more commits than there is credit, and each batch completes once, in order.
#[test]
fn order_and_credit_hold_whatever_answers_first() {
    let mut random = 0x9e37_79b9_7f4a_7c15_u64;
    let mut dice = move |sides: u64| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) % sides
    };
    for credit in [1, 2, 16] {
        let mut world = World::new(32, credit);
        let (mut expected, mut loud) = (Vec::new(), Vec::new());
        while world.next_batch < 5000 {
            let letters = ["w", "wc", "c", "cw", "ccc", "wcfw", "fwwc", "cwc"][dice(8) as usize];
            if world.hold_back.check(letters.len()).is_ok() && dice(3) > 0 {
                let (number, silent) = (world.next_batch, dice(4) == 0);
                world.post(letters, silent);
                expected.extend((100 * number..).take(letters.len()));
                loud.extend((!silent).then_some(number));
            }
            match dice(3) {
                0 => _ = world.card_completes(),
                1 => _ = world.cpu_answers(),
                _ => world.pump(),
            }
            assert!(world.asked.len() <= credit, "{} commits under way", world.asked.len());
            world.hold_back.take(&mut world.completions, |_| {});
        }
        while world.card_completes() | world.cpu_answers() {
            world.pump();
        }
        assert_eq!(world.take(), loud, "credit {credit}");
        assert_eq!(world.sent, expected, "credit {credit}");
        assert!(world.completions.iter().all(|completion| completion.result.is_ok()));
        assert_eq!((world.hold_back.verbs, world.hold_back.held, world.hold_back.held_bytes), (0, 0, 0));
    }
}

#[test]
fn replies_are_the_answers_in_their_places() {
    let mut world = World::new(8, 4);
    world.post("wcf", false);
    assert!(world.take().is_empty());
    world.card_completes();
    world.cpu_answers();
    assert!(world.take().is_empty(), "a FAA is not answered");
    world.cpu_answers();
    assert_eq!(world.take(), [0]);
    let replies = world.completions[0].result.as_ref().expect("a batch that succeeds");
    assert!(matches!(replies[..], [Reply::Written, Reply::Old(1000), Reply::Old(1001)]), "{replies:?}");
}

/// An answer without the card's completion isn't enough: the batch's WRITE may still hold memory.
#[test]
fn a_batch_needs_the_card_and_the_answer() {
    let mut world = World::new(8, 4);
    world.post("wc", false);
    world.cpu_answers();
    assert!(world.take().is_empty());
    world.card_completes();
    assert_eq!(world.take(), [0]);
}

#[test]
fn what_does_not_fit_is_refused() {
    let mut world = World::new(4, 2);
    world.post("ccc", false);
    assert_eq!(world.asked.len(), 2, "credit is for two");
    assert!(matches!(world.hold_back.check(2), Err(PostError::Full { asked: 2, in_flight: 3, limit: 4 })));
    assert!(matches!(world.hold_back.check(5), Err(PostError::TooLarge { asked: 5, limit: 4, .. })));
}

/// The second of three commits is refused: what is before it took effect, nothing behind it did.
#[test]
fn a_refusal_says_what_happened_before_and_behind_it() {
    let mut world = World::new(16, 8);
    world.post("w", false);
    world.post("wc", false);
    world.post("cw", false);
    world.post("c", false);
    world.cpu_answers();
    assert_eq!(world.hold_back.answer(1, Err("outside")), Ok(()));
    assert!(!world.hold_back.is_over(), "batches before it are not complete");
    assert!(world.hold_back.next_run().is_empty());
    assert_eq!(world.hold_back.ended().as_deref(), Some("outside"));
    world.card_completes();
    world.card_completes();
    assert!(world.hold_back.is_over());
    let no = Effect::No;
    assert_eq!(
        world.fail(Effect::Unknown),
        [(0, 99, Effect::Yes, false), (1, 99, Effect::Yes, false), (2, 0, no, true), (3, 0, no, false)]
    );
}

/// The connection is lost: a commit that may have arrived is in doubt, one that was never sent is not.
#[test]
fn only_what_was_sent_is_in_doubt() {
    let mut world = World::new(16, 8);
    world.post("wc", false);
    world.post("w", false);
    world.post("fw", true);
    world.post("wc", false);
    world.card_completes();
    assert_eq!(
        world.fail(Effect::Unknown),
        [(0, 1, Effect::Unknown, false), (1, 0, Effect::No, false), (3, 0, Effect::No, false)]
    );
}

/// The answer came, but the card failed before it said so: the commit happened.
#[test]
fn an_answer_is_believed() {
    let mut world = World::new(16, 8);
    world.post("c", false);
    world.cpu_answers();
    let lost = FailureKind::Disconnected("gone".into());
    world.hold_back.part_done(Err(Failure { verb_index: 0, kind: lost, effect: Effect::Unknown }));
    assert_eq!(world.fail(Effect::Unknown), [(0, 99, Effect::Yes, false)]);
}

/// The card's own refusal of a WRITE: the commit behind it in the same run did not execute.
#[test]
fn a_write_that_is_refused_stops_the_commit_behind_it() {
    let mut world = World::new(16, 8);
    world.post("wwc", false);
    world.post("c", false);
    let kind = FailureKind::Access("bounds".into());
    world.hold_back.part_done(Err(Failure { verb_index: 1, kind: kind.clone(), effect: Effect::No }));
    world.hold_back.fail(Cause { kind, effect: Effect::No });
    let no = Effect::No;
    assert_eq!(world.fail(no), [(0, 1, no, true), (1, 0, no, false)]);
}

#[test]
fn answers_out_of_sequence_are_an_error() {
    let mut world = World::new(16, 8);
    assert!(world.hold_back.answer(0, Ok(1)).is_err(), "nothing was asked");
    world.post("cc", false);
    for sequence in [1, 2, u64::MAX] {
        assert!(world.hold_back.answer(sequence, Ok(1)).is_err(), "{sequence}");
    }
    assert!(world.hold_back.answer(0, Ok(1)).is_ok());
    assert!(world.hold_back.answer(0, Ok(1)).is_err(), "twice");
}

/// Staging memory was short: verbs that were lent come back, and go in the same order later.
#[test]
fn what_could_not_be_sent_waits_on() {
    let mut world = World::new(16, 8);
    world.post("cw", false);
    world.post("w", false);
    world.cpu_answers();
    let run = world.hold_back.next_run();
    assert_eq!(run.len(), 2, "{run:?}");
    for part in run {
        let lent = world.hold_back.lend(part);
        world.hold_back.take_back(part, lent);
    }
    assert_eq!(world.hold_back.held_bytes(), 6);
    world.pump();
    assert_eq!((world.hold_back.held_bytes(), world.sent.clone()), (0, vec![0, 1, 100]));
}
