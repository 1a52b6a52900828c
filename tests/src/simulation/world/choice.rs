//! Choices, and what they touched.
//!
//! Always true: two choices whose footprints don't conflict could have come in the other order, and nobody could tell.

use sidestep_common::fabric::sim::{Step as NetStep, Touch};
use smallvec::SmallVec;

use crate::simulation::fault::Befall;

/// Something that happens next.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Choice {
    /// A client's oldest verb goes all the way; if it has none, its next call begins with one.
    Verb(u8),
    /// A client begins its next call, or goes on after a pause.
    Begin(u8),
    /// A step of a client's verbs.
    Network(u8, NetStep),
    /// A client that lost its connection has the old one fenced, and joins again.
    Rejoin(u8),
    /// A verb of a client that is dead executes yet.
    Late(u8),
    /// The server fences a client that is dead.
    Fence(u8),
    /// The janitor's next step.
    Janitor,
    /// Something befalls a client.
    Befalls(u8, Befall),
}

/// What a choice read and changed, for those who ask whether two choices could have come in the other order.
#[derive(Clone, Default, Debug)]
pub struct Footprint {
    pub(super) client: Option<u8>,
    pub(super) reads: SmallVec<[(u64, u64); 2]>,
    pub(super) writes: SmallVec<[(u64, u64); 2]>,
    pub(super) begins: bool,
    pub(super) ends: bool,
    pub(super) is_fault: bool,
    pub(super) is_global: bool,
}

impl Footprint {
    /// Whether the order of the two could matter to anybody.
    pub fn conflicts_with(&self, other: &Self) -> bool {
        let overlap = |one: &[(u64, u64)], two: &[(u64, u64)]| {
            one.iter().any(|a| two.iter().any(|b| a.0 < b.0 + b.1 && b.0 < a.0 + a.1))
        };
        self.is_global
            || other.is_global
            || self.client == other.client
            || self.is_fault && other.is_fault
            || self.ends && other.begins
            || self.begins && other.ends
            || overlap(&self.writes, &other.writes)
            || overlap(&self.writes, &other.reads)
            || overlap(&self.reads, &other.writes)
    }

    /// Memory that the server read, or changed. What lies next to what came before is one place with it.
    pub(in crate::simulation) fn server_touches(&mut self, offset: u64, bytes: u64, changed: bool) {
        let places = if changed { &mut self.writes } else { &mut self.reads };
        match places.last_mut() {
            Some(last) if last.0 + last.1 == offset => last.1 += bytes,
            Some(last) if last.0 <= offset && offset + bytes <= last.0 + last.1 => {}
            _ => places.push((offset, bytes)),
        }
    }

    pub(super) fn touch(&mut self, touch: &Touch) {
        let place = (touch.offset, touch.bytes);
        if touch.changed { self.writes.push(place) } else { self.reads.push(place) }
    }
}
