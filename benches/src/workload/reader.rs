//! Reads properties as the types that they stand for.
//!
//! Always true: a value that does not do is refused with its name, its text and where it was given.

use super::number::parse_count;
use super::properties::Properties;
use super::settings::{FieldLength, RequestDistribution, SettingsError};
use crate::generator::theta::THETA_YCSB;

/// Typed access to properties.
pub(super) struct Reader<'a>(pub(super) &'a Properties);

impl Reader<'_> {
    fn error<T>(&self, name: &'static str, reason: impl ToString) -> Result<T, SettingsError> {
        let (value, origin) = self.0.get(name).map_or_else(
            || (String::new(), "default".to_owned()),
            |(value, origin)| (value.to_owned(), origin.to_string()),
        );
        Err(SettingsError::Value { origin, name, value, reason: reason.to_string() })
    }

    pub(super) fn count(&self, name: &'static str, default: u64) -> Result<u64, SettingsError> {
        match self.0.get(name) {
            None => Ok(default),
            Some((value, _)) => parse_count(value).or_else(|error| self.error(name, error)),
        }
    }

    pub(super) fn number(
        &self,
        name: &'static str,
        default: f64,
        low: f64,
        high: f64,
    ) -> Result<f64, SettingsError> {
        match self.0.get(name) {
            None => Ok(default),
            Some((value, _)) => match value.parse::<f64>() {
                Ok(number) if (low..=high).contains(&number) => Ok(number),
                _ => self.error(name, format!("not a number from {low} to {high}")),
            },
        }
    }

    pub(super) fn proportion(&self, name: &'static str, default: f64) -> Result<f64, SettingsError> {
        self.number(name, default, 0.0, 1e9)
    }

    pub(super) fn flag(&self, name: &'static str, default: bool) -> Result<bool, SettingsError> {
        match self.0.get(name).map(|(value, _)| value.to_ascii_lowercase()) {
            None => Ok(default),
            Some(value) if value == "true" => Ok(true),
            Some(value) if value == "false" => Ok(false),
            Some(_) => self.error(name, "neither true nor false"),
        }
    }

    pub(super) fn workload_class(&self) -> Result<(), SettingsError> {
        match self.0.get("workload").map(|(value, _)| value) {
            None
            | Some("site.ycsb.workloads.CoreWorkload")
            | Some("com.yahoo.ycsb.workloads.CoreWorkload")
            | Some("CoreWorkload") => Ok(()),
            Some(_) => self.error("workload", "only YCSB's CoreWorkload is supported"),
        }
    }

    pub(super) fn field_length(&self) -> Result<FieldLength, SettingsError> {
        match self.0.get("fieldlengthdistribution").map(|(value, _)| value) {
            None | Some("constant") => Ok(FieldLength::Constant),
            Some("uniform") => Ok(FieldLength::Uniform),
            Some("zipfian") => Ok(FieldLength::Zipfian),
            Some(_) => self.error("fieldlengthdistribution", "not one of constant, uniform, zipfian"),
        }
    }

    pub(super) fn is_hashed(&self) -> Result<bool, SettingsError> {
        match self.0.get("insertorder").map(|(value, _)| value) {
            None | Some("hashed") => Ok(true),
            Some("ordered") => Ok(false),
            Some(_) => self.error("insertorder", "neither hashed nor ordered"),
        }
    }

    pub(super) fn distribution(&self) -> Result<RequestDistribution, SettingsError> {
        let theta = match self.0.get("zipfianconstant") {
            None => THETA_YCSB,
            Some((value, _)) => value.parse().or_else(|error| self.error("zipfianconstant", error))?,
        };
        let curve_theta = || {
            if theta.get() < 1.0 {
                return Ok(theta);
            }
            self.error("zipfianconstant", "must be below 1, except with requestdistribution=zipfian_exact")
        };
        match self.0.get("requestdistribution").map_or("uniform", |(value, _)| value) {
            "uniform" => Ok(RequestDistribution::Uniform),
            "zipfian" => curve_theta().map(RequestDistribution::Zipfian),
            "zipfian_exact" => Ok(RequestDistribution::ZipfianExact(theta)),
            "latest" => curve_theta().map(RequestDistribution::Latest),
            "hotspot" => Ok(RequestDistribution::Hotspot {
                data_fraction: self.number("hotspotdatafraction", 0.2, 0.0, 1.0)?,
                operation_fraction: self.number("hotspotopnfraction", 0.8, 0.0, 1.0)?,
            }),
            "exponential" => Ok(RequestDistribution::Exponential {
                percentile: self.number("exponential.percentile", 95.0, 0.001, 99.999)?,
                fraction: self.number("exponential.frac", 0.857_142_857_1, 1e-6, 1.0)?,
            }),
            "sequential" => Ok(RequestDistribution::Sequential),
            _ => self.error(
                "requestdistribution",
                "not one of uniform, zipfian, zipfian_exact, latest, hotspot, exponential, sequential",
            ),
        }
    }
}
