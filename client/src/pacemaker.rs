//! The thread that keeps a client's sessions up: heartbeats, what the server says unasked, and what sessions owe it.
//!
//! Always true: it waits for all sessions at once, never for one server's answer; a session whose heartbeat failed, or has no
//! answer when its lease ends, is marked lost and reconnects at its next call; each heartbeat is sent when its own is due,
//! however often others come and go. It posts a session's verbs only while no call has the session's link, and then for a
//! short time. It ends with its owner.

use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use sidestep_common::wire::{Request, Response};

use crate::clock::Deadline;
use crate::control::{Bell, Control, Errand};
use crate::seat::Seat;
use crate::upkeep::{UPKEEP_TIME, attend, tidy_idle};

/// A heartbeat is sent three times in a lease, so that one that is late costs nothing.
const BEATS_PER_LEASE: u32 = 3;
/// Heartbeats are at least this far apart.
const INTERVAL_MIN: Duration = Duration::from_millis(20);
/// The wait when nothing is due.
const IDLE: Duration = Duration::from_secs(3600);
/// A session without calls for so many heartbeats, ten leases, gives back what it does not use.
const IDLE_BEATS: u32 = 10 * BEATS_PER_LEASE;

/// A session that is kept up.
#[derive(Debug)]
struct Patient {
    control: Weak<Control>,
    seat: Weak<Seat>,
    /// Between two heartbeats.
    interval: Duration,
    /// When the next one is sent.
    due: Instant,
    awaiting: Option<Awaiting>,
    /// Heartbeats since the last call.
    idle_beats: u32,
    /// Memory that is not used is looked for when the link is to be had.
    is_to_be_tidied: bool,
    /// Verbs did not get through: none before that.
    not_before: Instant,
}

/// An errand whose answer is not there.
#[derive(Debug)]
struct Awaiting {
    until: Instant,
    /// The audit that was asked about.
    audit: u64,
}

#[derive(Debug)]
struct Shared {
    /// Those that the thread doesn't know yet.
    newcomers: Mutex<Vec<Patient>>,
    bell: Arc<Bell>,
    is_over: AtomicBool,
}

/// The thread's owner. Dropping it ends the thread.
#[derive(Debug)]
pub(crate) struct Pacemaker {
    shared: Arc<Shared>,
}

impl Pacemaker {
    /// Starts the thread.
    pub(crate) fn start() -> std::io::Result<Self> {
        let bell = Arc::new(Bell::new()?);
        let shared = Arc::new(Shared { newcomers: Mutex::default(), bell, is_over: AtomicBool::new(false) });
        let theirs = Arc::clone(&shared);
        thread::Builder::new().name("sidestep-pacemaker".into()).spawn(move || run(&theirs))?;
        Ok(Self { shared })
    }

    /// Keeps up the session that has that channel, and its link in that seat, as long as both live and the channel holds.
    pub(crate) fn watch(&self, control: &Arc<Control>, seat: &Arc<Seat>, lease: Duration) {
        let interval = (lease / BEATS_PER_LEASE).max(INTERVAL_MIN);
        let now = Instant::now();
        control.wake_with(&self.shared.bell);
        let patient = Patient {
            control: Arc::downgrade(control),
            seat: Arc::downgrade(seat),
            interval,
            due: now + interval,
            awaiting: None,
            idle_beats: 0,
            is_to_be_tidied: false,
            not_before: now,
        };
        self.shared.newcomers.lock().unwrap_or_else(PoisonError::into_inner).push(patient);
        self.shared.bell.ring();
    }
}

impl Drop for Pacemaker {
    fn drop(&mut self) {
        // Pairs with nothing: the thread looks after each ring.
        self.shared.is_over.store(true, Ordering::Relaxed);
        self.shared.bell.ring();
    }
}

fn run(shared: &Shared) {
    let mut patients: Vec<Patient> = Vec::new();
    loop {
        patients.append(&mut shared.newcomers.lock().unwrap_or_else(PoisonError::into_inner));
        let mut controls = Vec::with_capacity(patients.len());
        patients.retain(|patient| match patient.control.upgrade().filter(|control| !control.is_lost()) {
            Some(control) => {
                controls.push(control);
                true
            }
            None => false,
        });
        let readable = wait(shared, &patients, &controls);
        if shared.is_over.load(Ordering::Relaxed) {
            return;
        }
        for ((patient, control), is_readable) in patients.iter_mut().zip(&controls).zip(readable) {
            patient.hear(control, is_readable);
            patient.send(control);
            if let Some(seat) = patient.seat.upgrade() {
                patient.take_care(control, &seat);
            }
            patient.send(control);
        }
    }
}

/// Waits until there is something to do; says which channels have something to be read.
fn wait(shared: &Shared, patients: &[Patient], controls: &[Arc<Control>]) -> Vec<bool> {
    let now = Instant::now();
    let mut next = now + IDLE;
    let mut fds = vec![PollFd::from_borrowed_fd(shared.bell.as_fd(), PollFlags::IN)];
    let mut places = Vec::with_capacity(controls.len());
    for (patient, control) in patients.iter().zip(controls) {
        // What comes while a call waits for its answer is that call's to read. It rings when it has done so; until then
        // nothing can be sent either.
        let is_ours = patient.awaiting.is_some() || !control.is_busy();
        places.push(is_ours.then_some(fds.len()));
        if is_ours {
            next = next.min(patient.awaiting.as_ref().map_or(patient.due, |awaiting| awaiting.until));
            fds.push(PollFd::from_borrowed_fd(control.as_fd(), PollFlags::IN));
        }
    }
    let left = next.saturating_duration_since(now);
    // A little more, so that what is due is due then.
    let left = Timespec::try_from(left + Duration::from_micros(100)).ok();
    let _ = poll(&mut fds, left.as_ref());
    shared.bell.hush();
    places.into_iter().map(|place| place.is_some_and(|at| !fds[at].revents().is_empty())).collect()
}

impl Patient {
    /// Reads what is there.
    fn hear(&mut self, control: &Control, is_readable: bool) {
        if self.awaiting.is_none() {
            if is_readable {
                control.listen();
            }
            return;
        }
        if is_readable && let Some(response) = control.go_on() {
            let audit = self.awaiting.take().map_or(0, |awaiting| awaiting.audit);
            if let Response::Audited(chunks) = response {
                control.news.hear_audit(audit, chunks);
            }
        }
        if control.is_lost() {
            self.awaiting = None;
        } else if self.awaiting.as_ref().is_some_and(|awaiting| awaiting.until <= Instant::now()) {
            self.awaiting = None;
            control.give_up();
        }
    }

    /// Sends what is due, if nothing is under way.
    fn send(&mut self, control: &Control) {
        let now = Instant::now();
        if self.awaiting.is_some() || control.is_lost() {
            return;
        }
        let is_due = self.due <= now;
        let Some(errand) = control.next_errand(is_due) else { return };
        let audit = match &errand {
            Errand::Request(Request::Audit { number, .. }) => *number,
            _ => 0,
        };
        let is_heartbeat = matches!(errand, Errand::Heartbeat);
        if !control.begin(errand) {
            return;
        }
        if is_heartbeat {
            self.due = now + self.interval;
        }
        if is_due {
            let was_used = self.seat.upgrade().is_some_and(|seat| seat.was_used());
            self.idle_beats = if was_used { 0 } else { self.idle_beats.saturating_add(1) };
            self.is_to_be_tidied = self.idle_beats >= IDLE_BEATS;
        }
        self.awaiting = Some(Awaiting { until: now + self.interval * BEATS_PER_LEASE, audit });
    }

    /// Does what the session owes, if no call has its link; otherwise the next call does.
    fn take_care(&mut self, control: &Control, seat: &Seat) {
        let now = Instant::now();
        if now < self.not_before || !control.news.are_there() && !self.is_to_be_tidied {
            return;
        }
        let Some(mut link) = seat.try_take() else { return };
        let mut is_done = std::ptr::eq(&raw const *link.member.control, control);
        if is_done {
            let deadline = Deadline::after(UPKEEP_TIME);
            is_done = attend(&mut link, deadline);
            if is_done && std::mem::take(&mut self.is_to_be_tidied) {
                is_done = tidy_idle(&mut link, deadline);
            }
        }
        seat.put(Some(link));
        if !is_done {
            self.not_before = now + self.interval;
        }
    }
}

#[cfg(test)]
mod tests {
    use sidestep_common::wire::{Pulse, Request, read_frame, write_frame};

    use super::*;
    use crate::testing::{LONG, channel_to_peer};

    const LEASE: Duration = Duration::from_millis(300);

    /// Many sessions, and one whose server has stopped: the others' heartbeats go on in time, and are answered in any order.
    /// When its lease is over the one is lost, and nobody else.
    #[test]
    fn one_slow_server_holds_up_nobody() {
        let pacemaker = Pacemaker::start().unwrap();
        let channels: Vec<_> = (0..8)
            .map(|number| {
                let (control, peer) = channel_to_peer();
                control.begin_in(number + 1);
                let (control, seat) = (Arc::new(control), Arc::new(Seat::default()));
                pacemaker.watch(&control, &seat, LEASE);
                (control, seat, peer)
            })
            .collect();
        let began = Instant::now();
        std::thread::scope(|scope| {
            for (number, (control, _, peer)) in channels.iter().enumerate().skip(1) {
                scope.spawn(move || {
                    let mut peer = peer;
                    for _ in 0..6 {
                        let request: Request = read_frame(&mut peer).unwrap();
                        let expected = Request::Heartbeat { epoch: number as u64 + 1, wants_epoch: false };
                        assert_eq!(request, expected);
                        write_frame(&mut peer, &Response::Heartbeat(Pulse::default())).unwrap();
                    }
                    // Two leases, if each is on time; a busy machine may take longer, but no lease ran out.
                    assert!(!control.is_lost(), "session {number}");
                });
            }
        });
        while !channels[0].0.is_lost() {
            assert!(began.elapsed() < LONG, "nobody answered it");
            std::thread::yield_now();
        }
        assert!(began.elapsed() >= LEASE);
        let ended = Instant::now();
        drop(channels);
        drop(pacemaker);
        assert!(ended.elapsed() < LONG);
    }

    /// What the server says unasked is heard without waiting for a heartbeat, and what is to be acknowledged goes out at once.
    #[test]
    fn notices_and_acknowledgements_do_not_wait() {
        let pacemaker = Pacemaker::start().unwrap();
        let (control, mut peer) = channel_to_peer();
        control.begin_in(1);
        let (control, seat) = (Arc::new(control), Arc::new(Seat::default()));
        pacemaker.watch(&control, &seat, 1000 * LONG);
        write_frame(&mut peer, &Response::Notice(Pulse { epoch: 2, ..Pulse::default() })).unwrap();
        let began = Instant::now();
        while !control.news.are_there() {
            assert!(began.elapsed() < LONG);
            std::thread::yield_now();
        }
        // Whoever has the session's link acts upon it.
        control.acknowledge(2);
        control.ring();
        let request: Request = read_frame(&mut peer).unwrap();
        assert_eq!(request, Request::Heartbeat { epoch: 2, wants_epoch: false });
        // A call's own request goes on as soon as that is answered.
        let answering = std::thread::spawn(move || {
            write_frame(&mut peer, &Response::Heartbeat(Pulse::default())).unwrap();
            assert_eq!(read_frame::<Request>(&mut peer).unwrap(), Request::Statistics);
            write_frame(&mut peer, &Response::ChunksReturned).unwrap();
            peer
        });
        control.request(&Request::Statistics, Deadline::after(LONG)).unwrap();
        drop(answering.join().unwrap());
        // The peer is gone: that is noticed without a heartbeat.
        while !control.is_lost() {
            assert!(began.elapsed() < LONG);
            std::thread::yield_now();
        }
    }
}
