//! Counts of each kind of damage by region and outcome.

use std::collections::BTreeMap;
use std::fmt;

use super::harm::Kind;
use super::subject::Region;

/// How the store was when it was damaged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Moment {
    /// Before it was opened.
    Closed,
    /// While it answered reads.
    Reading,
    /// While it took writes, flushed and collected; then it was opened again.
    Writing,
}

/// The outcome of one damage. A wrong answer is not among these: it ends the test.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Outcome {
    /// The store did not open, and named the damage.
    Refused,
    /// Some keys were answered with an error, the others right.
    Error,
    /// Every key was answered right, and the check names the damage.
    RightAndNamed,
    /// Every key was answered right, and nothing that counts was hit: padding, dead records, copies.
    RightUnseen,
    /// The last writes, or the manifest's last frame, are gone without a trace, which the store cannot see.
    TailLost,
    /// Keys of a damaged data node are as they were before: it looks as if it was never written, which the store cannot see.
    Older,
}

impl Outcome {
    const ALL: [(Outcome, &str); 6] = [
        (Outcome::Refused, "refused"),
        (Outcome::Error, "error"),
        (Outcome::RightAndNamed, "right, named"),
        (Outcome::RightUnseen, "right, unseen"),
        (Outcome::TailLost, "tail lost"),
        (Outcome::Older, "older node"),
    ];
}

#[derive(Default)]
pub struct Tally {
    counts: BTreeMap<(Moment, Region, Kind), BTreeMap<Outcome, u64>>,
}

impl Tally {
    pub fn count(&mut self, moment: Moment, region: Region, kind: Kind, outcome: Outcome) {
        *self.counts.entry((moment, region, kind)).or_default().entry(outcome).or_default() += 1;
    }

    pub fn add(&mut self, other: Tally) {
        for (place, counts) in other.counts {
            let here = self.counts.entry(place).or_default();
            counts.into_iter().for_each(|(outcome, count)| *here.entry(outcome).or_default() += count);
        }
    }

    pub fn fired(&self) -> u64 {
        self.counts.values().flat_map(BTreeMap::values).sum()
    }

    pub fn of(&self, outcome: Outcome) -> u64 {
        self.counts.values().filter_map(|counts| counts.get(&outcome)).sum()
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:<9}{:<15}{:<7}{:>8}", "moment", "region", "kind", "fired")?;
        Outcome::ALL.iter().try_for_each(|(_, name)| write!(f, "{name:>15}"))?;
        for ((moment, region, kind), counts) in &self.counts {
            let [moment, region, kind] = [format!("{moment:?}"), format!("{region:?}"), format!("{kind:?}")];
            write!(f, "\n{moment:<9}{region:<15}{kind:<7}{:>8}", counts.values().sum::<u64>())?;
            for (outcome, _) in Outcome::ALL {
                write!(f, "{:>15}", counts.get(&outcome).copied().unwrap_or(0))?;
            }
        }
        Ok(())
    }
}
