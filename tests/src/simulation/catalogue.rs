//! The worlds that are explored.
//!
//! Always true: the list is the same in every run; what is called small is explored completely.

use super::fault::Befall;
use super::random::draw;
use super::region::Key;
use super::story::{Call, Rebuild, Reuse, Story, delete, get, put};

/// How a world is explored.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum How {
    /// Every schedule.
    Complete,
    /// Every schedule with at most so many preemptions.
    Bounded {
        /// How many.
        preemptions: u32,
    },
    /// So many walks from a seed.
    Walks {
        /// The first one's.
        seed: u64,
        /// How many.
        count: u64,
    },
}

/// A world and how it is explored.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Task {
    /// Tasks of one family are counted together.
    pub family: &'static str,
    /// The world.
    pub story: Story,
    /// How.
    pub how: How,
}

/// Things that befall clients of worlds where verbs are whole.
const COARSE: [Befall; 9] = [
    Befall::Death,
    Befall::LossBefore,
    Befall::LossAfter,
    Befall::Flush,
    Befall::Timeout,
    Befall::Restart,
    Befall::Standstill,
    Befall::ClockJump,
    Befall::NoMemory,
];

fn calls(keys: &[Key]) -> Vec<Call> {
    keys.iter().flat_map(|key| [get(*key), put(*key), delete(*key)]).collect()
}

fn sequences(calls: &[Call], length: usize) -> Vec<Vec<Call>> {
    if length == 0 {
        return vec![Vec::new()];
    }
    let shorter = sequences(calls, length - 1);
    let longer =
        |first: &Call| shorter.iter().map(|rest| [&[*first], &rest[..]].concat()).collect::<Vec<_>>();
    calls.iter().flat_map(longer).collect()
}

/// Every multiset of `count` of these: who of like clients does what makes no difference.
fn choose(from: &[Vec<Call>], count: usize) -> Vec<Vec<Vec<Call>>> {
    if count == 0 {
        return vec![Vec::new()];
    }
    let mut all = Vec::new();
    for (at, first) in from.iter().enumerate() {
        for mut rest in choose(&from[at..], count - 1) {
            rest.insert(0, first.clone());
            all.push(rest);
        }
    }
    all
}

/// What a key may have been through before.
fn pasts(key: Key) -> Vec<Vec<Call>> {
    vec![vec![], vec![put(key)], vec![put(key), delete(key)]]
}

fn pasts_of_two(first: Key, second: Key) -> Vec<Vec<Call>> {
    vec![
        vec![],
        vec![put(first)],
        vec![put(second), put(first)],
        vec![put(first), delete(first), put(second)],
    ]
}

/// Stories of clients with these sequences, after each of these pasts.
fn stories(clients: &[Vec<Vec<Call>>], pasts: &[Vec<Call>]) -> Vec<Story> {
    let after = |past: &Vec<Call>| {
        clients.iter().map(|clients| Story::of(clients.clone()).after(past.clone())).collect::<Vec<_>>()
    };
    pasts.iter().flat_map(after).collect()
}

fn complete(family: &'static str, stories: Vec<Story>) -> impl Iterator<Item = Task> {
    stories.into_iter().map(move |story| Task { family, story, how: How::Complete })
}

/// Worlds that are small enough to be explored whole.
pub fn small() -> Vec<Task> {
    let first = Key::First;
    let mut tasks = Vec::new();
    let of_first = calls(&[first]);
    let pairs = choose(&sequences(&of_first, 2), 2);
    let singles = choose(&sequences(&of_first, 1), 2);
    let threes = choose(&sequences(&of_first, 1), 3);

    // One key.
    let one_key = stories(&pairs, &pasts(first));
    tasks.extend(complete("one key, two clients, two calls", one_key.clone()));
    let with_death = one_key.iter().map(|story| story.clone().with(1, &[Befall::Death])).collect();
    tasks.extend(complete("one key, two clients, two calls, every crash point", with_death));
    let three = stories(&threes, &pasts(first));
    tasks.extend(complete("one key, three clients, one call", three.clone()));
    let with_death = three.iter().map(|story| story.clone().with(1, &[Befall::Death])).collect();
    tasks.extend(complete("one key, three clients, one call, every crash point", with_death));

    // Two keys of one bucket: twins and neighbours.
    for other in [Key::Twin, Key::Neighbour] {
        let both = calls(&[first, other]);
        let two = choose(&sequences(&both, 2), 2);
        let all = stories(&two, &pasts_of_two(first, other));
        tasks.extend(complete("two keys, two clients, two calls", all.clone()));
        let with_death = all.into_iter().map(|story| story.with(1, &[Befall::Death])).collect();
        tasks.extend(complete("two keys, two clients, two calls, every crash point", with_death));
        let three = stories(&choose(&sequences(&both, 1), 3), &pasts_of_two(first, other));
        tasks.extend(complete("two keys, three clients, one call", three.clone()));
        let with_death = three.into_iter().map(|story| story.with(1, &[Befall::Death])).collect();
        tasks.extend(complete("two keys, three clients, one call, every crash point", with_death));
    }

    // One of everything that can go wrong, at every point; and two of them.
    for befall in COARSE {
        let one = one_key.iter().map(|story| story.clone().with(1, &[befall])).collect();
        tasks.extend(complete("one key, two clients, two calls, one mishap anywhere", one));
    }
    let two = stories(&singles, &pasts(first)).into_iter().map(|story| story.with(2, &COARSE)).collect();
    tasks.extend(complete("one key, two clients, one call, two mishaps anywhere", two));

    // A bucket with little room, and one with none.
    for fillers in [29, 30] {
        let clients = choose(&sequences(&calls(&[first, Key::Neighbour]), 1), 2);
        let full = stories(&clients, &[vec![], vec![put(first)]]);
        let full =
            full.into_iter().map(|story| Story { fillers, ..story }.with(1, &[Befall::Death])).collect();
        tasks.extend(complete("a bucket with one or two slots left", full));
    }

    // Blocks that are used again, with versions that wrap. The first client owns them.
    for reuse in [Reuse::AtOnce, Reuse::AfterGrace] {
        let befall: &[Befall] = match reuse {
            Reuse::AfterGrace => &[Befall::Standstill, Befall::ClockJump],
            _ => &[Befall::Death],
        };
        let past = vec![put(first), put(first)];
        for owner in [
            vec![put(first), put(first)],
            vec![put(first), put(Key::Neighbour)],
            vec![delete(first), put(Key::Twin)],
            vec![put(first), put(Key::Twin)],
        ] {
            for other in sequences(&calls(&[first, Key::Twin]), 1) {
                let story = Story::of(vec![owner.clone(), other]).after(past.clone());
                let befalls = if reuse == Reuse::AfterGrace { 2 } else { 1 };
                let story = Story { reuse, first_version: 254, ..story }.with(befalls, befall);
                tasks.push(Task { family: "blocks used again", story, how: How::Complete });
            }
        }
    }

    tasks.extend(standing_still());

    // Directories that lead elsewhere.
    let misled = stories(&singles, &pasts(first));
    let misled = misled.into_iter().map(|story| Story { misled: true, ..story }).collect();
    tasks.extend(complete("old directories", misled));

    // A rebuild, and one call of one client; with more, there is too much to try all of it.
    for rebuild in [Rebuild::One, Rebuild::Two] {
        let clients: Vec<Vec<Vec<Call>>> =
            sequences(&calls(&[first, Key::Neighbour]), 1).into_iter().map(|calls| vec![calls]).collect();
        // And a key of another bucket.
        let elsewhere: Vec<Vec<Vec<Call>>> =
            calls(&[first, Key::Elsewhere]).into_iter().map(|call| vec![vec![call]]).collect();
        let past = vec![put(Key::Elsewhere), put(first), delete(first)];
        let rebuilt: Vec<Story> = stories(&clients, &pasts(first))
            .into_iter()
            .chain(stories(&elsewhere, &[past]))
            .map(|story| Story { rebuild: Some(rebuild), ..story })
            .collect();
        tasks.extend(complete("a rebuild under one call", rebuilt.clone()));
        let with_death = rebuilt.into_iter().map(|story| story.with(1, &[Befall::Death])).collect();
        tasks.extend(complete("a rebuild under one call, every crash point", with_death));
        // Sampled, although they are small.
        let pairs = stories(&singles, &pasts(first));
        tasks.extend((1..).zip(pairs).map(|(seed, story)| {
            let how = How::Walks { seed: seed << 32, count: 3000 };
            let story = Story { rebuild: Some(rebuild), ..story }.with(1, &COARSE);
            Task { family: "a rebuild under two clients' calls", story, how }
        }));
    }
    tasks
}

/// Worlds in which one stands still beyond the grace period while a block that it is to read is used again: with every
/// version the same, nothing but the clock keeps it from a wrong conclusion. The first client owns the block; its second
/// call sees the mark, and its third is given the block, once the grace period is over.
pub fn standing_still() -> Vec<Task> {
    let (first, twin, neighbour) = (Key::First, Key::Twin, Key::Neighbour);
    let task = |preemptions, before: &[Call], owner: &[Call], stopped: &[Call]| {
        let story = Story::of(vec![owner.to_vec(), stopped.to_vec()]).after(before.to_vec());
        let story = Story { reuse: Reuse::AfterGrace, ..story }.with(1, &[Befall::Standstill]);
        Task { family: "one stands still, a block is used again", story, how: How::Bounded { preemptions } }
    };
    let again = [put(first), get(neighbour), put(first)];
    let elsewhere = [put(first), get(neighbour), put(neighbour)];
    let for_the_other = [put(twin), get(neighbour), put(first)];
    vec![
        // The key's own block, written for it again and not yet published: a value before its time.
        task(2, &[put(first)], &again, &[get(first), get(first)]),
        // The key's own block, used for a neighbour: the key seems absent.
        task(2, &[put(first)], &elsewhere, &[get(first)]),
        task(2, &[put(first)], &elsewhere, &[delete(first)]),
        // A put's first READ is out until its WRITE is done.
        task(2, &[put(first)], &elsewhere, &[put(first)]),
        // A twin's block, written for the key and not yet published: its slot seems the key's.
        task(2, &[put(twin)], &for_the_other, &[put(first), get(first)]),
        // The same, of a twin that took the slot which the put wanted.
        task(4, &[], &[&[put(twin)][..], &for_the_other].concat(), &[put(first), get(first)]),
    ]
}

/// A world drawn from `seed`, as [`large`] draws it.
pub fn drawn_task(seed: u64, count: u64) -> Task {
    let story = drawn(seed);
    let family = match (story.fine, story.rebuild.is_some(), story.reuse != Reuse::Never) {
        (true, ..) => "drawn: verbs that tear",
        (false, true, _) => "drawn: rebuilds under load",
        (false, false, true) => "drawn: blocks used again",
        (false, false, false) => "drawn: load and mishaps",
    };
    Task { family, story, how: How::Walks { seed, count } }
}

/// Larger worlds, drawn from `seed`: `worlds` of them, with `walks` each.
pub fn large(seed: u64, worlds: u64, walks: u64) -> Vec<Task> {
    let seed_of = |number: u64| seed.wrapping_add(number.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    (0..worlds).map(|number| drawn_task(seed_of(number), walks)).collect()
}

/// A story drawn from a seed.
fn drawn(seed: u64) -> Story {
    let mut random = seed ^ 0x0dd_ba11;
    let mut draw = |below: usize| draw(&mut random, below);
    let keys = [
        &[Key::First][..],
        &[Key::First, Key::Twin],
        &[Key::First, Key::Twin, Key::Neighbour],
        &[Key::First, Key::Neighbour, Key::Elsewhere],
    ];
    let keys = keys[draw(4)];
    let all = calls(keys);
    let mut past = Vec::new();
    for _ in 0..draw(5) {
        past.push(all[draw(all.len())]);
    }
    let clients =
        (0..2 + draw(3)).map(|_| (0..1 + draw(4)).map(|_| all[draw(all.len())]).collect()).collect();
    let mut story = Story::of(clients).after(past).with(1 + draw(3) as u8, &Befall::ALL);
    story.fine = draw(3) == 0;
    story.rebuild = [None, None, Some(Rebuild::One), Some(Rebuild::Two)][draw(4)];
    story.rebuild_again = story.rebuild.is_some() && draw(3) == 0;
    story.fillers = [0, 0, 0, 28, 29, 30][draw(6)];
    story.first_version = [1, 1, 250, 254, 255][draw(5)];
    story.reuse = [Reuse::Never, Reuse::AtOnce, Reuse::AfterGrace][draw(3)];
    story.misled = draw(8) == 0;
    story.scarce = story.fillers == 0 && draw(8) == 0;
    story.together = draw(3) == 0;
    if story.rebuild == Some(Rebuild::One) {
        // It would make no room.
        story.fillers = 0;
    }
    story
}
