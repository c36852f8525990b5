//! Why a file or device cannot be used as flash, and what to do about it.

use std::fmt;
use std::io;
use std::path::PathBuf;

/// An error of creating or opening a [`FileFlash`](super::file::FileFlash).
#[derive(Debug)]
pub enum FlashError {
    NotFound {
        path: PathBuf,
    },
    AlreadyExists {
        path: PathBuf,
    },
    /// Another process, or another part of this one, has it open as flash.
    Locked {
        path: PathBuf,
    },
    /// A block device that is mounted or used by the kernel otherwise.
    DeviceBusy {
        path: PathBuf,
    },
    NotFileOrDevice {
        path: PathBuf,
    },
    TooSmall {
        path: PathBuf,
        capacity_bytes: u64,
        needed_bytes: u64,
    },
    NoSpace {
        path: PathBuf,
        needed_bytes: u64,
    },
    /// The file is, or would be, larger than this process may write (RLIMIT_FSIZE).
    FileSizeLimit {
        path: PathBuf,
        needed_bytes: u64,
        limit_bytes: u64,
    },
    /// It was opened to read.
    ReadOnly,
    /// The file lacks blocks, and the file system has none for it.
    NotReserved {
        path: PathBuf,
        missing_bytes: u64,
        /// Where the file system tells.
        free_bytes: Option<u64>,
    },
    /// Only where io_uring was asked for by name.
    UringRefused {
        source: io::Error,
    },
    Io {
        path: PathBuf,
        doing: &'static str,
        source: io::Error,
    },
}

impl fmt::Display for FlashError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FlashError::NotFound { path } => {
                write!(f, "{} does not exist: check the path, or create it first", path.display())
            }
            FlashError::AlreadyExists { path } => write!(
                f,
                "{} exists already: open it instead, or remove it if its contents are not needed",
                path.display()
            ),
            FlashError::Locked { path } => {
                write!(f, "{} is in use: stop the process that has it open, or choose another path", path.display())
            }
            FlashError::DeviceBusy { path } => {
                write!(f, "{} is mounted or used by the kernel: unmount it, or choose another device", path.display())
            }
            FlashError::NotFileOrDevice { path } => write!(
                f,
                "{} is neither a regular file nor a block device: give the path of one of these",
                path.display()
            ),
            FlashError::TooSmall { path, capacity_bytes, needed_bytes } => write!(
                f,
                "{} has {capacity_bytes} bytes and {needed_bytes} are needed: use a larger one, or ask for less",
                path.display()
            ),
            FlashError::NoSpace { path, needed_bytes } => write!(
                f,
                "no room to reserve {} for {}: free space on that file system, or ask for less",
                Size(*needed_bytes),
                path.display()
            ),
            FlashError::FileSizeLimit { path, needed_bytes, limit_bytes } => write!(
                f,
                "{} takes {}, and this process may write files of at most {}: raise that limit (`ulimit -f`, or systemd's \
                 LimitFSIZE); nothing was written",
                path.display(),
                Size(*needed_bytes),
                Size(*limit_bytes)
            ),
            FlashError::ReadOnly => write!(f, "the drive was opened to read: open it for writing to change it"),
            FlashError::NotReserved { path, missing_bytes, free_bytes } => {
                let (path, missing) = (path.display(), Size(*missing_bytes));
                let room = free_bytes.map_or(String::new(), |bytes| format!(" (it has {} free)", Size(bytes)));
                write!(
                    f,
                    "{path} is sparse: {missing} of its blocks are not reserved, and its file system or quota has no room for \
                     them{room}; free as much there, or copy the file to where there is room; nothing was written"
                )
            }
            FlashError::UringRefused { source } => write!(
                f,
                "io_uring is not available here ({source}): allow it (kernel 5.11, seccomp, kernel.io_uring_disabled), \
                 or choose the blocking engine"
            ),
            FlashError::Io { path, doing, source } => write!(f, "cannot {doing} {}: {source}", path.display()),
        }
    }
}

/// Bytes as people type them: `14GiB`, `1.5MiB`.
pub(super) struct Size(pub(super) u64);

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Size(bytes) = *self;
        let units = ["", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
        let power = (1..units.len()).rev().find(|power| bytes >> (10 * power) > 0).unwrap_or(0);
        let unit_bytes = 1 << (10 * power);
        match bytes % unit_bytes {
            0 => write!(f, "{}{}", bytes / unit_bytes, units[power]),
            _ => write!(f, "{:.1}{}", bytes as f64 / unit_bytes as f64, units[power]),
        }
    }
}

impl std::error::Error for FlashError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            FlashError::UringRefused { source } | FlashError::Io { source, .. } => Some(source),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Size;

    #[test]
    fn sizes_are_printed_as_people_type_them() {
        let sizes = [0, 512, 1 << 10, 1536, 14 << 30, (1 << 20) + 1, u64::MAX];
        let shown = sizes.map(|bytes| Size(bytes).to_string());
        assert_eq!(shown, ["0", "512", "1KiB", "1.5KiB", "14GiB", "1.0MiB", "16.0EiB"]);
    }
}
