//! A session as the cases use it.
//!
//! Always true: completions are taken in the order posted, each belongs to the batch that is next, and one that does
//! not come within [`DEADLINE`] is a failure of the case.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use sidestep_common::fabric::{
    Batch, BatchId, Buffer, Completion, Fabric, Failure, FailureKind, PostError, Replies, Reply, Verb,
};
use sidestep_common::layout::Offset;

/// Long enough for an emulated processor whose host is busy.
pub const DEADLINE: Duration = Duration::from_secs(60);

/// A WRITE of one piece.
pub fn write(remote: u64, from: &[u8]) -> Verb<'_> {
    Verb::Write { remote: Offset(remote), from: [from, &[], &[]] }
}

/// A compare-and-swap.
pub fn swap(remote: u64, expected: u64, desired: u64) -> Verb<'static> {
    Verb::CompareSwap { remote: Offset(remote), expected, desired }
}

/// A fetch-and-add.
pub fn add(remote: u64, add: u64) -> Verb<'static> {
    Verb::FetchAdd { remote: Offset(remote), add }
}

/// The word that a READ of eight bytes brought.
pub fn read_word(reply: &Reply) -> u64 {
    match reply {
        Reply::Read(buffer) => u64::from_le_bytes(buffer.as_slice().try_into().expect("eight bytes")),
        other => panic!("not a READ's reply: {other:?}"),
    }
}

/// A fabric, with what was posted and not yet taken.
pub struct Driver {
    fabric: Box<dyn Fabric>,
    posted: VecDeque<BatchId>,
    completed: VecDeque<Completion>,
    polled: Vec<Completion>,
    next_id: u64,
}

impl Driver {
    /// Drives `fabric`.
    pub fn new(fabric: Box<dyn Fabric>) -> Self {
        // Ids begin somewhere, so that a fabric that invents its own is found out.
        let next_id = 0xdead_0000_0000;
        Self { fabric, posted: VecDeque::new(), completed: VecDeque::new(), polled: Vec::new(), next_id }
    }

    /// The fabric itself.
    pub fn fabric(&mut self) -> &mut dyn Fabric {
        &mut *self.fabric
    }

    /// Verbs that may be in flight at once.
    pub fn depth(&self) -> usize {
        self.fabric.limits().verbs_in_flight_max
    }

    /// A READ into a buffer of this session.
    pub fn read(&mut self, remote: u64, bytes: usize) -> Verb<'static> {
        let mut into = self.buffer(bytes);
        into.as_mut_slice().fill(0x77);
        Verb::Read { remote: Offset(remote), into }
    }

    /// A buffer of this session.
    pub fn buffer(&mut self, bytes: usize) -> Buffer {
        self.fabric.buffers().take(bytes).expect("a buffer")
    }

    /// Gives the buffers of replies back.
    pub fn recycle(&mut self, replies: Replies) {
        for reply in replies {
            if let Reply::Read(buffer) = reply {
                self.fabric.buffers().recycle(buffer);
            }
        }
    }

    /// Posts one call of several batches; each is its verbs and whether it is silent.
    pub fn try_post_all(&mut self, batches: Vec<(Vec<Verb<'_>>, bool)>) -> Result<(), PostError> {
        let first_id = self.next_id;
        let mut batches: Vec<Batch<'_>> = (first_id..)
            .zip(batches)
            .map(|(id, (verbs, silent))| Batch { id: BatchId(id), verbs: verbs.into(), silent })
            .collect();
        let counts: Vec<usize> = batches.iter().map(|batch| batch.verbs.len()).collect();
        let result = self.fabric.post(&mut batches);
        for (batch, count) in batches.iter().zip(counts) {
            let left = if result.is_ok() { 0 } else { count };
            assert_eq!(batch.verbs.len(), left, "post takes all verbs or leaves them: {result:?}");
        }
        result?;
        self.next_id += batches.len() as u64;
        self.posted.extend(batches.iter().filter(|batch| !batch.silent).map(|batch| batch.id));
        Ok(())
    }

    /// Posts one batch.
    pub fn try_post(&mut self, verbs: Vec<Verb<'_>>) -> Result<(), PostError> {
        self.try_post_all(vec![(verbs, false)])
    }

    /// Posts one batch that fits.
    pub fn post(&mut self, verbs: Vec<Verb<'_>>) {
        self.try_post(verbs).expect("room for a batch");
    }

    /// Posts one silent batch; makes room by polling if it must.
    pub fn post_silent<'a>(&mut self, mut verbs: impl FnMut() -> Vec<Verb<'a>>) {
        let deadline = Instant::now() + DEADLINE;
        loop {
            match self.try_post_all(vec![(verbs(), true)]) {
                Ok(()) => return,
                Err(PostError::Full { .. }) => self.poll_once(deadline),
                Err(error) => panic!("{error}"),
            }
        }
    }

    /// Batches posted whose ends were not taken by [`Driver::take_next`].
    pub fn outstanding(&self) -> usize {
        self.posted.len()
    }

    /// Takes completions that are there, and waits a little if none is.
    pub fn poll_once(&mut self, deadline: Instant) {
        if self.fabric.poll(&mut self.polled) == 0 {
            assert!(Instant::now() < deadline, "no completion within {DEADLINE:?}, {:?} posted", self.posted);
            self.fabric.wait(Duration::from_millis(20));
            self.fabric.poll(&mut self.polled);
        }
        self.completed.extend(self.polled.drain(..));
    }

    /// The end of the oldest batch.
    pub fn take_next(&mut self) -> Result<Replies, Failure> {
        let expected = self.posted.front().copied().expect("a batch in flight");
        let deadline = Instant::now() + DEADLINE;
        while self.completed.is_empty() {
            self.poll_once(deadline);
        }
        let completion = self.completed.pop_front().expect("just seen");
        assert_eq!(completion.batch, expected, "completions come in the order posted");
        self.posted.pop_front();
        completion.result
    }

    /// Posts one batch and takes its end; nothing else is in flight.
    pub fn try_run(&mut self, verbs: Vec<Verb<'_>>) -> Result<Replies, Failure> {
        assert_eq!(self.outstanding(), 0);
        self.post(verbs);
        self.take_next()
    }

    /// Posts one batch that succeeds, and gives its replies.
    pub fn run(&mut self, verbs: Vec<Verb<'_>>) -> Replies {
        let count = verbs.len();
        let replies = self.try_run(verbs).expect("a batch that succeeds");
        assert_eq!(replies.len(), count, "one reply a verb");
        replies
    }

    /// One atomic; gives the old word.
    pub fn atomic(&mut self, verb: Verb<'_>) -> u64 {
        match self.run(vec![verb])[..] {
            [Reply::Old(old)] => old,
            ref other => panic!("not an atomic's reply: {other:?}"),
        }
    }

    /// One READ; gives the bytes.
    pub fn fetch(&mut self, remote: u64, bytes: usize) -> Vec<u8> {
        let verb = self.read(remote, bytes);
        let replies = self.run(vec![verb]);
        let fetched = match &replies[..] {
            [Reply::Read(buffer)] => buffer.as_slice().to_vec(),
            other => panic!("not a READ's reply: {other:?}"),
        };
        self.recycle(replies);
        fetched
    }

    /// One WRITE.
    pub fn store(&mut self, remote: u64, from: &[u8]) {
        self.run(vec![write(remote, from)]);
    }

    /// From now on every post is refused. (A fabric may learn of its end only by and by.)
    pub fn assert_broken(&mut self) {
        let deadline = Instant::now() + DEADLINE;
        loop {
            let verb = self.read(0, 8);
            match self.try_post(vec![verb]) {
                Err(PostError::Broken(reason)) => {
                    assert!(!reason.is_empty());
                    return;
                }
                Err(PostError::Full { .. }) => self.poll_once(deadline),
                Err(other) => panic!("{other}"),
                Ok(()) => {
                    let failure = self.take_next().expect_err("nothing succeeds behind a failure");
                    assert!(is_end(&failure.kind), "{failure}");
                }
            }
            assert!(Instant::now() < deadline, "the connection never ended");
        }
    }
}

/// Whether the failure is that of a batch behind the one that failed.
pub(super) fn is_end(kind: &FailureKind) -> bool {
    matches!(kind, FailureKind::Flushed | FailureKind::Disconnected(_))
}
