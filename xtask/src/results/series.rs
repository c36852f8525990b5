//! The turns of an entrant.

use serde_json::{Value, json};
use tapetum_bench::latencies::{Latencies, quantile_us};
use tapetum_bench::turn::Report;

use super::spread::Spread;

pub struct Series {
    pub label: String,
    pub reports: Vec<Report>,
}

impl Series {
    pub fn new(label: &str) -> Series {
        Series { label: label.to_owned(), reports: Vec::new() }
    }

    pub fn throughput(&self) -> Spread {
        self.spread(Report::operations_per_second)
    }

    pub fn spread(&self, figure: impl Fn(&Report) -> f64) -> Spread {
        Spread::of(self.reports.iter().map(figure))
    }

    /// A figure of each turn, divided by that of the other's turn in the same round.
    pub fn ratio(&self, other: &Series, figure: impl Fn(&Report) -> f64) -> Spread {
        Spread::of(self.reports.iter().zip(&other.reports).map(|(mine, theirs)| figure(mine) / figure(theirs)))
    }

    /// The latencies of all turns together.
    fn latencies(&self) -> Latencies {
        let mut all = Latencies::default();
        self.reports.iter().for_each(|report| all.add(&report.latencies));
        all
    }

    pub fn to_json(&self) -> Value {
        let latencies = self.latencies();
        let quantiles =
            |histogram: &_| match [0.5, 0.99, 0.999, 0.9999].map(|part| quantile_us(histogram, part).round()) {
                [.., 0.0] => Value::Null,
                [p50, p99, p99_9, p99_99] => {
                    json!({ "p50_us": p50, "p99_us": p99, "p99_9_us": p99_9, "p99_99_us": p99_99 })
                }
            };
        let each = |bytes: u64, report: &Report| bytes as f64 / report.latencies.operations().max(1) as f64;
        let resident = self.reports.iter().map(|report| report.usage.resident_max_bytes).max().unwrap_or(0);
        json!({
            "label": self.label,
            "operations_per_second": self.throughput(),
            "cpu_us_per_operation": self.spread(Report::cpu_us_per_operation),
            "seconds": self.spread(|report| report.seconds).turns,
            "reads": quantiles(&latencies.reads),
            "writes": quantiles(&latencies.writes),
            "missing": latencies.missing,
            "read_bytes_per_operation": self.spread(|report| each(report.usage.read_bytes, report)).median.round(),
            "written_bytes_per_operation": self.spread(|report| each(report.usage.written_bytes, report)).median.round(),
            "resident_max_mib": resident >> 20,
        })
    }
}

/// The quantile of read latencies in a turn, in microseconds.
pub fn read_quantile(quantile: f64) -> impl Fn(&Report) -> f64 {
    move |report| quantile_us(&report.latencies.reads, quantile)
}
