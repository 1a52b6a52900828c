//! Writes histograms as an HdrHistogram log, for the tools that read those.
//!
//! Always true: one line a kind and outcome, tagged with both, in the compressed V2 encoding; values are
//! nanoseconds.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;
use std::time::{Duration, SystemTime};

use hdrhistogram::serialization::V2DeflateSerializer;
use hdrhistogram::serialization::interval_log::{IntervalLogWriterBuilder, Tag};

use super::tally::{Outcome, Tally};
use crate::workload::operation::OperationKind;

/// Writes all histograms of `tally`, for a run that began at `start` and took `elapsed`.
pub fn write(path: &Path, tally: &Tally, start: SystemTime, elapsed: Duration) -> io::Result<()> {
    let mut file = BufWriter::new(File::create(path)?);
    let mut serializer = V2DeflateSerializer::new();
    let mut builder = IntervalLogWriterBuilder::new();
    builder
        .add_comment("Sidestep kvbench; latencies in nanoseconds; one interval: the whole run")
        .with_start_time(start)
        .with_max_value_divisor(1e6);
    let mut log = builder.begin_log_with(&mut file, &mut serializer)?;
    for kind in OperationKind::ALL {
        for outcome in Outcome::ALL {
            let cell = tally.cell(kind, outcome);
            for (latency, suffix) in [(&cell.latency, ""), (&cell.service, "-service")] {
                let Some(latency) = latency else { continue };
                let name = format!("{}-{}{suffix}", kind.name(), outcome.name());
                let tag = Tag::new(&name).expect("names hold no comma, space or line end");
                log.write_histogram(latency.histogram(), Duration::ZERO, elapsed, Some(tag))
                    .map_err(|error| io::Error::other(format!("{error:?}")))?;
            }
        }
    }
    file.flush()
}

#[cfg(test)]
mod tests {
    use super::*;
    use hdrhistogram::Histogram;
    use hdrhistogram::serialization::Deserializer;
    use hdrhistogram::serialization::interval_log::{IntervalLogIterator, LogEntry};

    #[test]
    fn what_is_written_can_be_read() {
        let mut tally = Tally::default();
        for latency_us in 1..=1000 {
            let latency = Duration::from_micros(latency_us);
            tally.record(OperationKind::Read, Outcome::Success, latency, None);
            tally.record(OperationKind::ReadModifyWrite, Outcome::Miss, latency, Some(latency / 2));
        }
        let path = std::env::temp_dir().join(format!("kvbench-log-{}.hlog", std::process::id()));
        write(&path, &tally, SystemTime::now(), Duration::from_secs(3)).unwrap();
        let bytes = std::fs::read(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        let mut tags = Vec::new();
        for entry in IntervalLogIterator::new(&bytes) {
            if let LogEntry::Interval(interval) = entry.unwrap() {
                tags.push(interval.tag().unwrap().as_str().to_owned());
                let raw = base64_decode(interval.encoded_histogram());
                let histogram: Histogram<u64> = Deserializer::new().deserialize(&mut raw.as_slice()).unwrap();
                assert_eq!(histogram.len(), 1000);
            }
        }
        assert_eq!(tags, ["READ-success", "READ-MODIFY-WRITE-miss", "READ-MODIFY-WRITE-miss-service"]);
    }

    fn base64_decode(text: &str) -> Vec<u8> {
        let value = |byte: u8| match byte {
            b'A'..=b'Z' => u32::from(byte - b'A'),
            b'a'..=b'z' => u32::from(byte - b'a') + 26,
            b'0'..=b'9' => u32::from(byte - b'0') + 52,
            b'+' => 62,
            _ => 63,
        };
        let mut bytes = Vec::new();
        for group in text.trim_end_matches('=').as_bytes().chunks(4) {
            let bits = group.iter().fold(0, |bits, byte| bits << 6 | value(*byte)) << (6 * (4 - group.len()));
            bytes.extend_from_slice(&bits.to_be_bytes()[1..group.len()]);
        }
        bytes
    }
}
