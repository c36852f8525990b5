//! Why a backup was not made, read or restored.

use super::depot::DepotError;
use super::name::BackupName;
use crate::freeze::FreezeError;
use std::fmt;
use tapetum_base::debug_as_text;
use tapetum_base::error::Error;

#[non_exhaustive]
#[derive(Clone, PartialEq)]
pub enum BackupError {
    Store(Error),
    Freeze(FreezeError),
    Depot(DepotError),
    /// The depot has no backups.
    NoBackups {
        place: String,
    },
    /// There is no backup of this number.
    Unknown {
        place: String,
        sequence: u64,
    },
    /// The depot is another store's.
    OtherStore {
        place: String,
    },
    /// There are backups, and nothing says of which store.
    Ownerless {
        place: String,
    },
    /// The last backup is of a store that went another way than this one: a standby was promoted, or an older backup restored.
    OtherHistory {
        place: String,
    },
    /// The depot holds something else.
    Foreign {
        place: String,
    },
    /// A newer version wrote the depot, or a backup in it.
    OtherFormat {
        place: String,
        version: u32,
    },
    /// The manifest of a backup is cut or rotten.
    BadManifest {
        place: String,
        name: BackupName,
    },
    /// Backups that were made, and not pruned, are gone.
    Missing {
        place: String,
        numbers: Vec<u64>,
    },
    /// Packs of a backup are gone, cut or rotten.
    Damaged {
        place: String,
        name: BackupName,
        packs: Vec<String>,
    },
    /// The source is damaged: nothing was believed.
    BadSource(String),
    /// Another writer makes backups there.
    Held {
        place: String,
        by: String,
    },
    /// The lease was lost amid the work.
    LostLease {
        place: String,
    },
    /// Whoever asked has left.
    Cancelled,
}

impl From<Error> for BackupError {
    fn from(error: Error) -> BackupError {
        BackupError::Store(error)
    }
}

impl From<FreezeError> for BackupError {
    fn from(error: FreezeError) -> BackupError {
        match error {
            FreezeError::Store(error) => BackupError::Store(error),
            error => BackupError::Freeze(error),
        }
    }
}

impl From<DepotError> for BackupError {
    fn from(error: DepotError) -> BackupError {
        BackupError::Depot(error)
    }
}

/// The first of some names, and how many more there are.
fn first_of(names: &[String]) -> String {
    match names {
        [] => String::new(),
        [only] => only.clone(),
        [first, rest @ ..] => format!("{first} and {} more", rest.len()),
    }
}

impl fmt::Display for BackupError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BackupError::Store(error) => error.fmt(f),
            BackupError::Freeze(FreezeError::Ended { .. }) => f.write_str(
                "writers needed the flash that the backup's moment kept, or the depot was too slow: try again, or give the store more capacity",
            ),
            BackupError::Freeze(error) => error.fmt(f),
            BackupError::Depot(error) => error.fmt(f),
            BackupError::NoBackups { place } => write!(f, "{place} has no backups: make one with `tapetum backup create`"),
            BackupError::Unknown { place, sequence } => {
                write!(f, "{place} has no backup {sequence}: `tapetum backup list` prints those there are")
            }
            BackupError::OtherStore { place } => {
                write!(f, "{place} has backups of another store: give each store a place of its own")
            }
            BackupError::Ownerless { place } => write!(
                f,
                "{place} is damaged: it has backups, the file `store` that says whose they are is gone, and their manifests cannot be read or \
                 name several stores; put that file back from a copy, or give another place; what is whole there can be restored; nothing was \
                 written"
            ),
            BackupError::OtherHistory { place } => write!(
                f,
                "the last backup at {place} is not of this store's past: a standby was promoted since, or this store was restored from an \
                 older backup; give another folder, or let this store be the one that counts: `tapetum promote {place} --force`"
            ),
            BackupError::Foreign { place } => {
                write!(f, "{place} holds other things and no backups: give an empty or new folder; nothing was written")
            }
            BackupError::OtherFormat { place, version } => write!(
                f,
                "{place} has backups of the format {version}, which this tapetum does not know: use the newer tapetum that made them"
            ),
            BackupError::BadManifest { place, name } => write!(
                f,
                "the manifest of backup {} at {place} is cut or rotten ({}): use another backup, or its copy",
                name.sequence,
                name.object()
            ),
            BackupError::Missing { place, numbers } => {
                let names: Vec<String> = numbers.iter().map(u64::to_string).collect();
                let (are, first) = (if names.len() == 1 { "is" } else { "are" }, first_of(&names));
                write!(
                    f,
                    "backup {first} at {place} {are} gone, and `tapetum backup prune` did not remove it: put its manifest back from a copy, or \
                     keep with `prune` only those made after it; the others are whole"
                )
            }
            BackupError::Damaged { place, name, packs } => write!(
                f,
                "backup {} at {place} lacks bytes: {} is gone, cut or rotten; use another backup, or restore what is left with --partial",
                name.sequence,
                first_of(packs)
            ),
            BackupError::BadSource(what) => {
                write!(f, "{what}: no backup was made; `tapetum check` says what is damaged, and `tapetum repair` repairs it")
            }
            BackupError::Held { place, by } => write!(
                f,
                "{by} makes backups at {place} now: wait until it has ended, or give another place"
            ),
            BackupError::LostLease { place } => write!(
                f,
                "another took over the backups at {place} meanwhile, and this one does not count: look who did, before you make another"
            ),
            BackupError::Cancelled => f.write_str("given up, since whoever asked has left"),
        }
    }
}

debug_as_text!(BackupError);

impl std::error::Error for BackupError {}
