//! Resident memory of a process, as the kernel counts it in `/proc/PID/status`.

use crate::Failure;

pub struct ProcessMemory {
    /// VmRSS: resident now.
    pub resident_bytes: u64,
    /// VmHWM: the most that was ever resident.
    pub resident_max_bytes: u64,
}

pub fn read(process: u32) -> Result<ProcessMemory, Failure> {
    let status = std::fs::read_to_string(format!("/proc/{process}/status"))
        .map_err(|error| format!("process {process} cannot be read, it may have ended: {error}"))?;
    Ok(ProcessMemory { resident_bytes: field(&status, "VmRSS:")?, resident_max_bytes: field(&status, "VmHWM:")? })
}

/// Has the allocator give back what is freed, as the server has it, so that what is resident is what is in use.
pub fn return_freed_memory() {
    // SAFETY: no pointers; called before other threads allocate.
    #[cfg(target_env = "gnu")]
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, 128 << 10);
        libc::mallopt(libc::M_TRIM_THRESHOLD, 1 << 20);
        libc::mallopt(libc::M_ARENA_MAX, 4);
    }
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
}
