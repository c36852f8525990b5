//! The costs of a command: time, processor time, and bytes between flash, drive and host. No server has the store open, so all of them are
//! the command's own.

#![allow(clippy::disallowed_methods)] // A clock that is shown and decides nothing.

use std::time::Instant;

use tapetum::Store;
use tapetum_drive::CountersSnapshot;

use crate::os;

pub struct Measure {
    from: Instant,
    cpu_us: u64,
    counters: CountersSnapshot,
}

impl Measure {
    pub fn begin(store: &Store) -> Measure {
        Measure { from: Instant::now(), cpu_us: cpu_us(), counters: store.drive().counters() }
    }

    /// The time and bytes since `begin`, in words.
    pub fn told(&self, store: &Store) -> String {
        let (now, before) = (store.drive().counters(), &self.counters);
        format!(
            "{:.3} s, {:.3} s of CPU; {} bytes from flash, {} to the drive, {} to the host",
            self.from.elapsed().as_secs_f64(),
            (cpu_us() - self.cpu_us) as f64 / 1e6,
            now.flash_to_local_bytes - before.flash_to_local_bytes,
            now.host_to_local_bytes - before.host_to_local_bytes,
            now.local_to_host_bytes - before.local_to_host_bytes,
        )
    }
}

fn cpu_us() -> u64 {
    let (user, system) = os::cpu_time_us();
    user + system
}
