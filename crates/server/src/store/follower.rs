//! A standby: a store that follows the backups of another, and is served to read until it is promoted.
//!
//! ```text
//!  drive ── open, served          new backup ─► drive.next brought to it ─► opened ─► names exchanged ─► sessions go over ─► the other is the next
//!  drive.next
//! ```
//! 1. `drive` is a whole store of one backup at any time. `drive.next` is one of an earlier backup, or is made anew.
//!    As long as commands read the store in `drive.next`, it stays as it is, and the standby does not go over to a later backup.
//! 2. Nobody writes to either before the standby is promoted. A store that was written to is no standby.
//! 3. Nobody else works on either: [`StandbyClaim`] is held.
//! 4. It is promoted under the lease, behind the last backup that is believed, and serves writes when its generation is noted.
//!
//! Threads: one, which blocks while a store is restored or opened.

// The server is above the simulator: the thread that exchanges stores works on files.
#![allow(clippy::disallowed_methods)]

use std::fmt;
use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

use rustix::fs::{CWD, RenameFlags, renameat_with};
use tapetum::backup::lease::{Lease, Loss, Seen, Watch, look};
use tapetum::backup::{self, BackupError, BackupManifest, BackupName, Depot, Restore};
use tapetum::{Options, Place, RestoreError, Store, restore_at, restore_over};
use tapetum_drive::env::Env;
use tapetum_drive::unfinished;
use tapetum_service::backups::{take_lease, take_lease_of_loss};
use tapetum_service::opening::OpenError;
use tapetum_service::reply::PromotedRow;

use crate::store::standby_claim::StandbyClaim;
use crate::store::store_slot::{StoreSlot, alone};
use tracing::subscriber::{NoSubscriber, with_default};

/// The backup that a store is.
struct Held {
    name: BackupName,
    manifest: BackupManifest,
    /// The history of the store.
    history: u64,
}

/// Why a standby does not follow, or is not promoted.
pub enum FollowError {
    Backup(BackupError),
    Restore(RestoreError),
    Open(OpenError),
    Io(String),
    /// The store is not one of the depot's backups, or was written to since it was restored.
    NoStandby {
        path: PathBuf,
        place: String,
    },
    /// Another process follows backups there, or promotes the standby.
    Held {
        path: PathBuf,
        by: String,
    },
    /// How much would be lost is not known.
    NeedsForce {
        place: String,
    },
}

impl From<BackupError> for FollowError {
    fn from(error: BackupError) -> FollowError {
        FollowError::Backup(error)
    }
}

impl From<RestoreError> for FollowError {
    fn from(error: RestoreError) -> FollowError {
        FollowError::Restore(error)
    }
}

impl From<OpenError> for FollowError {
    fn from(error: OpenError) -> FollowError {
        FollowError::Open(error)
    }
}

impl From<tapetum::OpenError> for FollowError {
    fn from(error: tapetum::OpenError) -> FollowError {
        FollowError::Open(error.into())
    }
}

impl From<tapetum::Error> for FollowError {
    fn from(error: tapetum::Error) -> FollowError {
        FollowError::Backup(error.into())
    }
}

impl fmt::Display for FollowError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FollowError::Backup(error) => error.fmt(f),
            FollowError::Restore(error) => error.fmt(f),
            FollowError::Open(error) => error.fmt(f),
            FollowError::Io(error) => f.write_str(error),
            FollowError::NoStandby { path, place } => write!(
                f,
                "{} is no standby of {place}: it holds another store, or was written to since it was restored, or its backup is no longer \
                 there; give a new --data; nothing was changed",
                path.display()
            ),
            FollowError::Held { path, by } => write!(
                f,
                "{} is held by {by}: if that is a standby which still restores or opens its store, try again when its log says that it \
                 serves; otherwise wait until it has ended; nothing was changed",
                path.display()
            ),
            FollowError::NeedsForce { place } => write!(
                f,
                "no server holds a lease at {place}, or it has made no backup under it: whether one still writes, and how much was written \
                 since the last backup, is not known; make sure that none does, and say --force to lose that"
            ),
        }
    }
}

impl fmt::Debug for FollowError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl std::error::Error for FollowError {}

/// Somebody wants the standby to be promoted.
pub struct PromotionOrder {
    pub force: bool,
    pub answer: Sender<Result<PromotedRow, String>>,
}

/// A store that was served before, and since when.
struct Leaving {
    store: Arc<Store>,
    since: Instant,
}

/// How long commands may read the store before until somebody is told.
const LEAVING_PATIENCE: Duration = Duration::from_secs(10);

/// See the [module](self).
pub struct Follower {
    depot: Arc<dyn Depot>,
    /// How others see this process as long as it has the lease.
    command: &'static str,
    /// Held until the store is promoted, or closed.
    _claim: StandbyClaim,
    place: Place,
    options: Options,
    has: Held,
    /// What `drive.next` holds; `None`: it is to be made anew.
    next: Option<BackupManifest>,
    /// The store that was served before, in `drive.next`, until no command reads it any more.
    leaving: Option<Leaving>,
    /// `drive` was opened to write: it is no backup that another may be made of.
    was_written: bool,
}

impl Follower {
    /// Restores the last backup at `place`, which is claimed, or goes on with the one that is there. `options` are for a store that is read.
    pub fn new(
        depot: &Arc<dyn Depot>,
        place: &Place,
        options: &Options,
        claim: StandbyClaim,
        command: &'static str,
    ) -> Result<Follower, FollowError> {
        let path = place.path();
        let last = backup::find(&**depot, None)?;
        let has = match path.exists() {
            true => {
                held(&**depot, place, options)?.ok_or_else(|| FollowError::NoStandby { path, place: depot.place() })?
            }
            false => {
                let manifest = backup::read(&**depot, &last)?;
                tracing::info!("restoring backup {} of {} to {}", last.sequence, depot.place(), path.display());
                let backup = (&last, &manifest);
                let restored = restore_at(place, &**depot, backup, Restore::Whole)?;
                Held { name: last, manifest, history: restored.history.id }
            }
        };
        Ok(Follower {
            depot: Arc::clone(depot),
            command,
            _claim: claim,
            place: place.clone(),
            options: options.clone(),
            has,
            next: None,
            leaving: None,
            was_written: false,
        })
    }

    /// Opens what is there, to read.
    pub fn open(&self) -> Result<Store, FollowError> {
        Ok(self.options.open_read_only(self.place.clone())?)
    }

    pub fn depot(&self) -> &Arc<dyn Depot> {
        &self.depot
    }

    /// The number of the backup that is served.
    pub fn number(&self) -> u64 {
        self.has.name.sequence
    }

    /// The moment of that backup, in milliseconds since 1970.
    pub fn moment_ms(&self) -> u64 {
        self.has.manifest.moment_unix_ms
    }

    fn path_next(&self) -> PathBuf {
        let mut name = self.place.path().into_os_string();
        name.push(".next");
        name.into()
    }

    /// Goes over to the last backup, if that is a later one; whether it was.
    pub fn look(&mut self, slot: &StoreSlot) -> Result<bool, FollowError> {
        if self.is_read_before()? {
            return Ok(false);
        }
        // Each opening tells the log what it finds: that would be said every few seconds.
        let brought = with_default(NoSubscriber::default(), || -> Result<_, FollowError> {
            let Some(held) = self.bring_next()? else { return Ok(None) };
            Ok(Some((held, self.options.open_read_only(Place::Drive(self.path_next()))?)))
        });
        let Some((held, store)) = brought? else { return Ok(false) };
        self.exchange_names(held)?;
        self.leaving = Some(Leaving { store: slot.replace(store)?, since: Instant::now() });
        Ok(true)
    }

    /// Whether a command still reads the store before.
    fn is_read_before(&mut self) -> Result<bool, FollowError> {
        let Some(Leaving { store, since }) = self.leaving.take() else { return Ok(false) };
        let Err(store) = Arc::try_unwrap(store) else { return Ok(false) };
        self.leaving = Some(Leaving { store, since });
        if since.elapsed() < LEAVING_PATIENCE {
            return Ok(true);
        }
        Err(FollowError::Io("a command still reads the backup before".into()))
    }

    /// Brings `drive.next` to the last backup, if that is a later one.
    fn bring_next(&mut self) -> Result<Option<Held>, FollowError> {
        let last = backup::find(&*self.depot, None)?;
        if last == self.has.name {
            return Ok(None);
        }
        let (manifest, path) = (backup::read(&*self.depot, &last)?, self.path_next());
        let to = (&last, &manifest);
        // After an error nobody knows what it holds.
        let restored = match self.next.take().filter(|next| next.capacity_bytes == manifest.capacity_bytes) {
            Some(next) => restore_over(&path, &*self.depot, to, &next)?,
            None => {
                match fs::remove_file(&path) {
                    Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                        return Err(io(&path, "remove", error));
                    }
                    _ => {}
                }
                restore_at(&Place::Drive(path), &*self.depot, to, Restore::Whole)?
            }
        };
        Ok(Some(Held { name: last, manifest, history: restored.history.id }))
    }

    /// Lets `drive` be what was brought to `drive.next`.
    fn exchange_names(&mut self, held: Held) -> Result<(), FollowError> {
        let (path, next) = (self.place.path(), self.path_next());
        let exchanged = renameat_with(CWD, &next, CWD, &path, RenameFlags::EXCHANGE).map_err(std::io::Error::from);
        exchanged.map_err(|error| io(&path, "rename", error))?;
        let before = std::mem::replace(&mut self.has, held).manifest;
        self.next = (!std::mem::take(&mut self.was_written)).then_some(before);
        unfinished::sync_folders_of(&path).map_err(|error| io(&path, "rename", error))
    }

    /// Takes the lease, when its holder's time is over, and what is known of the holder. `force`: also if nothing is known.
    pub fn take_lease(
        &self,
        force: bool,
        lasts_ms: u64,
        go_on: &mut dyn FnMut() -> bool,
    ) -> Result<(Lease, Loss), FollowError> {
        let record = look(&*self.depot)?.map(|(_, record)| record);
        if record.as_ref().is_none_or(|record| record.loss() == Loss::Unknown) && !force {
            // A server that is there is told of first.
            if let Seen::Held { .. } = Watch::default().look(&*self.depot, &Env::system())? {
                drop(take_lease(&self.depot, self.command, lasts_ms, go_on)?.release());
            }
            return Err(FollowError::NeedsForce { place: self.depot.place() });
        }
        let loss = record.map_or(Loss::Unknown, |record| record.loss());
        Ok((take_lease_of_loss(&self.depot, self.command, lasts_ms, loss, go_on)?, loss))
    }

    /// Brings what is closed to the last backup, so that it may be opened to write.
    pub fn end_following(&mut self) -> Result<(), FollowError> {
        self.leaving.take().map(|leaving| alone(leaving.store));
        if let Some(held) = self.bring_next()? {
            self.exchange_names(held)?;
        }
        (self.next, self.was_written) = (None, true);
        match fs::remove_file(self.path_next()) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(io(&self.path_next(), "remove", error)),
            _ => Ok(()),
        }
    }

    /// Begins a generation of the store, before it is opened to write: one that was opened, and then killed, would be a standby no more.
    pub fn promote(&self, lease: &mut Lease, loss: Loss) -> Result<PromotedRow, FollowError> {
        let generation = lease.promote(self.has.history, &self.has.name)?;
        Ok(PromotedRow::new(generation, self.has.name.sequence, loss))
    }
}

/// The backup that a store at `place` is, if nobody wrote to it since it was restored.
fn held(depot: &dyn Depot, place: &Place, options: &Options) -> Result<Option<Held>, FollowError> {
    let store = options.open_read_only(place.clone())?;
    let (history, openings) = (store.history()?, store.openings()?);
    drop(store);
    let names = backup::list(depot)?;
    let Some(name) = names.into_iter().find(|name| history.id != 0 && name.parent() == history.parent) else {
        return Ok(None);
    };
    let manifest = backup::read(depot, &name)?;
    Ok((manifest.opening == openings).then_some(Held { name, manifest, history: history.id }))
}

fn io(path: &std::path::Path, doing: &str, error: std::io::Error) -> FollowError {
    FollowError::Io(format!("cannot {doing} {}: {error}", path.display()))
}
