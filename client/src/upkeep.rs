//! What a session owes the server between its calls: epochs, audits, memory that it does not need.
//!
//! Always true: whoever does it has the session's link, so no operation of the session is under way, and it posts verbs
//! only: nobody waits for the server's CPU. What is to be sent is left to [`crate::pacemaker`].

use std::sync::Arc;
use std::time::Duration;

use sidestep_common::wire::{AuditedChunk, Request, ReturnedChunk};

use crate::allocator::{Give, due_since_ms};
use crate::clock::{Deadline, now_ms};
use crate::control::HeardPulse;
use crate::driver::Driver;
use crate::link::{Link, SessionGround};
use crate::operation::acknowledge::{Acknowledge, may_begin};

/// Verbs of an upkeep take no longer than this, or wait until the next time: a call may be waiting.
pub(crate) const UPKEEP_TIME: Duration = Duration::from_millis(100);
/// Messages with chunks that go back at once.
const RETURNS_TOGETHER: usize = 16;

/// Acts upon the news. `false` if something is left because the verbs did not get through.
pub(crate) fn attend(link: &mut Link, deadline: Deadline) -> bool {
    attend_on(&mut link.driver, &mut link.member.ground, deadline)
}

/// The same for the parts of a link.
pub(crate) fn attend_on(driver: &mut Driver, ground: &mut SessionGround, deadline: Deadline) -> bool {
    let control = Arc::clone(ground.control());
    // ⚑ A broken connection may hide the fate of a CAS.
    if !may_begin(driver.is_broken()) {
        return false;
    }
    let heard = control.news.take();
    let mut is_done = true;
    for (number, audited) in heard.audited {
        ground.allocator.learn_audit(number, &audited);
    }
    if let Some(heard) = heard.pulse {
        is_done &= act_upon(driver, ground, heard, deadline);
    }
    // What was cut short is gone on with, and what waited for an epoch.
    if let Some(reclaim) = ground.allocator.reclaim() {
        is_done &= driver.aside(ground, reclaim, deadline).is_ok();
        if ground.allocator.reclaim().is_some() {
            control.news.have_work();
        }
    }
    for report in ground.take_hints() {
        control.send_later(Request::ReportBucket(report));
    }
    control.set_wants_epoch(ground.allocator.wants_epoch());
    if control.has_errands() {
        control.ring();
    }
    is_done
}

fn act_upon(driver: &mut Driver, ground: &mut SessionGround, heard: HeardPulse, deadline: Deadline) -> bool {
    let control = Arc::clone(ground.control());
    let pulse = &heard.pulse;
    ground.allocator.hear(pulse, heard.asked_ms, now_ms());
    // Before the next audit is noted: of one that another has followed the server knows nothing any more.
    if ground.audit_asked < pulse.audit_done {
        ground.audit_asked = pulse.audit_done;
        let number = pulse.audit_done;
        for chunks in ground.allocator.audited_chunks(number).chunks(AuditedChunk::COUNT_MAX) {
            control.send_later(Request::Audit { number, chunks: chunks.to_vec() });
        }
    }
    if pulse.epoch > control.acknowledged() {
        let acknowledge = Acknowledge::new(pulse.epoch, pulse.changes.clone());
        let Ok(epoch) = driver.aside(ground, acknowledge, deadline) else {
            control.news.put_back(heard);
            return false;
        };
        if pulse.audit_begun > pulse.audit_done {
            ground.allocator.note_audit(pulse.audit_begun);
        }
        control.acknowledge(epoch);
    }
    ground.is_memory_wanted = pulse.wants_memory;
    !pulse.wants_memory || tidy(driver, ground, Give::Empty, deadline)
}

/// Looks for memory that can go back: one class's at a time, each time another one's.
pub(crate) fn tidy(driver: &mut Driver, ground: &mut SessionGround, give: Give, deadline: Deadline) -> bool {
    let classes = ground.allocator.classes();
    if classes.is_empty() {
        return true;
    }
    let (class, purpose) = classes[ground.tidied % classes.len()];
    ground.tidied = ground.tidied.wrapping_add(1);
    let now_ms = now_ms();
    let grace_ms = ground.view.superblock.grace_ms;
    let harvest = ground.allocator.harvest((class, purpose), due_since_ms(grace_ms, now_ms));
    let is_done = harvest.is_none_or(|harvest| driver.aside(ground, harvest, deadline).is_ok());
    let _ = ground.allocator.ripen(class, purpose, grace_ms, now_ms);
    for _ in 0..RETURNS_TOGETHER {
        let returned = ground.allocator.take_returns(give, ReturnedChunk::COUNT_MAX);
        if returned.is_empty() {
            break;
        }
        ground.gave_ms = Some(now_ms);
        ground.control().send_later(Request::ReturnChunks(returned));
    }
    ground.control().ring();
    is_done
}

/// Gives back every chunk that is empty, whatever its class.
pub(crate) fn relinquish(driver: &mut Driver, ground: &mut SessionGround, deadline: Deadline) {
    for _ in 0..ground.allocator.classes().len() {
        if !tidy(driver, ground, Give::Empty, deadline) {
            break;
        }
    }
}

/// The same for a session that was idle for long. If memory is short it keeps none, whatever keys' values are in it: the next
/// one that asks for the class gets what is free there.
pub(crate) fn tidy_idle(link: &mut Link, deadline: Deadline) -> bool {
    let Link { driver, member } = link;
    let give = if member.ground.is_memory_wanted { Give::All } else { Give::Empty };
    may_begin(driver.is_broken()) && tidy(driver, &mut member.ground, give, deadline)
}

#[cfg(test)]
pub(crate) mod tests;
