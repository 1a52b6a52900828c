//! What a failed connection means for an operation that was under way.
//!
//! Always true: an operation is tried again only if it is certain that its CAS did not happen and can't happen any
//! more. What is not known is said to be unknown: it is never reported as failed, and never silently repeated.
//!
//! ```text
//! its batch failed ─▶ effect_of ─▶ no: verdict
//!                              └▶ unknown, a CAS was out: the server fences the old queue pair,
//!                                 Resolve reads the slot ─▶ its answer: verdict
//! verdict: yes ─▶ succeeded      no ─▶ again (unless the node refused the verb)      unknown ─▶ failed, unknown
//! ```

use sidestep_common::fabric::{Effect, Failure, FailureKind};
use sidestep_common::planted::{Fault, is_planted};

use super::PendingCas;

/// What is to become of an operation whose connection failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// It happened.
    Succeeded,
    /// It did not happen and nothing forbids to begin it anew.
    Again,
    /// It ends with an error, which says whether it happened.
    Failed(Effect),
}

/// Whether the operation took effect, as far as the failure of its batch tells. Only a CAS changes what others see, so
/// with none out the answer is no, whatever became of its other verbs.
pub fn effect_of(cas: Option<PendingCas>, failure: &Failure) -> Effect {
    match cas {
        Some(_) if !is_planted(Fault::SwapOutForgotten) => failure.effect,
        _ => Effect::No,
    }
}

/// The same for an operation whose time ran out: a CAS that is out may still happen.
pub fn effect_of_timeout(cas: Option<PendingCas>) -> Effect {
    match cas {
        Some(_) if !is_planted(Fault::TimeoutTakenForFailed) => Effect::Unknown,
        _ => Effect::No,
    }
}

/// Whether an operation that ends from outside gives back what it holds: with a batch out, its block may still be
/// written, or be published already, and stays in limbo.
pub fn may_release(is_batch_out: bool) -> bool {
    !is_batch_out || is_planted(Fault::LimboGivenBack)
}

/// What to do once as much is known of the effect as can be.
pub fn verdict(effect: Effect, failure: &Failure) -> Verdict {
    // A refused verb would be refused again.
    let refused = matches!(failure.kind, FailureKind::Access(_));
    match effect {
        Effect::Yes if is_planted(Fault::HappenedRetried) => Verdict::Again,
        Effect::Yes => Verdict::Succeeded,
        Effect::No if !refused => Verdict::Again,
        Effect::Unknown if is_planted(Fault::UnknownRetried) => Verdict::Again,
        Effect::Unknown if is_planted(Fault::UnknownReportedFailed) => Verdict::Failed(Effect::No),
        effect => Verdict::Failed(effect),
    }
}

#[cfg(test)]
mod tests {
    use sidestep_common::layout::Offset;

    use super::*;

    fn failure(kind: FailureKind, effect: Effect) -> Failure {
        Failure { verb_index: 0, kind, effect }
    }

    #[test]
    fn only_what_certainly_did_not_happen_is_tried_again() {
        let lost = failure(FailureKind::Disconnected("x".into()), Effect::Unknown);
        let refused = failure(FailureKind::Access("x".into()), Effect::No);
        assert_eq!(verdict(Effect::No, &lost), Verdict::Again);
        assert_eq!(verdict(Effect::Yes, &lost), Verdict::Succeeded);
        assert_eq!(verdict(Effect::Unknown, &lost), Verdict::Failed(Effect::Unknown));
        assert_eq!(verdict(Effect::No, &refused), Verdict::Failed(Effect::No));
    }

    #[test]
    fn without_a_cas_nothing_happened() {
        let lost = failure(FailureKind::Flushed, Effect::Unknown);
        assert_eq!(effect_of(None, &lost), Effect::No);
        let cas = PendingCas { slot: Offset(8), expected: 0, desired: 1 };
        assert_eq!(effect_of(Some(cas), &lost), Effect::Unknown);
        assert_eq!(effect_of_timeout(None), Effect::No);
        assert_eq!(effect_of_timeout(Some(cas)), Effect::Unknown);
    }

    /// A block that may still be written is nobody's; one that can't be is used again.
    #[test]
    fn only_what_is_out_stays_in_limbo() {
        assert!(!may_release(true));
        assert!(may_release(false));
    }
}
