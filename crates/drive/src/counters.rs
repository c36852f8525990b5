//! Counters of a drive: commands, bytes moved, latencies.
//!
//! Each queue pair counts for itself (one writer, relaxed atomics, no locked instructions), and a snapshot adds them
//! up. Counts of a closed queue pair stay. A snapshot is not a cut through time: it may catch a command between two of
//! its counters.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use crate::cpu::DriveUsage;
use crate::locks::whole;
use crate::protocol::{Opcode, Purpose, Status};

/// Four buckets an octave: a quantile is at most a quarter above the truth.
const SUB_BUCKET_BITS: u32 = 2;
/// The last bucket begins at seven days; longer latencies fall in it.
const BUCKETS: usize = 156;

/// Counters of one queue pair. Only its owner adds.
pub(crate) struct QueueCounters {
    opcodes: [OpcodeCounters; Opcode::COUNT],
    bytes: [PurposeCounters; Purpose::COUNT],
    drive_wakes: AtomicU64,
    host_wakes: AtomicU64,
    depth_now: AtomicU64,
    depth_max: AtomicU64,
}

/// The counters of all queue pairs of a drive: as many as were ever open at the same time. The list holds one reference of each; a queue
/// pair's two halves hold more, so a count of one means free for the next.
#[derive(Default)]
pub(crate) struct DriveCounters(Mutex<Vec<Arc<QueueCounters>>>);

#[derive(Default)]
struct PurposeCounters {
    flash_to_local: AtomicU64,
    local_to_flash: AtomicU64,
    local_to_host: AtomicU64,
    host_to_local: AtomicU64,
    commands: AtomicU64,
}

struct OpcodeCounters {
    completed: AtomicU64,
    failed: AtomicU64,
    latency_sum_us: AtomicU64,
    latency_counts: [AtomicU64; BUCKETS],
}

impl DriveCounters {
    /// Counters that no open queue pair uses.
    pub(crate) fn free(&self) -> Arc<QueueCounters> {
        let mut all = whole(self.0.lock());
        if let Some(free) = all.iter().find(|counters| Arc::strong_count(counters) == 1) {
            return free.clone();
        }
        let fresh = Arc::new(QueueCounters::new());
        all.push(fresh.clone());
        fresh
    }

    /// Bytes read from flash for one purpose. Cheap: it adds one word of each queue pair.
    pub(crate) fn read_bytes(&self, purpose: Purpose) -> u64 {
        let read =
            |counters: &Arc<QueueCounters>| counters.bytes[purpose.index()].flash_to_local.load(Ordering::Relaxed);
        whole(self.0.lock()).iter().map(read).sum()
    }

    pub(crate) fn snapshot(&self) -> CountersSnapshot {
        let mut snapshot = CountersSnapshot::default();
        whole(self.0.lock()).iter().for_each(|counters| counters.add_to(&mut snapshot));
        snapshot
    }
}

/// Adds without a locked instruction: right only because each queue pair has one owner at a time.
fn add(counter: &AtomicU64, amount: u64) {
    counter.store(counter.load(Ordering::Relaxed) + amount, Ordering::Relaxed);
}

impl QueueCounters {
    pub(crate) fn new() -> QueueCounters {
        QueueCounters {
            opcodes: std::array::from_fn(|_| OpcodeCounters {
                completed: AtomicU64::new(0),
                failed: AtomicU64::new(0),
                latency_sum_us: AtomicU64::new(0),
                latency_counts: std::array::from_fn(|_| AtomicU64::new(0)),
            }),
            bytes: Default::default(),
            drive_wakes: AtomicU64::new(0),
            host_wakes: AtomicU64::new(0),
            depth_now: AtomicU64::new(0),
            depth_max: AtomicU64::new(0),
        }
    }

    pub(crate) fn completed(&self, opcode: Opcode, status: Status) {
        let counters = &self.opcodes[opcode.index()];
        add(&counters.completed, 1);
        if !matches!(status, Status::Success | Status::More | Status::Program(_)) {
            add(&counters.failed, 1);
        }
    }

    pub(crate) fn latency(&self, opcode: Opcode, latency_us: u64) {
        let counters = &self.opcodes[opcode.index()];
        add(&counters.latency_sum_us, latency_us);
        add(&counters.latency_counts[bucket_of(latency_us)], 1);
    }

    pub(crate) fn moved_flash_to_local(&self, purpose: Purpose, bytes: u64) {
        add(&self.bytes[purpose.index()].flash_to_local, bytes);
    }

    pub(crate) fn moved_local_to_flash(&self, purpose: Purpose, bytes: u64) {
        add(&self.bytes[purpose.index()].local_to_flash, bytes);
    }

    pub(crate) fn moved_local_to_host(&self, purpose: Purpose, bytes: u64) {
        add(&self.bytes[purpose.index()].local_to_host, bytes);
    }

    pub(crate) fn moved_host_to_local(&self, purpose: Purpose, bytes: u64) {
        add(&self.bytes[purpose.index()].host_to_local, bytes);
    }

    /// The host has submitted a command.
    pub(crate) fn submitted(&self, purpose: Purpose) {
        add(&self.bytes[purpose.index()].commands, 1);
    }

    /// The host has woken a thread of the drive's. Only the host counts these.
    pub(crate) fn woke_drive(&self) {
        add(&self.drive_wakes, 1);
    }

    /// The drive has woken the host. Only the drive counts these.
    pub(crate) fn woke_host(&self) {
        add(&self.host_wakes, 1);
    }

    pub(crate) fn depth(&self, now: u64) {
        self.depth_now.store(now, Ordering::Relaxed);
        if now > self.depth_max.load(Ordering::Relaxed) {
            self.depth_max.store(now, Ordering::Relaxed);
        }
    }

    pub(crate) fn add_to(&self, snapshot: &mut CountersSnapshot) {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        for (total, counters) in snapshot.opcodes.iter_mut().zip(&self.opcodes) {
            total.completed += get(&counters.completed);
            total.failed += get(&counters.failed);
            total.latency.sum_us += get(&counters.latency_sum_us);
            for (count, bucket) in total.latency.counts.iter_mut().zip(&counters.latency_counts) {
                *count += get(bucket);
            }
        }
        for (total, counters) in snapshot.purposes.iter_mut().zip(&self.bytes) {
            let PurposeCounters { flash_to_local, local_to_flash, local_to_host, host_to_local, commands } = counters;
            let moved = PurposeAccount {
                flash_to_local: get(flash_to_local),
                local_to_flash: get(local_to_flash),
                local_to_host: get(local_to_host),
                host_to_local: get(host_to_local),
                commands: get(commands),
            };
            *total += moved;
            snapshot.flash_to_local_bytes += moved.flash_to_local;
            snapshot.local_to_flash_bytes += moved.local_to_flash;
            snapshot.local_to_host_bytes += moved.local_to_host;
            snapshot.host_to_local_bytes += moved.host_to_local;
        }
        snapshot.drive_wakes += get(&self.drive_wakes);
        snapshot.host_wakes += get(&self.host_wakes);
        snapshot.queue_depth_now += get(&self.depth_now);
        snapshot.queue_depth_max = snapshot.queue_depth_max.max(get(&self.depth_max));
    }
}

/// A drive's counters since it was built, all queue pairs together.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CountersSnapshot {
    /// Indexed as [`Opcode::ALL`]; see [`CountersSnapshot::opcode`].
    pub opcodes: [OpcodeSnapshot; Opcode::COUNT],
    /// Bytes moved by successful reads.
    pub flash_to_local_bytes: u64,
    /// Bytes moved by successful writes.
    pub local_to_flash_bytes: u64,
    /// Bytes of local memory that the host read in place or copied out. The difference to `flash_to_local_bytes` is what near-data
    /// processing saves.
    pub local_to_host_bytes: u64,
    /// Bytes that the host wrote to local memory.
    pub host_to_local_bytes: u64,
    /// Bytes and commands by purpose, indexed as [`Purpose::ALL`]; see [`CountersSnapshot::purpose`].
    pub purposes: [PurposeAccount; Purpose::COUNT],
    /// How often a host woke a thread or process of the drive's, which slept.
    pub drive_wakes: u64,
    /// How often one of those woke a host.
    pub host_wakes: u64,
    /// Commands submitted and not yet polled, over all queue pairs.
    pub queue_depth_now: u64,
    /// The most that any one queue pair held.
    pub queue_depth_max: u64,
    /// The usage of the drive's process. `None` if that is this one, or is gone.
    pub process: Option<DriveUsage>,
}

impl CountersSnapshot {
    /// Adds the counters that another process has of the same drive. Of two that differ in version nothing is added.
    pub(crate) fn add_encoded(&mut self, encoded: &[u8]) {
        let mut words = encoded.as_chunks::<8>().0.iter();
        let mut sum = self.clone();
        let mut is_whole = true;
        sum.each_word(|word| match words.next() {
            Some(more) => *word = word.saturating_add(u64::from_le_bytes(*more)),
            None => is_whole = false,
        });
        if is_whole && words.next().is_none() {
            *self = sum;
        }
    }

    /// For [`CountersSnapshot::add_encoded`].
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut encoded = Vec::new();
        self.clone().each_word(|word| encoded.extend_from_slice(&word.to_le_bytes()));
        encoded
    }

    fn each_word(&mut self, mut visit: impl FnMut(&mut u64)) {
        for opcode in &mut self.opcodes {
            let OpcodeSnapshot { completed, failed, latency: LatencySnapshot { counts, sum_us } } = opcode;
            [completed, failed, sum_us].into_iter().chain(counts).for_each(&mut visit);
        }
        for purpose in &mut self.purposes {
            let PurposeAccount { flash_to_local, local_to_flash, local_to_host, host_to_local, commands } = purpose;
            [flash_to_local, local_to_flash, local_to_host, host_to_local, commands].into_iter().for_each(&mut visit);
        }
        let CountersSnapshot { flash_to_local_bytes, local_to_flash_bytes, .. } = self;
        [flash_to_local_bytes, local_to_flash_bytes].into_iter().for_each(&mut visit);
        let CountersSnapshot { drive_wakes, host_wakes, .. } = self;
        [drive_wakes, host_wakes].into_iter().for_each(&mut visit);
        let CountersSnapshot { local_to_host_bytes, host_to_local_bytes, queue_depth_now, .. } = self;
        [local_to_host_bytes, host_to_local_bytes, queue_depth_now].into_iter().for_each(&mut visit);
    }

    pub fn opcode(&self, opcode: Opcode) -> &OpcodeSnapshot {
        &self.opcodes[opcode.index()]
    }

    pub fn purpose(&self, purpose: Purpose) -> PurposeAccount {
        self.purposes[purpose.index()]
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PurposeAccount {
    pub flash_to_local: u64,
    /// Includes bytes that were written to flash from the host's region.
    pub local_to_flash: u64,
    pub local_to_host: u64,
    /// Includes bytes of the host's region that the drive read.
    pub host_to_local: u64,
    /// Commands that the host submitted.
    pub commands: u64,
}

impl std::ops::AddAssign for PurposeAccount {
    fn add_assign(&mut self, other: PurposeAccount) {
        self.flash_to_local += other.flash_to_local;
        self.local_to_flash += other.local_to_flash;
        self.local_to_host += other.local_to_host;
        self.host_to_local += other.host_to_local;
        self.commands += other.commands;
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OpcodeSnapshot {
    /// Commands completed, however they ended.
    pub completed: u64,
    /// Completed commands that the drive could not do, or did not start because an earlier one failed. A status that a program returns is
    /// not a failure.
    pub failed: u64,
    /// From submission to `poll`. One `Execute` in sixteen is timed, because reading the clock costs as much as a small program.
    pub latency: LatencySnapshot,
}

/// A histogram of latencies, in microseconds, four buckets an octave.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LatencySnapshot {
    pub counts: [u64; BUCKETS],
    pub sum_us: u64,
}

impl Default for LatencySnapshot {
    fn default() -> LatencySnapshot {
        LatencySnapshot { counts: [0; BUCKETS], sum_us: 0 }
    }
}

impl LatencySnapshot {
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// The latency that a share `quantile` (0 to 1) stayed within: the upper end of its bucket. Zero when nothing was
    /// timed.
    pub fn quantile_us(&self, quantile: f64) -> u64 {
        let total = self.count();
        let rank = ((total as f64 * quantile.clamp(0.0, 1.0)).ceil() as u64).max(1);
        let mut seen = 0;
        for (bucket, count) in self.counts.iter().enumerate() {
            seen += count;
            if seen >= rank {
                return bucket_end_us(bucket);
            }
        }
        0
    }
}

fn bucket_of(latency_us: u64) -> usize {
    if latency_us < 1 << SUB_BUCKET_BITS {
        return latency_us as usize;
    }
    let octave = latency_us.ilog2();
    let sub_bucket = (latency_us >> (octave - SUB_BUCKET_BITS)) & ((1 << SUB_BUCKET_BITS) - 1);
    let bucket = (((octave - SUB_BUCKET_BITS + 1) as usize) << SUB_BUCKET_BITS) + sub_bucket as usize;
    bucket.min(BUCKETS - 1)
}

/// The largest latency that falls in a bucket.
fn bucket_end_us(bucket: usize) -> u64 {
    if bucket < 1 << SUB_BUCKET_BITS {
        return bucket as u64;
    }
    let shift = (bucket >> SUB_BUCKET_BITS) as u32 - 1;
    let sub_bucket = (bucket & ((1 << SUB_BUCKET_BITS) - 1)) as u64;
    (((1 << SUB_BUCKET_BITS) + sub_bucket + 1) << shift) - 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_latency_falls_in_the_bucket_that_ends_at_or_after_it() {
        let mut previous = 0;
        for latency_us in (0..5000).chain([1 << 20, (1 << 30) + 12345, u64::from(u32::MAX)]) {
            let bucket = bucket_of(latency_us);
            assert!(bucket >= previous && bucket_end_us(bucket) >= latency_us, "{latency_us}");
            assert!(bucket == 0 || bucket_end_us(bucket - 1) < latency_us, "{latency_us}");
            assert!(bucket_end_us(bucket) as f64 <= latency_us as f64 * 1.25 + 1.0, "{latency_us}");
            previous = bucket;
        }
        assert_eq!(bucket_of(u64::MAX), BUCKETS - 1);
    }

    #[test]
    fn snapshots_add_queue_pairs_up() {
        let (first, second) = (QueueCounters::new(), QueueCounters::new());
        for latency_us in 1..=100 {
            first.completed(Opcode::Read, Status::Success);
            first.latency(Opcode::Read, latency_us);
        }
        second.completed(Opcode::Read, Status::Failed);
        second.completed(Opcode::Execute, Status::Program(3));
        second.moved_local_to_host(Purpose::Get, 7);
        first.moved_local_to_host(Purpose::Scan, 2);
        first.depth(4);
        first.depth(1);
        second.depth(2);
        let mut snapshot = CountersSnapshot::default();
        first.add_to(&mut snapshot);
        second.add_to(&mut snapshot);
        let reads = snapshot.opcode(Opcode::Read);
        assert_eq!((reads.completed, reads.failed), (101, 1));
        assert_eq!(snapshot.opcode(Opcode::Execute).failed, 0);
        assert_eq!(reads.latency.sum_us, 5050);
        assert!((50..=63).contains(&reads.latency.quantile_us(0.5)));
        assert!((100..=111).contains(&reads.latency.quantile_us(1.0)));
        assert_eq!(snapshot.opcode(Opcode::Write).latency.quantile_us(0.99), 0);
        assert_eq!((snapshot.queue_depth_now, snapshot.queue_depth_max, snapshot.local_to_host_bytes), (3, 4, 9));
        let to_host = |purpose| snapshot.purpose(purpose).local_to_host;
        assert_eq!([Purpose::Get, Purpose::Scan, Purpose::Other].map(to_host), [7, 2, 0]);
    }
}
