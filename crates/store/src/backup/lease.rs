//! The lease of a depot: who may make backups there, and who may serve writes that backups are made of.
//!
//! ```text
//!  lease/NUMBER:  "generation G" · "holder ID" · "lasts MS" · "behind MS | -" · "state held | released" · "by WHO"
//!                 a line each; the highest number counts
//!
//!  free, released, or seen unchanged for longer than it lasts ──► taken ──► renewed … ──► released
//!                                                                   └─ a higher number that is not its own ──► lost
//! ```
//! 1. To take or to renew is to put the next number, which one of several succeeds in, and then to see that no higher one is there: numbers that were
//!    removed behind its back could be put again.
//! 2. Nobody compares wall clocks. The holder counts from before it began its last successful renewal ([`Lease::ends_ms`]), others from when they saw it
//!    last change ([`Watch`]): so the holder's time is over before another takes over, whatever their clocks say.
//! 3. Time is that since boot, which goes on while a machine sleeps and jumps for nobody.
//! 4. A generation is taken with the lease ([`Lease::promote`]), and noted before it counts ([`super::backups`]). Where a later one was noted than the
//!    holder's, by one that had the lease before and slept, the holder has lost the lease: its backups are not believed.
//!
//! Threads: one at a time.

use super::backups::{self, GenerationStart};
use super::depot::Depot;
use super::error::BackupError;
use super::name::{self, BackupName};
use std::sync::Arc;
use tapetum_drive::{Env, fail_point};

/// Numbers below the present one that stay: what they say helps whoever looks why.
const KEPT: u64 = 4;

/// What an object of a lease says.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LeaseRecord {
    pub generation: u64,
    /// A random number of the holder's.
    pub holder: u64,
    pub lasts_ms: u64,
    /// How old the moment of the last backup was when this was put; `None`: the holder writes nothing, or has made no backup yet.
    pub behind_ms: Option<u64>,
    pub is_released: bool,
    /// Who it is, for people.
    pub by: String,
}

impl LeaseRecord {
    fn encode(&self) -> Vec<u8> {
        let LeaseRecord { generation, holder, lasts_ms, behind_ms, is_released, by } = self;
        let behind = behind_ms.map_or("-".into(), |behind_ms| behind_ms.to_string());
        let state = if *is_released { "released" } else { "held" };
        let lines = [
            format!("generation {generation}"),
            format!("holder {holder:016x}"),
            format!("lasts {lasts_ms}"),
            format!("behind {behind}"),
            format!("state {state}"),
            format!("by {by}\n"),
        ];
        lines.join("\n").into_bytes()
    }

    fn parse(bytes: &[u8]) -> Option<LeaseRecord> {
        let text = std::str::from_utf8(bytes).ok()?;
        let mut lines = text.strip_suffix('\n')?.split('\n');
        let mut field = |name: &str| lines.next()?.strip_prefix(name)?.strip_prefix(' ');
        Some(LeaseRecord {
            generation: field("generation")?.parse().ok()?,
            holder: u64::from_str_radix(field("holder")?, 16).ok()?,
            lasts_ms: field("lasts")?.parse().ok()?,
            behind_ms: match field("behind")? {
                "-" => None,
                behind => Some(behind.parse().ok()?),
            },
            is_released: match field("state")? {
                "held" => false,
                "released" => true,
                _ => return None,
            },
            by: field("by")?.into(),
        })
    }
}

/// What is known of the holder before, for whoever takes its place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Loss {
    /// There is no holder that wrote: whether anybody writes now is not known, nor since when.
    Unknown,
    /// The holder gave it up with a backup of everything.
    None,
    /// The holder may have acknowledged writes for so long since its last backup.
    AtMostMs(u64),
}

impl LeaseRecord {
    /// What is lost if the last backup takes the holder's place, when its time is over.
    pub fn loss(&self) -> Loss {
        match (self.behind_ms, self.is_released) {
            (None, _) => Loss::Unknown,
            (Some(0), true) => Loss::None,
            // What it acknowledged by the end of its time was after that backup.
            (Some(behind_ms), _) => Loss::AtMostMs(behind_ms + self.lasts_ms),
        }
    }
}

/// The highest number of a lease, and what it says; `None`: nobody ever had one.
///
/// # Errors
/// If the depot cannot be read, or the record makes no sense.
pub fn look(depot: &dyn Depot) -> Result<Option<(u64, LeaseRecord)>, BackupError> {
    loop {
        let Some((number, object)) = highest(depot)? else { return Ok(None) };
        // The holder may have removed it since, as there is a higher one.
        let Some(bytes) = depot.get(&object)? else { continue };
        let record = LeaseRecord::parse(&bytes);
        let record = record.ok_or_else(|| BackupError::Foreign { place: format!("{object} in {}", depot.place()) })?;
        return Ok(Some((number, record)));
    }
}

fn highest(depot: &dyn Depot) -> Result<Option<(u64, String)>, BackupError> {
    let numbered = depot.list(name::LEASE)?.into_iter().filter_map(|entry| Some((number_of(&entry.name)?, entry.name)));
    Ok(numbered.max())
}

fn number_of(object: &str) -> Option<u64> {
    object.rsplit('/').next()?.parse().ok()
}

fn object(number: u64) -> String {
    format!("{}/{number:020}", name::LEASE)
}

/// Waits for a lease by seeing it unchanged.
#[derive(Default)]
pub struct Watch {
    /// The highest number seen, and when it was seen first.
    seen: Option<(u64, u64)>,
}

/// What a look at a lease found.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Seen {
    /// It may be taken, as it was when this number was the highest.
    Free { number: u64, generation: u64 },
    /// It is held, and is to be looked at again; it is free in so many milliseconds unless it is renewed.
    Held { record: LeaseRecord, left_ms: u64, was_renewed: bool },
}

impl Watch {
    /// Looks at the lease.
    ///
    /// # Errors
    /// As [`look`].
    pub fn look(&mut self, depot: &dyn Depot, env: &Env) -> Result<Seen, BackupError> {
        let Some((number, record)) = look(depot)? else { return Ok(Seen::Free { number: 0, generation: 1 }) };
        let now_ms = env.unix_millis();
        let before = self.seen;
        let (_, since_ms) = *self.seen.get_or_insert((number, now_ms));
        let was_renewed = before.is_some_and(|(seen, _)| seen != number);
        let since_ms = if was_renewed { now_ms } else { since_ms };
        self.seen = Some((number, since_ms));
        let left_ms = (since_ms + record.lasts_ms + 1).saturating_sub(now_ms);
        if record.is_released || left_ms == 0 || fail_point!(LeaseTakenUnseen) {
            return Ok(Seen::Free { number, generation: record.generation });
        }
        Ok(Seen::Held { record, left_ms, was_renewed })
    }
}

/// A lease that is held. See the [module](self).
pub struct Lease {
    depot: Arc<dyn Depot>,
    env: Env,
    number: u64,
    record: LeaseRecord,
    /// When the last successful renewal began.
    begun_ms: u64,
}

impl Lease {
    /// Takes a lease that was seen free. `None`: another took it first. `behind_ms`: what the next holder is to know, as in [`Lease::note_behind`].
    ///
    /// # Errors
    /// If the depot cannot be read or written.
    pub fn take(
        depot: &Arc<dyn Depot>,
        env: &Env,
        (number, generation): (u64, u64),
        (lasts_ms, behind_ms): (u64, Option<u64>),
        by: &str,
    ) -> Result<Option<Lease>, BackupError> {
        let generation = generation.max(backups::generation_last(&**depot)?);
        let holder = env.random_u64();
        // A line of its own.
        let by = by.replace(char::is_control, " ");
        let record = LeaseRecord { generation, holder, lasts_ms, behind_ms, is_released: false, by };
        let begun_ms = env.unix_millis();
        let mut lease = Lease { depot: depot.clone(), env: env.clone(), number, record, begun_ms };
        Ok(lease.put_next()?.then_some(lease))
    }

    /// Puts the next number; whether that is the highest now.
    fn put_next(&mut self) -> Result<bool, BackupError> {
        let begun_ms = self.env.unix_millis();
        if !self.depot.put_new(&object(self.number + 1), &self.record.encode())? {
            return Ok(false);
        }
        let is_highest = highest(&*self.depot)?.is_some_and(|(number, _)| number == self.number + 1);
        if !is_highest && !fail_point!(LeaseBelievedTwice) {
            return Ok(false);
        }
        self.number += 1;
        self.begun_ms = begun_ms;
        for entry in self.depot.list(name::LEASE)? {
            if number_of(&entry.name).is_some_and(|number| number + KEPT < self.number) {
                self.depot.delete(&entry.name)?;
            }
        }
        Ok(true)
    }

    /// Says from the next renewal on how old the moment of the last backup is then.
    pub fn note_behind(&mut self, behind_ms: Option<u64>) {
        self.record.behind_ms = behind_ms;
    }

    /// Renews it when a third of its time has passed.
    ///
    /// # Errors
    /// As [`Lease::renew`].
    pub fn keep(&mut self) -> Result<(), BackupError> {
        let is_due = self.env.unix_millis() >= self.begun_ms + self.record.lasts_ms / 3;
        if is_due { self.renew() } else { Ok(()) }
    }

    /// Lets it last from now on.
    ///
    /// # Errors
    /// [`BackupError::LostLease`]: another has it, or a later generation has begun. After any other error it may be renewed again.
    pub fn renew(&mut self) -> Result<(), BackupError> {
        let is_last = backups::generation_last(&*self.depot)? <= self.record.generation;
        if is_last && (self.put_next()? || self.has_put()?) {
            return Ok(());
        }
        Err(BackupError::LostLease { place: self.depot.place() })
    }

    /// A put that reported an error may have succeeded: then the next number is this one's own.
    fn has_put(&mut self) -> Result<bool, BackupError> {
        match look(&*self.depot)? {
            Some((number, record)) if record.holder == self.record.holder && !record.is_released => {
                // When that renewal began is not known: the time counts as before.
                self.number = number;
                Ok(true)
            }
            _ => Ok(false),
        }
    }

    /// When it ends, on the clock of [`Env::unix_millis`], unless it is renewed before: nothing may be acknowledged from then on.
    pub fn ends_ms(&self) -> u64 {
        self.begun_ms + self.record.lasts_ms
    }

    /// Whether nobody else may have it yet.
    pub fn is_held(&self) -> bool {
        self.env.unix_millis() < self.ends_ms()
    }

    pub fn lasts_ms(&self) -> u64 {
        self.record.lasts_ms
    }

    pub fn generation(&self) -> u64 {
        self.record.generation
    }

    pub fn depot(&self) -> &Arc<dyn Depot> {
        &self.depot
    }

    /// Begins the next generation, which is of the store with this history, behind this backup.
    ///
    /// # Errors
    /// [`BackupError::LostLease`]: another was faster.
    pub fn promote(&mut self, history: u64, last: &BackupName) -> Result<u64, BackupError> {
        let generation = self.record.generation + 1;
        // Whoever lost the lease begins no generation above the next holder's. One that loses it from here on finds this number taken, or free as
        // well, and of two that put it, one succeeds.
        self.renew()?;
        let start = GenerationStart { generation, before: (last.generation, last.sequence), history };
        if !start.put(&*self.depot)? {
            return Err(BackupError::LostLease { place: self.depot.place() });
        }
        self.record.generation = generation;
        self.renew()?;
        Ok(generation)
    }

    /// Gives it up: another may take it at once.
    ///
    /// # Errors
    /// As [`Lease::renew`]. It ends by itself then.
    pub fn release(mut self) -> Result<(), BackupError> {
        self.record.is_released = true;
        self.renew()
    }
}
