//! The costs of a request: time, processor time, and bytes between flash, drive and host. Of a server they are those of all its clients.

#![allow(clippy::disallowed_methods)] // A clock that is shown and decides nothing.

use std::time::Instant;

use tapetum::Store;
use tapetum_drive::CountersSnapshot;

use crate::reply::Costs;

pub struct CostsBegun {
    from: Instant,
    cpu_us: u64,
    counters: CountersSnapshot,
}

impl CostsBegun {
    pub fn now(store: &Store) -> CostsBegun {
        CostsBegun { from: Instant::now(), cpu_us: cpu_us(), counters: store.drive().counters() }
    }

    pub fn until_now(&self, store: &Store) -> Costs {
        let (now, before) = (store.drive().counters(), &self.counters);
        Costs {
            elapsed_us: u64::try_from(self.from.elapsed().as_micros()).unwrap_or(u64::MAX),
            cpu_us: cpu_us() - self.cpu_us,
            flash_bytes: now.flash_to_local_bytes - before.flash_to_local_bytes,
            to_drive_bytes: now.host_to_local_bytes - before.host_to_local_bytes,
            to_host_bytes: now.local_to_host_bytes - before.local_to_host_bytes,
        }
    }
}

/// The processor time of all threads of this process.
fn cpu_us() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    time.tv_sec as u64 * 1_000_000 + time.tv_nsec as u64 / 1000
}
