//! What a session may touch: bounds, keys, rights, tickets, fences.

use std::time::{Duration, Instant};

use sidestep_common::fabric::{Effect, FailureKind, PostError, Rights, Verb};

use super::{Bed, DEADLINE, DEPTH, Driver, add, pattern, swap, write};

/// Bytes at each end that are compared before and after.
const EDGE_BYTES: usize = 32 << 10;

struct Edges([Vec<u8>; 2]);

impl Edges {
    fn fill(bed: &dyn Bed) -> Self {
        bed.poke(0, &pattern(1, EDGE_BYTES));
        bed.poke(bed.region_bytes() - EDGE_BYTES as u64, &pattern(2, EDGE_BYTES));
        Self::look(bed)
    }

    fn look(bed: &dyn Bed) -> Self {
        Self([0, bed.region_bytes() - EDGE_BYTES as u64].map(|at| bed.peek_bytes(at, EDGE_BYTES)))
    }

    fn assert_unchanged(&self, bed: &dyn Bed, after: &str) {
        assert!(self.0 == Self::look(bed).0, "{after} changed bytes of the region");
        assert_ne!(bed.outside_untouched(), Some(false), "{after} changed bytes outside the region");
    }
}

/// The verb is refused, changes nothing, and ends the connection.
fn assert_refused(driver: &mut Driver, verb: Verb<'_>) {
    let name = format!("{} of {} bytes at {}", verb.name(), verb.bytes(), verb.remote());
    let failure = driver.try_run(vec![verb]).expect_err(&name);
    assert!(matches!(failure.kind, FailureKind::Access(_)), "{name}: {failure:?}");
    assert_eq!((failure.verb_index, failure.effect), (0, Effect::No), "{name}");
    driver.assert_broken();
}

/// The first and last bytes and words of the region can be read, written, swapped and added to.
pub fn the_edges_are_inside(bed: &dyn Bed) {
    let mut driver = bed.connect();
    let end = bed.region_bytes();
    for (at, bytes) in [(0, 1), (0, 64), (end - 1, 1), (end - 8, 8), (end - 9, 9), (end - 4096, 4096)] {
        let from = pattern(at, bytes);
        driver.store(at, &from);
        assert_eq!(driver.fetch(at, bytes), from, "{bytes} bytes at {at:#x}");
    }
    for at in [0, end - 8] {
        let before = bed.peek_word(at);
        assert_eq!(driver.atomic(swap(at, before, 1)), before);
        assert_eq!(driver.atomic(add(at, 1)), 1);
        assert_eq!(bed.peek_word(at), 2);
    }
}

/// One byte too far at either end, half inside, far away, and where sums wrap: refused, with nothing changed inside the
/// region or beside it.
pub fn just_outside_is_refused(bed: &dyn Bed) {
    let end = bed.region_bytes();
    let edges = Edges::fill(bed);
    let bytes = [0xbd; 64];
    // Before the start is the far end of 64 bits.
    for (at, length) in [
        (end, 1),
        (end - 1, 2),
        (end - 63, 64),
        (u64::MAX, 1),
        (u64::MAX - 7, 16),
        (1 << 63, 8),
        (end + (1 << 32), 8),
    ] {
        assert_refused(&mut bed.connect(), write(at, &bytes[..length]));
        let mut driver = bed.connect();
        let read = driver.read(at, length);
        assert_refused(&mut driver, read);
    }
    for at in [end, u64::MAX - 7, 1 << 63] {
        assert_refused(&mut bed.connect(), swap(at, 0, 1));
        assert_refused(&mut bed.connect(), add(at, 1));
    }
    edges.assert_unchanged(bed, "a verb outside the region");
}

/// A session that may only read does so, and is refused whatever would change something.
pub fn a_read_only_session_changes_nothing(bed: &dyn Bed) {
    let edges = Edges::fill(bed);
    for verb in [write(0, &[1]), swap(0, bed.peek_word(0), 1), add(0, 1)] {
        let mut driver = bed.connect_as(Rights::ReadOnly);
        assert_eq!(driver.fetch(0, 64), edges.0[0][..64]);
        assert_refused(&mut driver, verb);
    }
    edges.assert_unchanged(bed, "a read-only session");
}

/// A session that names the region by a wrong key (an old server's, or a guess) gets nowhere, reading included.
pub fn a_wrong_key_opens_nothing(bed: &dyn Bed) {
    let edges = Edges::fill(bed);
    for verb in ["READ", "WRITE", "CAS"] {
        let Some(fabric) = bed.connect_with_wrong_key() else {
            println!("not applicable: the {} fabric has no keys", bed.kind());
            return;
        };
        let mut driver = Driver::new(fabric);
        let verb = match verb {
            "READ" => driver.read(0, 64),
            "WRITE" => write(0, &[1; 64]),
            _ => swap(0, bed.peek_word(0), 1),
        };
        assert_refused(&mut driver, verb);
    }
    edges.assert_unchanged(bed, "a wrong key");
}

/// The server fences a session. Where it says that nothing can take effect any more, the very next verb must not; where
/// it can't say so, the client ends by itself, soon. Either way a new session works, and does not see the old one's ghost.
pub fn a_fenced_session_ends(bed: &dyn Bed) {
    let (session, fabric) = bed.connect_with(Rights::ReadWrite, DEPTH);
    let mut driver = Driver::new(fabric);
    driver.atomic(add(0, 1));
    let revoked = bed.fence(session);
    let deadline = Instant::now() + DEADLINE;
    let mut ended = false;
    while !ended {
        match driver.try_post(vec![add(0, 1)]) {
            Ok(()) => match driver.take_next() {
                Ok(_) => assert!(!revoked, "a verb took effect after the fence"),
                Err(failure) => {
                    assert!(!matches!(failure.kind, FailureKind::Access(_)), "{failure}");
                    ended = true;
                }
            },
            Err(PostError::Broken(_)) => ended = true,
            Err(other) => panic!("{other}"),
        }
        driver.fabric().wait(Duration::from_millis(1));
        assert!(Instant::now() < deadline, "the client never noticed");
    }
    let count = bed.peek_word(0);
    assert!(count == 1 || !revoked, "{count}");
    driver.assert_broken();
    drop(driver);
    assert!(bed.fence(session), "once its client has let go, nothing is left to revoke");
    assert_eq!(bed.connect().atomic(add(0, 1)), count);
}

/// A ticket that was used, or whose session was fenced before it was shown, joins nothing.
pub fn a_ticket_opens_one_connection(bed: &dyn Bed) {
    match (bed.join_twice(), bed.join_after_fence()) {
        (None, None) => println!("not applicable: the {} fabric has no tickets", bed.kind()),
        (twice, void) => {
            assert!(twice.is_some_and(|result| result.is_err()), "a used ticket was taken");
            assert!(void.is_some_and(|result| result.is_err()), "a void ticket was taken");
        }
    }
}
