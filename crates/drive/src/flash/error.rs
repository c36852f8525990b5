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
    /// It was opened to read.
    ReadOnly,
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
                "no room to reserve {needed_bytes} bytes for {}: free space on that file system, or ask for less",
                path.display()
            ),
            FlashError::ReadOnly => write!(f, "the drive was opened to read: open it for writing to change it"),
            FlashError::UringRefused { source } => write!(
                f,
                "io_uring is not available here ({source}): allow it (kernel 5.11, seccomp, kernel.io_uring_disabled), \
                 or choose the blocking engine"
            ),
            FlashError::Io { path, doing, source } => write!(f, "cannot {doing} {}: {source}", path.display()),
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
