//! What a client should make of a memory node's bytes, in the plainest words.

use sidestep_common::fabric::Effect;
use sidestep_common::fabric::tcp::frame::{Opcode, ReplyHeader};

use super::Asked;

/// The end of a batch that is not silent.
#[derive(PartialEq, Eq, Debug)]
pub(super) struct Outcome {
    pub(super) batch: u64,
    /// What its verbs brought, or why it failed: how, at which verb, and whether anything took effect.
    pub(super) result: Result<Vec<Vec<u8>>, (Kind, usize, Effect)>,
}

/// Why a batch failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    Access,
    Flushed,
    Disconnected,
}

/// What must become of all batches, all of which were sent, if the node says `stream` and closes.
pub(super) fn expect(asked: &[Asked], stream: &[u8]) -> Vec<Outcome> {
    let mut outcomes = Vec::new();
    let mut rest = stream;
    for (at, batch) in asked.iter().enumerate() {
        let mut tell = |result| {
            if !batch.silent {
                outcomes.push(Outcome { batch: at as u64, result });
            }
        };
        let Ok(Some(header)) = ReplyHeader::parse(rest) else { return lost(asked, at, 0, outcomes) };
        if !fits(&header, at, batch) {
            return lost(asked, at, 0, outcomes);
        }
        let (brought, used) = body(batch, header.verbs_done, &rest[16..]);
        if brought.len() < header.verbs_done && !batch.silent {
            return lost(asked, at, brought.len(), outcomes);
        }
        rest = &rest[16 + used..];
        if header.status == 0 {
            tell(Ok(brought));
            continue;
        }
        tell(Err((Kind::Access, header.verbs_done, Effect::No)));
        let flushed =
            |(at, _): (usize, _)| Outcome { batch: at as u64, result: Err((Kind::Flushed, 0, Effect::No)) };
        let later = asked.iter().enumerate().skip(at + 1).filter(|(_, batch)| !batch.silent);
        outcomes.extend(later.map(flushed));
        break;
    }
    outcomes
}

/// Whether a header can answer that batch.
fn fits(header: &ReplyHeader, at: usize, batch: &Asked) -> bool {
    header.request == at as u32 + 1
        && header.verbs_done <= batch.verbs.len()
        && (header.verbs_done == batch.verbs.len()) == (header.status == 0)
        && header.body_bytes == batch.body_bytes(header.verbs_done)
}

/// What the first `done` verbs brought, as far as the bytes go; and how many bytes that took.
fn body(batch: &Asked, done: usize, bytes: &[u8]) -> (Vec<Vec<u8>>, usize) {
    let (mut brought, mut used) = (Vec::new(), 0);
    if batch.silent {
        return (brought, used);
    }
    for &(opcode, verb_bytes) in &batch.verbs[..done] {
        let wanted = if opcode == Opcode::Write { 0 } else { verb_bytes };
        let Some(found) = bytes.get(used..used + wanted) else { break };
        brought.push(found.to_vec());
        used += wanted;
    }
    (brought, used)
}

/// The connection is lost while batch `first` has `taken` of its verbs' replies.
fn lost(asked: &[Asked], first: usize, taken: usize, mut outcomes: Vec<Outcome>) -> Vec<Outcome> {
    for (at, _) in asked.iter().enumerate().skip(first).filter(|(_, batch)| !batch.silent) {
        let verb_index = if at == first { taken } else { 0 };
        outcomes.push(Outcome {
            batch: at as u64,
            result: Err((Kind::Disconnected, verb_index, Effect::Unknown)),
        });
    }
    outcomes
}
