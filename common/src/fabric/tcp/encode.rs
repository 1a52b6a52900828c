//! Verbs in the form of a request frame.

use super::frame::{BATCH_BYTES, Opcode, VERB_BYTES, VerbDescriptor};
use super::queue::ByteQueue;
use crate::fabric::{Batch, Verb};

/// What a batch adds to a frame.
pub(super) fn batch_bytes(batch: &Batch<'_>) -> usize {
    let verbs = batch.verbs.iter().map(|verb| VERB_BYTES + descriptor(verb).operand_bytes());
    BATCH_BYTES + verbs.sum::<usize>()
}

/// What the memory node is told of a verb.
pub(super) fn descriptor(verb: &Verb<'_>) -> VerbDescriptor {
    let opcode = match verb {
        Verb::Read { .. } => Opcode::Read,
        Verb::Write { .. } => Opcode::Write,
        Verb::CompareSwap { .. } => Opcode::CompareSwap,
        Verb::FetchAdd { .. } => Opcode::FetchAdd,
    };
    VerbDescriptor { opcode, bytes: verb.bytes(), remote: verb.remote() }
}

/// The operands of an atomic: both words of a CAS, or the one of an FAA and zeros.
pub(super) fn word_operands(verb: &Verb<'_>) -> Option<[u8; 16]> {
    let (first, second) = match verb {
        Verb::CompareSwap { expected, desired, .. } => (*expected, *desired),
        Verb::FetchAdd { add, .. } => (*add, 0),
        Verb::Read { .. } | Verb::Write { .. } => return None,
    };
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&first.to_le_bytes());
    bytes[8..].copy_from_slice(&second.to_le_bytes());
    Some(bytes)
}

/// Queues a verb's operands.
pub(super) fn push_operands(verb: &Verb<'_>, into: &mut ByteQueue) {
    if let Verb::Write { from, .. } = verb {
        for piece in from {
            into.push(piece);
        }
    } else if let Some(words) = word_operands(verb) {
        into.push(&words[..descriptor(verb).operand_bytes()]);
    }
}
