//! One thread's connection to a memory node.
//!
//! Always true: a session is driven by one thread at a time; it has one queue pair, its own buffers and its own
//! block memory, so nothing is shared on the path of an operation. After a failure it joins again by itself at
//! the next call (waiting longer each time), with the same session and chunks if the server still knows them,
//! else as a new session that has forgotten everything.

mod inspect;

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::time::Duration;

use sidestep_common::fabric::{Effect, FabricKind, Reply};
use sidestep_common::layout::{KEY_BYTES_MAX, SUPERBLOCK_BYTES, Superblock, VALUE_BYTES_MAX};
use sidestep_common::wire::{Request, Response, ReturnedChunk, ServerStatistics, Welcome};

use crate::allocator::Give;
use crate::bootstrap::ReadPiece;
use crate::clock::Deadline;
use crate::control::Control;
use crate::driver::{Finished, Stop};
use crate::error::Error;
use crate::link::{Joiner, Link, Shared, may_pass, unexpected};
use crate::operation::change::{Change, Changed};
use crate::operation::get::{Found, Get};
use crate::operation::outcome::{Verdict, effect_of_timeout, verdict};
use crate::operation::resolve::Resolve;
use crate::operation::{Operation, PendingCas};
use crate::statistics::{Ending, Kind, SharedCounters, Statistics, Tally};
use crate::trace::Trace;

/// One thread's connection to a memory node. Not shared: see [`crate::Client`] for that.
#[derive(Debug)]
pub struct Session {
    joiner: Joiner,
    timeout: Duration,
}

impl Session {
    pub(crate) fn open(shared: Arc<Shared>, counters: SharedCounters) -> Result<Self, Error> {
        let timeout = shared.settings.operation_timeout;
        Ok(Self { joiner: Joiner::open(shared, counters)?, timeout })
    }

    /// The time that each call has from now on.
    pub fn set_timeout(&mut self, timeout: Duration) {
        self.timeout = timeout;
    }

    /// The value of `key`, or `None` if there is none.
    ///
    /// # Errors
    /// [`Error`]; see there.
    pub fn get(&mut self, key: &[u8]) -> Result<Option<Vec<u8>>, Error> {
        self.get_with(key, <[u8]>::to_vec)
    }

    /// Puts the value of `key` into `value`, replacing what is in there; `false` if there is none (then `value`
    /// is empty).
    ///
    /// # Errors
    /// [`Error`]; see there.
    pub fn get_into(&mut self, key: &[u8], value: &mut Vec<u8>) -> Result<bool, Error> {
        value.clear();
        let found = self.get_with(key, |bytes| value.extend_from_slice(bytes))?;
        Ok(found.is_some())
    }

    /// Calls `read` with the value of `key`, where the fabric put it; `None` if there is none.
    ///
    /// # Errors
    /// [`Error`]; see there.
    pub fn get_with<T>(&mut self, key: &[u8], read: impl FnOnce(&[u8]) -> T) -> Result<Option<T>, Error> {
        check_key(key)?;
        let mut read = Some(read);
        let mut value = None;
        // A panic of the caller's code must not take the connection with it.
        let mut call = |bytes: &[u8]| read.take().map(|read| catch_unwind(AssertUnwindSafe(|| read(bytes))));
        self.perform(Kind::Get, Deadline::after(self.timeout), &mut |session, link, deadline| {
            let mut operation = [Get::new(key, link.member.ground.view.superblock.hash_seed)];
            session.run(Kind::Get, link, &mut operation, deadline, |finished: Finished<'_, Option<Found>>| {
                Ok(match finished.result? {
                    None => Ending::Miss,
                    Some(found) => {
                        let bytes = found_value(&found, finished.replies);
                        value = call(bytes);
                        Ending::Hit
                    }
                })
            })
        })?;
        Ok(value.map(|read| read.unwrap_or_else(|panic| resume_unwind(panic))))
    }

    /// The values of `keys`, in their order, with the round trips of one get.
    ///
    /// # Errors
    /// The first [`Error`] of any of them; see there.
    pub fn get_many<K: AsRef<[u8]>>(&mut self, keys: &[K]) -> Result<Vec<Option<Vec<u8>>>, Error> {
        for key in keys {
            check_key(key.as_ref())?;
        }
        let mut values: Vec<Option<Vec<u8>>> = vec![None; keys.len()];
        let deadline = Deadline::after(self.timeout);
        let mut from = 0;
        while from < keys.len() {
            let mut until = from;
            self.perform(Kind::Get, deadline, &mut |session, link, deadline| {
                until = keys.len().min(from + link.driver.width());
                let seed = link.member.ground.view.superblock.hash_seed;
                let mut operations: Vec<Get<'_>> =
                    keys[from..until].iter().map(|key| Get::new(key.as_ref(), seed)).collect();
                let values = &mut values[from..until];
                session.run(Kind::Get, link, &mut operations, deadline, |finished| {
                    let found = finished.result?;
                    values[finished.index] =
                        found.map(|found| found_value(&found, finished.replies).to_vec());
                    Ok(if values[finished.index].is_some() { Ending::Hit } else { Ending::Miss })
                })
            })?;
            from = until;
        }
        Ok(values)
    }

    /// Stores `value` at `key`, whatever was there. Says nothing of what was there, and so needs not know.
    ///
    /// # Errors
    /// [`Error`]; [`Error::effect`] says whether it may have happened.
    pub fn put(&mut self, key: &[u8], value: &[u8]) -> Result<(), Error> {
        check_key(key)?;
        self.check_write()?;
        if value.len() > VALUE_BYTES_MAX {
            return Err(Error::ValueLength { bytes: value.len(), limit_bytes: VALUE_BYTES_MAX });
        }
        self.perform(Kind::Put, Deadline::after(self.timeout), &mut |session, link, deadline| {
            if value.len() > link.member.value_bytes_max {
                let limit_bytes = link.member.value_bytes_max;
                return Err(Stop::Error(Error::ValueLength { bytes: value.len(), limit_bytes }));
            }
            let seed = link.member.ground.view.superblock.hash_seed;
            let Some(operation) = Change::put(key, value, seed) else { unreachable!("lengths were checked") };
            session.run(Kind::Put, link, &mut [operation], deadline, |finished: Finished<'_, Changed>| {
                finished.result.map(|_| Ending::Hit)
            })
        })
    }

    /// Removes `key`; says whether it was there.
    ///
    /// # Errors
    /// [`Error`]; [`Error::effect`] says whether it may have happened.
    pub fn delete(&mut self, key: &[u8]) -> Result<bool, Error> {
        check_key(key)?;
        self.check_write()?;
        let mut existed = true;
        self.perform(Kind::Delete, Deadline::after(self.timeout), &mut |session, link, deadline| {
            let seed = link.member.ground.view.superblock.hash_seed;
            let Some(operation) = Change::delete(key, seed) else { unreachable!("the length was checked") };
            session.run(Kind::Delete, link, &mut [operation], deadline, |finished: Finished<'_, Changed>| {
                existed = finished.result? == Changed::Deleted;
                Ok(if existed { Ending::Hit } else { Ending::Miss })
            })
        })?;
        Ok(existed)
    }

    /// Runs `call` on this session and writes down every verb of it.
    ///
    /// # Errors
    /// Those of `call`; the trace comes in either case.
    pub fn explain<T>(
        &mut self,
        call: impl FnOnce(&mut Self) -> Result<T, Error>,
    ) -> (Result<T, Error>, Trace) {
        let deadline = Deadline::after(self.timeout);
        if let Err(error) = self.joiner.with(deadline, |link| link.driver.start_trace()) {
            return (Err(error), Trace::default());
        }
        let result = call(self);
        let tracer = self.joiner.peek(Deadline::after(self.timeout), |link| link.driver.take_trace());
        (result, tracer.flatten().map(|tracer| tracer.finish()).unwrap_or_default())
    }

    /// Asks the server to answer on the control channel; how long that took.
    ///
    /// # Errors
    /// [`Error`] if it does not.
    pub fn ping(&mut self) -> Result<Duration, Error> {
        let deadline = Deadline::after(self.timeout);
        let control = self.control(deadline)?;
        let began = std::time::Instant::now();
        control.heartbeat(deadline)?;
        Ok(began.elapsed())
    }

    /// One READ of the first `bytes` (at most 4096) of the region over the data path: what a round trip of this
    /// connection costs, to compare operations with.
    ///
    /// # Errors
    /// [`Error`] if it fails.
    pub fn probe(&mut self, bytes: usize) -> Result<(), Error> {
        let bytes = bytes.clamp(1, SUPERBLOCK_BYTES as usize);
        let deadline = Deadline::after(self.timeout);
        let mut link = self.joiner.take(deadline)?;
        let mut result = Ok(());
        link.driver.run(&mut link.member.ground, &mut [ReadPiece::probe(bytes)], deadline, |finished| {
            result = finished.result;
        });
        let kind = link.driver.fabric().kind();
        self.joiner.put(link);
        result.map_err(|stop| match stop {
            Stop::Error(error) => error,
            Stop::Timeout(_) => self.timed_out(deadline, "waiting for a READ", Effect::No),
            Stop::Failed(failure, _, effect) => {
                Error::Failed { endpoint: self.joiner.shared.endpoint.to_string(), kind, failure, effect }
            }
        })
    }

    /// The server's figures.
    ///
    /// # Errors
    /// [`Error`] if it gives none.
    pub fn server_statistics(&mut self) -> Result<ServerStatistics, Error> {
        let deadline = Deadline::after(self.timeout);
        match self.control(deadline)?.request(&Request::Statistics, deadline)? {
            Response::Statistics(statistics) => Ok(*statistics),
            other => Err(self.unexpected(&other)),
        }
    }

    /// What this session did.
    pub fn statistics(&self) -> Statistics {
        self.joiner.counters.snapshot()
    }

    /// Over which fabric, with a line for people.
    ///
    /// # Errors
    /// [`Error`] if the session can't be joined.
    pub fn fabric(&mut self) -> Result<(FabricKind, String), Error> {
        self.joiner.with(Deadline::after(self.timeout), |link| {
            (link.driver.fabric().kind(), link.driver.fabric().describe())
        })
    }

    /// What the server said when the session was opened.
    ///
    /// # Errors
    /// [`Error`] if the session can't be joined.
    pub fn welcome(&mut self) -> Result<&Welcome, Error> {
        self.joiner.with(Deadline::after(self.timeout), |_| ())?;
        match self.joiner.welcome() {
            Some(welcome) => Ok(welcome),
            None => unreachable!("a session that is joined was welcomed"),
        }
    }

    /// The region's superblock.
    ///
    /// # Errors
    /// [`Error`] if the session can't be joined.
    pub fn superblock(&mut self) -> Result<Superblock, Error> {
        self.joiner.with(Deadline::after(self.timeout), |link| link.member.ground.view.superblock)
    }

    /// Which life of the region this session worked on last: a random number, another one whenever a server has begun with
    /// an empty region. `None` while the session is not joined. Asks nobody.
    ///
    /// If it is the same before and after a call, the call was made in that life.
    pub fn incarnation(&self) -> Option<u64> {
        self.joiner.identity().map(|identity| identity.incarnation)
    }

    /// Ends the session cleanly: unused block memory goes back to the server.
    pub fn close(mut self) {
        self.say_goodbye();
    }

    fn say_goodbye(&mut self) {
        let deadline = Deadline::after(self.timeout.min(Duration::from_secs(1)));
        let Some((driver, mut member)) = self.joiner.leave(deadline) else { return };
        // Whether the marks of the last freed blocks have certainly executed. If not, the session ends without a word: then
        // the server looks for what was not marked.
        let is_clean = match driver {
            Some(mut driver) if !driver.is_broken() && driver.ends_silently() => {
                // A verb behind them completes after them.
                let mut probed = false;
                driver.run(&mut member.ground, &mut [ReadPiece::probe(8)], deadline, |finished| {
                    probed = finished.result.is_ok();
                });
                probed
            }
            Some(driver) => !driver.is_broken(),
            None => false,
        };
        if !is_clean && self.joiner.shared.settings.rights.can_write() {
            return;
        }
        // The server takes chunks of a session whose verbs are all done; the fabric was dropped, which sees to that.
        // What fails here only leaves the memory to the server's own clean-up.
        if member.control.is_lost() {
            return;
        }
        loop {
            let part = member.ground.allocator.take_returns(Give::All, ReturnedChunk::COUNT_MAX);
            if part.is_empty() {
                break;
            }
            if member.control.request(&Request::ReturnChunks(part), deadline).is_err() {
                return;
            }
        }
        let _ = member.control.request(&Request::Goodbye, deadline);
    }

    fn control(&mut self, deadline: Deadline) -> Result<Arc<Control>, Error> {
        self.joiner.with(deadline, |link| Arc::clone(&link.member.control))
    }

    fn check_write(&self) -> Result<(), Error> {
        if self.joiner.shared.settings.rights.can_write() { Ok(()) } else { Err(Error::ReadOnly) }
    }

    fn unexpected(&self, response: &Response) -> Error {
        unexpected(&self.joiner.shared.endpoint.to_string(), response)
    }

    /// Performs a call or a part of one, by `deadline`: joins if need be, and tries again after a failure that is known
    /// to have changed nothing.
    fn perform(
        &mut self,
        kind: Kind,
        deadline: Deadline,
        attempt: &mut dyn FnMut(&mut Self, &mut Link, Deadline) -> Result<(), Stop>,
    ) -> Result<(), Error> {
        let result = self.try_until(kind, deadline, attempt);
        if result.is_err() {
            self.joiner.counters.count(kind, Ending::Error, Tally::default(), 0);
        }
        result
    }

    fn try_until(
        &mut self,
        kind: Kind,
        deadline: Deadline,
        attempt: &mut dyn FnMut(&mut Self, &mut Link, Deadline) -> Result<(), Stop>,
    ) -> Result<(), Error> {
        loop {
            let mut link = self.joiner.take(deadline)?;
            let result = attempt(self, &mut link, deadline);
            let (kind_name, lost_control) = (link.driver.fabric().kind(), link.member.control.is_lost());
            self.joiner.put(link);
            let (failure, cas, effect) = match result {
                Ok(()) => {
                    self.joiner.settle();
                    return Ok(());
                }
                // The server ended the session, or is gone: that shows when memory is asked for, before any verb.
                Err(Stop::Error(error)) if may_pass(&error) && lost_control && !deadline.has_passed() => {
                    continue;
                }
                Err(Stop::Error(error)) => return Err(error),
                Err(Stop::Timeout(cas)) => {
                    let effect = effect_of_timeout(cas);
                    return Err(self.timed_out(deadline, "waiting for the memory node", effect));
                }
                Err(Stop::Failed(failure, cas, effect)) => (failure, cas, effect),
            };
            let effect = match cas.filter(|_| effect == Effect::Unknown) {
                Some(cas) => self.resolve(cas, deadline),
                None => effect,
            };
            match verdict(effect, &failure) {
                Verdict::Succeeded => {
                    self.joiner.counters.count(kind, Ending::Hit, Tally::default(), 0);
                    return Ok(());
                }
                Verdict::Again if !deadline.has_passed() => {}
                Verdict::Again | Verdict::Failed(_) => {
                    let endpoint = self.joiner.shared.endpoint.to_string();
                    return Err(Error::Failed { endpoint, kind: kind_name, failure, effect });
                }
            }
        }
    }

    /// Runs operations of one kind on the link and counts them.
    fn run<O: Operation>(
        &self,
        kind: Kind,
        link: &mut Link,
        operations: &mut [O],
        deadline: Deadline,
        mut finish: impl FnMut(Finished<'_, O::Output>) -> Result<Ending, Stop>,
    ) -> Result<(), Stop> {
        let mut first_error = None;
        link.driver.run(&mut link.member.ground, operations, deadline, |finished| {
            let (tally, restarts) = (finished.tally, finished.restarts);
            let ending = finish(finished).unwrap_or_else(|stop| {
                first_error.get_or_insert(stop);
                Ending::Open
            });
            self.joiner.counters.count(kind, ending, tally, restarts);
        });
        first_error.map_or(Ok(()), Err)
    }

    /// What became of a CAS whose completion was lost: fence the old queue pair, then read the slot.
    fn resolve(&mut self, cas: PendingCas, deadline: Deadline) -> Effect {
        let identity = self.joiner.identity();
        let Ok(mut link) = self.joiner.take(deadline) else { return Effect::Unknown };
        let mut effect = Effect::Unknown;
        // Another session, or another life of the server: the old one's fate can't be read from this region.
        if self.joiner.identity() == identity {
            link.driver.run(&mut link.member.ground, &mut [Resolve::new(cas)], deadline, |finished| {
                effect = finished.result.unwrap_or(Effect::Unknown);
            });
        }
        self.joiner.put(link);
        effect
    }

    fn timed_out(&self, deadline: Deadline, doing: &'static str, effect: Effect) -> Error {
        Error::Timeout {
            endpoint: self.joiner.shared.endpoint.to_string(),
            after_ms: deadline.whole_ms(),
            doing,
            effect,
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.say_goodbye();
    }
}

fn check_key(key: &[u8]) -> Result<(), Error> {
    if key.is_empty() || key.len() > KEY_BYTES_MAX {
        return Err(Error::KeyLength { bytes: key.len() });
    }
    Ok(())
}

fn found_value<'r>(found: &Found, replies: &'r [Reply]) -> &'r [u8] {
    match &replies[found.reply] {
        Reply::Read(buffer) => &buffer.as_slice()[found.value.clone()],
        other => unreachable!("a value is in a READ's buffer, not in {other:?}"),
    }
}
