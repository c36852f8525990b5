//! The errors. Each message tells the user what to do about it.

mod keyspace_error;

pub use keyspace_error::KeyspaceError;
use std::fmt;
use tapetum_drive::{Completion, Drive, PipelineFailure, Size};
use tapetum_kernels::record::VALUE_BYTES_MAX;

/// `Debug` prints as `Display`: a `main` that returns an error prints it this way.
#[doc(hidden)]
#[macro_export]
macro_rules! debug_as_text {
    ($error:ty) => {
        impl std::fmt::Debug for $error {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                std::fmt::Display::fmt(self, f)
            }
        }
    };
}

#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Error {
    KeyTooLong {
        limit_bytes: usize,
    },
    KeyEmpty,
    ValueTooLarge {
        limit_bytes: usize,
    },
    /// The batch exceeds one write.
    BatchTooLarge {
        limit_bytes: usize,
        limit_writes: usize,
    },
    /// Flash has no room for another key.
    FullFlash,
    /// The index has no room for another key within the memory budget.
    FullIndex,
    /// The manifest has no room to name another key's record. This limits the number of small items in a store that has grown.
    FullManifest,
    /// The store was opened read-only.
    ReadOnly,
    /// The server has lost its lease, and another may serve in its place: see [`crate::base::fence`].
    Fenced,
    /// The store was closed before the operation was done.
    Closed,
    /// The store was opened before this process was forked.
    Forked,
    /// A keyspace was not created, renamed or dropped, or it does not exist.
    Keyspace(KeyspaceError),
    /// A write to flash failed: nothing is acknowledged any more.
    Poisoned(String),
    /// The file system of `place` was full when the store wrote there: nothing is acknowledged any more, and the drive is sound.
    NoSpace {
        place: String,
    },
    /// The store's file was deleted or replaced.
    Removed {
        place: String,
    },
    /// Bytes on flash differ from those that were written.
    Corrupt(String),
    /// The drive answered with an error.
    Io(String),
    /// A pipeline over an item failed.
    Pipeline(PipelineFailure),
    /// This is no store, or one that this version cannot read.
    Unusable(String),
    /// The store has another format, or features that this version does not know.
    OtherFormat(String),
    /// The options do not fit together.
    Options(String),
    /// The memory budget is too small for `needed_for`, such as "write buffers of 1MiB".
    TooLittleMemory {
        memory_bytes: u64,
        least_bytes: u64,
        needed_for: String,
    },
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::KeyTooLong { limit_bytes } => {
                write!(f, "the key is longer than {limit_bytes} bytes: use a shorter one")
            }
            Error::KeyEmpty => write!(f, "the key is empty: give at least one byte"),
            Error::ValueTooLarge { limit_bytes } if *limit_bytes >= VALUE_BYTES_MAX => {
                write!(
                    f,
                    "the value is larger than {}, the most that any store takes: split it",
                    Size(*limit_bytes as u64)
                )
            }
            Error::ValueTooLarge { limit_bytes } => {
                write!(
                    f,
                    "the value is larger than {limit_bytes} bytes: split it, open the store with more memory, or create one of a larger capacity"
                )
            }
            Error::BatchTooLarge { limit_bytes, limit_writes } => {
                write!(
                    f,
                    "the batch has more than {} or {limit_writes} writes: split it, or create the store with larger segments",
                    Size(*limit_bytes as u64)
                )
            }
            Error::Pipeline(failure) => failure.fmt(f),
            Error::FullFlash => write!(f, "flash is full: delete keys, or give the store a larger capacity"),
            Error::FullIndex => write!(f, "the index is full: give the store more memory"),
            Error::FullManifest => write!(
                f,
                "the manifest is full: its size was set when the store was made, and the store has grown since. Delete keys, or \
                 make a store of a larger capacity and fill it by `tapetum dump` and `tapetum load`"
            ),
            Error::Keyspace(error) => error.fmt(f),
            Error::Closed => write!(f, "the store was closed before this was done: open it again and try again"),
            Error::Forked => write!(
                f,
                "the store was opened before this process was forked, and a store does not survive a fork: open it after the fork, in \
                 one process to write or in several to read"
            ),
            Error::Fenced => write!(
                f,
                "this server has lost its lease of the backups, and a standby may have taken its place: writes are refused, and whether those \
                 that were under way count is not known; look where the store is served now"
            ),
            Error::ReadOnly => write!(f, "the store was opened to read: open it for writing to change it"),
            Error::Poisoned(why) => {
                write!(
                    f,
                    "a write to flash failed ({why}): nothing is acknowledged any more; check the drive, then reopen"
                )
            }
            Error::NoSpace { place } => write!(
                f,
                "no space left on the file system of {place}: make room there; writes are refused until the store was opened again"
            ),
            Error::Removed { place } => write!(
                f,
                "{place} was deleted or replaced while the store was open: writes are refused, and all of it is gone when the store is \
                 closed; copy it first"
            ),
            Error::Corrupt(place) => {
                write!(
                    f,
                    "the bytes on flash are damaged: {place}: check the store, and repair it or restore it from a copy"
                )
            }
            Error::Io(why) => write!(f, "the drive failed: {why}; check the drive and the kernel's log"),
            Error::Unusable(why) | Error::OtherFormat(why) => write!(f, "{why}"),
            Error::Options(why) => write!(f, "{why}"),
            Error::TooLittleMemory { memory_bytes, least_bytes, needed_for } => write!(
                f,
                "{} of memory are too few for {needed_for}: give {} or more",
                Size(*memory_bytes),
                Size::at_least(*least_bytes)
            ),
        }
    }
}

impl std::error::Error for Error {}

crate::debug_as_text!(Error);

impl Error {
    /// Whether a write was refused because the store has no room for it.
    pub fn is_full(&self) -> bool {
        matches!(self, Error::FullFlash | Error::FullIndex | Error::FullManifest)
    }

    /// The error of a failed command of `drive`; `what` names the command.
    pub fn of_command(drive: &Drive, what: &str, completion: &Completion) -> Error {
        let Completion { status, errno, .. } = completion;
        match completion.is_no_space() {
            true => Error::NoSpace { place: drive.place() },
            false => Error::Io(format!("a {what} ended with {status:?} (errno {errno})")),
        }
    }

    /// The error that a store returns after `what` failed with this one.
    pub fn poisoning(self, what: &str) -> Error {
        match self {
            Error::NoSpace { .. } | Error::Removed { .. } | Error::Poisoned(_) | Error::Closed | Error::Forked => self,
            error => Error::Poisoned(format!("{what}: {error}")),
        }
    }
}
