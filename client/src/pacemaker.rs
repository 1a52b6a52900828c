//! Heartbeats: a thread that renews the leases of a client's sessions.
//!
//! Always true: a session whose heartbeat failed is marked lost and reconnects at its next call; each is sent when
//! its own is due, however often others come and go; the thread never outlives its owner by more than one heartbeat.

use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread;
use std::time::{Duration, Instant};

use sidestep_common::wire::Request;

use crate::clock::Deadline;
use crate::control::Control;

/// A heartbeat is sent three times in a lease, so that one that is late costs nothing.
const BEATS_PER_LEASE: u32 = 3;
/// Heartbeats are at least this far apart.
const INTERVAL_MIN: Duration = Duration::from_millis(20);

/// The wait when nothing is due.
const IDLE: Duration = Duration::from_secs(3600);

/// A channel whose lease is kept up.
#[derive(Debug)]
struct Patient {
    control: Weak<Control>,
    /// Between two heartbeats.
    interval: Duration,
    /// When the next one is sent.
    due: Instant,
    /// The one that the session started in, acknowledged again with each heartbeat; never an older one.
    epoch: u64,
}

#[derive(Default, Debug)]
struct Shared {
    patients: Mutex<Vec<Patient>>,
}

/// The thread's owner. Dropping it ends the thread.
#[derive(Debug)]
pub(crate) struct Pacemaker {
    shared: Arc<Shared>,
    wake: Sender<()>,
}

impl Pacemaker {
    /// Starts the thread.
    pub(crate) fn start() -> std::io::Result<Self> {
        let shared = Arc::new(Shared::default());
        let (wake, woken) = channel();
        let theirs = Arc::clone(&shared);
        thread::Builder::new().name("sidestep-lease".into()).spawn(move || run(&theirs, &woken))?;
        Ok(Self { shared, wake })
    }

    /// Keeps `control`'s lease up for as long as somebody holds it, in the epoch that the session started in.
    pub(crate) fn watch(&self, control: &Arc<Control>, lease: Duration, epoch: u64) {
        let interval = (lease / BEATS_PER_LEASE).max(INTERVAL_MIN);
        let due = Instant::now() + interval;
        let patient = Patient { control: Arc::downgrade(control), interval, due, epoch };
        self.shared.patients.lock().unwrap_or_else(PoisonError::into_inner).push(patient);
        // The thread may be in a long wait for a slower lease. It can't have ended: it ends with `wake`.
        let _ = self.wake.send(());
    }
}

fn run(shared: &Shared, woken: &Receiver<()>) {
    let mut wait = IDLE;
    loop {
        match woken.recv_timeout(wait) {
            Err(RecvTimeoutError::Disconnected) => return,
            Ok(()) | Err(RecvTimeoutError::Timeout) => {}
        }
        wait = beat(shared);
    }
}

/// Sends the heartbeats that are due; says how long none will be.
fn beat(shared: &Shared) -> Duration {
    let now = Instant::now();
    let mut next = now + IDLE;
    let mut due: Vec<(Arc<Control>, Duration, u64)> = Vec::new();
    shared.patients.lock().unwrap_or_else(PoisonError::into_inner).retain_mut(|patient| {
        let Some(control) = patient.control.upgrade().filter(|control| !control.is_lost()) else {
            return false;
        };
        if patient.due <= now {
            patient.due = now + patient.interval;
            due.push((control, patient.interval, patient.epoch));
        }
        next = next.min(patient.due);
        true
    });
    for (control, interval, epoch) in due {
        // Epochs are acknowledged by the thread that posts verbs; they begin with index rebuilds. Until then
        // there is only the one that the session started in.
        // A failure marks the channel lost, which is all that is to be done here.
        let _ = control.request(
            &Request::Heartbeat { epoch, wants_epoch: false },
            Deadline::after(interval * BEATS_PER_LEASE),
        );
    }
    next.saturating_duration_since(Instant::now())
}
