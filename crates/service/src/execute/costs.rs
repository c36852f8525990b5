//! The costs of a request: time, processor time, and bytes between flash, drive and host. Of a server they are those of all its clients.

#![allow(clippy::disallowed_methods)] // A clock that is shown and decides nothing.

use std::time::Instant;

use tapetum::Store;
use tapetum_drive::CountersSnapshot;

use crate::reply::Costs;

pub struct CostsBegun {
    from: Instant,
    cpu_us: u64,
    drive_threads_us: u64,
    counters: CountersSnapshot,
}

impl CostsBegun {
    pub fn now(store: &Store) -> CostsBegun {
        let (cpu_us, drive_threads_us) = (cpu_us(), tapetum_drive::drive_cpu_us());
        CostsBegun { from: Instant::now(), cpu_us, drive_threads_us, counters: store.drive().counters() }
    }

    pub fn until_now(&self, store: &Store) -> Costs {
        let (now, before) = (store.drive().counters(), &self.counters);
        // A drive in another process that was lost and found begins its counts anew.
        let process_us = process_us(&now).saturating_sub(process_us(before));
        Costs {
            elapsed_us: u64::try_from(self.from.elapsed().as_micros()).unwrap_or(u64::MAX),
            cpu_us: cpu_us() - self.cpu_us + process_us,
            drive_cpu_us: tapetum_drive::drive_cpu_us().saturating_sub(self.drive_threads_us) + process_us,
            commands: commands(&now).saturating_sub(commands(before)),
            drive_wakes: now.drive_wakes.saturating_sub(before.drive_wakes),
            host_wakes: now.host_wakes.saturating_sub(before.host_wakes),
            flash_bytes: now.flash_to_local_bytes.saturating_sub(before.flash_to_local_bytes),
            to_drive_bytes: now.host_to_local_bytes.saturating_sub(before.host_to_local_bytes),
            to_host_bytes: now.local_to_host_bytes.saturating_sub(before.local_to_host_bytes),
        }
    }
}

/// The processor time of the drive's process, if it has one.
fn process_us(counters: &CountersSnapshot) -> u64 {
    counters.process.map_or(0, |process| process.cpu_us)
}

fn commands(counters: &CountersSnapshot) -> u64 {
    counters.purposes.iter().map(|account| account.commands).sum()
}

/// The processor time of all threads of this process.
fn cpu_us() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    time.tv_sec as u64 * 1_000_000 + time.tv_nsec as u64 / 1000
}
