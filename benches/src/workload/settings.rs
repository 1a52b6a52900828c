//! What a core workload asks for, checked once.
//!
//! Always true of a [`Settings`]:
//! - proportions and fractions are finite and in range, at least one operation has a positive proportion, none
//!   needs scans;
//! - the keys `insert_start .. insert_start + insert_count` lie within `record_count`;
//! - no record is larger than the store's limit.

use std::time::Duration;

use super::properties::Properties;
use super::reader::Reader;
use super::record::{KEY_BYTES_MAX, ZERO_PADDING_MAX};
use crate::generator::theta::Theta;

/// More records than any region can hold, and few enough that numbers of keys are exact as `f64`.
pub const RECORD_COUNT_MAX: u64 = 1 << 53;

/// How the length of a field is drawn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FieldLength {
    /// Always the maximum.
    Constant,
    /// Evenly from minimum to maximum.
    Uniform,
    /// Zipfian from minimum to maximum.
    Zipfian,
}

/// How requests spread over the keys.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum RequestDistribution {
    /// All alike.
    Uniform,
    /// YCSB's scrambled zipfian.
    Zipfian(Theta),
    /// Zipf's law itself; not one of YCSB's.
    ZipfianExact(Theta),
    /// Newest first.
    Latest(Theta),
    /// A hot part.
    Hotspot {
        /// Which fraction of the keys is hot.
        data_fraction: f64,
        /// Which fraction of the operations goes there.
        operation_fraction: f64,
    },
    /// Exponential in age.
    Exponential {
        /// This percentage of requests …
        percentile: f64,
        /// … goes to this fraction of the keys.
        fraction: f64,
    },
    /// One after the other.
    Sequential,
}

impl RequestDistribution {
    /// The name in workload files.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Uniform => "uniform",
            Self::Zipfian(_) => "zipfian",
            Self::ZipfianExact(_) => "zipfian_exact",
            Self::Latest(_) => "latest",
            Self::Hotspot { .. } => "hotspot",
            Self::Exponential { .. } => "exponential",
            Self::Sequential => "sequential",
        }
    }
}

/// A checked core workload.
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    /// Keys that the store holds before the run.
    pub record_count: u64,
    /// Operations of the run.
    pub operation_count: u64,
    /// The first key number that this client loads and reads.
    pub insert_start: u64,
    /// How many of them.
    pub insert_count: u64,
    /// Fields of a record.
    pub field_count: u64,
    /// Largest length of a field.
    pub field_bytes: u64,
    /// Smallest length of a field.
    pub field_bytes_min: u64,
    /// How it is drawn in between.
    pub field_length: FieldLength,
    /// Weight of reads.
    pub read_proportion: f64,
    /// Weight of updates.
    pub update_proportion: f64,
    /// Weight of inserts.
    pub insert_proportion: f64,
    /// Weight of read-modify-writes.
    pub read_modify_write_proportion: f64,
    /// Which keys.
    pub distribution: RequestDistribution,
    /// Whether key numbers are hashed.
    pub is_hashed: bool,
    /// Zeros are put before a key's number up to this many digits.
    pub zero_padding: u64,
    /// Whether values follow from their keys and are checked when read.
    pub data_integrity: bool,
    /// When the run ends at the latest.
    pub execution_time_max: Option<Duration>,
    /// Offered operations a second, over all threads.
    pub target: Option<f64>,
    /// Threads.
    pub thread_count: u64,
}

/// Why a workload cannot be run.
#[derive(Debug, thiserror::Error)]
pub enum SettingsError {
    /// A value that does not do.
    #[error("{origin}: {name}={value}: {reason}")]
    Value {
        /// Where it was given.
        origin: String,
        /// Which property.
        name: &'static str,
        /// Its value.
        value: String,
        /// What is wrong with it.
        reason: String,
    },
    /// Scans.
    #[error(
        "{workload} needs scans (scanproportion={proportion}), which this store does not have: \
         its keys are hashed, so there is no order to scan in"
    )]
    NeedsScans {
        /// The name of the workload.
        workload: String,
        /// Its proportion of scans.
        proportion: f64,
    },
    /// Values that do not go together.
    #[error("{0}")]
    Contradiction(String),
}

impl Settings {
    /// Checks `properties`; `workload` names them in messages and `value_bytes_max` is the store's limit.
    pub fn new(properties: &Properties, workload: &str, value_bytes_max: u64) -> Result<Self, SettingsError> {
        let read = Reader(properties);
        read.workload_class()?;
        let scan_proportion = read.proportion("scanproportion", 0.0)?;
        if scan_proportion > 0.0 {
            let workload = if workload.ends_with("workloade") { "workload e" } else { workload }.to_owned();
            return Err(SettingsError::NeedsScans { workload, proportion: scan_proportion });
        }
        let record_count = read.count("recordcount", 0)?;
        let insert_start = read.count("insertstart", 0)?;
        let insert_count = read.count("insertcount", record_count.saturating_sub(insert_start))?;
        let settings = Self {
            record_count,
            operation_count: read.count("operationcount", 0)?,
            insert_start,
            insert_count,
            field_count: read.count("fieldcount", 10)?,
            field_bytes: read.count("fieldlength", 100)?,
            field_bytes_min: read.count("minfieldlength", 1)?,
            field_length: read.field_length()?,
            read_proportion: read.proportion("readproportion", 0.95)?,
            update_proportion: read.proportion("updateproportion", 0.05)?,
            insert_proportion: read.proportion("insertproportion", 0.0)?,
            read_modify_write_proportion: read.proportion("readmodifywriteproportion", 0.0)?,
            distribution: read.distribution()?,
            is_hashed: read.is_hashed()?,
            zero_padding: read.count("zeropadding", 1)?,
            data_integrity: read.flag("dataintegrity", false)?,
            execution_time_max: match read.count("maxexecutiontime", 0)? {
                0 => None,
                seconds => Some(Duration::from_secs(seconds)),
            },
            target: Some(read.number("target", 0.0, 0.0, 1e12)?).filter(|target| *target > 0.0),
            thread_count: read.count("threadcount", 1)?,
        };
        read.flag("readallfields", true)?;
        read.flag("writeallfields", false)?;
        settings.check(value_bytes_max)?;
        Ok(settings)
    }

    fn check(&self, value_bytes_max: u64) -> Result<(), SettingsError> {
        let contradiction = |text: String| Err(SettingsError::Contradiction(text));
        if self.read_proportion
            + self.update_proportion
            + self.insert_proportion
            + self.read_modify_write_proportion
            <= 0.0
        {
            return contradiction("all proportions are 0: there is no operation to run".to_owned());
        }
        let insert_end = self.insert_start.checked_add(self.insert_count);
        if self.record_count == 0 || self.insert_count == 0 {
            return contradiction(format!(
                "recordcount={} with insertstart={} and insertcount={} leaves no record; give -p recordcount=N",
                self.record_count, self.insert_start, self.insert_count
            ));
        }
        if insert_end.is_none_or(|end| end > self.record_count) {
            return contradiction(format!(
                "insertstart={} + insertcount={} is more than recordcount={}",
                self.insert_start, self.insert_count, self.record_count
            ));
        }
        if self.field_length != FieldLength::Constant && self.field_bytes_min > self.field_bytes {
            return contradiction(format!(
                "minfieldlength={} is more than fieldlength={}",
                self.field_bytes_min, self.field_bytes
            ));
        }
        if self.record_count > RECORD_COUNT_MAX {
            return contradiction(format!(
                "recordcount={} is more than {RECORD_COUNT_MAX}",
                self.record_count
            ));
        }
        match self.field_count.checked_mul(self.field_bytes) {
            Some(bytes) if bytes <= value_bytes_max => {}
            _ => {
                return contradiction(format!(
                    "fieldcount={} x fieldlength={} makes records larger than the {value_bytes_max} bytes that a \
                     value may have",
                    self.field_count, self.field_bytes
                ));
            }
        }
        if self.zero_padding > ZERO_PADDING_MAX {
            return contradiction(format!(
                "zeropadding={} is more than {}: keys have at most {} bytes",
                self.zero_padding, ZERO_PADDING_MAX, KEY_BYTES_MAX
            ));
        }
        Ok(())
    }

    /// The largest record in bytes.
    pub fn record_bytes_max(&self) -> u64 {
        self.field_count * self.field_bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(arguments: &[&str]) -> Result<Settings, SettingsError> {
        let mut properties = Properties::default();
        properties.set("recordcount", "1000");
        arguments.iter().for_each(|argument| properties.set_argument(argument).unwrap());
        Settings::new(&properties, "workloadx", 1 << 20)
    }

    #[test]
    fn defaults_are_ycsbs() {
        let settings = settings(&[]).unwrap();
        assert_eq!((settings.read_proportion, settings.update_proportion), (0.95, 0.05));
        assert_eq!((settings.insert_start, settings.insert_count), (0, 1000));
        assert_eq!(settings.record_bytes_max(), 1000);
        assert_eq!(settings.distribution, RequestDistribution::Uniform);
        assert!(settings.is_hashed && settings.target.is_none() && settings.execution_time_max.is_none());
    }

    #[test]
    fn wrong_values_are_refused_with_their_name_and_value() {
        for argument in [
            "recordcount=-1",
            "operationcount=many",
            "readproportion=NaN",
            "readproportion=-0.1",
            "updateproportion=inf",
            "requestdistribution=pareto",
            "fieldlengthdistribution=histogram",
            "insertorder=random",
            "dataintegrity=yes",
            "workload=site.ycsb.workloads.TimeSeriesWorkload",
            "target=-5",
            "hotspotdatafraction=1.5 ",
        ] {
            let mut arguments = vec![argument];
            if argument.starts_with("hotspot") {
                arguments.push("requestdistribution=hotspot");
            }
            let error = settings(&arguments).expect_err(argument).to_string();
            assert!(error.contains(argument.trim()), "{error} does not name {argument}");
        }
    }

    #[test]
    fn the_zipfian_constant_is_checked() {
        for bad in ["1.2", "5", "-1", "NaN", "abc"] {
            for distribution in ["requestdistribution=zipfian", "requestdistribution=zipfian_exact"] {
                let error = settings(&[distribution, &format!("zipfianconstant={bad}")]).expect_err(bad);
                assert!(error.to_string().contains(bad), "{error}");
            }
        }
        assert!(settings(&["requestdistribution=zipfian", "zipfianconstant=0"]).is_ok());
        assert!(settings(&["requestdistribution=zipfian_exact", "zipfianconstant=1.0"]).is_ok());
        let error =
            settings(&["requestdistribution=zipfian", "zipfianconstant=1.0"]).unwrap_err().to_string();
        assert!(error.contains("zipfian_exact"), "{error}");
    }

    #[test]
    fn contradictions_show_both_numbers() {
        for (arguments, words) in [
            (&["insertstart=900", "insertcount=200"][..], ["900", "200", "1000"]),
            (&["fieldcount=1000", "fieldlength=2000"], ["1000", "2000", "1048576"]),
            (&["fieldcount=18446744073709551615", "fieldlength=2"], ["18446744073709551615", "2", "1048576"]),
            (&["fieldlengthdistribution=uniform", "minfieldlength=200"], ["200", "100", "minfieldlength"]),
            (&["zeropadding=5000"], ["5000", "1020", "1024"]),
            (&["recordcount=0"], ["recordcount=0", "insertcount=0", "leaves no record"]),
            (&["readproportion=0", "updateproportion=0"], ["proportions", "0", "no operation"]),
        ] {
            let error = settings(arguments).expect_err(arguments[0]).to_string();
            words.iter().for_each(|word| assert!(error.contains(word), "{error} lacks {word}"));
        }
    }
}
