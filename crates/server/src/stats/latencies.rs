//! Latencies of requests: histograms whose bounds are powers of two. One set for each worker, which alone adds to it.
//!
//! A get or a set begins when the worker learns of it: with the report of the sockets that brought it or, if its client was blocked, when
//! the worker takes it. It ends with the poll of the store that brings its outcome or, if it was answered at once, with the report. So the
//! clock is read once for each report and each poll, not for each request.

use std::fmt::Write as _;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::count;
use crate::stats::exposition::family;

/// Upper bounds are powers of two of a microsecond: the first power, and the number of bounds, up to half a minute. Longer latencies go
/// into a last bucket.
const FIRST_POWER: usize = 3;
const BOUNDS: usize = 23;

#[derive(Debug, Default)]
pub struct LatencyHistogram {
    counts: [AtomicU64; BOUNDS + 1],
    total_us: AtomicU64,
}

impl LatencyHistogram {
    /// Adds `requests` that took this long.
    pub fn add(&self, requests: u64, took: Duration) {
        let took_us = took.as_micros().min(u128::from(u64::MAX)) as u64;
        let power = took_us.max(1).ilog2() as usize + 1;
        count(&self.counts[power.saturating_sub(FIRST_POWER).min(BOUNDS)], requests);
        count(&self.total_us, requests.saturating_mul(took_us));
    }

    pub fn reset(&self) {
        self.counts.iter().chain([&self.total_us]).for_each(|counter| counter.store(0, Ordering::Relaxed));
    }
}

/// The sum of histograms.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Latencies {
    counts: [u64; BOUNDS + 1],
    total_us: u64,
}

impl<'a> FromIterator<&'a LatencyHistogram> for Latencies {
    fn from_iter<I: IntoIterator<Item = &'a LatencyHistogram>>(histograms: I) -> Latencies {
        let mut sum = Latencies::default();
        for LatencyHistogram { counts, total_us } in histograms {
            sum.counts.iter_mut().zip(counts).for_each(|(sum, count)| *sum += count.load(Ordering::Relaxed));
            sum.total_us += total_us.load(Ordering::Relaxed);
        }
        sum
    }
}

impl Latencies {
    pub fn requests(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// The number of requests up to each bound in microseconds and above the one before; behind the last bound, of all longer ones.
    pub fn buckets(&self) -> impl Iterator<Item = (Option<u64>, u64)> + '_ {
        let bound = |at: usize| (at < BOUNDS).then(|| 1u64 << (at + FIRST_POWER));
        self.counts.iter().enumerate().map(move |(at, count)| (bound(at), *count))
    }

    pub fn total_us(&self) -> u64 {
        self.total_us
    }

    /// The bound, in microseconds, below which so many of a thousand requests are; 0 without requests.
    pub fn under_us(&self, of_thousand: u64) -> u64 {
        let wanted = (self.requests() * of_thousand).div_ceil(1000);
        let mut seen = 0;
        let at = self.counts.iter().position(|count| {
            seen += count;
            seen >= wanted && wanted > 0
        });
        at.map_or(0, |at| 1 << (at + FIRST_POWER))
    }

    /// Appends the samples in Prometheus' text format, in seconds. `labels` precede the bound's.
    pub fn append(&self, page: &mut String, name: &str, labels: &str) {
        let bounds = (0..BOUNDS).map(|at| ((1u64 << (at + FIRST_POWER)) as f64 / 1e6).to_string());
        let buckets = bounds.chain(["+Inf".into()]).zip(self.counts);
        append_histogram(page, name, labels, buckets, &(self.total_us as f64 / 1e6).to_string());
    }
}

/// Appends a histogram in Prometheus' text format: upper bounds with the count of each bucket, and the sum.
pub fn append_histogram(
    page: &mut String,
    name: &str,
    labels: &str,
    buckets: impl Iterator<Item = (String, u64)>,
    total: &str,
) {
    let comma = if labels.is_empty() { "" } else { "," };
    let mut seen = 0;
    for (bound, requests) in buckets {
        seen += requests;
        // Writing to a string cannot fail.
        let _ = writeln!(page, "{name}_bucket{{{labels}{comma}le=\"{bound}\"}} {seen}");
    }
    let labels = if labels.is_empty() { String::new() } else { format!("{{{labels}}}") };
    let _ = writeln!(page, "{name}_sum{labels} {total}\n{name}_count{labels} {seen}");
}

/// The kinds of memcached requests whose latency is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimedRequest {
    /// A get that found its item in DRAM or in a write buffer.
    GetFromMemory,
    /// A get whose item was read from flash.
    GetFromFlash,
    /// A storage command that stored.
    Set,
}

const TIMED: usize = 3;

/// One for each worker, on cache lines of its own.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct RequestLatencies {
    requests: [LatencyHistogram; TIMED],
}

impl RequestLatencies {
    pub fn add(&self, request: TimedRequest, requests: u64, took: Duration) {
        self.requests[request as usize].add(requests, took);
    }

    pub fn reset(&self) {
        self.requests.iter().for_each(LatencyHistogram::reset);
    }
}

/// Requests answered at once in the current report. Their latency is that of the whole report, and is added at its end.
#[derive(Clone, Copy, Debug, Default)]
pub struct AnsweredAtOnce {
    pub gets: u64,
    pub sets: u64,
}

/// The sum over all workers.
pub fn sum(all: &[RequestLatencies], requests: &[TimedRequest]) -> Latencies {
    all.iter().flat_map(|one| requests.iter().map(|request| &one.requests[*request as usize])).collect()
}

/// For Prometheus: the sum over all workers.
pub fn append(page: &mut String, all: &[RequestLatencies]) {
    let of = |request: TimedRequest| sum(all, &[request]);
    let name = "tapetum_get_seconds";
    family(page, name, "histogram", "How long gets took that found their item, by where it was: memory or flash");
    of(TimedRequest::GetFromMemory).append(page, name, "from=\"memory\"");
    of(TimedRequest::GetFromFlash).append(page, name, "from=\"flash\"");
    let name = "tapetum_set_seconds";
    family(page, name, "histogram", "How long storage commands took that stored, until their answer was due");
    of(TimedRequest::Set).append(page, name, "");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn latencies_of_all_workers_are_one_histogram_of_seconds() {
        let all = [RequestLatencies::default(), RequestLatencies::default()];
        all[0].add(TimedRequest::GetFromMemory, 3, Duration::from_nanos(1));
        all[1].add(TimedRequest::GetFromMemory, 1, Duration::from_micros(8));
        all[1].add(TimedRequest::GetFromFlash, 1, Duration::from_micros(100));
        all[0].add(TimedRequest::Set, 2, Duration::from_secs(3600));
        let mut page = String::new();
        append(&mut page, &all);
        for line in [
            "# TYPE tapetum_get_seconds histogram",
            "tapetum_get_seconds_bucket{from=\"memory\",le=\"0.000008\"} 3",
            "tapetum_get_seconds_bucket{from=\"memory\",le=\"0.000016\"} 4",
            "tapetum_get_seconds_sum{from=\"memory\"} 0.000008",
            "tapetum_get_seconds_bucket{from=\"flash\",le=\"0.000064\"} 0",
            "tapetum_get_seconds_bucket{from=\"flash\",le=\"0.000128\"} 1",
            "tapetum_set_seconds_bucket{le=\"33.554432\"} 0",
            "tapetum_set_seconds_bucket{le=\"+Inf\"} 2",
            "tapetum_set_seconds_sum 7200",
            "tapetum_set_seconds_count 2",
        ] {
            assert!(page.contains(&format!("{line}\n")), "{line}\n{page}");
        }
        all.iter().for_each(RequestLatencies::reset);
        let sum: Latencies = all.iter().flat_map(|one| &one.requests).collect();
        assert_eq!((sum.requests(), sum.under_us(500)), (0, 0));
    }
}
