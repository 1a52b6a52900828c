//! The workers of the load and the run phase.
//!
//! Always true: a load inserts each key number of its range once; a run reads only keys whose insert was
//! acknowledged, and makes a key that it inserts readable only when the store has confirmed it.

use std::ops::Range;

use super::operation::{OperationChooser, OperationKind};
use super::plan::Plan;
use super::record::Records;
use crate::generator::acknowledged::InsertedKeys;
use crate::generator::choose::KeyChooser;
use crate::measure::tally::Outcome;
use crate::measure::touched::Touched;
use crate::random::RandomStream;
use crate::runner::Worker;
use crate::store::{Store, StoreError};

/// Inserts a range of keys.
#[derive(Debug)]
pub struct LoadWorker {
    records: Records,
    random: RandomStream,
    numbers: Range<u64>,
    key: Vec<u8>,
    value: Vec<u8>,
}

impl LoadWorker {
    /// For these key numbers.
    pub fn new(records: Records, random: RandomStream, numbers: Range<u64>) -> Self {
        Self { records, random, numbers, key: Vec::new(), value: Vec::new() }
    }
}

impl Worker for LoadWorker {
    fn prepare(&mut self) -> Option<OperationKind> {
        let number = self.numbers.next()?;
        self.records.key(number, &mut self.key);
        self.records.value(&self.key, &mut self.random, &mut self.value);
        Some(OperationKind::Insert)
    }

    fn execute(&mut self, store: &mut dyn Store) -> Result<Outcome, StoreError> {
        store.put(&self.key, &self.value).map(|()| Outcome::Success)
    }

    fn settle(&mut self, result: Result<Outcome, StoreError>) -> Result<Outcome, String> {
        result.map_err(|error| error.to_string())
    }
}

/// What the run workers of all threads share.
#[derive(Debug)]
pub struct Shared {
    /// Which keys may be read.
    pub keys: InsertedKeys,
    /// Which keys were asked for.
    pub touched: Touched,
}

/// Mixes operations as a workload says.
#[derive(Debug)]
pub struct RunWorker<'a> {
    operations: OperationChooser,
    chooser: KeyChooser,
    records: Records,
    shared: &'a Shared,
    verify: bool,
    random: RandomStream,
    kind: OperationKind,
    number: u64,
    key: Vec<u8>,
    value: Vec<u8>,
    found: Vec<u8>,
}

impl<'a> RunWorker<'a> {
    /// With its own clone of the plan; `verify` checks what is read.
    pub fn new(plan: Plan, shared: &'a Shared, random: RandomStream, verify: bool) -> Self {
        Self {
            operations: plan.operations,
            chooser: plan.keys,
            records: plan.records,
            shared,
            verify,
            random,
            kind: OperationKind::Read,
            number: 0,
            key: Vec::new(),
            value: Vec::new(),
            found: Vec::new(),
        }
    }
}

impl Worker for RunWorker<'_> {
    fn prepare(&mut self) -> Option<OperationKind> {
        self.kind = self.operations.next(&mut self.random);
        self.number = match self.kind {
            OperationKind::Insert => self.shared.keys.take(),
            _ => self.chooser.next(&mut self.random, &self.shared.keys),
        };
        self.shared.touched.mark(self.number);
        self.records.key(self.number, &mut self.key);
        if self.kind != OperationKind::Read {
            self.records.value(&self.key, &mut self.random, &mut self.value);
        }
        Some(self.kind)
    }

    fn execute(&mut self, store: &mut dyn Store) -> Result<Outcome, StoreError> {
        let mut outcome = Outcome::Success;
        if matches!(self.kind, OperationKind::Read | OperationKind::ReadModifyWrite)
            && !store.get(&self.key, &mut self.found)?
        {
            outcome = Outcome::Miss;
        }
        if self.kind != OperationKind::Read {
            store.put(&self.key, &self.value)?;
        }
        Ok(outcome)
    }

    fn settle(&mut self, result: Result<Outcome, StoreError>) -> Result<Outcome, String> {
        if self.kind == OperationKind::Insert {
            match &result {
                Ok(_) => self.shared.keys.acknowledge(self.number),
                Err(_) => self.shared.keys.abandon(self.number),
            }
        }
        let outcome = result.map_err(|error| error.to_string())?;
        let has_read = matches!(self.kind, OperationKind::Read | OperationKind::ReadModifyWrite);
        if self.verify
            && has_read
            && outcome == Outcome::Success
            && !self.records.is_intact(&self.key, &self.found)
        {
            return Err(format!(
                "wrong value under key {}: {} bytes that were never written there",
                self.key.escape_ascii(),
                self.found.len()
            ));
        }
        Ok(outcome)
    }
}
