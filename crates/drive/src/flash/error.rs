//! Reasons why a file or device cannot be used as flash, and what to do about each.

use std::path::PathBuf;
use std::{fmt, io};

/// An error of creating or opening a [`FileFlash`](super::file::FileFlash).
#[derive(Debug)]
pub enum FlashError {
    NotFound {
        path: PathBuf,
    },
    AlreadyExists {
        path: PathBuf,
    },
    /// Another process, or another part of this one, has opened it as flash.
    Locked {
        path: PathBuf,
    },
    /// The block device is mounted, or the kernel uses it otherwise.
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
    /// It was opened read-only.
    ReadOnly,
    /// A set of several members, which keeps its size.
    Set {
        place: String,
    },
    /// Blocks of the file are not allocated, and the file system has none left for them.
    NotReserved {
        path: PathBuf,
        missing_bytes: u64,
        /// `None` if the file system does not say.
        free_bytes: Option<u64>,
    },
    /// Another host of a drive in a process of its own has the partition.
    Held {
        path: PathBuf,
        why: String,
    },
    /// The drive at `path`, a process of its own, refuses or is not there.
    Drive {
        path: PathBuf,
        why: String,
    },
    /// Only if the user asked for io_uring by name.
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
            FlashError::Held { path, why } | FlashError::Drive { path, why } => {
                write!(f, "the drive at {}: {why}", path.display())
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
                "{} has {} and {} are needed: use a larger one, or ask for less",
                path.display(),
                Size(*capacity_bytes),
                Size(*needed_bytes)
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
            FlashError::Set { place } => {
                write!(
                    f,
                    "{place} are the members of one store, which keeps its size: make a larger one, and copy its items there"
                )
            }
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

/// Bytes as people type them: `14GiB`, `1.5MiB`; to a tenth of the unit.
#[derive(Clone, Copy, Debug)]
pub struct Size(pub u64);

/// The part of its capacity that a store leaves to the file system, which is rounded to whole pages as well.
const LEFT_PART: u64 = 4095;
const ROUNDED_BYTES: u64 = 16 << 10;

impl Size {
    /// The number and its unit. A store's size is shown as the capacity that the user typed for it.
    pub fn parts(self) -> (String, &'static str) {
        let Size(bytes) = self;
        let units = ["", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
        let power = (1..units.len()).rev().find(|power| bytes >> (10 * power) > 0).unwrap_or(0);
        let unit_bytes = |power: usize| 1u64 << (10 * power);
        let typed_bytes = bytes.saturating_add(bytes / LEFT_PART + ROUNDED_BYTES);
        for power in (power..units.len()).take(2).rev().filter(|power| *power > 1) {
            let whole = typed_bytes / unit_bytes(power);
            if whole > bytes / unit_bytes(power) {
                return (whole.to_string(), units[power]);
            }
        }
        let number = format!("{:.1}", bytes as f64 / unit_bytes(power) as f64);
        (number.strip_suffix(".0").map_or(number.clone(), str::to_owned), units[power])
    }

    /// Rounds up to whole KiB or MiB, so that whoever types the printed size gets at least `bytes`.
    pub fn at_least(bytes: u64) -> Size {
        let unit_bytes = if bytes > 1 << 20 { 1 << 20 } else { 1 << 10 };
        Size(bytes.checked_next_multiple_of(unit_bytes).unwrap_or(bytes))
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (number, unit) = self.parts();
        write!(f, "{number}{unit}")
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
        let stores = [128 << 20, 512 << 20, 14 << 30, 1 << 40, 3 << 40]
            .map(|bytes: u64| Size(bytes - bytes / 4096 - 4096).to_string());
        assert_eq!(stores, ["128MiB", "512MiB", "14GiB", "1TiB", "3TiB"]);
        let shown = sizes.map(|bytes| Size(bytes).to_string());
        assert_eq!(shown, ["0", "512", "1KiB", "1.5KiB", "14GiB", "1MiB", "16EiB"]);
        assert_eq!(Size::at_least((9 << 20) + 1).to_string(), "10MiB");
        assert_eq!(Size::at_least(1500).to_string(), "2KiB");
        assert_eq!(Size::at_least(u64::MAX).to_string(), "16EiB");
    }
}
