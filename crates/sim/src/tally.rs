//! The states in which crashes and other faults struck.

use tapetum::Phase;
use tapetum_drive::{CrashReport, FAULTS, Struck};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum State {
    LogAppend,
    Flush,
    Install,
    Merge,
    Collect,
    Recover,
    Create,
    Grow,
    Evict,
    Resize,
    /// The store is being closed, and writes a checkpoint of its index.
    Close,
    /// A large item's value is being written to its extents.
    LargeWrite,
    /// An image of a data node, an extension, or zeros for a group of slots is being written.
    Image,
}

pub const STATES: [(State, &str); 13] = [
    (State::LogAppend, "log append"),
    (State::LargeWrite, "large write"),
    (State::Image, "image"),
    (State::Flush, "flush"),
    (State::Install, "install"),
    (State::Merge, "merge"),
    (State::Collect, "collect"),
    (State::Recover, "recover"),
    (State::Create, "create"),
    (State::Grow, "grow"),
    (State::Evict, "evict"),
    (State::Resize, "resize"),
    (State::Close, "close"),
];

impl State {
    /// The state of an open store: of its tasks' states, the one that is struck most rarely.
    pub fn of(phases: &[Phase]) -> State {
        let doing = |phase| phases.contains(&phase);
        if doing(Phase::Grow) {
            State::Grow
        } else if doing(Phase::Evict) {
            State::Evict
        } else if doing(Phase::Merge) {
            State::Merge
        } else if doing(Phase::Install) {
            State::Install
        } else if doing(Phase::Resize) {
            State::Resize
        } else if doing(Phase::Collect) {
            State::Collect
        } else if doing(Phase::Flush) {
            State::Flush
        } else {
            State::LogAppend
        }
    }
}

/// Events other than faults of single commands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Event {
    /// A crash lost a part of a completed write that no flush had covered.
    UnsyncedTorn,
    /// A crash lost a completed write, or a part of it, and kept a later one.
    UnsyncedReordered,
    /// A recovery after a crash was interrupted, and the next one as well.
    RecoveryCrashedTwice,
    /// A write was refused for lack of room.
    Full,
}

pub const EVENTS: [(Event, &str); 4] = [
    (Event::UnsyncedTorn, "unsynced write torn"),
    (Event::UnsyncedReordered, "unsynced writes reordered"),
    (Event::RecoveryCrashedTwice, "crash in recovery, twice"),
    (Event::Full, "full flash"),
];

const CLASSES: usize = FAULTS.len() + EVENTS.len();

/// A crash counts as a point only if a command in flight was lost or torn.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Tally {
    points: [u64; STATES.len()],
    /// Crashes that lost nothing in flight.
    harmless: u64,
    pub operations: u64,
    /// Operations on copies of the store that meet trouble.
    pub operations_on_copies: u64,
    /// Faults and events, by state.
    struck: [[u64; STATES.len()]; CLASSES],
    /// Freezes that were made, that were read (once for each keyspace), and that ended because their flash was needed.
    pub freezes_taken: u64,
    pub freezes_read: u64,
    pub freezes_ended: u64,
    /// Reads of freezes at the drive that were refused for want of local memory.
    pub freezes_starved: u64,
    /// Compute units that died.
    pub units_died: u64,
    /// Backups that were made, that were given up, cut or failed, and that were restored; restores that were cut; prunes.
    pub backups_made: u64,
    pub backups_ended: u64,
    pub backups_restored: u64,
    pub restores_cut: u64,
    pub depot_prunes: u64,
    /// On a damaged drive: reads that met the damage, stores that reported it when opened, stores that came up without the end of their
    /// log.
    pub reads_damaged: u64,
    pub refused_to_open: u64,
    pub log_ends_lost: u64,
}

fn names() -> impl Iterator<Item = &'static str> {
    FAULTS.iter().map(|(_, name)| *name).chain(EVENTS.iter().map(|(_, name)| *name))
}

impl Tally {
    /// Counts a crash. Returns whether it is a point.
    pub fn crash(&mut self, state: State, report: &CrashReport) {
        if report.lost_or_torn {
            self.points[state as usize] += 1;
        } else {
            self.harmless += 1;
        }
        self.unsynced(state, report);
    }

    /// Counts the losses that a crash caused among completed writes.
    pub fn unsynced(&mut self, state: State, report: &CrashReport) {
        if report.unsynced_torn {
            self.event(state, Event::UnsyncedTorn);
        }
        if report.unsynced_reordered {
            self.event(state, Event::UnsyncedReordered);
        }
    }

    /// How often this event happened.
    pub fn events(&self, event: Event) -> u64 {
        self.struck[FAULTS.len() + event as usize].iter().sum()
    }

    pub fn event(&mut self, state: State, event: Event) {
        self.struck[FAULTS.len() + event as usize][state as usize] += 1;
    }

    pub fn faults(&mut self, state: State, struck: &Struck) {
        for (place, (fault, _)) in FAULTS.iter().enumerate() {
            self.struck[place][state as usize] += struck.of(*fault);
        }
    }

    pub fn merge(&mut self, other: &Tally) {
        self.points.iter_mut().zip(other.points).for_each(|(sum, more)| *sum += more);
        let struck = self.struck.iter_mut().flatten().zip(other.struck.iter().flatten());
        struck.for_each(|(sum, more)| *sum += more);
        self.harmless += other.harmless;
        self.operations += other.operations;
        self.operations_on_copies += other.operations_on_copies;
        self.freezes_taken += other.freezes_taken;
        self.freezes_read += other.freezes_read;
        self.freezes_ended += other.freezes_ended;
        self.freezes_starved += other.freezes_starved;
        self.units_died += other.units_died;
        self.backups_made += other.backups_made;
        self.backups_ended += other.backups_ended;
        self.backups_restored += other.backups_restored;
        self.restores_cut += other.restores_cut;
        self.depot_prunes += other.depot_prunes;
        self.reads_damaged += other.reads_damaged;
        self.refused_to_open += other.refused_to_open;
        self.log_ends_lost += other.log_ends_lost;
    }

    pub fn points(&self) -> u64 {
        self.points.iter().sum()
    }

    /// The state that crashes struck least, and how often. Images are written only in ordered keyspaces, which no seed chooses, so their
    /// state is left out.
    pub fn rarest_state(&self) -> (&'static str, u64) {
        let of_seeds = STATES.iter().filter(|(state, _)| *state != State::Image);
        let struck = of_seeds.map(|(state, name)| (*name, self.points[*state as usize]));
        struck.min_by_key(|(_, points)| *points).unwrap_or(("nothing", 0))
    }

    /// The fault that struck least, and how often.
    pub fn rarest_fault(&self) -> (&'static str, u64) {
        let struck = names().zip(&self.struck).map(|(name, states)| (name, states.iter().sum()));
        struck.min_by_key(|(_, struck)| *struck).unwrap_or(("nothing", 0))
    }
}

impl std::fmt::Display for Tally {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:<26}", "struck in")?;
        STATES.iter().try_for_each(|(_, name)| write!(f, " {name:>11}"))?;
        writeln!(f, " {:>11}", "all")?;
        let crashes = ("crash: command lost or torn", &self.points);
        for (name, struck) in std::iter::once(crashes).chain(names().zip(&self.struck)) {
            write!(f, "{name:<26}")?;
            STATES.iter().try_for_each(|(state, _)| write!(f, " {:>11}", struck[*state as usize]))?;
            writeln!(f, " {:>11}", struck.iter().sum::<u64>())?;
        }
        writeln!(
            f,
            "{} more crashes lost nothing in flight; {} operations, {} more on copies in trouble",
            self.harmless, self.operations, self.operations_on_copies
        )?;
        writeln!(
            f,
            "{} freezes, {} reads of their keyspaces, {} more that found no memory; {} ended because their flash was needed",
            self.freezes_taken, self.freezes_read, self.freezes_starved, self.freezes_ended
        )?;
        writeln!(f, "{} compute units died", self.units_died)?;
        writeln!(
            f,
            "{} backups, {} more that came to nothing; {} restored, {} restores cut short, {} prunes",
            self.backups_made, self.backups_ended, self.backups_restored, self.restores_cut, self.depot_prunes
        )?;
        write!(
            f,
            "damage: {} reads met it, {} stores said so when opened, {} came up without the end of their log",
            self.reads_damaged, self.refused_to_open, self.log_ends_lost
        )
    }
}
