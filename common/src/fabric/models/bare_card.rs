//! Word memory by itself: what `shm` is on x86 around CAS and FAA, where the processor's own fences can't be modelled.

use super::{Card, Do};
use crate::layout::Offset;
use crate::memory::WordMemory;

struct BareCard(WordMemory);

/// For a session with all rights.
pub(super) fn bare_card(words: WordMemory) -> Box<dyn Card> {
    Box::new(BareCard(words))
}

impl Card for BareCard {
    fn run(&mut self, batch: &[Do]) -> Vec<Vec<u8>> {
        batch.iter().map(|verb| self.execute(verb)).collect()
    }
}

impl BareCard {
    fn execute(&mut self, verb: &Do) -> Vec<u8> {
        let old = match verb {
            Do::Read(at, bytes) => {
                let mut into = vec![0; *bytes];
                self.0.read(Offset(*at), &mut into).unwrap();
                return into;
            }
            Do::Write(at, pieces) => {
                let pieces: Vec<&[u8]> = pieces.iter().map(Vec::as_slice).collect();
                self.0.write_gathered(Offset(*at), &pieces).unwrap();
                return Vec::new();
            }
            Do::Swap(at, expected, desired) => self.0.compare_swap(Offset(*at), *expected, *desired),
            Do::Add(at, add) => self.0.fetch_add(Offset(*at), *add),
        };
        old.unwrap().to_le_bytes().to_vec()
    }
}
