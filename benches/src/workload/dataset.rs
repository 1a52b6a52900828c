//! A note that the load phase leaves in the store, for the run phase to find.
//!
//! Always true: its key begins with a zero byte, so no workload's key is like it; its value is JSON with a
//! format number; a note of an unknown format is an error, not a guess.
//!
//! Why: a run that does not repeat the load's `recordcount` would silently read a small part of the data only.

use serde::{Deserialize, Serialize};

use super::settings::{RECORD_COUNT_MAX, Settings};
use crate::store::{Store, StoreError};

/// Where the note lies.
pub const DATASET_KEY: &[u8] = b"\0sidestep:kvbench:dataset";

/// The format that is written and read.
const FORMAT: u32 = 1;

/// What was loaded.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Dataset {
    format: u32,
    /// Records of the whole data set.
    pub record_count: u64,
    /// Fields of a record.
    pub field_count: u64,
    /// Largest length of a field.
    pub field_bytes: u64,
    /// Whether key numbers were hashed.
    pub is_hashed: bool,
    /// Zeros put before numbers.
    pub zero_padding: u64,
    /// Whether values follow from keys.
    pub data_integrity: bool,
}

/// Why the note cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum DatasetError {
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// There is something else in its place.
    #[error("the store's data set note cannot be read: {0}")]
    Malformed(String),
}

impl Dataset {
    /// What a load with these settings leaves.
    pub fn new(settings: &Settings) -> Self {
        Self {
            format: FORMAT,
            record_count: settings.record_count,
            field_count: settings.field_count,
            field_bytes: settings.field_bytes,
            is_hashed: settings.is_hashed,
            zero_padding: settings.zero_padding,
            data_integrity: settings.data_integrity,
        }
    }

    /// Leaves the note.
    pub fn write(&self, store: &mut dyn Store) -> Result<(), StoreError> {
        store.put(DATASET_KEY, &serde_json::to_vec(self).expect("numbers and flags are JSON"))
    }

    /// Finds the note, if there is one.
    pub fn read(store: &mut dyn Store) -> Result<Option<Self>, DatasetError> {
        let mut value = Vec::new();
        if !store.get(DATASET_KEY, &mut value)? {
            return Ok(None);
        }
        let dataset: Self =
            serde_json::from_slice(&value).map_err(|error| DatasetError::Malformed(error.to_string()))?;
        if dataset.format != FORMAT {
            let reason = format!("format {}, where this program knows {FORMAT}", dataset.format);
            return Err(DatasetError::Malformed(reason));
        }
        if !(1..=RECORD_COUNT_MAX).contains(&dataset.record_count) {
            return Err(DatasetError::Malformed(format!("record_count {}", dataset.record_count)));
        }
        Ok(Some(dataset))
    }

    /// Fits a run's settings to the data set. `record_count_given` says that the command line named a record
    /// count, which then stays. Returns what the user should know.
    pub fn reconcile(
        &self,
        settings: &mut Settings,
        record_count_given: bool,
    ) -> Result<Vec<String>, String> {
        let mut notes = Vec::new();
        if settings.record_count != self.record_count {
            let (asked, loaded) = (settings.record_count, self.record_count);
            if record_count_given {
                notes.push(format!("recordcount={asked} as asked, although {loaded} records were loaded"));
            } else {
                notes.push(format!(
                    "recordcount={loaded}, taken from the store (the workload file says {asked})"
                ));
                // A part chosen by insertstart and insertcount stays as it is if it still fits.
                let was_whole = settings.insert_start + settings.insert_count == asked;
                settings.record_count = loaded;
                if was_whole || settings.insert_start + settings.insert_count > loaded {
                    settings.insert_start = settings.insert_start.min(loaded.saturating_sub(1));
                    settings.insert_count = loaded - settings.insert_start;
                }
            }
        }
        if (settings.is_hashed, settings.zero_padding) != (self.is_hashed, self.zero_padding) {
            return Err(format!(
                "the store was loaded with insertorder={} and zeropadding={}, this run has insertorder={} and \
                 zeropadding={}: no key would be found",
                order(self.is_hashed),
                self.zero_padding,
                order(settings.is_hashed),
                settings.zero_padding
            ));
        }
        if settings.data_integrity && !self.data_integrity {
            return Err(
                "values can be verified only if they were loaded with --verify (dataintegrity=true)".into()
            );
        }
        if self.data_integrity && !settings.data_integrity {
            notes.push(
                "the store was loaded for verification; this run writes values that cannot be verified"
                    .into(),
            );
        }
        let (asked, loaded) =
            ((settings.field_count, settings.field_bytes), (self.field_count, self.field_bytes));
        if asked != loaded {
            let text = format!(
                "records of {} x {} bytes were loaded, this run writes {} x {}",
                loaded.0, loaded.1, asked.0, asked.1
            );
            if settings.data_integrity {
                return Err(format!("{text}: their lengths cannot be verified"));
            }
            notes.push(text);
        }
        Ok(notes)
    }
}

fn order(is_hashed: bool) -> &'static str {
    if is_hashed { "hashed" } else { "ordered" }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::Connect;
    use crate::testing::Memory;
    use crate::workload::properties::Properties;

    fn settings(arguments: &[&str]) -> Settings {
        let mut properties = Properties::default();
        arguments.iter().for_each(|argument| properties.set_argument(argument).unwrap());
        Settings::new(&properties, "test", 1 << 20).unwrap()
    }

    #[test]
    fn a_run_takes_the_record_count_from_the_store() {
        let memory = Memory::default();
        let mut store = memory.open().unwrap();
        assert_eq!(Dataset::read(&mut *store).unwrap(), None);
        Dataset::new(&settings(&["recordcount=1000000"])).write(&mut *store).unwrap();
        let dataset = Dataset::read(&mut *store).unwrap().unwrap();

        let mut run = settings(&["recordcount=1000"]);
        let notes = dataset.reconcile(&mut run, false).unwrap();
        assert_eq!((run.record_count, run.insert_start, run.insert_count), (1_000_000, 0, 1_000_000));
        assert!(notes[0].contains("1000000") && notes[0].contains("1000)"), "{notes:?}");

        let mut run = settings(&["recordcount=1000"]);
        let notes = dataset.reconcile(&mut run, true).unwrap();
        assert_eq!(run.record_count, 1000);
        assert!(notes[0].contains("although 1000000 records"), "{notes:?}");

        let mut run = settings(&["recordcount=1000000"]);
        assert!(dataset.reconcile(&mut run, false).unwrap().is_empty());
    }

    #[test]
    fn runs_that_cannot_work_are_refused() {
        let loaded = Dataset::new(&settings(&["recordcount=10"]));
        let refused = |argument| {
            let mut run = settings(&["recordcount=10", argument]);
            loaded.reconcile(&mut run, false).expect_err(argument)
        };
        assert!(refused("insertorder=ordered").contains("no key would be found"));
        assert!(refused("zeropadding=20").contains("zeropadding=20"));
        assert!(refused("dataintegrity=true").contains("--verify"));
    }

    #[test]
    fn something_else_in_its_place_is_an_error() {
        let memory = Memory::default();
        let mut store = memory.open().unwrap();
        for bad in [&b"junk"[..], b"", b"{\"format\":2}"] {
            store.put(DATASET_KEY, bad).unwrap();
            assert!(matches!(Dataset::read(&mut *store), Err(DatasetError::Malformed(_))));
        }
        let mut future = serde_json::to_value(Dataset::new(&settings(&["recordcount=10"]))).unwrap();
        future["format"] = 9.into();
        store.put(DATASET_KEY, future.to_string().as_bytes()).unwrap();
        assert!(Dataset::read(&mut *store).unwrap_err().to_string().contains("format 9"));
        future["format"] = FORMAT.into();
        future["record_count"] = 0.into();
        store.put(DATASET_KEY, future.to_string().as_bytes()).unwrap();
        assert!(Dataset::read(&mut *store).unwrap_err().to_string().contains("record_count 0"));
    }
}
