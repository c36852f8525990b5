//! The resources that processes use, as the kernel counts them: resident memory, CPU, bytes read and written.

use serde::{Deserialize, Serialize};

use crate::Failure;

/// The unit of Linux' process accounting, on every architecture that it supports.
const TICKS_PER_SECOND: u64 = 100;

pub struct ProcessMemory {
    /// VmRSS: currently resident.
    pub resident_bytes: u64,
    /// VmHWM: the maximum resident so far.
    pub resident_max_bytes: u64,
}

pub fn read(process: u32) -> Result<ProcessMemory, Failure> {
    let status = proc_file(process, "status")?;
    Ok(ProcessMemory { resident_bytes: field(&status, "VmRSS:")?, resident_max_bytes: field(&status, "VmHWM:")? })
}

/// CPU time of this process's drive threads. Rivals have no drive.
fn drive_cpu_us() -> u64 {
    #[cfg(feature = "store")]
    return tapetum_drive::drive_cpu_us();
    #[cfg(not(feature = "store"))]
    0
}

/// The resources that some processes used together, until now or between two looks.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Usage {
    /// In user space and in the kernel.
    pub cpu_us: u64,
    /// The part that the drive's own threads used, or its process. Of threads, known only for this process.
    #[serde(default)] // Contenders of older trees do not say.
    pub drive_cpu_us: u64,
    /// From storage, not from the page cache.
    pub read_bytes: u64,
    pub written_bytes: u64,
    /// The sum of the maximum that each process ever had resident.
    pub resident_max_bytes: u64,
}

impl Usage {
    pub fn of(processes: &[u32]) -> Result<Usage, Failure> {
        let mut usage = Usage::default();
        for &process in processes {
            let io = proc_file(process, "io")?;
            usage.cpu_us += cpu_us(process)?;
            usage.drive_cpu_us += if process == std::process::id() { drive_cpu_us() } else { 0 };
            usage.read_bytes += number_behind(&io, "read_bytes:")?;
            usage.written_bytes += number_behind(&io, "write_bytes:")?;
            usage.resident_max_bytes += read(process)?.resident_max_bytes;
        }
        Ok(usage)
    }

    /// As [`Usage::of`], with those of a drive in a process of its own.
    pub fn with_drive(processes: &[u32], drive: Option<u32>) -> Result<Usage, Failure> {
        let mut usage = Usage::of(processes)?;
        if let Some(drive) = drive {
            let Usage { cpu_us, read_bytes, written_bytes, resident_max_bytes, .. } = Usage::of(&[drive])?;
            usage.cpu_us += cpu_us;
            usage.drive_cpu_us += cpu_us;
            usage.read_bytes += read_bytes;
            usage.written_bytes += written_bytes;
            usage.resident_max_bytes += resident_max_bytes;
        }
        Ok(usage)
    }

    pub fn since(self, earlier: &Usage) -> Usage {
        Usage {
            cpu_us: self.cpu_us.saturating_sub(earlier.cpu_us),
            drive_cpu_us: self.drive_cpu_us.saturating_sub(earlier.drive_cpu_us),
            read_bytes: self.read_bytes.saturating_sub(earlier.read_bytes),
            written_bytes: self.written_bytes.saturating_sub(earlier.written_bytes),
            resident_max_bytes: self.resident_max_bytes,
        }
    }
}

fn cpu_us(process: u32) -> Result<u64, Failure> {
    if process == std::process::id() {
        return Ok(own_cpu_us());
    }
    // In nanoseconds, summed over the threads that still run.
    let mut nanoseconds = 0;
    for thread in std::fs::read_dir(format!("/proc/{process}/task"))? {
        // A thread may end between the listing and the read.
        let Ok(text) = std::fs::read_to_string(thread?.path().join("schedstat")) else { continue };
        nanoseconds +=
            text.split(' ').next().and_then(|word| word.parse::<u64>().ok()).ok_or("schedstat is no number")?;
    }
    Ok(nanoseconds / 1000)
}

/// CPU time, to a hundredth of a second, including threads that have ended: some servers use one for each connection.
pub fn cpu_us_with_ended_threads(process: u32) -> Result<u64, Failure> {
    let stat = proc_file(process, "stat")?;
    // The twelfth and thirteenth word behind the name, which may contain anything.
    let words: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    let ticks = |place: usize| words.get(place).and_then(|word| word.parse::<u64>().ok());
    let (user, kernel) = ticks(11).zip(ticks(12)).ok_or("a process' account has no times")?;
    Ok((user + kernel) * 1_000_000 / TICKS_PER_SECOND)
}

/// CPU time of all threads of this process, including those that have ended.
fn own_cpu_us() -> u64 {
    // SAFETY: all zero is a valid rusage, and getrusage writes only into it; for this process it cannot fail.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_SELF, &mut usage);
        usage
    };
    let microseconds = |time: libc::timeval| time.tv_sec as u64 * 1_000_000 + time.tv_usec as u64;
    microseconds(usage.ru_utime) + microseconds(usage.ru_stime)
}

/// CPU time of this thread, in user space and in the kernel.
pub fn thread_cpu_ns() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the pointer is to a live, writable timespec.
    let result = unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut now) };
    assert_eq!(result, 0, "every Linux has a CPU clock of each thread");
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

fn proc_file(process: u32, name: &str) -> Result<String, Failure> {
    std::fs::read_to_string(format!("/proc/{process}/{name}"))
        .map_err(|error| format!("process {process} cannot be read, it may have ended: {error}").into())
}

fn number_behind(text: &str, name: &str) -> Result<u64, Failure> {
    text.lines()
        .find_map(|line| line.strip_prefix(name)?.trim().parse().ok())
        .ok_or_else(|| format!("the kernel does not say {name}").into())
}

fn field(status: &str, name: &str) -> Result<u64, Failure> {
    status
        .lines()
        .find_map(|line| line.strip_prefix(name)?.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok())
        .map(|kilobytes| kilobytes * 1024)
        .ok_or_else(|| format!("/proc/PID/status has no {name}").into())
}

#[cfg(test)]
mod tests {
    #[test]
    fn this_process_has_memory() {
        let memory = super::read(std::process::id()).unwrap();
        assert!(memory.resident_bytes > 100_000);
        assert!(memory.resident_max_bytes >= memory.resident_bytes);
    }

    #[test]
    fn this_process_uses_cpu() {
        let process = [std::process::id()];
        let before = super::Usage::of(&process).unwrap();
        let mut sum = 0_u64;
        while super::own_cpu_us() < before.cpu_us + 2000 {
            sum = std::hint::black_box(sum + 1);
        }
        let used = super::Usage::of(&process).unwrap().since(&before);
        assert!(used.cpu_us >= 2000 && used.resident_max_bytes > 100_000);
        let line = serde_json::to_string(&used).unwrap();
        assert_eq!(serde_json::from_str::<super::Usage>(&line).unwrap(), used);
    }
}
