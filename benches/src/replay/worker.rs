//! Does the requests of a trace.
//!
//! Always true: each operation of the trace is one measured operation, and each write that a miss causes is one
//! more, of the kind *insert*: so the trace's own operations are all that are not inserts.

use std::sync::mpsc::Receiver;

use super::trace::{Action, Request};
use crate::measure::tally::Outcome;
use crate::runner::Worker;
use crate::store::{Store, StoreError};
use crate::workload::operation::OperationKind;
use crate::workload::record::{expected_value, is_expected_value};

/// One thread's part of a replay.
#[derive(Debug)]
pub struct ReplayWorker {
    queue: Receiver<Vec<Request>>,
    batch: std::vec::IntoIter<Request>,
    current: Option<Request>,
    remaining: u32,
    fill_bytes: Option<u32>,
    kind: OperationKind,
    verify: bool,
    value: Vec<u8>,
    found: Vec<u8>,
}

impl ReplayWorker {
    /// Takes its requests from `queue`; `verify` checks what is read.
    pub fn new(queue: Receiver<Vec<Request>>, verify: bool) -> Self {
        Self {
            queue,
            batch: Vec::new().into_iter(),
            current: None,
            remaining: 0,
            fill_bytes: None,
            kind: OperationKind::Read,
            verify,
            value: Vec::new(),
            found: Vec::new(),
        }
    }

    /// Takes the next request that has something to do.
    fn advance(&mut self) -> Option<()> {
        while self.remaining == 0 {
            match self.batch.next() {
                Some(request) => {
                    self.remaining = request.repeat;
                    self.current = Some(request);
                }
                None => self.batch = self.queue.recv().ok()?.into_iter(),
            }
        }
        self.remaining -= 1;
        Some(())
    }
}

impl Worker for ReplayWorker {
    fn prepare(&mut self) -> Option<OperationKind> {
        let bytes = if let Some(bytes) = self.fill_bytes {
            self.kind = OperationKind::Insert;
            Some(bytes)
        } else {
            self.advance()?;
            let (kind, bytes) = match self.current.as_ref()?.action {
                Action::Get { .. } => (OperationKind::Read, None),
                Action::Put { bytes } => (OperationKind::Update, Some(bytes)),
                Action::PutIf { bytes, .. } => (OperationKind::ReadModifyWrite, Some(bytes)),
                Action::Delete => (OperationKind::Delete, None),
            };
            self.kind = kind;
            bytes
        };
        if let (Some(bytes), Some(request)) = (bytes, &self.current) {
            expected_value(&request.key, bytes as usize, &mut self.value);
        }
        Some(self.kind)
    }

    fn execute(&mut self, store: &mut dyn Store) -> Result<Outcome, StoreError> {
        let request = self.current.as_ref().expect("prepare has chosen a request");
        let found = |found| if found { Outcome::Success } else { Outcome::Miss };
        if self.fill_bytes.is_some() {
            return store.put(&request.key, &self.value).map(|()| Outcome::Success);
        }
        match request.action {
            Action::Get { .. } => store.get(&request.key, &mut self.found).map(found),
            Action::Put { .. } => store.put(&request.key, &self.value).map(|()| Outcome::Success),
            Action::PutIf { present, .. } => {
                let is_there = store.get(&request.key, &mut self.found)?;
                if is_there == present {
                    store.put(&request.key, &self.value)?;
                }
                Ok(found(is_there))
            }
            Action::Delete => store.delete(&request.key).map(found),
        }
    }

    fn settle(&mut self, result: Result<Outcome, StoreError>) -> Result<Outcome, String> {
        let was_fill = self.fill_bytes.take().is_some();
        let outcome = result.map_err(|error| error.to_string())?;
        let Some(request) = &self.current else { return Ok(outcome) };
        if let (Action::Get { fill_bytes }, Outcome::Miss, false) = (request.action, outcome, was_fill) {
            self.fill_bytes = fill_bytes;
        }
        let has_read = matches!(self.kind, OperationKind::Read | OperationKind::ReadModifyWrite);
        if self.verify
            && has_read
            && outcome == Outcome::Success
            && !is_expected_value(&request.key, &self.found)
        {
            return Err(format!(
                "wrong value under key {}: {} bytes that were never written there",
                request.key.escape_ascii(),
                self.found.len()
            ));
        }
        Ok(outcome)
    }
}

#[cfg(test)]
mod tests;
