//! A door for fuzz targets: the janitor's rounds, without its thread.

use super::Work;
use crate::node::Serving;

/// What the janitor has under way.
#[derive(Debug, Default)]
pub struct Rounds(Work);

impl Rounds {
    /// Does once what there is to do.
    pub fn round(&mut self, serving: &Serving) {
        self.0.round(serving);
    }
}
