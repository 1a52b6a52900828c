//! Mistakes made on purpose, so that the tests which must catch them are tested themselves.
//!
//! Always true: without the feature `planted`, [`is_planted`] is a constant `false` and every mistake is compiled away;
//! with it, nothing is planted until a test asks, and then on its own thread only.
//!
//! To add one: an entry in [`Fault`], and `is_planted(Fault::It)` at the one spot where the rule is kept. The simulator
//! then refuses to pass until it catches it. An entry is
//!
//! ```text
//! /// The mistake, in one sentence.
//! Name [Mask, Mask]: "the rule that it breaks", "the smallest world that must catch it";
//! ```
//!
//! where the masks, if any, are mistakes without which this one does no harm: another rule makes up for it.
//!
//! Words of the worlds: *twins* are keys of one bucket with one tag; *neighbours* are keys of one bucket. *Reuse at once* is a
//! world whose blocks are used again, with their next version, as soon as they are marked, while clocks stand still: there
//! only the check that a block fits keeps readers right. *Reuse after grace* keeps the grace period, and clients are stopped
//! for longer than that: there the clock alone would do, and what a reader may conclude shows if versions don't tell.
//! *Rebuild* is a world in which slots are sealed, copied and unsealed as the design orders it. *Marks* is the oracle that
//! each block unlinked by a CAS is marked exactly once, with its version, and nothing else ever is.

mod later;

pub use later::{LATER, Later};

macro_rules! faults {
    ($(
        $(#[doc = $doc:literal])+
        $name:ident $([$($mask:ident),+])?: $rule:literal, $world:literal;
    )*) => {
        /// A mistake that can be planted.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        #[repr(u8)]
        pub enum Fault {
            $(
                $(#[doc = $doc])+
                #[doc = concat!("\n\nRule: ", $rule, ". World: ", $world, ".")]
                $name,
            )*
        }

        impl Fault {
            /// All of them.
            pub const ALL: &[Self] = &[$(Self::$name),*];

            /// Its name.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$name => stringify!($name),)*
                }
            }

            /// What it does, as a sentence.
            pub const fn mistake(self) -> &'static str {
                match self {
                    $(Self::$name => concat!($($doc),+).trim_ascii(),)*
                }
            }

            /// The rule that it breaks.
            pub const fn rule(self) -> &'static str {
                match self {
                    $(Self::$name => $rule,)*
                }
            }

            /// The smallest world that must catch it.
            pub const fn world(self) -> &'static str {
                match self {
                    $(Self::$name => $world,)*
                }
            }

            /// The mistakes without which this one does no harm, because another rule makes up for it; empty for most.
            /// All of them together are to be planted with it, in a world where they alone are not caught.
            pub const fn masked_by(self) -> &'static [Self] {
                match self {
                    $(Self::$name => &[$($(Self::$mask),+)?],)*
                }
            }
        }
    };
}

faults! {
    // What a block proves.

    /// A slot is examined by its tag alone.
    KeyNotCompared: "only a fitting block with this key is this key's",
        "twins, one of them present; get the other";
    /// ⚑ A block that does not fit its slot's word counts as another key's.
    UnfitTakenForOther: "a block that does not fit proves nothing: read the slot again",
        "reuse at once; get of a key against a put over it and a put of another key";
    /// One block that does not fit is called corruption at once.
    UnfitTakenForCorrupt: "a block that does not fit proves nothing: read the slot again",
        "reuse at once; get of a key against a put over it and a put of another key; no operation may fail";
    /// A block is believed without its checksum.
    ChecksumUnchecked: "a block fits only if its checksum is right",
        "reuse at once, torn READs; get against a put over the key and a put of another key";
    /// A block's version is not compared with the slot word's.
    VersionUnchecked [ChecksumWithoutVersion]: "a block fits only the version that the word names",
        "reuse at once; get against a put over the key and a put of another key";
    /// The version has no part in a block's checksum, for writers and readers alike.
    ChecksumWithoutVersion [VersionUnchecked]: "a block fits only the version that the word names",
        "reuse at once; get against a put over the key and a put of another key";
    /// A value comes without its last byte.
    ValueCutShort: "what is returned was the key's value", "one put, one get";

    // What a bucket's slots mean.

    /// Of several slots with the key's tag only the first is looked at.
    SecondTwinIgnored: "every slot with the tag is ruled out by its block", "twins, both present; get the second";
    /// An insert passes over the first EMPTY slot if there is another, in every second chunk's blocks.
    AnyEmptySlot: "an insert takes the first EMPTY slot in slot order", "two inserts of one key by two clients";
    /// An insert remembers one EMPTY slot only, and calls the bucket full when it loses that.
    OnlyOneEmptySlot: "an insert that lost a slot to another key goes on with the next EMPTY one",
        "two inserts of neighbours; BucketFull is true only of a bucket without EMPTY slots";
    /// A put does not look at DELETED slots.
    DeletedNotExamined: "a slot that left EMPTY keeps its key: a deleted key's slot is taken up again",
        "put, delete, put of one key; no key in two slots";
    /// A get reads DELETED slots as if they were LIVE.
    DeletedTakenForValue: "a DELETED slot holds no value", "put, delete, get of one key";
    /// ⚑ An insert passes over CLOSED words as over occupied slots.
    ClosedPassedOver: "an insert that saw CLOSED starts over: CLOSED is neither EMPTY nor occupied",
        "rebuild whose new bucket is unsealed from its last slot on; two inserts of one key, one before and one after \
         the first slot is unsealed";
    /// A get does not look at MOVED slots.
    MovedMissedByGet: "a MOVED slot holds its key's value until the directory names another segment",
        "rebuild that stands between sealing and publishing; get of a key that is there";
    /// A change does not look at MOVED slots.
    MovedMissedByChange: "a change that meets its key MOVED waits for the rebuild",
        "rebuild that stands within sealing, the key's slot MOVED, a later one still EMPTY; put or delete of the key";
    /// A change whose CAS found MOVED goes on with that word as the next expected one.
    MovedTakenForNext: "EMPTY, CLOSED and MOVED are never the next expected word",
        "rebuild that seals a slot between a put's READ of its block and its CAS";

    // Where the bucket is.

    /// A bucket is used whatever keys its header says it serves.
    HeaderUnchecked: "a bucket's words count only if its header serves the hash",
        "a client whose copy of the directory names another entry's segment; get of a key that is there";
    /// A get uses the words of a SEALED bucket without asking the directory.
    SealedTrustedByGet: "words of a SEALED bucket count only while the directory names its segment",
        "rebuild; a put through the new segment, then a get by a client with the old directory";
    /// A change uses the words of a SEALED bucket.
    SealedTrustedByChange: "no change is made, and no absence concluded, in a SEALED bucket",
        "rebuild of a full bucket (so that no word is CLOSED); a put of a new key through the new segment, then a delete \
         of it by a client with the old directory";
    /// The copy of the directory takes any word that was read.
    OlderDirectoryLearned [SealedTrustedByGet]: "an older directory word never replaces a newer one",
        "rebuild; two sessions of one client, one of which receives the old word after the other learned the new one \
         (or alone, with an oracle: generations in a client's copy never fall)";
    /// What was read of the directory is not kept.
    DirectoryNotLearned: "a directory found old is refreshed",
        "rebuild, or a wrong copy of the directory; every call ends within a bounded number of verbs";

    // What a rebuild does.

    /// ⚑ A rebuild copies slots and does not seal them.
    SealSkipped: "a rebuild seals first, so that what it copies can't change any more",
        "rebuild that stands between copying and publishing; a put over the key, and a get";
    /// ⚑ A rebuild does not look at what its sealing CAS found.
    LostSealNotRepeated: "every slot is sealed, however often its word changes meanwhile",
        "a put over the key between a rebuild's look at its slot and the CAS that seals it; another one after the copy";
    /// ⚑ A rebuild marks the old headers SEALED when it is done with everything else.
    HeadersSealedLast: "the old headers are SEALED before new slots are open",
        "rebuild; a put through the new segment, then a get by a client with the old directory";
    /// ⚑ A rebuild leaves the old headers open.
    HeadersNotSealed: "the old headers are SEALED before new slots are open",
        "rebuild; a put through the new segment, then a get by a client with the old directory";
    /// ⚑ A rebuild opens the new slots before the directory names them.
    UnsealedBeforePublished: "new slots are open only when all of the directory names their segment",
        "any rebuild, with an oracle: until locations are cached nobody knows a slot without the directory";
    /// A rebuild publishes half of the directory words that name the old segment.
    RunCutShort: "a rebuild replaces every directory word of the segment",
        "rebuild of a segment that several entries share; a put by a client of the last one";
    /// A new segment has the generation of the old one.
    GenerationKept: "each rebuild has the next generation", "rebuild; a put by a client with the old directory";
    /// A rebuild takes DELETED slots along as if they were LIVE.
    DeletedCarried: "a deleted key's slot is given up", "put, delete, rebuild, get of one key";
    /// A rebuild that splits gives each key to the wrong half.
    WrongHalf: "a key is in the segment that its hash's prefix names", "rebuild into two; get of a key that is there";
    /// A rebuild does not mark the blocks of the deleted keys that it gave up.
    DroppedNotMarked: "who unlinks a block marks it", "put, delete, rebuild; marks";
    /// A rebuild marks the blocks of the deleted keys that it gave up twice.
    DroppedMarkedTwice: "exactly one winner, so exactly one mark", "put, delete, rebuild; marks";
    /// A rebuild marks a deleted key's block also if it lost the slot to a put of the key.
    LostDroppedMarked: "exactly one winner, so exactly one mark",
        "a put of a deleted key between a rebuild's look at its slot and the CAS that closes it; marks";
    /// ⚑ A segment's memory is used again as soon as it was replaced.
    RecycledEarly: "segment memory is recycled only when every session has acknowledged or been fenced",
        "two rebuilds of a segment, the second into the first one's memory; an insert of a key stopped before its CAS, and \
         another";

    // Who wins, who loses, who claims.

    /// An insert that lost its slot to any LIVE word claims to be overwritten.
    LostSlotClaimed: "only a rival of the same key can have overwritten an insert", "two inserts of neighbours";
    /// An insert takes a rival with its tag for a rival with its key.
    RivalKeyNotCompared: "only a fitting block with this key is this key's", "two inserts of twins";
    /// An insert that lost its slot to a word with its tag goes on with the next slot unseen.
    RivalPassedOver: "an insert has examined every slot before its own", "two inserts of one key";
    /// ⚑ A put claims to be overwritten by any word.
    ClaimsAgainstAnyWord: "a blind operation claims only against a word that carries blind",
        "a put that loses to a writer that read (its word is not blind) and so did not see it; or put against delete, with \
         an oracle: a put that ends without having won was told a word with blind by its last CAS";
    /// ⚑ A delete that lost to a blind LIVE word claims to have happened before it.
    DeleteClaims: "operations that report never claim", "two deletes and a put over the key, three clients";
    /// ⚑ A delete that lost to a LIVE word answers that there was no such key.
    DeleteLostToLiveGivesUp: "a delete that lost to LIVE tries again", "a delete and a put over the key";
    /// ⚑ A delete that lost to DELETED deletes that and answers yes.
    DeleteLostToDeletedGoesOn: "a delete that lost to DELETED answers no", "two deletes of one key";
    /// A delete does not look at what its CAS returned.
    LostDeleteTakenForWon: "a change takes effect if its CAS found the expected word", "two deletes of one key";
    /// A put does not look at what its CAS of the key's slot returned.
    LostPutTakenForWon: "a change takes effect if its CAS found the expected word",
        "two puts over one key; marks (a block that is in use is marked)";
    /// A change that lost tries again with the word that it expected before.
    LostSwapRepeated: "a lost race goes on with the word that the CAS returned",
        "a delete and a put over the key; every call ends within a bounded number of verbs";

    // What is published.

    /// A delete leaves a LIVE word with an empty value.
    DeleteWritesLive: "a delete leaves DELETED", "put, delete, get of one key";
    /// The CAS goes out in front of the WRITE of its block.
    PublishedBeforeWritten: "a block is written before the CAS that publishes it",
        "a put against a get of one key; or the client dies between the two";
    /// A block says another version than the word that names it.
    VersionOfBlockWrong: "a published block fits its word", "one put, one get";
    /// All blocks of a session have one write id.
    WriteIdRepeated: "a write id names one write", "one client, two puts; no two blocks written have one write id";

    // Block memory.

    /// A published block goes back to the allocator.
    PublishedGivenBack: "a block is published or given back, never both", "one client, puts of two keys, get of the first";
    /// The block of a CAS of which nothing is known goes back to the allocator.
    LimboGivenBack: "the block of an unknown CAS stays in limbo until a sweep",
        "a put whose completion is lost or late while its CAS takes effect; another put by the same session";
    /// A block that was not published is forgotten.
    UnpublishedLost: "a block is published, given back or in limbo",
        "a put that claims, or is refused by a full bucket; memory accounts add up";
    /// The next block of a chunk stays the next.
    FreshHandedTwice: "a block is handed out once for each version", "one client, puts of two keys, get of the first";
    /// A block that was given back can be handed out again and again.
    SpareHandedTwice: "a block is handed out once for each version",
        "one client: a put that claims (or is refused), then puts of two keys, get of the first";
    /// A chunk is used beyond its last block.
    ChunkEndIgnored: "a session's blocks lie in chunks granted to it",
        "a chunk with one block left, two puts; no WRITE outside the session's own chunks";
    /// A block that is used again keeps its version.
    VersionKept: "each use of a block has the next version",
        "reuse at once; get against a put over the key and a put of another key";
    /// What a CAS unlinked is not marked.
    NeverMarked: "who unlinks a block marks it", "a put over a key; marks";
    /// What a CAS unlinked is marked twice.
    MarkedTwice: "exactly one winner, so exactly one mark", "a put over a key; marks";
    /// A mark has the version after the one that was unlinked.
    NextVersionMarked: "a mark is the version that was unlinked", "a put over a key; marks";
    /// A mark goes to the next block's byte.
    NeighbourMarked: "a mark goes to the byte of the block that was unlinked", "a put over a key; marks";
    /// The winner marks the block that it published.
    NewBlockMarked: "a mark is for the block that was unlinked", "a put over a key; marks";
    /// Who lost and claims marks the block that it expected, too.
    LoserMarks: "exactly one winner, so exactly one mark", "two puts over one key; marks";
    /// Who learns late that its CAS happened marks nothing.
    ResolvedNotMarked: "who unlinks a block marks it",
        "a put over a key whose completion is lost after its CAS took effect; marks";
    /// Who learns late that its CAS did not happen marks what it would have unlinked.
    FailedSwapMarked: "exactly one winner, so exactly one mark",
        "a put over a key that loses its connection before its CAS took effect; marks";

    // Grace.

    /// ⚑ A get returns a value however long ago it read the slot.
    StaleValueReturned [VersionKept]: "a conclusion older than half the grace period is thrown away",
        "reuse after grace; a get stopped before its READ of the block, a put over the key, then one that has written the \
         reused block and not yet published it";
    /// ⚑ A get answers "absent" however long ago it read the slot.
    StaleAbsentReturned [VersionKept]: "a conclusion older than half the grace period is thrown away",
        "reuse after grace; a get stopped before its READ of the block, a put over the key, the block reused for a \
         neighbour";
    /// ⚑ A delete answers "no" however long ago it read the slot.
    StaleAbsentDeleted [VersionKept]: "a conclusion older than half the grace period is thrown away",
        "reuse after grace; a delete stopped before its READ of the block, a put over the key, the block reused for a \
         neighbour";
    /// ⚑ A put inserts its key however long ago it read the slots.
    StaleInserted [VersionKept]: "a conclusion older than half the grace period is thrown away",
        "reuse after grace; a put over a key stopped before its READ of the block, another put over the key, the block \
         reused for a neighbour; no key in two slots";
    /// ⚑ A change goes on to its CAS however long ago it read the slot.
    StaleReplaced [VersionKept]: "a conclusion older than half the grace period is thrown away",
        "reuse after grace; twins, one present; an insert of the other stopped before its READ of the block, a put over \
         the first, the block reused for the other's key by a put that is not yet published";
    /// ⚑ An insert claims against a rival however long ago it read the slots.
    StaleClaimed [VersionKept]: "a conclusion older than half the grace period is thrown away",
        "reuse after grace; twins, two inserts; the loser stopped before its READ of the rival's block, a put over the \
         rival's key, the block reused for the loser's key by a put that is not yet published";
    /// The clock begins to run when the blocks are read, not the slot.
    ClockRestarted [VersionKept]: "the age of a conclusion counts from when the slot's READ was posted",
        "as for the stale conclusions, stopped between the bucket's reply and the READ of the block";

    // Reuse of freed blocks, and epochs.

    /// ⚑ A block is used again as soon as it is seen marked.
    ReusedBeforeGrace: "a block is used again only after the grace period since its owner saw the mark",
        "reuse after grace, one client, puts over one key; no WRITE into a block marked for less than that";
    /// ⚑ Blocks of a chunk are used again however often they were since everybody acknowledged an epoch.
    ReusedBeyondVersions: "a block is reused at most 255 times between two epochs",
        "an owner's chunk, harvested again and again while no epoch is quiesced; the 256th use has the version of the first";
    /// Any mark means that a block is free.
    AnyByteHarvested: "a block is free only if its byte of the free map is its version",
        "a block that is used a second time, with the mark of its first; a harvest";
    /// ⚑ A block that an audit did not reach ripens, and its byte stays as it was.
    ReclaimedUnmarked: "an owner that reclaims by asking writes the freed version into the block's byte first",
        "a block whose mark was lost, an audit that did not reach it; the next owner's harvest";
    /// ⚑ Whatever is in use when an audit's answer comes is compared with it, not what was when the audit was announced.
    AuditOfBlocksInHand: "a scan leaves out blocks that were in hand at any moment of it",
        "a block handed out after an audit was announced and published after its scan; the owner reads its answer";
    /// ⚑ An epoch is acknowledged before the directory's changed words are known.
    AcknowledgedBeforeRefresh: "a session acknowledges an epoch in its order: learn it, refresh the directory, finish, drop, \
        acknowledge",
        "an epoch with changes of the directory; the directory's copy when the acknowledgement goes out";
    /// ⚑ An epoch is acknowledged while marks are under way.
    AcknowledgedBeforeMarks: "a session acknowledges an epoch in its order: learn it, refresh the directory, finish, drop, \
        acknowledge",
        "a put over a key whose mark is not executed yet, and an epoch; marks under way when the acknowledgement goes out";
    /// ⚑ A session whose queue pair was fenced acknowledges before the fate of its CAS is known.
    AcknowledgedUnresolved: "fencing a queue pair fences no session: the operation is unfinished until it is resolved",
        "a put whose completion is lost, and an epoch before its slot is read";

    // Lost completions.

    /// What may have happened is done again.
    UnknownRetried: "an unknown outcome is never silently tried again",
        "a put whose completion is lost after it took effect, overwritten by a rival before the slot is read";
    /// What may have happened is reported as failed.
    UnknownReportedFailed: "an unknown outcome is never reported as failed",
        "a put whose completion is lost after it took effect, read and overwritten by a rival before the slot is read";
    /// What is known to have happened is done again.
    HappenedRetried: "what happened is not tried again",
        "a put whose completion is lost after it took effect; a rival's put before the second try";
    /// A lost CAS counts as one that was never posted.
    SwapOutForgotten: "with a CAS out, a failure does not say that nothing happened",
        "a put whose completion is lost after it took effect; a rival's put before the second try";
    /// A CAS out when time ran out counts as one that was never posted.
    TimeoutTakenForFailed: "with a CAS out, running out of time does not say that nothing happened",
        "a put whose time runs out before its CAS takes effect late; a get";
    /// Any word but its own means to a lost CAS that it did not happen.
    OtherWordMeansNo: "only the slot's own or expected word proves the fate of a lost CAS",
        "a put whose completion is lost after it took effect, overwritten by a rival before the slot is read";
    /// Any word but the expected one means to a lost CAS that it happened.
    OtherWordMeansYes: "only the slot's own or expected word proves the fate of a lost CAS",
        "a delete that loses its connection before its CAS took effect, and another delete";
    /// The expected word means to a lost CAS that it happened.
    ExpectedWordMeansYes: "only the slot's own or expected word proves the fate of a lost CAS",
        "a put that loses its connection before its CAS took effect; a get";
    /// The slot is read before the old queue pair was fenced. Whoever simulates or runs the session keeps this rule.
    ResolvedBeforeFence: "the old queue pair is fenced before the slot is read",
        "a put that loses its connection, whose CAS takes effect after the slot was read; a rival's put before the second try";
}

#[cfg(feature = "planted")]
std::thread_local! {
    static PLANTED: std::cell::Cell<u128> = const { std::cell::Cell::new(0) };
}

const _: () = assert!(Fault::ALL.len() <= 128, "one bit each");

/// Whether this thread is to make that mistake.
#[cfg(feature = "planted")]
#[inline]
pub fn is_planted(fault: Fault) -> bool {
    PLANTED.get() & 1 << fault as u8 != 0
}

/// Whether this thread is to make that mistake: never, in this build.
#[cfg(not(feature = "planted"))]
#[inline(always)]
pub const fn is_planted(_: Fault) -> bool {
    false
}

/// Makes this thread make these mistakes and no others, until it is told otherwise.
#[cfg(feature = "planted")]
pub fn plant(faults: &[Fault]) {
    PLANTED.set(faults.iter().fold(0, |bits, fault| bits | 1 << *fault as u8));
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    /// Whoever reads the table finds a sentence, a rule and a world for each, and no mask leads back to itself alone.
    #[test]
    fn every_mistake_says_what_it_is() {
        let names: HashSet<&str> = Fault::ALL.iter().map(|fault| fault.name()).collect();
        assert_eq!(names.len(), Fault::ALL.len());
        for fault in Fault::ALL {
            let (mistake, rule, world) = (fault.mistake(), fault.rule(), fault.world());
            assert!(mistake.ends_with('.') && !mistake.starts_with(' '), "{fault:?}: {mistake:?}");
            for text in [rule, world] {
                assert!(
                    !text.is_empty() && !text.ends_with('.') && !text.contains("  "),
                    "{fault:?}: {text:?}"
                );
            }
            assert!(!fault.masked_by().contains(fault), "{fault:?} masks itself");
        }
    }

    /// A mistake is planted where it is asked for, on that thread, until something else is asked for.
    #[test]
    #[cfg(feature = "planted")]
    fn planting_is_for_this_thread_and_the_moment() {
        let last = Fault::ALL[Fault::ALL.len() - 1];
        plant(&[last]);
        assert!(is_planted(last) && !is_planted(Fault::KeyNotCompared));
        assert!(!std::thread::spawn(move || is_planted(last)).join().unwrap());
        plant(&[]);
        assert!(!is_planted(last));
    }

    #[test]
    #[cfg(not(feature = "planted"))]
    fn products_make_no_mistake() {
        assert!(!Fault::ALL.iter().any(|fault| is_planted(*fault)));
    }
}
