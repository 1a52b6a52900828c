//! The control channel: one connection a session, for what is rare.
//!
//! Always true: one request is under way at a time, and its response is read before the next is sent. Nobody waits
//! beyond its own deadline, neither for the peer nor for its turn. After any failure (also a deadline that passed
//! with a response outstanding) the channel is lost for good: its bytes could be out of step. What the server says
//! unasked is kept as news, whoever reads it. Heartbeats acknowledge the newest epoch that may be acknowledged when they
//! are sent, so never an older one than before.

mod bell;
mod news;
mod stream;

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd};
#[cfg(feature = "fuzzing")]
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use sidestep_common::fabric::Effect;
use sidestep_common::wire::{
    Preamble, PreambleKind, RefusalCode, Request, Response, WireError, read_frame, write_frame,
};

pub(crate) use bell::Bell;
pub(crate) use news::{HeardPulse, News};
use stream::{Stream, Timed, connect_tcp, connect_unix};

use crate::clock::{Deadline, now_ms};
use crate::endpoint::{Endpoint, Place};
use crate::error::{Error, io_reason};

/// A frame that has begun to come, or to go, is through by then.
const FRAME_TIME: Duration = Duration::from_secs(1);

/// The control channel of one session.
#[derive(Debug)]
pub(crate) struct Control {
    endpoint: String,
    peer: Option<IpAddr>,
    stream: Stream,
    /// A request is under way.
    is_busy: Mutex<bool>,
    /// Told when none is any more.
    back: Condvar,
    lost: AtomicBool,
    /// What the server said and nobody has acted upon.
    pub(crate) news: News,
    /// The newest epoch that may be acknowledged, and the newest that was.
    acknowledged: AtomicU64,
    told: AtomicU64,
    /// Whether an epoch is wished for, and whether the last heartbeat said so.
    wants_epoch: AtomicBool,
    told_wish: AtomicBool,
    /// Requests whose answers nobody waits for.
    outbox: Mutex<VecDeque<Request>>,
    /// Wakes whoever sends those.
    bell: OnceLock<Arc<Bell>>,
    /// When the heartbeat under way was sent.
    asked_ms: AtomicU64,
}

impl Control {
    /// Connects and exchanges preambles.
    pub(crate) fn open(endpoint: &Endpoint, deadline: Deadline) -> Result<Self, Error> {
        let name = endpoint.to_string();
        let unreachable =
            |error: io::Error| Error::Unreachable { endpoint: name.clone(), reason: io_reason(&error) };
        let (stream, peer) = match &endpoint.place {
            Place::Unix(path) => (Stream::Unix(connect_unix(path, deadline).map_err(unreachable)?), None),
            Place::Tcp(host, port) => {
                let stream = connect_tcp(host, *port, deadline).map_err(unreachable)?;
                let peer = stream.peer_addr().map_err(unreachable)?.ip();
                (Stream::Tcp(stream), Some(peer))
            }
        };
        Self::greet(name, stream, peer, deadline)
    }

    /// Over a Unix socket that somebody else connected.
    #[cfg(feature = "fuzzing")]
    pub(crate) fn over(stream: UnixStream, deadline: Deadline) -> Result<Self, Error> {
        Self::greet("unix:fuzzing".into(), Stream::Unix(stream), None, deadline)
    }

    /// Exchanges preambles.
    fn greet(
        endpoint: String,
        stream: Stream,
        peer: Option<IpAddr>,
        deadline: Deadline,
    ) -> Result<Self, Error> {
        let unreachable =
            |error: io::Error| Error::Unreachable { endpoint: endpoint.clone(), reason: io_reason(&error) };
        let mut timed = Timed { stream: &stream, deadline };
        timed.write_all(&Preamble(PreambleKind::Control).encode()).map_err(unreachable)?;
        let mut bytes = [0; Preamble::BYTES];
        timed.read_exact(&mut bytes).map_err(unreachable)?;
        Preamble::parse(bytes).map_err(|error| Error::from_wire(&endpoint, error))?;
        Ok(Self {
            endpoint,
            peer,
            stream,
            is_busy: Mutex::new(false),
            back: Condvar::new(),
            lost: AtomicBool::new(false),
            news: News::default(),
            acknowledged: AtomicU64::new(0),
            told: AtomicU64::new(0),
            wants_epoch: AtomicBool::new(false),
            told_wish: AtomicBool::new(false),
            outbox: Mutex::default(),
            bell: OnceLock::new(),
            asked_ms: AtomicU64::new(0),
        })
    }

    /// The server's address; none over a Unix socket.
    pub(crate) const fn peer(&self) -> Option<IpAddr> {
        self.peer
    }

    /// Whether the channel has failed.
    pub(crate) fn is_lost(&self) -> bool {
        // Pairs with nothing: a late answer only delays the reconnect to the next call.
        self.lost.load(Ordering::Relaxed)
    }

    fn lose(&self) {
        self.lost.store(true, Ordering::Relaxed);
    }

    /// `bell` is rung when there is something to send, and when the channel is free again.
    pub(crate) fn wake_with(&self, bell: &Arc<Bell>) {
        let _ = self.bell.set(Arc::clone(bell));
    }

    /// Wakes whoever sends what nobody waits for.
    pub(crate) fn ring(&self) {
        if let Some(bell) = self.bell.get() {
            bell.ring();
        }
    }

    /// The newest epoch that may be acknowledged.
    pub(crate) fn acknowledged(&self) -> u64 {
        // Pairs with nothing, here and below: an epoch is a number that only grows, and what it stands for is done by verbs.
        self.acknowledged.load(Ordering::Relaxed)
    }

    /// An epoch may be acknowledged from now on.
    pub(crate) fn acknowledge(&self, epoch: u64) {
        self.acknowledged.fetch_max(epoch, Ordering::Relaxed);
    }

    /// The session's first epoch, which the server knows it to have acknowledged.
    pub(crate) fn begin_in(&self, epoch: u64) {
        self.acknowledge(epoch);
        self.told.fetch_max(epoch, Ordering::Relaxed);
    }

    /// Whether heartbeats ask for an epoch. A new wish does not wait for the next one; a wish that was told is told again with
    /// each heartbeat, so there are no more of them on its account than epochs.
    pub(crate) fn set_wants_epoch(&self, wants: bool) {
        // Pairs with nothing, here and below: who sees it late tells it with the next heartbeat.
        self.wants_epoch.store(wants, Ordering::Relaxed);
    }

    /// Whether there is a wish that the server has not heard.
    pub(crate) fn has_wish(&self) -> bool {
        self.wants_epoch.load(Ordering::Relaxed) && !self.told_wish.load(Ordering::Relaxed)
    }

    /// Whether a heartbeat has something to say.
    fn has_to_beat(&self) -> bool {
        self.told.load(Ordering::Relaxed) < self.acknowledged() || self.has_wish()
    }

    /// A request that is sent when there is time; nobody waits for its answer.
    pub(crate) fn send_later(&self, request: Request) {
        self.outbox.lock().unwrap_or_else(PoisonError::into_inner).push_back(request);
    }

    /// The next request that nobody waits for: a heartbeat if it is due, or an epoch is to be acknowledged or wished for.
    pub(crate) fn next_errand(&self, heartbeat_is_due: bool) -> Option<Errand> {
        if heartbeat_is_due || self.has_to_beat() {
            return Some(Errand::Heartbeat);
        }
        self.outbox.lock().unwrap_or_else(PoisonError::into_inner).pop_front().map(Errand::Request)
    }

    /// Whether there is anything to send.
    pub(crate) fn has_errands(&self) -> bool {
        self.has_to_beat() || !self.outbox.lock().unwrap_or_else(PoisonError::into_inner).is_empty()
    }

    /// A heartbeat's message. The channel is this caller's, so epochs go out in their order.
    fn heartbeat_message(&self) -> Request {
        let epoch = self.acknowledged();
        self.told.fetch_max(epoch, Ordering::Relaxed);
        self.asked_ms.store(now_ms(), Ordering::Relaxed);
        let wants_epoch = self.wants_epoch.load(Ordering::Relaxed);
        self.told_wish.store(wants_epoch, Ordering::Relaxed);
        Request::Heartbeat { epoch, wants_epoch }
    }

    /// Sends a heartbeat and reads its answer, which is news as well.
    pub(crate) fn heartbeat(&self, deadline: Deadline) -> Result<(), Error> {
        match self.exchange(&mut || self.heartbeat_message(), deadline)? {
            Response::Heartbeat(pulse) => {
                self.news.hear(pulse, Some(self.asked_ms.load(Ordering::Relaxed)));
                self.ring();
                Ok(())
            }
            other => Err(crate::link::unexpected(&self.endpoint, &other)),
        }
    }

    /// Sends a request and reads its response. A [`Response::Refused`] comes back as an error.
    pub(crate) fn request(&self, request: &Request, deadline: Deadline) -> Result<Response, Error> {
        self.exchange(&mut || request.clone(), deadline)
    }

    fn exchange(&self, request: &mut dyn FnMut() -> Request, deadline: Deadline) -> Result<Response, Error> {
        let turn = self.turn(deadline)?;
        if self.is_lost() {
            let reason = "the control connection was lost".to_owned();
            return Err(Error::Unreachable { endpoint: self.endpoint.clone(), reason });
        }
        let timed = &mut Timed { stream: &self.stream, deadline };
        let exchanged = write_frame(timed, &request()).and_then(|()| {
            loop {
                if let Some(response) = self.read_response(timed)? {
                    return Ok(response);
                }
            }
        });
        self.judge(&exchanged);
        drop(turn);
        match exchanged {
            Ok(Response::Refused(refusal)) => Err(Error::from_refusal(&self.endpoint, refusal)),
            Ok(response) => Ok(response),
            Err(error) => Err(Error::from_wire(&self.endpoint, error)),
        }
    }

    /// Reads a frame: a response, or what was said unasked.
    fn read_response(&self, timed: &mut Timed<'_>) -> Result<Option<Response>, WireError> {
        match read_frame(timed)? {
            Response::Notice(pulse) => {
                self.news.hear(pulse, None);
                Ok(None)
            }
            response => Ok(Some(response)),
        }
    }

    /// After a failure the channel is lost, and so it is once the session was fenced: only a new one can go on.
    fn judge(&self, exchanged: &Result<Response, WireError>) {
        match exchanged {
            Ok(Response::Refused(refusal)) if refusal.code == RefusalCode::Fenced => self.lose(),
            Ok(_) => {}
            Err(_) => self.lose(),
        }
    }

    /// Waits until no other request is under way, and takes the channel if there is time left to use it: a request
    /// that can't even be sent is no reason to lose it.
    fn turn(&self, deadline: Deadline) -> Result<Turn<'_>, Error> {
        let is_busy = self.lock();
        let waited = self.back.wait_timeout_while(is_busy, deadline.left(), |is_busy| *is_busy);
        let mut is_busy = waited.unwrap_or_else(PoisonError::into_inner).0;
        if *is_busy || deadline.has_passed() {
            return Err(Error::Timeout {
                endpoint: self.endpoint.clone(),
                after_ms: deadline.whole_ms(),
                doing: "waiting for the control connection",
                effect: Effect::No,
            });
        }
        *is_busy = true;
        Ok(Turn(self))
    }

    fn try_turn(&self) -> Option<Turn<'_>> {
        let mut is_busy = self.lock();
        // Not made in vain: its end would free the channel.
        (!std::mem::replace(&mut *is_busy, true)).then(|| Turn(self))
    }

    fn lock(&self) -> MutexGuard<'_, bool> {
        self.is_busy.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a request is under way.
    pub(crate) fn is_busy(&self) -> bool {
        *self.lock()
    }

    /// Begins an errand, if the channel is free: its answer is for [`Control::go_on`]. `false` if it is not free; then the
    /// errand is kept.
    pub(crate) fn begin(&self, errand: Errand) -> bool {
        let Some(turn) = self.try_turn().filter(|_| !self.is_lost()) else {
            if let Errand::Request(request) = errand {
                self.outbox.lock().unwrap_or_else(PoisonError::into_inner).push_front(request);
            }
            return false;
        };
        let request = match errand {
            Errand::Heartbeat => self.heartbeat_message(),
            Errand::Request(request) => request,
        };
        let timed = &mut Timed { stream: &self.stream, deadline: Deadline::after(FRAME_TIME) };
        if write_frame(timed, &request).is_err() {
            self.lose();
            return false;
        }
        // The channel stays taken until the answer is there.
        std::mem::forget(turn);
        true
    }

    /// Something came while an errand is under way. The errand's answer, if it is that; after it the channel is free again.
    pub(crate) fn go_on(&self) -> Option<Response> {
        let timed = &mut Timed { stream: &self.stream, deadline: Deadline::after(FRAME_TIME) };
        let response = self.read_response(timed);
        match response {
            Ok(None) => return None,
            Ok(Some(Response::Heartbeat(ref pulse))) => {
                self.news.hear(pulse.clone(), Some(self.asked_ms.load(Ordering::Relaxed)));
            }
            _ => {}
        }
        let exchanged = response.map(|response| response.unwrap_or(Response::Goodbye));
        self.judge(&exchanged);
        drop(Turn(self));
        exchanged.ok()
    }

    /// The errand under way has been for too long: the channel is lost.
    pub(crate) fn give_up(&self) {
        self.lose();
        drop(Turn(self));
    }

    /// Something may have come while no request was under way: what was said unasked, or the connection's end.
    pub(crate) fn listen(&self) {
        let Some(turn) = self.try_turn() else { return };
        if self.is_lost() || !self.stream.is_readable() {
            return;
        }
        let timed = &mut Timed { stream: &self.stream, deadline: Deadline::after(FRAME_TIME) };
        if !matches!(self.read_response(timed), Ok(None)) {
            self.lose();
        }
        drop(turn);
    }
}

impl AsFd for Control {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

/// What is sent without anybody waiting for it.
#[derive(Debug)]
pub(crate) enum Errand {
    Heartbeat,
    Request(Request),
}

/// The right to use the channel. Dropping it gives the channel back.
struct Turn<'a>(&'a Control);

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        *self.0.lock() = false;
        // All: one of those that wait may have no time left, and would wake nobody else.
        self.0.back.notify_all();
        self.0.ring();
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;
    use std::sync::mpsc::channel;
    use std::time::Instant;

    use sidestep_common::wire::{DirectoryChanges, DirectoryRun, Pulse};

    use super::*;
    use crate::testing::{LONG, channel_to_peer};

    const SHORT: Duration = Duration::from_millis(100);
    /// A heartbeat waits for a server that has stopped. Another request, with a deadline of its own, does not wait
    /// for the heartbeat's.
    #[test]
    fn a_request_does_not_outwait_its_deadline_for_another() {
        let (control, mut peer) = channel_to_peer();
        std::thread::scope(|scope| {
            let beat = scope.spawn(|| {
                control.request(&Request::Heartbeat { epoch: 1, wants_epoch: false }, Deadline::after(LONG))
            });
            peer.read_exact(&mut [0; 6]).unwrap();
            let began = Instant::now();
            let error = control.request(&Request::Statistics, Deadline::after(SHORT)).unwrap_err();
            assert!(began.elapsed() < LONG / 2, "{:?}: {error}", began.elapsed());
            assert!(!control.is_lost(), "nothing is wrong with the channel");
            write_frame(&mut peer, &Response::Heartbeat(Pulse::default())).unwrap();
            beat.join().unwrap().unwrap();
        });
    }

    /// No time is left to ask: nothing was sent, so nothing is lost.
    #[test]
    fn a_request_without_time_does_no_harm() {
        let (control, mut peer) = channel_to_peer();
        let error = control.request(&Request::Statistics, Deadline::after(Duration::ZERO)).unwrap_err();
        assert!(matches!(error, Error::Timeout { effect: Effect::No, .. }), "{error}");
        assert!(!control.is_lost());
        write_frame(&mut peer, &Response::Heartbeat(Pulse::default())).unwrap();
        control.request(&Request::Heartbeat { epoch: 1, wants_epoch: false }, Deadline::after(LONG)).unwrap();
    }

    /// What the server says unasked, before an answer or while nobody asks, is no answer; the newest is kept.
    #[test]
    fn notices_are_kept() {
        let (control, mut peer) = channel_to_peer();
        let notice = |epoch| {
            let changes = DirectoryChanges::Runs(vec![DirectoryRun { first: 3, count: 1 }]);
            Response::Notice(Pulse { epoch, changes, ..Pulse::default() })
        };
        write_frame(&mut peer, &notice(2)).unwrap();
        write_frame(&mut peer, &notice(3)).unwrap();
        write_frame(&mut peer, &Response::ChunksReturned).unwrap();
        let answer = control.request(&Request::ReturnChunks(Vec::new()), Deadline::after(LONG)).unwrap();
        assert_eq!(answer, Response::ChunksReturned);
        let heard = control.news.take().pulse.unwrap();
        assert_eq!((heard.pulse.epoch, heard.asked_ms), (3, None));
        assert!(!control.news.are_there());
        write_frame(&mut peer, &notice(4)).unwrap();
        while !control.stream.is_readable() {
            std::thread::yield_now();
        }
        control.listen();
        control.news.put_back(heard);
        assert_eq!(control.news.take().pulse.unwrap().pulse.epoch, 4, "an older one is not put back over it");
        write_frame(&mut peer, &Response::ChunksReturned).unwrap();
        while !control.stream.is_readable() {
            std::thread::yield_now();
        }
        control.listen();
        assert!(control.is_lost(), "an answer to what nobody asked");
    }

    /// A heartbeat acknowledges the newest epoch that may be, and never an older one; who acknowledges another one is heard
    /// without being due.
    #[test]
    fn heartbeats_acknowledge_what_may_be() {
        let (control, mut peer) = channel_to_peer();
        let mut next = |errand: Option<Errand>| {
            assert!(control.begin(errand.unwrap()));
            assert!(!control.begin(Errand::Heartbeat), "one at a time");
            let request: Request = read_frame(&mut peer).unwrap();
            write_frame(&mut peer, &Response::Heartbeat(Pulse::default())).unwrap();
            while control.go_on().is_none() {}
            request
        };
        control.begin_in(5);
        assert!(control.next_errand(false).is_none());
        let beat = next(control.next_errand(true));
        assert_eq!(beat, Request::Heartbeat { epoch: 5, wants_epoch: false });
        control.acknowledge(7);
        control.acknowledge(6);
        control.set_wants_epoch(true);
        let beat = next(control.next_errand(false));
        assert_eq!(beat, Request::Heartbeat { epoch: 7, wants_epoch: true });
        assert!(control.next_errand(false).is_none());
        // A new wish goes out at once, and only once.
        control.set_wants_epoch(false);
        next(control.next_errand(true));
        control.set_wants_epoch(true);
        assert!(control.has_errands());
        let wish = next(control.next_errand(false));
        assert_eq!(wish, Request::Heartbeat { epoch: 7, wants_epoch: true });
        assert!(control.next_errand(false).is_none());
        assert!(control.news.take().pulse.unwrap().asked_ms.is_some());
        control.send_later(Request::Statistics);
        assert!(control.has_errands());
        assert_eq!(next(control.next_errand(false)), Request::Statistics);
    }

    /// A peer that sends a byte now and then keeps nobody beyond the deadline.
    #[test]
    fn a_trickle_is_no_answer() {
        let (control, mut peer) = channel_to_peer();
        let (stop, stopped) = channel::<()>();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                peer.write_all(&1000_u32.to_le_bytes()).unwrap();
                while stopped.recv_timeout(SHORT / 5).is_err() && peer.write_all(&[0]).is_ok() {}
            });
            let began = Instant::now();
            control.request(&Request::Statistics, Deadline::after(SHORT)).unwrap_err();
            assert!(began.elapsed() < SHORT * 30, "{:?}", began.elapsed());
            stop.send(()).unwrap();
        });
        assert!(control.is_lost());
    }

    /// A server that was stopped accepts nobody; when its queue is full, connecting would wait for ever.
    #[test]
    fn a_full_queue_costs_the_deadline() {
        let path = std::env::temp_dir().join(format!("sidestep-control-{}.sock", std::process::id()));
        let listener = UnixListener::bind(&path).unwrap();
        rustix::net::listen(&listener, 0).unwrap();
        let endpoint: Endpoint = format!("unix:{}", path.display()).parse().unwrap();
        let (tell, told) = channel();
        std::thread::spawn(move || {
            for _ in 0..3 {
                let _ = tell.send(Control::open(&endpoint, Deadline::after(SHORT)).is_err());
            }
        });
        for _ in 0..3 {
            assert_eq!(told.recv_timeout(LONG), Ok(true));
        }
        drop(listener);
        std::fs::remove_file(path).unwrap();
    }
}
