//! How often blocks may be used again before everybody has acknowledged an epoch.
//!
//! Always true: between the beginning of an operation anywhere and the moment at which this session knows that it is over, no
//! block has as many uses as there are versions. ⚑ So a word that somebody still expects never comes again.
//!
//! A *period* ends when an epoch is quiesced that was raised after it began. An operation that began in one period is over at
//! the end of the next, so the uses of two periods count. They are counted a chunk at a time: each time that some blocks of
//! it began to ripen, each of them can have been used once more.
//!
//! ```text
//! period   │◀──── before ────▶│◀───── now ─────▶│
//!             ▲ an operation begins                ▲ it is certainly over
//! ```

use sidestep_common::planted::{Fault, is_planted};
use sidestep_common::wire::Pulse;

use super::Allocator;

/// Versions that are handed out are 1 to 255; the use of a block that was free at the beginning counts as well.
pub(super) const REUSES_MAX: u32 = 253;
/// From here on an epoch is asked for.
const REUSES_WANT_EPOCH: u32 = 200;

/// Whether blocks of a chunk may begin to ripen once more.
pub(super) fn may_reuse([now, before]: [u32; 2]) -> bool {
    now + before < REUSES_MAX || is_planted(Fault::ReusedBeyondVersions)
}

/// Whether an epoch should be raised, for a chunk's sake.
pub(super) const fn wants_epoch([now, before]: [u32; 2]) -> bool {
    now + before >= REUSES_WANT_EPOCH
}

/// The period of counting.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Period {
    /// How many there were before.
    pub(super) number: u64,
    /// It ends when this epoch is quiesced; none until the newest epoch of a moment after its beginning is known.
    until: Option<u64>,
    /// When it began.
    began_ms: u64,
}

impl Allocator {
    /// Takes in a pulse, which answers a heartbeat that was sent at `asked_ms`, or came unasked. Only if it was asked for after
    /// the period began its newest epoch is of a later moment: one that came unasked may have been under way for long.
    pub fn hear(&mut self, pulse: &Pulse, asked_ms: Option<u64>, now_ms: u64) {
        let Period { number, until, began_ms } = &mut self.period;
        match *until {
            Some(epoch) if pulse.quiesced >= epoch => {
                (*number, *until, *began_ms) = (*number + 1, None, now_ms);
                self.wants_epoch = false;
                for chunk in self.chunks.iter_mut() {
                    chunk.reuses = [0, chunk.reuses[0]];
                    self.wants_epoch |= wants_epoch(chunk.reuses);
                }
            }
            None if asked_ms.is_some_and(|asked_ms| asked_ms > *began_ms) => {
                *until = Some(pulse.epoch.saturating_add(1))
            }
            _ => {}
        }
    }

    /// As if blocks of each chunk had been used again so often.
    #[cfg(test)]
    pub(crate) fn reused(&mut self, times: u32) {
        self.chunks.iter_mut().for_each(|chunk| chunk.reuses[0] = times);
        self.wants_epoch = self.chunks.iter().any(|chunk| wants_epoch(chunk.reuses));
    }

    /// Blocks were used again so often that an epoch should be raised.
    pub const fn wants_epoch(&self) -> bool {
        self.wants_epoch
    }
}
