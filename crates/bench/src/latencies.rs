//! Latencies of reads and of writes as histograms: nanoseconds, to three digits.

use hdrhistogram::Histogram;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::collections::BTreeMap;
use std::time::Duration;

const LONGEST_NS: u64 = 600_000_000_000;

#[derive(Serialize, Deserialize)]
pub struct Latencies {
    #[serde(serialize_with = "write_pairs", deserialize_with = "read_pairs")]
    pub reads: Histogram<u64>,
    #[serde(serialize_with = "write_pairs", deserialize_with = "read_pairs")]
    pub writes: Histogram<u64>,
    /// Reads that found nothing.
    pub missing: u64,
    /// Further counts, by name.
    pub counts: BTreeMap<String, u64>,
}

impl Default for Latencies {
    fn default() -> Latencies {
        Latencies { reads: new_histogram(), writes: new_histogram(), missing: 0, counts: BTreeMap::new() }
    }
}

impl Latencies {
    pub fn read(&mut self, took: Duration) {
        self.reads.saturating_record(nanoseconds(took));
    }

    pub fn write(&mut self, took: Duration) {
        self.writes.saturating_record(nanoseconds(took));
    }

    pub fn operations(&self) -> u64 {
        self.reads.len() + self.writes.len()
    }

    pub fn add(&mut self, other: &Latencies) {
        for (mine, theirs) in [(&mut self.reads, &other.reads), (&mut self.writes, &other.writes)] {
            mine.add(theirs).expect("all histograms have the same bounds");
        }
        self.missing += other.missing;
        other.counts.iter().for_each(|(name, count)| self.count(name, *count));
    }

    pub fn count(&mut self, name: &str, more: u64) {
        *self.counts.entry(name.to_owned()).or_default() += more;
    }

    pub fn counted(&self, name: &str) -> f64 {
        self.counts.get(name).copied().unwrap_or(0) as f64
    }
}

/// In microseconds, the latency within which this part of the operations was.
pub fn quantile_us(histogram: &Histogram<u64>, quantile: f64) -> f64 {
    histogram.value_at_quantile(quantile) as f64 / 1000.0
}

fn new_histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, LONGEST_NS, 3).expect("the bounds are constants that it takes")
}

fn nanoseconds(took: Duration) -> u64 {
    (took.as_nanos() as u64).max(1)
}

/// Pairs of a latency and how often it was seen.
fn write_pairs<S: Serializer>(histogram: &Histogram<u64>, to: S) -> Result<S::Ok, S::Error> {
    to.collect_seq(histogram.iter_recorded().map(|seen| [seen.value_iterated_to(), seen.count_at_value()]))
}

fn read_pairs<'de, D: Deserializer<'de>>(from: D) -> Result<Histogram<u64>, D::Error> {
    let mut histogram = new_histogram();
    for [value, count] in Vec::<[u64; 2]>::deserialize(from)? {
        histogram.saturating_record_n(value, count);
    }
    Ok(histogram)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn latencies_come_back_from_their_json() {
        let mut latencies = Latencies { missing: 4, ..Latencies::default() };
        for us in 1..1000 {
            latencies.read(Duration::from_micros(us));
        }
        latencies.write(Duration::from_secs(2));
        let text = serde_json::to_string(&latencies).unwrap();
        let again: Latencies = serde_json::from_str(&text).unwrap();
        assert_eq!((again.operations(), again.missing), (1000, 4));
        assert_eq!(again.reads, latencies.reads);
        assert!((quantile_us(&again.reads, 0.5) - 500.0).abs() < 2.0);
        assert!(serde_json::from_str::<Latencies>(r#"{"reads":[1],"writes":[],"missing":0,"counts":{}}"#).is_err());
    }
}
