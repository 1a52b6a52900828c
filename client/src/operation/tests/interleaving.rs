//! Every interleaving of two operations, verb by verb, and sampled ones of three; each history is checked for
//! linearizability against a map, the bucket against the binding and order rules after each verb, and the marks at the
//! end.

use super::history::{Event, Model, apply, is_linearizable};
use super::world::{Actor, Call, Running, World, alone, twin_of_k};

/// Runs `calls` with the schedule that `choose` gives, then reads every key; panics on a violation.
fn run<'a>(
    setup: &[Call<'a>],
    calls: &[Call<'a>],
    keys: &[&'a [u8]],
    mut choose: impl FnMut(&[usize]) -> usize,
) {
    let mut world = World::new();
    let mut first = Actor::new(100);
    let mut model: Model<'a> = keys.iter().map(|key| (*key, None)).collect();
    for &call in setup {
        let (answer, ..) = alone(&mut world, &mut first, call);
        model = apply(&model, &Event { call, answer, invoked: 0, returned: 0 }).expect("nobody interferes");
    }
    let mut actors: Vec<Actor> = (0..calls.len()).map(|number| Actor::new(number as u32 + 1)).collect();
    let mut running: Vec<Running<'a>> = calls.iter().map(|call| Running::new(*call)).collect();
    let mut times = vec![(None, usize::MAX); calls.len()];
    let mut schedule = Vec::new();
    for time in 1.. {
        let ready: Vec<usize> = (0..calls.len()).filter(|at| !running[*at].is_over()).collect();
        if ready.is_empty() {
            break;
        }
        assert!(time < 500, "no end: {calls:?} {schedule:?}");
        let at = ready[choose(&ready)];
        schedule.push(at);
        times[at].0.get_or_insert(time * 2);
        let had_answer = running[at].answer.is_some();
        running[at].verb(&mut world, &mut actors[at]);
        if !had_answer && running[at].answer.is_some() {
            times[at].1 = time * 2 + 1;
        }
        world.check_bucket(keys[0]);
    }
    world.auditor.check_marks();
    let mut events: Vec<Event<'a>> = (0..calls.len())
        .map(|at| Event {
            call: calls[at],
            answer: running[at].answer.clone().expect("it is over"),
            invoked: times[at].0.expect("it ran"),
            returned: times[at].1,
        })
        .collect();
    for (number, key) in keys.iter().enumerate() {
        let (answer, ..) = alone(&mut world, &mut first, Call::Get(key));
        let invoked = 10_000 + number * 2;
        events.push(Event { call: Call::Get(key), answer, invoked, returned: invoked + 1 });
    }
    assert!(is_linearizable(&model, &events), "setup {setup:?}\n{events:#?}\nschedule {schedule:?}");
}

/// Tries every schedule: each run follows a prefix of choices and then always takes the first; the choices not
/// taken on the way become further prefixes.
fn every_schedule<'a>(setup: &[Call<'a>], calls: &[Call<'a>], keys: &[&'a [u8]]) -> usize {
    let mut prefixes = vec![Vec::new()];
    let mut count = 0;
    while let Some(prefix) = prefixes.pop() {
        count += 1;
        let mut taken: Vec<usize> = Vec::new();
        let mut more = Vec::new();
        run(setup, calls, keys, |ready| {
            let choice = prefix.get(taken.len()).copied().unwrap_or(0);
            if taken.len() >= prefix.len() {
                for other in 1..ready.len() {
                    more.push([&taken[..], &[other]].concat());
                }
            }
            taken.push(choice);
            choice
        });
        prefixes.extend(more);
    }
    count
}

/// The key is new, there, or deleted.
pub(super) fn setups<'a>(key: &'a [u8]) -> [Vec<Call<'a>>; 3] {
    [vec![], vec![Call::Put(key, b"old")], vec![Call::Put(key, b"older"), Call::Delete(key)]]
}

#[test]
pub(super) fn every_interleaving_of_two_operations_on_one_key() {
    let key: &[u8] = b"k";
    let calls = [Call::Get(key), Call::Put(key, b"new"), Call::Put(key, b"other"), Call::Delete(key)];
    let mut count = 0;
    for setup in setups(key) {
        for one in calls {
            for two in calls {
                count += every_schedule(&setup, &[one, two], &[key]);
            }
        }
    }
    assert!(count > 1000, "only {count} schedules");
}

/// Two keys of one bucket with one tag: the hardest neighbours.
#[test]
pub(super) fn every_interleaving_of_two_operations_on_twins() {
    let keys: [&[u8]; 2] = [b"k", twin_of_k()];
    let calls = |key| [Call::Get(key), Call::Put(key, b"new"), Call::Delete(key)];
    for setup in setups(keys[0]) {
        for one in calls(keys[0]) {
            for two in calls(keys[1]) {
                every_schedule(&setup, &[one, two], &keys);
            }
        }
    }
}

/// Three operations have too many interleavings to try all here; the seed is in the message.
#[test]
pub(super) fn sampled_interleavings_of_three_operations() {
    let keys: [&[u8]; 2] = [b"k", twin_of_k()];
    let mut random = 0x5eed_u64;
    let mut draw = move |below: usize| {
        random = random.wrapping_mul(0xd134_2543_de82_ef95).wrapping_add(0x9e37_79b9);
        ((random >> 33) % below as u64) as usize
    };
    let all = [
        Call::Get(keys[0]),
        Call::Put(keys[0], b"one"),
        Call::Put(keys[0], b"two"),
        Call::Delete(keys[0]),
        Call::Put(keys[1], b"three"),
        Call::Delete(keys[1]),
    ];
    for _ in 0..1500 {
        let calls: Vec<Call<'_>> = (0..3).map(|_| all[draw(all.len())]).collect();
        let setup = setups(keys[0])[draw(3)].clone();
        run(&setup, &calls, &keys, |ready| draw(ready.len()));
    }
}
