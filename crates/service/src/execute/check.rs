//! Checks: of a store that is closed for all others everything, of one that is served the checksums, at a pace that leaves room for others.

#![allow(clippy::disallowed_methods)] // A clock that decides how long to pause.

use std::time::{Duration, Instant};

use tapetum::{CheckInUse, CheckReport};

use super::OpenStore;
use crate::caller::{Caller, CallerLeft};
use crate::failure::{Failure, FailureKind};
use crate::opening::OpenError;
use crate::reply::Reply;

/// How often it asks, in a pause, whether anybody waits for the rest.
const LOOK: Duration = Duration::from_millis(20);

pub fn run(open: OpenStore<'_>, caller: &mut dyn Caller) -> Result<(), Failure> {
    let report = match open.server {
        None => tapetum::check(open.store).map_err(|error| open.failure(error))?,
        Some(_) => of_store_in_use(open, caller)?,
    };
    if !report.problems.is_empty() {
        let damaged = OpenError::Damaged { path: open.place.path(), problems: report.problems };
        return Err(Failure::new(FailureKind::Damaged, damaged.to_string()));
    }
    let CheckReport { segments, records, valid_records, buffered_records, .. } = report;
    let mut figures = vec![("segments", segments), ("records", records), ("valid_records", valid_records)];
    if open.server.is_none() {
        figures.push(("buffered_records", buffered_records));
    }
    let figures = figures.into_iter().map(|(name, count)| (name.to_owned(), count.to_string()));
    Ok(caller.take(Reply::Figures(figures.collect()))?)
}

fn of_store_in_use(open: OpenStore<'_>, caller: &mut dyn Caller) -> Result<CheckReport, Failure> {
    let mut check = CheckInUse::new(open.store).map_err(|error| open.failure(error))?;
    loop {
        let begun = Instant::now();
        if !check.step().map_err(|error| open.failure(error))? {
            return Ok(check.report().clone());
        }
        // As long as it took, so that the drive is others' for half of the time.
        let mut pause = begun.elapsed();
        while !pause.is_zero() {
            if caller.has_left() {
                return Err(CallerLeft.into());
            }
            let part = pause.min(LOOK);
            std::thread::sleep(part);
            pause -= part;
        }
    }
}
