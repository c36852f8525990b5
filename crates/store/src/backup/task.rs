//! Backups as callers make them: blocking, or step by step.

use super::create::{BackupOptions, BackupReport, FREEZE_LASTS, Prepared, copy};
use super::depot::Depot;
use super::error::BackupError;
use super::manifest::BackupManifest;
use super::name::BackupName;
use super::restore::{Restore, Restored, restore};
use crate::api::store::Store;
use crate::freeze::FreezeOptions;
use crate::scan::{Freeze, FreezeTask};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tapetum_base::error::Error;
use tapetum_base::manifest::base_marks::{BaseMarks, History};
use tapetum_base::media::io::{Io, Task, poll_once, run};
use tapetum_drive::{Drive, OfProcess, Purpose};

const DEPTH: u32 = 16;
/// How often a store is frozen once more because a node had no slot yet.
const FREEZES_MAX: u32 = 50;
/// How long a blocking call waits for the drive at once.
const WAIT: Duration = Duration::from_millis(10);

/// A backup that is being made, step by step. A step never waits for the drive, but for the depot. Dropping the task gives it up: what it put
/// is taken over by the next one, or pruned.
pub struct BackupTask {
    store: Store,
    io: Io,
    depot: Arc<dyn Depot>,
    options: BackupOptions,
    /// Bytes that were copied so far.
    copied: Arc<AtomicU64>,
    stage: Stage,
    freezes: u32,
}

enum Stage {
    Freezing(FreezeTask),
    Copying {
        freeze: Freeze,
        copying: OfProcess<Task<Result<Option<Prepared>, BackupError>>>,
    },
    /// The manifest is put by a step of its own, before which the caller looks whether it has the lease.
    Copied {
        freeze: Freeze,
        prepared: Prepared,
    },
    Ended,
}

impl Store {
    /// Makes a backup of the store as it is now.
    ///
    /// # Errors
    /// See [`BackupError`]. What was put into the depot by then is no backup.
    pub fn backup(
        &self,
        depot: &Arc<dyn Depot>,
        options: &BackupOptions,
        go_on: &mut dyn FnMut(u64) -> bool,
    ) -> Result<BackupReport, BackupError> {
        let mut task = self.begin_backup(depot, options)?;
        loop {
            if let Some(report) = task.step()? {
                return Ok(report);
            }
            if !go_on(task.copied.load(Ordering::Relaxed)) {
                return Err(BackupError::Cancelled);
            }
            task.wait();
        }
    }

    /// The history of the store, which its backups have.
    ///
    /// # Errors
    /// If the store has failed.
    pub fn history(&self) -> Result<History, Error> {
        Ok(self.marks()?.history)
    }

    /// How often the store was opened to write, with the openings of the store that it was restored from.
    ///
    /// # Errors
    /// As [`Store::history`].
    pub fn openings(&self) -> Result<u64, Error> {
        Ok(self.marks()?.opening.generation)
    }

    fn marks(&self) -> Result<BaseMarks, Error> {
        self.refuse_forked()?;
        let marks = async { self.hashed().take_installer().await.marks.clone() };
        self.hashed().run_beside_maintenance(&self.backup_io()?, marks)
    }

    fn backup_io(&self) -> Result<Io, Error> {
        let queue = self.drive().queue_pair(DEPTH).map_err(|error| Error::Io(error.to_string()))?;
        Ok(Io::new(queue).of(Purpose::Other))
    }

    /// Begins a backup, for a caller that goes on step by step.
    ///
    /// # Errors
    /// As [`Store::freeze`].
    pub fn begin_backup(&self, depot: &Arc<dyn Depot>, options: &BackupOptions) -> Result<BackupTask, BackupError> {
        self.base().refuse_to_write()?;
        Ok(BackupTask {
            store: self.clone(),
            io: self.backup_io()?,
            depot: depot.clone(),
            options: options.clone(),
            copied: Arc::default(),
            stage: Stage::Freezing(freeze(self)?),
            freezes: 1,
        })
    }
}

fn freeze(store: &Store) -> Result<FreezeTask, BackupError> {
    let options = FreezeOptions { owner: "backup".into(), lasts: FREEZE_LASTS, ..FreezeOptions::default() };
    Ok(store.begin_backup_freeze(&options)?)
}

impl BackupTask {
    /// The last stamp that the backup shows, once its moment is kept. `None` again: that moment was given up, and another is to be kept.
    pub fn stamp(&self) -> Option<u64> {
        match &self.stage {
            Stage::Copying { freeze, .. } | Stage::Copied { freeze, .. } => Some(freeze.frozen_store().stamp()),
            Stage::Freezing(_) | Stage::Ended => None,
        }
    }

    /// Goes on as far as that is possible without waiting; the report, when it is made.
    ///
    /// # Errors
    /// As [`Store::backup`].
    ///
    /// # Panics
    /// When it is over.
    pub fn step(&mut self) -> Result<Option<BackupReport>, BackupError> {
        self.store.refuse_forked()?;
        match std::mem::replace(&mut self.stage, Stage::Ended) {
            Stage::Freezing(mut freezing) => {
                self.stage = match freezing.step()? {
                    Some(freeze) => self.copying(freeze),
                    None => Stage::Freezing(freezing),
                };
                Ok(None)
            }
            Stage::Copying { freeze, mut copying } => {
                self.io.pump();
                self.stage = match poll_once(&mut copying) {
                    None => {
                        self.store.hashed().refuse_stopped(&self.io)?;
                        Stage::Copying { freeze, copying }
                    }
                    Some(Ok(Some(prepared))) => Stage::Copied { freeze, prepared },
                    Some(Ok(None)) if self.freezes < FREEZES_MAX => {
                        self.freezes += 1;
                        drop((copying, freeze));
                        Stage::Freezing(self::freeze(&self.store)?)
                    }
                    Some(Ok(None)) => return Err(Error::FullFlash.into()),
                    Some(Err(error)) => return Err(error),
                };
                Ok(None)
            }
            Stage::Copied { freeze, prepared } => prepared.finish(freeze.frozen_store(), &*self.depot).map(Some),
            Stage::Ended => panic!("the backup is made, or has failed"),
        }
    }

    fn copying(&self, freeze: Freeze) -> Stage {
        let (io, base, frozen) = (self.io.clone(), self.store.base().clone(), freeze.frozen_store().clone());
        let (depot, options, copied) = (self.depot.clone(), self.options.clone(), self.copied.clone());
        let copying: Task<_> = Box::pin(async move { copy(&io, &base, &frozen, depot, &options, &copied).await });
        Stage::Copying { freeze, copying: OfProcess::new(copying) }
    }

    /// Waits until a step may get on, for a short while.
    fn wait(&self) {
        if self.io.gave_way() {
            return;
        }
        match self.io.in_flight() {
            0 => self.store.drive().env().rest(),
            _ => self.io.wait(WAIT),
        }
    }
}

/// Puts a backup onto a blank drive. `crashed` says that the drive answers no more.
///
/// # Errors
/// See [`BackupError`]. The drive holds no store then.
pub fn restore_onto(
    drive: &Drive,
    depot: &dyn Depot,
    backup: (&BackupName, &BackupManifest),
    how: Restore<'_>,
    crashed: impl Fn() -> bool,
) -> Result<Restored, BackupError> {
    let queue = drive.queue_pair(DEPTH).map_err(|error| Error::Io(error.to_string()))?;
    let io = Io::new(queue).of(Purpose::Other);
    let restoring = restore((drive, &io), depot, backup, how);
    let stopped = || Error::Io("the drive stopped answering".into());
    run(&io, restoring, crashed).ok_or_else(stopped)?
}
