//! A session that works, and writes down what it does.
//!
//! Always true: a call is in the log before it is made, and its return after it was seen; so whatever the process does to
//! the store, it is known to have begun, and it lies between the two times that the log says (see [`super`]).

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use sidestep_client::{Effect, Error, Session};
use sidestep_common::wire::RefusalCode;

use super::dice::Dice;
use super::keys::Keys;
use super::log::{Log, now_ns};
use super::orders::Orders;
use super::record::{Ask, Ending, Entry, Record};
use super::value::{NotWhole, Number, read_value};

/// Of a thousand calls, how many are about a fresh key.
const FRESH_PER_MILLE: u64 = 200;
/// And how many are gets, or puts; the rest are deletes.
const GETS_PER_MILLE: u64 = 450;
const PUTS_PER_MILLE: u64 = 400;

/// Something that must not happen.
#[derive(Debug, thiserror::Error)]
pub enum Alarm {
    /// A get returned what nobody put there.
    #[error("a get of {key} returned no whole value of it: {found}")]
    NotWhole {
        /// The key.
        key: String,
        /// What it returned.
        found: NotWhole,
    },
    /// An error that has no place here.
    #[error("{ask:?} of {key} failed: {source}")]
    Forbidden {
        /// What was asked.
        ask: Ask,
        /// Of which key.
        key: String,
        /// The error.
        source: Error,
    },
    /// The log.
    #[error("the log can't be written: {0}")]
    Log(#[from] std::io::Error),
}

/// A session with its log.
#[derive(Debug)]
pub struct Worker {
    session: Session,
    log: Log,
    keys: Keys,
    client: u16,
    number: u8,
    strict: bool,
    puts: u32,
    value: Vec<u8>,
}

impl Worker {
    /// For the session `number` of the client process that has `orders`.
    ///
    /// # Errors
    /// If the log can't be made.
    pub fn new(session: Session, number: u8, orders: &Orders) -> Result<Self, Alarm> {
        let log = Log::create(&orders.log(number).path)?;
        let (keys, client, strict) = (orders.keys.clone(), orders.client, orders.strict);
        Ok(Self { session, log, keys, client, number, strict, puts: 0, value: Vec::new() })
    }

    /// Makes random calls, until it has made those it was ordered or is told to `stop`.
    ///
    /// # Errors
    /// [`Alarm`] for what must not happen.
    pub fn work(&mut self, orders: &Orders, stop: &AtomicBool) -> Result<(), Alarm> {
        let mut dice = Dice::new(orders.seed ^ u64::from(orders.client) << 32 ^ u64::from(self.number));
        let mut calls = 0;
        let mut may_haste = true;
        while !stop.load(Ordering::Relaxed) && (orders.calls == 0 || calls < orders.calls) {
            let key = if dice.chance(FRESH_PER_MILLE) {
                self.keys.fresh((now_ns() - orders.began_ns) / (orders.fresh_us * 1000).max(1))
            } else {
                // Low numbers, the twins among them, twice as often as high ones.
                let hot = u64::from(self.keys.hot_count());
                dice.below(hot).min(dice.below(hot)) as u16
            };
            let ask = match dice.below(1000) {
                0..GETS_PER_MILLE => Ask::Get,
                share if share < GETS_PER_MILLE + PUTS_PER_MILLE => Ask::Put(self.next_number(key)),
                _ => Ask::Delete,
            };
            let hasty = dice.chance(orders.hasty_per_mille);
            let haste = Duration::from_micros(dice.below(orders.haste_us));
            // Where the server is gone, hasty calls would only say so, as fast as they can.
            let timeout = if hasty && may_haste { haste } else { orders.patience() };
            may_haste = self.call(ask, key, timeout)? != Ending::Nothing;
            calls += 1;
        }
        Ok(())
    }

    /// Makes one call.
    ///
    /// # Errors
    /// [`Alarm`] for what must not happen.
    pub fn call(&mut self, ask: Ask, key: u16, timeout: Duration) -> Result<Ending, Alarm> {
        if let Ask::Put(number) = ask {
            number.write_value(&mut self.value);
        }
        self.session.set_timeout(timeout);
        self.write(key, Entry::Invoked(ask))?;
        let result = self.perform(ask, key);
        // The time is taken before anything else is done: what the call took and no more.
        let returned = now_ns();
        let ending = match result {
            Ok(ending) => ending?,
            Err(error) => match fate(&error) {
                Some(ending) if !self.strict => ending,
                _ => return Err(Alarm::Forbidden { ask, key: self.keys.describe(key), source: error }),
            },
        };
        self.write_at(returned, key, Entry::Returned(ending))?;
        Ok(ending)
    }

    fn perform(&mut self, ask: Ask, key: u16) -> Result<Result<Ending, Alarm>, Error> {
        let name = self.keys.name(key);
        match ask {
            Ask::Get if self.session.get_into(&name, &mut self.value)? => {
                let found = read_value(&self.value, key);
                let alarm = |found| Alarm::NotWhole { key: self.keys.describe(key), found };
                Ok(found.map(Ending::Found).map_err(alarm))
            }
            Ask::Get => Ok(Ok(Ending::Absent)),
            Ask::Put(_) => self.session.put(&name, &self.value).map(|()| Ok(Ending::Stored)),
            Ask::Delete => {
                let existed = self.session.delete(&name)?;
                Ok(Ok(if existed { Ending::Existed } else { Ending::NotThere }))
            }
        }
    }

    fn write(&mut self, key: u16, entry: Entry) -> Result<(), Alarm> {
        self.write_at(now_ns(), key, entry)
    }

    fn write_at(&mut self, time: u64, key: u16, entry: Entry) -> Result<(), Alarm> {
        let incarnation = self.session.incarnation();
        Ok(self.log.append(&Record { time, incarnation, key, entry })?)
    }

    fn next_number(&mut self, key: u16) -> Number {
        self.puts += 1;
        Number::new(self.client, self.number, self.puts, key)
    }
}

/// How a call ended that gave this error; `None` if the error must not happen, whatever happened to server or connection.
fn fate(error: &Error) -> Option<Ending> {
    match (error.effect(), error) {
        (Effect::Unknown, _) => Some(Ending::Unknown),
        // What happened is no error.
        (Effect::Yes, _) => None,
        (Effect::No, Error::Refused { refusal, .. }) => {
            let passing = [RefusalCode::SessionLimit, RefusalCode::Draining, RefusalCode::Fenced];
            passing.contains(&refusal.code).then_some(Ending::Nothing)
        }
        // Unreachable, timed out, failed, not joined.
        (Effect::No, error) => error.is_unreachable().then_some(Ending::Nothing),
    }
}
