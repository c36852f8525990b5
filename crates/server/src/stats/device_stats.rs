//! What clients of block devices asked for: how often, how much at once, and how long it took. A set a worker, which alone adds to it.

use std::fmt::Write as _;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::{Figure, FigureKind, count};
use crate::doors::metrics::family;

/// The commands that are counted, by their names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceCommand {
    Read,
    Write,
    Flush,
    Trim,
    WriteZeroes,
    BlockStatus,
}

const NAMES: [&str; 6] = ["read", "write", "flush", "trim", "write_zeroes", "block_status"];
/// Upper bounds of sizes, in bytes; longer ones follow.
const SIZES: [u32; 4] = [4 << 10, 16 << 10, 64 << 10, 256 << 10];
/// Upper bounds of latencies are powers of two of a microsecond, up to a minute; longer ones follow.
const LATENCIES: usize = 26;

#[derive(Debug, Default)]
struct CommandCounts {
    latencies: [AtomicU64; LATENCIES + 1],
    latency_us: AtomicU64,
    sizes: [AtomicU64; SIZES.len() + 1],
    bytes: AtomicU64,
}

#[derive(Debug, Default)]
pub struct DeviceCounts {
    commands: [CommandCounts; NAMES.len()],
    errors: AtomicU64,
    holes: AtomicU64,
    changes: AtomicU64,
}

impl DeviceCounts {
    /// A request was answered, or refused.
    pub fn answered(&self, command: DeviceCommand, bytes: u32, took: Duration, is_error: bool) {
        let counts = &self.commands[command as usize];
        let took_us = took.as_micros().min(u128::from(u64::MAX)) as u64;
        count(&counts.latencies[(took_us.max(1).ilog2() as usize + 1).min(LATENCIES)], 1);
        count(&counts.latency_us, took_us);
        count(&counts.sizes[SIZES.iter().position(|size| bytes <= *size).unwrap_or(SIZES.len())], 1);
        count(&counts.bytes, bytes.into());
        count(&self.errors, is_error.into());
    }

    /// A read met with a block that is not there.
    pub fn met_hole(&self) {
        count(&self.holes, 1);
    }

    /// A part of a block is changed, for which the block is read first.
    pub fn changes_part(&self) {
        count(&self.changes, 1);
    }

    fn all(&self) -> impl Iterator<Item = &AtomicU64> {
        let of_commands = self
            .commands
            .iter()
            .flat_map(|counts| counts.latencies.iter().chain(&counts.sizes).chain([&counts.latency_us, &counts.bytes]));
        of_commands.chain([&self.errors, &self.holes, &self.changes])
    }

    pub fn reset(&self) {
        self.all().for_each(|counter| counter.store(0, Ordering::Relaxed));
    }
}

/// The sum over all workers of one counter.
fn sum(all: &[DeviceCounts], counter: impl Fn(&DeviceCounts) -> &AtomicU64) -> u64 {
    all.iter().map(|one| counter(one).load(Ordering::Relaxed)).sum()
}

fn latencies(all: &[DeviceCounts], command: usize) -> [u64; LATENCIES + 1] {
    std::array::from_fn(|at| sum(all, |one| &one.commands[command].latencies[at]))
}

/// The bound under which so many of a thousand latencies are, in microseconds.
fn latency_under(latencies: &[u64], of_thousand: u64) -> u64 {
    let wanted = (latencies.iter().sum::<u64>() * of_thousand).div_ceil(1000);
    let mut seen = 0;
    let at = latencies.iter().position(|count| {
        seen += count;
        seen >= wanted && wanted > 0
    });
    at.map_or(0, |at| 1 << at)
}

/// For `stats`; none where no block device is served.
pub fn figures(all: &[DeviceCounts]) -> Vec<Figure> {
    use FigureKind::{Counter, Gauge};
    if all.is_empty() {
        return Vec::new();
    }
    let requests = |command: usize| latencies(all, command).iter().sum::<u64>();
    let bytes = |command: usize| sum(all, |one| &one.commands[command].bytes);
    let under = |command: usize, of_thousand| latency_under(&latencies(all, command), of_thousand);
    let figure = |name, help, value: u64| Figure::new(name, Counter, help, value);
    let level = |name, value: u64| Figure::new(name, Gauge, "Most such requests took less, in microseconds", value);
    vec![
        figure("nbd_reads", "Reads of block devices", requests(0)),
        figure("nbd_writes", "Writes to block devices", requests(1)),
        figure("nbd_flushes", "Flushes of block devices", requests(2)),
        figure("nbd_trims", "Trims of block devices", requests(3)),
        figure("nbd_zeroes", "Writes of zeroes to block devices", requests(4)),
        figure("nbd_statuses", "Questions for holes of block devices", requests(5)),
        figure("nbd_read_bytes", "Bytes that these reads asked for", bytes(0)),
        figure("nbd_write_bytes", "Bytes of these writes", bytes(1)),
        figure("nbd_errors", "Requests to block devices that came to an error", sum(all, |one| &one.errors)),
        figure("nbd_read_holes", "Blocks that reads found absent", sum(all, |one| &one.holes)),
        figure("nbd_part_changes", "Parts of blocks that were written", sum(all, |one| &one.changes)),
        level("nbd_read_us_p50", under(0, 500)),
        level("nbd_read_us_p99", under(0, 990)),
        level("nbd_read_us_p999", under(0, 999)),
        level("nbd_write_us_p50", under(1, 500)),
        level("nbd_write_us_p99", under(1, 990)),
        level("nbd_write_us_p999", under(1, 999)),
        level("nbd_flush_us_p50", under(2, 500)),
        level("nbd_flush_us_p99", under(2, 990)),
        level("nbd_flush_us_p999", under(2, 999)),
    ]
}

/// For Prometheus: histograms of each command.
pub fn append(page: &mut String, all: &[DeviceCounts]) {
    if all.is_empty() {
        return;
    }
    let bounds: Vec<String> = (0..LATENCIES).map(|at| ((1u64 << at) as f64 / 1e6).to_string()).collect();
    family(page, "tapetum_nbd_request_seconds", "histogram", "How long requests to block devices took");
    append_histograms(page, "seconds", &bounds, |command| {
        let total_us = sum(all, |one| &one.commands[command].latency_us);
        (latencies(all, command).to_vec(), (total_us as f64 / 1e6).to_string())
    });
    let bounds: Vec<String> = SIZES.iter().map(u32::to_string).collect();
    family(page, "tapetum_nbd_request_bytes", "histogram", "Bytes that requests to block devices named");
    append_histograms(page, "bytes", &bounds, |command| {
        let counts = (0..=SIZES.len()).map(|at| sum(all, |one| &one.commands[command].sizes[at])).collect();
        (counts, sum(all, |one| &one.commands[command].bytes).to_string())
    });
}

/// One histogram a command, of which `of` gives the counts between the bounds and the sum of all.
fn append_histograms(page: &mut String, unit: &str, bounds: &[String], of: impl Fn(usize) -> (Vec<u64>, String)) {
    let name = format!("tapetum_nbd_request_{unit}");
    for (number, command) in NAMES.iter().enumerate() {
        let (counts, total) = of(number);
        let mut seen = 0;
        for (bound, count) in bounds.iter().map(String::as_str).chain(["+Inf"]).zip(&counts) {
            seen += count;
            // Writing to a string cannot fail.
            let _ = writeln!(page, "{name}_bucket{{command=\"{command}\",le=\"{bound}\"}} {seen}");
        }
        let _ = writeln!(page, "{name}_sum{{command=\"{command}\"}} {total}");
        let _ = writeln!(page, "{name}_count{{command=\"{command}\"}} {seen}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_told_by_command_size_and_latency() {
        let all = [DeviceCounts::default(), DeviceCounts::default()];
        for (worker, us) in [(0, 0), (0, 3), (1, 3), (1, 900)] {
            all[worker].answered(DeviceCommand::Write, 4096, Duration::from_micros(us), false);
        }
        all[0].answered(DeviceCommand::Read, 4097, Duration::from_secs(3600), true);
        let value = |name| figures(&all).into_iter().find(|figure| figure.name == name).unwrap().value;
        assert_eq!((value("nbd_writes"), value("nbd_write_bytes")), ("4".into(), "16384".into()));
        assert_eq!((value("nbd_write_us_p50"), value("nbd_write_us_p999")), ("4".into(), "1024".into()));
        assert_eq!((value("nbd_errors"), value("nbd_flush_us_p99")), ("1".into(), "0".into()));
        let mut page = String::new();
        append(&mut page, &all);
        for line in [
            "tapetum_nbd_request_seconds_bucket{command=\"write\",le=\"0.000002\"} 1",
            "tapetum_nbd_request_seconds_bucket{command=\"write\",le=\"0.000004\"} 3",
            "tapetum_nbd_request_seconds_count{command=\"write\"} 4",
            "tapetum_nbd_request_bytes_bucket{command=\"read\",le=\"4096\"} 0",
            "tapetum_nbd_request_bytes_bucket{command=\"read\",le=\"+Inf\"} 1",
        ] {
            assert!(page.contains(line), "{line}\n{page}");
        }
        all.iter().for_each(DeviceCounts::reset);
        assert_eq!(value("nbd_writes"), "0");
        assert!(figures(&[]).is_empty());
    }
}
