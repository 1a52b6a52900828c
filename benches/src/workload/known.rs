//! Which properties are known, and what to say of the others.
//!
//! Always true: a property that changes nothing is never passed over in silence when somebody asked for it.

use super::properties::Properties;

/// Properties of YCSB that have no meaning here, because there are no tables, fields or scans.
const WITHOUT_MEANING: &[&str] = &[
    "table",
    "fieldnameprefix",
    "readallfieldsbyname",
    "minscanlength",
    "maxscanlength",
    "scanlengthdistribution",
    "db",
    "exporter",
    "exportfile",
    "measurementtype",
    "measurement.interval",
    "measurement.raw.output_file",
    "hdrhistogram.percentiles",
    "hdrhistogram.fileoutput",
    "hdrhistogram.output.path",
    "histogram.buckets",
    "timeseries.granularity",
    "status",
    "status.interval",
    "label",
    "reportlatencyforeacherror",
    "latencytrackederrors",
    "core_workload_insertion_retry_limit",
    "core_workload_insertion_retry_interval",
];

/// Properties that are honoured.
const HONOURED: &[&str] = &[
    "workload",
    "recordcount",
    "operationcount",
    "insertstart",
    "insertcount",
    "fieldcount",
    "fieldlength",
    "minfieldlength",
    "fieldlengthdistribution",
    "readproportion",
    "updateproportion",
    "insertproportion",
    "readmodifywriteproportion",
    "scanproportion",
    "requestdistribution",
    "zipfianconstant",
    "hotspotdatafraction",
    "hotspotopnfraction",
    "exponential.percentile",
    "exponential.frac",
    "insertorder",
    "zeropadding",
    "dataintegrity",
    "readallfields",
    "writeallfields",
    "maxexecutiontime",
    "target",
    "threadcount",
];

/// Complaints about properties that change nothing here.
pub fn warnings(properties: &Properties) -> Vec<String> {
    let mut warnings = Vec::new();
    for (name, origin) in properties.names() {
        if WITHOUT_MEANING.contains(&name) || name.starts_with("hdrhistogram.") {
            // The stock files set scan lengths; only what somebody asked for deserves a word.
            if properties.is_explicit(name) {
                warnings.push(format!("{origin}: property {name} has no meaning for this store"));
            }
        } else if !HONOURED.contains(&name) {
            warnings.push(format!("{origin}: unknown property {name} is ignored"));
        }
    }
    warnings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_properties_are_mentioned_known_ones_are_not() {
        let mut properties = Properties::default();
        properties
            .parse(std::path::Path::new("f"), b"recordcount=1\nmaxscanlength=5\nrecordcuont=2\n")
            .unwrap();
        properties.set("table", "t");
        let warnings = warnings(&properties);
        assert_eq!(warnings.len(), 2, "{warnings:?}");
        assert!(warnings[0].contains("f:3") && warnings[0].contains("recordcuont"));
        assert!(warnings[1].contains("table"));
    }
}
