//! The reasons why the search layer cannot add an anchor or a handle.

use super::KEY_BYTES_MAX;
use std::{fmt, io};

#[derive(Debug)]
#[non_exhaustive]
pub enum SearchError {
    KeyTooLong {
        bytes: usize,
    },
    /// The tree uses all the memory that it may.
    Full {
        bytes_max: usize,
    },
    /// The system gave no memory.
    Memory(io::Error),
    /// All handles of the tree are in use.
    HandlesTaken {
        handles_max: usize,
    },
}

impl SearchError {
    pub(super) fn out_of_memory() -> SearchError {
        SearchError::Memory(io::ErrorKind::OutOfMemory.into())
    }
}

impl fmt::Display for SearchError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SearchError::KeyTooLong { bytes } => {
                write!(f, "the key has {bytes} bytes: use one of at most {KEY_BYTES_MAX}")
            }
            SearchError::Full { bytes_max } => {
                write!(f, "the search layer has all its {bytes_max} bytes: give the store more memory")
            }
            SearchError::Memory(error) => write!(f, "the system gives no memory for the search layer: {error}"),
            SearchError::HandlesTaken { handles_max } => {
                write!(f, "all {handles_max} handles of the search layer are in use: use fewer sessions at once")
            }
        }
    }
}

impl std::error::Error for SearchError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            SearchError::Memory(error) => Some(error),
            _ => None,
        }
    }
}
