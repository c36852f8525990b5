//! The numbers that backups were given: none is given twice, and a backup that is gone without being pruned is missed.
//!
//! ```text
//!  numbers/LAST-FIRST, empty: backups up to LAST were made, and those before FIRST were pruned; the highest name counts
//!
//!  create ─► manifest ─► numbers/LAST+1-FIRST          prune ─► numbers/LAST-NEW ─► manifests before NEW removed
//! ```
//! 1. A number is noted behind its manifest, and so a backup that was cut short is not missed.
//! 2. What is pruned is noted before it is removed, and so a prune that was cut short leaves no gap.
//! 3. A depot that an earlier version filled has no such object: then the lowest and the highest backup there stand for FIRST and LAST.
//! 4. Backups that are not believed are pruned whatever their numbers. So numbers between the last backup that a generation goes on from and its own
//!    first one are not missed.
//!
//! Threads: the caller's, which has the lease if it notes something.

use super::backups::{self, GenerationStart};
use super::depot::Depot;
use super::error::BackupError;
use super::name::{self, BackupName};

/// The most numbers that are told as missing.
const TOLD_MAX: usize = 1000;

/// The numbers of the backups that are to be there.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Numbers {
    last: u64,
    first: u64,
}

impl Numbers {
    fn object(&self) -> String {
        format!("{}/{:012}-{:012}", name::NUMBERS, self.last, self.first)
    }

    fn parse(object: &str) -> Option<Numbers> {
        let (last, first) = object.rsplit('/').next()?.split_once('-')?;
        Some(Numbers { last: last.parse().ok()?, first: first.parse().ok()? })
    }

    /// Puts these, and removes the noted ones that they replace.
    fn put(self, depot: &dyn Depot, noted: &[Numbers]) -> Result<(), BackupError> {
        depot.put_new(&self.object(), b"")?;
        for other in noted.iter().filter(|other| **other < self) {
            depot.delete(&other.object())?;
        }
        Ok(())
    }
}

/// The noted numbers, ascending: more than one where removing those before was cut short.
fn noted(depot: &dyn Depot) -> Result<Vec<Numbers>, BackupError> {
    let mut noted: Vec<Numbers> =
        depot.list(name::NUMBERS)?.iter().filter_map(|entry| Numbers::parse(&entry.name)).collect();
    noted.sort_unstable();
    Ok(noted)
}

/// The last of the noted numbers, with those of the backups that are there.
fn with_those_there(noted: &[Numbers], believed: &[BackupName]) -> Option<Numbers> {
    let there = believed.iter().map(|name| name.sequence);
    let there = there.clone().max().zip(there.min()).map(|(last, first)| Numbers { last, first });
    match (noted.last(), there) {
        (Some(noted), Some(there)) => Some(Numbers { last: noted.last.max(there.last), first: noted.first }),
        (noted, there) => noted.copied().or(there),
    }
}

/// The number of the next backup.
pub fn next(depot: &dyn Depot) -> Result<u64, BackupError> {
    let numbers = with_those_there(&noted(depot)?, &backups::list(depot)?);
    Ok(numbers.map_or(1, |numbers| numbers.last.saturating_add(1)))
}

/// Notes the number of a backup that was made.
pub fn note_made(depot: &dyn Depot, sequence: u64) -> Result<(), BackupError> {
    let noted = noted(depot)?;
    let first = match noted.last() {
        Some(noted) if noted.last >= sequence => return Ok(()),
        Some(noted) => noted.first,
        None => backups::list(depot)?.iter().map(|name| name.sequence).min().unwrap_or(sequence),
    };
    Numbers { last: sequence, first }.put(depot, &noted)
}

/// Notes that all backups before the first one that is kept are pruned.
pub fn note_pruned(depot: &dyn Depot, believed: &[BackupName], kept_first: u64) -> Result<(), BackupError> {
    let noted = noted(depot)?;
    match with_those_there(&noted, believed) {
        Some(numbers) if numbers.first < kept_first => Numbers { first: kept_first, ..numbers }.put(depot, &noted),
        _ => Ok(()),
    }
}

/// Numbers of backups that were made, were not pruned, and are gone; the first [`TOLD_MAX`] of them.
///
/// # Errors
/// If the depot cannot be read.
pub fn missing(depot: &dyn Depot) -> Result<Vec<u64>, BackupError> {
    // One that is made or pruned meanwhile is not missed: LAST is from before the list, FIRST from after it.
    let before = noted(depot)?;
    let all = backups::list_all(depot)?;
    let (starts, after) = (backups::starts(depot)?, noted(depot)?);
    let believed: Vec<BackupName> = all.iter().filter(|(_, is_believed)| *is_believed).map(|(name, _)| *name).collect();
    let last = before.last().copied().or(with_those_there(&[], &believed)).map(|numbers| numbers.last);
    let first = with_those_there(&after, &believed).map(|numbers| numbers.first);
    let Some((first, last)) = first.zip(last) else { return Ok(Vec::new()) };
    let names: Vec<BackupName> = all.iter().map(|(name, _)| *name).collect();
    Ok(gaps(&names, (first.max(1), last), &starts).into_iter().flatten().take(TOLD_MAX).collect())
}

/// The ranges of numbers from `first` to `last` that no backup has, and that none had which was not believed.
fn gaps(
    names: &[BackupName],
    (first, last): (u64, u64),
    starts: &[GenerationStart],
) -> Vec<std::ops::RangeInclusive<u64>> {
    let mut there: Vec<u64> =
        names.iter().map(|name| name.sequence).filter(|number| (first..=last).contains(number)).collect();
    there.sort_unstable();
    there.push(last.saturating_add(1));
    let (mut gaps, mut from) = (Vec::new(), first);
    for number in there {
        // Generations that have made no backup yet below the gap.
        let is_new = |start: &&GenerationStart| {
            !names.iter().any(|name| name.generation >= start.generation && name.sequence < from)
        };
        let known = starts.iter().filter(is_new).map(|start| start.before.1).min().unwrap_or(u64::MAX);
        let to = (number - 1).min(known);
        if from <= to {
            gaps.push(from..=to);
        }
        from = number.saturating_add(1);
    }
    gaps
}

#[cfg(test)]
mod tests {
    use super::super::FolderDepot;
    use super::super::digest::Digest;
    use super::*;
    use crate::folder::Folder;

    fn backup(generation: u64, sequence: u64) -> BackupName {
        BackupName { generation, sequence, digest: Digest::of(&sequence.to_le_bytes()) }
    }

    fn make(depot: &dyn Depot, name: &BackupName) {
        depot.put_new(&name.object(), b"").unwrap();
        note_made(depot, name.sequence).unwrap();
    }

    #[test]
    fn backups_that_are_gone_are_missed_wherever_they_were_and_their_numbers_are_not_given_again() {
        let folder = Folder::new("backup-numbers");
        let depot = FolderDepot::make(&folder).unwrap();
        assert_eq!((next(&depot), missing(&depot)), (Ok(1), Ok(vec![])));
        for number in 1..=6 {
            assert_eq!(next(&depot), Ok(number));
            make(&depot, &backup(1, number));
        }
        assert_eq!(missing(&depot), Ok(vec![]));
        for number in [1, 3, 4, 6] {
            depot.delete(&backup(1, number).object()).unwrap();
        }
        assert_eq!((next(&depot), missing(&depot)), (Ok(7), Ok(vec![1, 3, 4, 6])));
        note_pruned(&depot, &backups::list(&depot).unwrap(), 5).unwrap();
        assert_eq!((next(&depot), missing(&depot)), (Ok(7), Ok(vec![6])));
        depot.delete(&backup(1, 5).object()).unwrap();
        assert_eq!((next(&depot), missing(&depot)), (Ok(7), Ok(vec![5, 6])));
        assert_eq!(depot.list(name::NUMBERS).unwrap().len(), 1);
    }

    #[test]
    fn a_depot_without_noted_numbers_misses_those_between_its_backups() {
        let folder = Folder::new("backup-numbers-old");
        let depot = FolderDepot::make(&folder).unwrap();
        for number in [3, 4, 7] {
            depot.put_new(&backup(1, number).object(), b"").unwrap();
        }
        assert_eq!((next(&depot), missing(&depot)), (Ok(8), Ok(vec![5, 6])));
        make(&depot, &backup(1, 8));
        assert_eq!((next(&depot), missing(&depot)), (Ok(9), Ok(vec![5, 6])));
    }

    #[test]
    fn what_was_not_believed_and_is_pruned_is_not_missed() {
        let start = |generation, before| GenerationStart { generation, before, history: 7 };
        let starts = [start(2, (1, 3)), start(3, (2, 8))];
        let all = |names: &[(u64, u64)], range| {
            let names: Vec<BackupName> =
                names.iter().map(|(generation, sequence)| backup(*generation, *sequence)).collect();
            gaps(&names, range, &starts).into_iter().flatten().collect::<Vec<u64>>()
        };
        // Numbers 4 and 5 were of the first generation, 9 of the second.
        let (whole, later) = ([(1, 2), (1, 3), (2, 6), (2, 7), (2, 8), (3, 10)], (2, 10));
        assert_eq!(all(&whole, later), [0; 0]);
        assert_eq!(all(&whole[..5], (2, 9)), [0; 0]);
        for (gone, told) in [(0, Some(2)), (1, Some(3)), (2, None), (3, Some(7)), (4, Some(8)), (5, None)] {
            let left: Vec<(u64, u64)> = whole.iter().copied().filter(|name| *name != whole[gone]).collect();
            assert_eq!(all(&left, later), told.into_iter().collect::<Vec<u64>>(), "without {:?}", whole[gone]);
        }
    }
}
