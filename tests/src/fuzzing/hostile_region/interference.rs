//! When the story's events happen.

use super::story::{Event, What};
use super::world::World;

/// An event happens after fewer verbs than this.
const WAIT_VERBS: u8 = 6;

/// The events that are still to come, and what is armed.
pub(super) struct Interference {
    /// The next one is the last.
    events: Vec<Event>,
    /// Verbs until the next event; none if it was not looked at yet.
    left: Option<u8>,
    /// The client's clock.
    pub(super) now_ms: u64,
    /// The next CAS's completion is lost; with its effect?
    lose_cas: Option<bool>,
    no_memory: bool,
    /// Anything has happened yet.
    pub(super) has_interfered: bool,
}

impl Interference {
    pub(super) fn new(events: &[Event]) -> Self {
        let events = events.iter().rev().copied().collect();
        Self { events, left: None, now_ms: 1, lose_cas: None, no_memory: false, has_interfered: false }
    }

    /// A verb is about to execute; lets happen what is due before it. Says whether anything did.
    pub(super) fn before_verb(&mut self, world: &mut World) -> bool {
        let mut happened = false;
        while let Some(event) = self.events.last() {
            let left = self.left.get_or_insert(event.after_verbs % WAIT_VERBS);
            if *left > 0 {
                *left -= 1;
                break;
            }
            if event.torn {
                break;
            }
            self.next(world);
            happened = true;
        }
        happened
    }

    /// A READ is half done; lets happen what is due in its middle.
    pub(super) fn within_read(&mut self, world: &mut World) -> bool {
        let due = self.left == Some(0) && self.events.last().is_some_and(|event| event.torn);
        if due {
            self.next(world);
        }
        due
    }

    /// The client waits for somebody: the next event happens now. False if there is none.
    pub(super) fn skip_to_next(&mut self, world: &mut World) -> bool {
        let some = !self.events.is_empty();
        if some {
            self.next(world);
        }
        some
    }

    fn next(&mut self, world: &mut World) {
        let Some(event) = self.events.pop() else { return };
        self.left = None;
        self.has_interfered = true;
        match event.what {
            What::Store(place, value) => world.store(place, value),
            What::Flip(place, bit) => world.flip(place, bit),
            What::Copy(from, to) => world.copy(from, to),
            What::Plant(plant) => world.plant(plant),
            What::Clock(ms) => self.now_ms += u64::from(ms),
            What::LoseCas { takes_effect } => self.lose_cas = Some(takes_effect),
            What::NoMemory => self.no_memory = true,
        }
    }

    /// Whether the completion of the CAS at hand is lost, and with its effect or without.
    pub(super) fn takes_completion(&mut self) -> Option<bool> {
        self.lose_cas.take()
    }

    /// Whether the server has no memory now.
    pub(super) fn refuses_memory(&mut self) -> bool {
        std::mem::take(&mut self.no_memory)
    }
}
