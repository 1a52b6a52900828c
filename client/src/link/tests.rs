//! A session's link between its calls, and when it is lost, with a server that a test plays.

use std::os::fd::AsFd;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use sidestep_common::wire::{Pulse, Refusal, read_frame, write_frame};

use super::*;
use crate::control::Bell;
use crate::testing::LONG;
use crate::upkeep::tests::Bed;

/// A session whose link is in `bed`, as if it had joined an endpoint at which nobody listens any more.
fn joiner() -> Joiner {
    let endpoint = "127.0.0.1:1".parse().unwrap();
    let shared = Arc::new(Shared::new(endpoint, Settings::default()).unwrap());
    Joiner {
        shared,
        counters: SharedCounters::new(crate::statistics::Counters::default()),
        seat: Arc::default(),
        welcome: None,
        member: None,
        backoff: Backoff::new(Duration::from_millis(1), Duration::from_millis(1), 1),
        not_before: None,
    }
}

/// News came during a call. Whoever keeps the session up is woken when the link is back, and not before: it would find the
/// link lent and go to sleep again, and the news would wait for the next heartbeat.
#[test]
fn nobody_is_woken_for_a_link_that_is_not_back() {
    let bed = Bed::new();
    let mut joiner = joiner();
    let bell = Arc::new(Bell::new().unwrap());
    let is_rung = |wait: Duration| {
        let wait = Timespec::try_from(wait).unwrap();
        poll(&mut [PollFd::from_borrowed_fd(bell.as_fd(), PollFlags::IN)], Some(&wait)).unwrap() > 0
    };
    let control = Arc::clone(&bed.link.member.control);
    control.wake_with(&bell);
    control.news.hear(Pulse { epoch: 2, ..Pulse::default() }, None);
    let seat = Arc::clone(&joiner.seat);
    std::thread::scope(|scope| {
        let held = seat.hold();
        let link = Box::new(bed.link);
        scope.spawn(move || joiner.put(link));
        assert!(!is_rung(Duration::from_millis(100)), "the link is not back");
        drop(held);
        assert!(is_rung(LONG));
    });
    assert!(seat.try_take().is_some());
}

/// Blocks were used again so often during a call that an epoch is needed: the server hears it when the call ends, not with the
/// next heartbeat.
#[test]
fn the_wish_for_an_epoch_does_not_wait() {
    let mut bed = Bed::new();
    let mut joiner = joiner();
    let class = SizeClass::holding(64).unwrap();
    bed.grant(class, 0);
    joiner.shared.pacemaker.watch(&bed.link.member.control, &joiner.seat, 1000 * LONG);
    bed.link.member.ground.allocator.reused(200);
    joiner.put(Box::new(bed.link));
    bed.peer.set_read_timeout(Some(LONG)).unwrap();
    let request: Request = read_frame(&mut bed.peer).unwrap();
    assert_eq!(request, Request::Heartbeat { epoch: 1, wants_epoch: true });
}

/// The server refuses to let a session join again, for the moment. The session, whose chunks it has, asks again later; a server
/// that knows the session no more ends it.
#[test]
fn a_session_outlives_a_refusal_that_may_pass() {
    let mut bed = Bed::new();
    bed.grant(SizeClass::holding(64).unwrap(), 0);
    let mut joiner = joiner();
    let mut peer = bed.peer;
    let server = std::thread::spawn(move || {
        for code in [RefusalCode::Draining, RefusalCode::SessionLimit, RefusalCode::Fenced] {
            let request: Request = read_frame(&mut peer).unwrap();
            assert_eq!(request, Request::Rejoin);
            let message = "not now".into();
            write_frame(&mut peer, &Response::Refused(Refusal { code, message })).unwrap();
        }
        assert!(read_frame::<Request>(&mut peer).is_err(), "it was told that the session is gone");
    });
    let error =
        joiner.join_again(Some(Box::new(bed.link)), Deadline::after(Duration::from_secs(1))).unwrap_err();
    assert!(matches!(error, Error::Unreachable { .. }), "a new one is tried: {error}");
    assert!(joiner.member.is_none());
    server.join().unwrap();
}
