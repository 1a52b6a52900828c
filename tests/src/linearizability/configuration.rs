//! Where a search can be, between two moments of the history.
//!
//! Always true: of two configurations of which one can do all that the other can, at least the one that can is kept.
//!
//! A configuration is the key's value, and which operations in flight have been *placed*: put into the order that the
//! search builds. Operations that returned are placed in every configuration, so nothing is stored of them, and memory
//! does not grow with the history. Open operations are in flight for ever; having placed fewer of them is never worse,
//! since they may take effect later or never.

use super::Value;

/// One way in which a history can have gone so far. `CLASSES` is how many classes of open operations it can count.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Configuration<const CLASSES: usize> {
    /// The placed ones of the operations in flight, a bit each.
    pub(super) placed: u128,
    /// What the key has.
    pub(super) state: Option<Value>,
    /// How many open operations of each class are placed.
    pub(super) used: [u32; CLASSES],
}

impl<const CLASSES: usize> Configuration<CLASSES> {
    /// Where every history begins.
    pub(super) fn new(initial: Option<Value>) -> Self {
        Self { placed: 0, state: initial, used: [0; CLASSES] }
    }

    /// Whether this one can do all that `other` can: it differs at most in having placed fewer open operations.
    fn dominates(&self, other: &Self, open: u128) -> bool {
        self.same_but_for_open(other, open)
            && self.placed & !other.placed == 0
            && self.used.iter().zip(&other.used).all(|(ours, theirs)| ours <= theirs)
    }

    fn same_but_for_open(&self, other: &Self, open: u128) -> bool {
        (self.placed ^ other.placed) & !open == 0 && self.state == other.state
    }

    /// The same for configurations that are [`same_but_for_open`](Self::same_but_for_open).
    fn hash(&self, open: u128) -> u64 {
        const ODD: u64 = 0x9e37_79b9_7f4a_7c15;
        let placed = self.placed & !open;
        let mut hash = (placed as u64 ^ (placed >> 64) as u64).wrapping_mul(ODD);
        hash = (hash ^ hash >> 32 ^ self.state.map_or(0, |value| value.wrapping_add(1))).wrapping_mul(ODD);
        hash ^ hash >> 32
    }
}

/// The configurations reached since the last return, each once.
#[derive(Default)]
pub(super) struct Reached<const CLASSES: usize> {
    list: Vec<Configuration<CLASSES>>,
    /// How many of the list the search has gone on from.
    visited: usize,
    /// Open addressing: the round in which an entry was made, and the place in the list. Entries of older rounds are
    /// empty ones, so a new round costs nothing.
    table: Vec<(u32, u32)>,
    round: u32,
    /// Comparisons made, ever.
    compared: u64,
}

impl<const CLASSES: usize> Reached<CLASSES> {
    /// Forgets all.
    pub(super) fn clear(&mut self) {
        self.list.clear();
        self.visited = 0;
        self.round = self.round.wrapping_add(1);
        if self.round == 0 {
            self.table.fill((0, 0));
            self.round = 1;
        }
    }

    /// As if so many rounds had gone by.
    #[cfg(test)]
    pub(super) fn set_round(&mut self, round: u32) {
        self.round = round;
    }

    /// Comparisons of two configurations, ever.
    pub(super) fn compared(&self) -> u64 {
        self.compared
    }

    /// Bytes that the configurations take.
    pub(super) fn bytes(&self) -> usize {
        size_of_val(self.list.as_slice())
    }

    /// The next configuration that the search has not gone on from.
    pub(super) fn next(&mut self) -> Option<Configuration<CLASSES>> {
        let next = self.list.get(self.visited).copied();
        self.visited += usize::from(next.is_some());
        next
    }

    /// Adds a configuration, unless one is there that can do all that it can. `open` has the bits of open operations.
    pub(super) fn insert(&mut self, new: Configuration<CLASSES>, open: u128) {
        if self.table.len() <= 2 * self.list.len() {
            self.grow(open);
        }
        let mut entry = self.entry(&new, open);
        while let Some(index) = self.at(entry) {
            let old = &self.list[index];
            self.compared += 1;
            if old.dominates(&new, open) {
                return;
            }
            if new.dominates(old, open) {
                if index >= self.visited {
                    self.list[index] = new;
                    return;
                }
                break;
            }
            entry = (entry + 1) & (self.table.len() - 1);
        }
        self.table[entry] = (self.round, self.list.len() as u32);
        self.list.push(new);
    }

    fn entry(&self, configuration: &Configuration<CLASSES>, open: u128) -> usize {
        configuration.hash(open) as usize & (self.table.len() - 1)
    }

    fn at(&self, entry: usize) -> Option<usize> {
        let (round, index) = self.table[entry];
        (round == self.round).then_some(index as usize)
    }

    fn grow(&mut self, open: u128) {
        let length = (4 * self.list.len()).next_power_of_two().max(32);
        self.table.clear();
        self.table.resize(length, (0, 0));
        self.round = 1;
        for index in 0..self.list.len() {
            let mut entry = self.entry(&self.list[index], open);
            while self.at(entry).is_some() {
                entry = (entry + 1) & (length - 1);
            }
            self.table[entry] = (self.round, index as u32);
        }
    }
}
