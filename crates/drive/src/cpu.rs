//! Processor time of the drive's threads, apart from that of the host's: each tells of its clock while it runs, and of what it
//! used when it ends.

#![allow(clippy::disallowed_methods)] // Clocks of threads, which decide nothing.

use crate::locks::whole;
use std::sync::Mutex;

struct DriveClocks {
    running: Vec<(u64, libc::clockid_t)>,
    started: u64,
    ended_ns: u64,
}

static CLOCKS: Mutex<DriveClocks> = Mutex::new(DriveClocks { running: Vec::new(), started: 0, ended_ns: 0 });

/// Counts the processor time of the thread that made it as the drive's, from its start to this one's end.
pub(crate) struct DriveClock {
    number: u64,
}

impl DriveClock {
    pub fn of_this_thread() -> DriveClock {
        let mut clock = libc::CLOCK_THREAD_CPUTIME_ID;
        // SAFETY: this thread runs; the pointer is to a live clock id. An error leaves the clock of whichever thread asks.
        let error = unsafe { libc::pthread_getcpuclockid(libc::pthread_self(), &mut clock) };
        let mut clocks = whole(CLOCKS.lock());
        clocks.started += 1;
        let number = clocks.started;
        if error == 0 {
            clocks.running.push((number, clock));
        }
        DriveClock { number }
    }
}

impl Drop for DriveClock {
    fn drop(&mut self) {
        // While it is locked nobody reads the clock of a thread that has ended.
        let mut clocks = whole(CLOCKS.lock());
        clocks.running.retain(|(number, _)| *number != self.number);
        clocks.ended_ns += read_ns(libc::CLOCK_THREAD_CPUTIME_ID);
    }
}

/// Microseconds of processor time that threads of drives have used in this process.
pub fn drive_cpu_us() -> u64 {
    let clocks = whole(CLOCKS.lock());
    let running_ns: u64 = clocks.running.iter().map(|(_, clock)| read_ns(*clock)).sum();
    (clocks.ended_ns + running_ns) / 1000
}

/// Microseconds of processor time that the calling thread has used.
pub fn thread_cpu_us() -> u64 {
    read_ns(libc::CLOCK_THREAD_CPUTIME_ID) / 1000
}

/// The processor time and memory of a drive's process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DriveUsage {
    /// Processor time of all of its threads, for all of its hosts, since it began.
    pub cpu_us: u64,
    /// Memory that is in DRAM.
    pub resident_bytes: u64,
}

impl DriveUsage {
    pub(crate) fn of_this_process() -> DriveUsage {
        let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
        let pages = statm.split(' ').nth(1).and_then(|pages| pages.parse::<u64>().ok()).unwrap_or(0);
        let resident_bytes = pages * rustix::param::page_size() as u64;
        DriveUsage { cpu_us: read_ns(libc::CLOCK_PROCESS_CPUTIME_ID) / 1000, resident_bytes }
    }
}

fn read_ns(clock: libc::clockid_t) -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the pointer is to a live timespec.
    match unsafe { libc::clock_gettime(clock, &mut now) } {
        0 => now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64,
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::env::Env;

    #[test]
    fn work_of_the_drives_threads_is_counted_while_they_run_and_after() {
        let before_us = drive_cpu_us();
        let work = move || {
            let clock = || read_ns(libc::CLOCK_THREAD_CPUTIME_ID);
            while clock() < 20_000_000 {
                std::hint::spin_loop();
            }
            drive_cpu_us()
        };
        let inside_us = Env::system().spawn_drive_thread("drive-test", work).unwrap().join().unwrap();
        assert!(inside_us >= before_us + 20_000 && drive_cpu_us() >= inside_us);
    }
}
