//! From suspicions to findings.
//!
//! Always true: something is a finding only if every word that it rests on was the same before and after all else that
//! it rests on was read, the directory word that leads to the bucket among them. In a region that others change this
//! means:
//!
//! - A slot that names a block all the while protects the block: nobody may reuse it, or mark it free. A block that was
//!   unlinked while it was looked at is no error, and neither is one whose mark is late: nobody names it.
//! - Grants are asked for after the slot was read, so a chunk that was granted meanwhile is known.
//! - A bucket that was read in one READ may be torn: an EMPTY slot in front of a filled one counts only if it is still
//!   EMPTY later, which no correct client can bring about, since slots never become EMPTY again.
//! - A slot belongs to one key for as long as its segment is named by the directory, so a key in two slots is wrong
//!   whenever both words stayed.
//! - What a rebuild looks like from outside must stay for longer than any rebuild's next step takes.
//!
//! A word that comes back to what it was would deceive this; block versions and generations keep words from that for
//! hundreds of grace periods. What kept changing for [`LOOKS_MAX`] looks is counted as changed, not as wrong.

use std::time::Duration;

use sidestep_common::layout::SlotState;

use super::bucket::{Look, Site, Suspicion};
use super::{Checker, Finding, Problem, RegionSource, SourceError};

/// Looks at one bucket. A key that is changed in a tight loop changes between any two READs, so more would not help.
const LOOKS_MAX: u32 = 8;
/// Waits before another look at what a rebuild may be doing: 4 ms, then twice as long each time, half a second in all. A
/// rebuild takes a few thousand CASes.
const PAUSE_FIRST: Duration = Duration::from_millis(4);
/// What these waits come to.
pub(super) const PATIENCE: Duration = Duration::from_millis(4 * ((1 << (LOOKS_MAX - 1)) - 1));
/// So many waits in all: in a region that is damaged everywhere they would take for ever.
pub(super) const PAUSES_MAX: u32 = 1024;
/// Damaged slots that are remembered, to see whether others name their blocks.
const SUSPECTS_MAX: usize = 1 << 16;

impl<S: RegionSource> Checker<'_, '_, S> {
    /// Goes on looking at a bucket until what seems wrong with it is either certain or gone; then takes it in.
    pub(super) fn settle(&mut self, mut look: Look) -> Result<(), SourceError> {
        let is_live = self.source.is_live();
        let directory = look.site.run.witness(&self.geometry);
        let mut looks = 1;
        while !look.suspicions.is_empty() || (is_live && look.bucket.header.sealed) {
            if is_live && self.source.has_changed(&[directory])? {
                self.replace(look.site.run.entry, look.site.run.word.depth);
                return Ok(());
            }
            // The first look in a region that others change is worth nothing: grants were listed before it.
            if !is_live || looks > 1 {
                let mut verdicts = Vec::with_capacity(look.suspicions.len());
                let mut may_pass = false;
                for suspicion in &look.suspicions {
                    let mut words = suspicion.words.clone();
                    words.push(directory);
                    let may_be_rebuild = suspicion.finding.problem.may_be_rebuild();
                    let has_changed = self.source.has_changed(&words)?
                        || may_be_rebuild && self.source.was_moving(&look.site.run.bytes());
                    may_pass |= has_changed || self.may_be_rebuild(&look.site, suspicion);
                    verdicts.push(has_changed);
                }
                if !is_live || looks >= LOOKS_MAX || !may_pass {
                    for (suspicion, has_changed) in look.suspicions.iter().zip(verdicts) {
                        self.conclude(suspicion.finding, has_changed);
                        if !has_changed && suspicion.finding.problem.may_be_rebuild() {
                            self.impatient_with = Some(look.site.run.word.segment);
                        }
                        let slot = suspicion.finding.offset;
                        let site = look.site;
                        for named in &mut look.named {
                            named.is_damaged |= !has_changed && site.slot_offset(named.slot) == slot;
                        }
                    }
                    break;
                }
            }
            if look.suspicions.iter().any(|one| self.may_be_rebuild(&look.site, one)) {
                self.pause(looks);
            }
            look = self.look_again(look.site)?;
            looks += 1;
        }
        self.take_in(&look)
    }

    /// The same for what rests on words of the directory alone. Says whether these words stayed.
    pub(super) fn settle_words(&mut self, suspicion: &Suspicion) -> Result<bool, SourceError> {
        let is_live = self.source.is_live();
        let may_be_rebuild = suspicion.finding.problem.may_be_rebuild();
        for looks in 1..=LOOKS_MAX {
            let directory = self.geometry.directory_offset.0..self.geometry.segment_pool_offset.0;
            if self.source.has_changed(&suspicion.words)?
                || may_be_rebuild && self.source.was_moving(&directory)
            {
                // What replaced them is looked at later.
                if !is_live {
                    self.conclude(suspicion.finding, true);
                }
                return Ok(false);
            }
            if !is_live || !may_be_rebuild || self.pauses_left == 0 {
                break;
            }
            self.pause(looks);
        }
        self.conclude(suspicion.finding, false);
        Ok(true)
    }

    /// A suspicion becomes a finding, or a note if its words changed.
    pub(super) fn conclude(&mut self, finding: Finding, has_changed: bool) {
        if has_changed {
            self.report.notes.changed += 1;
        } else {
            self.report.add(finding, self.findings_max);
        }
    }

    /// Whether a rebuild of the segment may explain it. One bucket that was waited for is enough to know that none goes on.
    fn may_be_rebuild(&self, site: &Site, suspicion: &Suspicion) -> bool {
        suspicion.finding.problem.may_be_rebuild()
            && self.pauses_left > 0
            && self.impatient_with != Some(site.run.word.segment)
    }

    fn pause(&mut self, looks: u32) {
        if self.pauses_left > 0 {
            self.pauses_left -= 1;
            self.source.pause(PAUSE_FIRST * (1 << (looks - 1)));
        }
    }

    /// Counts what a bucket holds, and notes the blocks that its slots name.
    fn take_in(&mut self, look: &Look) -> Result<(), SourceError> {
        self.report.notes.sealed_buckets += u64::from(look.bucket.header.sealed);
        let counts = &mut self.report.index;
        let mut filled = 0;
        for word in look.bucket.slots {
            filled += 1;
            match word.state() {
                SlotState::Empty => {
                    counts.empty += 1;
                    filled -= 1;
                }
                SlotState::Closed => counts.closed += 1,
                SlotState::Live(_) => counts.live += 1,
                SlotState::Deleted(_) => counts.deleted += 1,
                SlotState::Moved(_) => counts.moved += 1,
                SlotState::Malformed => {}
            }
        }
        counts.fullest_bucket = counts.fullest_bucket.max(filled);
        for named in &look.named {
            if let Some(key) = named.key {
                counts.key_bytes += key.key_bytes;
                counts.value_bytes += key.value_bytes;
            }
        }
        for at in 0..look.named.len() {
            self.name_block(look, at)?;
        }
        Ok(())
    }

    /// Notes the block that a slot names. Two slots with sound blocks can't name one block unless they have one key,
    /// hence one bucket, where that is seen. So only a damaged slot can share its block with a slot of another bucket.
    fn name_block(&mut self, look: &Look, at: usize) -> Result<(), SourceError> {
        let named = look.named[at];
        let is_first = self.grants.name(named.place);
        if is_first && matches!(named.word.state(), SlotState::Deleted(_)) {
            self.report.accounts.deleted.add(1, named.block.class.bytes());
        }
        let own = look.witness(named.slot);
        let offset = named.block.offset.0;
        let other = self.suspects.get(&offset).copied();
        let is_shared = match other {
            _ if is_first => false,
            None => named.is_damaged,
            Some(other) => !self.source.has_changed(&[own, other])?,
        };
        if named.is_damaged && self.suspects.len() < SUSPECTS_MAX {
            self.suspects.insert(offset, own);
        }
        let in_bucket = look.named[..at].iter().any(|earlier| earlier.block.offset == named.block.offset);
        if is_shared && !in_bucket {
            let problem = Problem::BlockShared { block: named.block.offset };
            let finding = Finding { offset: own.0, part: look.site.slot_part(named.slot), problem };
            self.report.add(finding, self.findings_max);
        }
        Ok(())
    }
}
