//! Many runs: until so many points are counted, or until a planted bug shows.

use crate::run::{Failure, Setup, run};
use crate::tally::Tally;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError};
use tapetum::planted::Bug;
use tapetum_drive::Env;

/// Crashes in one run.
pub const CRASHES: u32 = 24;
/// Runs between two looks at the tally: the same on any number of threads.
const RUNS_PER_ROUND: u64 = 16;

/// What many runs came to.
#[derive(Clone, Default, Debug)]
pub struct Found {
    pub tally: Tally,
    pub runs: u64,
    /// Over all runs.
    pub trace_hash: u64,
    /// The failure of the lowest seed.
    pub failure: Option<Failure>,
}

/// Runs seeds from `seed` on until `enough`, or until one fails; looks at the tally after each round.
pub fn run_until(seed: u64, threads: usize, bug: Option<Bug>, enough: impl Fn(&Found) -> bool) -> Found {
    let mut found = Found::default();
    while !enough(&found) && found.failure.is_none() {
        let first = seed.wrapping_add(found.runs);
        for outcome in round(first, RUNS_PER_ROUND, threads, bug) {
            found.tally.merge(&outcome.tally);
            found.runs += 1;
            found.trace_hash = found.trace_hash.rotate_left(1) ^ outcome.trace_hash;
            if outcome.failure.is_some() {
                found.failure = outcome.failure;
                break;
            }
        }
    }
    found
}

/// Runs `count` seeds; their outcomes in order.
fn round(first: u64, count: u64, threads: usize, bug: Option<Bug>) -> Vec<crate::run::Outcome> {
    let next = Arc::new(AtomicU64::new(0));
    let outcomes = Arc::new(Mutex::new(Vec::new()));
    let env = Env::system();
    let workers: Vec<_> = (0..threads.max(1))
        .filter_map(|number| {
            let (next, outcomes) = (next.clone(), outcomes.clone());
            let work = move || {
                loop {
                    let run_number = next.fetch_add(1, Ordering::SeqCst);
                    if run_number >= count {
                        return;
                    }
                    let seed = first.wrapping_add(run_number);
                    let outcome = run(&Setup { seed, crashes: CRASHES, bug, record_events: false });
                    outcomes.lock().unwrap_or_else(PoisonError::into_inner).push((run_number, outcome));
                }
            };
            env.spawn(&format!("run-{number}"), work).ok()
        })
        .collect();
    assert!(!workers.is_empty(), "no thread to run on");
    for worker in workers {
        assert!(worker.join().is_ok(), "the simulator itself panicked");
    }
    let mut outcomes = std::mem::take(&mut *outcomes.lock().unwrap_or_else(PoisonError::into_inner));
    outcomes.sort_by_key(|(run_number, _)| *run_number);
    outcomes.into_iter().map(|(_, outcome)| outcome).collect()
}

/// Looks for a planted bug, one seed after the other; how many runs and points it took, if it was caught.
pub fn hunt(seed: u64, bug: Bug, runs_max: u64) -> Found {
    let mut found = Found::default();
    while found.runs < runs_max && found.failure.is_none() {
        let seed = seed.wrapping_add(found.runs);
        let outcome = run(&Setup { seed, crashes: CRASHES, bug: Some(bug), record_events: false });
        found.tally.merge(&outcome.tally);
        found.runs += 1;
        found.failure = outcome.failure;
    }
    found
}

/// Runs a seed that failed once more, with a report of what happened to the key.
pub fn explain(failure: &Failure, bug: Option<Bug>) -> String {
    let outcome = run(&Setup { seed: failure.seed, crashes: CRASHES, bug, record_events: true });
    outcome.failure.as_ref().map_or_else(|| failure.to_string(), Failure::to_string)
}
