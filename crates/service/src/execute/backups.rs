//! Backups of an open store, to a folder or to object storage.

use std::ffi::OsStr;

use tapetum::backup::{BackupError, BackupOptions, BackupReport, refuse_other_store};
use tapetum_depot::Destination;

use super::OpenStore;
use crate::backups::{LASTS_MS, release, take_lease};
use crate::caller::{Caller, CallerLeft};
use crate::failure::{Failure, FailureKind};
use crate::reply::{BackupRow, Reply};

/// Bytes between two words about how far it is.
const TELL_BYTES: u64 = 64 << 20;

pub fn create(open: OpenStore<'_>, to: &str, anew: bool, caller: &mut dyn Caller) -> Result<(), Failure> {
    let failed = |error| failure(open, error);
    let to = Destination::parse(OsStr::new(to));
    let to = to.map_err(|error| Failure::new(FailureKind::BadRequest, error.to_string()))?;
    let depot = to.make().map_err(|error| failed(error.into()))?;
    refuse_other_store(&*depot, open.store.id()).map_err(failed)?;
    let mut lease =
        take_lease(&depot, "tapetum backup create", LASTS_MS, &mut || !caller.has_left()).map_err(failed)?;
    let options = BackupOptions { generation: lease.generation(), anew };
    let (mut told, mut lost) = (0, None);
    let made = open.store.backup(&depot, &options, &mut |bytes| {
        if let Err(error) = lease.keep() {
            lost = Some(error);
            return false;
        }
        if bytes < told + TELL_BYTES {
            return !caller.has_left();
        }
        told = bytes;
        caller.take(Reply::Progress { done: bytes, of: 0 }).is_ok()
    });
    release(lease);
    let made = lost.map_or(made, Err).map_err(failed)?;
    Ok(caller.take(Reply::BackedUp(row(&made)))?)
}

fn row(made: &BackupReport) -> BackupRow {
    BackupRow {
        number: made.name.sequence,
        generation: made.name.generation,
        keyspaces: made.keyspaces as u64,
        drive_bytes: made.drive_bytes,
        copied_bytes: made.copied_bytes,
    }
}

fn failure(open: OpenStore<'_>, error: BackupError) -> Failure {
    let kind = match &error {
        BackupError::Store(error) => return open.failure(error.clone()),
        BackupError::Cancelled => return CallerLeft.into(),
        BackupError::Depot(error) if error.is_full => FailureKind::Full,
        BackupError::BadSource(_) | BackupError::BadManifest { .. } | BackupError::Damaged { .. } => {
            FailureKind::Damaged
        }
        BackupError::Freeze(_) | BackupError::Held { .. } | BackupError::LostLease { .. } => FailureKind::Unavailable,
        _ => FailureKind::BadRequest,
    };
    Failure::new(kind, error.to_string())
}
