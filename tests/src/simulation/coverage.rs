//! What was hit: for each operation and step, how often each thing befell it.

use std::collections::BTreeMap;

use super::fault::Befall;

/// An operation and its step.
pub type Stage = (&'static str, &'static str);

/// Counts of one or more runs.
#[derive(Clone, Default, Debug)]
pub struct Coverage {
    cells: BTreeMap<(Stage, Befall), u64>,
}

impl Coverage {
    pub(super) fn hit(&mut self, stage: Stage, befall: Befall) {
        *self.cells.entry((stage, befall)).or_default() += 1;
    }

    /// Adds another's counts.
    pub fn add(&mut self, other: &Self) {
        for (cell, count) in &other.cells {
            *self.cells.entry(*cell).or_default() += count;
        }
    }

    /// How often that was hit.
    pub fn count(&self, stage: Stage, befall: Befall) -> u64 {
        self.cells.get(&(stage, befall)).copied().unwrap_or(0)
    }

    /// How often it befell anybody.
    pub fn total(&self, befall: Befall) -> u64 {
        self.cells.iter().filter(|((_, hit), _)| *hit == befall).map(|(_, count)| count).sum()
    }
}
