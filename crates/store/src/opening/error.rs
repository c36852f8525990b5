//! Why a store at a path was not opened or made.

use super::member_error::MemberError;
use std::path::{Path, PathBuf};
use std::{fmt, io};
use tapetum_base::debug_as_text;

use tapetum_base::error::Error;
use tapetum_base::media::superblock::no_store_there;
use tapetum_base::options::TierSize;
use tapetum_drive::{FlashError, Size};

#[non_exhaustive]
pub enum OpenError {
    /// An empty path.
    NoPath,
    /// There is no store, and none was to be made.
    NoStore {
        path: PathBuf,
    },
    /// The directory holds something else.
    Foreign {
        directory: PathBuf,
        found: PathBuf,
    },
    /// The file in which a new store is made before it has its name is somebody else's.
    ForeignUnfinished {
        path: PathBuf,
    },
    /// Something has the name that the store was to have.
    NameTaken {
        path: PathBuf,
    },
    /// A block device that holds something else.
    NotBlank {
        path: PathBuf,
    },
    /// Another process, or another store of this one, has it open.
    InUse {
        path: PathBuf,
    },
    /// A partition of a drive in another process, or a set of members, where a file or directory is wanted.
    NoFile {
        path: PathBuf,
    },
    /// A member of a set.
    Member {
        path: PathBuf,
        error: MemberError,
    },
    /// The store's buffers do not fit into the budget.
    Memory {
        path: PathBuf,
        memory_bytes: u64,
        tier: TierSize,
        least_bytes: u64,
    },
    /// The file system at `path` has no room for the smallest store.
    NoRoom {
        path: PathBuf,
        free_bytes: u64,
    },
    Flash(FlashError),
    Store {
        path: PathBuf,
        error: Error,
    },
    Io {
        path: PathBuf,
        doing: &'static str,
        error: io::Error,
    },
}

impl OpenError {
    /// An error of the system while `doing` something with `path`.
    pub(super) fn io(path: &Path, doing: &'static str) -> impl FnOnce(io::Error) -> OpenError {
        move |error| OpenError::Io { path: path.into(), doing, error }
    }

    pub(super) fn store(path: &Path) -> impl FnOnce(Error) -> OpenError {
        move |error| OpenError::Store { path: path.into(), error }
    }

    pub(super) fn member(path: &Path, error: MemberError) -> OpenError {
        OpenError::Member { path: path.into(), error }
    }

    pub(super) fn flash(error: FlashError) -> OpenError {
        match error {
            FlashError::Locked { path } => OpenError::InUse { path },
            other => OpenError::Flash(other),
        }
    }

    /// The error of opening a file that must exist.
    pub(super) fn existing(error: FlashError) -> OpenError {
        match error {
            FlashError::NotFound { path } => OpenError::NoStore { path },
            // It has no sector.
            FlashError::TooSmall { path, .. } => OpenError::Store { path, error: no_store_there() },
            other => OpenError::flash(other),
        }
    }
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            OpenError::NoPath => {
                write!(f, "the store's path is empty: give that of a directory, a file or a block device")
            }
            OpenError::NoFile { path } => write!(
                f,
                "{} is a partition of a drive in another process, or a member of a set: a standby exchanges files, give it a directory",
                path.display()
            ),
            OpenError::NoStore { path } => {
                write!(
                    f,
                    "there is no store at {}: give its path, or open it with `Store::open` to make one",
                    path.display()
                )
            }
            OpenError::Foreign { directory, found } => write!(
                f,
                "{} holds no store, but other things ({}): give an empty or new directory; nothing was written",
                directory.display(),
                found.display()
            ),
            OpenError::ForeignUnfinished { path } => write!(
                f,
                "{} is in the way, and is not an unfinished store: move it, or give another path; nothing was written",
                path.display()
            ),
            OpenError::NameTaken { path } => write!(
                f,
                "{} took the name of the new store while that was made, or is a dangling link: look at it, then \
                 open the store again, or give another path; nothing in it was changed",
                path.display()
            ),
            OpenError::NotBlank { path } => write!(
                f,
                "{} holds no store, but is not blank: give another device, or zero its first and last MiB if its contents \
                 are not needed; nothing was written",
                path.display()
            ),
            OpenError::InUse { path } => {
                write!(
                    f,
                    "{} is in use, by this process or another: use the store that is open already, or close it and drop all of its handles, \
                     keyspaces, sessions and iterators first",
                    path.display()
                )
            }
            OpenError::NoRoom { path, free_bytes } => write!(
                f,
                "the file system of {} has {} free, too little for a store: free space there, or choose another place",
                path.display(),
                Size(*free_bytes)
            ),
            OpenError::Memory { path, memory_bytes, tier, least_bytes } => {
                let (path, memory, least) = (path.display(), Size(*memory_bytes), Size::at_least(*least_bytes));
                match tier.bytes_of(*memory_bytes) {
                    0 => write!(
                        f,
                        "{memory} of memory are too few for the write buffers of {path}: give {least} or more"
                    ),
                    tier_bytes => write!(
                        f,
                        "{memory} of memory are too few for a DRAM tier of {} and the write buffers of {path}: give {least} or more, or a \
                         smaller tier",
                        Size(tier_bytes)
                    ),
                }
            }
            OpenError::Member { path, error } => write!(f, "{}: {error}", path.display()),
            OpenError::Flash(error) => write!(f, "{error}"),
            OpenError::Store { path, error } => write!(f, "{}: {error}", path.display()),
            OpenError::Io { path, doing, error } => write!(f, "cannot {doing} {}: {error}", path.display()),
        }
    }
}

debug_as_text!(OpenError);

impl std::error::Error for OpenError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            OpenError::Flash(error) => Some(error),
            OpenError::Store { error, .. } => Some(error),
            OpenError::Io { error, .. } => Some(error),
            _ => None,
        }
    }
}
