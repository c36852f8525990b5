//! Freezes beside other operations. A client takes some, keeps them for a while, and reads their keyspaces again and again; what it reads is
//! checked against the model at the moment of the freeze.

use super::super::{Stop, World, wrong};
use super::Life;
use super::queries::{everything, row_of};
use crate::model::operation::{Filter, Item, Told};
use crate::workload::holds;
use std::collections::BTreeMap;
use std::time::Duration;
use tapetum::{
    Error, Freeze, FreezeEnd, FreezeError, FreezeOptions, FreezeTask, ItemsTask, KeyRange, KeyspaceId, QueryError,
    QueryTask,
};
use tapetum_drive::{PipelineReason, SplitMix64};
use tapetum_kernels::scan::Scalar;

/// Freezes that the client keeps at most.
const KEPT_MAX: usize = 3;
/// One step in so many does something with freezes.
const ACT_ONE_IN: u64 = 12;

/// What the client has of freezes.
#[derive(Default)]
pub(super) struct Freezes {
    taking: Option<Taking>,
    reading: Option<Reading>,
    kept: Vec<Kept>,
}

/// A freeze that is being made.
struct Taking {
    id: u64,
    task: FreezeTask,
    ends_us: u64,
    /// Slots whose keyspaces it must have.
    slots: Vec<(usize, KeyspaceId)>,
}

struct Kept {
    id: u64,
    freeze: Freeze,
    /// It may end by itself from then on.
    ends_us: u64,
    slots: Vec<(usize, KeyspaceId)>,
}

/// A pending read of a keyspace of a freeze.
struct Reading {
    id: u64,
    slot: usize,
    range: KeyRange,
    by: ReadBy,
}

enum ReadBy {
    Items(ItemsTask),
    /// A query, with the keys and values that it has shown.
    Drive(Box<QueryTask>, Vec<(Vec<u8>, Vec<u8>)>),
}

impl std::fmt::Debug for Freezes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let taking = self.taking.as_ref().map(|taking| (taking.id, &taking.slots));
        let reading = self.reading.as_ref().map(|reading| (reading.id, reading.slot, &reading.range));
        let kept: Vec<_> = self.kept.iter().map(|kept| (kept.id, kept.freeze.report())).collect();
        write!(f, "freezes: taking {taking:?}, reading {reading:?}, kept {kept:?}")
    }
}

impl Freezes {
    pub(super) fn has_any(&self) -> bool {
        !self.kept.is_empty()
    }

    /// Whether a task is pending.
    pub(super) fn is_busy(&self) -> bool {
        self.taking.is_some() || self.reading.is_some()
    }
}

fn lasting(random: &mut SplitMix64) -> Duration {
    Duration::from_secs([2, 20, 3600][random.below(3) as usize])
}

impl Life {
    /// Now and then, in a run with freezes: begins, renews, releases or reads one.
    pub(super) fn use_freezes(&mut self, world: &mut World) -> Result<(), Stop> {
        if !world.has_freezes || self.damaged || self.poisoned || !world.freeze_random.one_in(ACT_ONE_IN) {
            return Ok(());
        }
        let kept = self.freezes.kept.len();
        let place = world.freeze_random.below(kept.max(1) as u64) as usize;
        match world.freeze_random.below(16) {
            0..4 => self.begin_freeze(world),
            _ if kept == 0 => Ok(()),
            4 => self.release_freeze(world, place),
            5 => self.renew_freeze(world, place),
            _ => self.begin_reading(world, place),
        }
    }

    fn begin_freeze(&mut self, world: &mut World) -> Result<(), Stop> {
        if self.freezes.taking.is_some() || self.freezes.kept.len() == KEPT_MAX {
            return Ok(());
        }
        let lasts = lasting(&mut world.freeze_random);
        let flash_bytes_max = world.freeze_random.one_in(2).then_some(u64::MAX);
        let ends_us = world.env.now_us() + lasts.as_micros() as u64;
        let options = FreezeOptions { owner: "a client".into(), lasts, flash_bytes_max };
        let task = match self.store.begin_freeze(&options) {
            Ok(task) => task,
            Err(error) => return self.judge_freeze_error(world, &error, u64::MAX, "is not begun"),
        };
        // Nothing is checked of a keyspace that comes or goes meanwhile, and groups of blocks are no items.
        let changing = self.changing.as_ref().map(|(slot, _)| *slot);
        let is_still =
            |slot: &usize| world.workload.is_open(*slot) && changing != Some(*slot) && !world.slots[*slot].is_grouped();
        let of_slot = |slot: usize| Some((slot, self.keyspaces[slot]?.id()));
        let slots: Vec<_> = (0..world.slots.len()).filter(is_still).filter_map(of_slot).collect();
        let keys = slots.iter().flat_map(|(slot, _)| world.workload.keys_of(*slot)).collect();
        let id = world.workload.operation_id();
        world.model.submit_freeze(id, keys);
        self.freezes.taking = Some(Taking { id, task, ends_us, slots });
        Ok(())
    }

    /// Goes on with what is pending.
    pub(super) fn step_freezes(&mut self, world: &mut World) -> Result<(), Stop> {
        if let Some(mut taking) = self.freezes.taking.take() {
            match taking.task.step() {
                Ok(None) => self.freezes.taking = Some(taking),
                Ok(Some(freeze)) => self.keep_freeze(world, taking, freeze),
                Err(error) => {
                    world.model.release_freeze(taking.id);
                    self.judge_freeze_error(world, &error, u64::MAX, "is not made")?;
                }
            }
        }
        match self.freezes.reading.take() {
            Some(reading) => self.step_reading(world, reading),
            None => Ok(()),
        }
    }

    fn keep_freeze(&mut self, world: &mut World, Taking { id, ends_us, slots, .. }: Taking, freeze: Freeze) {
        world.trace(id ^ freeze.report().stamp);
        world.model.freeze_taken(id);
        world.tally.freezes_taken += 1;
        self.freezes.kept.push(Kept { id, freeze, ends_us, slots });
    }

    fn release_freeze(&mut self, world: &mut World, place: usize) -> Result<(), Stop> {
        let kept = &self.freezes.kept[place];
        if self.freezes.reading.as_ref().is_some_and(|reading| reading.id == kept.id) {
            return Ok(());
        }
        let kept = self.freezes.kept.swap_remove(place);
        world.model.release_freeze(kept.id);
        Ok(())
    }

    fn renew_freeze(&mut self, world: &mut World, place: usize) -> Result<(), Stop> {
        let lasts = lasting(&mut world.freeze_random);
        let kept = &mut self.freezes.kept[place];
        match kept.freeze.renew(lasts) {
            Ok(()) => {
                kept.ends_us = world.env.now_us() + lasts.as_micros() as u64;
                Ok(())
            }
            Err(error) => {
                let id = kept.id;
                self.end_freeze(world, id, &error)
            }
        }
    }

    /// Begins to read a keyspace of a freeze, unless a read is pending.
    fn begin_reading(&mut self, world: &mut World, place: usize) -> Result<(), Stop> {
        let Kept { id, freeze, slots, .. } = &self.freezes.kept[place];
        if self.freezes.reading.is_some() || slots.is_empty() {
            return Ok(());
        }
        let (slot, keyspace) = slots[world.freeze_random.below(slots.len() as u64) as usize];
        let Some(frozen) = freeze.keyspaces().into_iter().find(|frozen| frozen.entry().id == keyspace) else {
            return wrong(format!("freeze {id} lacks the keyspace {keyspace:?} of slot {slot}: {freeze:?}"));
        };
        let range = match world.slots[slot].is_ordered() {
            true => world.workload.range(&mut world.freeze_random, slot),
            false => KeyRange::default(),
        };
        let by = match world.freeze_random.one_in(3) {
            true => frozen.begin_query(&everything(), &range).map(|task| ReadBy::Drive(Box::new(task), Vec::new())),
            false => frozen.begin_items(&range).map(ReadBy::Items),
        };
        let id = *id;
        match by {
            Ok(by) => {
                self.freezes.reading = Some(Reading { id, slot, range, by });
                Ok(())
            }
            Err(error) => self.judge_reading_error(world, id, &error),
        }
    }

    fn step_reading(&mut self, world: &mut World, mut reading: Reading) -> Result<(), Stop> {
        let stepped = match &mut reading.by {
            ReadBy::Items(task) => task.step().map(|items| items.map(told_by_items)),
            ReadBy::Drive(task, rows) => {
                match task.step(&mut |values: &[Option<Scalar<'_>>]| rows.push(row_of(values))) {
                    Ok(None) => Ok(None),
                    Ok(Some(_)) => Ok(Some(told_by_rows(std::mem::take(rows)))),
                    Err(error) => Err(error),
                }
            }
        };
        match stepped {
            Ok(None) => {
                self.freezes.reading = Some(reading);
                Ok(())
            }
            Ok(Some(shown)) => self.judge_reading(world, &reading, shown),
            Err(error) => self.judge_reading_error(world, reading.id, &error),
        }
    }

    fn judge_reading(&mut self, world: &mut World, reading: &Reading, shown: Vec<(Vec<u8>, Told)>) -> Result<(), Stop> {
        let Reading { id, slot, range, by } = reading;
        world.trace(*id ^ shown.len() as u64);
        world.tally.freezes_read += 1;
        let stamp_max =
            self.freezes.kept.iter().find(|kept| kept.id == *id).map_or(0, |kept| kept.freeze.report().stamp);
        let hidden = match by {
            ReadBy::Items(_) => Told::Missing,
            ReadBy::Drive(..) => Told::Hidden(Filter { below: None }),
        };
        let is_in_order = match by {
            ReadBy::Items(_) if world.slots[*slot].is_ordered() && range.is_reverse => {
                shown.is_sorted_by(|one, other| one.0 > other.0)
            }
            ReadBy::Items(_) if world.slots[*slot].is_ordered() => shown.is_sorted_by(|one, other| one.0 < other.0),
            _ => true,
        };
        if !is_in_order {
            return wrong(format!("freeze {id} shows keys of slot {slot} out of their order: {range:?}"));
        }
        let mut by_key = BTreeMap::new();
        for (key, told) in shown {
            if told.item().is_some_and(|item| item.stamp > Some(stamp_max)) {
                return wrong(format!("freeze {id} of stamp {stamp_max} shows {}: {told:?}", key.escape_ascii()));
            }
            if by_key.insert(key.clone(), told).is_some() {
                return wrong(format!("freeze {id} shows {} of slot {slot} twice", key.escape_ascii()));
            }
        }
        let mut told = BTreeMap::new();
        for key in world.workload.keys_of(*slot).filter(|key| holds(range, world.workload.key(*key))) {
            told.insert(key, by_key.remove(world.workload.key(key)).unwrap_or_else(|| hidden.clone()));
        }
        if let Some(key) = by_key.keys().next() {
            return wrong(format!(
                "freeze {id} shows {} of slot {slot}, which it has no business to",
                key.escape_ascii()
            ));
        }
        world.model.reply_freeze(*id, &told).map_err(Stop::Wrong)
    }

    fn judge_reading_error(&mut self, world: &mut World, id: u64, error: &QueryError) -> Result<(), Stop> {
        let ended = match error {
            QueryError::SnapshotTooOld => {
                let kept = self.freezes.kept.iter().find(|kept| kept.id == id);
                match kept.map(|kept| kept.freeze.check()) {
                    Some(Err(ended)) => ended,
                    _ => return wrong(format!("freeze {id} is too old to be read, and has not ended")),
                }
            }
            QueryError::Freeze(ended) => ended.clone(),
            // The drive found no memory for a query beside what sessions hold just now. The freeze stays.
            QueryError::Store(Error::Pipeline(failure)) if failure.reason == PipelineReason::NoLocalMemory => {
                world.tally.freezes_starved += 1;
                return Ok(());
            }
            QueryError::Store(error) => FreezeError::Store(error.clone()),
            error => return wrong(format!("freeze {id} cannot be read: {error}")),
        };
        self.end_freeze(world, id, &ended)
    }

    /// A freeze told that it has ended, or that the store has failed.
    fn end_freeze(&mut self, world: &mut World, id: u64, error: &FreezeError) -> Result<(), Stop> {
        let Some(place) = self.freezes.kept.iter().position(|kept| kept.id == id) else {
            return wrong(format!("freeze {id} is not kept: {error}"));
        };
        let kept = self.freezes.kept.swap_remove(place);
        self.freezes.reading.take_if(|reading| reading.id == id);
        world.model.release_freeze(id);
        self.judge_freeze_error(world, error, kept.ends_us, "cannot be read")
    }

    fn judge_freeze_error(
        &mut self,
        world: &mut World,
        error: &FreezeError,
        ends_us: u64,
        what: &str,
    ) -> Result<(), Stop> {
        let is_right = match error {
            FreezeError::Ended { why: FreezeEnd::FlashNeeded, .. } => {
                world.tally.freezes_ended += 1;
                true
            }
            FreezeError::Ended { why: FreezeEnd::Expired, .. } => world.env.now_us() >= ends_us,
            FreezeError::Store(Error::Poisoned(_) | Error::NoSpace { .. }) => {
                self.poisoned = self.faulty;
                self.faulty
            }
            FreezeError::Store(Error::Io(_) | Error::Pipeline(_)) => self.faulty,
            _ => false,
        };
        if is_right { Ok(()) } else { wrong(format!("a freeze {what}: {error}")) }
    }
}

fn told_by_items(items: Vec<(Vec<u8>, tapetum::Item)>) -> Vec<(Vec<u8>, Told)> {
    let told = |(key, item): (Vec<u8>, tapetum::Item)| {
        let tapetum::Item { value, flags, expiry, stamp } = item;
        let item = Item { value: value.into(), flags, expiry, stamp: Some(stamp), marks: None, writer: 0 };
        (key, Told::Value(item))
    };
    items.into_iter().map(told).collect()
}

fn told_by_rows(rows: Vec<(Vec<u8>, Vec<u8>)>) -> Vec<(Vec<u8>, Told)> {
    rows.into_iter().map(|(key, value)| (key, Told::Shown(value.into()))).collect()
}
