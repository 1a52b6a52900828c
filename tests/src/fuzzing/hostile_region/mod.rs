//! A hostile region: an honest client runs real operations, and the fuzzer's bytes change the region between any two
//! verbs, and in the middle of READs. The client stays within its grant (`watch` says what that is), needs a bounded
//! number of verbs when nobody interferes, and each call ends with a value, a miss or an error with a type.
//!
//! As long as nothing has interfered, answers are those of a map.

mod client;
mod interference;
mod story;
mod watch;
mod world;

use std::collections::HashMap;

use sidestep_client::operation::change::Changed;

use client::{Answer, Client, value_of};
use interference::Interference;
use story::{Call, CallKind, Story};
use world::World;

/// Longer stories show nothing new, and cost time.
const CALLS_MAX: usize = 24;
const EVENTS_MAX: usize = 48;

/// See the module.
pub fn run(bytes: &[u8]) {
    let Some(story) = super::input::<Story>(bytes) else { return };
    let world = World::new(u64::from(story.grace_ms) * 8);
    let events = &story.events[..story.events.len().min(EVENTS_MAX)];
    let mut client = Client::new(world, Interference::new(events));
    let mut model = HashMap::new();
    for call in story.calls.iter().take(CALLS_MAX) {
        let answer = client.call(*call);
        client.world.check();
        if !client.interference.has_interfered {
            check_answer(*call, &answer, &mut model);
        }
    }
}

/// What a map would answer.
fn check_answer(call: Call, answer: &Answer, model: &mut HashMap<&'static [u8], Vec<u8>>) {
    let key = world::key(call.key);
    let expected = match call.kind {
        CallKind::Get => Answer::Value(model.get(key).cloned()),
        CallKind::Put(_) | CallKind::PutLong(_) => {
            // The pool is small; then nothing is changed.
            if *answer == Answer::OutOfMemory {
                return;
            }
            model.insert(key, value_of(call.kind));
            Answer::Changed(Changed::Stored)
        }
        CallKind::Delete if *answer == Answer::OutOfMemory => return,
        CallKind::Delete if model.remove(key).is_some() => Answer::Changed(Changed::Deleted),
        CallKind::Delete => Answer::Changed(Changed::Absent),
    };
    assert_eq!(*answer, expected, "{call:?}, and nobody interfered");
}
