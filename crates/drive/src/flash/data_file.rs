//! The open file that all queues of a flash share, and what the log is told of it once.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, Once};

use rustix::fs::FlockOperation;
use rustix::process::{Resource, getrlimit};

use super::{Health, alignment, claim};
use crate::locks::whole;
use crate::memory::PairMemory;
use crate::process::ProcessMark;

/// Writes of this many bytes are to be atomic where the device can do that.
const ATOMIC_BYTES: u32 = 4096;

pub(super) struct DataFile {
    file: File,
    /// Changes when a file that is whole gets its name.
    path: Mutex<PathBuf>,
    sector_bytes: u32,
    direct: bool,
    /// See [`super::Flash::atomic_write_bytes`].
    atomic_write_bytes: u32,
    ring_refused: Once,
    memory_unregistered: Once,
    made: ProcessMark,
}

impl DataFile {
    pub(super) fn new(file: File, path: &Path, sector_bytes: u32, direct: bool) -> DataFile {
        let (ring_refused, memory_unregistered) = (Once::new(), Once::new());
        let atomic_write_bytes = if direct { alignment::atomic_write_bytes(&file, ATOMIC_BYTES) } else { 0 };
        let path = Mutex::new(path.into());
        DataFile {
            file,
            path,
            sector_bytes,
            direct,
            atomic_write_bytes,
            ring_refused,
            memory_unregistered,
            made: ProcessMark::now(),
        }
    }

    pub(super) fn atomic_write_bytes(&self) -> u32 {
        self.atomic_write_bytes
    }

    /// The kernel's flags for a write. One of a page is to be atomic where that is promised: without the flag it may be split.
    pub(super) fn write_flags(&self, flash: u64, length: u32, fua: bool) -> i32 {
        let is_page = length == ATOMIC_BYTES && flash.is_multiple_of(ATOMIC_BYTES.into());
        let atomic = if is_page && self.atomic_write_bytes >= ATOMIC_BYTES { libc::RWF_ATOMIC } else { 0 };
        atomic | if fua { libc::RWF_DSYNC } else { 0 }
    }

    pub(super) fn fd(&self) -> RawFd {
        self.file.as_raw_fd()
    }

    pub(super) fn file(&self) -> &File {
        &self.file
    }

    pub(super) fn path(&self) -> PathBuf {
        whole(self.path.lock()).clone()
    }

    /// Has `rename` give the file, which is at the path it is handed, the name `to`.
    pub(super) fn rename(&self, to: &Path, rename: impl FnOnce(&Path) -> io::Result<()>) -> io::Result<()> {
        let mut path = whole(self.path.lock());
        rename(&path)?;
        *path = to.into();
        Ok(())
    }

    /// A device's name is the kernel's.
    pub(super) fn health(&self) -> Health {
        let metadata = match self.file.metadata() {
            Ok(metadata) if metadata.is_file() => metadata,
            _ => return Health::Sound,
        };
        if metadata.nlink() == 0 {
            let rescue = format!("/proc/{}/fd/{}", std::process::id(), self.fd());
            return Health::Removed { rescue: rescue.into() };
        }
        match claim::names(&self.path(), &self.file) {
            Ok(false) => Health::Renamed,
            _ => Health::Sound,
        }
    }

    pub(super) fn sector_bytes(&self) -> u32 {
        self.sector_bytes
    }

    pub(super) fn is_direct(&self) -> bool {
        self.direct
    }

    /// The kernel refused a ring, and a thread moves the bytes of that queue pair.
    pub(super) fn say_ring_refused(&self, error: &io::Error) {
        self.ring_refused.call_once(|| {
            let advice = match error.raw_os_error() {
                Some(libc::ENOMEM) => memlock_advice(),
                Some(libc::EPERM | libc::EACCES) => {
                    "allow it in the container (Docker's seccomp profile refuses it), and by kernel.io_uring_disabled=0".into()
                }
                Some(libc::ENOSYS) => {
                    "allow it in the container's seccomp profile; Linux before 5.11 does not have all of it".into()
                }
                _ => "see what the kernel's log says".into(),
            };
            tracing::warn!(
                "io_uring refused ({error}), here and perhaps for other queues: they move bytes by pread and pwrite on a thread \
                 each, which takes more CPU; {advice}"
            );
        });
    }

    /// A ring moves bytes without having its memory registered.
    pub(super) fn say_unregistered(&self, memory: &PairMemory, error: &io::Error) {
        self.memory_unregistered.call_once(|| {
            let needed_mebibytes = memory.bytes_total().div_ceil(1 << 20);
            tracing::info!(
                "io_uring moves bytes without registered memory ({error}), here and perhaps for other queues, which takes \
                 a little more CPU; each queue would register {needed_mebibytes}MiB: {}",
                memlock_advice()
            );
        });
    }
}

impl Drop for DataFile {
    fn drop(&mut self) {
        if !self.made.is_here() {
            // The lock is the parent's.
            return;
        }
        // Closing would do, but a ring that held the file too lets go of it some time after it is closed.
        let _ = rustix::fs::flock(&self.file, FlockOperation::Unlock);
    }
}

fn memlock_advice() -> String {
    let limit = match getrlimit(Resource::Memlock).current {
        Some(bytes) => format!("{}KiB", bytes >> 10),
        None => "unlimited".into(),
    };
    format!(
        "raise the limit on locked memory, RLIMIT_MEMLOCK, which is {limit} here (`ulimit -l`, LimitMEMLOCK= of systemd, \
         --ulimit memlock= of Docker)"
    )
}
