//! In what state each crash struck.

use tapetum::Phase;

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
    /// The store is closed, and leaves a checkpoint of its index.
    Close,
}

pub const STATES: [(State, &str); 11] = [
    (State::LogAppend, "log append"),
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
    /// The state of a store that is open: of what its tasks do, the one that is struck most rarely.
    pub fn of(phases: [Phase; 3]) -> State {
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

/// A crash is a point only if a command in flight was lost or torn.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Tally {
    points: [u64; STATES.len()],
    /// Crashes that lost nothing in flight.
    harmless: u64,
    pub operations: u64,
}

impl Tally {
    pub fn add(&mut self, state: State, lost_or_torn: bool) {
        if lost_or_torn {
            self.points[state as usize] += 1;
        } else {
            self.harmless += 1;
        }
    }

    pub fn merge(&mut self, other: &Tally) {
        self.points.iter_mut().zip(other.points).for_each(|(sum, more)| *sum += more);
        self.harmless += other.harmless;
        self.operations += other.operations;
    }

    pub fn points(&self) -> u64 {
        self.points.iter().sum()
    }

    /// The state that was struck least, and how often.
    pub fn rarest(&self) -> (&'static str, u64) {
        let struck = STATES.iter().map(|(state, name)| (*name, self.points[*state as usize]));
        struck.min_by_key(|(_, points)| *points).unwrap_or(("nothing", 0))
    }
}

impl std::fmt::Display for Tally {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        writeln!(f, "crash struck in    points")?;
        for (state, name) in STATES {
            writeln!(f, "{name:<15} {:>9}", self.points[state as usize])?;
        }
        writeln!(f, "{:<15} {:>9}", "all", self.points())?;
        write!(f, "({} more crashes lost nothing in flight; {} operations)", self.harmless, self.operations)
    }
}
