//! Rules of the design of which no breach can be planted yet, and what each waits for.
//!
//! Always true: a rule leaves this list when what it waits for is built, and becomes a [`super::Fault`] in the same change.

/// A rule that nothing of today could break where a simulated client would notice.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Later {
    /// The rule.
    pub rule: &'static str,
    /// What must be there first, and what keeps or shows the rule until then.
    pub until: &'static str,
}

const fn later(rule: &'static str, until: &'static str) -> Later {
    Later { rule, until }
}

/// All of them, in the design's order.
pub const LATER: &[Later] = &[
    later("a cached get counts only if the slot still holds the cached word", "location cache"),
    later("only LIVE words are cached", "location cache"),
    later("a claim needs an expected word that was read after the operation began", "location cache"),
    later(
        "a slot word alone stands for a version only while it is younger than 64 grace periods",
        "conditional operations",
    ),
    later("a delete that finds an expired LIVE word writes DELETED and answers no", "expiry"),
    later("expiry is judged by a tick read within the call", "expiry"),
    later("absent because expired needs a tick that was read before the slot's READ was posted", "expiry"),
    later("the server raises the epoch only after a rebuild's last directory word", "epochs, index growth"),
    later(
        "block memory is swept, adopted, or given another class only when every session has acknowledged or been fenced",
        "epochs; until then no memory is, and a block's checksum needs no address",
    ),
    later(
        "after a failed verb none of the session's later verbs execute",
        "cached puts, which post WRITE and CAS together: today's changes await the WRITE; each fabric's conformance shows it",
    ),
    later(
        "on shm a session is fenced only when its process is known to be dead",
        "nothing that a simulated fabric has: a fence there needs no process; the server's own tests show it",
    ),
];
