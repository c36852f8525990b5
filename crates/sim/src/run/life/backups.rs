//! Backups beside other operations, step by step. What they show is checked when they are restored ([`super::super::backups`]).

use super::super::backups::Moment;
use super::super::{Stop, World, wrong};
use super::Life;
use std::sync::Arc;
use tapetum::backup::{BackupError, BackupOptions, BackupTask, Depot};
use tapetum::{Error, FreezeEnd, FreezeError};

/// One step in so many begins a backup, or gives one up.
const BEGIN_ONE_IN: u64 = 150;
const GIVE_UP_ONE_IN: u64 = 2000;
/// The backup's moment lasts so long if nothing is put.
const LASTS_US: u64 = 120_000_000;

/// A backup that is being made.
pub(super) struct BackupAsked {
    id: u64,
    task: BackupTask,
    /// The store's plans to delete everything, when the moment was asked for.
    clear_times: Vec<Vec<u32>>,
    moment: Option<Moment>,
    begun_us: u64,
}

impl Life {
    /// Whether the moment of a backup is being taken.
    pub(super) fn is_freezing_for_backup(&self) -> bool {
        self.backup.as_ref().is_some_and(|asked| asked.moment.is_none())
    }

    /// Now and then, in a run with backups: begins one, or gives it up.
    pub(super) fn use_backups(&mut self, world: &mut World) -> Result<(), Stop> {
        let is_idle = !world.backups.is_on || world.trouble.is_some() || self.damaged || self.poisoned;
        // Nothing is known of a keyspace that comes or goes meanwhile.
        if is_idle || self.changing.is_some() {
            return Ok(());
        }
        match &self.backup {
            Some(_) if world.backups.random.one_in(GIVE_UP_ONE_IN) => self.give_backup_up(world),
            None if world.backups.random.one_in(BEGIN_ONE_IN) => self.begin_backup(world),
            _ => Ok(()),
        }
    }

    fn begin_backup(&mut self, world: &mut World) -> Result<(), Stop> {
        let options = BackupOptions { generation: 1, anew: world.backups.random.one_in(8) };
        let depot: Arc<dyn Depot> = world.backups.depot.clone();
        let task = match self.store.begin_backup(&depot, &options) {
            Ok(task) => task,
            Err(error) => return self.judge_backup_error(world, &error, 0, 0),
        };
        let id = world.workload.operation_id();
        let begun_us = world.env.now_us();
        self.backup = Some(Box::new(BackupAsked { id, task, clear_times: Vec::new(), moment: None, begun_us }));
        self.ask_for_moment(world);
        Ok(())
    }

    /// Submits to the model what the moment of the pending backup shows.
    fn ask_for_moment(&mut self, world: &mut World) {
        let Some(asked) = &mut self.backup else { return };
        let keys = (0..world.workload.keys()).filter(|key| world.workload.is_open(*key)).collect();
        asked.id = world.workload.operation_id();
        asked.clear_times = world.model.clear_times();
        world.model.submit_scan(asked.id, keys);
    }

    fn give_backup_up(&mut self, world: &mut World) -> Result<(), Stop> {
        let Some(asked) = self.backup.take() else { return Ok(()) };
        world.tally.backups_ended += 1;
        self.end_backup(world, *asked).map(drop)
    }

    /// Forgets a backup that has ended. Returns whether it is in the depot.
    fn end_backup(&mut self, world: &mut World, asked: BackupAsked) -> Result<bool, Stop> {
        if asked.moment.is_none() {
            world.model.release_freeze(asked.id);
        }
        Ok(world.backups.note_put(asked.moment)?.is_some())
    }

    /// Goes on with the pending backup.
    pub(super) fn step_backup(&mut self, world: &mut World) -> Result<(), Stop> {
        let Some(mut asked) = self.backup.take() else { return Ok(()) };
        let failures = world.backups.depot.failures();
        match asked.task.step() {
            Ok(None) => self.go_on_with_backup(world, asked),
            Ok(Some(report)) => {
                world.trace(asked.id ^ report.stamp);
                world.tally.backups_made += 1;
                if let Some(other) = world.backups.foreign() {
                    return wrong(format!("{report:?} takes over what {other:?} has, which is of another history"));
                }
                match self.end_backup(world, *asked)? {
                    true => Ok(()),
                    false => wrong(format!("there is no backup of {report:?}")),
                }
            }
            Err(error) => {
                world.tally.backups_ended += 1;
                let (begun_us, is_cut) = (asked.begun_us, world.backups.depot.is_cut());
                let failures = world.backups.depot.failures() - failures;
                self.end_backup(world, *asked)?;
                if is_cut {
                    // It is the store's power, too.
                    world.faulty.crash();
                }
                self.judge_backup_error(world, &error, begun_us, failures)
            }
        }
    }

    fn go_on_with_backup(&mut self, world: &mut World, mut asked: Box<BackupAsked>) -> Result<(), Stop> {
        match (asked.task.stamp(), &asked.moment) {
            (Some(stamp), None) => {
                let model = world.model.moment(asked.id, &asked.clear_times);
                asked.moment = Some(Moment { stamp, model, slots: world.slots.clone() });
                self.backup = Some(asked);
            }
            (None, Some(_)) => {
                asked.moment = None;
                let is_changing = self.changing.is_some();
                self.backup = Some(asked).filter(|_| !is_changing);
                self.ask_for_moment(world);
            }
            _ => self.backup = Some(asked),
        }
        Ok(())
    }

    /// `failures`: operations of the depot that failed meanwhile.
    fn judge_backup_error(
        &mut self,
        world: &mut World,
        error: &BackupError,
        begun_us: u64,
        failures: u64,
    ) -> Result<(), Stop> {
        let is_right = match error {
            BackupError::Depot(_) => failures > 0,
            BackupError::OtherHistory { .. } if world.backups.foreign().is_some() => {
                world.backups.take_another_depot();
                true
            }
            BackupError::Freeze(FreezeError::Ended { why: FreezeEnd::FlashNeeded, .. } | FreezeError::FlashNeeded) => {
                true
            }
            BackupError::Freeze(FreezeError::Ended { why: FreezeEnd::Expired, .. }) => {
                world.env.now_us() >= begun_us + LASTS_US
            }
            // Of a full drive: a node has no slot.
            BackupError::Store(Error::FullFlash) => world.has_ordered,
            BackupError::Store(Error::Poisoned(_) | Error::NoSpace { .. }) => {
                self.poisoned = self.faulty;
                self.faulty
            }
            BackupError::Store(Error::Io(_) | Error::Pipeline(_)) => self.faulty || world.faulty.crashed(),
            _ => false,
        };
        if is_right { Ok(()) } else { wrong(format!("a backup is not made: {error}")) }
    }
}
