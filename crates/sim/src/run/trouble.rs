//! Trouble: a copy of the store, in the state that a crash left, meets one class of faults. It must not answer wrongly, lose acknowledged
//! writes, panic or hang. It may refuse, with a typed error.
//!
//! ```text
//! copy ─┬► open, read all ──► work, the drive fails in one way ──► crash or close ─┬─► again, or open, read all, and the end
//!       │    └─ refused ──► the end                                                │
//!       └► open, read all, while the drive fails: opened or refused ──► crash ─────┘
//! ```
//! If bytes are damaged (rot, misplaced or lost writes), reads give the right value or an error. One loss is excused: if a log zone was
//! damaged since the store was opened, the log may come back without its last group, because no store can tell that from a crash before the
//! group was written. The log that comes back must still be a prefix, with its batches whole. If the log was damaged during the opening, it
//! may lose writes that were acknowledged before, and the model has forgotten the state before them; such a copy is opened once more, and
//! not judged. A copy whose manifest was damaged by a write of that opening is not judged either, if writes were acknowledged before they
//! were durable: that write may have overwritten the last install, and nothing else need record it.
//! If the manifest was damaged, its last frames may be lost as well. Only evictions, and openings without a durable write, are recorded
//! nowhere else; after a lost opening its stamps may be given again.
//!
//! If bytes of an image of an ordered keyspace rot in one place, either the store does not open, or each key that an image attests shows
//! its value ([`super::attested`]). An image that no other attests (one of the last flush) counts as torn, and an older one may be live.
//! With damage in several places, one may be in the image that attests another; and a lost or misplaced write is noticed only until its
//! slot is named again. For ordered keyspaces, the only check is then that they open, or say why not, and are read without a panic.
//!
//! A full drive refuses writes and loses nothing. [`super::life`] makes room again in ordered keyspaces.
//!
//! If commands only fail, or are short, everything must be there as soon as the drive works again.

use super::life::Life;
use super::{Aim, Stop, World};
use crate::tally::{Event, State};
use std::ops::Range;
use tapetum::inspect::{Area, AreaKind};
use tapetum::{Sync, inspect_drive};
use tapetum_drive::{Fault, Faults, SplitMix64};

/// The kinds of trouble. Those that strike once in a life are drawn more often.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Trouble {
    Fails(Fault),
    /// The drive is filled.
    Full,
    /// Several recoveries in a row are interrupted.
    Recovery,
    /// Compute units die. Not among [`Trouble::number`]: ordered keyspaces alone have work for them.
    UnitsDie,
}

const TROUBLES: [Trouble; 17] = [
    Trouble::Fails(Fault::LostWrite),
    Trouble::Fails(Fault::WriteError),
    Trouble::Fails(Fault::Rot),
    Trouble::Fails(Fault::FlushError),
    Trouble::Recovery,
    Trouble::Fails(Fault::MisplacedWrite),
    Trouble::Fails(Fault::ReadErrorForEver),
    Trouble::Full,
    Trouble::Fails(Fault::LostWrite),
    Trouble::Fails(Fault::WriteErrorForEver),
    Trouble::Fails(Fault::ReadError),
    Trouble::Fails(Fault::FlushError),
    Trouble::Recovery,
    Trouble::Fails(Fault::MisplacedWrite),
    Trouble::Fails(Fault::WriteError),
    Trouble::Fails(Fault::ShortWrite),
    Trouble::Fails(Fault::NoSpace),
];

impl Trouble {
    pub fn number(number: u64) -> Trouble {
        TROUBLES[(number % TROUBLES.len() as u64) as usize]
    }

    /// Whether bytes on flash become different from those written.
    pub fn damages(self) -> bool {
        matches!(self, Trouble::Fails(Fault::Rot | Fault::MisplacedWrite | Fault::LostWrite))
    }

    /// Whether commands fail, or their results may be wrong.
    pub fn fails(self) -> bool {
        self.damages()
            || self == Trouble::UnitsDie
            || matches!(self, Trouble::Fails(fault) if !matches!(fault, Fault::ShortRead | Fault::ShortWrite))
    }
}

/// The faults of the drive from now on.
fn faults(fault: Fault, within: (u64, u64), random: &mut SplitMix64) -> Faults {
    let mut faults = Faults { within, ..Faults::default() };
    match fault {
        Fault::ReadError => faults.read_one_in = 2 + random.below(30),
        Fault::ReadErrorForEver => (faults.read_one_in, faults.for_ever) = (5 + random.below(60), true),
        Fault::WriteError => faults.write_one_in = 1 + random.below(12),
        Fault::WriteErrorForEver => (faults.write_one_in, faults.for_ever) = (1 + random.below(12), true),
        Fault::FlushError => faults.flush_one_in = 1 + random.below(3),
        Fault::NoSpace => faults.full_one_in = 1 + random.below(12),
        Fault::ShortRead | Fault::ShortWrite => faults.short_one_in = 1 + random.below(3),
        Fault::MisplacedWrite => (faults.misplace_one_in, faults.astray_max) = (1 + random.below(6), 1),
        Fault::LostWrite => (faults.lose_one_in, faults.astray_max) = (1 + random.below(6), 1),
        Fault::Rot => {}
    }
    faults
}

/// The faults while a store is created. The creation may fail, and then leaves a store or none.
pub fn faults_of_creation(random: &mut SplitMix64) -> Faults {
    const OF_CREATION: [Fault; 5] =
        [Fault::ReadError, Fault::WriteError, Fault::FlushError, Fault::ShortWrite, Fault::NoSpace];
    let fault = OF_CREATION[random.below(OF_CREATION.len() as u64) as usize];
    faults(fault, (0, 0), random)
}

impl World {
    /// Lets a copy of the store meet trouble. Afterwards the world continues as if nothing had happened.
    pub(super) fn suffer(&mut self, trouble: Trouble) -> Result<(), Stop> {
        let copy = self.faulty.fork(self.random.next_u64());
        let kept = self.keep(copy);
        self.model.note_everywhere(&format!("a copy meets {trouble:?}"));
        self.trouble = Some(trouble);
        let ended = self.endure(trouble);
        self.trouble = None;
        match ended {
            // The copy's model has the events, for the report.
            Err(Stop::Wrong(what)) => return Err(Stop::Wrong(format!("in {trouble:?}: {what}"))),
            Err(Stop::Refused) => self.tally.refused_to_open += 1,
            Ok(()) | Err(Stop::Crash) => {}
        }
        self.restore(kept);
        Ok(())
    }

    fn endure(&mut self, trouble: Trouble) -> Result<(), Stop> {
        match trouble {
            Trouble::Fails(fault) => self.endure_faults(trouble, fault),
            Trouble::Full if self.has_ordered => self.fill_ordered(),
            Trouble::Full => self.open_and_read(None)?.fill(self),
            Trouble::Recovery => self.crash_in_recovery_twice(),
            Trouble::UnitsDie => self.endure_dying_units(),
        }
    }

    fn endure_faults(&mut self, trouble: Trouble, fault: Fault) -> Result<(), Stop> {
        for _ in 0..2 {
            let mut is_judged = true;
            if fault != Fault::Rot && self.random.one_in(3) {
                self.begin_to_fail(trouble);
                self.fail_in_recovery(fault)?;
                is_judged = !self.log_is_damaged && !self.install_is_written_over(fault);
            } else {
                let mut life = self.open_and_read(None)?;
                self.begin_to_fail(trouble);
                let ended = self.fail(&mut life, fault);
                if let Err(Stop::Crash) = ended {
                    life.last_replies(self)?;
                } else {
                    ended?;
                }
            }
            // After a failed flush, the process may end while the power stays: reads still see bytes that no flush saves. After a lack of
            // space, the same process reopens the store.
            let power_stays = matches!(fault, Fault::FlushError | Fault::NoSpace) && !self.faulty.crashed();
            let power_fails = !power_stays || self.random.one_in(2);
            if power_fails {
                let report = self.faulty.crash();
                self.tally.unsynced(self.state, &report);
            }
            self.note_faults();
            if power_fails {
                self.faulty = self.faulty.reopen();
            }
            self.set_faults(Faults::default());
            if !is_judged {
                // It opens or says why not, and does not panic.
                drop(self.open(None));
                return Ok(());
            }
            // Rot may strike the end of the log as well.
            if fault == Fault::Rot && self.random.one_in(2) {
                let count = 1 + self.random.below(3);
                self.rot(count);
            }
            if trouble.damages() && self.options.sync == Sync::Always && !self.log_is_damaged {
                self.model.forget_nothing();
            }
            if trouble.damages() && self.log_is_damaged {
                self.model.doubt_barriers();
            }
            self.model.crash();
            if trouble.damages() && self.images_are_damaged {
                self.set_pages_adrift(fault);
                return self.open_and_read(None).map(drop);
            }
            if trouble.damages() && self.manifest_is_damaged {
                self.model.undo_evictions();
                if self.options.sync != Sync::Always {
                    self.model.forget_stamps();
                }
            }
        }
        if !trouble.damages() {
            self.faulty.heal();
            self.trouble = None;
        }
        self.open_and_read(None).map(drop)
    }

    /// Works while units die, and goes on with what is on flash then.
    fn endure_dying_units(&mut self) -> Result<(), Stop> {
        for _ in 0..2 {
            let mut life = self.open_and_read(None)?;
            self.begin_to_fail(Trouble::UnitsDie);
            for _ in 0..self.random.below(100) {
                life.step(self, None)?;
            }
            let one_in = 1 + self.random.below(60);
            self.units.set(one_in);
            self.model.set_drive_fails(true);
            self.model.note_everywhere(&format!("of {one_in} runs of programs one is its unit's last"));
            let mut steps = 30 + self.random.below(150);
            while steps > 0 && !life.has_failed() {
                steps -= 1;
                life.step(self, None)?;
            }
            // A little longer, to check the answers of a failed store.
            for _ in 0..30 {
                life.step(self, None)?;
            }
            if self.random.one_in(4) {
                life.close(self)?;
            }
            let died = self.units.set(0);
            self.tally.units_died += died;
            self.model.set_drive_fails(false);
            if self.random.one_in(2) {
                let report = self.faulty.crash();
                self.tally.unsynced(self.state, &report);
                self.note_faults();
                self.faulty = self.faulty.reopen();
            }
            self.model.crash();
        }
        self.trouble = None;
        self.open_and_read(None).map(drop)
    }

    /// Fills the drive with values of ordered keyspaces, then makes room and uses it again.
    fn fill_ordered(&mut self) -> Result<(), Stop> {
        let mut life = self.open_and_read(None)?;
        life.fill_ordered(self)?;
        match self.random.below(3) {
            0 => {
                let report = self.faulty.crash();
                self.tally.unsynced(self.state, &report);
                life.last_replies(self)?;
                self.model.crash();
                self.faulty = self.faulty.reopen();
                drop(life);
                life = self.open_and_read(None)?;
            }
            1 => {
                life.close_full(self)?;
                drop(life);
                life = self.open_and_read(None)?;
            }
            _ => {}
        }
        life.make_room(self)?;
        life.drop_ordered(self)?;
        life.close_full(self)?;
        drop(life);
        self.open_and_read(None).map(drop)
    }

    fn begin_to_fail(&mut self, trouble: Trouble) {
        if trouble.damages() && self.options.sync == Sync::Always {
            self.model.begin_to_forget();
        }
        (self.log_is_damaged, self.manifest_is_damaged, self.images_are_damaged) = (false, false, false);
        self.images_damaged = 0;
    }

    /// Opens and reads the store while the drive fails. It opens or says why not, and its writes must not disturb the next opening.
    fn fail_in_recovery(&mut self, fault: Fault) -> Result<(), Stop> {
        let within = self.region();
        let faults = faults(fault, within, &mut self.random);
        self.set_faults(faults);
        self.model.note_everywhere(&format!("to be opened under {faults:?}"));
        match self.open(None) {
            // Keys that could not be read are still to be judged.
            Ok(life) if life.was_refused() => Ok(()),
            Ok(_) => self.all_read(),
            Err(Stop::Refused) => Ok(()),
            Err(stop) => Err(stop),
        }
    }

    /// Whether the frame of this opening may have overwritten that of the last install, whose log was never reported as durable.
    fn install_is_written_over(&self, fault: Fault) -> bool {
        fault == Fault::MisplacedWrite && self.manifest_is_damaged && self.options.sync != Sync::Always
    }

    /// Works while the drive fails, from some moment on.
    fn fail(&mut self, life: &mut Life, fault: Fault) -> Result<(), Stop> {
        let aim = Aim::draw(&mut self.random, None);
        let within = self.region();
        let faults = faults(fault, within, &mut self.random);
        let mut steps = 30 + self.random.below(150);
        let mut waits = if self.random.one_in(3) { 400 } else { self.random.below(60) };
        let mut failing = false;
        while steps > 0 && !life.has_failed() {
            if !failing && (waits == 0 || aim == Aim::At(life.state(self))) {
                failing = true;
                self.set_faults(faults);
                self.model.note_everywhere(&format!("{faults:?}"));
            }
            waits = waits.saturating_sub(1);
            steps -= u64::from(failing);
            if failing && fault == Fault::Rot && self.random.one_in(24) {
                self.rot(1);
            }
            life.step(self, None)?;
        }
        // A little longer, to check the answers of a failed store.
        for _ in 0..30 {
            life.step(self, None)?;
        }
        if self.random.one_in(4) { life.close(self) } else { Ok(()) }
    }

    /// Works for a while, then the process ends and the power stays: unflushed writes are in the drive's cache.
    fn end_process(&mut self) -> Result<(), Stop> {
        let mut life = self.open_and_read(None)?;
        for _ in 0..100 + self.random.below(200) {
            life.step(self, None)?;
        }
        life.last_replies(self)?;
        drop(life);
        self.model.note_everywhere("the process ends");
        self.model.crash();
        Ok(())
    }

    fn crash_in_recovery_twice(&mut self) -> Result<(), Stop> {
        if self.has_ordered && self.random.one_in(2) {
            self.end_process()?;
        }
        let mut in_a_row = 0;
        for _ in 0..3 + self.random.below(4) {
            match self.open_and_read(Some(())) {
                Err(Stop::Crash) => in_a_row += 1,
                Ok(_) => in_a_row = 0,
                Err(wrong) => return Err(wrong),
            }
            if in_a_row > 1 {
                self.tally.event(State::Recover, Event::RecoveryCrashedTwice);
            }
            let report = self.faulty.crash();
            self.tally.unsynced(self.state, &report);
            self.model.crash();
            self.faulty = self.faulty.reopen();
        }
        self.open_and_read(None).map(drop)
    }

    /// Notes the faults of the drive.
    pub(super) fn note_faults(&mut self) {
        let report = self.faulty.take_report();
        self.tally.faults(self.state, &report.struck);
        self.tally.reads_damaged += report.reads_damaged;
        let meets =
            |area: &Range<u64>| report.damaged.iter().any(|range| range.start < area.end && area.start < range.end);
        self.manifest_is_damaged |= meets(&self.manifest);
        self.log_is_damaged |= meets(&self.log);
        let is_image = |range: &Range<u64>| range.end > self.log.end;
        let is_damaged = self.manifest_is_damaged || self.log_is_damaged || report.damaged.iter().any(is_image);
        self.images_are_damaged |= self.has_ordered && is_damaged;
        self.images_damaged += report.damaged.iter().filter(|range| is_image(range)).count();
    }

    /// Damage may have taken the newest images; if it is in one place, only those that nothing attests.
    fn set_pages_adrift(&mut self, fault: Fault) {
        let elsewhere = self.manifest_is_damaged || self.log_is_damaged;
        let is_one = fault == Fault::Rot && self.images_damaged == 1 && !elsewhere;
        let is_judged = is_one && self.options.sync == Sync::Always;
        let World { attested, model, workload, .. } = self;
        model.set_pages_adrift(|key| is_judged && attested.has(key, workload.slot_of(key)));
    }

    /// A part of the drive, or all of it, so that writes to small parts are struck as well.
    fn region(&mut self) -> (u64, u64) {
        let log = self.log.clone();
        match self.random.below(6) {
            0..2 => (0, log.start),
            2 => (log.start, log.end),
            3..5 => (log.end, u64::MAX),
            _ => (0, 0),
        }
    }

    /// Flips bits of a few bytes in used areas.
    fn rot(&mut self, count: u64) {
        let areas = self.areas();
        for _ in 0..count {
            let kinds: std::collections::BTreeSet<AreaKind> = areas.iter().map(|area| area.kind).collect();
            let Some(kind) = kinds.iter().nth(self.random.below(kinds.len().max(1) as u64) as usize) else { return };
            let of_kind: Vec<&Area> = areas.iter().filter(|area| area.kind == *kind).collect();
            let area = of_kind[self.random.below(of_kind.len() as u64) as usize];
            // Most of a manifest or a log zone is at its beginning.
            let used = if self.random.one_in(2) { area.length_bytes.min(4096) } else { area.length_bytes };
            let at = area.offset_bytes + self.random.below(used);
            let bits = 1 << self.random.below(8);
            self.faulty.flip(at, bits);
            // The store repairs one damaged copy of the manifest without loss, so rot that strikes the first copy strikes the second one
            // too.
            let copy = areas.iter().find(|other| *kind == AreaKind::Manifest && other.kind == AreaKind::ManifestCopy);
            copy.into_iter().for_each(|copy| self.faulty.flip(copy.offset_bytes + (at - area.offset_bytes), bits));
            self.model.note_everywhere(&format!("byte {at} rots, in {kind:?}"));
        }
        self.note_faults();
    }

    /// The used areas of the drive, according to its manifest; none if that is damaged.
    fn areas(&mut self) -> Vec<Area> {
        let seed = self.random.next_u64();
        let drive = self.drive_of(self.faulty.fork_durable(seed));
        let inspection = inspect_drive(&drive).unwrap_or_default();
        let used = |area: &Area| !matches!(area.kind, AreaKind::Free | AreaKind::Unused);
        inspection.areas.into_iter().filter(used).collect()
    }

    /// The range in which areas of these kinds lie.
    pub(super) fn find(&mut self, kinds: &[AreaKind]) -> Range<u64> {
        let areas = self.areas();
        let found = areas.iter().filter(|area| kinds.contains(&area.kind));
        let start = found.clone().map(|area| area.offset_bytes).min().unwrap_or(0);
        let end = found.map(|area| area.offset_bytes + area.length_bytes).max().unwrap_or(0);
        assert!(start < end, "a store has {kinds:?}");
        start..end
    }
}
