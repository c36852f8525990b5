//! What a run has of backups: a depot that outlives its stores, and for each backup the model at its moment.
//!
//! ```text
//! lives put backups ─► between two lives:  pruned, perhaps cut short ─► verified ─► one object of a copy damaged ─► one backup restored
//!                                                                                                                   │
//!                            the run goes on with the store that it had, or with this one ◄─ lives and dies once ◄──┘ perhaps cut short
//! ```

use super::{Stop, World, wrong};
use crate::depot::{DepotFaults, SimDepot};
use crate::keyspaces::Slot;
use crate::model::Model;
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::sync::Arc;
use tapetum::backup::{self, BackupError, BackupManifest, BackupName, Restore, prune, restore_onto, verify};
use tapetum::{Error, Store};
use tapetum_drive::{FaultyFlash, SplitMix64};

/// Backups that a depot holds, beyond which it is pruned.
const KEPT_MAX: u64 = 6;

/// What becomes of the depot's operations while a backup is made.
const FAULTS: DepotFaults = DepotFaults { full_one_in: 20, fails_one_in: 20, cut_one_in: 20 };

/// The moment that a backup shows.
pub(super) struct Moment {
    pub stamp: u64,
    pub model: Model,
    pub slots: Vec<Slot>,
}

pub(super) struct Backups {
    pub is_on: bool,
    /// Decides all about backups: apart from the run's, so that runs without backups are as they would be without.
    pub random: SplitMix64,
    pub depot: Arc<SimDepot>,
    /// By name, the moments of all that were put.
    moments: BTreeMap<BackupName, Rc<Moment>>,
    /// Those that are of the present store's past. A later one may take over what they have.
    own: BTreeSet<BackupName>,
}

impl Backups {
    pub fn new(mut random: SplitMix64, is_on: bool) -> Backups {
        let depot = Arc::new(SimDepot::new(random.next_u64()));
        depot.set_faults(FAULTS);
        Backups { is_on, random, depot, moments: BTreeMap::new(), own: BTreeSet::new() }
    }

    /// Begins with an empty depot.
    pub fn take_another_depot(&mut self) {
        *self = Backups::new(self.random.clone(), self.is_on);
    }

    /// The name of the last backup, if it is not of this store's past.
    pub fn foreign(&self) -> Option<BackupName> {
        self.moments.keys().next_back().filter(|last| !self.own.contains(last)).copied()
    }

    /// Notes the backup that was put since the last call, if one was. It is of this moment.
    pub fn note_put(&mut self, moment: Option<Moment>) -> Result<Option<BackupName>, Stop> {
        self.depot.set_faults(DepotFaults::default());
        let names = backup::list(&*self.depot).or_else(|error| wrong(format!("backups are not listed: {error}")))?;
        let new: Vec<BackupName> = names.into_iter().filter(|name| !self.moments.contains_key(name)).collect();
        let manifests = new.iter().map(|name| backup::read(&*self.depot, name));
        let stamps = manifests.map(|manifest| manifest.map(|manifest| manifest.stamp)).collect::<Result<Vec<_>, _>>();
        let stamps = stamps.or_else(|error| wrong(format!("a backup that was just put: {error}")))?;
        self.depot.set_faults(FAULTS);
        match (&new[..], &stamps[..], moment) {
            ([], ..) => Ok(None),
            ([name], [stamp], Some(moment)) if moment.stamp == *stamp => {
                self.moments.insert(*name, Rc::new(moment));
                self.own.insert(*name);
                Ok(Some(*name))
            }
            (_, _, moment) => {
                wrong(format!("backups {new:?} of the stamps {stamps:?}, not {:?}", moment.map(|moment| moment.stamp)))
            }
        }
    }
}

/// Objects that a backup needs.
fn needs(name: &BackupName, manifest: &BackupManifest) -> BTreeSet<String> {
    let pieces = manifest.parts.iter().flat_map(|part| &part.pieces);
    let packs = pieces.map(|piece| format!("packs/{}", manifest.packs[piece.pack as usize].digest));
    packs.chain([name.object()]).collect()
}

impl World {
    /// Between two lives: looks after the depot, and at what it holds.
    pub(super) fn tend_backups(&mut self) -> Result<(), String> {
        if !self.backups.is_on || self.backups.moments.is_empty() {
            return Ok(());
        }
        let ended = self.prune_backups().and_then(|()| self.look_at_backups());
        self.judge(ended)
    }

    fn prune_backups(&mut self) -> Result<(), Stop> {
        let Backups { random, depot, moments, .. } = &mut self.backups;
        if moments.len() as u64 <= random.below(KEPT_MAX) {
            return Ok(());
        }
        let keep = 1 + random.below(3) as usize;
        depot.set_faults(DepotFaults { fails_one_in: 20, cut_one_in: 20, ..DepotFaults::default() });
        let failures = depot.failures();
        let pruned = prune(&**depot, keep, &mut || true);
        let has_failed = depot.failures() > failures;
        depot.set_faults(DepotFaults::default());
        let left = backup::list(&**depot).or_else(|error| wrong(format!("backups are not listed: {error}")))?;
        self.tally.depot_prunes += 1;
        let is_right = match &pruned {
            Ok(_) => left.len() == keep.min(moments.len()),
            Err(BackupError::Depot(_)) => has_failed && left.len() >= keep.min(moments.len()),
            Err(_) => false,
        };
        if !is_right || !moments.keys().rev().take(keep).all(|name| left.contains(name)) {
            return wrong(format!("pruned to {keep}: {pruned:?}; {:?} became {left:?}", moments.keys()));
        }
        moments.retain(|name, _| left.contains(name));
        Ok(())
    }

    fn look_at_backups(&mut self) -> Result<(), Stop> {
        self.backups.depot.set_faults(DepotFaults::default());
        let names: Vec<BackupName> = self.backups.moments.keys().copied().collect();
        let depot = self.backups.depot.clone();
        let listed = backup::list(&*depot).or_else(|error| wrong(format!("backups are not listed: {error}")))?;
        if listed != names {
            return wrong(format!("there are the backups {listed:?}, and {names:?} were made"));
        }
        verify(&*depot, &names, &mut || true).or_else(|error| wrong(format!("a backup is not whole: {error}")))?;
        let name = names[self.backups.random.below(names.len() as u64) as usize];
        let manifest = backup::read(&*depot, &name).or_else(|error| wrong(format!("not read: {error}")))?;
        if self.backups.random.one_in(3) {
            self.restore_from_damaged(&name, &manifest)?;
        }
        if self.backups.random.one_in(3) {
            self.live_from(&name, &manifest)?;
        }
        self.backups.depot.set_faults(FAULTS);
        Ok(())
    }

    /// Restores from a copy of the depot in which one object is damaged: if the backup needs that, nothing is restored.
    fn restore_from_damaged(&mut self, name: &BackupName, manifest: &BackupManifest) -> Result<(), Stop> {
        let Some((damaged, object)) = self.backups.depot.damaged(&mut self.backups.random) else { return Ok(()) };
        let is_needed = needs(name, manifest).contains(&object);
        let verified = verify(&damaged, &[*name], &mut || true);
        let flash = FaultyFlash::new(manifest.capacity_bytes, self.backups.random.next_u64());
        let drive = self.drive_of(flash.clone());
        let restored = backup::read(&damaged, name).and_then(|manifest| {
            let backup = (name, &manifest);
            restore_onto(&drive, &damaged, backup, Restore::Whole, || false)
        });
        drop(drive);
        let says_so =
            |error: &BackupError| matches!(error, BackupError::Damaged { .. } | BackupError::BadManifest { .. });
        let is_right = match (&verified, &restored) {
            (Ok(_), Ok(_)) => !is_needed,
            (Err(one), Err(other)) => is_needed && says_so(one) && says_so(other),
            _ => false,
        };
        if !is_right {
            return wrong(format!(
                "{object} is damaged, which {name:?} {}: {verified:?}, {restored:?}",
                if is_needed { "needs" } else { "does not need" }
            ));
        }
        match Store::open_with(&self.drive_of(flash), &self.options, || false) {
            Ok(_) if !is_needed => Ok(()),
            Err(Error::Unusable(_)) if is_needed => Ok(()),
            opened => wrong(format!("from a depot without {object}, of {name:?}, came {:?}", opened.err())),
        }
    }

    /// Restores a backup, and lets the store that it is live and die once.
    fn live_from(&mut self, name: &BackupName, manifest: &BackupManifest) -> Result<(), Stop> {
        let moment = self.backups.moments[name].clone();
        let flash = FaultyFlash::new(manifest.capacity_bytes, self.backups.random.next_u64());
        let (state, kept) = (self.state, self.keep(flash));
        self.model = moment.model.clone();
        self.slots.clone_from(&moment.slots);
        self.capacity.known_bytes = manifest.capacity_bytes;
        self.capacity.asked_bytes = None;
        self.model.pass_time(self.env.unix_millis());
        self.model.note_everywhere(&format!("restored from {name:?}"));
        self.put_onto_drive(name, manifest)?;
        self.tally.backups_restored += 1;
        // What lives on it is no part of the depot's store yet.
        self.backups.is_on = false;
        self.open_and_read(None).map(drop).map_err(|stop| self.of_backup(name, stop))?;
        if self.backups.random.one_in(2) {
            let ended = self.live();
            self.after_crash(ended).map_err(|what| self.of_backup(name, Stop::Wrong(what)))?;
        }
        self.backups.is_on = true;
        if self.backups.random.one_in(4) {
            self.backups.own = BTreeSet::from([*name]);
        } else {
            self.restore(kept);
            self.state = state;
        }
        Ok(())
    }

    fn of_backup(&self, name: &BackupName, stop: Stop) -> Stop {
        match stop {
            Stop::Wrong(what) => Stop::Wrong(format!("in a store restored from {name:?}: {what}")),
            Stop::Refused => Stop::Wrong(format!("a store restored from {name:?} does not open")),
            Stop::Crash => Stop::Crash,
        }
    }

    /// Restores a backup onto the drive, after attempts during which the power fails: each leaves no store, or a whole one. Or onto one that
    /// holds another backup.
    fn put_onto_drive(&mut self, name: &BackupName, manifest: &BackupManifest) -> Result<(), Stop> {
        if let Some((other, has)) = self.other_backup(name, manifest) {
            self.restore_once(&other, &has, Restore::Whole, false)?;
            let strikes = self.backups.random.one_in(2);
            if self.restore_once(name, manifest, Restore::Over(&has), strikes)? {
                return Ok(());
            }
            // What is left there may be no store, and is removed.
            drop(Store::open_with(&self.drive(), &self.options, || false));
            self.faulty = FaultyFlash::new(manifest.capacity_bytes, self.backups.random.next_u64());
        }
        let mut attempts = self.backups.random.below(3);
        while !self.restore_once(name, manifest, Restore::Whole, attempts > 0)? {
            attempts = attempts.saturating_sub(1);
            match Store::open_with(&self.drive(), &self.options, || false) {
                Ok(_) => break,
                Err(Error::Unusable(_)) => {}
                Err(error) => return wrong(format!("half of {name:?} does not say that it is no store: {error}")),
            }
        }
        Ok(())
    }

    /// Now and then: another backup of as much capacity.
    fn other_backup(&mut self, name: &BackupName, manifest: &BackupManifest) -> Option<(BackupName, BackupManifest)> {
        let Backups { random, depot, moments, .. } = &mut self.backups;
        let other =
            moments.keys().nth(random.below(2 * moments.len() as u64) as usize).filter(|other| *other != name)?;
        let has = backup::read(&**depot, other).ok()?;
        (has.capacity_bytes == manifest.capacity_bytes).then_some((*other, has))
    }

    /// Returns whether the backup is restored. Otherwise the power has failed, which it may do where it `strikes`.
    fn restore_once(
        &mut self,
        name: &BackupName,
        manifest: &BackupManifest,
        how: Restore<'_>,
        strikes: bool,
    ) -> Result<bool, Stop> {
        let (drive, faulty, depot) = (self.drive(), self.faulty.clone(), self.backups.depot.clone());
        let random = RefCell::new(SplitMix64::new(self.backups.random.next_u64()));
        let one_in = 1 + self.backups.random.below(24);
        let power_is_off = || {
            if strikes && faulty.writes_in_flight() > 0 && random.borrow_mut().one_in(one_in) {
                faulty.crash();
            }
            faulty.crashed()
        };
        let restored = restore_onto(&drive, &*depot, (name, manifest), how, power_is_off);
        drop(drive);
        match restored {
            _ if self.faulty.crashed() => {
                self.tally.restores_cut += 1;
                self.faulty = self.faulty.reopen();
                Ok(false)
            }
            Ok(_) => Ok(true),
            Err(error) => wrong(format!("{name:?} is not restored: {error}")),
        }
    }
}
