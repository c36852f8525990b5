//! What an entrant did in each of its turns, and what is said of it: medians, and the quartiles of the turns as spread.

use serde_json::{Value, json};
use tapetum_bench::latencies::{Latencies, quantile_us};
use tapetum_bench::turn::Report;

/// The median of some turns, and the quartiles around it.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Spread {
    pub low: f64,
    pub median: f64,
    pub high: f64,
}

impl Spread {
    pub fn of(values: impl IntoIterator<Item = f64>) -> Spread {
        let mut values: Vec<f64> = values.into_iter().filter(|value| value.is_finite()).collect();
        if values.is_empty() {
            return Spread { low: 0.0, median: 0.0, high: 0.0 };
        }
        values.sort_unstable_by(f64::total_cmp);
        let at = |quarter: usize| values[(values.len() - 1) * quarter / 4];
        Spread { low: at(1), median: at(2), high: at(3) }
    }

    pub fn to_json(self) -> Value {
        json!({ "low": self.low, "median": self.median, "high": self.high })
    }

    /// With so many digits behind the point.
    pub fn shown(self, digits: usize) -> String {
        let Spread { low, median, high } = self;
        format!("{median:.digits$} ({low:.digits$}–{high:.digits$})")
    }
}

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

    pub fn cpu_us(&self) -> Spread {
        self.spread(Report::cpu_us_per_operation)
    }

    pub fn spread(&self, figure: impl Fn(&Report) -> f64) -> Spread {
        Spread::of(self.reports.iter().map(figure))
    }

    /// A figure of each turn over that of the other's turn in the same round.
    pub fn ratio(&self, other: &Series, figure: impl Fn(&Report) -> f64) -> Spread {
        Spread::of(self.reports.iter().zip(&other.reports).map(|(mine, theirs)| figure(mine) / figure(theirs)))
    }

    /// All turns together.
    pub fn latencies(&self) -> Latencies {
        let mut all = Latencies::default();
        self.reports.iter().for_each(|report| all.add(&report.latencies));
        all
    }

    pub fn to_json(&self) -> Value {
        let latencies = self.latencies();
        let quantiles = |histogram: &_| {
            json!({
                "p50_us": quantile_us(histogram, 0.5), "p99_us": quantile_us(histogram, 0.99),
                "p99_9_us": quantile_us(histogram, 0.999), "p99_99_us": quantile_us(histogram, 0.9999),
            })
        };
        json!({
            "label": self.label,
            "operations_per_second": self.throughput().to_json(),
            "cpu_us_per_operation": self.cpu_us().to_json(),
            "reads": quantiles(&latencies.reads),
            "writes": quantiles(&latencies.writes),
            "missing": latencies.missing,
            "turns": self.reports.iter().map(|report| json!({
                "seconds": report.seconds,
                "operations": report.latencies.operations(),
                "usage": report.usage.to_json(),
            })).collect::<Vec<_>>(),
        })
    }
}

/// The latency in microseconds within which this part of a turn's reads was.
pub fn read_quantile(quantile: f64) -> impl Fn(&Report) -> f64 {
    move |report| quantile_us(&report.latencies.reads, quantile)
}

#[cfg(test)]
mod tests {
    use super::Spread;

    #[test]
    fn a_spread_is_the_median_and_the_quartiles() {
        let spread = Spread::of([5.0, 1.0, 2.0, 4.0, 3.0, f64::NAN]);
        assert_eq!(spread, Spread { low: 2.0, median: 3.0, high: 4.0 });
        assert_eq!(spread.shown(1), "3.0 (2.0–4.0)");
        assert_eq!(Spread::of([]).median, 0.0);
    }
}
