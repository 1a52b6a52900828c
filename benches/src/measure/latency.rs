//! Latencies in a histogram of fixed size.
//!
//! Always true:
//! - recording never fails: what is longer than the histogram's range is kept at its end and counted as
//!   *clipped*, and the true maximum is kept beside it;
//! - `minimum <= p50 <= p90 <= … <= p99.99 <= maximum`; with one sample they are all equal;
//! - with no samples there is no summary.

use hdrhistogram::Histogram;

/// The longest latency with a bucket of its own: ten minutes. Deadlines are far shorter.
const RANGE_NS: u64 = 600_000_000_000;

/// Significant decimal digits: a bucket is at most 0.1 % wide.
const DIGITS: u8 = 3;

/// Latencies of one kind of operation and outcome.
#[derive(Debug, Clone)]
pub struct Latency {
    histogram: Histogram<u64>,
    clipped: u64,
    minimum_ns: u64,
    maximum_ns: u64,
}

/// What is reported of a histogram, in nanoseconds.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
pub struct LatencySummary {
    /// Samples.
    pub count: u64,
    /// Samples beyond the histogram's range; the percentiles treat them as the end of that range.
    pub clipped: u64,
    /// The shortest.
    pub minimum_ns: u64,
    /// The average.
    pub mean_ns: f64,
    /// Half are not longer.
    pub p50_ns: u64,
    /// 90 %.
    pub p90_ns: u64,
    /// 95 %.
    pub p95_ns: u64,
    /// 99 %.
    pub p99_ns: u64,
    /// 99.9 %.
    pub p99_9_ns: u64,
    /// 99.99 %.
    pub p99_99_ns: u64,
    /// The longest, never clipped.
    pub maximum_ns: u64,
}

impl Default for Latency {
    fn default() -> Self {
        let histogram = Histogram::new_with_bounds(1, RANGE_NS, DIGITS).expect("constant bounds are valid");
        Self { histogram, clipped: 0, minimum_ns: u64::MAX, maximum_ns: 0 }
    }
}

impl Latency {
    /// Adds a sample.
    pub fn record(&mut self, latency_ns: u64) {
        self.histogram.saturating_record(latency_ns.min(RANGE_NS));
        self.clipped += u64::from(latency_ns > RANGE_NS);
        self.minimum_ns = self.minimum_ns.min(latency_ns);
        self.maximum_ns = self.maximum_ns.max(latency_ns);
    }

    /// Adds all samples of another histogram.
    pub fn merge(&mut self, other: &Self) {
        self.histogram.add(&other.histogram).expect("all histograms have the same bounds");
        self.clipped += other.clipped;
        self.minimum_ns = self.minimum_ns.min(other.minimum_ns);
        self.maximum_ns = self.maximum_ns.max(other.maximum_ns);
    }

    /// What to report; nothing without samples.
    pub fn summary(&self) -> Option<LatencySummary> {
        if self.histogram.is_empty() {
            return None;
        }
        // A bucket answers with its upper end, which may lie beyond the longest sample.
        let at = |quantile: f64| {
            self.histogram.value_at_quantile(quantile).clamp(self.minimum_ns, self.maximum_ns)
        };
        let (p50_ns, p90_ns, p95_ns, p99_ns) = (at(0.50), at(0.90), at(0.95), at(0.99));
        let (p99_9_ns, p99_99_ns) = (at(0.999), at(0.9999));
        Some(LatencySummary {
            count: self.histogram.len(),
            clipped: self.clipped,
            minimum_ns: self.minimum_ns,
            mean_ns: self.histogram.mean().clamp(self.minimum_ns as f64, self.maximum_ns as f64),
            p50_ns,
            p90_ns,
            p95_ns,
            p99_ns,
            p99_9_ns,
            p99_99_ns,
            maximum_ns: self.maximum_ns,
        })
    }

    /// The histogram itself, for the log file.
    pub(crate) fn histogram(&self) -> &Histogram<u64> {
        &self.histogram
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(samples: &[u64]) -> Latency {
        let mut latency = Latency::default();
        samples.iter().for_each(|sample| latency.record(*sample));
        latency
    }

    #[test]
    fn percentiles_of_few_known_samples() {
        assert_eq!(of(&[]).summary(), None);
        let one = of(&[123_457]).summary().unwrap();
        assert_eq!(
            (one.minimum_ns, one.p50_ns, one.p99_99_ns, one.maximum_ns),
            (123_457, 123_457, 123_457, 123_457)
        );
        assert_eq!(one.mean_ns as u64 / 1000, 123);
        let two = of(&[10, 20]).summary().unwrap();
        assert_eq!((two.minimum_ns, two.p50_ns, two.p99_ns, two.maximum_ns), (10, 10, 20, 20));
        let three = of(&[10, 20, 30]).summary().unwrap();
        assert_eq!((three.p50_ns, three.p90_ns), (20, 30));
        let hundred = of(&(1..=100).collect::<Vec<_>>()).summary().unwrap();
        assert_eq!((hundred.p50_ns, hundred.p95_ns, hundred.p99_ns, hundred.p99_9_ns), (50, 95, 99, 100));
    }

    #[test]
    fn extremes_saturate_and_are_counted() {
        let mut latency = of(&[0, 1, 999_000_000_000, u64::MAX]);
        latency.merge(&of(&[5]));
        let summary = latency.summary().unwrap();
        assert_eq!((summary.count, summary.clipped), (5, 2));
        assert_eq!((summary.minimum_ns, summary.maximum_ns), (0, u64::MAX));
        let steps = [
            summary.minimum_ns,
            summary.p50_ns,
            summary.p90_ns,
            summary.p95_ns,
            summary.p99_ns,
            summary.p99_9_ns,
            summary.p99_99_ns,
            summary.maximum_ns,
        ];
        assert!(steps.is_sorted(), "{steps:?}");
    }

    #[test]
    fn merging_with_nothing_changes_nothing() {
        let mut latency = of(&[7]);
        latency.merge(&Latency::default());
        assert_eq!(latency.summary(), of(&[7]).summary());
        let mut empty = Latency::default();
        empty.merge(&of(&[7]));
        assert_eq!(empty.summary(), of(&[7]).summary());
    }
}
