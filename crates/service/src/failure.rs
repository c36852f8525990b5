//! Why a request was not done: what kind of reason, for programs, and what to do, for people.

use std::fmt;

use serde::{Deserialize, Serialize};
use tapetum::{Error, KeyspaceError, Place, QueryError, Store};

use crate::caller::CallerLeft;
use crate::opening::OpenError;

/// What kind of reason it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum FailureKind {
    /// The request makes no sense, or does not fit the store.
    BadRequest,
    /// There is no keyspace of this name.
    UnknownKeyspace,
    /// The store has no room.
    Full,
    /// Bytes on flash differ from those that were written.
    Damaged,
    /// The caller left, or the store was needed for something else.
    Cancelled,
    /// There is no store just now, or too much is asked of it.
    Unavailable,
    /// The other side is of another version.
    OtherVersion,
    /// Anything else that the store says.
    Store,
    /// The moment that was asked for is gone.
    TooOld,
    /// The user has no right to it.
    Forbidden,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    pub kind: FailureKind,
    /// Says what to do.
    pub message: String,
}

impl Failure {
    pub fn new(kind: FailureKind, message: impl Into<String>) -> Failure {
        Failure { kind, message: message.into() }
    }

    pub fn bad(message: impl Into<String>) -> Failure {
        Failure::new(FailureKind::BadRequest, message)
    }

    /// The failure of an error of `store`, which is open at `place`.
    pub fn of_store(store: &Store, place: &Place, error: Error) -> Failure {
        let kind = match &error {
            Error::Keyspace(KeyspaceError::Unknown { .. }) => FailureKind::UnknownKeyspace,
            Error::FullFlash | Error::FullIndex | Error::FullManifest | Error::NoSpace { .. } => FailureKind::Full,
            Error::Corrupt(_) => FailureKind::Damaged,
            Error::Closed => FailureKind::Unavailable,
            Error::KeyTooLong { .. } | Error::KeyEmpty | Error::ValueTooLarge { .. } | Error::Keyspace(_) => {
                FailureKind::BadRequest
            }
            _ => FailureKind::Store,
        };
        Failure::new(kind, OpenError::of_open(store, place)(error).to_string())
    }
}

impl From<CallerLeft> for Failure {
    fn from(_: CallerLeft) -> Failure {
        Failure::new(FailureKind::Cancelled, QueryError::Cancelled.to_string())
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Failure {}
