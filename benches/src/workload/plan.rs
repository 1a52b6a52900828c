//! A workload made ready: everything that a worker thread needs to decide on its next operation.
//!
//! Always true: the key space of YCSB's zipfian is fixed when the run begins, large enough for the keys that the
//! run is expected to insert, so that inserting does not move the popular keys.

use std::sync::Arc;

use super::operation::OperationChooser;
use super::record::Records;
use super::settings::{RequestDistribution, Settings};
use crate::generator::choose::KeyChooser;
use crate::generator::exact_zipfian::ExactZipfian;
use crate::generator::exponential::Exponential;
use crate::generator::hotspot::Hotspot;
use crate::generator::latest::Latest;
use crate::generator::permutation::Permutation;
use crate::generator::scrambled::Scrambled;
use crate::generator::zipfian::ZipfianError;

/// The parts of a workload that each thread clones.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Which kind of operation.
    pub operations: OperationChooser,
    /// On which key.
    pub keys: KeyChooser,
    /// With which bytes.
    pub records: Records,
}

impl Plan {
    /// Prepares a workload.
    pub fn new(settings: &Settings) -> Result<Self, ZipfianError> {
        Ok(Self {
            operations: OperationChooser::new(settings),
            keys: key_chooser(settings)?,
            records: Records::new(settings)?,
        })
    }
}

fn key_chooser(settings: &Settings) -> Result<KeyChooser, ZipfianError> {
    let (first, count) = (settings.insert_start, settings.insert_count);
    let expected_keys = count.saturating_add(expected_new_keys(settings));
    Ok(match settings.distribution {
        RequestDistribution::Uniform => KeyChooser::Uniform { first, count },
        // The one more is YCSB's: its space includes the upper end.
        RequestDistribution::Zipfian(theta) => {
            KeyChooser::Scrambled(Scrambled::new(first, expected_keys.saturating_add(1), theta)?)
        }
        RequestDistribution::ZipfianExact(theta) => KeyChooser::ExactZipfian {
            ranks: ExactZipfian::new(expected_keys, theta),
            positions: Permutation::new(expected_keys),
            first,
        },
        RequestDistribution::Latest(theta) => {
            KeyChooser::Latest(Latest::new(first, settings.record_count - 1, theta)?)
        }
        RequestDistribution::Hotspot { data_fraction, operation_fraction } => {
            KeyChooser::Hotspot(Hotspot::new(first, count, data_fraction, operation_fraction))
        }
        RequestDistribution::Exponential { percentile, fraction } => KeyChooser::Exponential {
            distances: Exponential::new(percentile, settings.record_count as f64 * fraction),
            first,
        },
        RequestDistribution::Sequential => KeyChooser::Sequential { first, count, position: Arc::default() },
    })
}

/// Keeps sums of key numbers far from the end of 64 bits.
const EXPECTED_KEYS_MAX: f64 = (1u64 << 53) as f64;

/// Twice the inserts that the operation count makes likely: YCSB's own margin.
fn expected_new_keys(settings: &Settings) -> u64 {
    (settings.operation_count as f64 * settings.insert_proportion * 2.0).min(EXPECTED_KEYS_MAX) as u64
}
