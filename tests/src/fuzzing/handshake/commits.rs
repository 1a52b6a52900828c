//! Private data of `verbs`, and both ends of two-sided commits.

use sidestep_common::fabric::verbs::fuzzing::{CommitCard, CommitClient, accepted, refusal, request};
use sidestep_common::fabric::{Completion, Rights, Verb};
use sidestep_common::layout::Offset;

use super::super::local_memory::LocalMemory;
use super::REGION_BYTES;
use super::commits_input::{CommitEvent, CommitPlace, CommitSpec};

const RKEY: u32 = 77;

/// What is understood says the same again.
pub(super) fn private_data(bytes: &[u8]) {
    if let Ok(again) = request(bytes) {
        // The byte that is not used yet, and what is behind the fields, are ignored.
        let (mut sent, mut again) = (bytes[..again.len()].to_vec(), again);
        (sent[7], again[7]) = (0, 0);
        assert_eq!(sent, again);
    } else if let Err(refused) = request(bytes) {
        assert!(refusal(&refused).is_some(), "a refusal is understood by the other side");
    }
    if let Some(again) = accepted(bytes) {
        assert_eq!(again, bytes[..again.len()]);
    }
    if let Some((again, text)) = refusal(bytes) {
        assert!(!text.is_empty());
        assert_eq!(refusal(&again).map(|(_, text)| text), Some(text));
    }
}

impl CommitPlace {
    fn offset(self) -> u64 {
        match self {
            Self::Word(index) => 8 * u64::from(index),
            Self::Near(offset) => offset.into(),
            Self::FromEnd(bytes) => REGION_BYTES.wrapping_add_signed(bytes.into()),
            Self::Far(offset) => offset,
        }
    }
}

/// A message as the protocol draws it.
fn message(sequence: u64, offset: u64, words: [u64; 2], opcode: u8) -> Vec<u8> {
    let mut bytes = Vec::new();
    for word in [sequence, offset, words[0], words[1]] {
        bytes.extend(word.to_le_bytes());
    }
    bytes.extend([opcode, 0, 0, 0]);
    bytes.extend(RKEY.to_le_bytes());
    bytes
}

/// What a commit makes of a word.
fn after(spec: &CommitSpec, old: u64) -> u64 {
    match *spec {
        CommitSpec::Swap { expected, desired, .. } if old == expected => desired,
        CommitSpec::Add { add, .. } => old.wrapping_add(add),
        _ => old,
    }
}

/// Messages that are right are executed as a vector of words would, up to the first that is not.
pub(super) fn requests(rights: Rights, messages: &[CommitSpec]) {
    let mut memory = LocalMemory::new(REGION_BYTES);
    let words = memory.words();
    let mut model = vec![0_u64; REGION_BYTES as usize / 8];
    let mut card = CommitCard::new(words, RKEY, rights);
    let mut ended = false;
    for (sequence, spec) in (0..).zip(messages) {
        let (bytes, modelled) = match *spec {
            CommitSpec::Swap { offset, expected, desired } => {
                (message(sequence, offset.offset(), [expected, desired], 1), Some(offset.offset()))
            }
            CommitSpec::Add { offset, add } => {
                (message(sequence, offset.offset(), [add, 0], 2), Some(offset.offset()))
            }
            CommitSpec::Patched { byte, bit } => {
                let mut bytes = message(sequence, 64, [0, 0], 2);
                let at = usize::from(byte) % bytes.len();
                bytes[at] ^= 1 << (bit % 8);
                // An offset or a number that differs makes another request, and not a wrong one.
                (bytes, None)
            }
            CommitSpec::Raw(ref bytes) => (bytes.clone(), None),
        };
        let answer = card.execute(&bytes);
        assert_eq!(answer.is_none(), ended, "one answer each, until the first refusal");
        let Some(answer) = answer else { continue };
        assert_eq!(answer[..8], sequence.to_le_bytes());
        ended = answer[16] != 0;
        let Some(offset) = modelled else {
            // What it did to its word is not modelled; look at it.
            for (at, word) in model.iter_mut().enumerate() {
                *word = words.load(Offset(8 * at as u64)).expect("in the region");
            }
            continue;
        };
        let allowed = rights.can_write() && offset.is_multiple_of(8) && offset < REGION_BYTES;
        assert_eq!(ended, !allowed, "{spec:?}: {answer:?}");
        if allowed {
            let word = &mut model[(offset / 8) as usize];
            assert_eq!(answer[8..16], word.to_le_bytes());
            *word = after(spec, *word);
            assert_eq!(words.load(Offset(offset)), Ok(*word));
        }
    }
    memory.check();
    assert!(rights.can_write() || model.iter().all(|word| *word == 0), "a session that may only read");
}

/// Each batch that is not silent completes once, in order, whatever the memory node answers.
pub(super) fn answers(limit: u8, credit: u8, events: &[CommitEvent]) {
    let mut client = CommitClient::new(usize::from(limit).max(1), usize::from(credit).max(1));
    let (mut completions, mut loud): (Vec<Completion>, Vec<u64>) = (Vec::new(), Vec::new());
    let (mut next_batch, mut next_answer) = (0_u64, 0_u64);
    for event in events {
        let answer = match event {
            CommitEvent::Post { silent, verbs } => {
                let verbs: Vec<Verb<'_>> = verbs.iter().map(|letter| verb(*letter)).collect();
                if !verbs.is_empty() && client.post(next_batch, *silent, verbs) {
                    loud.extend((!silent).then_some(next_batch));
                    next_batch += 1;
                }
                None
            }
            CommitEvent::CardCompletes => {
                client.card_completes();
                None
            }
            CommitEvent::Pump => {
                client.pump();
                None
            }
            CommitEvent::Answer { old } => Some(reply(next_answer, *old, 0)),
            CommitEvent::Refuse { status } => Some(reply(next_answer, 0, *status)),
            CommitEvent::Message { sequence, old, status } => Some(reply(*sequence, *old, *status)),
            CommitEvent::Raw(bytes) => Some(bytes.clone()),
        };
        if let Some(bytes) = answer {
            if !client.message(&bytes) {
                client.end();
                client.poll(&mut completions);
                break;
            }
            next_answer += 1;
        }
        if client.is_over() {
            client.end();
        }
        client.poll(&mut completions);
    }
    client.end();
    client.poll(&mut completions);
    let ended: Vec<u64> = completions.iter().map(|completion| completion.batch.0).collect();
    assert_eq!(ended, loud);
}

fn verb(letter: u8) -> Verb<'static> {
    let remote = Offset(64);
    match letter % 3 {
        0 => Verb::Write { remote, from: [b"ab", b"", b"c"] },
        1 => Verb::CompareSwap { remote, expected: 1, desired: 2 },
        _ => Verb::FetchAdd { remote, add: 1 },
    }
}

fn reply(sequence: u64, old: u64, status: u8) -> Vec<u8> {
    let mut bytes = [sequence.to_le_bytes(), old.to_le_bytes()].concat();
    bytes.extend([status, 0, 0, 0, 0, 0, 0, 0]);
    bytes
}
