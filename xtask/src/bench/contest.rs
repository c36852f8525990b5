//! A row as data: the items to store, the contenders, their work, and the claims about the results. `runner` runs any of them.

use crate::results::outcome::Reach;
use crate::results::series::read_quantile;
use std::time::Duration;

use tapetum_bench::turn::{Length, Report};

use super::arena::{Entrant, Load};
use super::shape::{Room, Shape};

pub struct Contest {
    pub name: &'static str,
    pub about: &'static str,
    pub items: u64,
    pub value_bytes: u64,
    pub rounds: u64,
    pub room: Room,
    pub tier: Tier,
    /// The usual contenders, and those that take part only if `--contenders` names them.
    pub contenders: &'static [&'static str],
    pub by_name: &'static [&'static str],
    /// Overwrites after loading, as a multiple of the number of items.
    pub overwrites: u64,
    pub stages: fn(&Shape) -> Vec<Stage>,
    /// The figure of each entrant to draw, if there is a picture.
    pub pictured: Option<Figure>,
}

/// The DRAM tier: the part of the memory for copies of items.
#[derive(Clone, Copy)]
pub enum Tier {
    None,
    Half,
    /// Room for all items, in addition to the memory.
    All,
}

/// Trials between the start and the end of the contenders.
pub struct Stage {
    /// Empty if there is only one.
    pub name: &'static str,
    pub sync: bool,
    /// Worker threads of `tapetum serve`.
    pub server_threads: u64,
    pub trials: Vec<Trial>,
}

impl Stage {
    pub fn of(trials: Vec<Trial>) -> Stage {
        Stage { name: "", sync: false, server_threads: 1, trials }
    }
}

/// One load for all entrants, and groups of ways to ask. The fastest of each group takes part in the rounds.
pub struct Trial {
    /// Empty if there is only one.
    pub name: String,
    pub load: Load,
    /// Number of the first items to delete before the trial.
    pub removed: u64,
    /// Warm-up time of each entrant before the rounds, which is not counted.
    pub warm_up: Duration,
    /// Length of the turns that find the fastest way.
    pub sweep: Duration,
    pub groups: Vec<Vec<Entrant>>,
    pub claims: Vec<Claim>,
    /// Counters that must be equal in all turns of all entrants.
    pub agreed: &'static [&'static str],
}

impl Trial {
    pub fn of(load: Load) -> Trial {
        Trial {
            name: String::new(),
            load,
            removed: 0,
            warm_up: Duration::ZERO,
            sweep: Duration::from_millis(500),
            groups: Vec::new(),
            claims: Vec::new(),
            agreed: &[],
        }
    }

    /// Named by its mix and distribution.
    pub fn ycsb(mix: &'static str, distribution: &'static str) -> Trial {
        let load = Load { distribution, ..Load::of(mix) };
        Trial { name: format!("{}, {distribution}", mix.to_uppercase()), ..Trial::of(load) }
    }

    /// One operation per turn, however long it takes.
    pub fn once(mix: &'static str) -> Trial {
        Trial::of(Load { length: Length::Operations(1), ..Load::of(mix) })
    }
}

/// One way to ask, with several numbers of threads or connections, and of operations in flight in each.
pub fn group(contender: &'static str, api: &'static str, ways: &[(u64, u64)]) -> Vec<Entrant> {
    ways.iter().map(|&(threads, depth)| Entrant::new(contender, api, threads, depth)).collect()
}

pub type Figure = (&'static str, fn(&Report) -> f64);

pub const RATE: Figure = ("operations/s", Report::operations_per_second);
pub const CPU: Figure = ("CPU µs an operation", Report::cpu_us_per_operation);
pub const P50: Figure = ("P50 of reads, µs", |report| read_quantile(0.5)(report));

/// A figure of an entrant, absolute or relative to others, and its aim. Entrants are named by their contender, or by contender and way.
pub struct Claim {
    pub of: &'static str,
    pub figure: Figure,
    pub over: Over,
    pub reach: Reach,
    /// Only reported, not held, if this figure relative to the named entrant is at least so high.
    pub unless: Option<(&'static str, f64)>,
}

#[derive(Clone, Copy)]
pub enum Over {
    Nothing,
    One(&'static str),
    /// The smaller of the two, round by round.
    Smaller([&'static str; 2]),
    /// Each other entrant separately.
    Each,
}

impl Claim {
    pub fn of(of: &'static str, figure: Figure) -> Claim {
        Claim { of, figure, over: Over::Nothing, reach: Reach::Reported, unless: None }
    }

    pub fn over(self, other: &'static str) -> Claim {
        Claim { over: Over::One(other), ..self }
    }

    pub fn over_smaller(self, others: [&'static str; 2]) -> Claim {
        Claim { over: Over::Smaller(others), ..self }
    }

    pub fn over_each(self) -> Claim {
        Claim { over: Over::Each, ..self }
    }

    pub fn at_least(self, least: f64) -> Claim {
        Claim { reach: Reach::AtLeast(least), ..self }
    }

    pub fn at_most(self, most: f64) -> Claim {
        Claim { reach: Reach::AtMost(most), ..self }
    }

    pub fn unless(self, other: &'static str, ratio: f64) -> Claim {
        Claim { unless: Some((other, ratio)), ..self }
    }
}
