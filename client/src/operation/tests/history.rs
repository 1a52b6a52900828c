//! What operations answered and when, and whether a map explains it.

use super::world::{Answer, Call};

/// One operation of a history.
#[derive(Clone, Debug)]
pub(super) struct Event<'a> {
    pub(super) call: Call<'a>,
    pub(super) answer: Answer,
    pub(super) invoked: usize,
    pub(super) returned: usize,
}

/// The keys with their values.
pub(super) type Model<'a> = Vec<(&'a [u8], Option<&'a [u8]>)>;

/// Applies `event` to the map; `None` if its answer isn't the one the map gives.
pub(super) fn apply<'a>(model: &Model<'a>, event: &Event<'a>) -> Option<Model<'a>> {
    let mut after = model.clone();
    let key = match event.call {
        Call::Get(key) | Call::Put(key, _) | Call::Delete(key) => key,
    };
    let at = after.iter().position(|entry| entry.0 == key).expect("the model has all keys");
    let expected = match event.call {
        Call::Get(_) => Answer::Value(after[at].1.map(<[u8]>::to_vec)),
        Call::Put(_, value) => {
            after[at].1 = Some(value);
            Answer::Stored
        }
        Call::Delete(_) => Answer::Existed(after[at].1.take().is_some()),
    };
    (event.answer == expected).then_some(after)
}

/// Whether some order of `events` that keeps their order in time explains all answers (Wing and Gong 1993).
pub(super) fn is_linearizable<'a>(model: &Model<'a>, events: &[Event<'a>]) -> bool {
    if events.is_empty() {
        return true;
    }
    events.iter().enumerate().any(|(at, event)| {
        let first = events.iter().all(|other| event.invoked < other.returned);
        let mut rest = events.to_vec();
        rest.remove(at);
        first && apply(model, event).is_some_and(|after| is_linearizable(&after, &rest))
    })
}
