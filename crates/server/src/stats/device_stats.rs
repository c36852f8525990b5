//! Requests of block devices' clients: counts, sizes, latencies; and the store's figures of each device. One set of counters for each
//! worker and device, which only that worker changes.

use std::fmt::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tapetum::{KeyspaceId, KeyspaceWrites};

use super::latencies::{Latencies, LatencyHistogram, append_histogram};
use super::{Figure, FigureKind, count};
use crate::stats::exposition::{family, label};
use tapetum_service::escapes::word;

/// The counted commands, by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceCommand {
    Read,
    Write,
    Flush,
    Trim,
    WriteZeroes,
    BlockStatus,
}

const COMMANDS: [(&str, DeviceCommand); 6] = [
    ("read", DeviceCommand::Read),
    ("write", DeviceCommand::Write),
    ("flush", DeviceCommand::Flush),
    ("trim", DeviceCommand::Trim),
    ("write_zeroes", DeviceCommand::WriteZeroes),
    ("block_status", DeviceCommand::BlockStatus),
];
/// Upper bounds of sizes, in bytes. Longer requests go into a last bucket.
const SIZES: [u32; 4] = [4 << 10, 16 << 10, 64 << 10, 256 << 10];

#[derive(Debug, Default)]
struct CommandCounts {
    latencies: LatencyHistogram,
    sizes: [AtomicU64; SIZES.len() + 1],
    bytes: AtomicU64,
}

#[derive(Debug, Default)]
#[repr(align(128))]
pub struct DeviceCounts {
    commands: [CommandCounts; COMMANDS.len()],
    errors: AtomicU64,
    holes: AtomicU64,
    changes: AtomicU64,
}

impl DeviceCounts {
    /// A request was answered or refused.
    pub fn answered(&self, command: DeviceCommand, bytes: u32, took: Duration, is_error: bool) {
        let counts = &self.commands[command as usize];
        counts.latencies.add(1, took);
        count(&counts.sizes[SIZES.iter().position(|size| bytes <= *size).unwrap_or(SIZES.len())], 1);
        count(&counts.bytes, bytes.into());
        count(&self.errors, is_error.into());
    }

    /// A read met an absent block.
    pub fn met_hole(&self) {
        count(&self.holes, 1);
    }

    /// A part of a block is changed, which requires a read of the block.
    pub fn changes_part(&self) {
        count(&self.changes, 1);
    }

    fn reset(&self) {
        self.commands.iter().for_each(|counts| counts.latencies.reset());
        let of_commands = self.commands.iter().flat_map(|counts| counts.sizes.iter().chain([&counts.bytes]));
        let all = of_commands.chain([&self.errors, &self.holes, &self.changes]);
        all.for_each(|counter| counter.store(0, Ordering::Relaxed));
    }
}

/// A device, and its counters by worker.
#[derive(Clone, Debug)]
pub struct ServedDevice {
    pub name: String,
    pub keyspace: KeyspaceId,
    pub blocks: u64,
    /// Its blocks lie on flash in groups, so that single blocks cannot be counted.
    pub is_grouped: bool,
    pub counts: Arc<[DeviceCounts]>,
}

/// The store's figures about the devices.
pub struct HeldDevices<'a> {
    /// The approximate number of items of a keyspace.
    pub items: &'a dyn Fn(KeyspaceId) -> u64,
    pub writes: &'a dyn Fn(KeyspaceId) -> KeyspaceWrites,
}

/// The figures of the block devices that are served at a moment. The default has none.
#[derive(Debug, Default)]
pub struct DeviceFigures {
    devices: Vec<ServedDevice>,
}

impl DeviceFigures {
    pub fn new(devices: Vec<ServedDevice>) -> DeviceFigures {
        DeviceFigures { devices }
    }

    pub fn are_there(&self) -> bool {
        !self.devices.is_empty()
    }

    fn counts(&self) -> impl Iterator<Item = &DeviceCounts> {
        self.devices.iter().flat_map(|device| device.counts.iter())
    }

    pub fn reset(&self) {
        self.counts().for_each(DeviceCounts::reset);
    }

    /// For `stats`: the sum over all devices. Empty if no block device is served.
    pub fn figures(&self) -> Vec<Figure> {
        if self.devices.is_empty() {
            return Vec::new();
        }
        let all = DeviceSum { counts: self.counts().collect() };
        let counted = COUNTED.iter().map(|(name, help, of)| Figure::new(name, FigureKind::Counter, help, of(&all)));
        counted.collect()
    }

    /// For `stats`: each device, with its name in front.
    pub fn lines(&self, held: &HeldDevices<'_>) -> Vec<(String, String)> {
        let mut lines = Vec::new();
        for device in &self.devices {
            let (sum, facts) = (DeviceSum::of_device(device), HeldFacts::of(device, held));
            let counted = COUNTED.iter().map(|(name, _, of)| (name.trim_start_matches("nbd_"), of(&sum).to_string()));
            let mut own: Vec<(&str, String)> = counted.collect();
            for (command, names) in LEVELS {
                let latencies = sum.latencies(command);
                own.extend(names.map(|(name, of_thousand)| (name, latencies.under_us(of_thousand).to_string())));
            }
            own.push(("blocks", device.blocks.to_string()));
            own.extend(facts.holes.map(|holes| ("holes", holes.to_string())));
            own.extend(facts.compression_ratio.map(|ratio| ("compression_ratio", format!("{ratio:.3}"))));
            own.push(("flushed_bytes", facts.writes.flushed_bytes.to_string()));
            own.push(("collected_bytes", facts.writes.collected_bytes.to_string()));
            own.extend(facts.amplification(&sum).map(|times| ("segment_write_amplification", format!("{times:.3}"))));
            let device = word(&device.name);
            lines.extend(own.into_iter().map(|(name, value)| (format!("device:{device}:{name}"), value)));
        }
        lines
    }

    /// For Prometheus: histograms of each command of each device, and the store's figures of it.
    pub fn append(&self, page: &mut String, held: &HeldDevices<'_>) {
        if self.devices.is_empty() {
            return;
        }
        self.append_latencies(page);
        self.append_sizes(page);
        let facts: Vec<(String, HeldFacts, u64)> = (self.devices.iter())
            .map(|device| (label(&device.name), HeldFacts::of(device, held), device.blocks))
            .collect();
        let mut gauge = |name: &str, help: &str, value: &dyn Fn(&HeldFacts, u64) -> Option<String>| {
            family(page, name, "gauge", help);
            for (device, facts, blocks) in &facts {
                if let Some(value) = value(facts, *blocks) {
                    // Writing to a string cannot fail.
                    let _ = writeln!(page, "{name}{{device={device}}} {value}");
                }
            }
        };
        gauge("tapetum_nbd_blocks", "Blocks of 4 KiB that a block device has", &|_, blocks| Some(blocks.to_string()));
        let help = "Of these, blocks never written, or trimmed, about; not told where blocks lie in groups";
        gauge("tapetum_nbd_holes", help, &|facts, _| facts.holes.map(|holes| holes.to_string()));
        let help =
            "Bytes of the blocks that were flushed since the store was opened, for each byte that is kept of them";
        gauge("tapetum_nbd_compression_ratio", help, &|facts, _| {
            facts.compression_ratio.map(|ratio| format!("{ratio:.3}"))
        });
    }

    fn append_latencies(&self, page: &mut String) {
        let name = "tapetum_nbd_request_seconds";
        family(page, name, "histogram", "How long requests to block devices took");
        self.each_command(|labels, sum, command| sum.latencies(command).append(page, name, labels));
    }

    fn append_sizes(&self, page: &mut String) {
        let name = "tapetum_nbd_request_bytes";
        family(page, name, "histogram", "Bytes that requests to block devices named");
        self.each_command(|labels, sum, command| {
            let bounds = SIZES.iter().map(u32::to_string).chain(["+Inf".into()]);
            let counts = (0..=SIZES.len()).map(|at| sum.of(|one| &one.commands[command as usize].sizes[at]));
            append_histogram(page, name, labels, bounds.zip(counts), &sum.bytes(command).to_string());
        });
    }

    fn each_command(&self, mut tell: impl FnMut(&str, &DeviceSum<'_>, DeviceCommand)) {
        for device in &self.devices {
            let sum = DeviceSum::of_device(device);
            for (name, command) in COMMANDS {
                tell(&format!("device={},command=\"{name}\"", label(&device.name)), &sum, command);
            }
        }
    }
}

/// Counters of a device, summed over workers.
struct DeviceSum<'a> {
    counts: Vec<&'a DeviceCounts>,
}

impl DeviceSum<'_> {
    fn of_device(device: &ServedDevice) -> DeviceSum<'_> {
        DeviceSum { counts: device.counts.iter().collect() }
    }

    fn of(&self, counter: impl Fn(&DeviceCounts) -> &AtomicU64) -> u64 {
        self.counts.iter().map(|one| counter(one).load(Ordering::Relaxed)).sum()
    }

    fn latencies(&self, command: DeviceCommand) -> Latencies {
        self.counts.iter().map(|one| &one.commands[command as usize].latencies).collect()
    }

    fn requests(&self, command: DeviceCommand) -> u64 {
        self.latencies(command).requests()
    }

    fn bytes(&self, command: DeviceCommand) -> u64 {
        self.of(|one| &one.commands[command as usize].bytes)
    }
}

type CountedFigure = (&'static str, &'static str, fn(&DeviceSum<'_>) -> u64);

const COUNTED: [CountedFigure; 11] = [
    ("nbd_reads", "Reads of block devices", |sum| sum.requests(DeviceCommand::Read)),
    ("nbd_writes", "Writes to block devices", |sum| sum.requests(DeviceCommand::Write)),
    ("nbd_flushes", "Flushes of block devices", |sum| sum.requests(DeviceCommand::Flush)),
    ("nbd_trims", "Trims of block devices", |sum| sum.requests(DeviceCommand::Trim)),
    ("nbd_zeroes", "Writes of zeroes to block devices", |sum| sum.requests(DeviceCommand::WriteZeroes)),
    ("nbd_statuses", "Questions for holes of block devices", |sum| sum.requests(DeviceCommand::BlockStatus)),
    ("nbd_read_bytes", "Bytes that these reads asked for", |sum| sum.bytes(DeviceCommand::Read)),
    ("nbd_write_bytes", "Bytes of these writes", |sum| sum.bytes(DeviceCommand::Write)),
    ("nbd_errors", "Requests to block devices that came to an error", |sum| sum.of(|one| &one.errors)),
    ("nbd_read_holes", "Blocks that reads found absent", |sum| sum.of(|one| &one.holes)),
    ("nbd_part_changes", "Parts of blocks that were written", |sum| sum.of(|one| &one.changes)),
];

/// Percentiles that `stats` shows, in thousandths.
const LEVELS: [(DeviceCommand, [(&str, u64); 3]); 3] = [
    (DeviceCommand::Read, [("read_us_p50", 500), ("read_us_p99", 990), ("read_us_p999", 999)]),
    (DeviceCommand::Write, [("write_us_p50", 500), ("write_us_p99", 990), ("write_us_p999", 999)]),
    (DeviceCommand::Flush, [("flush_us_p50", 500), ("flush_us_p99", 990), ("flush_us_p999", 999)]),
];

/// The store's figures of one device.
struct HeldFacts {
    /// `None` if blocks lie in groups.
    holes: Option<u64>,
    /// `None` if nothing was flushed.
    compression_ratio: Option<f64>,
    writes: KeyspaceWrites,
}

impl HeldFacts {
    fn of(device: &ServedDevice, held: &HeldDevices<'_>) -> HeldFacts {
        let writes = (held.writes)(device.keyspace);
        let ratio = writes.value_bytes as f64 / writes.record_bytes as f64;
        HeldFacts {
            holes: (!device.is_grouped).then(|| device.blocks.saturating_sub((held.items)(device.keyspace))),
            compression_ratio: (writes.record_bytes > 0).then_some(ratio),
            writes,
        }
    }

    /// Bytes written to segments for each byte that clients wrote. The log adds to that; all keyspaces share it.
    fn amplification(&self, sum: &DeviceSum<'_>) -> Option<f64> {
        let (written, asked) =
            (self.writes.flushed_bytes + self.writes.collected_bytes, sum.bytes(DeviceCommand::Write));
        (asked > 0).then_some(written as f64 / asked as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_told_by_device_command_size_and_latency() {
        let device = |name: &str, id| ServedDevice {
            name: name.into(),
            keyspace: KeyspaceId(id),
            blocks: 100,
            is_grouped: id == 2,
            counts: (0..2).map(|_| DeviceCounts::default()).collect(),
        };
        let devices = vec![device("disk0", 1), device("disk1", 2)];
        let figures = DeviceFigures::new(devices.clone());
        for (worker, us) in [(0, 0), (0, 9), (1, 9), (1, 900)] {
            devices[0].counts[worker].answered(DeviceCommand::Write, 4096, Duration::from_micros(us), false);
        }
        devices[1].counts[0].answered(DeviceCommand::Read, 4097, Duration::from_secs(3600), true);
        let value = |name| figures.figures().into_iter().find(|figure| figure.name == name).unwrap().value;
        assert_eq!(
            (value("nbd_writes"), value("nbd_write_bytes"), value("nbd_errors")),
            ("4".into(), "16384".into(), "1".into())
        );
        let writes =
            KeyspaceWrites { value_bytes: 4096, record_bytes: 1024, flushed_bytes: 30_000, collected_bytes: 2768 };
        let held = HeldDevices { items: &|_| 60, writes: &|_| writes };
        let lines = figures.lines(&held);
        for (name, value) in [
            ("device:disk0:writes", "4"),
            ("device:disk0:write_us_p50", "16"),
            ("device:disk0:write_us_p999", "1024"),
            ("device:disk0:flush_us_p99", "0"),
            ("device:disk0:holes", "40"),
            ("device:disk0:compression_ratio", "4.000"),
            ("device:disk0:segment_write_amplification", "2.000"),
            ("device:disk1:errors", "1"),
        ] {
            assert!(lines.contains(&(name.into(), value.into())), "{name} {value}: {lines:?}");
        }
        assert!(!lines.iter().any(|(name, _)| name == "device:disk1:holes"), "nobody counts them: {lines:?}");
        let mut page = String::new();
        figures.append(&mut page, &held);
        for line in [
            "tapetum_nbd_request_seconds_bucket{device=\"disk0\",command=\"write\",le=\"0.000008\"} 1",
            "tapetum_nbd_request_seconds_bucket{device=\"disk0\",command=\"write\",le=\"0.000016\"} 3",
            "tapetum_nbd_request_seconds_count{device=\"disk0\",command=\"write\"} 4",
            "tapetum_nbd_request_bytes_bucket{device=\"disk1\",command=\"read\",le=\"4096\"} 0",
            "tapetum_nbd_request_bytes_bucket{device=\"disk1\",command=\"read\",le=\"+Inf\"} 1",
            "tapetum_nbd_holes{device=\"disk0\"} 40",
        ] {
            assert!(page.contains(line), "{line}\n{page}");
        }
        figures.reset();
        assert_eq!(value("nbd_writes"), "0");
        assert!(DeviceFigures::default().figures().is_empty());
    }
}
